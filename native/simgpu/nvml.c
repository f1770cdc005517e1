/* libnvidia-ml.so.1: what the real Python binding asks for inventory, memory, processes, topology
 * and events. Handles point into `device`; a call on a lost GPU answers GPU_IS_LOST. */
#define _GNU_SOURCE
#include "node.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define NVAPI __attribute__((visibility("default")))
#define MAX_LINKS 36
#define POLL_NS 10000000ULL
#define XID_EVENT 8ULL
/* Single and double bit ECC errors, Xids, and of newer drivers: GPU unavailable, recovery action. */
#define EVENTS (1ULL | 2ULL | XID_EVENT | 16384ULL | 32768ULL)
#define NOT_AVAILABLE 0xFFFFFFFFU

typedef int nvmlReturn_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_UNKNOWN = 999
};

enum { TOPOLOGY_INTERNAL = 0, TOPOLOGY_SYSTEM = 50 };
enum { P2P_OK = 0, P2P_CHIPSET_NOT_SUPPORTED = 1, P2P_NOT_SUPPORTED = 5 };
enum { P2P_INDEX_NVLINK = 2, P2P_INDEXES = 5 };
enum { FIELD_NVLINK_COUNT = 91, FIELD_REMAP_FAILED = 145, FIELD_RECOVERY_ACTION = 230 };
enum { VALUE_UNSIGNED_INT = 1 };
enum { BUSY_PERCENT = 90, BUSY_MILLIWATTS = 400000, IDLE_MILLIWATTS = 70000 };
enum { BUSY_CELSIUS = 65, IDLE_CELSIUS = 35 };

struct device {
    unsigned gpu;
};
typedef struct device *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} nvmlEventData_t;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    union {
        unsigned number;
        unsigned long long wide;
    } value;
} nvmlFieldValue_t;

struct event_set {
    uint64_t seen;
    unsigned long long registered[SG_MAX_GPUS]; /* types */
};
typedef struct event_set *nvmlEventSet_t;

static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;
static uint32_t loads;
static struct sg_node node;
static struct sg_files files = {.locks = -1, .log = -1};
static struct device device[SG_MAX_GPUS];
static unsigned devices;
static sg_owns_fn owns;

/* A function of a libcuda in this process, if there is one. */
static void *beside(const char *name)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!cuda)
        return NULL;
    void *found = dlsym(cuda, name);
    dlclose(cuda);
    return found;
}

/* A process doesn't see its own locks, so the libcuda is asked which slots are its. */
static void find_own_cuda(void)
{
    void *found = beside("simgpu_owns");
    memcpy(&owns, &found, sizeof owns);
}

static int take_back_locks(void)
{
    int (*take_back)(void);
    void *found = beside("simgpu_take_back");
    memcpy(&take_back, &found, sizeof take_back);
    return take_back ? take_back() : -1;
}

static void stop(void)
{
    bool (*keep)(int);
    void *found = beside("simgpu_keep");
    memcpy(&keep, &found, sizeof keep);
    if (keep && keep(files.locks))
        files.locks = -1;
    sg_detach(&files);
}

static nvmlReturn_t start(void)
{
    if (!sg_read_node(&node))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    files.locks = take_back_locks();
    if (!sg_attach(&files, false))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (__atomic_load_n(&files.faults->unloaded, __ATOMIC_ACQUIRE)) {
        stop();
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    loads = __atomic_load_n(&files.faults->loads, __ATOMIC_ACQUIRE);
    unsigned given[SG_MAX_GPUS];
    devices = sg_given(&node, given);
    for (unsigned i = 0; i < devices; i++)
        device[i].gpu = given[i];
    if (devices)
        return NVML_SUCCESS;
    stop();
    return NVML_ERROR_DRIVER_NOT_LOADED;
}

NVAPI nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&users_lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : start();
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&users_lock);
    return result;
}

NVAPI nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVAPI nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&users_lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users && --users == 0)
        stop();
    pthread_mutex_unlock(&users_lock);
    return result;
}

NVAPI const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_MEMORY:
        return "Insufficient Memory";
    default:
        return "Unknown Error";
    }
}

/* Whether the driver that this session began with is still there. */
static nvmlReturn_t session(void)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    bool away = __atomic_load_n(&files.faults->unloaded, __ATOMIC_ACQUIRE) ||
                __atomic_load_n(&files.faults->loads, __ATOMIC_ACQUIRE) != loads;
    return away ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* Whether a call on this handle may go on. */
