/* The files of a node folder, as the harness writes them and the libraries map them.
 * kybernate/local/simgpu/layout.py holds the same in Python; `simgpu layout` prints what the
 * compiler made of it, and a unit test compares the two. All numbers are little-endian. */
#ifndef SIMGPU_LAYOUT_H
#define SIMGPU_LAYOUT_H

#include <stdint.h>

#define SG_MAGIC 0x3155504D4953ULL
#define SG_VERSION 2
#define SG_MAX_GPUS 16
#define SG_SLOTS 128
#define SG_MAX_FAULTS 32
#define SG_XID_RING 64
#define SG_POD 40

enum { SG_ZERO_COST = 1, SG_RESTORE_OOM_RETRY = 2, SG_OPEN = 4 };

/* One GPU. `memory` is the paper size; behind it lie `file_bytes` real bytes. */
struct sg_gpu {
    uint64_t memory;
    uint64_t file_bytes;
    char uuid[48];
    uint8_t uuid_bytes[16];
    char product[96];
    char bus_id[24];
    int32_t numa;
    uint32_t minor;
    uint32_t bus;
    uint32_t pad;
};

/* File `node`: the description. `ancestor` holds NVML's topology levels, `nvlinks` link counts. */
struct sg_node {
    uint64_t magic;
    uint32_t version;
    uint32_t gpus;
    uint32_t scale;
    uint32_t flags;
    uint32_t cuda_version;
    uint32_t major;
    uint64_t granule;
    char driver_version[32];
    struct sg_gpu gpu[SG_MAX_GPUS];
    uint8_t ancestor[SG_MAX_GPUS][SG_MAX_GPUS];
    uint8_t nvlinks[SG_MAX_GPUS][SG_MAX_GPUS];
};

/* A process that has a context on a GPU. `bytes` are paper bytes. The slot is alive as long as its
 * process holds the POSIX lock on its byte of the file `locks`. */
struct sg_slot {
    uint32_t used;
    int32_t pid;
    uint64_t pidns;
    uint64_t bytes;
    char pod[SG_POD];
};

/* File `state`. */
struct sg_state {
    uint64_t magic;
    struct sg_slot slot[SG_MAX_GPUS][SG_SLOTS];
};

enum sg_fault_kind {
    SG_LOCK_TIMEOUT = 1,
    SG_CHECKPOINT_FAILS,
    SG_RESTORE_OOM,
    SG_HANG,
    SG_DIES_ON_LOCK,
    SG_FAILED,
    SG_HOLD,
    SG_LOCK_FAILS,
    SG_CHECKPOINT_LATE,
    SG_PASSING
};

enum sg_call { SG_ANY, SG_GET_STATE, SG_LOCK, SG_CHECKPOINT, SG_RESTORE, SG_UNLOCK };

/* A fault of the checkpoint calls; kind 0 is an empty entry, remaining < 0 never runs out. */
struct sg_fault {
    uint32_t kind;
    uint32_t call;
    int32_t remaining;
    int32_t code;
    char pod[SG_POD];
};

/* An NVML event: `type` as NVML numbers them, `number` its data, for an Xid the Xid. */
struct sg_xid {
    uint32_t gpu;
    uint32_t number;
    uint32_t type;
    uint32_t pad;
};

/* File `faults`. `xid` is a ring, `xid_seq` how many were ever raised. Of NVML alone, by GPU: `error`
 * is what all calls answer, in `hang` they don't answer, `recovery` is the action that the driver
 * asks for, `remap_failed`, `mig` and `mps` say what their names say. While `unloaded` there is no
 * driver at all; `loads` counts how often it came back, which old sessions don't survive. */
struct sg_faults {
    uint64_t magic;
    uint32_t lost[SG_MAX_GPUS];
    uint64_t foreign[SG_MAX_GPUS];
    uint64_t xid_seq;
    struct sg_xid xid[SG_XID_RING];
    struct sg_fault fault[SG_MAX_FAULTS];
    uint32_t error[SG_MAX_GPUS];
    uint32_t hang[SG_MAX_GPUS];
    uint32_t recovery[SG_MAX_GPUS];
    uint32_t remap_failed[SG_MAX_GPUS];
    uint32_t mig[SG_MAX_GPUS];
    uint32_t mps[SG_MAX_GPUS];
    uint32_t unloaded;
    uint32_t loads;
};

#endif
