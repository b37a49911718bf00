/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether an operation may be posted: the checks at the origin. */
#include "win/window.h"

#include <errno.h>

int rmx_window_enter(struct rmaext_window *w, const char *call)
{
	int ret = rmx_rundown_enter(&w->rundown, call, "the window is closed");

	if (ret || w->root == w)
		return ret;
	ret = rmx_rundown_enter(&w->root->rundown, call,
				"the window is closed");
	if (ret)
		rmx_rundown_leave(&w->rundown);
	return ret;
}

void rmx_window_leave(struct rmaext_window *w)
{
	if (w->root != w)
		rmx_rundown_leave(&w->root->rundown);
	rmx_rundown_leave(&w->rundown);
}

static bool target_is_gone(const struct rmx_target *t)
{
	return (t->member->peer && atomic_load(&t->member->peer->gone)) ||
	       (rmx_neighbour_doubtful(t->member->neighbour) &&
		rmx_neighbour_gone(t->member->neighbour));
}

/*
 * Only the origin can refuse an operation. Given a put past the end of the
 * memory, providers write it, or lose it together with the next good one, or
 * hang (measured).
 */
int rmx_check(const struct rmaext_window *w, const char *call, int64_t rank,
	      uint64_t offset, uint64_t len, int access)
{
	const struct rmx_target *t;

	if (rmx_passes(w, rank, offset, len, access))
		return 0;
	if (rank < 0 || rank >= w->count)
		return rmx_fail(-ERANGE, rank, call,
				"rank %lld is not in 0..%lld", (long long)rank,
				(long long)w->count - 1);
	t = rmx_target_of(w, rank);
	if (offset > t->size || len > t->size - offset)
		return rmx_fail(-ERANGE, rank, call,
				"%llu bytes at byte %llu end after the %llu "
				"bytes of the window",
				(unsigned long long)len,
				(unsigned long long)offset,
				(unsigned long long)t->size);
	if ((t->access & access) != access)
		return rmx_fail(-FI_EACCES, rank, call,
				"the window there allows %s%s",
				t->access & RMAEXT_READ ? "r" : "",
				t->access & RMAEXT_WRITE ? "w" : "");
	if (target_is_gone(t))
		return rmx_fail(-FI_ENOTCONN, rank, call,
				"the target process, or its endpoint, is gone");
	return 0; /* only the thread that held its tail->life has ended */
}
