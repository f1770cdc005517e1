/* cuInit and the devices: which GPUs this process sees. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct sg_driver sg = {
    .gate = PTHREAD_MUTEX_INITIALIZER,
    .opened = PTHREAD_COND_INITIALIZER,
    .files = {.locks = -1, .log = -1},
    .next_address = 1ULL << 48, /* above all host addresses */
};

static void forget_in_child(void)
{
    sg.forked = sg.ready;
    sg.ready = false;
    memset(&simgpu_block, 0, sizeof simgpu_block);
    /* Mappings of the device were not inherited (MADV_DONTFORK); the descriptors were. */
    for (unsigned i = 0; i < sg.devices; i++)
        if (sg.device[i].file >= 0)
            close(sg.device[i].file);
    sg.files.state = NULL;
    sg.files.faults = NULL;
    sg_detach(&sg.files);
    sg_close_kept();
    pthread_mutex_init(&sg.gate, NULL);
    pthread_cond_init(&sg.opened, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_in_child);
}

/* An orderly exit says so in the log at once; after any other the next process finds out. */
__attribute__((destructor)) static void say_goodbye(void)
{
    if (!sg.ready || pthread_mutex_trylock(&sg.gate) != 0)
        return;
    if (simgpu_block.state < CU_PROCESS_STATE_CHECKPOINTED && sg_accounts_lock()) {
        for (unsigned i = 0; i < sg.devices; i++) {
            for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next)
                if (alloc->context->device == (int)i)
                    sg_drop_extents(&sg.device[i], alloc);
            sg_close_gpu(&sg.device[i], "exit");
        }
        sg_accounts_unlock();
    }
    sg.ready = false;
    pthread_mutex_unlock(&sg.gate);
}

static void show(unsigned gpu)
{
    sg.device[sg.devices] = (struct sg_device){.gpu = gpu, .slot = -1, .file = -1};
    sg.device[sg.devices].primary.device = (int)sg.devices;
    sg.devices++;
}

/* A UUID may be shortened to any beginning that is unique; an index counts what was given. */
static int find_given(const char *name)
{
    if (strncasecmp(name, "GPU-", 4) != 0) {
        char *end;
        unsigned long index = strtoul(name, &end, 10);
        return *name && !*end && index < sg.given_count ? (int)sg.given[index] : -1;
    }
    int found = -1;
    for (unsigned i = 0; i < sg.given_count; i++) {
        if (strncasecmp(sg.node.gpu[sg.given[i]].uuid, name, strlen(name)) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int)sg.given[i];
    }
    return found;
}

/* CUDA_VISIBLE_DEVICES: the list ends at the first entry that names nothing, as the vendor's does. */
static void choose_visible(void)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        for (unsigned i = 0; i < sg.given_count; i++)
            show(sg.given[i]);
        return;
    }
    char list[4096];
    snprintf(list, sizeof list, "%s", wanted);
    char *rest = list, *name;
    while (sg.devices < SG_MAX_GPUS && (name = strsep(&rest, ",")) != NULL) {
        int gpu = find_given(name + strspn(name, " "));
        for (unsigned i = 0; i < sg.devices && gpu >= 0; i++)
            if ((int)sg.device[i].gpu == gpu)
                gpu = -1;
        if (gpu < 0)
            return;
        show((unsigned)gpu);
    }
}

