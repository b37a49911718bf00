/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What becomes of requests, and of the operations in them: they are sent,
 * answered, or fail; their owner gives them up, nobody waits for them any more,
 * or the endpoint closes.
 *
 * am->lock is held wherever an operation or a send buffer is changed.
 */
#include "am/pack.h"

#include <errno.h>
#include <stdio.h>

/* -- answers */

static const char *op_call_name(const struct rmx_op *op)
{
	return op->kind == RMAEXT_UPDATE ? "update"
	       : op->kind == RMAEXT_GET	 ? "get"
					 : "put";
}

static void ops_end(struct rmx_send_buffer *buffer,
		    const struct rmaext_error *failure)
{
	struct rmx_op *op = buffer->op, *next;

	/* the provider still reads the values: rmx_message_sent() ends it */
	if (buffer->loaned && !buffer->sent) {
		if (failure)
			rmx_op_failed(op, failure);
		buffer->ended = true;
		return;
	}
	buffer->op = NULL;
	for (; op; op = next) {
		/* op->next of an operation in parts may link the line */
		next = buffer->shared ? NULL : op->next;
		op->flying--;
		if (failure)
			rmx_op_failed(op, failure);
		if (atomic_load(&op->error))
			rmx_op_unqueue(op); /* its rest is not sent */
		rmx_op_settle(op);
	}
}

struct rmaext_error rmx_refusal(const struct rmaext_window *w, const char *call,
				int status)
{
	struct rmaext_error record = {
		.code = status < 0 && status > -4096 ? status : -FI_EIO,
	};

	snprintf(record.call, sizeof(record.call), "%s", call);
	snprintf(record.detail, sizeof(record.detail), "%s",
		 status == -FI_ESHUTDOWN ? rmx_closed_there(w)
		 : status == -FI_EBUSY	 ? "the owner has no place for another "
					   "client: try again later"
		 : status == -EREMOTEIO	 ? "the device that has the memory "
					   "there fails, or the array was "
					   "freed: keep it while the "
					   "window is open; or copies that "
					   "were given up go on there: try "
					   "again later"
					 : "the target refuses the operation");
	return record;
}

static bool ops_answer(struct rmx_send_buffer *buffer,
		       const struct rmx_reply_header *reply, const char *values,
		       size_t len)
{
	const struct rmaext_window *w = buffer->op->window;
	struct rmaext_error record;

	if (!rmx_same_token(reply->token, w->token))
		return false;
	if (reply->status || len != buffer->results) {
		record =
			rmx_refusal(w, op_call_name(buffer->op), reply->status);
		ops_end(buffer, &record);
		return true;
	}
	if (len)
		rmx_unpack(buffer, values);
	ops_end(buffer, NULL);
	return true;
}

/* The provider is done with a message, or has lost it. */
static void message_sent(struct rmaext_fabric *f,
			 struct rmx_send_buffer *buffer,
			 const struct rmaext_error *failure)
{
	struct rmaext_peer *peer = buffer->peer;

	buffer->sent = true;
	if (failure && buffer->op)
		atomic_fetch_add(&f->failed, 1);
	if (buffer->op && (failure || buffer->ended))
		ops_end(buffer, buffer->ended ? NULL : failure);
	if (!buffer->op) { /* answered, given up or failed */
		rmx_message_free(f->am, buffer);
		if (peer)
			rmx_message_pump(f, peer);
	}
}

void rmx_message_sent(struct rmaext_fabric *f, struct rmx_send_buffer *buffer,
		      const struct rmaext_error *failure)
{
	pthread_mutex_lock(&f->am->lock);
	message_sent(f, buffer, failure);
	pthread_mutex_unlock(&f->am->lock);
}

void rmx_messages_lost(struct rmaext_fabric *f)
{
	struct rmaext_error failure = {.rank = RMX_NO_RANK};
	struct rmx_am *am = f->am;

	pthread_mutex_lock(&am->lock);
	for (unsigned int i = 0; i < am->sends_made; i++) {
		struct rmx_send_buffer *buffer = &am->send_buffers[i];

		if (buffer->state == RMX_ASKING && buffer->sent && buffer->op &&
		    f->transport->lost(f, &buffer->call, &failure))
			message_sent(f, buffer, &failure);
	}
	pthread_mutex_unlock(&am->lock);
}

void rmx_message_answered(struct rmaext_fabric *f, const char *data, size_t len)
{
	struct rmx_am *am = f->am;
	struct rmaext_peer *peer;
	struct rmx_reply_header reply;
	struct rmx_send_buffer *buffer;
	bool ours;

	if (len < sizeof(reply))
		return;
	memcpy(&reply, data, sizeof(reply));
	data += sizeof(reply);
	len -= sizeof(reply);
	if ((uint32_t)reply.id >= RMX_SEND_BUFFERS)
		return;
	buffer = &am->send_buffers[(uint32_t)reply.id];
	pthread_mutex_lock(&am->lock);
	peer = buffer->peer;
	ours = peer && buffer->state == RMX_ASKING && buffer->op &&
	       buffer->generation == reply.id >> 32;
	if (ours && ops_answer(buffer, &reply, data, len)) {
		atomic_fetch_add(&f->completed, 1);
		atomic_fetch_add(&peer->answers, 1);
		rmx_message_done(am, buffer);
		rmx_message_pump(f, peer);
	}
	pthread_mutex_unlock(&am->lock);
}

