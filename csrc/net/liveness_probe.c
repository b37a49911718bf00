/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Is there still an endpoint at a peer's address? ofi_rxm does not say: while
 * the peer refuses the connection, each post returns -FI_EAGAIN and begins
 * anew, and an atomic whose answer went with a connection is forgotten
 * (rxm_process_reject and rxm_close_conn, 1.17 to 2.5). So we ask the kernel
 * there, by a TCP connection that carries nothing. Only a refusal means
 * anything: it comes once nobody listens at that address any more. A process
 * that is merely stopped still has its backlog, which accepts.
 */
#define _GNU_SOURCE
#include "net/endpoint.h"
#include "net/quirks.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RMX_PROBE_AFTER ((int64_t)500 * 1000 * 1000) /* ns without progress */
#define RMX_PROBE_MAX ((int64_t)30 * 1000 * 1000 * 1000) /* between two */

void rmx_probe_init(struct rmx_probe *k, const struct fi_info *info,
		    const void *address, size_t len)
{
	pthread_mutex_init(&k->lock, NULL);
	k->fd = -1;
	if (len > sizeof(k->address) ||
	    !rmx_listens_on_tcp(info->fabric_attr->prov_name) ||
	    (info->addr_format != FI_SOCKADDR_IN &&
	     info->addr_format != FI_SOCKADDR_IN6))
		return;
	memcpy(&k->address, address, len);
	k->len = (socklen_t)len;
}

void rmx_probe_end(struct rmx_probe *k)
{
	if (k->fd >= 0)
		close(k->fd);
	pthread_mutex_destroy(&k->lock);
}

/* What became of the connection; 0: nothing yet. */
static int answer(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	socklen_t len = sizeof(int);
	int error = 0;

	if (poll(&p, 1, 0) <= 0)
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len))
		return errno;
	return error ? error : EISCONN;
}

static void hang_up(struct rmx_probe *k)
{
	close(k->fd);
	k->fd = -1;
}

static void begin(struct rmx_probe *k)
{
	/* leaves no TIME_WAIT, and no FIN to be read there */
	struct linger reset = {.l_onoff = 1};

	k->fd = socket(k->address.ss_family,
		       SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (k->fd < 0)
		return;
	setsockopt(k->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (connect(k->fd, (struct sockaddr *)&k->address, k->len) &&
	    errno != EINPROGRESS)
		hang_up(k);
}

/* True: refused. Called every now and then by whoever waits `since` then. */
bool rmx_probe_ask(struct rmx_probe *k, int64_t now, int64_t since)
{
	int said = 0;

	if (!k->len || now - since < RMX_PROBE_AFTER)
		return false;
	if (pthread_mutex_trylock(&k->lock))
		return false;
	if (k->since != since) { /* another wait */
		k->since = since;
		k->next = now;
		k->pause = RMX_PROBE_AFTER;
	}
	if (k->fd < 0 && now >= k->next) {
		begin(k);
		k->next = now + k->pause;
		k->pause = k->pause < RMX_PROBE_MAX / 2 ? 2 * k->pause
							: RMX_PROBE_MAX;
	}
	if (k->fd >= 0) {
		said = answer(k->fd);
		if (said || now >= k->next)
			hang_up(k);
	}
	pthread_mutex_unlock(&k->lock);
	return said == ECONNREFUSED;
}
