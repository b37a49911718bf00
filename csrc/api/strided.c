/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets of a part of an array, which lies in many runs of the window,
 * as dtype/strides.h describes them.
 *
 * On the direct route the loops are carried out at once, and own memory may be
 * in pieces as well. Over the network long runs are reads and writes, the
 * chunks of one operation (xfer/post.c); short ones are elements of a message,
 * of a copy that nobody waits for if it is a short put (am/send_queue.c), else
 * of a batch (am/batch.c); or pieces of a system call (exec/vector_lanes.c).
 */
#include "api/api.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_LONG_RUN 4096 /* bytes; a longer run is a read or write */

int rmx_strides_check(const struct rmx_strides *s,
		      const struct rmaext_window *w, const char *call,
		      int64_t rank, uint64_t offset, int access)
{
	int64_t low = 0, high = 0;

	if (s->runs && !rmx_strides_span(s, offset, &low, &high))
		return rmx_fail(-ERANGE, rank, call,
				"the part reaches places that no window has: "
				"make the shape or the steps smaller");
	return rmx_check(w, call, rank, (uint64_t)low, (uint64_t)(high - low),
			 access);
}

static const char *strided_call_name(int kind)
{
	return kind == RMAEXT_PUT ? "put" : "get";
}

static int strided_begin(struct rmaext_window *w, int kind, int64_t rank,
			 uint64_t offset, const struct rmx_part *part,
			 const int64_t *locals, struct rmx_strides *s)
{
	int ret;

	if ((kind != RMAEXT_PUT && kind != RMAEXT_GET) ||
	    !rmx_strides_make(s, part, locals))
		return rmx_fail(-FI_EINVAL, rank, "rmaext_strided",
				"kind %d is no put or get, or shape and steps "
				"are not those of a part of an array",
				kind);
	if (w->attached)
		return rmx_fail(
			-FI_EOPNOTSUPP, rank, strided_call_name(kind),
			"a dynamic window is no array: put or get at an "
			"address");
	ret = rmx_window_enter(w, strided_call_name(kind));
	if (ret)
		return ret;
	ret = rmx_strides_check(s, w, strided_call_name(kind), rank, offset,
				kind == RMAEXT_PUT ? RMAEXT_WRITE
						   : RMAEXT_READ);
	if (ret)
		rmx_window_leave(w);
	return ret;
}

/* Is it a put that goes as a copy, in messages with its loops? */
static bool strided_is_copy(int kind, const struct rmx_strides *s)
{
	return kind == RMAEXT_PUT && s->run < RMX_LONG_RUN &&
	       s->run * s->runs <= RMX_COPY_MAX && rmx_loops_bytes(s);
}

static bool strided_is_whole(const struct rmaext_window *w, int kind,
			     int64_t rank, const struct rmx_strides *s)
{
	const int route = rmx_target_of(w, rank)->route;

	return !s->ndim || route == RMAEXT_DIRECT ||
	       (route == RMAEXT_FABRIC && !w->visits &&
		(s->run >= RMX_LONG_RUN || strided_is_copy(kind, s)));
}

int rmaext_strided_whole(rmaext_window *w, int64_t rank, int kind,
			 uint64_t unit, int ndim, const int64_t *shape,
			 const int64_t *steps)
{
	struct rmx_strides s;

	if (rank < 0 || rank >= w->count ||
	    !rmx_strides_make(&s, &(struct rmx_part){unit, ndim, shape, steps},
			      NULL))
		return 1; /* rmaext_strided() refuses it */
	return strided_is_whole(w, kind, rank, &s);
}

/* Room for the loops of an operation, as its places. */
static size_t loops_bytes(const struct rmx_strides *s)
{
	return sizeof(struct rmx_places) + rmx_strides_bytes(s);
}

/* Copies the loops to `room`; the values are `values`, one after another. */
static struct rmx_places *loops_copy(void *room, const struct rmx_strides *s,
				     uint64_t offset, const char *values)
{
	struct rmx_places *p = room;

	memcpy(p + 1, s, rmx_strides_bytes(s));
	*p = (struct rmx_places){
		.count = s->runs,
		.unit = s->run,
		.width = s->run,
		.first = offset,
		.strides = (struct rmx_strides *)(p + 1),
		.values = values,
		.value_step = s->run,
	};
	return p;
}

