/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA's memory, by the driver's library (the CUDA Driver API reference names
 * the functions, and what their numbers mean). No context is made here: the
 * primary one of a device is retained if the application has made it active.
 */
#ifndef RMAEXT_CUDA_H
#define RMAEXT_CUDA_H

#include "memory/device.h"

enum rmx_cuda_result {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	NO_DEVICE = 100,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	CONTEXT_IS_DESTROYED = 709,
};

/* Addresses of a device are 64 bits, also where they are passed as numbers. */
typedef unsigned long long rmx_address;

struct rmx_ipc_handle { /* CUipcMemHandle */
	char bytes[64];
};

struct rmx_place_2d { /* of CUDA_MEMCPY2D */
	size_t x, y;
	int kind; /* enum CUmemorytype */
	void *host;
	rmx_address device;
	void *array;
	size_t pitch;
};

struct rmx_rows { /* CUDA_MEMCPY2D */
	struct rmx_place_2d from, to;
	size_t width, height;
};

struct rmx_access { /* CUmemAccessDesc */
	int kind, number, flags;
};

/* The driver's functions, once rmx_cuda_need() has returned 0. */
struct rmx_driver {
	int (*cuInit)(unsigned int);
	int (*cuGetErrorName)(int, const char **);
	int (*cuPointerGetAttribute)(void *, int, rmx_address);
	int (*cuDeviceGet)(int *, int);
	int (*cuDeviceGetCount)(int *);
	int (*cuDeviceGetUuid)(void *, int);
	/* of CUDA 11 and later; NULL: missing */
	int (*cuMemRetainAllocationHandle)(unsigned long long *, void *);
	int (*cuMemRelease)(unsigned long long);
	int (*cuMemExportToShareableHandle)(void *, unsigned long long, int,
					    unsigned long long);
	int (*cuMemImportFromShareableHandle)(unsigned long long *, void *,
					      int);
	int (*cuMemAddressReserve)(rmx_address *, size_t, size_t, rmx_address,
				   unsigned long long);
	int (*cuMemAddressFree)(rmx_address, size_t);
	int (*cuMemMap)(rmx_address, size_t, size_t, unsigned long long,
			unsigned long long);
	int (*cuMemUnmap)(rmx_address, size_t);
	int (*cuMemSetAccess)(rmx_address, size_t, const struct rmx_access *,
			      size_t);
	int (*cuMemGetAddressRange_v2)(rmx_address *, size_t *, rmx_address);
	int (*cuIpcGetMemHandle)(struct rmx_ipc_handle *, rmx_address);
	int (*cuIpcOpenMemHandle_v2)(rmx_address *, struct rmx_ipc_handle,
				     unsigned int);
	int (*cuIpcCloseMemHandle)(rmx_address);
	int (*cuDevicePrimaryCtxGetState)(int, unsigned int *, int *);
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	int (*cuCtxPushCurrent_v2)(void *);
	int (*cuCtxPopCurrent_v2)(void **);
	int (*cuCtxRecordEvent)(void *, void *);
	int (*cuStreamCreateWithPriority)(void **, unsigned int, int);
	int (*cuStreamDestroy_v2)(void *);
	int (*cuStreamQuery)(void *);
	int (*cuStreamWaitEvent)(void *, void *, unsigned int);
	int (*cuEventCreate)(void **, unsigned int);
	int (*cuEventRecord)(void *, void *);
	int (*cuEventQuery)(void *);
	int (*cuMemHostAlloc)(void **, size_t, unsigned int);
	int (*cuMemFreeHost)(void *);
	int (*cuMemAlloc_v2)(rmx_address *, size_t);
	int (*cuMemFree_v2)(rmx_address);
	int (*cuMemcpyHtoDAsync_v2)(rmx_address, const void *, size_t, void *);
	int (*cuMemcpyDtoHAsync_v2)(void *, rmx_address, size_t, void *);
	int (*cuMemcpyDtoDAsync_v2)(rmx_address, rmx_address, size_t, void *);
	int (*cuMemcpy2DAsync_v2)(const struct rmx_rows *, void *);
};
extern struct rmx_driver rmx_driver;

#define RMX_NO_CUDA "this process uses no CUDA: use the device first"

/*
 * Opens the library of that file name; without `begin` only if the application
 * has, and CUDA is not begun. Returns 0, or an error with a record, as all do.
 */
int rmx_cuda_need(const char *file, bool begin);

/* Records what a call of CUDA's has returned, and what to do then. */
int rmx_cuda_fail(int result, const char *call);

/*
 * Makes the device's context the thread's current one; what was is so again
 * after rmx_context_leave(), which returns an error with a record for a result
 * that is one.
 */
int rmx_context_enter(const struct rmx_device *device);
int rmx_context_leave(int result, const char *call);

/* cuda_share.c: rows of rmx_cuda */
int rmx_cuda_export(const void *address, uint64_t len,
		    const struct rmx_device *device,
		    struct rmaext_export *export_p);
int rmx_cuda_seek(const char *library, const struct rmaext_export *export,
		  int *number_p);
int rmx_cuda_import(const struct rmx_device *device,
		    const struct rmaext_export *export, char **base_p,
		    struct rmx_parts **parts_p);
void rmx_cuda_close(const struct rmx_device *device, char *base,
		    struct rmx_parts *parts);

/*
 * cuda_blocks.c: the same of memory that CUDA has no handle for, but for the
 * row unexport. The caller has entered the context.
 */
enum { RMX_HANDLE, RMX_BLOCKS }; /* an export's kind */
int rmx_blocks_export(rmx_address at, uint64_t len,
		      struct rmaext_export *export_p);
void rmx_cuda_unexport(const struct rmaext_export *export);
int rmx_blocks_import(const struct rmx_device *device,
		      const struct rmaext_export *export, rmx_address *base_p,
		      struct rmx_parts **parts_p);
void rmx_blocks_close(struct rmx_parts *parts, rmx_address base);

#endif
