/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets of a part of an array, which lies in many runs of the window,
 * as dtype/layout.h describes them.
 *
 * On the direct route they are copied at once, and own memory may be in pieces
 * as well. Over the network long runs are reads and writes, the
 * chunks of one operation (xfer/post.c); short ones go in messages with their
 * loops (am/pack.c), as a copy that nobody waits for if it is a short put; or
 * they are copied by system calls, as those of many places are (api/many.c).
 */
#include "api/api.h"
#include "exec/copy_places.h"

#include <errno.h>

#define RMX_LONG_RUN 4096 /* bytes; a longer run is a read or write */

/* Long runs are the chunks of one operation, several in flight at a time. */
static int strided_post(struct rmaext_window *w, const struct rmaext_call *c,
			const struct rmx_layout *l, struct rmaext_op **op_p)
{
	struct rmx_op *op;
	int ret = rmx_op_over(w, c, false, rmx_part_places_bytes(l), &op);

	if (ret)
		return ret;
	op->places =
		rmx_part_places(rmx_op_payload(op), l, op->offset, NULL, NULL);
	return rmx_op_run(op, op_p);
}

/* Short runs go in messages; of a short put they are copied. */
static int strided_send(struct rmaext_window *w, const struct rmaext_call *c,
			const struct rmx_layout *l, struct rmaext_op **op_p)
{
	const bool put = c->kind == RMAEXT_PUT;
	struct rmx_op *op;
	int ret = rmx_message_op(
		w, c, put && c->count <= RMX_COPY_MAX && !w->is_client,
		rmx_part_places_bytes(l), &op);

	if (ret)
		return ret;
	op->places = rmx_part_places(rmx_op_payload(op), l, op->offset,
				     put ? op->operand : NULL, op->local);
	return rmx_op_run(op, op_p);
}

static int strided_here(struct rmaext_window *w, const struct rmaext_call *c,
			const struct rmx_side *there)
{
	const struct rmaext_part *p = c->part;
	struct rmx_side own = {NULL, 1, there->bytes};
	char *at = rmx_target_of(w, c->rank)->map + c->offset;
	struct rmx_layout here;

	if (p->locals &&
	    rmx_layout_part(&here, p->unit, p->ndim, p->shape, p->locals))
		own.layout = &here;
	if (c->kind == RMAEXT_PUT)
		rmx_side_copy(there, at, &own, c->operand);
	else
		rmx_side_copy(&own, c->result, there, at);
	rmx_count_direct(&w->tally, c->rank, rmx_counted_as(c->kind, false),
			 c->offset, there->bytes, false);
	return 0;
}

static int strided_run(struct rmaext_window *w, const struct rmaext_call *c,
		       const struct rmx_layout *l, struct rmaext_op **op_p)
{
	const struct rmx_target *t = rmx_target_of(w, c->rank);
	const uint64_t run = (uint64_t)l->one.len;

	if (c->part->locals)
		return rmx_fail(-FI_EINVAL, c->rank, rmx_call_name(c),
				"own memory in pieces: copy it first");
	if (rmx_device_of(w, c->rank) ||
	    (rmx_copies(t) &&
	     (c->kind == RMAEXT_PUT ||
	      !rmx_places_by_messages(w, t, c->count / run, run))))
		return rmx_many_copy(w, c, l, op_p);
	if (t->route == RMAEXT_FABRIC && run >= RMX_LONG_RUN &&
	    !rmx_by_message(w, t, run))
		return strided_post(w, c, l, op_p);
	return strided_send(w, c, l, op_p);
}

int rmx_strided_start(struct rmaext_window *w, const struct rmaext_call *c,
		      struct rmaext_op **op_p)
{
	const struct rmaext_part *p = c->part;
	const char *call = rmx_call_name(c);
	struct rmaext_call whole = *c;
	struct rmx_layout l;
	struct rmx_side there = {&l, 1, 0};
	uint64_t first, len;
	int ret;

	if (!rmx_layout_part(&l, p->unit, p->ndim, p->shape, p->steps))
		return rmx_fail(-FI_EINVAL, c->rank, call,
				"shape and steps are not those of a part of an "
				"array");
	if (w->attached)
		return rmx_fail(-FI_EOPNOTSUPP, c->rank, call,
				"a dynamic window is no array: put or get at "
				"an address");
	whole.count = there.bytes = l.bytes;
	if (l.bytes && !l.loops && !p->locals)
		return rmx_move_start(w, &whole, op_p);
	if (!rmx_side_within(&there, l.bytes ? c->offset : 0, &first, &len))
		return rmx_fail(-ERANGE, c->rank, call,
				"the part reaches places that no window has: "
				"make the shape or the steps smaller");
	ret = rmx_check(w, call, c->rank, first, len,
			c->kind == RMAEXT_PUT ? RMAEXT_WRITE : RMAEXT_READ);
	if (ret || !l.bytes)
		return ret;
	return rmx_target_of(w, c->rank)->route == RMAEXT_DIRECT
		       ? strided_here(w, &whole, &there)
		       : strided_run(w, &whole, &l, op_p);
}
