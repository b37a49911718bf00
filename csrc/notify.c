/* SPDX-License-Identifier: BSD-3-Clause */
/* Notifications by memory, and waiting for them. */
#include "notify.h"

#include <errno.h>

static int check(const struct rmaext_window *w, int64_t rank, int slot)
{
	int ret = rmx_check(w, "notify", rank, 0, 0, 0);

	if (ret)
		return ret;
	if (!rmx_notify_slot(slot))
		return rmx_fail(-ERANGE, rank, "notify",
				"slot %d is not in 0..%d", slot,
				RMAEXT_NOTIFY - 1);
	if (!w->targets[rank].control)
		return rmx_fail(-EREMOTE, rank, "notify",
				"its counters cannot be mapped here");
	return 0;
}

int rmaext_notify(rmaext_window *w, int64_t rank, int slot, int64_t count)
{
	int ret = rmx_window_enter(w, "notify");

	if (ret)
		return ret;
	ret = check(w, rank, slot);
	if (!ret)
		rmx_notify_add(&w->targets[rank], slot, count);
	rmx_window_leave(w);
	return ret;
}

int rmaext_notify_wait(rmaext_window *w, int slot, int64_t count, int64_t slice,
		       int64_t *seen_p)
{
	const uint64_t words = offsetof(struct rmx_block, notify) / 8;
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
	ret = check(w, w->self, slot);
	while (!ret && !rmx_notify_take(w->targets[w->self].control, slot,
					count, seen_p)) {
		/* another thread may take them first */
		ret = rmaext_wait_until(w, w->self, &c, 1, 1, slice);
		slice = until - rmx_now();
	}
	rmx_window_leave(w);
	return ret;
}
