/* SPDX-License-Identifier: BSD-3-Clause */
/* The guard of updates, and waiting for it; see guard.h. */
#define _GNU_SOURCE
#include "exec/guard.h"

#include <sched.h>

#define RMX_SPINS 100u			/* which take 2 to 10 us */
#define RMX_YIELDS 100u			/* before it sleeps */
#define RMX_NAP_FIRST (20 * 1000)	/* ns; each nap is twice the last */
#define RMX_NAP_LAST (500 * 1000)	/* ns */
#define RMX_GIVE_WAY 30			/* turns, about 1 us */
#define RMX_CLAIM ((int64_t)100 * 1000) /* ns that bulk waits for singles */
#define RMX_PAUSE (10 * RMX_CLAIM)	/* ns without bulk after that */

/* A thread that waits for the guard of a target. */
struct guard_wait {
	struct rmaext_window *window;
	int64_t ns;    /* how long it waits at most */
	int64_t until; /* the end of that; 0: it has just begun */
	long nap;
	unsigned int turns;
};

/*
 * Waits a little: it spins, then yields, then sleeps. A bulk update lasts 20 us
 * and a single one less, unless its process does not run. Returns 0, or
 * RMAEXT_PENDING when the time is up or after a signal.
 */
static int wait_turn(struct guard_wait *p)
{
	int64_t now;

	if (!p->ns)
		return RMAEXT_PENDING;
	if (p->turns++ < RMX_SPINS) {
		rmx_relax();
		return 0;
	}
	now = rmx_now();
	if (!p->until)
		p->until = now + p->ns;
	if (now >= p->until)
		return RMAEXT_PENDING;
	if (p->turns < RMX_SPINS + RMX_YIELDS) {
		sched_yield();
		return 0;
	}
	p->nap = p->nap ? p->nap * 2 : RMX_NAP_FIRST;
	if (p->nap > RMX_NAP_LAST)
		p->nap = RMX_NAP_LAST;
	now = p->nap < p->until - now ? p->nap : p->until - now;
	return rmx_sleep(now) ? 0 : RMAEXT_PENDING;
}

int rmx_guard_overdue(int64_t rank, int64_t timeout, int64_t *deadline)
{
	const int64_t now = rmx_now();

	if (!*deadline)
		*deadline = now + timeout - RMX_SLICE;
	if (now < *deadline)
		return RMAEXT_PENDING;
	return rmx_fail(-FI_ETIMEDOUT, rank, "update",
			"another rank, which lives, has held the memory there "
			"for %lld ms; it may be stopped",
			(long long)timeout / 1000000);
}

/* Has that rank died? The kernel is asked after a while, or if it left a mark.
 */
static bool rank_is_gone(const struct guard_wait *p, int64_t rank)
{
	const struct rmaext_window *w = p->window;
	struct rmaext_neighbour *neighbour;

	if (rank >= w->count)
		return true;
	neighbour = w->members->of[rank].neighbour;
	return neighbour && (p->until || rmx_neighbour_doubtful(neighbour)) &&
	       rmx_neighbour_gone(neighbour);
}

/* Waits a little for the rank in bulk, if there is one, or frees its hold. */
static int bulk_await_holder(struct guard_wait *p, struct rmx_control_block *b)
{
	unsigned int holder = atomic_load(&b->bulk);

	if (!holder || !rank_is_gone(p, (int64_t)holder - 1)) {
		/*
		 * The holder may wait for a message of this rank, so MPI is
		 * moved, but not while the CQ's reader waits, which serves
		 * others.
		 */
		if (p->nap && p->ns > RMX_PATIENCE)
			rmaext_mpi_glance();
		return wait_turn(p);
	}
	atomic_compare_exchange_strong(&b->bulk, &holder, 0);
	return 0;
}

static int bulk_await_free(struct guard_wait *p, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(p->window, rank);
	int ret = 0;

	atomic_fetch_add(&b->waiters, 1);
	while (!ret && atomic_load(&b->bulk))
		ret = bulk_await_holder(p, b);
	atomic_fetch_sub(&b->waiters, 1);
	return ret;
}

