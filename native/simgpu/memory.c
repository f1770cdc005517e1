/* Device memory: allocations, copies, memset. Addresses are numbers that no host memory has; they
 * stay as they are when the bytes behind them move. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SPACING (2ULL << 20)
#define FIRST_ADDRESS (1ULL << 48)

static bool is_device(CUdeviceptr pointer)
{
    return pointer >= FIRST_ADDRESS;
}

static struct sg_alloc *find(CUdeviceptr pointer)
{
    for (struct sg_alloc *alloc = sg.allocs; alloc; alloc = alloc->next)
        if (pointer >= alloc->base && pointer - alloc->base < alloc->size)
            return alloc;
    return NULL;
}

char *sg_piece(const struct sg_alloc *alloc, uint64_t offset, uint64_t *length)
{
    if (alloc->private_copy) {
        *length = alloc->real - offset;
        return alloc->private_copy + offset;
    }
    for (unsigned i = 0; i < alloc->count; i++) {
        const struct sg_extent *extent = &alloc->extents[i];
        if (offset < extent->length) {
            *length = extent->length - offset;
            return sg_device_of(alloc->context)->memory + extent->at + offset;
        }
        offset -= extent->length;
    }
    *length = 0;
    return NULL;
}

static void forget(struct sg_alloc *alloc)
{
    struct sg_device *device = sg_device_of(alloc->context);
    if (sg_accounts_lock()) {
        sg_give(device, alloc);
        sg_log(device, "release", alloc->size, "free");
        sg_accounts_unlock();
    }
    if (alloc->private_copy)
        munmap(alloc->private_copy, alloc->real);
    free(alloc);
}

void sg_free_all(struct sg_context *context)
{
    struct sg_alloc **at = &sg.allocs;
    while (*at) {
        struct sg_alloc *alloc = *at;
        if (alloc->context != context) {
            at = &alloc->next;
            continue;
        }
        *at = alloc->next;
        forget(alloc);
    }
}

static CUresult allocate(struct sg_context *context, CUdeviceptr *pointer, size_t bytes)
{
    struct sg_alloc *alloc = calloc(1, sizeof *alloc);
    if (!alloc || !sg_accounts_lock()) {
        free(alloc);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    struct sg_device *device = sg_device_of(context);
    alloc->context = context;
    alloc->size = bytes;
    alloc->real = (bytes + sg.node.scale - 1) / sg.node.scale;
    CUresult result = sg_take(device, alloc);
    if (result == CUDA_SUCCESS)
        sg_log(device, "acquire", bytes, "alloc");
    sg_accounts_unlock();
    if (result) {
        free(alloc);
        return result;
    }
    alloc->base = sg.next_address;
    /* The gap keeps a pointer past one allocation from pointing into the next. */
    sg.next_address += (bytes + 2 * SPACING) / SPACING * SPACING;
    alloc->next = sg.allocs;
    sg.allocs = alloc;
    *pointer = alloc->base;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    if (!pointer || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_context *context;
    CUresult result = sg_enter_context(&context);
    if (result)
        return result;
    /* Compared first, so that no sum below can overflow. */
    if (bytes > sg.node.gpu[sg_device_of(context)->gpu].memory)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        result = allocate(context, pointer, bytes);
    sg_leave();
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    (void)stream;
    return cuMemAlloc_v2(pointer, bytes);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    if (pointer == 0)
        return CUDA_SUCCESS;
    CUresult result = sg_enter();
    if (result)
        return result;
    struct sg_alloc **at = &sg.allocs;
    while (*at && (*at)->base != pointer)
        at = &(*at)->next;
    struct sg_alloc *alloc = *at;
    if (!alloc)
        result = CUDA_ERROR_INVALID_VALUE;
    else {
        *at = alloc->next;
        forget(alloc);
    }
    sg_leave();
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    return cuMemFree_v2(pointer);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct sg_context *context;
    CUresult result = free_bytes && total ? sg_enter_context(&context) : CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct sg_device *device = sg_device_of(context);
    *free_bytes = sg_free_bytes(device);
    *total = sg.node.gpu[device->gpu].memory;
    sg_leave();
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    const struct sg_alloc *alloc = find(pointer);
    if (alloc && base)
        *base = alloc->base;
    if (alloc && size)
        *size = alloc->size;
    sg_leave();
    return alloc ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    if (!pointer || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_context *context;
    CUresult result = sg_enter_context(&context);
    if (result)
        return result;
    if (posix_memalign(pointer, 4096, bytes) != 0)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    sg_leave();
    return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
    CUresult result = sg_enter();
    if (result)
        return result;
    free(pointer);
    sg_leave();
    return CUDA_SUCCESS;
}

/* One end of a copy: host memory, or a place in an allocation. */
struct end {
    char *host;
    const struct sg_alloc *alloc;
    uint64_t offset;
};

static CUresult find_end(struct end *end, CUdeviceptr pointer, size_t bytes)
{
    *end = (struct end){0};
    if (!is_device(pointer)) {
        end->host = (char *)(uintptr_t)pointer;
        return end->host ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    end->alloc = find(pointer);
    if (!end->alloc)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_lost(&sg.files, sg_device_of(end->alloc->context)->gpu))
        return CUDA_ERROR_UNKNOWN;
    end->offset = pointer - end->alloc->base;
    if (end->offset > end->alloc->real || bytes > end->alloc->real - end->offset)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_SUCCESS;
}

/* The next bytes at an end; `length` is lowered to what lies there in one piece. */
static char *bytes_at(const struct end *end, uint64_t done, uint64_t *length)
{
    if (end->host)
        return end->host + done;
    uint64_t here;
    char *at = sg_piece(end->alloc, end->offset + done, &here);
    if (here < *length)
        *length = here;
    return at;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    struct sg_context *context;
    CUresult result = sg_enter_context(&context);
    if (result)
        return result;
    struct end target = {0}, source = {0};
    if (bytes > 0) {
        result = find_end(&target, to, bytes);
        if (result == CUDA_SUCCESS)
            result = find_end(&source, from, bytes);
    }
    for (uint64_t done = 0; result == CUDA_SUCCESS && done < bytes;) {
        uint64_t length = bytes - done;
        char *out = bytes_at(&target, done, &length);
        const char *in = bytes_at(&source, done, &length);
        memmove(out, in, length);
        done += length;
    }
    sg_leave();
    return result;
}

static CUdeviceptr host(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    if (!is_device(to))
        return CUDA_ERROR_INVALID_VALUE;
    return copy(to, host(from), bytes);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    if (!is_device(from))
        return CUDA_ERROR_INVALID_VALUE;
    return copy(host(to), from, bytes);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    if (!is_device(to) || !is_device(from))
        return CUDA_ERROR_INVALID_VALUE;
    return copy(to, from, bytes);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
    (void)s;
    return cuMemcpyHtoD_v2(to, from, bytes);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
    (void)s;
    return cuMemcpyDtoH_v2(to, from, bytes);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    (void)s;
    return cuMemcpyDtoD_v2(to, from, bytes);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, from, bytes);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    (void)s;
    return copy(to, from, bytes);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes)
{
    (void)to_context;
    (void)from_context;
    return cuMemcpyDtoD_v2(to, from, bytes);
}

