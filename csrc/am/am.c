/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Active messages: many operations go in one request, which the target's CQ
 * reader carries out and replies to. This file starts and stops them with the
 * endpoint, and has the memory of the buffers that they are sent from and
 * received into.
 *
 * At the origin, send_queue.c and coalesce.c line up operations, pack.c writes
 * a request, message.c sends it, and replies.c takes its reply. At the target,
 * receive.c posts the receives, dispatch.c decides what becomes of a message
 * that came and sends the replies, and handlers.c carries out a request.
 */
#define _GNU_SOURCE
#include "am/am.h"

#include <errno.h>
#include <sys/mman.h>

static void *buffers_map(size_t len)
{
	void *at = mmap(NULL, len, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, len, MADV_NOHUGEPAGE);
	return at;
}

int rmx_am_start(struct rmaext_fabric *f)
{
	const size_t longest = f->limits.message;
	struct rmx_am *am = f->am;

	pthread_mutex_init(&am->lock, NULL);
	am->queue_end = &am->queue;
	am->early_end = &am->early;
	am->failed_end = &am->failed;
	/* updates of one place must arrive in order */
	am->credits = f->limits.in_order ? RMX_CREDITS : 1;
	am->bulk = longest < RMX_LONGEST ? longest - RMX_HEADERS : RMX_MOST;
	am->name = rmx_name(f->address, f->address_len);
	am->send_buffers = buffers_map(RMX_SEND_BYTES);
	am->receive_buffers =
		buffers_map(RMX_RECEIVE_BUFFERS * sizeof(*am->receive_buffers));
	if (!am->send_buffers || !am->receive_buffers)
		return -errno;
	return rmx_receive_more(f);
}

/* libfabric 1.17 does not close an endpoint that has messages to send. */
bool rmx_am_sends(const struct rmaext_fabric *f)
{
	const struct rmx_am *am = f->am;

	if (rmx_reply_is_deferred(f))
		return true;
	for (unsigned int i = 0; i < am->receives_made; i++)
		if (am->receive_buffers[i].state == RMX_REPLYING)
			return true;
	for (unsigned int i = 0; i < am->sends_made; i++)
		if (am->send_buffers[i].state == RMX_ASKING &&
		    !am->send_buffers[i].sent)
			return true;
	return false;
}

bool rmx_am_receives(const struct rmaext_fabric *f)
{
	return f->am->receiving;
}

void rmx_am_mute(struct rmaext_fabric *f)
{
	if (!f->am->send_buffers)
		return;
	pthread_mutex_lock(&f->am->lock);
	f->am->mute = true;
	pthread_mutex_unlock(&f->am->lock);
}

/*
 * Regions that are bound to the endpoint close before it, but cannot while a
 * receive may write to them.
 */
void rmx_am_cancel(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;

	if (!f->limits.registers || !f->limits.bound)
		return;
	for (unsigned int i = 0; i < am->receives_made; i++)
		if (am->receive_buffers[i].state == RMX_RECEIVING)
			f->transport->cancel(f, &am->receive_buffers[i].call);
	rmx_progress_settle(f, rmx_am_receives);
}

int rmx_am_deregister(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	int ret, first = 0;

	for (size_t i = 0; i < RMX_SEND_BUFFERS / RMX_SEND_REGION; i++) {
		ret = rmx_region_close(f, &am->send_regions[i]);
		first = first ? first : ret;
	}
	for (unsigned int i = 0; i < am->receives_made; i++) {
		ret = rmx_region_close(f, &am->receive_buffers[i].region);
		first = first ? first : ret;
	}
	return first;
}

void rmx_am_stop(struct rmaext_fabric *f, bool stays)
{
	const struct rmaext_error record = {
		.code = -FI_ESHUTDOWN,
		.rank = RMX_NO_RANK,
		.call = "rmaext_fabric_close",
		.detail = "the fabric is closed",
	};
	struct rmx_am *am = f->am;

	if (!am->send_buffers)
		return;
	pthread_mutex_lock(&am->lock);
	rmx_message_fail_all(f, &record);
	if (stays) {
		pthread_mutex_unlock(&am->lock);
		return;
	}
	munmap(am->send_buffers, RMX_SEND_BYTES);
	am->send_buffers = NULL;
	am->sends_made = 0;
	pthread_mutex_unlock(&am->lock);
	while (am->receives_made)
		munmap(am->receive_buffers[--am->receives_made].data,
		       RMX_RECEIVE_BYTES);
	if (am->receive_buffers)
		munmap(am->receive_buffers,
		       RMX_RECEIVE_BUFFERS * sizeof(*am->receive_buffers));
	am->receive_buffers = NULL;
}
