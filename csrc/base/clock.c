/* SPDX-License-Identifier: BSD-3-Clause */
/* The time, and ways to let it pass. */
#define _GNU_SOURCE
#include "am/am.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t rmx_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct timespec span(int64_t ns)
{
	if (ns < 0)
		ns = 0;
	return (struct timespec){
		.tv_sec = (time_t)(ns / 1000000000),
		.tv_nsec = (long)(ns % 1000000000),
	};
}

void rmx_futex_sleep(atomic_uint *word, unsigned int value, int64_t ns)
{
	struct timespec t = span(ns);

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

void rmx_futex_wake(atomic_uint *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps until the network, another descriptor or the time says so. */
int rmx_doze(struct rmaext_fabric *f, int other_fd, int64_t ns, int64_t *nap)
{
	struct fid *fid = &f->cq->fid;
	struct pollfd fds[2] = {
		{.fd = f->progress.cq_fd, .events = POLLIN},
		{.fd = other_fd, .events = POLLIN},
	};
	struct timespec t;

	rmx_executor_pay(f);
	/* no event says that the provider takes what it did not */
	if ((rmx_executor_waits(f) || rmx_executor_owes(f) ||
	     rmx_backlog_waits(f)) &&
	    ns > RMX_NAP_MAX)
		ns = RMX_NAP_MAX;
	if (fds[0].fd >= 0) {
		/* -FI_EAGAIN: something has come since the last read */
		if (fi_trywait(f->fabric, &fid, 1))
			return RMX_BY_NETWORK;
	} else {
		*nap = *nap ? *nap * 2 : 10000;
		if (*nap > RMX_NAP_MAX)
			*nap = RMX_NAP_MAX;
		if (ns > *nap)
			ns = *nap;
	}
	t = span(ns);
	if (ppoll(fds, 2, &t, NULL) < 0)
		return errno == EINTR ? RMX_INTERRUPTED : 0;
	return (fds[0].revents ? RMX_BY_NETWORK : 0) |
	       (fds[1].revents ? RMX_BY_OTHER : 0);
}

/* Has the network something for us? Serving a peer gives no completion. */
bool rmx_busy(const struct rmx_progress *p)
{
	struct pollfd fd = {.fd = p->cq_fd, .events = POLLIN};

	return poll(&fd, 1, 0) > 0;
}
