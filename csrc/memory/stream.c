/* SPDX-License-Identifier: BSD-3-Clause */
/* The streams of devices, which copy. */
#include "memory/device.h"
#include "base/await.h"

#include <stdlib.h>

/*
 * An operation of this process, one that its progress thread carries out for
 * others, and two more where copies hang.
 */
#define PREPARED 4
#define MOST_PITCH ((size_t)1 << 30) /* less than any device's */

/* A copy takes microseconds, or as long as what is before it in the stream. */
#define AWAKE 100000 /* ns */
#define NAP 50000    /* ns */

typedef int (*done_fn)(const struct rmx_device *device, void *it);

/* Waits until done() says so. */
static int stream_wait(struct rmaext_stream *s, done_fn done, void *it)
{
	const int64_t begun = rmx_now();
	struct rmx_pace pace = {0};
	int64_t now = begun;
	int ret;

	if (!s->since)
		s->since = begun;
	rmx_pace_begin(&pace, begun);
	while ((ret = done(s->device, it)) == RMAEXT_PENDING) {
		now = rmx_now();
		if (now - s->since >= s->limit) {
			s->since = 0; /* who waits again has the same time */
			return rmx_fail(-FI_ETIMEDOUT, RMX_NO_RANK, "device",
					"device %d has not ended in %g s what "
					"it was given: is a kernel still at "
					"work there? Wait for it, or raise the "
					"timeout",
					s->device->number,
					(double)s->limit / 1e9);
		}
		if (now >= s->until)
			return RMAEXT_PENDING;
		if (s->moves_mpi && rmx_pace_due(&pace, now))
			rmx_pace_turn(&pace);
		else if (now - begun < AWAKE)
			rmx_relax();
		else
			rmx_sleep(NAP);
	}
	if (!ret)
		s->since = 0;
	return ret;
}

/* -- which there are */

static void stream_push(struct rmaext_stream **list, struct rmaext_stream *s)
{
	s->next = *list;
	*list = s;
}

/*
 * Of `late`, whose lock the caller has, those are free whose work has ended.
 * Has others' not? A context that is broken says of no stream that it has.
 */
