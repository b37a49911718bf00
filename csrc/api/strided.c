/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Transfers between one piece of own memory and a part of a window that lies in
 * many: runs of bytes at the distances of nested loops, which is what slices of
 * an array are. Nothing is as long as the part but the part itself: a place is
 * computed from its number when it is its turn.
 *
 * By memory the loops are carried out here, and own memory may be in pieces as
 * well. Over the network long runs are reads and writes, the chunks of one
 * operation (post.c); short ones are elements of a message (batch.c), or
 * pieces of a system call (vector_lanes.c).
 */
#include "exec/vector.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_LONG_RUN 4096 /* bytes: sent by themselves */

/* -- loops */

/* Does a loop go on where count turns of the one inside it end? */
static bool follows(int64_t step, uint64_t count, int64_t outer)
{
	int64_t reach;

	return !__builtin_mul_overflow(step, (int64_t)count, &reach) &&
	       reach == outer;
}

/*
 * The fewest loops that do it. locals: bytes from element to element of own
 * memory; NULL: it is in one piece. False if there is no such array.
 */
bool rmx_strides_make(struct rmx_strides *s, const struct rmx_part *part,
		      const int64_t *locals)
{
	int64_t bytes = (int64_t)part->unit;

	s->run = part->unit;
	s->ndim = 0;
	if (part->ndim < 0 || part->ndim > RMX_DIMS || bytes <= 0)
		return false;
	for (int k = part->ndim - 1; k >= 0; k--) {
		const int64_t count = part->shape[k], step = part->steps[k];
		const int64_t local = locals ? locals[k] : bytes;
		struct rmx_dim *last = s->ndim ? &s->dim[s->ndim - 1] : NULL;

		if (count < 0 || __builtin_mul_overflow(bytes, count, &bytes))
			return false;
		if (count == 1)
			continue;
		if (!last && step == (int64_t)s->run && local == step)
			s->run *= (uint64_t)count;
		else if (last && follows(last->step, last->count, step) &&
			 follows(last->local, last->count, local))
			last->count *= (uint64_t)count;
		else
			s->dim[s->ndim++] =
				(struct rmx_dim){(uint64_t)count, step, local};
	}
	s->runs = bytes ? (uint64_t)bytes / s->run : 0;
	if (!bytes)
		s->ndim = 0;
	return true;
}

size_t rmx_strides_bytes(const struct rmx_strides *s)
{
	return offsetof(struct rmx_strides, dim) + s->ndim * sizeof(*s->dim);
}

/* What they reach from offset on: [low, high). */
static bool span(const struct rmx_strides *s, uint64_t offset, int64_t *low_p,
		 int64_t *high_p)
{
	int64_t low, high, reach;

	if (__builtin_add_overflow(offset, 0, &low) ||
	    __builtin_add_overflow(offset, s->run, &high))
		return false;
	for (uint32_t d = 0; d < s->ndim; d++) {
		const struct rmx_dim *dim = &s->dim[d];

		if (__builtin_mul_overflow(dim->step, (int64_t)dim->count - 1,
					   &reach) ||
		    __builtin_add_overflow(reach < 0 ? low : high, reach,
					   reach < 0 ? &low : &high))
			return false;
	}
	*low_p = low;
	*high_p = high;
	return low >= 0;
}

int rmx_strides_check(const struct rmx_strides *s,
		      const struct rmaext_window *w, const char *call,
		      int64_t rank, uint64_t offset, int access)
{
	int64_t low = 0, high = 0;

	if (s->runs && !span(s, offset, &low, &high))
		return rmx_fail(-ERANGE, rank, call, "outside of any window");
	return rmx_check(w, call, rank, (uint64_t)low, (uint64_t)(high - low),
			 access);
}

/* -- in messages */

#define MOST_LOOPS 16 /* more are sent as offsets */

/* These words, and two for each loop. */
struct head {
	uint64_t loops, first, start;
};
struct loop {
	uint64_t count;
	int64_t step;
};

