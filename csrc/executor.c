/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Many operations in one message. The target's CQ reader carries it out and
 * answers. Here are the messages' comings and goings; serve.c is the target's
 * side, request.c the origin's.
 *
 * No receive ever waits for a peer: a reply that the provider does not take is
 * queued and tried again, and a peer can have no more of them than it has
 * requests on their way.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define RMX_RECEIVES 4u /* posted at all times */
#define RMX_CREDITS 4u	/* requests to a peer, without an answer */
#define RMX_EARLY_MAX ((int64_t)10 * 1000 * 1000 * 1000)
#define RMX_TRIES 16u /* of queued boxes at a time */

/* FNV-1a: an endpoint's address in eight bytes; no secret */
uint64_t rmx_name(const void *address, size_t len)
{
	const unsigned char *p = address;
	uint64_t name = 0xcbf29ce484222325;

	while (len--)
		name = (name ^ *p++) * 0x100000001b3;
	return name;
}

/* -- boxes */

bool rmx_executor_owns(const struct rmaext_fabric *f, const void *context)
{
	uintptr_t first = (uintptr_t)f->executor.boxes;

	return first && (uintptr_t)context >= first &&
	       (uintptr_t)context < first + RMX_BOXES * sizeof(struct rmx_box);
}

/* lock held; NULL: all are in use */
struct rmx_box *rmx_box_take(struct rmx_executor *ex, enum rmx_box_state state)
{
	struct rmx_box *box = ex->free;

	if (box)
		ex->free = box->next;
	else if (ex->made < RMX_BOXES)
		box = &ex->boxes[ex->made++];
	else
		return NULL;
	box->state = (uint8_t)state;
	return box;
}

void rmx_box_free(struct rmx_executor *ex, struct rmx_box *box)
{
	box->state = RMX_FREE;
	box->generation++;
	box->batch = NULL;
	box->next = ex->free;
	ex->free = box;
}

static void enqueue(struct rmx_executor *ex, struct rmx_box *box,
		    enum rmx_box_state state)
{
	box->state = (uint8_t)state;
	box->next = NULL;
	*ex->queue_end = box;
	ex->queue_end = &box->next;
	ex->queued++;
}

static int box_receive(struct rmaext_fabric *f, struct rmx_box *box)
{
	struct rmx_executor *ex = &f->executor;
	int ret;

	box->state = RMX_RECEIVING;
	ex->receiving++;
	ret = (int)fi_recv(f->ep, box->data, RMX_MESSAGE, NULL, FI_ADDR_UNSPEC,
			   &box->context);
	if (!ret)
		return 0;
	if (ret == -FI_EAGAIN) { /* as good as posted */
		enqueue(ex, box, RMX_RECEIVING);
		return 0;
	}
	ex->receiving--;
	ex->incoming--;
	pthread_mutex_lock(&ex->lock);
	rmx_box_free(ex, box);
	pthread_mutex_unlock(&ex->lock);
	return ret;
}

/*
 * Some receives are posted from the start, more when the replies to a peer that
 * is slow take them up.
 */
static int receive_more(struct rmaext_fabric *f)
{
	const unsigned int most = 2 * RMX_CREDITS * (f->peer_count + 1);
	struct rmx_executor *ex = &f->executor;
	struct rmx_box *box;
	int ret = 0;

	while (!ret && ex->receiving < RMX_RECEIVES && ex->incoming < most &&
	       ex->incoming < RMX_BOXES / 2) {
		pthread_mutex_lock(&ex->lock);
		box = rmx_box_take(ex, RMX_RECEIVING);
		pthread_mutex_unlock(&ex->lock);
		if (!box)
			break;
		ex->incoming++;
		ret = box_receive(f, box);
	}
	return ret;
}

