/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets of a part of an array, which lies in many runs of the window,
 * as dtype/strides.h describes them.
 *
 * On the direct route the loops are carried out at once, and own memory may be
 * in pieces as well. Over the network long runs are reads and writes, the
 * chunks of one operation (xfer/post.c); short ones go in messages with their
 * loops (am/pack.c), as a copy that nobody waits for if it is a short put; or
 * they are copied by system calls, as those of many places are (api/many.c).
 */
#include "api/api.h"
#include "exec/copy_places.h"

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

/* Room for the loops of an operation, as its places. */
static size_t loops_bytes(const struct rmx_strides *s)
{
	return sizeof(struct rmx_places) + rmx_strides_bytes(s);
}

/* Copies the loops to `room`. Own memory, of a put or a get, is in one piece.
 */
static struct rmx_places *loops_copy(void *room, const struct rmx_strides *s,
				     uint64_t offset, const char *values,
				     char *results)
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
		.results = results,
	};
	return p;
}

/* Long runs are the chunks of one operation, several in flight at a time. */
static int strided_post(struct rmaext_window *w, const struct rmaext_call *c,
			const struct rmx_strides *s, struct rmaext_op **op_p)
{
	struct rmx_op *op;
	int ret = rmx_op_over(w, c, loops_bytes(s), &op);

	if (ret)
		return ret;
	op->places = loops_copy(rmx_op_payload(op), s, op->offset, NULL, NULL);
	return rmx_op_run(op, op_p);
}

/* Short runs go in messages; of a short put they are copied. */
static int strided_send(struct rmaext_window *w, const struct rmaext_call *c,
			const struct rmx_strides *s, struct rmaext_op **op_p)
{
	const bool put = c->kind == RMAEXT_PUT;
	struct rmx_op *op;
	int ret = rmx_message_op(
		w, c, put && c->count <= RMX_COPY_MAX && !w->is_client,
		loops_bytes(s), &op);

	if (ret)
		return ret;
	op->places = loops_copy(rmx_op_payload(op), s, op->offset,
				put ? op->operand : NULL, op->local);
	return rmx_op_run(op, op_p);
}

/* The kernel copies them, or a stream. */
static int strided_copy(struct rmaext_window *w, const struct rmaext_call *c,
			const struct rmx_strides *s, struct rmaext_op **op_p)
{
	void *room = malloc(loops_bytes(s));
	const bool put = c->kind == RMAEXT_PUT;

	if (!room)
		return rmx_fail(-FI_ENOMEM, c->rank, "malloc", "operation");
	return rmx_many_copy(w, c,
			     loops_copy(room, s, w->first + c->offset,
					put ? c->operand : NULL,
					put ? NULL : c->result),
			     op_p);
}

static int strided_run(struct rmaext_window *w, const struct rmaext_call *c,
		       const struct rmx_strides *s, struct rmaext_op **op_p)
{
	const struct rmx_target *t = rmx_target_of(w, c->rank);
	const bool put = c->kind == RMAEXT_PUT;

	if (t->route == RMAEXT_DIRECT) {
		rmx_strides_copy(s, put, t->map + c->offset,
				 put ? (char *)(uintptr_t)c->operand
				     : c->result);
		rmx_count_direct(&w->tally, c->rank,
				 rmx_counted_as(c->kind, false), c->offset,
				 c->count, false);
		return 0;
	}
	if (c->part->locals)
		return rmx_fail(-FI_EINVAL, c->rank, rmx_call_name(c),
				"own memory in pieces: copy it first");
	if (rmx_device_of(w, c->rank) ||
	    (rmx_copies(t) &&
	     (put || !rmx_places_by_messages(w, t, s->runs, s->run))))
		return strided_copy(w, c, s, op_p);
	if (t->route == RMAEXT_FABRIC && s->run >= RMX_LONG_RUN &&
	    !rmx_by_message(w, t, s->run))
		return strided_post(w, c, s, op_p);
	return strided_send(w, c, s, op_p);
}

int rmx_strided_start(struct rmaext_window *w, const struct rmaext_call *c,
		      struct rmaext_op **op_p)
{
	const char *call = rmx_call_name(c);
	struct rmaext_call whole = *c;
	struct rmx_strides s;
	int ret;

	if (!rmx_strides_make(&s, c->part))
		return rmx_fail(-FI_EINVAL, c->rank, call,
				"shape and steps are not those of a part of an "
				"array");
	if (w->attached)
		return rmx_fail(-FI_EOPNOTSUPP, c->rank, call,
				"a dynamic window is no array: put or get at "
				"an address");
	whole.count = s.run * s.runs;
	if (s.runs && !s.ndim)
		return rmx_move_start(w, &whole, op_p);
	ret = rmx_strides_check(&s, w, call, c->rank, c->offset,
				c->kind == RMAEXT_PUT ? RMAEXT_WRITE
						      : RMAEXT_READ);
	return ret || !s.runs ? ret : strided_run(w, &whole, &s, op_p);
}
