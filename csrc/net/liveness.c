/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Finds out whether a peer is still there, for those who wait for it: whether
 * its process has ended (its pidfd), it makes no progress until the time limit,
 * or there is no endpoint at its address any more. Of the last ofi_rxm says
 * nothing. While the peer refuses the connection, each post returns
 * -FI_EAGAIN and connects anew, and an atomic whose answer was lost with a
 * connection is forgotten (rxm_process_reject and rxm_close_conn, 1.17 to 2.5).
 * So this asks the kernel of the peer's node, by a TCP connection that carries
 * nothing. Only a refusal means anything: it comes once nobody listens at that
 * address any more. The backlog of a process that is merely stopped accepts.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RMX_PROBE_AFTER ((int64_t)500 * 1000 * 1000) /* ns without progress */
#define RMX_PROBE_MAX ((int64_t)30 * 1000 * 1000 * 1000) /* ns between two */

void rmx_probe_init(struct rmx_probe *p, const struct rmx_limits *limits,
		    const void *address, size_t len)
{
	pthread_mutex_init(&p->lock, NULL);
	p->fd = -1;
	if (len > sizeof(p->address) || !limits->tcp || !limits->ip)
		return;
	memcpy(&p->address, address, len);
	p->len = (socklen_t)len;
}

void rmx_probe_end(struct rmx_probe *p)
{
	if (p->fd >= 0)
		close(p->fd);
	pthread_mutex_destroy(&p->lock);
}

/* Returns the errno of the connection, EISCONN if it stands, 0 if not yet. */
static int probe_answer(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLOUT};
	socklen_t len = sizeof(int);
	int error = 0;

	if (poll(&event, 1, 0) <= 0)
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		return errno;
	return error ? error : EISCONN;
}

static void probe_hang_up(struct rmx_probe *p)
{
	close(p->fd);
	p->fd = -1;
}

static void probe_connect(struct rmx_probe *p)
{
	/* closing then leaves no TIME_WAIT, and the peer no FIN to read */
	struct linger reset = {.l_onoff = 1};

	p->fd = socket(p->address.ss_family,
		       SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->fd < 0)
		return;
	setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (connect(p->fd, (struct sockaddr *)&p->address, p->len) &&
	    errno != EINPROGRESS)
		probe_hang_up(p);
}

bool rmx_probe_ask(struct rmx_probe *p, int64_t now, int64_t since)
{
	int said = 0;

	if (!p->len || now - since < RMX_PROBE_AFTER)
		return false;
	if (pthread_mutex_trylock(&p->lock))
		return false;
	if (p->since != since) { /* a new wait has begun */
		p->since = since;
		p->next = now;
		p->pause = RMX_PROBE_AFTER;
	}
	if (p->fd < 0 && now >= p->next) {
		probe_connect(p);
		p->next = now + p->pause;
		p->pause = p->pause < RMX_PROBE_MAX / 2 ? 2 * p->pause
							: RMX_PROBE_MAX;
	}
	if (p->fd >= 0) {
		said = probe_answer(p->fd);
		if (said || now >= p->next)
			probe_hang_up(p);
	}
	pthread_mutex_unlock(&p->lock);
	return said == ECONNREFUSED;
}

void rmx_peer_look(struct rmaext_peer *peer)
{
	struct pollfd fd = {.fd = peer->pidfd, .events = POLLIN};

	if (fd.fd >= 0 && !atomic_load(&peer->gone) && poll(&fd, 1, 0) > 0 &&
	    fd.revents & POLLIN)
		atomic_store(&peer->gone, true);
}

int rmx_deadline(struct rmaext_peer *peer, int64_t rank, const char *call,
		 int64_t timeout, int64_t *deadline, bool moved)
{
	int64_t now = rmx_now();

	if (peer)
		rmx_peer_look(peer);
	if (peer && !moved &&
	    rmx_probe_ask(&peer->probe, now, *deadline - timeout))
		atomic_store(&peer->gone, true);
	if (peer && atomic_load(&peer->gone))
		return rmx_fail(-FI_ENOTCONN, rank, call,
				"the target process, or its endpoint, is gone");
	if (moved)
		*deadline = now + timeout;
	if (now < *deadline)
		return RMAEXT_PENDING;
	return rmx_fail(-FI_ETIMEDOUT, rank, call,
			"no progress for %.3g s: target stopped, or its "
			"network is down",
			(double)timeout / 1e9);
}