static nvmlReturn_t check(const struct device *handle)
{
    nvmlReturn_t result = session();
    if (result)
        return result;
    if (handle < device || handle >= device + devices)
        return NVML_ERROR_INVALID_ARGUMENT;
    while (__atomic_load_n(&files.faults->hang[handle->gpu], __ATOMIC_ACQUIRE))
        sg_sleep_ns(POLL_NS);
    if (sg_lost(&files, handle->gpu))
        return NVML_ERROR_GPU_IS_LOST;
    return (nvmlReturn_t)__atomic_load_n(&files.faults->error[handle->gpu], __ATOMIC_ACQUIRE);
}

static const struct sg_gpu *gpu_of(const struct device *handle)
{
    return &node.gpu[handle->gpu];
}

static nvmlReturn_t text(char *out, unsigned length, const char *value)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(value) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    snprintf(out, length, "%s", value);
    return NVML_SUCCESS;
}

/* A number that all GPUs answer alike. */
static nvmlReturn_t number(const struct device *handle, unsigned *out, unsigned value)
{
    nvmlReturn_t result = out ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *out = value;
    return result;
}

NVAPI nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return users ? text(version, length, node.driver_version) : NVML_ERROR_UNINITIALIZED;
}

NVAPI nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char whole[48];
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    snprintf(whole, sizeof whole, "%u.%s", node.cuda_version / 1000, node.driver_version);
    return text(version, length, whole);
}

NVAPI nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!users || !version)
        return users ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    *version = (int)node.cuda_version;
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVAPI nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], value[256];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = users ? fopen(path, "re") : NULL;
    if (!file)
        return users ? NVML_ERROR_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    size_t got = fread(value, 1, sizeof value - 1, file);
    fclose(file);
    value[got] = '\0';
    return text(name, length, value);
}

NVAPI nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!users || !count)
        return users ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    *count = devices;
    return session();
}

NVAPI nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (index >= devices || !handle)
        return NVML_ERROR_INVALID_ARGUMENT;
    *handle = &device[index];
    return check(*handle);
}

NVAPI nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    if (!users || !uuid || !handle)
        return users ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; i < devices; i++)
        if (strcasecmp(uuid, gpu_of(&device[i])->uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2(i, handle);
    return NVML_ERROR_NOT_FOUND;
}

NVAPI nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *handle)
{
    if (!users || !id || !handle)
        return users ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; i < devices; i++) {
        const char *known = gpu_of(&device[i])->bus_id;
        if (strcasecmp(id, known) == 0 || strcasecmp(id, known + 4) == 0)
            return nvmlDeviceGetHandleByIndex_v2(i, handle);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVAPI nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    return number(handle, index, (unsigned)(handle - device));
}

NVAPI nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor)
{
    nvmlReturn_t result = check(handle);
    return result ? result : number(handle, minor, gpu_of(handle)->minor);
}

NVAPI nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length)
{
    nvmlReturn_t result = check(handle);
    return result ? result : text(uuid, length, gpu_of(handle)->uuid);
}

NVAPI nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length)
{
    nvmlReturn_t result = check(handle);
    return result ? result : text(name, length, gpu_of(handle)->product);
}

/* The serial number is made of the UUID: it only has to be different for each GPU. */
NVAPI nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t handle, char *serial, unsigned length)
{
    nvmlReturn_t result = check(handle);
    return result ? result : text(serial, length, gpu_of(handle)->uuid + strlen("GPU-00000000-0000-0000-0000-"));
}

NVAPI nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t handle, unsigned *id)
{
    nvmlReturn_t result = check(handle);
    if (result)
        return result;
    if (gpu_of(handle)->numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return number(handle, id, (unsigned)gpu_of(handle)->numa);
}

NVAPI nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t handle, unsigned size,
                                               unsigned long *set, unsigned scope)
{
    (void)scope;
    nvmlReturn_t result = set && size ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    memset(set, 0, size * sizeof *set);
    int numa = gpu_of(handle)->numa;
    if (numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if ((unsigned)numa / 64 >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    set[numa / 64] = 1UL << (numa % 64);
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    nvmlReturn_t result = memory ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    find_own_cuda();
    memory->total = gpu_of(handle)->memory;
    memory->used = sg_used(&files, handle->gpu, owns);
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    nvmlReturn_t result = memory ? nvmlDeviceGetMemoryInfo(handle, &plain)
                                 : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    memory->total = plain.total;
    memory->reserved = 0;
    memory->free = plain.free;
    memory->used = plain.used;
    return NVML_SUCCESS;
}

/* Processes that the caller's PID namespace doesn't see have no number here and aren't listed. */
NVAPI nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                           nvmlProcessInfo_t *processes)
{
    nvmlReturn_t result = count ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    find_own_cuda();
    unsigned room = processes ? *count : 0, found = 0;
    for (unsigned i = 0; i < SG_SLOTS; i++) {
        const struct sg_slot *slot = &files.state->slot[handle->gpu][i];
        int pid = 0;
        if (!__atomic_load_n(&slot->used, __ATOMIC_ACQUIRE))
            continue;
        if (owns && owns(handle->gpu, i))
            pid = getpid();
        else if (!sg_alive(&files, handle->gpu, i, &pid) || pid == 0)
            continue;
        if (found < room)
            processes[found] =
                (nvmlProcessInfo_t){(unsigned)pid, __atomic_load_n(&slot->bytes, __ATOMIC_ACQUIRE),
                                    NOT_AVAILABLE, NOT_AVAILABLE};
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count,
                                                           nvmlProcessInfo_t *processes)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, processes);
}

