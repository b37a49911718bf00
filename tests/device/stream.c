/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams, events, and the copies that are queued there. */
#include "device.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Waits for tasks with smaller tickets only, so that no two wait in a ring. */
struct task {
	struct task *next;
	uint64_t ticket;
	char *dst, *src, *staged; /* a copy; `staged` is freed after it */
	size_t len, rows, dst_pitch, src_pitch;
	bool stuck; /* until device_hang(0) */
	void (*call)(void *);
	void *arg;
	struct event *record, *wait;
	uint64_t until;		 /* of `wait`: the record that is waited for */
	struct allocation *gone; /* freed then */
	bool *done;
};

struct stream {
	struct stream *next;
	struct context *context;
	struct task *head, **tail; /* the head runs, or is the next to do so */
	bool blocking, closed;
};

struct event {
	struct event *next;
	struct context *context;
	uint64_t recorded, done; /* tickets */
	bool whole;		 /* of the context; `done` has no meaning */
	unsigned pending;	 /* tasks that name it */
	bool closed;
};

static struct stream *streams;
static struct event *events;
static uint64_t tickets;
static __thread struct stream *mine; /* STREAM_PER_THREAD */
static __thread struct context *mine_of;

static enum { NONE, ALL, NEXT } stuck;

/*
 * No part of the API: 1: no stream goes on; 2: the next copy to or from a
 * device hangs, and what is behind it in its stream; 0: all go on.
 */
void device_hang(int hang)
{
	device_enter(__func__, NOTHING);
	stuck = hang;
	for (struct stream *at = streams; at && !hang; at = at->next)
		for (struct task *it = at->head; it; it = it->next)
			it->stuck = false;
	device_leave(SUCCESS); /* which wakes them */
}

static bool has_come(const struct event *event, uint64_t recorded)
{
	if (!event->whole)
		return event->done >= recorded;
	for (struct stream *at = streams; at; at = at->next)
		if (at->context == event->context && at->head &&
		    at->head->ticket <= recorded)
			return false;
	return true;
}

/* The legacy stream waits for all blocking ones, and they for it. */
static bool may_run(const struct stream *stream)
{
	const struct task *task = stream->head;
	bool legacy = stream == stream->context->legacy;

	if (stuck == ALL || task->stuck ||
	    (task->wait && !has_come(task->wait, task->until)))
		return false;
	for (struct stream *at = streams; at; at = at->next)
		if (stream->blocking && at->blocking &&
		    at->context == stream->context &&
		    (legacy || at == at->context->legacy) && at->head &&
		    at->head->ticket < task->ticket)
			return false;
	return true;
}

static void event_let_go(struct event *event)
{
	struct event **at = &events;

	if (!event->closed || event->pending)
		return;
	while (*at != event)
		at = &(*at)->next;
	*at = event->next;
	free(event);
}

static void task_end(struct stream *stream)
{
	struct task *task = stream->head;

	stream->head = task->next;
	if (!stream->head)
		stream->tail = &stream->head;
	if (task->done)
		*task->done = true;
	if (task->record) {
		if (task->record->done < task->ticket)
			task->record->done = task->ticket;
		task->record->pending--;
		event_let_go(task->record);
	}
	if (task->wait) {
		task->wait->pending--;
		event_let_go(task->wait);
	}
	if (task->gone)
		device_end(task->gone);
	free(task->staged);
	free(task);
}

/* Where both overlap, nothing is promised of what lies there then. */
static void row_copy(char *dst, const char *src, size_t len)
{
	if (dst < src + len && src < dst + len)
		memset(dst, 0xff, len);
	else
		memcpy(dst, src, len);
}

static void *work(void *arg)
{
	struct stream *stream = arg, **at = &streams;
	useconds_t delay;

	device_enter(__func__, NOTHING);
	for (;;) {
		while (!(stream->head ? may_run(stream) : stream->closed))
			device_wait();
		if (!stream->head)
			break;
		delay = device_draw(2) ? (useconds_t)device_draw(1000) : 0;
		device_leave(SUCCESS);
		if (delay)
			usleep(delay);
		for (size_t row = 0; row < stream->head->rows; row++)
			row_copy(stream->head->dst +
					 row * stream->head->dst_pitch,
				 stream->head->src +
					 row * stream->head->src_pitch,
				 stream->head->len);
		device_in_worker = true;
		if (stream->head->call)
			stream->head->call(stream->head->arg);
		device_in_worker = false;
		device_enter(__func__, NOTHING);
		task_end(stream);
		device_leave(SUCCESS);
		device_enter(__func__, NOTHING);
	}
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	free(stream);
	device_leave(SUCCESS);
	return NULL;
}

