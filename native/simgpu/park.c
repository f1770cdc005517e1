/* The side of a checkpoint that happens in the process itself: its restore thread. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (256 * 1024)
#define MILLISECOND 1000000ULL

struct sg_block simgpu_block;

static sem_t started;

static struct sg_fault *fault(enum sg_fault_kind kind, enum sg_call call)
{
    return sg.files.faults ? sg_take_fault(sg.files.faults, kind, call, simgpu_block.pod) : NULL;
}

static void set_state(CUprocessState state)
{
    __atomic_store_n(&simgpu_block.state, (uint32_t)state, __ATOMIC_RELEASE);
}

/* A process whose state is FAILED can only be killed. */
static CUresult fails(enum sg_call call)
{
    if (!fault(SG_FAILED, call))
        return CUDA_SUCCESS;
    set_state(CU_PROCESS_STATE_FAILED);
    return CUDA_ERROR_UNKNOWN;
}

static bool is_late(void)
{
    return simgpu_block.deadline_ns && sg_now_ns() >= simgpu_block.deadline_ns;
}

static void die(void)
{
    signal(SIGSEGV, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(SIGSEGV);
}

/* Waits for the gate, which running calls of the application hold. */
static bool take_gate(void)
{
    if (!simgpu_block.deadline_ns)
        return pthread_mutex_lock(&sg.gate) == 0;
    struct timespec until = {.tv_sec = (time_t)(simgpu_block.deadline_ns / 1000000000ULL),
                             .tv_nsec = (long)(simgpu_block.deadline_ns % 1000000000ULL)};
#if __GLIBC_PREREQ(2, 30)
    return pthread_mutex_clocklock(&sg.gate, CLOCK_MONOTONIC, &until) == 0;
#else /* The wheel's, which runs with glibc 2.28. */
    struct timespec now, pause = {.tv_nsec = 1000000};
    while (pthread_mutex_trylock(&sg.gate) != 0) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec > until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec >= until.tv_nsec))
            return false;
        nanosleep(&pause, NULL);
    }
    return true;
#endif
}

static CUresult do_lock(void)
{
    if (simgpu_block.state != CU_PROCESS_STATE_RUNNING)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (fault(SG_DIES_ON_LOCK, SG_LOCK))
        die();
    const struct sg_fault *timeout = fault(SG_LOCK_TIMEOUT, SG_LOCK);
    while (timeout && timeout->kind == SG_LOCK_TIMEOUT && !is_late())
        sg_sleep_ns(MILLISECOND);
    if (is_late() || !take_gate())
        return CUDA_ERROR_NOT_READY;
    CUresult result = fails(SG_LOCK);
    if (result == CUDA_SUCCESS)
        set_state(CU_PROCESS_STATE_LOCKED);
    pthread_mutex_unlock(&sg.gate);
    const struct sg_fault *injected = fault(SG_LOCK_FAILS, SG_LOCK);
    return injected ? (CUresult)injected->code : result;
}

/* Copies an extent between the GPU and private memory, by read and write: through the mapping each
 * page would cost a fault first, which takes three times as long. */
static bool move_extent(int file, struct sg_extent extent, char *private, bool to_gpu)
{
    while (extent.length > 0) {
        ssize_t n = to_gpu ? pwrite(file, private, extent.length, (off_t)extent.at)
                           : pread(file, private, extent.length, (off_t)extent.at);
        if (n <= 0 && errno != EINTR)
            return false;
        uint64_t moved = n > 0 ? (uint64_t)n : 0;
        private += moved;
        extent.at += moved;
        extent.length -= moved;
    }
    return true;
}

static bool move(const struct sg_alloc *alloc, char *private, bool to_gpu)
{
    uint64_t left = alloc->real;
    for (unsigned i = 0; i < alloc->count; i++) {
        struct sg_extent extent = alloc->extents[i];
        if (extent.length > left)
            extent.length = left;
        if (!move_extent(sg_device_of(alloc->context)->file, extent, private, to_gpu))
            return false;
        private += extent.length;
        left -= extent.length;
    }
    return true;
}

static char *private_memory(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* Not of huge pages: a virtual machine's host takes free ones back, and each costs far more to
     * get than the small pages that just became free. */
    return at == MAP_FAILED ? NULL : at;
}

/* Copies all device memory to private memory; false when there isn't enough of it. */
static bool save_all(void)
{
    for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next) {
        if (!alloc->extents)
            continue;
        char *private = private_memory(alloc->real);
        if (!private)
            return false;
        alloc->private_copy = private;
        if (!move(alloc, private, false))
            return false;
    }
    return true;
}

