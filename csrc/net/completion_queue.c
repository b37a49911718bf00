/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the one reader of the completion queue does with it: it dispatches the
 * completions that are there, and sleeps until there are more.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <errno.h>
#include <poll.h>

#define RMX_READ_MOST 1024 /* completions that one drain reads */

/*
 * Wakes those who wait for this process's memory, which may have changed by
 * what was read. Transfers that other ranks began leave no completion here, so
 * this comes before the reader sleeps, too.
 */
void rmx_cq_wake_waiters(const struct rmaext_fabric *f)
{
	atomic_thread_fence(memory_order_seq_cst);
	rmx_wake_waiters(f->doorbell);
}

/*
 * Reads and dispatches the completions that there are; the caller is the
 * reader. A batch that is not full is taken for the last one: reading on until
 * there is none costs three system calls (1.17), and arm() asks again before
 * the reader sleeps.
 */
int rmx_cq_drain(struct rmaext_fabric *f)
{
	struct rmx_completion done[RMX_POLL_MOST];
	struct rmaext_error failure = {.rank = RMX_NO_RANK};
	int total = 0, n;

	f->hooks->before_read(f);
	do {
		failure.code = failure.prov_errno = 0;
		n = f->transport->poll(f, done, &failure);
		for (int i = 0; i < n; i++)
			f->hooks->complete(f, done[i].context, done[i].len,
					   i == n - 1 && failure.code ? &failure
								      : NULL);
		total += n;
	} while ((n == RMX_POLL_MOST || failure.code) && total < RMX_READ_MOST);
	f->hooks->after_read(f);
	if (total) {
		f->progress.signalled = true;
		/* has a fence, too: followers look at what was counted */
		rmx_cq_wake_waiters(f);
		if (atomic_load(&f->progress.followers))
			rmx_futex_wake(&f->progress.turn);
	}
	return total;
}

bool rmx_cq_arm(struct rmaext_fabric *f)
{
	bool quiet = true;

	f->hooks->before_read(f);
	if (f->progress.cq_fd >= 0) {
		f->progress.signalled = false;
		quiet = f->transport->arm(f);
		if (quiet) {
			/* it may have moved data of which no event tells */
			f->hooks->after_read(f);
			f->hooks->before_read(f);
		}
	}
	rmx_cq_wake_waiters(f);
	return quiet;
}

int64_t rmx_cq_nap(struct rmaext_fabric *f, int64_t ns, int64_t *nap)
{
	/* no event tells when the provider takes what it did not take */
	if (ns > RMX_NAP_MAX && f->hooks->restless(f))
		ns = RMX_NAP_MAX;
	if (f->progress.cq_fd < 0) {
		*nap = *nap ? *nap * 2 : 10000;
		if (*nap > RMX_NAP_MAX)
			*nap = RMX_NAP_MAX;
		if (ns > *nap)
			ns = *nap;
	}
	return ns;
}

int rmx_cq_sleep(const struct rmaext_fabric *f, int other_fd, int64_t ns)
{
	struct pollfd fds[2] = {
		{.fd = f->progress.cq_fd, .events = POLLIN},
		{.fd = other_fd, .events = POLLIN},
	};
	const struct timespec t = rmx_timespec(ns);

	if (ppoll(fds, 2, &t, NULL) < 0)
		return errno == EINTR ? RMX_INTERRUPTED : 0;
	return (fds[0].revents ? RMX_BY_NETWORK : 0) |
	       (fds[1].revents ? RMX_BY_OTHER : 0);
}

/*
 * What makes the descriptor readable may be a completion, or one between the
 * provider's own layers. It stays so when that has been read, until arm().
 */
bool rmx_cq_is_ready(struct rmaext_fabric *f)
{
	struct rmx_progress *p = &f->progress;
	struct pollfd fd = {.fd = p->cq_fd, .events = POLLIN};

	if (p->cq_fd < 0)
		return false;
	if (p->signalled) {
		p->signalled = false;
		if (!f->transport->arm(f))
			return true;
	}
	p->signalled = poll(&fd, 1, 0) > 0;
	return p->signalled;
}
