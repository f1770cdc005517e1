#define _GNU_SOURCE
#include "node.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

void sg_path(char *out, size_t size, const char *name)
{
    const char *folder = getenv("SIMGPU_DIR");
    snprintf(out, size, "%s/%s", folder && *folder ? folder : "/run/simgpu", name);
}

static int open_file(const char *name, int flags)
{
    char path[4096];
    sg_path(path, sizeof path, name);
    return open(path, flags | O_CLOEXEC);
}

bool sg_read_node(struct sg_node *node)
{
    int fd = open_file("node", O_RDONLY);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, node, sizeof *node);
    close(fd);
    return got == (ssize_t)sizeof *node && node->magic == SG_MAGIC && node->version == SG_VERSION
        && node->gpus >= 1 && node->gpus <= SG_MAX_GPUS && node->scale >= 1 && node->granule >= 1;
}

static void *map_file(const char *name, size_t size)
{
    int fd = open_file(name, O_RDWR);
    if (fd < 0)
        return NULL;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

bool sg_attach(struct sg_files *files, bool writer)
{
    files->state = map_file("state", sizeof *files->state);
    files->faults = map_file("faults", sizeof *files->faults);
    if (files->locks < 0)
        files->locks = open_file("locks", O_RDWR);
    if (writer)
        files->log = open_file("log", O_WRONLY | O_APPEND);
    if (files->state && files->faults && files->locks >= 0 && (files->log >= 0 || !writer))
        return true;
    sg_detach(files);
    return false;
}

void sg_detach(struct sg_files *files)
{
    if (files->state)
        munmap(files->state, sizeof *files->state);
    if (files->faults)
        munmap(files->faults, sizeof *files->faults);
    if (files->locks >= 0)
        close(files->locks);
    if (files->log >= 0)
        close(files->log);
    *files = (struct sg_files){.locks = -1, .log = -1};
}

/* "Given" is a character node with the GPU's own number that no driver answers for (ENXIO). The
 * number is compared because sockets and FIFOs, which anybody can make, answer ENXIO as well. An
 * open node gives all to whoever finds its folder: device nodes need root. */
static bool is_given(const struct sg_node *node, const struct sg_gpu *gpu)
{
    if (node->flags & SG_OPEN)
        return true;
    const char *prefix = getenv("SIMGPU_DEV");
    char path[4096];
    snprintf(path, sizeof path, "%s%u", prefix && *prefix ? prefix : "/dev/nvidia", gpu->minor);
    struct stat found;
    if (stat(path, &found) != 0 || !S_ISCHR(found.st_mode)
        || found.st_rdev != makedev(node->major, gpu->minor))
        return false;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
        return false;
    }
    return errno == ENXIO;
}

unsigned sg_given(const struct sg_node *node, unsigned out[SG_MAX_GPUS])
{
    unsigned count = 0;
    for (unsigned i = 0; i < node->gpus; i++)
        if (is_given(node, &node->gpu[i]))
            out[count++] = i;
    return count;
}

/* Copies a pod UID that starts at `text`; kubelets of the systemd driver write _ for -. */
static bool copy_uid(const char *text, char out[SG_POD])
{
    unsigned n = 0;
    while (n < SG_POD - 1 && (isxdigit((unsigned char)text[n]) || text[n] == '-' || text[n] == '_')) {
        out[n] = text[n] == '_' ? '-' : text[n];
        n++;
    }
    out[n] = '\0';
    return n == 32 || n == 36;
}

void sg_own_pod(char out[SG_POD])
{
    memset(out, 0, SG_POD);
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return;
    char line[4096];
    while (fgets(line, sizeof line, file)) {
        for (char *at = line; (at = strstr(at, "pod")) != NULL; at += 3) {
            bool starts = at > line && (at[-1] == '/' || at[-1] == '-');
            if (starts && copy_uid(at + 3, out)) {
                fclose(file);
                return;
            }
        }
    }
    memset(out, 0, SG_POD);
    fclose(file);
}

long sg_slot_lock(unsigned gpu, unsigned slot)
{
    return (long)gpu * SG_SLOTS + (long)slot;
}

bool sg_alive(const struct sg_files *files, unsigned gpu, unsigned slot, int *pid)
{
    struct flock query = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    query.l_start = sg_slot_lock(gpu, slot);
    *pid = 0;
    if (fcntl(files->locks, F_GETLK, &query) != 0 || query.l_type == F_UNLCK)
        return false;
    *pid = query.l_pid > 0 ? query.l_pid : 0;
    return true;
}

uint64_t sg_used(const struct sg_files *files, unsigned gpu, sg_owns_fn owns)
{
    uint64_t total = __atomic_load_n(&files->faults->foreign[gpu], __ATOMIC_ACQUIRE);
    int pid;
    for (unsigned i = 0; i < SG_SLOTS; i++) {
        const struct sg_slot *slot = &files->state->slot[gpu][i];
        if (!__atomic_load_n(&slot->used, __ATOMIC_ACQUIRE))
            continue;
        if ((owns && owns(gpu, i)) || sg_alive(files, gpu, i, &pid))
            total += __atomic_load_n(&slot->bytes, __ATOMIC_ACQUIRE);
    }
    return total;
}

bool sg_lost(const struct sg_files *files, unsigned gpu)
{
    return __atomic_load_n(&files->faults->lost[gpu], __ATOMIC_ACQUIRE) != 0;
}

static bool count_use(struct sg_fault *fault)
{
    int left = __atomic_load_n(&fault->remaining, __ATOMIC_ACQUIRE);
    while (left > 0)
        if (__atomic_compare_exchange_n(&fault->remaining, &left, left - 1, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return true;
    return left < 0;
}

struct sg_fault *sg_take_fault(struct sg_faults *faults, enum sg_fault_kind kind, enum sg_call call,
                               const char *pod)
{
    for (unsigned i = 0; i < SG_MAX_FAULTS; i++) {
        struct sg_fault *fault = &faults->fault[i];
        if (__atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE) != kind)
            continue;
        if (fault->call != SG_ANY && fault->call != call)
            continue;
        if (fault->pod[0] && strncmp(fault->pod, pod, SG_POD) != 0)
            continue;
        if (count_use(fault))
            return fault;
    }
    return NULL;
}

uint64_t sg_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

void sg_sleep_ns(uint64_t ns)
{
    struct timespec length = {.tv_sec = (time_t)(ns / 1000000000ULL),
                              .tv_nsec = (long)(ns % 1000000000ULL)};
    nanosleep(&length, NULL);
}