static struct stream *stream_new(struct context *context, bool blocking)
{
	struct stream *new = calloc(1, sizeof(*new));
	sigset_t all, before;
	pthread_t thread;
	int failed;

	if (!new)
		return NULL;
	new->context = context;
	new->blocking = blocking;
	new->tail = &new->head;
	sigfillset(&all); /* signals are the program's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&thread, NULL, work, new);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) {
		free(new);
		return NULL;
	}
	pthread_detach(thread);
	new->next = streams;
	return streams = new;
}

CUresult device_streams_open(struct context *context)
{
	context->legacy = stream_new(context, true);
	return context->legacy ? SUCCESS : OUT_OF_MEMORY;
}

void device_streams_close(struct context *context)
{
	for (struct stream *at = streams; at; at = at->next)
		if (at->context == context)
			at->closed = true;
	context->legacy = NULL;
}

void device_drain(void)
{
	uint64_t last = tickets;
	struct stream *at;

	do {
		for (at = streams; at; at = at->next)
			if (at->head && at->head->ticket <= last)
				break;
		if (at)
			device_wait();
	} while (at);
}

/* NULL: no stream. Its context need not be the current one. */
static struct stream *stream_of(CUstream handle)
{
	struct context *context = device_current();
	struct stream *at = streams;

	if ((uintptr_t)handle <= STREAM_LEGACY)
		return context->legacy;
	if ((uintptr_t)handle == STREAM_PER_THREAD) {
		while (mine_of == context && at && at != mine)
			at = at->next;
		if (mine_of == context && at && !at->closed)
			return at;
		mine = stream_new(context, true);
		mine_of = context;
		return mine;
	}
	while (at && at != handle)
		at = at->next;
	return at && !at->closed ? at : NULL;
}

/*
 * What every function with a stream or an event begins with: `it` is what the
 * handle names. Else it returns that there is none.
 */
#define ENTER_WITH(it, find)                                 \
	do {                                                 \
		ENTER(CONTEXT);                              \
		(it) = (find);                               \
		if (!(it))                                   \
			return device_leave(INVALID_HANDLE); \
	} while (0)

/* Queue a copy of `what`; with `wait`, return when it is done. */
static CUresult queue(struct stream *stream, struct task what, bool wait)
{
	struct task *task = malloc(sizeof(*task));
	bool done = false;

	if (!task)
		return OUT_OF_MEMORY;
	*task = what;
	if (stuck == NEXT && task->dst) {
		task->stuck = true;
		stuck = NONE;
	}
	task->ticket = ++tickets;
	task->done = wait ? &done : NULL;
	*stream->tail = task;
	stream->tail = &task->next;
	if (task->record) {
		task->record->pending++;
		task->record->recorded = task->ticket;
		task->record->whole = false;
	}
	if (task->wait)
		task->wait->pending++;
	device_leave(SUCCESS);
	device_enter(__func__, NOTHING);
	while (wait && !done)
		device_wait();
	return SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags,
				    int priority)
{
	struct stream *new;

	(void)priority; /* those out of range are clamped */
	ENTER(CONTEXT);
	if (!stream || flags > STREAM_NON_BLOCKING)
		return device_leave(INVALID_VALUE);
	new = stream_new(device_current(), !flags);
	if (new)
		*stream = new;
	return device_leave(new ? SUCCESS : OUT_OF_MEMORY);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
	struct stream *stream;

	ENTER_WITH(stream, (uintptr_t)handle <= STREAM_PER_THREAD
				   ? NULL
				   : stream_of(handle));
	stream->closed = true; /* what is queued is done before it ends */
	return device_leave(SUCCESS);
}

CUresult cuStreamSynchronize(CUstream handle)
{
	struct stream *stream;

	ENTER_WITH(stream, stream_of(handle));
	return device_leave(queue(stream, (struct task){0}, true));
}

CUresult cuMemFreeAsync(CUdeviceptr base, CUstream handle)
{
	struct allocation *old;
	struct stream *stream;

	ENTER_WITH(stream, stream_of(handle));
	old = device_find(base);
	if (!old || old->base != base || old->kind != POOLED)
		return device_leave(INVALID_VALUE);
	device_forget(old);
	return device_leave(queue(stream, (struct task){.gone = old}, false));
}

CUresult cuStreamQuery(CUstream handle)
{
	struct stream *stream;

	ENTER_WITH(stream, stream_of(handle));
	for (struct stream *at = streams; at; at = at->next)
		if (at->head &&
		    (at == stream ||
		     (stream == stream->context->legacy &&
		      at->context == stream->context && at->blocking)))
			return device_leave(NOT_READY);
	return device_leave(SUCCESS);
}

CUresult cuLaunchHostFunc(CUstream handle, void (*call)(void *), void *arg)
{
	struct stream *stream;

	ENTER_WITH(stream, stream_of(handle));
	if (!call)
		return device_leave(INVALID_VALUE);
	return device_leave(
		queue(stream, (struct task){.call = call, .arg = arg}, false));
}

/* -- events */

static struct event *event_of(CUevent handle)
{
	struct event *at = events;

