/* Who holds which bytes of which GPU: slots, granules and the log. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* POSIX locks, because they die with the process and name it in every PID namespace. Each is lost
 * when the process closes any descriptor of the file, so `locks` is opened once per attachment. */
static bool lock_byte(long at, short type, int command)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    int result;
    do
        result = fcntl(sg.files.locks, command, &lock);
    while (result != 0 && errno == EINTR);
    return result == 0;
}

bool sg_accounts_lock(void)
{
    return lock_byte(SG_ACCOUNTS_LOCK, F_WRLCK, F_SETLKW);
}

void sg_accounts_unlock(void)
{
    lock_byte(SG_ACCOUNTS_LOCK, F_UNLCK, F_SETLK);
}

bool simgpu_owns(unsigned gpu, unsigned slot)
{
    for (unsigned i = 0; i < sg.devices; i++)
        if (sg.device[i].gpu == gpu && sg.device[i].slot == (int)slot)
            return true;
    return false;
}

static int kept = -1;

bool simgpu_keep(int fd)
{
    pthread_mutex_lock(&sg.gate);
    bool keeps = sg.files.locks >= 0 && kept < 0;
    if (keeps)
        kept = fd;
    pthread_mutex_unlock(&sg.gate);
    return keeps;
}

int simgpu_take_back(void)
{
    pthread_mutex_lock(&sg.gate);
    int fd = kept;
    kept = -1;
    pthread_mutex_unlock(&sg.gate);
    return fd;
}

void sg_close_kept(void)
{
    if (kept >= 0)
        close(kept);
    kept = -1;
}

static void write_line(const struct sg_slot *slot, unsigned gpu, const char *event, uint64_t bytes,
                       const char *why)
{
    char line[512];
    int length = snprintf(
        line, sizeof line,
        "{\"t\":%llu,\"event\":\"%s\",\"gpu\":\"%s\",\"pod\":\"%.*s\",\"pid\":%d,\"pidns\":%llu,"
        "\"bytes\":%llu,\"held\":%llu,\"why\":\"%s\"}\n",
        (unsigned long long)sg_now_ns(), event, sg.node.gpu[gpu].uuid, SG_POD, slot->pod, slot->pid,
        (unsigned long long)slot->pidns, (unsigned long long)bytes,
        (unsigned long long)slot->bytes, why);
    /* One write of less than PIPE_BUF to an O_APPEND file isn't torn. The driver works on without
     * its log: there is nobody whom it could tell. */
    if (length > 0 && (size_t)length < sizeof line && write(sg.files.log, line, (size_t)length) < 0)
        return;
}

static struct sg_slot *own_slot(const struct sg_device *device)
{
    return &sg.files.state->slot[device->gpu][device->slot];
}

void sg_log(const struct sg_device *device, const char *event, uint64_t bytes, const char *why)
{
    write_line(own_slot(device), device->gpu, event, bytes, why);
}

static uint8_t *owners(const struct sg_device *device)
{
    return (uint8_t *)device->memory + sg.node.gpu[device->gpu].file_bytes;
}

static uint64_t granules(const struct sg_device *device)
{
    return sg.node.gpu[device->gpu].file_bytes / sg.node.granule;
}

/* Takes back what dead processes held of a GPU. */
static void reclaim(const struct sg_device *device)
{
    unsigned gpu = device->gpu;
    int pid;
    for (unsigned i = 0; i < SG_SLOTS; i++) {
        struct sg_slot *slot = &sg.files.state->slot[gpu][i];
        if (!slot->used || simgpu_owns(gpu, i) || sg_alive(&sg.files, gpu, i, &pid))
            continue;
        uint64_t bytes = slot->bytes;
        __atomic_store_n(&slot->bytes, 0, __ATOMIC_RELEASE);
        write_line(slot, gpu, "reclaim", bytes, "death");
        if (device->memory) {
            uint8_t *owner = owners(device);
            for (uint64_t g = 0; g < granules(device); g++)
                if (owner[g] == i + 1)
                    owner[g] = 0;
        }
        __atomic_store_n(&slot->used, 0, __ATOMIC_RELEASE);
    }
}

uint64_t sg_free_bytes(const struct sg_device *device)
{
    uint64_t total = sg.node.gpu[device->gpu].memory;
    uint64_t used = sg_used(&sg.files, device->gpu, simgpu_owns);
    return used < total ? total - used : 0;
}

static bool map_memory(struct sg_device *device)
{
    if (sg.node.flags & SG_ZERO_COST)
        return true;
    char name[32], path[4096];
    snprintf(name, sizeof name, "memory-%u", device->gpu);
    sg_path(path, sizeof path, name);
    uint64_t real = sg.node.gpu[device->gpu].file_bytes;
    size_t size = real + (real + sg.node.granule - 1) / sg.node.granule;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        close(fd);
        return false;
    }
    /* A forked child is no user of the device. */
    madvise(at, size, MADV_DONTFORK);
    device->file = fd;
    device->memory = at;
    device->mapped = size;
    return true;
}

