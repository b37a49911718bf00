/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many operations in one message. The target's CQ reader carries it out and
 * answers. Here it all starts and stops, with the endpoint: the memory of the
 * boxes that messages go from and of the landings that they come in.
 *
 * At the origin, send_queue.c and batch.c say what is in a message, message.c
 * has its box and sends it, replies.c and batch.c see to its answer. At the
 * target, receive.c has the receives, dispatch.c what came in them and the
 * replies, and handlers.c carries it out.
 */
#define _GNU_SOURCE
#include "am/am.h"
#include "net/quirks.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Of the rooms below a peer has an address, here a line. */
int rmx_peer_add(struct rmaext_fabric *f, const void *address, size_t len,
		 int pidfd, struct rmaext_peer **peer_p)
{
	struct rmaext_peer *peer = calloc(1, sizeof(*peer));
	struct rmx_line *line = calloc(1, sizeof(*line));
	int ret;

	if (peer && line) {
		line->queue_end = &line->queue;
		peer->line = line;
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

int rmaext_peer_add(rmaext_fabric *f, const void *address, size_t len,
		    int pidfd, rmaext_peer **peer_p)
{
	int ret = rmx_fabric_enter(f, "rmaext_peer_add");

	if (ret)
		return ret;
	ret = rmx_peer_add(f, address, len, pidfd, peer_p);
	rmx_fabric_leave(f);
	return ret;
}

static void *map(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, len, MADV_NOHUGEPAGE);
	return at;
}

int rmx_executor_start(struct rmaext_fabric *f)
{
	const uint64_t order =
		f->info->tx_attr->msg_order & f->info->rx_attr->msg_order;
	const size_t longest = f->info->ep_attr->max_msg_size;
	struct rmx_executor *ex = f->executor;
	char own[RMX_NAME];
	size_t len = sizeof(own);
	int ret;

	pthread_mutex_init(&ex->lock, NULL);
	ex->queue_end = &ex->queue;
	ex->early_end = &ex->early;
	ex->failed_end = &ex->failed;
	/* updates of one place are to arrive in order */
	ex->credits = order & FI_ORDER_SAS ? RMX_CREDITS : 1;
	ex->bulk = longest < RMX_LONGEST ? longest - RMX_HEADERS : RMX_MOST;
	ex->iov = f->info->tx_attr->iov_limit;
	ret = fi_getname(&f->ep->fid, own, &len);
	if (ret)
		return ret;
	ex->name = rmx_name(own, len);
	ex->tagged = rmx_has_rails(f->info->fabric_attr->prov_name);
	if (ex->tagged) {
		ex->credits = 1;
		ex->bulk = RMX_MESSAGE - RMX_HEADERS;
	}
	ex->boxes = map(RMX_BOXES_SIZE);
	ex->landings = map(RMX_LANDINGS * sizeof(*ex->landings));
	if (!ex->boxes || !ex->landings)
		return -errno;
	return rmx_receive_more(f);
}

/* Has the provider messages to send? 1.17 does not close while it does. */
bool rmx_executor_sends(const struct rmaext_fabric *f)
{
	const struct rmx_executor *ex = f->executor;

	if (rmx_executor_owes(f))
		return true;
	for (unsigned int i = 0; i < ex->landed; i++)
		if (ex->landings[i].state == RMX_REPLYING)
			return true;
	for (unsigned int i = 0; i < ex->made; i++)
		if (ex->boxes[i].state == RMX_ASKING && !ex->boxes[i].sent)
			return true;
	return false;
}

bool rmx_executor_receives(const struct rmaext_fabric *f)
{
	return f->executor->receiving;
}

void rmx_executor_mute(struct rmaext_fabric *f)
{
	if (!f->executor->boxes)
		return;
	pthread_mutex_lock(&f->executor->lock);
	f->executor->mute = true;
	pthread_mutex_unlock(&f->executor->lock);
}

/*
 * Regions that are bound to the endpoint close before it, and are in use while
 * they may be received into.
 */
void rmx_executor_cancel(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;

	if (!f->origins.demanded || !(f->mr_mode & FI_MR_ENDPOINT))
		return;
	for (unsigned int i = 0; i < ex->landed; i++)
		if (ex->landings[i].state == RMX_RECEIVING)
			fi_cancel(&f->ep->fid, &ex->landings[i].context);
	rmx_progress_settle(f, rmx_executor_receives);
}

int rmx_executor_deregister(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	int ret, first = 0;

	for (size_t i = 0; i < RMX_BOXES / RMX_BOX_CHUNK; i++) {
		ret = rmx_region_close(f, &ex->box_regions[i]);
		first = first ? first : ret;
	}
	for (unsigned int i = 0; i < ex->landed; i++) {
		ret = rmx_region_close(f, &ex->landings[i].region);
		first = first ? first : ret;
	}
	return first;
}

/*
 * No call is inside, and the endpoint is closed, or stays with what it may
 * still write to.
 */
void rmx_executor_stop(struct rmaext_fabric *f, bool stays)
{
	const struct rmaext_error record = {
		.code = -FI_ESHUTDOWN,
		.rank = RMX_NO_RANK,
		.call = "rmaext_fabric_close",
		.detail = "the fabric is closed",
	};
	struct rmx_executor *ex = f->executor;

	if (!ex->boxes)
		return;
	pthread_mutex_lock(&ex->lock);
	rmx_message_fail_all(f, &record);
	if (stays) {
		pthread_mutex_unlock(&ex->lock);
		return;
	}
	munmap(ex->boxes, RMX_BOXES_SIZE);
	ex->boxes = NULL;
	ex->made = 0;
	pthread_mutex_unlock(&ex->lock);
	while (ex->landed)
		munmap(ex->landings[--ex->landed].data, RMX_LANDING);
	if (ex->landings)
		munmap(ex->landings, RMX_LANDINGS * sizeof(*ex->landings));
	ex->landings = NULL;
}
