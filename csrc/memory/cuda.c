/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA's memory, by the driver's library (the CUDA Driver API reference names
 * the functions, and what their numbers mean). No context is made here: the
 * primary one of a device is retained if the application has made it active.
 */
#include "memory/device.h"

#include <dlfcn.h>

#define NON_BLOCKING 1u	   /* CU_STREAM_NON_BLOCKING: not behind stream 0 */
#define PORTABLE 1u	   /* CU_MEMHOSTALLOC_PORTABLE: of all contexts */
#define LEGACY ((void *)1) /* CU_STREAM_LEGACY: blocking ones wait for it */
#define PEER_ACCESS 1u	   /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */
#define NO_TIMING 2u	   /* CU_EVENT_DISABLE_TIMING */
/* of enum CUpointer_attribute */
enum { OF_DEVICE = 9, CAN_IPC = 10, OF_START = 11, OF_SIZE = 12 };
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 }; /* of enum CUmemorytype */
/* of enum CUresult */
enum {
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

#define UNUSED "this process uses no CUDA: use the device first"

/* Addresses of a device are 64 bits, also where they are passed as numbers. */
typedef unsigned long long address_t;

struct ipc_handle { /* CUipcMemHandle */
	char bytes[64];
};

struct place { /* of CUDA_MEMCPY2D */
	size_t x, y;
	int kind; /* enum CUmemorytype */
	void *host;
	address_t device;
	void *array;
	size_t pitch;
};

struct rows { /* CUDA_MEMCPY2D */
	struct place from, to;
	size_t width, height;
};

static struct {
	pthread_mutex_t lock;
	void *handle;
	bool begun; /* cuInit was called here */
	int (*cuInit)(unsigned int);
	int (*cuGetErrorName)(int, const char **);
	int (*cuPointerGetAttribute)(void *, int, address_t);
	int (*cuDeviceGet)(int *, int);
	int (*cuDeviceGetCount)(int *);
	int (*cuDeviceGetUuid)(void *, int);
	int (*cuIpcGetMemHandle)(struct ipc_handle *, address_t);
	int (*cuIpcOpenMemHandle_v2)(address_t *, struct ipc_handle,
				     unsigned int);
	int (*cuIpcCloseMemHandle)(address_t);
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
	int (*cuMemAlloc_v2)(address_t *, size_t);
	int (*cuMemFree_v2)(address_t);
	int (*cuMemcpyHtoDAsync_v2)(address_t, const void *, size_t, void *);
	int (*cuMemcpyDtoHAsync_v2)(void *, address_t, size_t, void *);
	int (*cuMemcpyDtoDAsync_v2)(address_t, address_t, size_t, void *);
	int (*cuMemcpy2DAsync_v2)(const struct rows *, void *);
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define SYMBOL(name) {#name, (void **)(void *)&cuda.name, NULL, false}
#define NEWER(name) {#name, (void **)(void *)&cuda.name, NULL, true}
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
	{"cuDeviceGetUuid", (void **)(void *)&cuda.cuDeviceGetUuid,
	 "cuDeviceGetUuid_v2",
	 false}, /* which tells parts of a GPU (MIG) apart */
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

static int cuda_fail(int result, const char *call)
{
	const char *name = NULL;

	if (cuda.cuGetErrorName(result, &name) || !name)
		name = "unknown to the driver";
	return rmx_fail(-EREMOTEIO, RMX_NO_RANK, call, "%s (%d): %s", name,
			result, advice_of(result));
}

/* The caller has the lock. Without `load` it is to be there already. */
static int library_open(const char *file, bool load)
{
	const int flags = RTLD_NOW | RTLD_LOCAL;
	void *handle = dlopen(file, load ? flags : flags | RTLD_NOLOAD);

	if (!handle && !load)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen", UNUSED);
	if (!handle)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen",
				"CUDA's driver library does not open: %s: "
				"install it, or name it in RMAEXT_CUDA",
				dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		if (symbols[i].newer)
			*symbols[i].at = dlsym(handle, symbols[i].newer);
		if (!*symbols[i].at)
			*symbols[i].at = dlsym(handle, symbols[i].name);
		if (*symbols[i].at || symbols[i].missing)
			continue;
		dlclose(handle);
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlsym",
				"%s has no %s: it is too old, or another "
				"library",
				file, symbols[i].name);
	}
	cuda.handle = handle;
	return 0;
}

/* Without `begin`, nothing that the application has not done itself. */
static int library_need(const char *file, bool begin)
{
	int ret = 0;

	pthread_mutex_lock(&cuda.lock);
	if (!cuda.handle)
		ret = library_open(file, begin);
	if (!ret && begin && !cuda.begun) {
		ret = cuda.cuInit(0);
		cuda.begun = !ret;
		ret = ret ? cuda_fail(ret, "cuInit") : 0;
	}
	pthread_mutex_unlock(&cuda.lock);
	return ret;
}

static int cuda_find(const char *library, const void *address, uint64_t len,
		     int *number_p)
{
	const address_t at = (uintptr_t)address;
	address_t start = 0;
	size_t size = 0;
	int ret = library_need(library, true), number = -1, result;

	if (ret)
		return ret;
	result = cuda.cuPointerGetAttribute(&number, OF_DEVICE, at);
	if (!result)
		result = cuda.cuPointerGetAttribute(&start, OF_START, at);
	if (!result)
		result = cuda.cuPointerGetAttribute(&size, OF_SIZE, at);
	if (result)
		return cuda_fail(result, "cuPointerGetAttribute");
	if (at < start || at - start > size || len > size - (at - start))
		return rmx_fail(-ERANGE, RMX_NO_RANK, "cuPointerGetAttribute",
				"the array of %llu bytes reaches beyond its "
				"allocation",
				(unsigned long long)len);
	*number_p = number;
	return 0;
}

/* Whatever is current in the thread is so again after context_leave(). */
static int context_enter(const struct rmx_device *device)
{
	const int result = cuda.cuCtxPushCurrent_v2(device->context);

	return result ? cuda_fail(result, "cuCtxPushCurrent") : 0;
}

static int context_leave(int result, const char *call)
{
	void *own;

	cuda.cuCtxPopCurrent_v2(&own);
	return result ? cuda_fail(result, call) : 0;
}

static int cuda_open(const char *library, struct rmx_device *device)
{
	unsigned int flags;
	int ret = library_need(library, true), it, active = 0, result;

	if (ret)
		return ret;
	result = cuda.cuDeviceGet(&it, device->number);
	if (result)
		return cuda_fail(result, "cuDeviceGet");
	result = cuda.cuDevicePrimaryCtxGetState(it, &flags, &active);
	if (result)
		return cuda_fail(result, "cuDevicePrimaryCtxGetState");
	if (!active)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"the primary context of device %d is not "
				"active: the array is another context's; make "
				"it with CUDA's runtime, as CuPy and PyTorch "
				"do",
				device->number);
	result = cuda.cuDevicePrimaryCtxRetain(&device->context, it);
	if (result)
		return cuda_fail(result, "cuDevicePrimaryCtxRetain");
	ret = context_enter(device);
	return ret ? ret
		   : context_leave(
			     cuda.cuEventCreate(&device->settled, NO_TIMING),
			     "cuEventCreate");
}

