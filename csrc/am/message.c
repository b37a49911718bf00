/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The origin of messages, whatever is in them: each takes a box, and one of its
 * peer's credits until it is answered or given up. What is in it is for others
 * to say: operations (send_queue.c, replies.c), or elements of a batch
 * (batch.c).
 *
 * The lock is the executor's. It is held while a message is handed to the
 * provider, which keeps those to one peer in order.
 */
#include "am/wire.h"

_Static_assert(sizeof(struct rmx_box) % 4096 == 0,
	       "whole pages, so that few are touched; of larger ones, parts");

/* Where that is demanded, they are registered as they come into use. */
static struct rmx_box *box_new(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	struct rmx_box *box = &ex->boxes[ex->made];

	if (ex->made == RMX_BOXES)
		return NULL;
	if (f->origins.demanded && ex->made % RMX_BOX_CHUNK == 0 &&
	    rmx_region_local(f, box, RMX_BOX_CHUNK * sizeof(*box), FI_SEND,
			     &ex->box_regions[ex->made / RMX_BOX_CHUNK]))
		return NULL;
	ex->made++;
	return box;
}

/* lock held; NULL: all are in use */
static struct rmx_box *box_take(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	struct rmx_box *box = ex->free;

	if (box)
		ex->free = box->next;
	else
		box = box_new(f);
	if (!box)
		return NULL;
	box->state = RMX_ASKING;
	box->batch = NULL;
	box->op = NULL;
	box->sent = box->ended = box->bulk = box->loaned = false;
	box->results = 0;
	return box;
}

static void box_free(struct rmx_executor *ex, struct rmx_box *box)
{
	box->state = RMX_FREE;
	box->generation++;
	box->next = ex->free;
	ex->free = box;
}

static void return_credit(struct rmx_box *box)
{
	if (!box->peer)
		return;
	box->peer->line->requests--;
	box->peer->line->bulks -= box->bulk;
	box->peer = NULL;
	*box->prev = box->next;
	if (box->next)
		box->next->prev = box->prev;
}

/* No answer is waited for; if the provider still sends it, it stays. */
void rmx_message_free(struct rmx_executor *ex, struct rmx_box *box)
{
	if (!box->sent)
		return;
	return_credit(box);
	box_free(ex, box);
}

/* It was answered, maybe before the provider says that it is sent. */
void rmx_message_done(struct rmx_executor *ex, struct rmx_box *box)
{
	return_credit(box);
	if (box->sent)
		box_free(ex, box);
}

/* NULL: none is free. The lock is held. */
struct rmx_box *rmx_message_new(struct rmaext_fabric *f,
				struct rmaext_peer *peer,
				const struct rmaext_window *w)
{
	struct rmx_box *box = box_take(f);
	struct rmx_request *q;

	if (!box)
		return NULL;
	box->peer = peer;
	peer->line->requests++;
	box->next = peer->line->boxes;
	box->prev = &peer->line->boxes;
	if (box->next)
		box->next->prev = &box->next;
	peer->line->boxes = box;
	q = (struct rmx_request *)box->data;
	*q = (struct rmx_request){
		.magic = RMX_REQUEST,
		.id = (uint64_t)box->generation << 32 |
		      (uint64_t)(box - f->executor->boxes),
		.name = f->executor->name,
		.rank = (uint32_t)w->self,
		.visits = w->visits ? RMX_GUEST : RMX_RANK,
	};
	memcpy(q->token, w->token, sizeof(q->token));
	return box;
}

/* It was not sent. The lock is held. */
void rmx_message_drop(struct rmx_executor *ex, struct rmx_box *box)
{
	return_credit(box);
	box_free(ex, box);
}

static void *desc_of(const struct rmx_executor *ex, const struct rmx_box *box)
{
	const size_t i = (size_t)(box - ex->boxes) / RMX_BOX_CHUNK;

	return rmx_region_desc(&ex->box_regions[i]);
}

/* After an error the box is the caller's, to be dropped. */
int rmx_message_send(struct rmaext_fabric *f, struct rmx_box *box,
		     const struct iovec *iov, size_t count, void *desc)
{
	void *descs[RMX_WIRE_PIECES] = {desc_of(f->executor, box)};

	for (size_t i = 1; i < count; i++)
		descs[i] = desc;
	return rmx_wire_send(f, iov, descs, count, box->peer->addr,
			     &box->context);
}