static void unmap_memory(struct sg_device *device)
{
    if (device->memory) {
        munmap(device->memory, device->mapped);
        close(device->file);
    }
    device->file = -1;
    device->memory = NULL;
    device->mapped = 0;
}

static int free_slot(unsigned gpu)
{
    for (int i = 0; i < SG_SLOTS; i++)
        if (!sg.files.state->slot[gpu][i].used
            && lock_byte(sg_slot_lock(gpu, (unsigned)i), F_WRLCK, F_SETLK))
            return i;
    return -1;
}

static uint64_t own_pid_namespace(void)
{
    struct stat found;
    return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

CUresult sg_open_gpu(struct sg_device *device, unsigned gpu, const char *why)
{
    device->gpu = gpu;
    if (!map_memory(device))
        return CUDA_ERROR_OPERATING_SYSTEM;
    reclaim(device);
    int index = free_slot(gpu);
    if (index < 0) {
        unmap_memory(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sg_slot *slot = &sg.files.state->slot[gpu][index];
    slot->pid = getpid();
    slot->pidns = own_pid_namespace();
    slot->bytes = 0;
    memcpy(slot->pod, simgpu_block.pod, SG_POD);
    __atomic_store_n(&slot->used, 1, __ATOMIC_RELEASE);
    device->slot = index;
    sg_log(device, "open", 0, why);
    return CUDA_SUCCESS;
}

void sg_close_gpu(struct sg_device *device, const char *why)
{
    if (device->slot < 0)
        return;
    struct sg_slot *slot = own_slot(device);
    uint64_t bytes = slot->bytes;
    __atomic_store_n(&slot->bytes, 0, __ATOMIC_RELEASE);
    if (bytes)
        sg_log(device, "release", bytes, why);
    sg_log(device, "close", 0, why);
    __atomic_store_n(&slot->used, 0, __ATOMIC_RELEASE);
    lock_byte(sg_slot_lock(device->gpu, (unsigned)device->slot), F_UNLCK, F_SETLK);
    device->slot = -1;
    unmap_memory(device);
}

static bool add_extent(struct sg_alloc *alloc, uint64_t at, uint64_t length)
{
    struct sg_extent *more = realloc(alloc->extents, (alloc->count + 1) * sizeof *more);
    if (!more)
        return false;
    more[alloc->count++] = (struct sg_extent){at, length};
    alloc->extents = more;
    return true;
}

void sg_drop_extents(struct sg_device *device, struct sg_alloc *alloc)
{
    if (!device->memory)
        return;
    uint64_t unit = sg.node.granule;
    for (unsigned i = 0; i < alloc->count; i++) {
        uint64_t first = alloc->extents[i].at / unit;
        memset(owners(device) + first, 0, (alloc->extents[i].length + unit - 1) / unit);
    }
    free(alloc->extents);
    alloc->extents = NULL;
    alloc->count = 0;
}

/* Finds `real` bytes in the GPU's file, first fit, in as many extents as it takes. */
static bool find_granules(struct sg_device *device, struct sg_alloc *alloc)
{
    uint64_t unit = sg.node.granule, end = granules(device), at = 0;
    uint64_t missing = (alloc->real + unit - 1) / unit;
    uint8_t *owner = owners(device);
    while (missing) {
        uint8_t *hole = at < end ? memchr(owner + at, 0, end - at) : NULL;
        uint64_t first = hole ? (uint64_t)(hole - owner) : end, n = 0;
        while (n < missing && first + n < end && owner[first + n] == 0)
            n++;
        if (n == 0 || !add_extent(alloc, first * unit, n * unit)) {
            sg_drop_extents(device, alloc);
            return false;
        }
        memset(owner + first, device->slot + 1, n);
        missing -= n;
        at = first + n;
    }
    return true;
}

static bool find_private(struct sg_alloc *alloc)
{
    if (alloc->private_copy)
        return true;
    void *at = mmap(NULL, alloc->real, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return false;
    alloc->private_copy = at;
    return true;
}

CUresult sg_take(struct sg_device *device, struct sg_alloc *alloc)
{
    reclaim(device);
    if (alloc->size > sg_free_bytes(device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool found = device->memory ? find_granules(device, alloc) : find_private(alloc);
    if (!found)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_slot *slot = own_slot(device);
    __atomic_store_n(&slot->bytes, slot->bytes + alloc->size, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

void sg_give(struct sg_device *device, struct sg_alloc *alloc)
{
    sg_drop_extents(device, alloc);
    struct sg_slot *slot = own_slot(device);
    __atomic_store_n(&slot->bytes, slot->bytes - alloc->size, __ATOMIC_RELEASE);
}