static void unsave_all(void)
{
    for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next) {
        if (!alloc->extents || !alloc->private_copy)
            continue;
        munmap(alloc->private_copy, alloc->real);
        alloc->private_copy = NULL;
    }
}

static void close_gpus(const char *why)
{
    for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next)
        sg_drop_extents(sg_device_of(alloc->context), alloc);
    for (unsigned i = 0; i < sg.devices; i++)
        sg_close_gpu(&sg.device[i], why);
}

static CUresult do_checkpoint(void)
{
    if (simgpu_block.state != CU_PROCESS_STATE_LOCKED)
        return CUDA_ERROR_ILLEGAL_STATE;
    CUresult result = fails(SG_CHECKPOINT);
    if (result)
        return result;
    const struct sg_fault *injected = fault(SG_CHECKPOINT_FAILS, SG_CHECKPOINT);
    if (injected)
        return injected->code;
    /* Taken up before the files with the faults are closed. */
    const struct sg_fault *taken = fault(SG_CHECKPOINT_LATE, SG_CHECKPOINT);
    const CUresult late = taken ? (CUresult)taken->code : CUDA_SUCCESS;
    if (!save_all() || !sg_accounts_lock()) {
        unsave_all();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    close_gpus("checkpoint");
    sg_accounts_unlock();
    sg_detach(&sg.files);
    sg_close_kept();
    set_state(CU_PROCESS_STATE_CHECKPOINTED);
    return late;
}

static int gpu_by_uuid(const struct sg_node *node, const void *uuid)
{
    for (unsigned i = 0; i < node->gpus; i++)
        if (memcmp(node->gpu[i].uuid_bytes, uuid, sizeof node->gpu[i].uuid_bytes) == 0)
            return (int)i;
    return -1;
}

static bool contains(const unsigned *list, unsigned count, unsigned wanted)
{
    for (unsigned i = 0; i < count; i++)
        if (list[i] == wanted)
            return true;
    return false;
}

/* Without a map each GPU that is in use goes back to where it was, if this node has it. */
static bool same_gpus(const struct sg_node *here)
{
    for (unsigned i = 0; i < sg.devices; i++) {
        unsigned gpu = sg.device[i].gpu;
        if (sg.device[i].contexts && gpu_by_uuid(here, sg.node.gpu[gpu].uuid_bytes) != (int)gpu)
            return false;
    }
    return true;
}

/* Reads the map into target[old GPU] = new GPU. A map must name every GPU that the process was
 * given, whatever CUDA_VISIBLE_DEVICES left of them, and lead to GPUs of the same product that it
 * was given too. Old ones are of the node where the process was, new ones are `here`. */
static bool read_map(const struct sg_node *here, unsigned target[SG_MAX_GPUS])
{
    unsigned given[SG_MAX_GPUS], old[SG_MAX_GPUS], new[SG_MAX_GPUS], count = simgpu_block.pairs;
    for (unsigned i = 0; i < SG_MAX_GPUS; i++)
        target[i] = i;
    if (count == 0)
        return same_gpus(here);
    unsigned given_count = sg_given(here, given);
    for (unsigned i = 0; i < count; i++) {
        int from = gpu_by_uuid(&sg.node, simgpu_block.pair[i].oldUuid.bytes);
        int to = gpu_by_uuid(here, simgpu_block.pair[i].newUuid.bytes);
        if (from < 0 || to < 0 || contains(old, i, (unsigned)from) || contains(new, i, (unsigned)to)
            || !contains(given, given_count, (unsigned)to)
            || strcmp(sg.node.gpu[from].product, here->gpu[to].product) != 0)
            return false;
        old[i] = (unsigned)from;
        new[i] = (unsigned)to;
        target[from] = (unsigned)to;
    }
    for (unsigned i = 0; i < sg.given_count; i++)
        if (!contains(old, count, sg.given[i]))
            return false;
    return true;
}

static bool any_lost(const unsigned target[SG_MAX_GPUS])
{
    for (unsigned i = 0; i < sg.devices; i++)
        if (sg_lost(&sg.files, target[sg.device[i].gpu]))
            return true;
    return false;
}

static CUresult open_gpus(const unsigned target[SG_MAX_GPUS])
{
    for (unsigned i = 0; i < sg.devices; i++) {
        struct sg_device *device = &sg.device[i];
        if (device->contexts == 0)
            continue;
        CUresult result = sg_open_gpu(device, target[device->gpu], "restore");
        if (result)
            return result;
        uint64_t bytes = 0;
        for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next) {
            if (sg_device_of(alloc->context) != device)
                continue;
            result = sg_take(device, alloc);
            if (result)
                return result;
            bytes += alloc->size;
        }
        if (bytes)
            sg_log(device, "acquire", bytes, "restore");
    }
    return CUDA_SUCCESS;
}

