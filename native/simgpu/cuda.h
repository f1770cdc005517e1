/* The part of the CUDA driver interface that libcuda.so.1 offers here; own declarations. */
#ifndef SIMGPU_CUDA_H
#define SIMGPU_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct sg_context *CUcontext;
typedef struct sg_stream *CUstream;
typedef struct sg_event *CUevent;

typedef struct {
    uint8_t bytes[16];
} CUuuid;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999
};

typedef enum {
    CU_PROCESS_STATE_RUNNING,
    CU_PROCESS_STATE_LOCKED,
    CU_PROCESS_STATE_CHECKPOINTED,
    CU_PROCESS_STATE_FAILED
} CUprocessState;

/* Argument blocks of the checkpoint calls are 64 bytes; what isn't named must be zero. */
typedef struct {
    unsigned timeoutMs;
    unsigned reserved0;
    uint64_t reserved1[7];
} CUcheckpointLockArgs;

typedef struct {
    CUuuid oldUuid;
    CUuuid newUuid;
} CUcheckpointGpuPair;

typedef struct {
    CUcheckpointGpuPair *gpuPairs;
    unsigned gpuPairsCount;
    unsigned pad;
    uint64_t reserved[6];
} CUcheckpointRestoreArgs;

typedef struct {
    uint64_t reserved[8];
} CUcheckpointPlainArgs;

#define CUAPI __attribute__((visibility("default")))

CUAPI CUresult cuInit(unsigned flags);
CUAPI CUresult cuDriverGetVersion(int *version);
CUAPI CUresult cuGetErrorName(CUresult error, const char **text);
CUAPI CUresult cuGetErrorString(CUresult error, const char **text);
CUAPI CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
CUAPI CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                   int *status);
CUAPI CUresult cuGetExportTable(const void **table, const CUuuid *id);

CUAPI CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUAPI CUresult cuDeviceGetCount(int *count);
CUAPI CUresult cuDeviceGetName(char *name, int size, CUdevice device);
CUAPI CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUAPI CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUAPI CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUAPI CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUAPI CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device);
CUAPI CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device);
CUAPI CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id);
CUAPI CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);

CUAPI CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUAPI CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUAPI CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUAPI CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
CUAPI CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUAPI CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUAPI CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags,
                              CUdevice device);
CUAPI CUresult cuCtxDestroy_v2(CUcontext context);
CUAPI CUresult cuCtxPushCurrent_v2(CUcontext context);
CUAPI CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUAPI CUresult cuCtxSetCurrent(CUcontext context);
CUAPI CUresult cuCtxGetCurrent(CUcontext *context);
CUAPI CUresult cuCtxGetDevice(CUdevice *device);
CUAPI CUresult cuCtxGetFlags(unsigned *flags);
CUAPI CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version);
CUAPI CUresult cuCtxSynchronize(void);

CUAPI CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUAPI CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUAPI CUresult cuStreamDestroy_v2(CUstream stream);
CUAPI CUresult cuStreamSynchronize(CUstream stream);
CUAPI CUresult cuStreamQuery(CUstream stream);
CUAPI CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUAPI CUresult cuEventCreate(CUevent *event, unsigned flags);
CUAPI CUresult cuEventDestroy_v2(CUevent event);
CUAPI CUresult cuEventRecord(CUevent event, CUstream stream);
CUAPI CUresult cuEventQuery(CUevent event);
CUAPI CUresult cuEventSynchronize(CUevent event);
CUAPI CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);

CUAPI CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUAPI CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream);
CUAPI CUresult cuMemFree_v2(CUdeviceptr pointer);
CUAPI CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
CUAPI CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
CUAPI CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer);
CUAPI CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);
CUAPI CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags);
CUAPI CUresult cuMemFreeHost(void *pointer);
CUAPI CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUAPI CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUAPI CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUAPI CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream s);
CUAPI CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream s);
CUAPI CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s);
CUAPI CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUAPI CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s);
CUAPI CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                            CUcontext from_context, size_t bytes);
CUAPI CUresult cuMemsetD8_v2(CUdeviceptr at, uint8_t value, size_t count);
CUAPI CUresult cuMemsetD16_v2(CUdeviceptr at, uint16_t value, size_t count);
CUAPI CUresult cuMemsetD32_v2(CUdeviceptr at, uint32_t value, size_t count);
CUAPI CUresult cuMemsetD8Async(CUdeviceptr at, uint8_t value, size_t count, CUstream s);
CUAPI CUresult cuMemsetD16Async(CUdeviceptr at, uint16_t value, size_t count, CUstream s);
CUAPI CUresult cuMemsetD32Async(CUdeviceptr at, uint32_t value, size_t count, CUstream s);

CUAPI CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
CUAPI CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid);
CUAPI CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
CUAPI CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointPlainArgs *args);
CUAPI CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
CUAPI CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointPlainArgs *args);

#endif