/* -- giving up: nobody waits for a reply any more */

/* Takes an operation out of a buffer, at the latest once it is sent. */
static void buffer_take_out(struct rmx_am *am, struct rmx_send_buffer *buffer,
			    struct rmx_op *op)
{
	struct rmx_op **link = &buffer->op;

	if (buffer->shared && buffer->op != op)
		return; /* op->next of one in parts may link the line */
	while (*link && *link != op)
		link = &(*link)->next;
	if (!*link)
		return;
	if (buffer->loaned && !buffer->sent) {
		buffer->ended = true; /* rmx_message_sent() ends it */
		return;
	}
	*link = buffer->shared ? NULL : op->next;
	op->flying--;
	if (!buffer->op)
		rmx_message_free(am, buffer);
}

/* A late reply finds another generation, or not the operation. */
static void op_give_up(struct rmaext_fabric *f, struct rmx_op *op)
{
	struct rmaext_peer *peer =
		op->target->member->peer; /* op may be freed */
	struct rmx_send_buffer *next;

	rmx_op_unqueue(op);
	for (struct rmx_send_buffer *buffer = peer->line->send_buffers;
	     buffer && op->flying; buffer = next) {
		next = buffer->next;
		buffer_take_out(f->am, buffer, op);
	}
	rmx_op_settle(op);
	rmx_message_pump(f, peer);
}

void rmx_message_give_up(struct rmx_op *op)
{
	struct rmaext_fabric *f = op->fabric;
	struct rmx_op *note;

	pthread_mutex_lock(&f->am->lock);
	note = atomic_load(&op->note);
	if (note)
		op_give_up(f, note);
	else if (op->is_message && !atomic_load(&op->completed))
		op_give_up(f, op);
	pthread_mutex_unlock(&f->am->lock);
}

/* The first operation in a list that nobody owns, from w to `target`. */
static struct rmx_op *list_find_unowned(struct rmx_op *op, bool shared,
					const struct rmaext_window *w,
					const struct rmx_target *target)
{
	while (op &&
	       !(rmx_is_nobodys(op) && op->window == w && op->target == target))
		op = shared ? NULL : op->next;
	return op;
}

/*
 * The first such operation that was sent. It is asked for anew after each:
 * what is sent from the line meanwhile may use the same buffer.
 */
static struct rmx_op *sent_find_unowned(const struct rmaext_peer *peer,
					const struct rmaext_window *w,
					const struct rmx_target *target)
{
	struct rmx_op *op = NULL;

	for (const struct rmx_send_buffer *buffer = peer->line->send_buffers;
	     buffer && !op; buffer = buffer->next)
		if (!(buffer->loaned && !buffer->sent))
			op = list_find_unowned(buffer->op, buffer->shared, w,
					       target);
	return op;
}

static void target_forget(struct rmaext_fabric *f, struct rmaext_window *w,
			  struct rmx_target *target)
{
	struct rmaext_peer *peer = target->member->peer;
	struct rmx_op *op;

	while (peer &&
	       ((op = list_find_unowned(peer->line->queue, false, w, target)) ||
		(op = sent_find_unowned(peer, w, target))))
		op_give_up(f, op);
}

void rmx_message_forget(struct rmaext_window *w, int64_t rank)
{
	const int64_t end = rank < 0 ? w->count : rank + 1;
	struct rmaext_fabric *f = w->fabric;

	pthread_mutex_lock(&f->am->lock);
	for (int64_t k = rank < 0 ? 0 : rank; k < end; k++)
		if (rmx_filled(&w->targets[k])) /* else never used */
			target_forget(f, w, &w->targets[k]);
	pthread_mutex_unlock(&f->am->lock);
}

void rmx_message_fail_all(struct rmaext_fabric *f,
			  const struct rmaext_error *record)
{
	struct rmx_am *am = f->am;
	struct rmx_op *op;

	for (unsigned int i = 0; i < am->sends_made; i++) {
		struct rmx_send_buffer *buffer = &am->send_buffers[i];

		buffer->sent = true; /* the endpoint is gone */
		if (buffer->op)
			ops_end(buffer, record);
	}
	for (struct rmaext_peer *peer = f->peers; peer; peer = peer->next) {
		while ((op = peer->line->queue)) {
			rmx_op_failed(op, record);
			rmx_op_unqueue(op);
			rmx_op_settle(op);
		}
		peer->line->send_buffers = NULL; /* they are freed next */
	}
}
