/* Contexts, and streams and events as far as everything is done when its call returns. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

#define MAX_DEPTH 32

struct sg_stream {
    unsigned flags;
};

struct sg_event {
    uint64_t at_ns;
};

static _Thread_local struct sg_context *stack[MAX_DEPTH];
static _Thread_local unsigned depth;

struct sg_device *sg_device_of(const struct sg_context *context)
{
    return &sg.device[context->device];
}

/* Handles come from the application, so they are looked up before they are followed. */
static bool is_known(const struct sg_context *context)
{
    for (unsigned i = 0; i < sg.devices; i++)
        if (context == &sg.device[i].primary)
            return sg.device[i].primary.refs > 0;
    for (struct sg_context *known = sg.contexts; known; known = known->next)
        if (known == context)
            return true;
    return false;
}

CUresult sg_enter_context(struct sg_context **context)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    struct sg_context *current = depth ? stack[depth - 1] : NULL;
    if (!current || !is_known(current))
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (sg_lost(&sg.files, sg_device_of(current)->gpu))
        result = CUDA_ERROR_UNKNOWN;
    if (result) {
        sg_leave();
        return result;
    }
    *context = current;
    return CUDA_SUCCESS;
}

/* The first context on a GPU makes this process one of its users. */
static CUresult use_gpu(struct sg_device *device)
{
    if (sg_lost(&sg.files, device->gpu))
        return CUDA_ERROR_UNKNOWN;
    if (device->contexts == 0) {
        if (!sg_accounts_lock())
            return CUDA_ERROR_OPERATING_SYSTEM;
        CUresult result = sg_open_gpu(device, device->gpu, "context");
        sg_accounts_unlock();
        if (result)
            return result;
    }
    device->contexts++;
    return CUDA_SUCCESS;
}

static void leave_gpu(struct sg_context *context)
{
    struct sg_device *device = sg_device_of(context);
    sg_free_all(context);
    if (--device->contexts == 0 && sg_accounts_lock()) {
        sg_close_gpu(device, "context");
        sg_accounts_unlock();
    }
}

static CUresult enter_device(CUdevice device)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    if (device >= 0 && device < (int)sg.devices)
        return CUDA_SUCCESS;
    sg_leave();
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = context ? enter_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct sg_context *primary = &sg.device[device].primary;
    if (primary->refs == 0)
        result = use_gpu(&sg.device[device]);
    if (result == CUDA_SUCCESS) {
        primary->refs++;
        *context = primary;
    }
    sg_leave();
    return result;
}

static CUresult release_primary(CUdevice device, bool all)
{
    CUresult result = enter_device(device);
    if (result)
        return result;
    struct sg_context *primary = &sg.device[device].primary;
    if (primary->refs == 0)
        result = all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    else if (all || primary->refs == 1) {
        leave_gpu(primary);
        primary->refs = 0;
    } else
        primary->refs--;
    sg_leave();
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release_primary(device, false);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return release_primary(device, true);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    CUresult result = enter_device(device);
    if (result)
        return result;
    sg.device[device].primary.flags = flags;
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    CUresult result = flags && active ? enter_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *flags = sg.device[device].primary.flags;
    *active = sg.device[device].primary.refs > 0;
    sg_leave();
    return CUDA_SUCCESS;
}

static CUresult push(struct sg_context *context)
{
    if (depth == MAX_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    CUresult result = context ? enter_device(device) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct sg_context *fresh = calloc(1, sizeof *fresh);
    result = fresh ? use_gpu(&sg.device[device]) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result)
        free(fresh);
    else {
        *fresh = (struct sg_context){sg.contexts, device, 1, flags};
        sg.contexts = fresh;
        result = push(fresh);
        *context = fresh;
    }
    sg_leave();
    return result;
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
    if (parameters)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    struct sg_context **at = &sg.contexts;
    while (*at && *at != context)
        at = &(*at)->next;
    if (!*at) {
        sg_leave();
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    leave_gpu(context);
    *at = context->next;
    if (depth && stack[depth - 1] == context)
        depth--;
    free(context);
    sg_leave();
    return CUDA_SUCCESS;
}

/* Enters a call that makes `context` (or none, if `none` allows that) current. */
static CUresult enter_known(const struct sg_context *context, bool none)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    if (context ? is_known(context) : none)
        return CUDA_SUCCESS;
    sg_leave();
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult result = enter_known(context, false);
    if (result)
        return result;
    result = push(context);
    sg_leave();
    return result;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    if (depth == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else {
        depth--;
        if (context)
            *context = stack[depth];
    }
    sg_leave();
    return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    CUresult result = enter_known(context, true);
    if (result)
        return result;
    if (depth)
        depth--;
    if (context)
        result = push(context);
    sg_leave();
    return result;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    CUresult result = context ? sg_enter() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *context = depth ? stack[depth - 1] : NULL;
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    struct sg_context *context;
    CUresult result = device ? sg_enter_context(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *device = context->device;
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned *flags)
{
    struct sg_context *context;
    CUresult result = flags ? sg_enter_context(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *flags = context->flags;
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    CUresult result = version ? enter_known(context, true) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *version = 3020;
    sg_leave();
    return CUDA_SUCCESS;
}

/* For calls that only wait for work: there is never any left. */
static CUresult nothing_to_do(void)
{
    struct sg_context *context;
    CUresult result = sg_enter_context(&context);
    if (result == CUDA_SUCCESS)
        sg_leave();
    return result;
}

CUresult cuCtxSynchronize(void)
{
    return nothing_to_do();
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUresult result = stream ? nothing_to_do() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *stream = malloc(sizeof **stream);
    if (!*stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*stream)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult result = stream ? nothing_to_do() : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        free(stream);
    return result;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    return nothing_to_do();
}

CUresult cuStreamQuery(CUstream stream)
{
    (void)stream;
    return nothing_to_do();
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream;
    (void)flags;
    return event ? nothing_to_do() : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    CUresult result = event ? nothing_to_do() : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    *event = calloc(1, sizeof **event);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = event ? nothing_to_do() : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        free(event);
    return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)stream;
    CUresult result = event ? nothing_to_do() : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        event->at_ns = sg_now_ns();
    return result;
}

CUresult cuEventQuery(CUevent event)
{
    return event ? nothing_to_do() : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventSynchronize(CUevent event)
{
    return event ? nothing_to_do() : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    if (!milliseconds || !start || !end)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->at_ns || !end->at_ns)
        return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = (float)((double)end->at_ns - (double)start->at_ns) / 1e6F;
    return CUDA_SUCCESS;
}