NVAPI nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                            nvmlProcessInfo_t *processes)
{
    (void)processes;
    return number(handle, count, 0);
}

NVAPI nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *info)
{
    nvmlReturn_t result = info ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    const struct sg_gpu *gpu = gpu_of(handle);
    *info = (nvmlPciInfo_t){.bus = gpu->bus};
    snprintf(info->id, sizeof info->id, "%s", gpu->bus_id);
    snprintf(info->legacy, sizeof info->legacy, "%.15s", gpu->bus_id + 4);
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    nvmlReturn_t result = major && minor ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = check(handle);
    if (result)
        return result;
    unsigned mode = files.faults->mig[handle->gpu];
    result = number(handle, current, mode);
    return result ? result : number(handle, pending, mode);
}

/* Processes of an MPS server are only counted: what they are nobody asks. */
NVAPI nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count,
                                                              nvmlProcessInfo_t *processes)
{
    nvmlReturn_t result = count ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    unsigned room = processes ? *count : 0;
    *count = files.faults->mps[handle->gpu];
    for (unsigned i = 0; i < *count && i < room; i++)
        processes[i] = (nvmlProcessInfo_t){1, 0, NOT_AVAILABLE, NOT_AVAILABLE};
    return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, unsigned *mode)
{
    return number(handle, mode, 1);
}

NVAPI nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t handle, unsigned *mode)
{
    return number(handle, mode, 0);
}

/* There are no kernels here, so nothing ever computes. */
/* Whether somebody holds memory of it: there are no kernels that could run. */
static bool in_use(nvmlDevice_t handle)
{
    find_own_cuda();
    return sg_used(&files, handle->gpu, owns) > 0;
}

NVAPI nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *rates)
{
    nvmlReturn_t result = rates ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *rates = (nvmlUtilization_t){.gpu = in_use(handle) ? BUSY_PERCENT : 0};
    return result;
}

NVAPI nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *milliwatts)
{
    nvmlReturn_t result = milliwatts ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *milliwatts = in_use(handle) ? BUSY_MILLIWATTS : IDLE_MILLIWATTS;
    return result;
}

NVAPI nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned *celsius)
{
    nvmlReturn_t result = celsius && sensor == 0 ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *celsius = in_use(handle) ? BUSY_CELSIUS : IDLE_CELSIUS;
    return result;
}

static nvmlReturn_t check_two(const struct device *a, const struct device *b, const void *out)
{
    nvmlReturn_t result = out ? check(a) : NVML_ERROR_INVALID_ARGUMENT;
    return result ? result : check(b);
}

NVAPI nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b,
                                                       unsigned *level)
{
    nvmlReturn_t result = check_two(a, b, level);
    if (result == NVML_SUCCESS)
        *level = node.ancestor[a->gpu][b->gpu];
    return result;
}

