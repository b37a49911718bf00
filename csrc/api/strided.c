/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transfers between one piece of own memory and a part of a window that lies in
 * many, as dtype/strides.h has them.
 *
 * By memory the loops are carried out at once, and own memory may be in pieces
 * as well. Over the network long runs are reads and writes, the chunks of one
 * operation (post.c); short ones are elements of a message (batch.c), or
 * pieces of a system call (vector_lanes.c).
 */
#include "api/api.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_LONG_RUN 4096 /* bytes: sent by themselves */

int rmx_strides_check(const struct rmx_strides *s,
		      const struct rmaext_window *w, const char *call,
		      int64_t rank, uint64_t offset, int access)
{
	int64_t low = 0, high = 0;

	if (s->runs && !rmx_strides_span(s, offset, &low, &high))
		return rmx_fail(-ERANGE, rank, call, "outside of any window");
	return rmx_check(w, call, rank, (uint64_t)low, (uint64_t)(high - low),
			 access);
}

static const char *name_of(int kind)
{
	return kind == RMAEXT_PUT ? "put" : "get";
}

static int begin(struct rmaext_window *w, int kind, int64_t rank,
		 uint64_t offset, const struct rmx_part *part,
		 const int64_t *locals, struct rmx_strides *s)
{
	int ret;

	if ((kind != RMAEXT_PUT && kind != RMAEXT_GET) ||
	    !rmx_strides_make(s, part, locals))
		return rmx_fail(-FI_EINVAL, rank, "rmaext_strided",
				"kind %d, or no such shape", kind);
	if (w->attached)
		return rmx_fail(-FI_EOPNOTSUPP, rank, name_of(kind),
				"a dynamic window is no array");
	ret = rmx_window_enter(w, name_of(kind));
	if (ret)
		return ret;
	ret = rmx_strides_check(s, w, name_of(kind), rank, offset,
				kind == RMAEXT_PUT ? RMAEXT_WRITE
						   : RMAEXT_READ);
	if (ret)
		rmx_window_leave(w);
	return ret;
}

static bool is_whole(const struct rmaext_window *w, int64_t rank,
		     const struct rmx_strides *s)
{
	const int route = rmx_target_of(w, rank)->route;

	return !s->ndim || route == RMAEXT_DIRECT ||
	       (route == RMAEXT_FABRIC && !w->visits && s->run >= RMX_LONG_RUN);
}

int rmaext_strided_whole(rmaext_window *w, int64_t rank, uint64_t unit,
			 int ndim, const int64_t *shape, const int64_t *steps)
{
	struct rmx_strides s;

	if (rank < 0 || rank >= w->count ||
	    !rmx_strides_make(&s, &(struct rmx_part){unit, ndim, shape, steps},
			      NULL))
		return 1; /* which refuses it */
	return is_whole(w, rank, &s);
}

/* Long runs: the chunks of an operation, several on their way at a time. */
static int post_runs(struct rmaext_window *w, int kind, int64_t rank,
		     uint64_t offset, const struct rmx_strides *s, char *buf,
		     rmaext_op **op_p)
{
	const size_t bytes = rmx_strides_bytes(s);
	struct rmaext_op *op;
	int ret = rmx_op_over(w, rank, kind == RMAEXT_PUT ? RMX_PUT : RMX_GET,
			      offset, buf, s->run * s->runs, bytes, &op);

	if (ret)
		return ret;
	memcpy(rmx_op_payload(op), s, bytes);
	op->strides = (struct rmx_strides *)(void *)rmx_op_payload(op);
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
	ret = begin(w, kind, rank, offset,
		    &(struct rmx_part){unit, ndim, shape, steps}, locals, &s);
	if (ret)
		return ret;
	if (!is_whole(w, rank, &s) ||
	    (locals && s.ndim &&
	     rmx_target_of(w, rank)->route != RMAEXT_DIRECT)) {
		ret = rmx_fail(-FI_EINVAL, rank, "rmaext_strided",
			       "runs of %llu bytes, or own memory in pieces",
			       (unsigned long long)s.run);
	} else if (rmx_target_of(w, rank)->route == RMAEXT_DIRECT) {
		rmx_strides_copy(&s, put, rmx_target_of(w, rank)->map + offset,
				 buf);
	} else if (s.ndim) {
		ret = post_runs(w, kind, rank, offset, &s, buf, op_p);
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
	ret = begin(w, kind, rank, offset,
		    &(struct rmx_part){unit, ndim, shape, steps}, NULL, &s);
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
