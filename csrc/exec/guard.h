/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The guard of updates. It keeps lock-free updates of a target's memory,
 * *singles*, apart from *bulk* updates of it, which are plain loops that would
 * lose them.
 *
 * A rank counts its running singles in a cache line of its own in the target's
 * control block, and then looks whether a rank is in bulk. A rank that is to
 * update in bulk says so in the block, and then waits until all counts are 0.
 * Each writes first and then reads what the other writes, so one of the two
 * sees the other. The count of a rank that died is passed over, and so is a
 * rank that died in bulk.
 *
 * No rank waits while it is inside: many guards are tried, and all are left if
 * one fails. A rank in bulk that waits for the count of a process that does not
 * run gives way after 0.1 ms, and then no rank claims the memory for 1 ms, so
 * that the singles of all others go on.
 *
 * All waiting ends after a time, by RMAEXT_PENDING: the reader of the
 * completion queue has others to serve, and an application thread has signals
 * to handle. Where there is no control block, as in tests, singles need no
 * guard, and nothing is done in bulk.
 *
 * Any thread inside a call on the window may call these functions, and so may
 * the reader of the queue; none takes a lock. The target's memory is mapped.
 */
#ifndef RMAEXT_GUARD_H
#define RMAEXT_GUARD_H

#include "win/window.h"

/* ns for which the CQ's reader waits for a guard */
#define RMX_PATIENCE ((int64_t)50 * 1000)

/*
 * Ends single updates, and wakes those who wait for that memory, as the end of
 * a bulk update does.
 */
static inline void rmx_singles_leave(const struct rmaext_window *w,
				     int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);

	if (b)
		atomic_fetch_sub_explicit(&b->guard[w->self].singles, 1,
					  memory_order_release);
	rmx_wake_waiters(
		w->members->of[rank].doorbell); /* updates are seq_cst */
}

/*
 * Enters single updates, without waiting. Returns true, and rmx_singles_leave()
 * is due, or false: a rank is in bulk.
 */
static inline bool rmx_singles_try(const struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);

	if (!b)
		return true;
	atomic_fetch_add(&b->guard[w->self].singles, 1);
	if (!atomic_load(&b->bulk))
		return true;
	rmx_singles_leave(w, rank);
	return false;
}

/*
 * Does the same, and waits for about `ns`. Returns 0, or RMAEXT_PENDING when
 * the time is up or after a signal.
 */
int rmx_singles_enter(struct rmaext_window *w, int64_t rank, int64_t ns);

/*
 * Enter a bulk update: no other rank or thread updates the target's memory
 * until rmx_bulk_leave(). try does not wait. enter waits for about `ns`, and
 * returns as rmx_singles_enter() does, or -FI_EOPNOTSUPP with a record where
 * the window has no control block.
 */
bool rmx_bulk_try(struct rmaext_window *w, int64_t rank);
int rmx_bulk_enter(struct rmaext_window *w, int64_t rank, int64_t ns);
void rmx_bulk_leave(const struct rmaext_window *w, int64_t rank);

/*
 * Waits, as rmx_singles_enter() does, until no rank is in bulk there. One may
 * be when it returns.
 */
int rmx_bulk_await(struct rmaext_window *w, int64_t rank, int64_t ns);

/*
 * Says what RMAEXT_PENDING of a guard means by now. *deadline is 0 the first
 * time. Returns RMAEXT_PENDING: try again; or -FI_ETIMEDOUT with a record.
 */
int rmx_guard_overdue(int64_t rank, int64_t timeout, int64_t *deadline);

#endif