NVAPI nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t handle, unsigned level,
                                                    unsigned *count, nvmlDevice_t *nearest)
{
    nvmlReturn_t result = count ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    unsigned room = *count, found = 0;
    for (unsigned i = 0; i < devices; i++) {
        if (&device[i] == handle || node.ancestor[handle->gpu][device[i].gpu] != level)
            continue;
        if (nearest && found < room)
            nearest[found] = &device[i];
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int index,
                                          unsigned *status)
{
    nvmlReturn_t result = check_two(a, b, status);
    if (result)
        return result;
    if (index < 0 || index >= P2P_INDEXES)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool nvlink = node.nvlinks[a->gpu][b->gpu] > 0;
    if (nvlink)
        *status = P2P_OK;
    else if (index == P2P_INDEX_NVLINK)
        *status = P2P_NOT_SUPPORTED;
    else
        *status = node.ancestor[a->gpu][b->gpu] < TOPOLOGY_SYSTEM ? P2P_OK
                                                                  : P2P_CHIPSET_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* The GPU at the other end of a link, or -1: links are numbered peer by peer. */
static int peer_of(const struct device *handle, unsigned link)
{
    unsigned first = 0;
    for (unsigned peer = 0; peer < node.gpus; peer++) {
        unsigned links = node.nvlinks[handle->gpu][peer];
        if (link >= first && link < first + links)
            return (int)peer;
        first += links;
    }
    return -1;
}

NVAPI nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t handle, unsigned link, unsigned *active)
{
    nvmlReturn_t result = active ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    if (link >= MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (peer_of(handle, 0) < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *active = peer_of(handle, link) >= 0;
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t handle, unsigned link,
                                                       nvmlPciInfo_t *info)
{
    nvmlReturn_t result = info ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    int peer = link < MAX_LINKS ? peer_of(handle, link) : -1;
    if (peer < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct sg_gpu *gpu = &node.gpu[peer];
    *info = (nvmlPciInfo_t){.bus = gpu->bus};
    snprintf(info->id, sizeof info->id, "%s", gpu->bus_id);
    snprintf(info->legacy, sizeof info->legacy, "%.15s", gpu->bus_id + 4);
    return NVML_SUCCESS;
}

static unsigned link_count(const struct device *handle)
{
    unsigned links = 0;
    for (unsigned peer = 0; peer < node.gpus; peer++)
        links += node.nvlinks[handle->gpu][peer];
    return links;
}

NVAPI nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count,
                                            nvmlFieldValue_t *values)
{
    nvmlReturn_t result = values && count > 0 ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *value = &values[i];
        value->timestamp = (long long)(sg_now_ns() / 1000);
        value->latency = 0;
        value->type = VALUE_UNSIGNED_INT;
        value->value.wide = 0;
        value->result = NVML_SUCCESS;
        if (value->field == FIELD_NVLINK_COUNT)
            value->value.number = link_count(handle);
        else if (value->field == FIELD_REMAP_FAILED)
            value->value.number = files.faults->remap_failed[handle->gpu];
        else if (value->field == FIELD_RECOVERY_ACTION)
            value->value.number = files.faults->recovery[handle->gpu];
        else
            value->result = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t handle, unsigned long long *types)
{
    nvmlReturn_t result = types ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *types = EVENTS;
    return result;
}

static uint64_t raised(void)
{
    return __atomic_load_n(&files.faults->xid_seq, __ATOMIC_ACQUIRE);
}

NVAPI nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (!users || !set)
        return users ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    if (!*set)
        return NVML_ERROR_MEMORY;
    (*set)->seen = raised();
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

NVAPI nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t handle, unsigned long long types,
                                            nvmlEventSet_t set)
{
    nvmlReturn_t result = set ? check(handle) : NVML_ERROR_INVALID_ARGUMENT;
    if (result)
        return result;
    if (types & ~EVENTS)
        return NVML_ERROR_NOT_SUPPORTED;
    set->registered[handle->gpu] |= types;
    return NVML_SUCCESS;
}

/* The next event of a registered GPU that the set hasn't seen. What the ring has lost is skipped. */
static bool next_event(struct event_set *set, nvmlEventData_t *data)
{
    uint64_t end = raised();
    if (end - set->seen > SG_XID_RING)
        set->seen = end - SG_XID_RING;
    while (set->seen < end) {
        struct sg_xid xid = files.faults->xid[set->seen++ % SG_XID_RING];
        if (xid.gpu >= SG_MAX_GPUS || !(set->registered[xid.gpu] & xid.type))
            continue;
        *data = (nvmlEventData_t){NULL, xid.type, xid.number, NOT_AVAILABLE, NOT_AVAILABLE};
        for (unsigned i = 0; i < devices; i++)
            if (device[i].gpu == xid.gpu)
                data->device = &device[i];
        return true;
    }
    return false;
}

NVAPI nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout)
{
    if (!users || !set || !data)
        return users ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
    uint64_t end = sg_now_ns() + timeout * 1000000ULL;
    for (;;) {
        nvmlReturn_t result = session();
        if (result)
            return result;
        if (next_event(set, data))
            return NVML_SUCCESS;
        uint64_t now = sg_now_ns();
        if (now >= end)
            return NVML_ERROR_TIMEOUT;
        sg_sleep_ns(end - now < POLL_NS ? end - now : POLL_NS);
    }
}
