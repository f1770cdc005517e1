/* simgpu: hold GPU memory as a process that belongs to nobody, or print the layout of the files.
 *
 *   simgpu hold UUID|INDEX BYTES    until killed; prints "held" once it has the memory
 *   simgpu layout                   sizes and offsets, one per line
 */
#define _GNU_SOURCE
#include "cuda.h"
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(struct type))
#define OFFSET(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(struct type, field))

static int layout(void)
{
    SIZE(sg_gpu);
    SIZE(sg_node);
    SIZE(sg_slot);
    SIZE(sg_state);
    SIZE(sg_fault);
    SIZE(sg_xid);
    SIZE(sg_faults);
    OFFSET(sg_node, gpu);
    OFFSET(sg_state, slot);
    OFFSET(sg_faults, lost);
    OFFSET(sg_faults, foreign);
    OFFSET(sg_faults, xid_seq);
    OFFSET(sg_faults, xid);
    OFFSET(sg_faults, fault);
    OFFSET(sg_faults, error);
    OFFSET(sg_faults, hang);
    OFFSET(sg_faults, recovery);
    OFFSET(sg_faults, remap_failed);
    OFFSET(sg_faults, mig);
    OFFSET(sg_faults, mps);
    OFFSET(sg_faults, unloaded);
    OFFSET(sg_faults, loads);
    return 0;
}

static int fail(const char *call, CUresult error)
{
    const char *name = NULL;
    cuGetErrorName(error, &name);
    fprintf(stderr, "simgpu: %s: %s\n", call, name ? name : "unknown error");
    return 1;
}

static int hold(const char *gpu, const char *bytes)
{
    CUcontext context;
    CUdeviceptr memory;
    setenv("CUDA_VISIBLE_DEVICES", gpu, 1);
    CUresult error = cuInit(0);
    if (error)
        return fail("cuInit", error);
    error = cuDevicePrimaryCtxRetain(&context, 0);
    if (!error)
        error = cuCtxSetCurrent(context);
    if (error)
        return fail("cuDevicePrimaryCtxRetain", error);
    error = cuMemAlloc_v2(&memory, strtoull(bytes, NULL, 10));
    if (error)
        return fail("cuMemAlloc", error);
    puts("held");
    fflush(stdout);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "layout") == 0)
        return layout();
    if (argc == 4 && strcmp(argv[1], "hold") == 0)
        return hold(argv[2], argv[3]);
    fprintf(stderr, "usage: simgpu hold UUID|INDEX BYTES | simgpu layout\n");
    return 2;
}
