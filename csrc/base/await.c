/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The one loop of all who wait for memory that others change, or for MPI. The
 * waiter looks, stays awake for a little, and then moves MPI and sleeps by
 * turns. How it sleeps is its own: on a doorbell (api/wait.c), on a word of a
 * lock (shm/ticket_lock.c) or of a node's barrier (shm/node_barrier.c). Whoever
 * waits for the network reads its completion queue meanwhile: net/progress.c
 * has that loop.
 */
#define _GNU_SOURCE
#include "base/await.h"

#define RMX_LOOKS 16 /* at the memory, for one look at the clock */

static bool await_spin(const struct rmx_await *w, int64_t until)
{
	int64_t now = rmx_now(), end = now + w->spin;

	if (end > until)
		end = until;
	while (now < end) {
		for (int i = 0; i < RMX_LOOKS; i++) {
			if (w->look(w->arg) == RMX_DONE)
				return true;
			rmx_relax();
		}
		now = rmx_now();
	}
	return false;
}

int rmx_await(const struct rmx_await *w, int64_t until, struct rmx_pace *pace)
{
	struct rmx_pace own = {0};
	int64_t now, end;

	if (w->look(w->arg) == RMX_DONE || (w->spin && await_spin(w, until)))
		return 0;
	now = rmx_now();
	if (!pace) {
		pace = &own;
		rmx_pace_begin(pace, now);
	}
	for (;;) {
		if (w->look(w->arg) == RMX_DONE)
			return 0;
		if (now >= until)
			return RMAEXT_PENDING;
		if (rmx_pace_due(pace, now)) {
			rmx_pace_turn(pace);
			now = rmx_now();
			continue;
		}
		end = now + w->nap < until ? now + w->nap : until;
		if (end > pace->next)
			end = pace->next;
		if (!w->sleep(w->arg, end - now))
			return w->look(w->arg) == RMX_DONE ? 0 : RMAEXT_PENDING;
		now = rmx_now();
	}
}
