/* SPDX-License-Identifier: BSD-3-Clause */
/* Peers, each with its line of messages. */
#include "am/am.h"

#include <stdlib.h>

/* net/ gives a peer its address, this room its line. */
int rmx_peer_add(struct rmaext_fabric *f, const void *address, size_t len,
		 int pidfd, bool client, struct rmaext_peer **peer_p)
{
	struct rmaext_peer *peer = calloc(1, sizeof(*peer));
	struct rmx_line *line = calloc(1, sizeof(*line));
	int ret;

	if (peer && line) {
		line->queue_end = &line->queue;
		peer->line = line;
		peer->client = client;
		ret = rmx_peer_insert(f, address, len, pidfd, peer);
	} else {
		ret = rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "peer");
	}
	if (ret) {
		free(line);
		free(peer);
		return ret;
	}
	*peer_p = peer;
	return 0;
}

void rmx_client_remove(struct rmaext_fabric *f, struct rmaext_peer *peer)
{
	rmx_peer_remove(f, peer);
	free(peer->line);
	free(peer);
}

int rmaext_peer_add(rmaext_fabric *f, const void *address, size_t len,
		    int pidfd, rmaext_peer **peer_p)
{
	int ret = rmx_fabric_enter(f, "rmaext_peer_add");

	if (ret)
		return ret;
	ret = rmx_admission_add(&f->admission, address, len, 1);
	if (!ret)
		ret = rmx_peer_add(f, address, len, pidfd, false, peer_p);
	rmx_fabric_leave(f);
	return ret;
}
