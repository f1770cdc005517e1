/* How programs find the functions (cuGetProcAddress) and what errors are called. */
#include "driver.h"

#include <string.h>

struct entry {
    const char *name;
    int since;
    void (*function)(void);
};

#define ENTRY(name, since, function) {name, since, (void (*)(void))function}
#define PLAIN(function) ENTRY(#function, 2000, function)
#define SECOND(function) ENTRY(#function, 3020, function##_v2)

/* Programs ask for the plain name and the CUDA version that they know; of several functions of a
 * name the newest that isn't newer than that is meant. */
static const struct entry entries[] = {
    PLAIN(cuInit),
    PLAIN(cuDriverGetVersion),
    PLAIN(cuGetErrorName),
    PLAIN(cuGetErrorString),
    PLAIN(cuGetExportTable),
    ENTRY("cuGetProcAddress", 11030, cuGetProcAddress),
    ENTRY("cuGetProcAddress", 12000, cuGetProcAddress_v2),
    PLAIN(cuDeviceGet),
    PLAIN(cuDeviceGetCount),
    PLAIN(cuDeviceGetName),
    PLAIN(cuDeviceGetUuid),
    ENTRY("cuDeviceGetUuid", 11040, cuDeviceGetUuid_v2),
    SECOND(cuDeviceTotalMem),
    PLAIN(cuDeviceGetAttribute),
    PLAIN(cuDeviceComputeCapability),
    PLAIN(cuDeviceGetPCIBusId),
    PLAIN(cuDeviceGetByPCIBusId),
    PLAIN(cuDeviceCanAccessPeer),
    PLAIN(cuDevicePrimaryCtxRetain),
    SECOND(cuDevicePrimaryCtxRelease),
    SECOND(cuDevicePrimaryCtxReset),
    SECOND(cuDevicePrimaryCtxSetFlags),
    PLAIN(cuDevicePrimaryCtxGetState),
    SECOND(cuCtxCreate),
    ENTRY("cuCtxCreate", 12050, cuCtxCreate_v4),
    SECOND(cuCtxDestroy),
    SECOND(cuCtxPushCurrent),
    SECOND(cuCtxPopCurrent),
    PLAIN(cuCtxSetCurrent),
    PLAIN(cuCtxGetCurrent),
    PLAIN(cuCtxGetDevice),
    PLAIN(cuCtxGetFlags),
    PLAIN(cuCtxGetApiVersion),
    PLAIN(cuCtxSynchronize),
    PLAIN(cuStreamCreate),
    PLAIN(cuStreamCreateWithPriority),
    SECOND(cuStreamDestroy),
    PLAIN(cuStreamSynchronize),
    PLAIN(cuStreamQuery),
    PLAIN(cuStreamWaitEvent),
    PLAIN(cuEventCreate),
    SECOND(cuEventDestroy),
    PLAIN(cuEventRecord),
    PLAIN(cuEventQuery),
    PLAIN(cuEventSynchronize),
    SECOND(cuEventElapsedTime),
    SECOND(cuMemAlloc),
    PLAIN(cuMemAllocAsync),
    SECOND(cuMemFree),
    PLAIN(cuMemFreeAsync),
    SECOND(cuMemGetInfo),
    SECOND(cuMemGetAddressRange),
    SECOND(cuMemAllocHost),
    PLAIN(cuMemHostAlloc),
    PLAIN(cuMemFreeHost),
    SECOND(cuMemcpyHtoD),
    SECOND(cuMemcpyDtoH),
    SECOND(cuMemcpyDtoD),
    SECOND(cuMemcpyHtoDAsync),
    SECOND(cuMemcpyDtoHAsync),
    SECOND(cuMemcpyDtoDAsync),
    PLAIN(cuMemcpy),
    PLAIN(cuMemcpyAsync),
    PLAIN(cuMemcpyPeer),
    SECOND(cuMemsetD8),
    SECOND(cuMemsetD16),
    SECOND(cuMemsetD32),
    PLAIN(cuMemsetD8Async),
    PLAIN(cuMemsetD16Async),
    PLAIN(cuMemsetD32Async),
    PLAIN(cuCheckpointProcessGetState),
    PLAIN(cuCheckpointProcessGetRestoreThreadId),
    PLAIN(cuCheckpointProcessLock),
    PLAIN(cuCheckpointProcessCheckpoint),
    PLAIN(cuCheckpointProcessRestore),
    PLAIN(cuCheckpointProcessUnlock),
};

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             int *status)
{
    (void)flags;
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    const struct entry *best = NULL;
    bool known = false;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *entry = &entries[i];
        if (strcmp(entry->name, name) != 0)
            continue;
        known = true;
        if (entry->since <= version && (!best || entry->since > best->since))
            best = entry;
    }
    *function = NULL;
    if (best)
        memcpy(function, &best->function, sizeof *function);
    if (status)
        *status = best ? 0 : known ? 2 : 1;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Private tables of the vendor's own libraries. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)table;
    (void)id;
    return CUDA_ERROR_NOT_FOUND;
}

struct error {
    CUresult code;
    const char *name;
    const char *text;
};

static const struct error errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error *error_of(CUresult code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return &errors[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    const struct error *known = error_of(error);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = known ? known->name : NULL;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    const struct error *known = error_of(error);
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = known ? known->text : NULL;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
