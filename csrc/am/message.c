/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The send buffers of requests. Each request takes a buffer, and one of its
 * peer's credits until it is answered or given up. pack.c writes what is in it.
 *
 * am->lock is held while operations are handed to the provider, so that those
 * to one peer stay in order.
 */
#include "am/am.h"

_Static_assert(sizeof(struct rmx_send_buffer) % 4096 == 0,
	       "a buffer is whole pages of 4 KiB, so that few are touched");

/* Where it is demanded, buffers are registered as they come into use. */
static struct rmx_send_buffer *send_buffer_new(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmx_send_buffer *buffer = &am->send_buffers[am->sends_made];

	if (am->sends_made == RMX_SEND_BUFFERS)
		return NULL;
	if (f->limits.registers && am->sends_made % RMX_SEND_REGION == 0 &&
	    rmx_region_local(
		    f, buffer, RMX_SEND_REGION * sizeof(*buffer), RMX_SOURCE,
		    &am->send_regions[am->sends_made / RMX_SEND_REGION]))
		return NULL;
	am->sends_made++;
	return buffer;
}

/* NULL: all are in use. The caller holds am->lock. */
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
	buffer->op = NULL;
	buffer->sent = buffer->ended = buffer->loaned = false;
	buffer->shared = buffer->bulk = false;
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

static void credit_return(struct rmx_send_buffer *buffer)
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

void rmx_message_free(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	if (buffer->sent)
		rmx_message_drop(am, buffer);
}

void rmx_message_done(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	credit_return(buffer);
	if (buffer->sent)
		send_buffer_free(am, buffer);
}

static struct rmx_send_buffer *message_new(struct rmaext_fabric *f,
					   struct rmaext_peer *peer,
					   const struct rmaext_window *w)
{
	struct rmx_send_buffer *buffer = send_buffer_take(f);

	if (!buffer)
		return NULL;
	buffer->peer = peer;
	peer->line->requests++;
	buffer->next = peer->line->send_buffers;
	buffer->prev = &peer->line->send_buffers;
	if (buffer->next)
		buffer->next->prev = &buffer->next;
	peer->line->send_buffers = buffer;
	buffer->request = (struct rmx_request_header){
		.magic = RMX_REQUEST,
		.id = (uint64_t)buffer->generation << 32 |
		      (uint64_t)(buffer - f->am->send_buffers),
		.name = f->am->name,
		.rank = (uint32_t)w->self,
		.sender = w->is_client ? RMX_CLIENT : RMX_RANK,
	};
	memcpy(buffer->request.token, w->token, sizeof(w->token));
	return buffer;
}

/* Nobody awaits an answer: the buffer is free once it was sent. */
static void introduction_send(struct rmaext_fabric *f, struct rmaext_peer *peer,
			      const struct rmaext_window *w)
{
	struct rmx_send_buffer *buffer = message_new(f, peer, w);
	struct iovec all;

	if (!buffer)
		return;
	buffer->request.sender = RMX_INTRODUCTION_ALONE;
	all = (struct iovec){buffer->data, sizeof(buffer->request)};
	all.iov_len +=
		rmx_introduction_write(w, peer, buffer->data + all.iov_len);
	if (rmx_message_send(f, buffer, &all, 1, NULL))
		rmx_message_drop(f->am, buffer);
}

struct rmx_send_buffer *rmx_message_new(struct rmaext_fabric *f,
					struct rmaext_peer *peer,
					const struct rmaext_window *w)
{
	if (rmx_introduction_due(w, peer))
		introduction_send(f, peer, w);
	return message_new(f, peer, w);
}

void rmx_message_drop(struct rmx_am *am, struct rmx_send_buffer *buffer)
{
	credit_return(buffer);
	send_buffer_free(am, buffer);
}

static void *send_buffer_desc(const struct rmx_am *am,
			      const struct rmx_send_buffer *buffer)
{
	const size_t i = (size_t)(buffer - am->send_buffers) / RMX_SEND_REGION;

	return am->send_regions[i].desc;
}

int rmx_message_send(struct rmaext_fabric *f, struct rmx_send_buffer *buffer,
		     const struct iovec *iov, size_t count, void *desc)
{
	void *descs[RMX_MESSAGE_PIECES] = {send_buffer_desc(f->am, buffer)};

	for (size_t i = 1; i < count; i++)
		descs[i] = desc;
	return f->transport->send(f, buffer->peer->addr, iov, descs, count,
				  &buffer->call);
}
