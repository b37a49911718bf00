/* SPDX-License-Identifier: BSD-3-Clause */
/* The library of CUDA's driver. */
#include "memory/cuda.h"

#include <dlfcn.h>

struct rmx_driver rmx_driver;

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* of these */
static void *handle;
static bool begun; /* cuInit was called here */

#define SYMBOL(name) {#name, (void **)(void *)&rmx_driver.name, NULL, false}
#define NEWER(name) {#name, (void **)(void *)&rmx_driver.name, NULL, true}
static const struct {
	const char *name;
	void **at;
	const char *newer; /* the same, and better, where the driver has it */
	bool missing;	   /* in older drivers */
} symbols[] = {
	SYMBOL(cuInit),
	SYMBOL(cuGetErrorName),
	SYMBOL(cuPointerGetAttribute),
	SYMBOL(cuDeviceGet),
	SYMBOL(cuDeviceGetCount),
	{"cuDeviceGetUuid", (void **)(void *)&rmx_driver.cuDeviceGetUuid,
	 "cuDeviceGetUuid_v2",
	 false}, /* which tells parts of a GPU (MIG) apart */
	NEWER(cuMemRetainAllocationHandle), /* since CUDA 11, and those below */
	NEWER(cuMemRelease),
	NEWER(cuMemExportToShareableHandle),
	NEWER(cuMemImportFromShareableHandle),
	NEWER(cuMemAddressReserve),
	NEWER(cuMemAddressFree),
	NEWER(cuMemMap),
	NEWER(cuMemUnmap),
	NEWER(cuMemSetAccess),
	SYMBOL(cuMemGetAddressRange_v2),
	SYMBOL(cuIpcGetMemHandle),
	SYMBOL(cuIpcOpenMemHandle_v2),
	SYMBOL(cuIpcCloseMemHandle),
	SYMBOL(cuDevicePrimaryCtxGetState),
	SYMBOL(cuDevicePrimaryCtxRetain),
	SYMBOL(cuCtxPushCurrent_v2),
	SYMBOL(cuCtxPopCurrent_v2),
	NEWER(cuCtxRecordEvent), /* since CUDA 12.5 */
	SYMBOL(cuStreamCreateWithPriority),
	SYMBOL(cuStreamDestroy_v2),
	SYMBOL(cuStreamQuery),
	SYMBOL(cuStreamWaitEvent),
	SYMBOL(cuEventCreate),
	SYMBOL(cuEventRecord),
	SYMBOL(cuEventQuery),
	SYMBOL(cuMemHostAlloc),
	SYMBOL(cuMemFreeHost),
	SYMBOL(cuMemAlloc_v2),
	SYMBOL(cuMemFree_v2),
	SYMBOL(cuMemcpyHtoDAsync_v2),
	SYMBOL(cuMemcpyDtoHAsync_v2),
	SYMBOL(cuMemcpyDtoDAsync_v2),
	SYMBOL(cuMemcpy2DAsync_v2),
};

/* Why CUDA says so, most often, and what to do. */
static const char *advice_of(int result)
{
	switch (result) {
	case INVALID_VALUE:
	case ILLEGAL_ADDRESS:
		return "no memory of a device is there: was it freed? Keep the "
		       "array for as long as it is used";
	case OUT_OF_MEMORY:
		return "the device has no memory left: free some";
	case NOT_INITIALIZED:
		return "CUDA does not work in this process: one that was "
		       "forked after CUDA began is to be spawned";
	case NO_DEVICE:
	case INVALID_DEVICE:
		return "there is no such device: see CUDA_VISIBLE_DEVICES";
	case INVALID_CONTEXT:
	case CONTEXT_IS_DESTROYED:
		return "the device's context was closed: do not reset the "
		       "device while its arrays are used";
	default:
		return "CUDA fails: restart the program";
	}
}

int rmx_cuda_fail(int result, const char *call)
{
	const char *name = NULL;

	if (rmx_driver.cuGetErrorName(result, &name) || !name)
		name = "unknown to the driver";
	return rmx_fail(-EREMOTEIO, RMX_NO_RANK, call, "%s (%d): %s", name,
			result, advice_of(result));
}

/* The caller has the lock. Without `load` it is to be there already. */
static int library_open(const char *file, bool load)
{
	const int flags = RTLD_NOW | RTLD_LOCAL;
	void *opened = dlopen(file, load ? flags : flags | RTLD_NOLOAD);

	if (!opened && !load)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen", RMX_NO_CUDA);
	if (!opened)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen",
				"CUDA's driver library does not open: %s: "
				"install it, or name it in RMAEXT_CUDA",
				dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		if (symbols[i].newer)
			*symbols[i].at = dlsym(opened, symbols[i].newer);
		if (!*symbols[i].at)
			*symbols[i].at = dlsym(opened, symbols[i].name);
		if (*symbols[i].at || symbols[i].missing)
			continue;
		dlclose(opened);
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlsym",
				"%s has no %s: it is too old, or another "
				"library",
				file, symbols[i].name);
	}
	handle = opened;
	return 0;
}

int rmx_cuda_need(const char *file, bool begin)
{
	int ret = 0;

	pthread_mutex_lock(&guard);
	if (!handle)
		ret = library_open(file, begin);
	if (!ret && begin && !begun) {
		ret = rmx_driver.cuInit(0);
		begun = !ret;
		ret = ret ? rmx_cuda_fail(ret, "cuInit") : 0;
	}
	pthread_mutex_unlock(&guard);
	return ret;
}

int rmx_context_enter(const struct rmx_device *device)
{
	const int result = rmx_driver.cuCtxPushCurrent_v2(device->context);

	return result ? rmx_cuda_fail(result, "cuCtxPushCurrent") : 0;
}

int rmx_context_leave(int result, const char *call)
{
	void *own;

	rmx_driver.cuCtxPopCurrent_v2(&own);
	return result ? rmx_cuda_fail(result, call) : 0;
}
