/* SPDX-License-Identifier: BSD-3-Clause */
/* A fabric while it is open: who is inside, what it is, and its peers. */
#include "net/endpoint.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int rmx_fabric_enter(struct rmaext_fabric *f, const char *call)
{
	return rmx_rundown_enter(&f->rundown, call, "the fabric is closed");
}

void rmx_fabric_leave(struct rmaext_fabric *f)
{
	rmx_rundown_leave(&f->rundown);
}

void rmaext_fabric_describe(rmaext_fabric *f, struct rmaext_fabric_info *info_p)
{
	memset(info_p, 0, sizeof(*info_p));
	if (rmx_fabric_enter(f, "rmaext_fabric_describe"))
		return;
	snprintf(info_p->provider, sizeof(info_p->provider), "%s",
		 f->limits.provider);
	info_p->mr_iov_limit = f->limits.region_pieces;
	info_p->wait_fd = f->progress.cq_fd >= 0;
	info_p->guarded = rmx_admission_works(&f->admission);
	f->transport->describe(f, info_p);
	rmx_fabric_leave(f);
}

int rmaext_fabric_address(rmaext_fabric *f, void *buf, size_t *len)
{
	int ret = rmx_fabric_enter(f, "rmaext_fabric_address");

	if (ret)
		return ret;
	if (*len < f->address_len)
		ret = rmx_fail(
			-FI_ETOOSMALL, RMX_NO_RANK, "rmaext_fabric_address",
			"room for %zu bytes, %zu needed", *len, f->address_len);
	else
		memcpy(buf, f->address, f->address_len);
	*len = f->address_len;
	rmx_fabric_leave(f);
	return ret;
}

/* A transport reads a whole address, whatever length the peer has sent. */
int rmx_address_check(struct rmaext_fabric *f, const void *address, size_t len)
{
	if ((len == f->address_len || (f->limits.padded && len <= RMX_NAME)) &&
	    (!f->limits.ip ||
	     !memcmp(address, f->address, sizeof(sa_family_t))))
		return 0;
	return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "rmaext_peer_add",
			"a peer's address of %zu bytes is not of the own "
			"endpoint's kind: all ranks need the same provider",
			len);
}

/* The hash is FNV-1a. */
uint64_t rmx_name(const void *address, size_t len)
{
	const unsigned char *p = address;
	uint64_t name = 0xcbf29ce484222325;

	while (len && !p[len - 1])
		len--;
	while (len--)
		name = (name ^ *p++) * 0x100000001b3;
	return name;
}

struct rmaext_peer *rmx_peer_find(struct rmaext_fabric *f, uint64_t name,
				  bool clients)
{
	struct rmaext_peer *found = NULL;

	pthread_mutex_lock(&f->lock);
	for (struct rmaext_peer *p = f->named[name % RMX_NAMES]; p; p = p->same)
		if (p->name == name && (clients || !p->client) &&
		    (!found || atomic_load(&found->gone)))
			found = p;
	pthread_mutex_unlock(&f->lock);
	return found;
}

int rmx_peer_insert(struct rmaext_fabric *f, const void *address, size_t len,
		    int pidfd, struct rmaext_peer *peer)
{
	int ret = rmx_address_check(f, address, len);

	if (ret)
		return ret;
	ret = f->transport->add(f, address, len, &peer->addr);
	if (ret)
		return ret;
	peer->pidfd = pidfd;
	peer->name = rmx_name(address, len);
	rmx_probe_init(&peer->probe, &f->limits, address, len);
	pthread_mutex_lock(&f->lock);
	peer->next = f->peers;
	f->peers = peer;
	peer->same = f->named[peer->name % RMX_NAMES];
	f->named[peer->name % RMX_NAMES] = peer;
	if (peer->client)
		f->clients++;
	else if (++f->ranks_met > f->ranks)
		f->ranks = f->ranks_met;
	pthread_mutex_unlock(&f->lock);
	return 0;
}

void rmx_peer_remove(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	struct rmaext_peer **link = &f->peers;
	struct rmaext_peer **same = &f->named[peer->name % RMX_NAMES];

	pthread_mutex_lock(&f->lock);
	while (*link != peer)
		link = &(*link)->next;
	while (*same != peer)
		same = &(*same)->same;
	*link = peer->next;
	*same = peer->same;
	f->clients--;
	pthread_mutex_unlock(&f->lock);
	f->transport->remove(f, peer->addr);
	rmx_probe_end(&peer->probe);
}