/* Repeats a value of 1, 2 or 4 bytes. Pieces begin at multiples of a granule, so no value is cut. */
static void fill(char *at, uint32_t value, unsigned width, uint64_t length)
{
    if (width == 1) {
        memset(at, (int)value, length);
        return;
    }
    for (uint64_t i = 0; i < length; i += width)
        memcpy(at + i, &value, length - i < width ? length - i : width);
}

static CUresult set(CUdeviceptr at, uint32_t value, unsigned width, size_t count)
{
    struct sg_context *context;
    if (at % width != 0 || count > SIZE_MAX / width)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sg_enter_context(&context);
    if (result)
        return result;
    struct end target = {0};
    uint64_t bytes = (uint64_t)count * width;
    const struct sg_alloc *whole = is_device(at) ? find(at) : NULL;
    if (whole && whole->base == at && whole->size == bytes)
        bytes = whole->real;
    result = whole ? find_end(&target, at, bytes) : CUDA_ERROR_INVALID_VALUE;
    for (uint64_t done = 0; result == CUDA_SUCCESS && done < bytes;) {
        uint64_t length = bytes - done;
        char *out = bytes_at(&target, done, &length);
        fill(out, value, width, length);
        done += length;
    }
    sg_leave();
    return result;
}

CUresult cuMemsetD8_v2(CUdeviceptr at, uint8_t value, size_t count)
{
    return set(at, value, 1, count);
}

CUresult cuMemsetD16_v2(CUdeviceptr at, uint16_t value, size_t count)
{
    return set(at, value, 2, count);
}

CUresult cuMemsetD32_v2(CUdeviceptr at, uint32_t value, size_t count)
{
    return set(at, value, 4, count);
}

CUresult cuMemsetD8Async(CUdeviceptr at, uint8_t value, size_t count, CUstream s)
{
    (void)s;
    return set(at, value, 1, count);
}

CUresult cuMemsetD16Async(CUdeviceptr at, uint16_t value, size_t count, CUstream s)
{
    (void)s;
    return set(at, value, 2, count);
}

CUresult cuMemsetD32Async(CUdeviceptr at, uint32_t value, size_t count, CUstream s)
{
    (void)s;
    return set(at, value, 4, count);
}
