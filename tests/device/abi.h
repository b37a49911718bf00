/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the tests' libcuda takes of the CUDA driver API: types and numbers, in
 * our own words, from docs.nvidia.com/cuda/cuda-driver-api.
 */
#ifndef DEVICE_ABI_H
#define DEVICE_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct {
	unsigned char bytes[16];
} CUuuid;
typedef struct {
	unsigned char bytes[64];
} CUipcMemHandle;

typedef struct {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	CUdeviceptr srcDevice;
	void *srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	CUdeviceptr dstDevice;
	void *dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct {
	int type, id;
} CUmemLocation;

typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType, gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

enum { /* CUresult */
       SUCCESS = 0,
       INVALID_VALUE = 1,
       OUT_OF_MEMORY = 2,
       NOT_INITIALIZED = 3,
       NO_DEVICE = 100,
       INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201,
       NOT_MAPPED = 205,
       ECC_UNCORRECTABLE = 214,
       OPERATING_SYSTEM = 304,
       INVALID_HANDLE = 400,
       NOT_READY = 600,
       ILLEGAL_ADDRESS = 700,
       CONTEXT_IS_DESTROYED = 709,
       ALREADY_REGISTERED = 712,
       NOT_REGISTERED = 713,
       LAUNCH_FAILED = 719,
       NOT_PERMITTED = 800,
};

enum { /* CUpointer_attribute */
       POINTER_CONTEXT = 1,
       POINTER_MEMORY_TYPE = 2,
       POINTER_DEVICE_POINTER = 3,
       POINTER_HOST_POINTER = 4,
       POINTER_BUFFER_ID = 7,
       POINTER_IS_MANAGED = 8,
       POINTER_DEVICE_ORDINAL = 9,
       POINTER_IS_LEGACY_IPC = 10,
       POINTER_RANGE_START = 11,
       POINTER_RANGE_SIZE = 12,
       POINTER_MAPPED = 13,
       POINTER_ALLOWED_HANDLE_TYPES = 14,
       POINTER_POOL = 17,
};

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 };
enum { STREAM_NON_BLOCKING = 1 };
enum { STREAM_LEGACY = 1, STREAM_PER_THREAD = 2 };
enum { IPC_LAZY_PEER_ACCESS = 1 };
enum { ALLOCATION_PINNED = 1, LOCATION_DEVICE = 1, HANDLE_FD = 1 };
enum { ACCESS_NONE = 0, ACCESS_READWRITE = 3 };

#endif