static bool late_look(struct rmx_device *device)
{
	struct rmaext_stream **at = &device->late, *s;
	bool pending = false;
	int ret;

	while ((s = *at)) {
		ret = device->kind->idle(device, s->it);
		if (ret) {
			pending |= ret == RMAEXT_PENDING;
			at = &s->next;
			continue;
		}
		*at = s->next;
		atomic_fetch_sub(&device->late_count, 1);
		stream_push(&device->free, s);
	}
	return pending;
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

int rmx_streams_prepare(struct rmx_device *device)
{
	struct rmaext_error record;
	struct rmaext_stream *s;

	for (int i = 0; i < PREPARED; i++) {
		s = stream_new(device);
		if (s) {
			stream_push(&device->free, s);
		} else if (!device->free) {
			rmaext_error_last(&record);
			return record.code;
		}
	}
	return 0;
}

/* NULL: none is free, and `late`: nor is one to be made, else it is taken. */
static struct rmaext_stream *stream_free(struct rmx_device *device,
					 bool *late_p)
{
	struct rmaext_stream *s;

	pthread_mutex_lock(&device->lock);
	*late_p = late_look(device);
	s = device->free;
	if (s)
		device->free = s->next;
	if (s || !*late_p)
		device->taken++;
	pthread_mutex_unlock(&device->lock);
	return s;
}

static struct rmaext_stream *stream_made(struct rmx_device *device)
{
	struct rmaext_stream *s = stream_new(device);

	if (s)
		return s;
	pthread_mutex_lock(&device->lock);
	device->taken--;
	pthread_mutex_unlock(&device->lock);
	return NULL;
}

/* One with nothing to copy by gets that of one which is free by now, or new. */
static int stream_found(const struct rmx_device *same, void *it)
{
	struct rmaext_stream *s = it, *from;
	struct rmaext_error record;
	bool late;

	(void)same;
	from = stream_free(s->device, &late);
	if (!from && late)
		return RMAEXT_PENDING;
	if (!from)
		from = stream_made(s->device);
	if (!from) {
		rmaext_error_last(&record);
		return record.code;
	}
	s->it = from->it;
	for (int i = 0; i < 2; i++) {
		s->half[i].at = from->half[i].at;
		s->half[i].event = from->half[i].event;
	}
	free(from);
	return 0;
}

static int stream_ready(struct rmaext_stream *s)
{
	return s->it ? 0 : stream_wait(s, stream_found, s);
}

struct rmaext_stream *rmx_stream_take(struct rmx_device *device, int64_t limit,
				      bool moves_mpi)
{
	struct rmaext_stream *s;
	bool late;

	s = stream_free(device, &late);
	if (!s && !late) {
		s = stream_made(device);
		if (!s)
			return NULL;
	}
	if (!s)
		s = calloc(1, sizeof(*s)); /* it gets one when it waits */
	if (!s) {
		rmx_no_memory("a stream");
		return NULL;
	}
	s->device = device;
	s->limit = limit;
	s->until = INT64_MAX;
	s->since = 0;
	s->moves_mpi = moves_mpi;
	s->busy = s->crosses = false;
	s->rest.len = s->rows.rows = 0;
	s->low = UINTPTR_MAX;
	s->high = 0;
	for (int i = 0; i < 2; i++) {
		s->half[i].used = s->half[i].count = s->half[i].run_count = 0;
		s->half[i].marked = false;
	}
	return s;
}

bool rmx_stream_give(struct rmaext_stream *s)
{
	struct rmx_device *device = s->device;
	const bool late = s->busy;

	if (!s->it) {
		free(s);
		return false;
	}
	pthread_mutex_lock(&device->lock);
	device->taken--;
	if (late)
		atomic_fetch_add(&device->late_count, 1);
	stream_push(late ? &device->late : &device->free, s);
	pthread_mutex_unlock(&device->lock);
	return late;
}

bool rmx_streams_busy(struct rmx_device *device)
{
	bool busy;

	pthread_mutex_lock(&device->lock);
	late_look(device);
	busy = device->late || device->taken;
	pthread_mutex_unlock(&device->lock);
	return busy;
}

/*
 * What was given up, and is copied there late, would lie over what comes after
 * it.
 */
static int stream_claim(struct rmaext_stream *s, const void *there,
			uint64_t len)
{
	const uintptr_t low = (uintptr_t)there, high = low + len;
	struct rmx_device *device = s->device;
	const struct rmaext_stream *it;

	if (low < s->low)
		s->low = low;
	if (high > s->high)
		s->high = high;
	if (!atomic_load_explicit(&device->late_count, memory_order_relaxed))
		return 0;
	pthread_mutex_lock(&device->lock);
	for (it = device->late; it; it = it->next)
		if (it->low < high && low < it->high &&
		    device->kind->idle(device, it->it) == RMAEXT_PENDING)
			break;
	pthread_mutex_unlock(&device->lock);
	return it ? rmx_fail(-FI_ETIMEDOUT, RMX_NO_RANK, "device",
			     "a copy to that memory of device %d was given up, "
			     "and goes on: try again later, or restart the "
			     "program",
			     device->number)
		  : 0;
}

/* -- copies */

/* The half's copies have ended, well or not. */
static void half_empty(struct rmx_half *half, bool well)
{
	const char *from = half->at;

	for (unsigned int i = 0; well && i < half->count; i++) {
		memcpy(half->of[i].to, from, half->of[i].len);
		from += half->of[i].len;
	}
	half->used = half->count = half->run_count = 0;
	half->marked = false;
}

static int half_copy(struct rmaext_stream *s, struct rmx_half *half)
{
	const unsigned int count = half->run_count;

	half->run_count = 0;
	s->busy |= count > 0;
	return count ? s->device->kind->copy(s, half->runs, count) : 0;
}

/* The half that is filled has room then. */
static int stream_room(struct rmaext_stream *s)
{
	struct rmx_half *half = &s->half[s->filled];
	int ret;

	if (!half->marked &&
	    (half->used == RMX_HALF || half->count == RMX_PIECES ||
	     half->run_count == RMX_PIECES)) {
		ret = half_copy(s, half);
		if (!ret)
			ret = s->device->kind->mark(s, half->event);
		if (ret)
			return ret;
		half->marked = true;
		s->filled ^= 1;
		half = &s->half[s->filled];
	}
	if (!half->marked)
		return 0;
	ret = stream_wait(s, s->device->kind->passed, half->event);
	if (!ret)
		half_empty(half, true);
	return ret;
}

/* A piece is one more row of the copy before it, or longer, if it fits so. */
static bool run_takes(struct rmx_pitched *last, const struct rmx_pitched *piece)
{
	const uintptr_t gap = (uintptr_t)piece->there - (uintptr_t)last->there;
	const size_t bytes = last->rows * last->len;

	if (last->way != piece->way || last->here + bytes != piece->here ||
	    piece->there < last->there)
		return false;
	if (last->rows == 1 && gap == last->len) {
		last->len += piece->len;
		return true;
	}
	if (last->len != piece->len || gap < last->len || gap > MOST_PITCH ||
	    (last->rows > 1 && gap != last->rows * last->pitch))
		return false;
	if (last->rows == 1)
		last->pitch = gap;
	last->rows++;
	return true;
}

static void half_add(struct rmx_half *half, const struct rmx_pitched *piece)
{
	if (!half->run_count ||
	    !run_takes(&half->runs[half->run_count - 1], piece))
		half->runs[half->run_count++] = *piece;
	half->used += piece->len;
}

static void landing_add(struct rmx_half *half, char *to, size_t len)
{
	struct rmx_landing *last =
		half->count ? &half->of[half->count - 1] : NULL;

	if (last && last->to + last->len == to)
		last->len += len;
	else
		half->of[half->count++] = (struct rmx_landing){to, len};
}

int rmx_stream_resume(struct rmaext_stream *s)
{
	struct rmx_pitched *rest = &s->rest;
	int ret = 0;

	while (rest->len) {
		struct rmx_half *half;
		struct rmx_pitched piece = *rest;

		ret = stream_ready(s);
		if (!ret)
			ret = stream_room(s);
		if (ret)
			return ret;
		half = &s->half[s->filled];
		piece.here = half->at + half->used;
		if (piece.len > RMX_HALF - half->used)
			piece.len = RMX_HALF - half->used;
		if (rest->way == RMX_IN)
			memcpy(piece.here, rest->here, piece.len);
		else
			landing_add(half, rest->here, piece.len);
		half_add(half, &piece);
		rest->there += piece.len;
		rest->here += piece.len;
		rest->len -= piece.len;
	}
	return 0;
}

int rmx_stream_move(struct rmaext_stream *s, enum rmx_way way, void *there,
		    void *here, uint64_t len)
{
	int ret = way == RMX_IN && len ? stream_claim(s, there, len) : 0;

	if (ret)
		return ret;
	s->rest = (struct rmx_pitched){
		.way = way,
		.there = there,
		.here = here,
		.len = len,
		.rows = 1,
	};
	return rmx_stream_resume(s);
}

int rmx_stream_across(struct rmaext_stream *s, void *to, const void *from,
		      uint64_t len)
{
	int ret = stream_claim(s, to, len);

	s->busy = true;
	return ret ? ret : s->device->kind->across(s, to, from, len);
}

/* One that is refused is tried again. */
static int runs_move(struct rmaext_stream *s)
{
	struct rmx_pitched *rows = &s->rows;
	int ret = 0;

	while (!ret && rows->rows) {
		ret = rmx_stream_move(s, rows->way, rows->there + s->runs[0],
				      rows->here + s->runs[0],
				      (uint64_t)s->runs[1]);
		if (ret && !s->rest.len) /* else it has begun, and goes on */
			break;
		s->runs += 2;
		rows->rows--;
	}
	return ret;
}

int rmx_stream_finish(struct rmaext_stream *s, int ret)
{
	struct rmx_half *half = &s->half[s->filled];

	if (!ret)
		ret = rmx_stream_resume(s);
	if (!ret)
		ret = runs_move(s);
	if (!ret) {
		half = &s->half[s->filled];
		ret = half_copy(s, half);
	}
	if (!ret && s->busy)
		ret = stream_wait(s, s->device->kind->idle, s->it);
	if (ret)
		return ret;
	half_empty(&s->half[s->filled ^ 1], true);
	half_empty(half, true);
	s->busy = false;
	return 0;
}

/* -- for Python */

int rmaext_stream_take(rmaext_device *device, int64_t timeout,
		       rmaext_stream **stream_p)
{
	struct rmaext_error record;
	struct rmaext_stream *s;

	rmx_device_look(device);
	s = rmx_stream_take(device, timeout, true);
	if (!s) {
		rmaext_error_last(&record);
		return record.code;
	}
	*stream_p = s;
	return 0;
}

static void slice_begin(struct rmaext_stream *s, int64_t slice)
{
	s->until = rmx_now() + (slice < RMX_SLICE ? slice : RMX_SLICE);
}

int rmaext_stream_handle(rmaext_stream *s, int64_t slice, uint64_t *handle_p)
{
	int ret;

	slice_begin(s, slice);
	ret = stream_ready(s);
	if (ret)
		return ret;
	s->busy = true; /* others may put work of theirs into it */
	*handle_p = (uintptr_t)s->it;
	return 0;
}

int rmaext_stream_give(rmaext_stream *s)
{
	s->busy = s->busy && s->device->kind->idle(s->device, s->it);
	return rmx_stream_give(s);
}

int rmaext_device_late(rmaext_device *device)
{
	pthread_mutex_lock(&device->lock);
	late_look(device);
	pthread_mutex_unlock(&device->lock);
	return (int)atomic_load(&device->late_count);
}

int rmaext_stream_behind(rmaext_stream *s, uint64_t handle)
{
	return s->device->kind->behind(s, (void *)(uintptr_t)handle);
}

int rmaext_stream_copy(rmaext_stream *s, int in, void *there, void *here,
		       const int64_t *runs, uint64_t count)
{
	int ret;

	s->until = 0;
	s->runs = runs;
	s->rows = (struct rmx_pitched){
		.way = in ? RMX_IN : RMX_OUT,
		.there = there,
		.here = here,
		.rows = count,
	};
	ret = runs_move(s);
	return ret == RMAEXT_PENDING ? 0 : ret;
}

int rmaext_stream_wait(rmaext_stream *s, int64_t slice)
{
	slice_begin(s, slice);
	return rmx_stream_finish(s, 0);
}
