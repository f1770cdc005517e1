/* A node folder as seen by one process; shared by libcuda, libnvidia-ml and the tool. */
#ifndef SIMGPU_NODE_H
#define SIMGPU_NODE_H

#include "layout.h"

#include <stdbool.h>
#include <stddef.h>

/* Which slot of a GPU is the caller's own; its lock can't be seen by its own process. */
typedef bool (*sg_owns_fn)(unsigned gpu, unsigned slot);

/* The files of the folder that change. All are closed, and nothing is mapped, while detached. An
 * attached libcuda has POSIX locks on `locks`, and a process loses those with the first descriptor
 * of the file that it closes: so libnvidia-ml leaves its own to a libcuda beside it. */
struct sg_files {
    struct sg_state *state;
    struct sg_faults *faults;
    int locks;
    int log;
};

/* Path of a file in the node folder: $SIMGPU_DIR, else /run/simgpu. */
void sg_path(char *out, size_t size, const char *name);

/* Copy the description. False when there is no valid one. */
bool sg_read_node(struct sg_node *node);

/* Open and map the changing files: `locks` unless it is open already, `log` only for writers. False
 * (and nothing open) when that fails. */
bool sg_attach(struct sg_files *files, bool writer);
void sg_detach(struct sg_files *files);

/* Indices of the GPUs that this process was given, by what open() says of their nodes. */
unsigned sg_given(const struct sg_node *node, unsigned out[SG_MAX_GPUS]);

/* The UID of the pod whose cgroup this process is in, or an empty string. */
void sg_own_pod(char out[SG_POD]);

/* Whether the process behind a used slot lives; *pid is its PID as seen from here, 0 if it isn't. */
bool sg_alive(const struct sg_files *files, unsigned gpu, unsigned slot, int *pid);

/* Paper bytes in use on a GPU, by living processes and by the foreign-memory fault. */
uint64_t sg_used(const struct sg_files *files, unsigned gpu, sg_owns_fn owns);

bool sg_lost(const struct sg_files *files, unsigned gpu);

/* The fault that applies to this call on a process of this pod, or NULL. One use is counted. */
struct sg_fault *sg_take_fault(struct sg_faults *faults, enum sg_fault_kind kind, enum sg_call call,
                               const char *pod);

uint64_t sg_now_ns(void);
void sg_sleep_ns(uint64_t ns);

/* Offsets in the file `locks`: one byte per slot, and the lock around all accounting. */
#define SG_ACCOUNTS_LOCK (1L << 20)
long sg_slot_lock(unsigned gpu, unsigned slot);

#endif