	while (at && at != handle)
		at = at->next;
	return at && !at->closed ? at : NULL;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	struct event *new;

	ENTER(CONTEXT);
	if (!event || flags > 3) /* events of other processes: not here */
		return device_leave(INVALID_VALUE);
	new = calloc(1, sizeof(*new));
	if (!new)
		return device_leave(OUT_OF_MEMORY);
	new->context = device_current();
	new->next = events;
	*event = events = new;
	return device_leave(SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	struct event *event;

	ENTER_WITH(event, event_of(handle));
	event->closed = true;
	event_let_go(event);
	return device_leave(SUCCESS);
}

CUresult cuEventRecord(CUevent handle, CUstream on)
{
	struct stream *stream;
	struct event *event;

	ENTER_WITH(stream, stream_of(on));
	event = event_of(handle);
	if (!event || stream->context != event->context)
		return device_leave(INVALID_HANDLE);
	return device_leave(
		queue(stream, (struct task){.record = event}, false));
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent handle)
{
	struct event *event;

	ENTER_WITH(event, event_of(handle));
	if (context != event->context)
		return device_leave(INVALID_HANDLE);
	event->recorded = tickets;
	event->whole = true;
	return device_leave(SUCCESS);
}

CUresult cuEventQuery(CUevent handle)
{
	struct event *event;

	ENTER_WITH(event, event_of(handle));
	return device_leave(has_come(event, event->recorded) ? SUCCESS
							     : NOT_READY);
}

CUresult cuEventSynchronize(CUevent handle)
{
	struct event *event;
	uint64_t until;

	ENTER_WITH(event, event_of(handle));
	until = event->recorded;
	event->pending++; /* it stays while it is looked at */
	while (!has_come(event, until))
		device_wait();
	event->pending--;
	event_let_go(event);
	return device_leave(SUCCESS);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent wait, unsigned flags)
{
	struct stream *stream;
	struct event *event;

	ENTER_WITH(stream, stream_of(handle));
	event = event_of(wait);
	if (!event || flags)
		return device_leave(event ? INVALID_VALUE : INVALID_HANDLE);
	return device_leave(queue(
		stream, (struct task){.wait = event, .until = event->recorded},
		false));
}

/* -- copies */

enum end { HOST_END, DEVICE_END, ANY_END };

/* How many bytes from an address on a copy may use. */
static size_t room_of(const struct allocation *of, CUdeviceptr address)
{
	CUdeviceptr end = of->base + of->len;

	if (of->kind != MAPPED)
		return end - address;
	for (end = address; of && of->kind == MAPPED && of->access;
	     of = device_find(end))
		end = of->base + of->len;
	return end - address;
}

/* What lies at an end; false: not that, or not so many bytes. */
static bool place_of(CUdeviceptr address, size_t len, enum end end, char **at,
		     enum kind *kind)
{
	struct allocation *of = device_find(address);

