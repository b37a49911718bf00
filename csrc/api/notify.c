/* SPDX-License-Identifier: BSD-3-Clause */
/* Puts with a notification, and waits for notifications. */
#include "api/api.h"
#include "win/notify.h"

#include <errno.h>

static int slot_check(const char *call, int64_t rank, int slot)
{
	if (rmx_notify_slot(slot))
		return 0;
	return rmx_fail(-ERANGE, rank, call, "slot %d is not in 0..%d", slot,
			RMAEXT_NOTIFY - 1);
}

static int notified_put(struct rmaext_window *w, const struct rmaext_call *c,
			struct rmaext_op **op_p)
{
	const int slot = c->notify - 1;
	const bool mapped = rmx_control_block_of(w, c->rank);
	/* for the record: else the notification is another operation */
	const unsigned int kind = mapped ? RMAEXT_DID_NOTIFY : RMAEXT_DID_PUT;
	struct rmx_op *op;
	int ret = 0;

	if ((mapped || c->count) &&
	    !rmx_move_by_memory(w, c, kind, mapped ? (uint64_t)slot : c->offset,
				&ret)) {
		if (rmx_device_of(w, c->rank))
			return rmx_by_stream(w, c, op_p);
		if (c->count <= RMX_COPY_MAX || w->root->attached)
			return rmx_message_put(w, c, op_p);
		ret = rmx_move_new(w, c, &op);
		return ret ? ret : rmx_op_run(op, op_p);
	}
	return ret ? ret : rmx_notify(w, c->rank, slot, op_p);
}

int rmx_notify_start(struct rmaext_window *w, const struct rmaext_call *c,
		     struct rmaext_op **op_p)
{
	int ret = slot_check("put_notify", c->rank, c->notify - 1);

	if (!ret)
		ret = rmx_check(w, "put_notify", c->rank, c->offset, c->count,
				c->count ? RMAEXT_WRITE : 0);
	return ret ? ret : notified_put(w, c, op_p);
}

int rmaext_notify_return(rmaext_window *w, int slot, int64_t count,
			 int64_t *seen)
{
	int ret = slot_check("notify", w->self, slot);

	if (ret || !*seen)
		return ret;
	ret = rmx_window_enter(w, "notify");
	if (ret)
		return ret;
	*seen = 0;
	rmx_notify_add(w, w->self, slot, count);
	rmx_window_leave(w);
	return 0;
}

int rmaext_notify_wait(rmaext_window *w, int slot, int64_t count, int64_t slice,
		       int64_t *seen_p)
{
	const uint64_t words = offsetof(struct rmx_control_block, notify) / 8;
	const int64_t until = rmx_now() + slice;
	struct rmaext_condition c = {
		.offset = 8 * (words + (uint64_t)slot),
		.value = (uint64_t)count,
		.block = 1,
		.type = RMAEXT_INT64,
		.comparison = RMAEXT_GE,
	};
	int ret = rmx_window_enter(w, "wait_notify");

	if (ret)
		return ret;
	ret = slot_check("wait_notify", w->self, slot);
	while (!ret && !rmx_notify_take(rmx_control_block_of(w, w->self), slot,
					count, seen_p)) {
		/* another thread may take the count first */
		ret = rmaext_wait_until(w, w->self, &c, 1, 1, slice);
		slice = until - rmx_now();
	}
	if (ret != RMAEXT_PENDING) /* it may have come between two slices */
		rmx_now_leave(RMAEXT_IN_NOTIFY, ret);
	rmx_window_leave(w);
	return ret;
}