/* Takes all GPUs or none. */
static CUresult reopen(const unsigned target[SG_MAX_GPUS])
{
    unsigned before[SG_MAX_GPUS];
    for (unsigned i = 0; i < sg.devices; i++)
        before[i] = sg.device[i].gpu;
    if (!sg_accounts_lock())
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = open_gpus(target);
    if (result)
        close_gpus("restore failed");
    sg_accounts_unlock();
    for (unsigned i = 0; i < sg.devices; i++)
        sg.device[i].gpu = result ? before[i] : target[before[i]];
    return result;
}

static bool load_all(void)
{
    for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next)
        if (alloc->extents && !move(alloc, alloc->private_copy, true))
            return false;
    unsave_all();
    return true;
}

static CUresult out_of_memory(bool forever)
{
    simgpu_block.stuck = forever;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult restore_attached(void)
{
    CUresult result = fails(SG_RESTORE);
    if (result)
        return result;
    if (fault(SG_RESTORE_OOM, SG_RESTORE))
        return out_of_memory(true);
    unsigned target[SG_MAX_GPUS];
    struct sg_node here, before = sg.node; /* it may have been brought to another node since */
    if (!sg_read_node(&here))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (!read_map(&here, target))
        return CUDA_ERROR_INVALID_VALUE;
    if (any_lost(target))
        return CUDA_ERROR_UNKNOWN;
    sg.node = here;
    result = reopen(target);
    if (result)
        sg.node = before;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return out_of_memory(!(sg.node.flags & SG_RESTORE_OOM_RETRY));
    if (result)
        return result;
    if (!load_all()) {
        set_state(CU_PROCESS_STATE_FAILED);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (simgpu_block.pairs)
        sg.given_count = sg_given(&sg.node, sg.given);
    set_state(CU_PROCESS_STATE_LOCKED);
    return CUDA_SUCCESS;
}

static CUresult do_restore(void)
{
    if (simgpu_block.state != CU_PROCESS_STATE_CHECKPOINTED)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (simgpu_block.stuck || !sg_attach(&sg.files, true))
        return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = restore_attached();
    if (result)
        sg_detach(&sg.files);
    return result;
}

static CUresult do_unlock(void)
{
    if (simgpu_block.state != CU_PROCESS_STATE_LOCKED)
        return CUDA_ERROR_ILLEGAL_STATE;
    CUresult result = fails(SG_UNLOCK);
    if (result)
        return result;
    set_state(CU_PROCESS_STATE_RUNNING);
    pthread_cond_broadcast(&sg.opened);
    return CUDA_SUCCESS;
}

static CUresult answer(enum sg_call call)
{
    if (call == SG_LOCK)
        return do_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sg.gate);
    if (call == SG_CHECKPOINT)
        result = do_checkpoint();
    else if (call == SG_RESTORE)
        result = do_restore();
    else if (call == SG_UNLOCK)
        result = do_unlock();
    pthread_mutex_unlock(&sg.gate);
    return result;
}

static void serve(void)
{
    sigset_t wake;
    sigemptyset(&wake);
    sigaddset(&wake, SG_WAKE);
    for (;;) {
        siginfo_t info;
        sigwaitinfo(&wake, &info);
        uint64_t asked = __atomic_load_n(&simgpu_block.asked, __ATOMIC_ACQUIRE);
        if (asked == simgpu_block.done)
            continue;
        __atomic_store_n(&simgpu_block.started, asked, __ATOMIC_RELEASE);
        simgpu_block.result = answer((enum sg_call)simgpu_block.call);
        __atomic_store_n(&simgpu_block.done, asked, __ATOMIC_RELEASE);
    }
}

static void *restore_thread(void *nothing)
{
    pthread_setname_np(pthread_self(), "cuda-restore");
    simgpu_block.tid = (int32_t)syscall(SYS_gettid);
    sem_post(&started);
    serve();
    return nothing;
}

bool sg_start_restore_thread(void)
{
    if (getrandom(&simgpu_block.nonce, sizeof simgpu_block.nonce, 0) < 0)
        return false;
    sem_init(&started, 0, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* The thread takes no signal of the application's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int error = pthread_create(&thread, &attributes, restore_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error)
        return false;
    while (sem_wait(&started) != 0)
        continue;
    __atomic_store_n(&simgpu_block.magic, SG_BLOCK_MAGIC, __ATOMIC_RELEASE);
    return true;
}