/* Long runs are the chunks of one operation, several in flight at a time. */
static int strided_post(struct rmaext_window *w, int kind, int64_t rank,
			uint64_t offset, const struct rmx_strides *s, char *buf,
			rmaext_op **op_p)
{
	struct rmaext_op *op;
	int ret =
		rmx_op_over(w, rank, kind == RMAEXT_PUT ? RMX_PUT : RMX_GET,
			    offset, buf, s->run * s->runs, loops_bytes(s), &op);

	if (ret)
		return ret;
	op->places = loops_copy(rmx_op_payload(op), s, op->offset, NULL);
	return rmx_op_run(op, op_p);
}

/* The loops and the values are copied, so the call need not wait. */
static int strided_put_copy(struct rmaext_window *w, int64_t rank,
			    uint64_t offset, const struct rmx_strides *s,
			    const void *buf, rmaext_op **op_p)
{
	const uint64_t len = s->run * s->runs;
	const size_t bytes = loops_bytes(s);
	struct rmaext_op *op;
	int ret = rmx_op_new(w, rank, RMX_MESSAGE_PUT, offset, len, bytes + len,
			     &op);

	if (ret)
		return ret;
	op->unit = 1;
	op->notify = -1;
	op->local += bytes;
	op->operand = buf;
	rmx_op_buffer(op);
	op->places = loops_copy(rmx_op_payload(op), s, op->offset, op->operand);
	return rmx_op_run(op, op_p);
}

int rmaext_strided(rmaext_window *w, int64_t rank, uint64_t offset, int kind,
		   uint64_t unit, int ndim, const int64_t *shape,
		   const int64_t *steps, const int64_t *locals, void *buf,
		   rmaext_op **op_p)
{
	const bool put = kind == RMAEXT_PUT;
	struct rmx_strides s;
	int ret;

	*op_p = NULL;
	ret = strided_begin(w, kind, rank, offset,
			    &(struct rmx_part){unit, ndim, shape, steps},
			    locals, &s);
	if (ret)
		return ret;
	if (!strided_is_whole(w, kind, rank, &s) ||
	    (locals && s.ndim &&
	     rmx_target_of(w, rank)->route != RMAEXT_DIRECT)) {
		ret = rmx_fail(-FI_EINVAL, rank, "rmaext_strided",
			       "runs of %llu bytes, or own memory in pieces: "
			       "call rmaext_strided_many(), or copy",
			       (unsigned long long)s.run);
	} else if (rmx_target_of(w, rank)->route == RMAEXT_DIRECT) {
		rmx_strides_copy(&s, put, rmx_target_of(w, rank)->map + offset,
				 buf);
		rmx_count_direct(&w->tally, rank, rmx_counted_as(kind, false),
				 offset, s.run * s.runs, false);
	} else if (s.ndim && strided_is_copy(kind, &s)) {
		ret = strided_put_copy(w, rank, offset, &s, buf, op_p);
	} else if (s.ndim) {
		ret = strided_post(w, kind, rank, offset, &s, buf, op_p);
	}
	rmx_window_leave(w);
	if (ret || s.ndim || !s.runs ||
	    rmx_target_of(w, rank)->route == RMAEXT_DIRECT)
		return ret;
	return put ? rmaext_put(w, rank, offset, buf, s.run, op_p)
		   : rmaext_get(w, rank, offset, buf, s.run, op_p);
}

int rmaext_strided_many(rmaext_window *w, int64_t rank, uint64_t offset,
			int kind, uint64_t unit, int ndim, const int64_t *shape,
			const int64_t *steps, void *buf,
			struct rmaext_many *many_p)
{
	struct rmx_strides s, *kept;
	size_t bytes;
	int ret;

	many_p->batch = NULL;
	many_p->bad = -1;
	ret = strided_begin(w, kind, rank, offset,
			    &(struct rmx_part){unit, ndim, shape, steps}, NULL,
			    &s);
	if (ret)
		return ret;
	bytes = rmx_strides_bytes(&s);
	s.rank = rank;
	s.first = offset;
	kept = s.runs ? malloc(bytes) : NULL;
	if (kept) {
		memcpy(kept, &s, bytes);
		ret = rmx_many_strided(w, kind, kept, buf, many_p);
	} else if (s.runs) {
		ret = rmx_fail(-FI_ENOMEM, rank, "malloc", "strides");
	}
	rmx_window_leave(w);
	return ret;
}
