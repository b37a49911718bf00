/* SPDX-License-Identifier: BSD-3-Clause */
/* Waiting for the guard of updates; see guard.h. */
#define _GNU_SOURCE
#include "guard.h"

#include <sched.h>
#include <time.h>

#define RMX_SPINS 100u	/* 2 to 10 us */
#define RMX_YIELDS 100u /* then it sleeps */
#define RMX_NAP_FIRST (20 * 1000)
#define RMX_NAP_LAST (500 * 1000)
#define RMX_GIVE_WAY 30 /* about 1 us */

/* One that waits. */
struct patience {
	struct rmaext_window *window;
	int64_t rank, deadline;
	long nap;
	unsigned int turns;
};

/*
 * Bulk updates last 20 us, singles less: longer only if their process does not
 * run.
 */
static int be_patient(struct patience *p)
{
	struct timespec t = {0};

	if (p->turns++ < RMX_SPINS) {
		rmx_relax();
		return 0;
	}
	if (p->turns < RMX_SPINS + RMX_YIELDS) {
		sched_yield();
		return 0;
	}
	if (!p->nap) {
		p->nap = RMX_NAP_FIRST;
		p->deadline = rmx_now() + p->window->timeout;
	}
	t.tv_nsec = p->nap;
	nanosleep(&t, NULL);
	if (p->nap < RMX_NAP_LAST)
		p->nap *= 2;
	if (rmx_now() < p->deadline)
		return 0;
	return rmx_fail(-FI_ETIMEDOUT, p->rank, "update",
			"another rank has held the memory there for %lld ms, "
			"and lives",
			(long long)p->window->timeout / 1000000);
}

/* Asks the kernel only after a while, unless it has said so already. */
static bool gone(const struct patience *p, int64_t rank)
{
	const struct rmaext_window *w = p->window;
	struct rmaext_near *near;

	if (rank >= w->count)
		return true;
	near = w->targets[rank].near;
	return near && (p->nap || rmx_near_doubtful(near)) &&
	       rmx_near_gone(near);
}

int rmx_bulk_await(struct rmaext_window *w, int64_t rank)
{
	struct rmx_block *b = w->targets[rank].control;
	struct patience p = {.window = w, .rank = rank};
	unsigned int holder;
	int ret = 0;

	atomic_fetch_add(&b->waiters, 1);
	while (!ret) {
		holder = atomic_load(&b->bulk);
		if (!holder)
			break;
		if (gone(&p, (int64_t)holder - 1))
			atomic_compare_exchange_strong(&b->bulk, &holder, 0);
		else
			ret = be_patient(&p);
	}
	atomic_fetch_sub(&b->waiters, 1);
	return ret;
}

int rmx_singles_enter(struct rmaext_window *w, int64_t rank)
{
	int ret = 0;

	while (!ret && !rmx_singles_try(w, rank))
		ret = rmx_bulk_await(w, rank);
	return ret;
}

/* Those of ranks on other nodes come as the target's own. */
static bool is_here(const struct rmaext_window *w, int64_t rank)
{
	return rank == w->self || w->targets[rank].near;
}

static bool claim(struct rmaext_window *w, int64_t rank)
{
	unsigned int nobody = 0;

	return atomic_compare_exchange_strong(&w->targets[rank].control->bulk,
					      &nobody,
					      (unsigned int)w->self + 1);
}

bool rmx_bulk_try(struct rmaext_window *w, int64_t rank)
{
	struct rmx_block *b = w->targets[rank].control;

	if (!b || !claim(w, rank))
		return false;
	for (int64_t r = 0; r < w->count; r++)
		if (is_here(w, r) && atomic_load(&b->guard[r].singles)) {
			rmx_bulk_leave(w, rank);
			return false;
		}
	return true;
}

int rmx_bulk_enter(struct rmaext_window *w, int64_t rank)
{
	struct rmx_block *b = w->targets[rank].control;
	struct patience p = {.window = w, .rank = rank};
	int ret = 0;

	if (!b)
		return rmx_fail(-FI_EOPNOTSUPP, rank, "update",
				"the window has no control block");
	while (!claim(w, rank)) {
		ret = rmx_bulk_await(w, rank);
		if (ret)
			return ret;
	}
	for (int64_t r = 0; r < w->count && !ret; r++)
		while (is_here(w, r) && atomic_load(&b->guard[r].singles) &&
		       !gone(&p, r) && !ret)
			ret = be_patient(&p);
	if (ret)
		rmx_bulk_leave(w, rank);
	return ret;
}

void rmx_bulk_leave(const struct rmaext_window *w, int64_t rank)
{
	struct rmx_block *b = w->targets[rank].control;

	atomic_store(&b->bulk, 0); /* also a fence for the bell */
	rmx_tell(w->targets[rank].bell);
	/*
	 * Who was waiting gets a chance: one bulk update after another, by a
	 * rank that has the memory in its cache, would leave it none.
	 */
	for (int i = 0; i < RMX_GIVE_WAY && atomic_load(&b->waiters); i++)
		rmx_relax();
}
