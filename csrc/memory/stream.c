/* SPDX-License-Identifier: BSD-3-Clause */
/* The streams of devices, which copy. */
#include "memory/device.h"
#include "base/await.h"

#include <stdlib.h>

/*
 * Waits until done() says so. A copy takes microseconds, or as long as what is
 * before it in the stream.
 */
#define AWAKE 100000 /* ns */
#define NAP 50000    /* ns */

typedef int (*done_fn)(const struct rmx_device *device, void *it);

static int wait_for(const struct rmx_device *device, done_fn done, void *it,
		    int64_t limit, bool moves_mpi)
{
	const int64_t begun = rmx_now();
	struct rmx_pace pace = {0};
	int64_t now = begun;
	int ret;

	rmx_pace_begin(&pace, begun);
	while ((ret = done(device, it)) == RMAEXT_PENDING) {
		now = rmx_now();
		if (now - begun >= limit)
			return rmx_fail(-FI_ETIMEDOUT, RMX_NO_RANK, "device",
					"device %d has not ended in %lld s "
					"what it was given: is a kernel still "
					"at work there? Wait for it, or raise "
					"the timeout",
					device->number,
					(long long)(limit / 1000000000));
		if (moves_mpi && rmx_pace_due(&pace, now))
			rmx_pace_turn(&pace);
		else if (now - begun < AWAKE)
			rmx_relax();
		else
			rmx_sleep(NAP);
	}
	return ret;
}

/*
 * Of `late`, whose lock the caller has, those are free whose work has ended. A
 * context that is broken says of no stream that it has.
 */
static void late_look(struct rmx_device *device, bool *stuck_p)
{
	struct rmaext_stream **at = &device->late, *s;
	int ret;

	*stuck_p = false;
	while ((s = *at)) {
		ret = device->kind->idle(device, s->it);
		if (ret) {
			*stuck_p |= ret == RMAEXT_PENDING && s->overdue;
			at = &s->next;
			continue;
		}
		*at = s->next;
		s->next = device->free;
		device->free = s;
	}
}

static struct rmaext_stream *stream_new(struct rmx_device *device)
{
	struct rmaext_stream *s = calloc(1, sizeof(*s));

	if (!s) {
		rmx_no_memory("a stream");
		return NULL;
	}
	s->device = device;
	if (!device->kind->stream(s))
		return s;
	free(s);
	return NULL;
}

struct rmaext_stream *rmx_stream_take(struct rmx_device *device, int64_t limit,
				      bool moves_mpi)
{
	struct rmaext_stream *s = NULL;
	bool stuck;

	pthread_mutex_lock(&device->lock);
	late_look(device, &stuck);
	if (!stuck && device->free) {
		s = device->free;
		device->free = s->next;
	}
	pthread_mutex_unlock(&device->lock);
	if (stuck) {
		rmx_fail(-FI_ETIMEDOUT, RMX_NO_RANK, "device",
			 "a copy of device %d has not ended in its time, and "
			 "still has not: restart the program",
			 device->number);
		return NULL;
	}
	if (!s)
		s = stream_new(device);
	if (!s)
		return NULL;
	s->limit = limit;
	s->moves_mpi = moves_mpi;
	s->lent = s->late = s->overdue = false;
	return s;
}

void rmx_stream_give(struct rmaext_stream *s)
{
	struct rmx_device *device = s->device;
	struct rmaext_stream **list;

	pthread_mutex_lock(&device->lock);
	list = s->late ? &device->late : &device->free;
	s->next = *list;
	*list = s;
	pthread_mutex_unlock(&device->lock);
}

static int stream_wait(struct rmaext_stream *s, done_fn done, void *it)
{
	const int ret = wait_for(s->device, done, it, s->limit, s->moves_mpi);

	s->overdue |= ret == -FI_ETIMEDOUT && !s->lent;
	s->late |= ret != 0; /* an error does not say that it is idle */
	return ret;
}

/* The half's copies have ended, well or not. */
static void half_empty(struct rmx_half *half, bool well)
{
	const char *from = half->at;

	for (unsigned int i = 0; well && i < half->count; i++) {
		memcpy(half->of[i].to, from, half->of[i].len);
		from += half->of[i].len;
	}
	half->used = half->count = 0;
	half->marked = false;
}

/* Goes on with the other half, which is empty then. */
static int half_next(struct rmaext_stream *s)
{
	struct rmx_half *half = &s->half[s->filled];
	int ret = s->device->kind->mark(s, half->event);

	if (ret)
		return ret;
	half->marked = true;
	s->filled ^= 1;
	half = &s->half[s->filled];
	if (!half->marked)
		return 0;
	ret = stream_wait(s, s->device->kind->passed, half->event);
	if (!ret)
		half_empty(half, true);
	return ret;
}

int rmx_stream_move(struct rmaext_stream *s, enum rmx_way way, void *there,
		    void *here, uint64_t len)
{
	const bool in = way == RMX_IN;
	char *device = there, *host = here;
	int ret = 0;

	while (len && !ret) {
		struct rmx_half *half = &s->half[s->filled];
		const size_t room = RMX_HALF - half->used;
		const size_t n = len < room ? (size_t)len : room;
		char *at = half->at + half->used;

		if (!n || half->count == RMX_LANDINGS) {
			ret = half_next(s);
			continue;
		}
		if (in)
			memcpy(at, host, n);
		ret = s->device->kind->copy(s, way, in ? device : at,
					    in ? at : device, n);
		if (!in && !ret)
			half->of[half->count++] = (struct rmx_landing){host, n};
		half->used += n;
		device += n;
		host += n;
		len -= n;
	}
	return ret;
}

int rmx_stream_across(struct rmaext_stream *s, void *to, const void *from,
		      uint64_t len)
{
	return s->device->kind->copy(s, RMX_ACROSS, to, from, len);
}

int rmx_stream_finish(struct rmaext_stream *s, int ret)
{
	const unsigned int older = s->filled ^ 1;
	int waited = 0;

	if (!s->late)
		waited = stream_wait(s, s->device->kind->idle, s->it);
	ret = ret ? ret : waited;
	half_empty(&s->half[older], !ret);
	half_empty(&s->half[s->filled], !ret);
	return ret;
}

int rmaext_stream_take(rmaext_device *device, int64_t timeout,
		       rmaext_stream **stream_p, uint64_t *handle_p)
{
	struct rmaext_error record;
	struct rmaext_stream *s = rmx_stream_take(device, timeout, true);

	if (!s) {
		rmaext_error_last(&record);
		return record.code;
	}
	s->lent = true;
	*stream_p = s;
	*handle_p = (uintptr_t)s->it;
	return 0;
}

int rmaext_stream_give(rmaext_stream *s)
{
	const bool late = s->device->kind->idle(s->device, s->it);

	s->late |= late;
	rmx_stream_give(s);
	return late;
}

int rmaext_stream_copy(rmaext_stream *s, int in, void *there, void *here,
		       uint64_t len)
{
	return rmx_stream_finish(
		s, rmx_stream_move(s, in ? RMX_IN : RMX_OUT, there, here, len));
}

int rmaext_device_wait(rmaext_device *device, uint64_t handle, int64_t timeout)
{
	return wait_for(device, device->kind->idle, (void *)(uintptr_t)handle,
			timeout, true);
}
