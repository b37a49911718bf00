/* SPDX-License-Identifier: BSD-3-Clause */
/* What CUDA does with its memory: copies, streams, what is there. */
#include "memory/cuda.h"

#define NON_BLOCKING 1u	   /* CU_STREAM_NON_BLOCKING: not behind stream 0 */
#define PORTABLE 1u	   /* CU_MEMHOSTALLOC_PORTABLE: of all contexts */
#define LEGACY ((void *)1) /* CU_STREAM_LEGACY: blocking ones wait for it */
#define NO_TIMING 2u	   /* CU_EVENT_DISABLE_TIMING */
/* of enum CUpointer_attribute */
enum { OF_DEVICE = 9, OF_START = 11, OF_SIZE = 12 };
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 }; /* of enum CUmemorytype */

static int cuda_find(const char *library, const void *address, uint64_t len,
		     int *number_p)
{
	const rmx_address at = (uintptr_t)address;
	rmx_address start = 0;
	size_t size = 0;
	int ret = rmx_cuda_need(library, true), number = -1, result;

	if (ret)
		return ret;
	result = rmx_driver.cuPointerGetAttribute(&number, OF_DEVICE, at);
	if (!result)
		result = rmx_driver.cuPointerGetAttribute(&start, OF_START, at);
	if (!result)
		result = rmx_driver.cuPointerGetAttribute(&size, OF_SIZE, at);
	if (result)
		return rmx_cuda_fail(result, "cuPointerGetAttribute");
	if (at < start || at - start > size || len > size - (at - start))
		return rmx_fail(-ERANGE, RMX_NO_RANK, "cuPointerGetAttribute",
				"the array of %llu bytes reaches beyond its "
				"allocation",
				(unsigned long long)len);
	*number_p = number;
	return 0;
}

static int cuda_open(const char *library, struct rmx_device *device)
{
	unsigned int flags;
	int ret = rmx_cuda_need(library, true), it, active = 0, result;

	if (ret)
		return ret;
	result = rmx_driver.cuDeviceGet(&it, device->number);
	if (result)
		return rmx_cuda_fail(result, "cuDeviceGet");
	result = rmx_driver.cuDevicePrimaryCtxGetState(it, &flags, &active);
	if (result)
		return rmx_cuda_fail(result, "cuDevicePrimaryCtxGetState");
	if (!active)
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK, "device",
				"the primary context of device %d is not "
				"active: the array is another context's; make "
				"it with CUDA's runtime, as CuPy and PyTorch "
				"do",
				device->number);
	result = rmx_driver.cuDevicePrimaryCtxRetain(&device->context, it);
	if (result)
		return rmx_cuda_fail(result, "cuDevicePrimaryCtxRetain");
	ret = rmx_context_enter(device);
	return ret ? ret
		   : rmx_context_leave(rmx_driver.cuEventCreate(
					       &device->settled, NO_TIMING),
				       "cuEventCreate");
}

static int stream_fill(struct rmaext_stream *s)
{
	void *pinned;
	int result = rmx_driver.cuMemHostAlloc(&pinned, 2 * RMX_HALF, PORTABLE);

	if (result)
		return result;
	result = rmx_driver.cuStreamCreateWithPriority(&s->it, NON_BLOCKING, 0);
	if (result)
		goto free_pinned;
	for (int i = 0; i < 2; i++) {
		s->half[i].at = (char *)pinned + i * RMX_HALF;
		result = rmx_driver.cuEventCreate(&s->half[i].event, NO_TIMING);
		if (result)
			goto destroy_stream;
	}
	return 0;

destroy_stream:
	rmx_driver.cuStreamDestroy_v2(s->it);
free_pinned:
	rmx_driver.cuMemFreeHost(pinned);
	return result;
}

static int cuda_stream(struct rmaext_stream *s)
{
	int ret = rmx_context_enter(s->device);

	return ret ? ret : rmx_context_leave(stream_fill(s), "cuStreamCreate");
}

static int rows_copy(const struct rmaext_stream *s,
		     const struct rmx_pitched *run)
{
	const struct rmx_place_2d here = {.kind = MEMORY_HOST,
					  .host = run->here,
					  .pitch = run->len},
				  there = {.kind = MEMORY_DEVICE,
					   .device = (uintptr_t)run->there,
					   .pitch = run->pitch};
	const struct rmx_rows rows = {.from = run->way == RMX_IN ? here : there,
				      .to = run->way == RMX_IN ? there : here,
				      .width = run->len,
				      .height = run->rows};

	return rmx_driver.cuMemcpy2DAsync_v2(&rows, s->it);
}

