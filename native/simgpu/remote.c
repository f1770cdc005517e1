/* The side of a checkpoint that happens in the caller: finding the other process's block, asking
 * its restore thread, waiting for the answer. */
#define _GNU_SOURCE
#include "driver.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CACHE 64
#define SPINS 200
#define SHORT_SLEEP 50000ULL
#define LONG_SLEEP 500000ULL
#define GRACE 50000000ULL

/* Where a process's block and restore thread were found; TIDs as seen from here. */
struct place {
    int pid;
    int tgid;
    int tid;
    uint64_t nonce;
    uint64_t address;
};

static struct place cache[CACHE];
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;

struct target {
    struct place place;
    int memory;
    struct sg_block block;
};

static bool peek(int memory, uint64_t address, void *out, size_t size)
{
    return pread(memory, out, size, (off_t)address) == (ssize_t)size;
}

static bool poke(int memory, uint64_t address, const void *in, size_t size)
{
    return pwrite(memory, in, size, (off_t)address) == (ssize_t)size;
}

static void process_path(char out[64], int pid, const char *name)
{
    snprintf(out, 64, "/proc/%d/%s", pid, name);
}

/* Where the dynamic section's tables lie in the other process. The loader of glibc writes
 * addresses over the file's offsets there. */
struct tables {
    uint64_t symbols;
    uint64_t strings;
    uint64_t strings_size;
    uint64_t hash;
};