int rmx_bulk_await(struct rmaext_window *w, int64_t rank, int64_t ns)
{
	struct guard_wait p = {.window = w, .ns = ns};

	return bulk_await_free(&p, rank);
}

int rmx_singles_enter(struct rmaext_window *w, int64_t rank, int64_t ns)
{
	struct guard_wait p = {.window = w, .ns = ns};
	int64_t now;

	while (!rmx_singles_try(w, rank)) {
		if (bulk_await_free(&p, rank))
			return RMAEXT_PENDING;
		now = rmx_now();
		if (!p.until)
			p.until = now + ns;
		if (now >= p.until)
			return RMAEXT_PENDING;
		p.turns = 0;
		p.nap = 0;
	}
	return 0;
}

/*
 * Is nobody to claim the memory now? A time that is further off than RMX_PAUSE
 * is of a rank whose clock differs, and does not count.
 */
static bool bulk_is_paused(const struct rmx_control_block *b)
{
	const int64_t pause =
		atomic_load_explicit(&b->pause, memory_order_relaxed);
	const int64_t left = pause ? pause - rmx_now() : 0;

	return left > 0 && left <= RMX_PAUSE;
}

static bool bulk_claim(struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	unsigned int nobody = 0;

	return !bulk_is_paused(b) &&
	       atomic_compare_exchange_strong(&b->bulk, &nobody,
					      (unsigned int)w->self + 1);
}

bool rmx_bulk_try(struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);

	if (!b || !bulk_claim(w, rank))
		return false;
	/* updates of other nodes are among the target's own singles */
	for (int64_t i = 0; i < w->members->here_count; i++)
		if (atomic_load(&b->guard[w->members->here[i]].singles)) {
			rmx_bulk_leave(w, rank);
			return false;
		}
	return true;
}

/*
 * The caller is in bulk, and waits until all singles have left. False: it has
 * given way, as the singles of a rank do not end.
 */
static bool singles_await(struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	struct guard_wait p = {.window = w, .ns = RMX_CLAIM};

	for (int64_t i = 0; i < w->members->here_count; i++)
		while (atomic_load(&b->guard[w->members->here[i]].singles) &&
		       !rank_is_gone(&p, w->members->here[i]))
			if (wait_turn(&p)) {
				atomic_store(&b->pause, rmx_now() + RMX_PAUSE);
				rmx_bulk_leave(w, rank);
				return false;
			}
	if (atomic_load_explicit(&b->pause, memory_order_relaxed))
		atomic_store_explicit(&b->pause, 0, memory_order_relaxed);
	return true;
}

int rmx_bulk_enter(struct rmaext_window *w, int64_t rank, int64_t ns)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	struct guard_wait p = {.window = w, .ns = ns};
	int ret = 0;

	if (!b)
		return rmx_fail(-FI_EOPNOTSUPP, rank, "update",
				"the window has no control block");
	if (bulk_claim(w, rank) && singles_await(w, rank))
		return 0;
	atomic_fetch_add(&b->waiters, 1);
	do
		ret = bulk_await_holder(&p, b);
	while (!ret && !(bulk_claim(w, rank) && singles_await(w, rank)));
	atomic_fetch_sub(&b->waiters, 1);
	return ret;
}

void rmx_bulk_leave(const struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	unsigned int own = (unsigned int)w->self + 1;

	/*
	 * If others have taken this process for dead the word is another
	 * holder's by now, and stays. The exchange is a fence, which the
	 * doorbell needs.
	 */
	atomic_compare_exchange_strong(&b->bulk, &own, 0);
	rmx_wake_waiters(w->members->of[rank].doorbell);
	/*
	 * Ranks that wait get a chance here. One bulk update after another, by
	 * a rank that has the memory in its cache, would leave them none.
	 */
	for (int i = 0; i < RMX_GIVE_WAY && atomic_load(&b->waiters); i++)
		rmx_relax();
}