/* Memory of pools and of cuMemCreate has no handle. */
static int cuda_export(const void *address, const struct rmx_device *device,
		       struct rmaext_export *export_p)
{
	const address_t at = (uintptr_t)address;
	struct ipc_handle handle;
	unsigned int can = 0;
	address_t start = 0;
	int ret, it;

	ret = cuda.cuPointerGetAttribute(&can, CAN_IPC, at);
	if (!ret && !can)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"cudaMalloc has not made that memory, but a "
				"pool or cuMemCreate, which CUDA has no "
				"handle for");
	if (!ret)
		ret = cuda.cuPointerGetAttribute(&start, OF_START, at);
	if (!ret)
		ret = cuda.cuDeviceGet(&it, device->number);
	if (!ret)
		ret = cuda.cuDeviceGetUuid(export_p->device, it);
	if (ret)
		return cuda_fail(ret, "cuPointerGetAttribute");
	ret = context_enter(device);
	if (ret)
		return ret;
	ret = cuda.cuIpcGetMemHandle(&handle, start);
	memcpy(export_p->handle, &handle, sizeof(handle));
	export_p->at = at - start;
	return context_leave(ret, "cuIpcGetMemHandle");
}

static int cuda_seek(const char *library, const struct rmaext_export *export,
		     int *number_p)
{
	uint8_t uuid[sizeof(export->device)];
	int ret = library_need(library, false), count = 0, it, active;
	unsigned int flags;

	if (ret)
		return ret;
	ret = cuda.cuDeviceGetCount(&count);
	if (ret == NOT_INITIALIZED)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "device", UNUSED);
	if (ret)
		return cuda_fail(ret, "cuDeviceGetCount");
	for (int i = 0; i < count; i++) {
		if (cuda.cuDeviceGet(&it, i) ||
		    cuda.cuDeviceGetUuid(uuid, it) ||
		    memcmp(uuid, export->device, sizeof(uuid)))
			continue;
		ret = cuda.cuDevicePrimaryCtxGetState(it, &flags, &active);
		if (ret)
			return cuda_fail(ret, "cuDevicePrimaryCtxGetState");
		*number_p = i;
		return active ? 0
			      : rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
					 "this process has no context on "
					 "device %d: use the device first",
					 i);
	}
	return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
			"this process does not see that device: see "
			"CUDA_VISIBLE_DEVICES");
}

