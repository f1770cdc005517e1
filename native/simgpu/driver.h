/* Inside libcuda.so.1: the driver's state in one process, and who may touch it. */
#ifndef SIMGPU_DRIVER_H
#define SIMGPU_DRIVER_H

#include "cuda.h"
#include "node.h"

#include <pthread.h>

/* Wakes the restore thread. SIGRTMIN+20, far from the few that an init process may use. */
#define SG_WAKE 54

#define SG_BLOCK_MAGIC 0x6B636F6C42554753ULL
#define SG_BLOCK_SYMBOL "simgpu_block"

/* How another process talks to this one: it finds this block by its ELF symbol and reads and writes
 * it through /proc/PID/mem, then wakes the restore thread. Arguments are written before `asked`;
 * `result` is written before `done`. `started` tells a caller whose time is up whether the call can
 * still change something. `nonce` tells one process from the next one with the same PID. */
struct sg_block {
    uint64_t magic;
    uint64_t nonce;
    uint32_t state;
    uint32_t stuck;
    int32_t tid;
    uint32_t call;
    uint64_t deadline_ns;
    uint32_t pairs;
    int32_t result;
    CUcheckpointGpuPair pair[SG_MAX_GPUS];
    char pod[SG_POD];
    uint64_t asked;
    uint64_t started;
    uint64_t done;
};

extern CUAPI struct sg_block simgpu_block;

/* Which slots of a GPU are this process's own; libnvidia-ml asks for it when both are loaded. */
CUAPI bool simgpu_owns(unsigned gpu, unsigned slot);

/* Leave a descriptor of `locks` to this library, which closes it when it has no locks to lose; false
 * when it has none now. And ask for it back, -1 if there is none. */
CUAPI bool simgpu_keep(int fd);
CUAPI int simgpu_take_back(void);

struct sg_context {
    struct sg_context *next;
    int device;
    unsigned refs;
    unsigned flags;
};

/* A visible GPU. `slot` and `file` (the GPU's memory) are -1, and nothing is mapped, while there is
 * no context or while parked; without copying there is no file at all. */
struct sg_device {
    unsigned gpu;
    int slot;
    int file;
    char *memory;
    size_t mapped;
    unsigned contexts;
    struct sg_context primary;
};

struct sg_extent {
    uint64_t at;
    uint64_t length;
};

/* Device memory. `size` in paper bytes, of which the first `real` exist: in extents of the GPU's
 * memory file, or in private memory (while parked, and always when copying costs nothing). */
struct sg_alloc {
    struct sg_alloc *next;
    struct sg_context *context;
    CUdeviceptr base;
    uint64_t size;
    uint64_t real;
    struct sg_extent *extents;
    unsigned count;
    char *private_copy;
};

/* `gate` guards all of it. Calls of the application hold it while they run, and wait at `opened`
 * as long as the process is not RUNNING. */
struct sg_driver {
    pthread_mutex_t gate;
    pthread_cond_t opened;
    bool ready;
    bool forked;
    struct sg_node node;
    struct sg_files files;
    unsigned given_count;
    unsigned given[SG_MAX_GPUS];
    unsigned devices;
    struct sg_device device[SG_MAX_GPUS];
    struct sg_context *contexts;
    struct sg_alloc *allocs;
    CUdeviceptr next_address;
};

extern struct sg_driver sg;

/* Enter as a call of the application; on success the gate is held until sg_leave. */
CUresult sg_enter(void);
CUresult sg_enter_context(struct sg_context **context);
void sg_leave(void);
struct sg_device *sg_device_of(const struct sg_context *context);

/* Accounts: what the node's files say. The gate must be held, and below the first three the
 * accounts lock too. `why` goes into the log. */
void sg_close_kept(void);
bool sg_accounts_lock(void);
void sg_accounts_unlock(void);
CUresult sg_open_gpu(struct sg_device *device, unsigned gpu, const char *why);
void sg_close_gpu(struct sg_device *device, const char *why);
CUresult sg_take(struct sg_device *device, struct sg_alloc *alloc);
void sg_give(struct sg_device *device, struct sg_alloc *alloc);
void sg_drop_extents(struct sg_device *device, struct sg_alloc *alloc);
void sg_log(const struct sg_device *device, const char *event, uint64_t bytes, const char *why);
uint64_t sg_free_bytes(const struct sg_device *device);

/* The bytes at `offset` of an allocation, and how many follow in one piece. */
char *sg_piece(const struct sg_alloc *alloc, uint64_t offset, uint64_t *length);
void sg_free_all(struct sg_context *context);

bool sg_start_restore_thread(void);

#endif