int rmx_executor_start(struct rmaext_fabric *f)
{
	const uint64_t order =
		f->info->tx_attr->msg_order & f->info->rx_attr->msg_order;
	struct rmx_executor *ex = &f->executor;
	char own[256];
	size_t len = sizeof(own);
	void *boxes;
	int ret;

	pthread_mutex_init(&ex->lock, NULL);
	ex->queue_end = &ex->queue;
	/* puts to one place are to arrive in order */
	ex->credits = order & FI_ORDER_SAS ? RMX_CREDITS : 1;
	ret = fi_getname(&f->ep->fid, own, &len);
	if (ret)
		return ret;
	ex->name = rmx_name(own, len);
	boxes = mmap(NULL, RMX_BOXES * sizeof(struct rmx_box),
		     PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (boxes == MAP_FAILED)
		return -errno;
	madvise(boxes, RMX_BOXES * sizeof(struct rmx_box), MADV_NOHUGEPAGE);
	ex->boxes = boxes;
	return receive_more(f);
}

/* The endpoint is closed, and no call is inside. */
void rmx_executor_stop(struct rmaext_fabric *f)
{
	const struct rmaext_error record = {
		.code = -FI_ESHUTDOWN,
		.rank = RMX_NO_RANK,
		.call = "rmaext_fabric_close",
		.detail = "the fabric is closed",
	};
	struct rmx_executor *ex = &f->executor;

	if (!ex->boxes)
		return;
	pthread_mutex_lock(&ex->lock);
	for (unsigned int i = 0; i < ex->made; i++)
		if (ex->boxes[i].batch)
			rmx_batch_fail(&ex->boxes[i], &record);
	munmap(ex->boxes, RMX_BOXES * sizeof(struct rmx_box));
	ex->boxes = NULL;
	ex->made = 0;
	pthread_mutex_unlock(&ex->lock);
}

/* -- target */

static void send_reply(struct rmaext_fabric *f, struct rmx_box *box)
{
	const bool brief = box->reply_len <= f->info->tx_attr->inject_size;
	const char *reply = box->data + box->reply;
	int ret = -FI_ENOTCONN;

	if (!atomic_load(&box->peer->gone)) {
		box->state = RMX_REPLYING;
		ret = brief ? (int)fi_inject(f->ep, reply, box->reply_len,
					     box->peer->addr)
			    : (int)fi_send(f->ep, reply, box->reply_len, NULL,
					   box->peer->addr, &box->context);
	}
	if (ret == -FI_EAGAIN)
		enqueue(&f->executor, box, RMX_WAITING);
	else if (ret || brief) /* lost: the origin will notice by itself */
		box_receive(f, box);
}

static bool same_window(const struct rmx_box *a, const struct rmx_box *b)
{
	const size_t at = offsetof(struct rmx_request, token);

	return !memcmp(a->data + at, b->data + at, RMX_TOKEN);
}

/*
 * Those that wait for a window, in their order. One that is behind another of
 * its kind is not tried: the window may come between the two.
 */
static void request_next(struct rmaext_fabric *f, struct rmx_box *box)
{
	struct rmx_executor *ex = &f->executor;
	struct rmx_box **end = &ex->early;
	const bool may_wait = ex->early_count < RMX_CREDITS * f->peer_count &&
			      rmx_now() < (int64_t)box->part;
	enum rmx_served served = RMX_LATER;

	while (*end && !(may_wait && same_window(*end, box)))
		end = &(*end)->next;
	if (!*end)
		served = rmx_serve(f, box, box->first, may_wait);
	switch (served) {
	case RMX_LATER:
		while (*end)
			end = &(*end)->next;
		box->state = RMX_EARLY;
		box->next = NULL;
		*end = box;
		ex->early_count++;
		break;
	case RMX_ANSWER:
		send_reply(f, box);
		break;
	case RMX_NOTHING:
		box_receive(f, box);
		break;
	}
}

/* Each in turn, so that one peer that takes nothing holds nobody up. */
void rmx_executor_retry(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = &f->executor;
	unsigned int tries = ex->queued < RMX_TRIES ? ex->queued : RMX_TRIES;
	struct rmx_box *box = ex->early, *next;

	ex->early = NULL;
	ex->early_count = 0;
	for (; box; box = next) {
		next = box->next;
		request_next(f, box);
	}
	while (tries--) {
		box = ex->queue;
		ex->queue = box->next;
		if (!ex->queue)
			ex->queue_end = &ex->queue;
		ex->queued--;
		if (box->state == RMX_WAITING) {
			send_reply(f, box);
		} else {
			ex->receiving--;
			box_receive(f, box);
		}
	}
}

/* -- completions */

void rmx_executor_complete(struct rmaext_fabric *f, void *context, size_t len,
			   const struct rmaext_error *failure)
{
	struct rmx_executor *ex = &f->executor;
	const size_t at = (size_t)((char *)context - (char *)ex->boxes);
	struct rmx_box *box = context;
	uint32_t magic = 0;

	if (at % sizeof(*box))
		return; /* none of ours */
	switch (box->state) {
	case RMX_ASKING:
		rmx_request_sent(f, box, failure);
		return;
	case RMX_REPLYING: /* or failed: the origin will notice by itself */
		box_receive(f, box);
		break;
	case RMX_RECEIVING:
		ex->receiving--;
		if (!failure && len >= sizeof(magic) && len <= RMX_MESSAGE)
			memcpy(&magic, box->data, sizeof(magic));
		if (magic == RMX_REQUEST) {
			box->first = (uint32_t)len;
			box->part = (uint64_t)(rmx_now() + RMX_EARLY_MAX);
			request_next(f, box);
			break;
		}
		if (magic == RMX_REPLY)
			rmx_request_answered(f, box->data, len);
		box_receive(f, box);
		break;
	}
	receive_more(f);
}