static int cuda_import(const struct rmx_device *device,
		       const struct rmaext_export *export, char **base_p)
{
	struct ipc_handle handle;
	address_t base = 0;
	int ret = context_enter(device);

	if (ret)
		return ret;
	memcpy(&handle, export->handle, sizeof(handle));
	ret = cuda.cuIpcOpenMemHandle_v2(&base, handle, PEER_ACCESS);
	*base_p = (char *)(uintptr_t)base;
	return context_leave(ret, "cuIpcOpenMemHandle");
}

static void cuda_close(const struct rmx_device *device, char *base)
{
	if (!context_enter(device))
		context_leave(cuda.cuIpcCloseMemHandle((uintptr_t)base),
			      "cuIpcCloseMemHandle");
}

static int stream_fill(struct rmaext_stream *s)
{
	void *pinned;
	int result = cuda.cuMemHostAlloc(&pinned, 2 * RMX_HALF, PORTABLE);

	if (result)
		return result;
	result = cuda.cuStreamCreateWithPriority(&s->it, NON_BLOCKING, 0);
	if (result)
		goto free_pinned;
	for (int i = 0; i < 2; i++) {
		s->half[i].at = (char *)pinned + i * RMX_HALF;
		result = cuda.cuEventCreate(&s->half[i].event, NO_TIMING);
		if (result)
			goto destroy_stream;
	}
	return 0;

destroy_stream:
	cuda.cuStreamDestroy_v2(s->it);
free_pinned:
	cuda.cuMemFreeHost(pinned);
	return result;
}

static int cuda_stream(struct rmaext_stream *s)
{
	int ret = context_enter(s->device);

	return ret ? ret : context_leave(stream_fill(s), "cuStreamCreate");
}

static int rows_copy(const struct rmaext_stream *s,
		     const struct rmx_pitched *run)
{
	const struct place here = {.kind = MEMORY_HOST,
				   .host = run->here,
				   .pitch = run->len},
			   there = {.kind = MEMORY_DEVICE,
				    .device = (uintptr_t)run->there,
				    .pitch = run->pitch};
	const struct rows rows = {.from = run->way == RMX_IN ? here : there,
				  .to = run->way == RMX_IN ? there : here,
				  .width = run->len,
				  .height = run->rows};

	return cuda.cuMemcpy2DAsync_v2(&rows, s->it);
}

static int run_copy(const struct rmaext_stream *s,
		    const struct rmx_pitched *run)
{
	const address_t there = (uintptr_t)run->there;

	if (run->way == RMX_IN)
		return cuda.cuMemcpyHtoDAsync_v2(there, run->here, run->len,
						 s->it);
	return cuda.cuMemcpyDtoHAsync_v2(run->here, there, run->len, s->it);
}

