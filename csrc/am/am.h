/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Active messages: who sends, serves and answers them. message.h explains the
 * words.
 */
#ifndef RMAEXT_AM_H
#define RMAEXT_AM_H

#include "am/message.h"
#include "xfer/operation.h"

/*
 * peers.c: a peer for an address, with its line of messages. Any thread inside
 * the fabric may call it, but for a client, which the CQ's reader adds; and
 * removes, when nothing is on its way to it. The fabric owns the peer. Returns
 * 0 or -fi_errno with a record. pidfd is as in rmaext_peer_add().
 */
int rmx_peer_add(struct rmaext_fabric *fabric, const void *address, size_t len,
		 int pidfd, bool client, struct rmaext_peer **peer_p);
void rmx_client_remove(struct rmaext_fabric *fabric, struct rmaext_peer *peer);
/*
 * am.c: rmaext_fabric_open() and _close() call the next five, with no other
 * thread inside the fabric. start returns 0 or -fi_errno without a record.
 * Closing mutes, so that nothing is sent any more while owners may still give
 * up; cancels, where the endpoint's regions must close before it; closes the
 * regions (0, or the first code of fi_close(); it may be called again); and
 * stops, which fails all that is not answered. stays: the endpoint is not
 * closed, and keeps the memory that it may still write to.
 */
int rmx_am_start(struct rmaext_fabric *fabric);
void rmx_am_mute(struct rmaext_fabric *fabric);
void rmx_am_cancel(struct rmaext_fabric *fabric);
int rmx_am_deregister(struct rmaext_fabric *fabric);
void rmx_am_stop(struct rmaext_fabric *fabric, bool stays);
/* Are receives posted; does the provider send? Asked while it closes. */
bool rmx_am_receives(const struct rmaext_fabric *fabric);
bool rmx_am_sends(const struct rmaext_fabric *fabric);
/* Any thread may ask; the answer may be out of date. */
static inline bool rmx_reply_is_deferred(const struct rmaext_fabric *fabric)
{
	return atomic_load_explicit(&fabric->am->deferred_to,
				    memory_order_relaxed);
}

/* What a message has of an operation, and so of an item. */
struct rmx_share {
	uint64_t values;       /* bytes of each operand, and of the results */
	unsigned int operands; /* with those to compare with */
	bool results;	       /* the reply has some */
};

/* kind and op may be any numbers. */
static inline struct rmx_share rmx_share_of(int kind, int op, bool fetches,
					    uint64_t values)
{
	return (struct rmx_share){
		.values = values,
		.operands = kind == RMAEXT_GET	    ? 0
			    : kind != RMAEXT_UPDATE ? 1
			    : op == RMAEXT_NO_OP    ? 0
			    : op == RMAEXT_CSWAP    ? 2
						    : 1,
		.results = fetches,
	};
}

/*
 * The target's side: receive.c, dispatch.c, handlers.c, items.c and the
 * owner's half of client.c run in the CQ's reader only. A receive buffer is the
 * provider's while it receives or replies, else theirs.
 */

/*
 * receive.c: post more receives, if few are posted. Returns 0 if any is, else
 * -fi_errno without a record. rmaext_fabric_open() calls it too.
 */
int rmx_receive_more(struct rmaext_fabric *fabric);
/*
 * Receives into the buffer again, whose message nobody needs any more; or
 * queues it, or leaves it free if the fabric is mute. Else -fi_errno.
 */
int rmx_receive_post(struct rmaext_fabric *fabric,
		     struct rmx_receive_buffer *message);
/* A receive failed: the buffer is the last to be used again. */
void rmx_receive_failed(struct rmx_am *am, struct rmx_receive_buffer *message);
/*
 * The provider has lost a receive, and does not say which: its buffer is used
 * no more, and another is posted.
 */
void rmx_receive_lost(struct rmaext_fabric *fabric);
/* Queues what the provider did not take, until the next read of the CQ. */
void rmx_receive_enqueue(struct rmx_am *am, struct rmx_receive_buffer *message,
			 enum rmx_state state);

/* dispatch.c: what the CQ's reader calls, see struct rmx_hooks */
extern const struct rmx_hooks rmx_am_hooks;
/*
 * A completion, whose context is a send buffer, a receive buffer, or else an
 * operation's; it may be none of ours. failure: NULL if it succeeded.
 */
void rmx_am_complete(struct rmaext_fabric *fabric, void *context, size_t len,
		     const struct rmaext_error *failure);
/* Sends the deferred reply, if there is one and the provider takes it. */
void rmx_reply_send_deferred(struct rmaext_fabric *fabric);

/* handlers.c */
enum rmx_served {
	RMX_ANSWER,    /* message->reply is to be sent to message->peer */
	RMX_NOTHING,   /* there is nobody to answer */
	RMX_NO_WINDOW, /* there is no such window yet */
	RMX_NO_GUARD   /* the guard is not free; a part may be done */
};

/* In constant time. False if both are zeros, which name nobody. */
bool rmx_same_token(const uint8_t *a, const uint8_t *b);
/*
 * Checks a request, carries it out and writes its reply into the receive
 * buffer. A window is created on one rank earlier than on another: with
 * may_wait the request is to wait for it. It waits for the guard of updates for
 * about `ns`; ns < 0: it has waited too long, and is refused.
 */
enum rmx_served rmx_serve(struct rmaext_fabric *fabric,
			  struct rmx_receive_buffer *message, bool may_wait,
			  int64_t ns);
