/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What keeps lock-free updates of a target's memory, *singles*, apart from
 * *bulk* updates of it, plain loops which would lose them.
 *
 * A rank counts its singles under way in a cache line of its own in the
 * target's control block, and looks whether somebody is in bulk. A bulk update
 * says so, and waits until all counts are 0. Each writes first and then reads
 * what the other writes, so one of the two sees the other. The count of a rank
 * that died is passed over, and so is one that died in bulk.
 *
 * Nobody waits while inside: many guards are tried, and all left if one fails.
 * Who waits in bulk for the count of a process that does not run gives way
 * after 0.1 ms, and then nobody claims it for 1 ms, so that the singles of all
 * others go on.
 *
 * All waiting ends after a time, by RMAEXT_PENDING: the CQ's reader has others
 * to serve, and an application thread signals to look for.
 * Where there is no control block, of a window or of a test, singles need no
 * guard, and nothing is done in bulk.
 */
#ifndef RMAEXT_GUARD_H
#define RMAEXT_GUARD_H

#include "win/window.h"

/* ns that the CQ's reader waits for a guard; who is in no hurry waits longer */
#define RMX_PATIENCE ((int64_t)50 * 1000)

/* Those who wait for that memory are told, as after bulk updates. */
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

/* May single updates be made? Until rmx_singles_leave(). */
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
 * The same after some waiting, of about `ns`: RMAEXT_PENDING when the time is
 * up, or after a signal.
 */
int rmx_singles_enter(struct rmaext_window *w, int64_t rank, int64_t ns);

/* Nobody else updates the target's memory, until rmx_bulk_leave(). */
bool rmx_bulk_try(struct rmaext_window *w, int64_t rank);
int rmx_bulk_enter(struct rmaext_window *w, int64_t rank, int64_t ns);
void rmx_bulk_leave(const struct rmaext_window *w, int64_t rank);

/* Wait until nobody is in bulk there; somebody may be at once again. */
int rmx_bulk_await(struct rmaext_window *w, int64_t rank, int64_t ns);

/* What RMAEXT_PENDING means by now; 0 at *deadline: it is the first. */
int rmx_guard_overdue(int64_t rank, int64_t timeout, int64_t *deadline);

#endif