size_t rmx_loops_bytes(const struct rmx_strides *s)
{
	return s->ndim && s->ndim <= MOST_LOOPS
		       ? sizeof(struct head) + s->ndim * sizeof(struct loop)
		       : 0;
}

void rmx_loops_pack(const struct rmx_strides *s, uint64_t first, uint64_t start,
		    void *buf)
{
	const struct head head = {s->ndim, first + s->first, start};
	char *at = (char *)buf + sizeof(head);

	memcpy(buf, &head, sizeof(head));
	for (uint32_t d = 0; d < s->ndim; d++, at += sizeof(struct loop))
		memcpy(at, &(struct loop){s->dim[d].count, s->dim[d].step},
		       sizeof(struct loop));
}

bool rmx_loops_unpack(struct rmx_strides *s, const void *buf, size_t len,
		      uint64_t *start_p)
{
	const char *at = (const char *)buf + sizeof(struct head);
	struct head head;

	if (len < sizeof(head))
		return false;
	memcpy(&head, buf, sizeof(head));
	s->ndim = head.loops < RMX_DIMS ? (uint32_t)head.loops : 0;
	if (!rmx_loops_bytes(s) || len < rmx_loops_bytes(s))
		return false;
	s->first = head.first;
	*start_p = head.start;
	for (uint32_t d = 0; d < s->ndim; d++, at += sizeof(struct loop)) {
		struct loop loop;

		memcpy(&loop, at, sizeof(loop));
		if (!loop.count)
			return false;
		s->dim[d] = (struct rmx_dim){loop.count, loop.step, 0};
	}
	return true;
}

/* -- by memory */

struct side {
	char *at;
	int64_t step;
};

#define LOOP(type)                                                     \
	do {                                                           \
		for (; n; n--, to.at += to.step, from.at += from.step) \
			memcpy(to.at, from.at, sizeof(type));          \
	} while (0)

static void copy_runs(struct side to, struct side from, uint64_t n,
		      uint64_t run)
{
	switch (run) { /* memcpy of a constant is a load and a store */
	case 1:
		LOOP(uint8_t);
		break;
	case 2:
		LOOP(uint16_t);
		break;
	case 4:
		LOOP(uint32_t);
		break;
	case 8:
		LOOP(uint64_t);
		break;
	case 16:
		LOOP(uint64_t[2]);
		break;
	default:
		for (; n; n--, to.at += to.step, from.at += from.step)
			memcpy(to.at, from.at, run);
	}
}

static void copy_loops(const struct rmx_strides *s, uint32_t loops, bool put,
		       char *remote, char *local)
{
	const struct rmx_dim *dim = &s->dim[loops - 1];
	const struct side there = {remote, dim->step};
	const struct side here = {local, dim->local};

	if (loops == 1) {
		copy_runs(put ? there : here, put ? here : there, dim->count,
			  s->run);
		return;
	}
	for (uint64_t n = dim->count; n; n--) {
		copy_loops(s, loops - 1, put, remote, local);
		remote += dim->step;
		local += dim->local;
	}
}

void rmx_strides_copy(const struct rmx_strides *s, bool put, char *remote,
		      char *local)
{
	if (s->ndim)
		copy_loops(s, s->ndim, put, remote, local);
	else if (s->runs)
		rmx_copy(put ? remote : local, put ? local : remote, s->run);
}

/* What a put reads and what it writes. */
bool rmx_strides_overlap(const struct rmx_strides *s, const char *remote,
			 const char *local)
{
	const char *high = remote + s->run, *local_high = local + s->run;

	for (uint32_t d = 0; d < s->ndim; d++) {
		const struct rmx_dim *dim = &s->dim[d];
		const int64_t turns = (int64_t)dim->count - 1;

		*(dim->step < 0 ? &remote : &high) += dim->step * turns;
		*(dim->local < 0 ? &local : &local_high) += dim->local * turns;
	}
	return remote < local_high && local < high;
}

/* -- by any route */

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