static int cuda_copy(const struct rmaext_stream *s,
		     const struct rmx_pitched *runs, unsigned int count)
{
	const char *call = "cuMemcpyAsync";
	int ret = context_enter(s->device);

	if (ret)
		return ret;
	for (unsigned int i = 0; i < count && !ret; i++) {
		const bool rows = runs[i].rows > 1;

		ret = (rows ? rows_copy : run_copy)(s, &runs[i]);
		call = rows		       ? "cuMemcpy2DAsync"
		       : runs[i].way == RMX_IN ? "cuMemcpyHtoDAsync"
					       : "cuMemcpyDtoHAsync";
	}
	return context_leave(ret, call);
}

static int cuda_across(const struct rmaext_stream *s, void *to,
		       const void *from, uint64_t len)
{
	int ret = context_enter(s->device);

	if (ret)
		return ret;
	ret = cuda.cuMemcpyDtoDAsync_v2((uintptr_t)to, (uintptr_t)from, len,
					s->it);
	return context_leave(ret, "cuMemcpyDtoDAsync");
}

static int cuda_mark(const struct rmaext_stream *s, void *event)
{
	int ret = context_enter(s->device);

	if (ret)
		return ret;
	return context_leave(cuda.cuEventRecord(event, s->it), "cuEventRecord");
}

/* Of a stream just taken: the event is of no use yet. */
static int cuda_behind(const struct rmaext_stream *s, void *other)
{
	void *event = s->half[0].event;
	int ret = context_enter(s->device);

	if (ret)
		return ret;
	ret = cuda.cuEventRecord(event, other);
	if (ret)
		return context_leave(ret, "cuEventRecord");
	return context_leave(cuda.cuStreamWaitEvent(s->it, event, 0),
			     "cuStreamWaitEvent");
}

static int ask(const struct rmx_device *device, int (*query)(void *), void *it,
	       const char *call)
{
	int result, ret = context_enter(device);

	if (ret)
		return ret;
	result = query(it);
	if (result != NOT_READY)
		return context_leave(result, call);
	context_leave(0, call);
	return RMAEXT_PENDING;
}

static int cuda_idle(const struct rmx_device *device, void *it)
{
	return ask(device, cuda.cuStreamQuery, it, "cuStreamQuery");
}

static int cuda_passed(const struct rmx_device *device, void *event)
{
	return ask(device, cuda.cuEventQuery, event, "cuEventQuery");
}

/* An older driver's event is not behind non-blocking streams of others. */
static int cuda_settle(struct rmx_device *device)
{
	int ret;

	if (!cuda.cuCtxRecordEvent && rmx_streams_busy(device))
		return RMAEXT_PENDING;
	ret = context_enter(device);
	if (ret)
		return ret;
	if (!cuda.cuCtxRecordEvent)
		return context_leave(
			cuda.cuEventRecord(device->settled, LEGACY),
			"cuEventRecord");
	return context_leave(
		cuda.cuCtxRecordEvent(device->context, device->settled),
		"cuCtxRecordEvent");
}

static int cuda_allocate(const struct rmx_device *device, uint64_t len,
			 void **memory_p)
{
	address_t at = 0;
	int ret = context_enter(device);

	if (ret)
		return ret;
	ret = context_leave(cuda.cuMemAlloc_v2(&at, len), "cuMemAlloc");
	if (!ret)
		*memory_p = (void *)(uintptr_t)at;
	return ret;
}

/* Without a record, which another call's would be lost to. */
static void cuda_free(const struct rmx_device *device, void *memory)
{
	void *own;

	if (cuda.cuCtxPushCurrent_v2(device->context))
		return; /* all of it went with the context, or the process */
	cuda.cuMemFree_v2((uintptr_t)memory);
	cuda.cuCtxPopCurrent_v2(&own);
}

const struct rmx_memory_kind rmx_cuda = {
	.name = "cuda",
	.find = cuda_find,
	.open = cuda_open,
	.export = cuda_export,
	.seek = cuda_seek,
	.import = cuda_import,
	.close = cuda_close,
	.stream = cuda_stream,
	.copy = cuda_copy,
	.across = cuda_across,
	.mark = cuda_mark,
	.behind = cuda_behind,
	.idle = cuda_idle,
	.passed = cuda_passed,
	.settle = cuda_settle,
	.allocate = cuda_allocate,
	.free = cuda_free,
};