/* Does the token name a grant that has not ended? Takes fabric->lock. */
bool rmx_grant_lives(struct rmaext_fabric *fabric, const uint8_t *token);
/*
 * Any thread inside the fabric makes a window a target of messages, which it is
 * until serve_no_more; that takes fabric->lock too, and the caller has ended
 * what is served (window->served).
 */
void rmx_serve_window(struct rmaext_fabric *fabric,
		      struct rmaext_window *window);
void rmx_serve_no_more(struct rmaext_window *window);

/*
 * client.c: a client writes its introduction to the end of a request to a peer
 * and gets the bytes written; whoever sends the request calls it, with am->lock
 * held.
 */
size_t rmx_introduction_write(const struct rmaext_window *window,
			      struct rmaext_peer *peer, char *at);
/* Is an introduction to go ahead of the next request? am->lock is held. */
bool rmx_introduction_due(const struct rmaext_window *window,
			  const struct rmaext_peer *peer);
/*
 * Takes the introduction off a request, if it has one, and admits the client,
 * or notes what to answer it. Returns true if the message was nothing else.
 */
bool rmx_introduction_take(struct rmaext_fabric *fabric,
			   struct rmx_receive_buffer *message);
/*
 * The provider did not take the reply to that peer, which waits since
 * message->since: is it to be dropped?
 */
bool rmx_reply_is_overdue(const struct rmx_receive_buffer *message);

/*
 * items.c: checks all items of a message, of which any byte may be wrong.
 * Returns 0 with what they are in all, or -fi_errno for the reply.
 */
int rmx_items_check(const struct rmaext_window *window, const char *data,
		    size_t len, struct rmx_sum *sum_p);
/*
 * Carries out items that were checked, from `done` on, and counts there.
 * RMAEXT_PENDING: the guard was not free for about `ns`.
 */
int rmx_items_apply(struct rmaext_window *window, const char *data, size_t len,
		    char *results, struct rmx_done *done, int64_t ns);

/* The origin's side. */

/*
 * message.c: all but send are called with am->lock held. new takes a send
 * buffer and a credit, and writes the header; NULL: no buffer is free.
 */
struct rmx_send_buffer *rmx_message_new(struct rmaext_fabric *fabric,
					struct rmaext_peer *peer,
					const struct rmaext_window *window);
/*
 * Hands a message to the provider; returns what that does. After an error the
 * caller drops the buffer. The first piece lies in the buffer; desc is the
 * registration of the others. The lock may be held: it keeps the order.
 */
int rmx_message_send(struct rmaext_fabric *fabric,
		     struct rmx_send_buffer *buffer, const struct iovec *iov,
		     size_t count, void *desc);
/*
 * Give credit and buffer back: drop, of a message that was not sent; free, of
 * one whose answer nobody awaits, unless the provider still sends it; done, of
 * one that was answered, whose buffer stays while the provider sends it.
 */
void rmx_message_drop(struct rmx_am *am, struct rmx_send_buffer *buffer);
void rmx_message_free(struct rmx_am *am, struct rmx_send_buffer *buffer);
void rmx_message_done(struct rmx_am *am, struct rmx_send_buffer *buffer);

/*
 * send_queue.c: the hook `send` of struct rmx_hooks. The owner of an operation
 * that goes as messages puts it in its peer's line, and asks later on whether
 * it is complete. RMX_DONE with *op_p NULL: it was a copy, and is in line.
 * Takes am->lock.
 */
enum rmx_step rmx_message_step(struct rmx_op **op_p);
/*
 * The hooks `notify` and `written`: a message waits in its peer's line until
 * the bytes of its write are there. Both take am->lock.
 */
void rmx_note_join(struct rmx_op *write);
bool rmx_note_release(struct rmx_op *write);
/* Tries the peers again to which the provider took nothing; takes am->lock. */
void rmx_message_retry(struct rmaext_fabric *fabric);
/*
 * Sends from a peer's line what its credits allow; whoever gives a credit back
 * calls it. am->lock is held.
 */
void rmx_message_pump(struct rmaext_fabric *fabric, struct rmaext_peer *peer);
/*
 * Puts a new operation at the end of its peer's line, where it counts as
 * pending. am->lock is held.
 */
void rmx_line_join(struct rmaext_peer *peer, struct rmx_op *op);
/* Takes an operation out of the line, if it is in it. am->lock is held. */
void rmx_op_unqueue(struct rmx_op *op);

/*
 * replies.c: the CQ's reader says that a request was sent, or could not be;
 * and that a reply came, of which any byte may be wrong. All take am->lock.
 */
void rmx_message_sent(struct rmaext_fabric *fabric,
		      struct rmx_send_buffer *buffer,
		      const struct rmaext_error *failure);
void rmx_message_answered(struct rmaext_fabric *fabric, const char *data,
			  size_t len);
/* A connection was lost: so are the requests that its transport names. */
void rmx_messages_lost(struct rmaext_fabric *fabric);
/*
 * The hooks `give_up` and `forget` of struct rmx_hooks: an owner no longer
 * waits for its operation; nobody waits for those to that rank (-1: any) that
 * have no owner. Both take am->lock.
 */
void rmx_message_give_up(struct rmx_op *op);
void rmx_message_forget(struct rmaext_window *window, int64_t rank);
/*
 * The error of an operation that its target refused, with the status of the
 * reply, which may be any number. Any thread may ask.
 */
struct rmaext_error rmx_refusal(const struct rmaext_window *window,
				const char *call, int status);
/* Fails all requests and lines: the endpoint is gone. am->lock is held. */
void rmx_message_fail_all(struct rmaext_fabric *fabric,
			  const struct rmaext_error *record);
#endif