static CUresult start(void)
{
    if (sg.forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!sg_read_node(&sg.node))
        return CUDA_ERROR_NO_DEVICE;
    sg.given_count = sg_given(&sg.node, sg.given);
    sg.devices = 0;
    choose_visible();
    if (sg.devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    if (!sg_attach(&sg.files, true))
        return CUDA_ERROR_OPERATING_SYSTEM;
    sg_own_pod(simgpu_block.pod);
    if (!sg_start_restore_thread()) {
        sg_detach(&sg.files);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    sg.ready = true;
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sg.gate);
    CUresult result = sg.ready ? CUDA_SUCCESS : start();
    pthread_mutex_unlock(&sg.gate);
    return result;
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_node node;
    if (!sg.ready && !sg_read_node(&node))
        return CUDA_ERROR_NO_DEVICE;
    *version = (int)(sg.ready ? sg.node.cuda_version : node.cuda_version);
    return CUDA_SUCCESS;
}

CUresult sg_enter(void)
{
    if (!sg.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&sg.gate);
    while (simgpu_block.state != CU_PROCESS_STATE_RUNNING)
        pthread_cond_wait(&sg.opened, &sg.gate);
    return CUDA_SUCCESS;
}

void sg_leave(void)
{
    pthread_mutex_unlock(&sg.gate);
}

/* Enters a call on a device and finds the GPU behind it; the gate is held on success. */
static CUresult enter_device(CUdevice device, const struct sg_gpu **gpu)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    if (device < 0 || device >= (int)sg.devices) {
        sg_leave();
        return CUDA_ERROR_INVALID_DEVICE;
    }
    *gpu = &sg.node.gpu[sg.device[device].gpu];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult result = count ? sg_enter() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *count = (int)sg.devices;
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    const struct sg_gpu *gpu;
    CUresult result = device ? enter_device(ordinal, &gpu) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *device = ordinal;
    sg_leave();
    return CUDA_SUCCESS;
}

static CUresult device_text(char *out, int size, CUdevice device, bool bus_id)
{
    const struct sg_gpu *gpu;
    CUresult result = out && size > 0 ? enter_device(device, &gpu) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    /* CUDA writes a domain of four digits, NVML one of eight. */
    snprintf(out, (size_t)size, "%s", bus_id ? gpu->bus_id + 4 : gpu->product);
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    return device_text(name, size, device, false);
}

CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
    return device_text(id, size, device, true);
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    CUresult result = device && id ? sg_enter() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    result = CUDA_ERROR_INVALID_DEVICE;
    for (unsigned i = 0; i < sg.devices; i++) {
        const char *known = sg.node.gpu[sg.device[i].gpu].bus_id;
        if (!strcasecmp(id, known) || !strcasecmp(id, known + 4)) {
            *device = (CUdevice)i;
            result = CUDA_SUCCESS;
        }
    }
    sg_leave();
    return result;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    const struct sg_gpu *gpu;
    CUresult result = uuid ? enter_device(device, &gpu) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    memcpy(uuid->bytes, gpu->uuid_bytes, sizeof uuid->bytes);
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const struct sg_gpu *gpu;
    CUresult result = bytes ? enter_device(device, &gpu) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *bytes = gpu->memory;
    sg_leave();
    return CUDA_SUCCESS;
}

/* The attributes that programs ask for before they allocate; all others are 0. */
static int attribute_of(const struct sg_gpu *gpu, int attribute)
{
    switch (attribute) {
    case 1:  /* MAX_THREADS_PER_BLOCK */
        return 1024;
    case 10: /* WARP_SIZE */
        return 32;
    case 16: /* MULTIPROCESSOR_COUNT */
        return 132;
    case 33: /* PCI_BUS_ID */
        return (int)gpu->bus;
    case 41: /* UNIFIED_ADDRESSING */
        return 1;
    case 75: /* COMPUTE_CAPABILITY_MAJOR */
        return 9;
    default:
        return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    const struct sg_gpu *gpu;
    CUresult result =
        value && attribute > 0 ? enter_device(device, &gpu) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *value = attribute_of(gpu, attribute);
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = cuDeviceGetAttribute(major, 75, device);
    return result ? result : cuDeviceGetAttribute(minor, 76, device);
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    const struct sg_gpu *gpu;
    if (!can || peer < 0 || peer >= (int)sg.devices)
        return can ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    CUresult result = enter_device(device, &gpu);
    if (result)
        return result;
    *can = sg.node.nvlinks[sg.device[device].gpu][sg.device[peer].gpu] > 0;
    sg_leave();
    return CUDA_SUCCESS;
}
