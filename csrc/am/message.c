/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The origin of messages, whatever is in them: each takes a buffer, and one of
 * its peer's credits until it is answered or given up. What is in it is for
 * others to say: operations (send_queue.c, replies.c), or elements of a batch
 * (batch.c).
 *
 * The lock is the. It is held while a message is handed to the
 * provider, which keeps those to one peer in order.
 */
#include "am/wire.h"

_Static_assert(sizeof(struct rmx_send_buffer) % 4096 == 0,
	       "whole pages, so that few are touched; of larger ones, parts");

/* Where that is demanded, they are registered as they come into use. */
static struct rmx_send_buffer *send_buffer_new(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmx_send_buffer *buffer = &am->send_buffers[am->sends_made];

	if (am->sends_made == RMX_SEND_BUFFERS)
		return NULL;
	if (f->cache.demanded && am->sends_made % RMX_SEND_REGION == 0 &&
	    rmx_region_local(
		    f, buffer, RMX_SEND_REGION * sizeof(*buffer), FI_SEND,
		    &am->send_regions[am->sends_made / RMX_SEND_REGION]))
		return NULL;
	am->sends_made++;
	return buffer;
}

/* lock held; NULL: all are in use */
static struct rmx_send_buffer *send_buffer_take(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmx_send_buffer *buffer = am->free;

	if (buffer)
		am->free = buffer->next;
	else
		buffer = send_buffer_new(f);
	if (!buffer)
		return NULL;
	buffer->state = RMX_ASKING;
	buffer->batch = NULL;
	buffer->op = NULL;
	buffer->sent = buffer->ended = buffer->bulk = buffer->loaned = false;
	buffer->results = 0;
	return buffer;
}

static void send_buffer_free(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	buffer->state = RMX_FREE;
	buffer->generation++;
	buffer->next = am->free;
	am->free = buffer;
}

static void return_credit(struct rmx_send_buffer *buffer)
{
	if (!buffer->peer)
		return;
	buffer->peer->line->requests--;
	buffer->peer->line->bulks -= buffer->bulk;
	buffer->peer = NULL;
	*buffer->prev = buffer->next;
	if (buffer->next)
		buffer->next->prev = buffer->prev;
}

/* No answer is waited for; if the provider still sends it, it stays. */
void rmx_message_free(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	if (!buffer->sent)
		return;
	return_credit(buffer);
	send_buffer_free(am, buffer);
}

/* It was answered, maybe before the provider says that it is sent. */
void rmx_message_done(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	return_credit(buffer);
	if (buffer->sent)
		send_buffer_free(am, buffer);
}

/* NULL: none is free. The lock is held. */
struct rmx_send_buffer *rmx_message_new(struct rmaext_fabric *f,
					struct rmaext_peer *peer,
					const struct rmaext_window *w)
{
	struct rmx_send_buffer *buffer = send_buffer_take(f);
	struct rmx_request_header *q;

	if (!buffer)
		return NULL;
	buffer->peer = peer;
	peer->line->requests++;
	buffer->next = peer->line->send_buffers;
	buffer->prev = &peer->line->send_buffers;
	if (buffer->next)
		buffer->next->prev = &buffer->next;
	peer->line->send_buffers = buffer;
	q = (struct rmx_request_header *)buffer->data;
	*q = (struct rmx_request_header){
		.magic = RMX_REQUEST,
		.id = (uint64_t)buffer->generation << 32 |
		      (uint64_t)(buffer - f->am->send_buffers),
		.name = f->am->name,
		.rank = (uint32_t)w->self,
		.visits = w->visits ? RMX_GUEST : RMX_RANK,
	};
	memcpy(q->token, w->token, sizeof(q->token));
	return buffer;
}

/* It was not sent. The lock is held. */
void rmx_message_drop(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	return_credit(buffer);
	send_buffer_free(am, buffer);
}

static void *desc_of(const struct rmx_am *am,
		     const struct rmx_send_buffer *buffer)
{
	const size_t i = (size_t)(buffer - am->send_buffers) / RMX_SEND_REGION;

	return rmx_region_desc(&am->send_regions[i]);
}

/* After an error the buffer is the caller's, to be dropped. */
int rmx_message_send(struct rmaext_fabric *f, struct rmx_send_buffer *buffer,
		     const struct iovec *iov, size_t count, void *desc)
{
	void *descs[RMX_WIRE_PIECES] = {desc_of(f->am, buffer)};

	for (size_t i = 1; i < count; i++)
		descs[i] = desc;
	return rmx_wire_send(f, iov, descs, count, buffer->peer->addr,
			     &buffer->context);
}
