/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Notification counters, in a window's control block: origins count a slot up,
 * the rank that owns the block counts it down.
 */
#ifndef RMAEXT_NOTIFY_H
#define RMAEXT_NOTIFY_H

#include "win/window.h"

/*
 * Counts a slot of a rank up, whose control block is mapped here. Whoever sees
 * the count sees what was written to that rank's memory before.
 */
static inline void rmx_notify_add(const struct rmaext_window *w, int64_t rank,
				  int slot, int64_t count)
{
	atomic_fetch_add(&rmx_control_block_of(w, rank)->notify[slot], count);
	rmx_wake_waiters(w->members->of[rank].doorbell);
}

/*
 * Takes `count` off a slot and sets *seen_p to what there was, if it has as
 * many. Several threads may try at once. Returns false otherwise.
 */
static inline bool rmx_notify_take(struct rmx_control_block *block, int slot,
				   int64_t count, int64_t *seen_p)
{
	int_fast64_t there = atomic_load(&block->notify[slot]);

	do
		if (there < count)
			return false;
	while (!atomic_compare_exchange_weak(&block->notify[slot], &there,
					     there - count));
	*seen_p = there;
	return true;
}

/* Is there a slot of that number? */
static inline bool rmx_notify_slot(int64_t slot)
{
	return slot >= 0 && slot < RMAEXT_NOTIFY;
}

#endif