static int run_copy(const struct rmaext_stream *s,
		    const struct rmx_pitched *run)
{
	const rmx_address there = (uintptr_t)run->there;

	if (run->way == RMX_IN)
		return rmx_driver.cuMemcpyHtoDAsync_v2(there, run->here,
						       run->len, s->it);
	return rmx_driver.cuMemcpyDtoHAsync_v2(run->here, there, run->len,
					       s->it);
}

static int cuda_copy(const struct rmaext_stream *s,
		     const struct rmx_pitched *runs, unsigned int count)
{
	const char *call = "cuMemcpyAsync";
	int ret = rmx_context_enter(s->device);

	if (ret)
		return ret;
	for (unsigned int i = 0; i < count && !ret; i++) {
		const bool rows = runs[i].rows > 1;

		ret = (rows ? rows_copy : run_copy)(s, &runs[i]);
		call = rows		       ? "cuMemcpy2DAsync"
		       : runs[i].way == RMX_IN ? "cuMemcpyHtoDAsync"
					       : "cuMemcpyDtoHAsync";
	}
	return rmx_context_leave(ret, call);
}

static int cuda_across(const struct rmaext_stream *s, void *to,
		       const void *from, uint64_t len)
{
	int ret = rmx_context_enter(s->device);

	if (ret)
		return ret;
	ret = rmx_driver.cuMemcpyDtoDAsync_v2((uintptr_t)to, (uintptr_t)from,
					      len, s->it);
	return rmx_context_leave(ret, "cuMemcpyDtoDAsync");
}

static int cuda_mark(const struct rmaext_stream *s, void *event)
{
	int ret = rmx_context_enter(s->device);

	if (ret)
		return ret;
	return rmx_context_leave(rmx_driver.cuEventRecord(event, s->it),
				 "cuEventRecord");
}

/* Of a stream just taken: the event is of no use yet. */
static int cuda_behind(const struct rmaext_stream *s, void *other)
{
	void *event = s->half[0].event;
	int ret = rmx_context_enter(s->device);

	if (ret)
		return ret;
	ret = rmx_driver.cuEventRecord(event, other);
	if (ret)
		return rmx_context_leave(ret, "cuEventRecord");
	return rmx_context_leave(rmx_driver.cuStreamWaitEvent(s->it, event, 0),
				 "cuStreamWaitEvent");
}

static int ask(const struct rmx_device *device, int (*query)(void *), void *it,
	       const char *call)
{
	int result, ret = rmx_context_enter(device);

	if (ret)
		return ret;
	result = query(it);
	if (result != NOT_READY)
		return rmx_context_leave(result, call);
	rmx_context_leave(0, call);
	return RMAEXT_PENDING;
}

static int cuda_idle(const struct rmx_device *device, void *it)
{
	return ask(device, rmx_driver.cuStreamQuery, it, "cuStreamQuery");
}

static int cuda_passed(const struct rmx_device *device, void *event)
{
	return ask(device, rmx_driver.cuEventQuery, event, "cuEventQuery");
}

/* An older driver's event is not behind non-blocking streams of others. */
static int cuda_settle(struct rmx_device *device)
{
	int ret;

	if (!rmx_driver.cuCtxRecordEvent && rmx_streams_busy(device))
		return RMAEXT_PENDING;
	ret = rmx_context_enter(device);
	if (ret)
		return ret;
	if (!rmx_driver.cuCtxRecordEvent)
		return rmx_context_leave(
			rmx_driver.cuEventRecord(device->settled, LEGACY),
			"cuEventRecord");
	return rmx_context_leave(
		rmx_driver.cuCtxRecordEvent(device->context, device->settled),
		"cuCtxRecordEvent");
}

static int cuda_allocate(const struct rmx_device *device, uint64_t len,
			 void **memory_p)
{
	rmx_address at = 0;
	int ret = rmx_context_enter(device);

	if (ret)
		return ret;
	ret = rmx_context_leave(rmx_driver.cuMemAlloc_v2(&at, len),
				"cuMemAlloc");
	if (!ret)
		*memory_p = (void *)(uintptr_t)at;
	return ret;
}

/* Without a record, which another call's would be lost to. */
static void cuda_free(const struct rmx_device *device, void *memory)
{
	void *own;

	if (rmx_driver.cuCtxPushCurrent_v2(device->context))
		return; /* all of it went with the context, or the process */
	rmx_driver.cuMemFree_v2((uintptr_t)memory);
	rmx_driver.cuCtxPopCurrent_v2(&own);
}

const struct rmx_memory_kind rmx_cuda = {
	.name = "cuda",
	.find = cuda_find,
	.open = cuda_open,
	.export = rmx_cuda_export,
	.unexport = rmx_cuda_unexport,
	.seek = rmx_cuda_seek,
	.import = rmx_cuda_import,
	.close = rmx_cuda_close,
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