	*kind = of ? of->kind : PAGEABLE;
	*at = of ? of->view + (address - of->base) : (char *)(uintptr_t)address;
	if (of && len > room_of(of, address))
		return false;
	return end == DEVICE_END ? of != NULL
	       : end == HOST_END ? *kind < DEVICE || *kind == MANAGED
				 : true;
}

static CUresult copy(const char *name, CUdeviceptr dst, enum end to,
		     CUdeviceptr src, enum end from, size_t len,
		     CUstream handle, bool async)
{
	struct task task = {.len = len, .rows = 1};
	CUresult result = device_enter(name, CONTEXT);
	bool between_hosts, between_devices;
	struct stream *stream;
	enum kind into, of;

	if (result)
		return result;
	stream = stream_of(handle);
	if (!stream || stream->context != device_current())
		return device_leave(INVALID_HANDLE);
	if (!len)
		return device_leave(SUCCESS);
	if (!place_of(dst, len, to, &task.dst, &into) ||
	    !place_of(src, len, from, &task.src, &of))
		return device_leave(INVALID_VALUE);
	between_hosts = into < DEVICE && of < DEVICE;
	between_devices = into >= DEVICE && of >= DEVICE;
	if (of == PAGEABLE && !between_hosts) {
		/* The caller may change it when we return; the DMA is later. */
		if (!async)
			queue(stream, (struct task){0}, true);
		task.staged = malloc(len);
		if (!task.staged)
			return device_leave(OUT_OF_MEMORY);
		task.src = memcpy(task.staged, task.src, len);
		return device_leave(queue(stream, task, false));
	}
	return device_leave(queue(stream, task,
				  between_hosts || into == PAGEABLE ||
					  (!async && !between_devices)));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t len)
{
	return copy(__func__, dst, DEVICE_END, (uintptr_t)src, HOST_END, len,
		    NULL, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t len,
			      CUstream stream)
{
	return copy(__func__, dst, DEVICE_END, (uintptr_t)src, HOST_END, len,
		    stream, true);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t len)
{
	return copy(__func__, (uintptr_t)dst, HOST_END, src, DEVICE_END, len,
		    NULL, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t len,
			      CUstream stream)
{
	return copy(__func__, (uintptr_t)dst, HOST_END, src, DEVICE_END, len,
		    stream, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t len)
{
	return copy(__func__, dst, DEVICE_END, src, DEVICE_END, len, NULL,
		    false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t len,
			      CUstream stream)
{
	return copy(__func__, dst, DEVICE_END, src, DEVICE_END, len, stream,
		    true);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t len)
{
	return copy(__func__, dst, ANY_END, src, ANY_END, len, NULL, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t len,
		       CUstream stream)
{
	return copy(__func__, dst, ANY_END, src, ANY_END, len, stream, true);
}

/* Of it what is used here: rows between a device and pinned memory. */
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *what, CUstream handle)
{
	struct task task = {.len = what->WidthInBytes, .rows = what->Height};
	const bool in = what->dstMemoryType == MEMORY_DEVICE;
	struct stream *stream;
	enum kind into, of;
	size_t to, from;

	ENTER_WITH(stream, stream_of(handle));
	task.dst_pitch = what->dstPitch;
	task.src_pitch = what->srcPitch;
	to = (task.rows - 1) * task.dst_pitch + task.len;
	from = (task.rows - 1) * task.src_pitch + task.len;
	if (what->srcXInBytes || what->srcY || what->dstXInBytes ||
	    what->dstY || !task.rows || task.dst_pitch < task.len ||
	    task.src_pitch < task.len ||
	    what->srcMemoryType != (in ? MEMORY_HOST : MEMORY_DEVICE) ||
	    what->dstMemoryType != (in ? MEMORY_DEVICE : MEMORY_HOST) ||
	    !place_of(in ? what->dstDevice : (uintptr_t)what->dstHost, to,
		      in ? DEVICE_END : HOST_END, &task.dst, &into) ||
	    !place_of(in ? (uintptr_t)what->srcHost : what->srcDevice, from,
		      in ? HOST_END : DEVICE_END, &task.src, &of) ||
	    (in ? of : into) == PAGEABLE)
		return device_leave(INVALID_VALUE);
	return device_leave(queue(stream, task, false));
}