static bool read_tables(int memory, uint64_t base, struct tables *tables)
{
    Elf64_Ehdr head;
    if (!peek(memory, base, &head, sizeof head) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
        return false;
    uint64_t dynamic = 0;
    for (unsigned i = 0; i < head.e_phnum && !dynamic; i++) {
        Elf64_Phdr segment;
        if (!peek(memory, base + head.e_phoff + i * sizeof segment, &segment, sizeof segment))
            return false;
        if (segment.p_type == PT_DYNAMIC)
            dynamic = base + segment.p_vaddr;
    }
    Elf64_Dyn entry = {.d_tag = DT_DEBUG};
    for (unsigned i = 0; dynamic && entry.d_tag != DT_NULL; i++) {
        if (!peek(memory, dynamic + i * sizeof entry, &entry, sizeof entry))
            return false;
        uint64_t value = entry.d_un.d_val;
        if (entry.d_tag == DT_SYMTAB)
            tables->symbols = value < base ? base + value : value;
        else if (entry.d_tag == DT_STRTAB)
            tables->strings = value < base ? base + value : value;
        else if (entry.d_tag == DT_STRSZ)
            tables->strings_size = value;
        else if (entry.d_tag == DT_HASH)
            tables->hash = value < base ? base + value : value;
    }
    return tables->symbols && tables->strings && tables->strings_size && tables->hash;
}

/* The address of the block's symbol in a library that is mapped at `base`, or 0. */
static uint64_t find_symbol(int memory, uint64_t base)
{
    struct tables tables = {0};
    uint32_t counts[2];
    if (!read_tables(memory, base, &tables) || !peek(memory, tables.hash, counts, sizeof counts))
        return 0;
    size_t size = (size_t)counts[1] * sizeof(Elf64_Sym);
    Elf64_Sym *symbols = malloc(size);
    char *strings = malloc(tables.strings_size + 1);
    uint64_t found = 0;
    if (symbols && strings && peek(memory, tables.symbols, symbols, size)
        && peek(memory, tables.strings, strings, tables.strings_size)) {
        strings[tables.strings_size] = '\0';
        for (uint32_t i = 0; i < counts[1] && !found; i++)
            if (symbols[i].st_value && symbols[i].st_name < tables.strings_size
                && strcmp(strings + symbols[i].st_name, SG_BLOCK_SYMBOL) == 0)
                found = base + symbols[i].st_value;
    }
    free(symbols);
    free(strings);
    return found;
}

/* Looks through the process's mappings for the beginning of a libcuda that has the symbol. */
static uint64_t find_block(int pid, int memory)
{
    char path[64], *line = NULL;
    size_t size = 0;
    process_path(path, pid, "maps");
    FILE *maps = fopen(path, "re");
    if (!maps)
        return 0;
    uint64_t found = 0;
    while (!found && getline(&line, &size, maps) > 0) {
        unsigned long start, offset;
        if (!strstr(line, "/libcuda.so") || sscanf(line, "%lx-%*x %*s %lx", &start, &offset) != 2)
            continue;
        if (offset == 0)
            found = find_symbol(memory, start);
    }
    free(line);
    fclose(maps);
    return found;
}

/* A number of /proc/PID/status. Lists, such as NSpid's, give their last entry. */
static int status_number(const char *path, const char *field)
{
    FILE *status = fopen(path, "re");
    if (!status)
        return -1;
    char line[256];
    int number = -1;
    while (number < 0 && fgets(line, sizeof line, status)) {
        if (strncmp(line, field, strlen(field)) != 0)
            continue;
        char *last = strrchr(line, '\t');
        number = last ? atoi(last + 1) : -1;
    }
    fclose(status);
    return number;
}

static int thread_group(int pid)
{
    char path[64];
    process_path(path, pid, "status");
    return status_number(path, "Tgid:");
}

/* The thread that calls itself `inner` in its own PID namespace, as it is called here; -1 if the
 * process has none. */
static int find_thread(int tgid, int inner)
{
    char path[64];
    process_path(path, tgid, "task");
    DIR *tasks = opendir(path);
    if (!tasks)
        return -1;
    int found = -1;
    for (struct dirent *entry; found < 0 && (entry = readdir(tasks)) != NULL;) {
        char status[400];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(status, sizeof status, "%s/%s/status", path, entry->d_name);
        if (status_number(status, "NSpid:") == inner)
            found = atoi(entry->d_name);
    }
    closedir(tasks);
    return found;
}

static bool read_block(struct target *target)
{
    return peek(target->memory, target->place.address, &target->block, sizeof target->block)
        && target->block.magic == SG_BLOCK_MAGIC;
}

static bool from_cache(struct target *target, int pid)
{
    pthread_mutex_lock(&cache_lock);
    target->place = cache[pid % CACHE];
    pthread_mutex_unlock(&cache_lock);
    return target->place.pid == pid && read_block(target)
        && target->block.nonce == target->place.nonce;
}

static void to_cache(const struct place *place)
{
    pthread_mutex_lock(&cache_lock);
    cache[place->pid % CACHE] = *place;
    pthread_mutex_unlock(&cache_lock);
}

static CUresult locate(struct target *target, int pid)
{
    target->place = (struct place){.pid = pid, .tgid = thread_group(pid), .tid = -1};
    target->place.address = find_block(pid, target->memory);
    if (!target->place.address || !read_block(target))
        return CUDA_ERROR_NOT_INITIALIZED;
    target->place.nonce = target->block.nonce;
    to_cache(&target->place);
    return CUDA_SUCCESS;
}

/* Opens a process by any of its threads' numbers. INVALID_VALUE when there is none,
 * NOT_INITIALIZED when it doesn't use CUDA. target->memory is open on success. */
static CUresult open_target(struct target *target, int pid)
{
    if (!sg.ready)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (pid <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    char path[64];
    process_path(path, pid, "mem");
    target->memory = open(path, O_RDWR | O_CLOEXEC);
    if (target->memory < 0)
        return errno == ENOENT ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = from_cache(target, pid) ? CUDA_SUCCESS : locate(target, pid);
    if (result)
        close(target->memory);
    return result;
}

/* Keeps the caller waiting as long as a fault of this kind stands; whether there was one. */
static bool kept(const struct target *target, enum sg_fault_kind kind, enum sg_call call)
{
    if (!sg.files.faults)
        return false;
    const struct sg_fault *fault =
        sg_take_fault(sg.files.faults, kind, call, target->block.pod);
    while (fault && __atomic_load_n(&fault->kind, __ATOMIC_ACQUIRE) == kind)
        sg_sleep_ns(LONG_SLEEP);
    return fault != NULL;
}

/* An injected hang holds up the caller only, until somebody clears it; a hold as well, but then
 * the call is made. */
static bool hangs(const struct target *target, enum sg_call call)
{
    kept(target, SG_HOLD, call);
    return kept(target, SG_HANG, call);
}

/* One caller at a time per process. The lock dies with its caller. */
static int lock_calls(int tgid)
{
    char path[4096];
    sg_path(path, sizeof path, "calls");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -1;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = tgid, .l_len = 1};
    while (fcntl(fd, F_OFD_SETLKW, &lock) != 0)
        if (errno != EINTR) {
            close(fd);
            return -1;
        }
    return fd;
}

static void pause_for(unsigned round)
{
    if (round < SPINS)
        sched_yield();
    else
        sg_sleep_ns(round < 2 * SPINS ? SHORT_SLEEP : LONG_SLEEP);
}

/* Waits until the call numbered `number` is done. False when the process is gone, or when it
 * didn't take up the call by its deadline; then it never will. */
static bool await(struct target *target, uint64_t number, uint64_t deadline)
{
    for (unsigned round = 0; read_block(target); round++) {
        if (target->block.done == number)
            /* The block is copied front to back while it may change: the result that was copied
             * before `done` may be an older one. */
            return read_block(target);
        if (deadline && target->block.started != number && sg_now_ns() > deadline + GRACE)
            return false;
        pause_for(round);
    }
    return false;
}

static bool wake(struct target *target)
{
    for (int tries = 0; tries < 2; tries++) {
        struct place *place = &target->place;
        if (place->tid > 0 && syscall(SYS_tgkill, place->tgid, place->tid, SG_WAKE) == 0)
            return true;
        /* Not looked up yet, or the process was recreated under other numbers. */
        place->tid = find_thread(place->tgid, target->block.tid);
        to_cache(place);
    }
    return false;
}

static CUresult ask(struct target *target, const struct sg_block *call)
{
    int memory = target->memory;
    uint64_t at = target->place.address;
    /* A caller that died may have left a call behind. */
    if (!read_block(target) || !await(target, target->block.asked, 0))
        return CUDA_ERROR_OPERATING_SYSTEM;
    uint64_t number = target->block.asked + 1;
    const size_t pairs = offsetof(struct sg_block, pair);
    if (!poke(memory, at + offsetof(struct sg_block, call), &call->call, sizeof call->call)
        || !poke(memory, at + offsetof(struct sg_block, deadline_ns), &call->deadline_ns,
                 sizeof call->deadline_ns)
        || !poke(memory, at + offsetof(struct sg_block, pairs), &call->pairs, sizeof call->pairs)
        || !poke(memory, at + pairs, call->pair, sizeof call->pair)
        || !poke(memory, at + offsetof(struct sg_block, asked), &number, sizeof number)
        || !wake(target))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (await(target, number, call->deadline_ns))
        return target->block.result;
    return call->deadline_ns && read_block(target) ? CUDA_ERROR_NOT_READY
                                                   : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult perform(int pid, const struct sg_block *call)
{
    struct target target;
    CUresult result = open_target(&target, pid);
    if (result)
        return result;
    int lock = -1;
    if (hangs(&target, (enum sg_call)call->call))
        result = CUDA_ERROR_UNKNOWN;
    else if ((lock = lock_calls(target.place.tgid)) < 0)
        result = CUDA_ERROR_OPERATING_SYSTEM;
    else
        result = ask(&target, call);
    if (lock >= 0)
        close(lock);
    close(target.memory);
    return result;
}

static bool is_zero(const uint64_t *values, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (values[i])
            return false;
    return true;
}

/* Drivers of 13.4 and later show a state of its own while an operation goes on. */
static CUprocessState passing(const struct target *target, CUprocessState state)
{
    const struct sg_fault *fault = NULL;
    if (sg.files.faults)
        fault = sg_take_fault(sg.files.faults, SG_PASSING, SG_GET_STATE, target->block.pod);
    return fault ? (CUprocessState)fault->code : state;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
    struct target target;
    CUresult result = state ? open_target(&target, pid) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    if (hangs(&target, SG_GET_STATE))
        result = CUDA_ERROR_UNKNOWN;
    else
        *state = passing(&target, (CUprocessState)target.block.state);
    close(target.memory);
    return result;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    struct target target;
    CUresult result = tid ? open_target(&target, pid) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *tid = find_thread(target.place.tgid, target.block.tid);
    close(target.memory);
    return *tid > 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    if (args && (args->reserved0 || !is_zero(args->reserved1, 7)))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_block call = {.call = SG_LOCK};
    if (args && args->timeoutMs)
        call.deadline_ns = sg_now_ns() + args->timeoutMs * 1000000ULL;
    return perform(pid, &call);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointPlainArgs *args)
{
    if (args && !is_zero(args->reserved, 8))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_block call = {.call = SG_CHECKPOINT};
    return perform(pid, &call);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
    struct sg_block call = {.call = SG_RESTORE};
    if (args) {
        if (!is_zero(args->reserved, 6) || args->gpuPairsCount > SG_MAX_GPUS
            || (args->gpuPairsCount && !args->gpuPairs))
            return CUDA_ERROR_INVALID_VALUE;
        call.pairs = args->gpuPairsCount;
        for (unsigned i = 0; i < call.pairs; i++)
            call.pair[i] = args->gpuPairs[i];
    }
    return perform(pid, &call);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointPlainArgs *args)
{
    if (args && !is_zero(args->reserved, 8))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_block call = {.call = SG_UNLOCK};
    return perform(pid, &call);
}
