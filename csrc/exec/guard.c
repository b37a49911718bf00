/* SPDX-License-Identifier: BSD-3-Clause */
/* Waiting for the guard of updates; see guard.h. */
#define _GNU_SOURCE
#include "exec/guard.h"

#include <sched.h>
#include <time.h>

#define RMX_SPINS 100u	/* 2 to 10 us */
#define RMX_YIELDS 100u /* then it sleeps */
#define RMX_NAP_FIRST (20 * 1000)
#define RMX_NAP_LAST (500 * 1000)
#define RMX_GIVE_WAY 30 /* about 1 us */
#define RMX_CLAIM ((int64_t)100 * 1000)
#define RMX_PAUSE (10 * RMX_CLAIM)

/* One that waits. */
struct patience {
	struct rmaext_window *window;
	int64_t ns, until; /* 0: it has just begun */
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
	t.tv_nsec = p->nap < p->until - now ? p->nap : p->until - now;
	return nanosleep(&t, NULL) ? RMAEXT_PENDING : 0;
}

int rmx_guard_overdue(int64_t rank, int64_t timeout, int64_t *deadline)
{
	const int64_t now = rmx_now();

	if (!*deadline)
		*deadline = now + timeout - RMX_SLICE;
	if (now < *deadline)
		return RMAEXT_PENDING;
	return rmx_fail(-FI_ETIMEDOUT, rank, "update",
			"another rank has held the memory there for %lld ms, "
			"and lives",
			(long long)timeout / 1000000);
}

/* Asks the kernel only after a while, unless it has said so already. */
static bool gone(const struct patience *p, int64_t rank)
{
	const struct rmaext_window *w = p->window;
	struct rmaext_near *near;

	if (rank >= w->count)
		return true;
	near = w->members->of[rank].near;
	return near && (p->until || rmx_near_doubtful(near)) &&
	       rmx_near_gone(near);
}

/* Waits a little for who is in bulk, if anybody is. */
static int await_holder(struct patience *p, struct rmx_control_block *b)
{
	unsigned int holder = atomic_load(&b->bulk);

	if (!holder || !gone(p, (int64_t)holder - 1)) {
		/* who has the memory may wait for a message of ours; not
		 * where the CQ's reader waits, for others need it */
		if (p->nap && p->ns > RMX_PATIENCE)
			rmaext_mpi_glance();
		return be_patient(p);
	}
	atomic_compare_exchange_strong(&b->bulk, &holder, 0);
	return 0;
}

static int await_all(struct patience *p, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(p->window, rank);
	int ret = 0;

	atomic_fetch_add(&b->waiters, 1);
	while (!ret && atomic_load(&b->bulk))
		ret = await_holder(p, b);
	atomic_fetch_sub(&b->waiters, 1);
	return ret;
}

int rmx_bulk_await(struct rmaext_window *w, int64_t rank, int64_t ns)
{
	struct patience p = {.window = w, .ns = ns};

	return await_all(&p, rank);
}

/* However often it is too late for one bulk update after another. */
int rmx_singles_enter(struct rmaext_window *w, int64_t rank, int64_t ns)
{
	struct patience p = {.window = w, .ns = ns};
	int64_t now;

	while (!rmx_singles_try(w, rank)) {
		if (await_all(&p, rank))
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

/* A clock that differs from the last waiter's must not keep it for long. */
static bool pauses(const struct rmx_control_block *b)
{
	const int64_t pause =
		atomic_load_explicit(&b->pause, memory_order_relaxed);
	const int64_t left = pause ? pause - rmx_now() : 0;

	return left > 0 && left <= RMX_PAUSE;
}

static bool claim(struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	unsigned int nobody = 0;

	return !pauses(b) &&
	       atomic_compare_exchange_strong(&b->bulk, &nobody,
					      (unsigned int)w->self + 1);
}

bool rmx_bulk_try(struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);

	if (!b || !claim(w, rank))
		return false;
	/* those of ranks on other nodes come as the target's own */
	for (int64_t i = 0; i < w->members->here_count; i++)
		if (atomic_load(&b->guard[w->members->here[i]].singles)) {
			rmx_bulk_leave(w, rank);
			return false;
		}
	return true;
}

/* In bulk; false: no more, as somebody's single updates do not end. */
static bool await_singles(struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	struct patience p = {.window = w, .ns = RMX_CLAIM};

	for (int64_t i = 0; i < w->members->here_count; i++)
		while (atomic_load(&b->guard[w->members->here[i]].singles) &&
		       !gone(&p, w->members->here[i]))
			if (be_patient(&p)) {
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
	struct patience p = {.window = w, .ns = ns};
	int ret = 0;

	if (!b)
		return rmx_fail(-FI_EOPNOTSUPP, rank, "update",
				"the window has no control block");
	if (claim(w, rank) && await_singles(w, rank))
		return 0;
	atomic_fetch_add(&b->waiters, 1);
	do
		ret = await_holder(&p, b);
	while (!ret && !(claim(w, rank) && await_singles(w, rank)));
	atomic_fetch_sub(&b->waiters, 1);
	return ret;
}

void rmx_bulk_leave(const struct rmaext_window *w, int64_t rank)
{
	struct rmx_control_block *b = rmx_control_block_of(w, rank);
	unsigned int own = (unsigned int)w->self + 1;

	/*
	 * Others may have taken this process for dead: then it is the next
	 * holder's. Also a fence for the doorbell.
	 */
	atomic_compare_exchange_strong(&b->bulk, &own, 0);
	rmx_wake_waiters(w->members->of[rank].doorbell);
	/*
	 * Who was waiting gets a chance: one bulk update after another, by a
	 * rank that has the memory in its cache, would leave it none.
	 */
	for (int i = 0; i < RMX_GIVE_WAY && atomic_load(&b->waiters); i++)
		rmx_relax();
}
