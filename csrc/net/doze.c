/* SPDX-License-Identifier: BSD-3-Clause */
/* How the reader of the completion queue sleeps. */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <errno.h>
#include <poll.h>
#include <time.h>

/* Sleeps until the network, another descriptor or the time says so. */
int rmx_doze(struct rmaext_fabric *f, int other_fd, int64_t ns, int64_t *nap)
{
	struct fid *fid = &f->cq->fid;
	struct pollfd fds[2] = {
		{.fd = f->progress.cq_fd, .events = POLLIN},
		{.fd = other_fd, .events = POLLIN},
	};
	struct timespec t;

	f->hooks->before_read(f);
	/* no event says that the provider takes what it did not */
	if (ns > RMX_NAP_MAX && f->hooks->restless(f))
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
	t = (struct timespec){
		.tv_sec = (time_t)(ns > 0 ? ns / 1000000000 : 0),
		.tv_nsec = (long)(ns > 0 ? ns % 1000000000 : 0),
	};
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
