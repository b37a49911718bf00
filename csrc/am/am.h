/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages: who sends, serves and answers them. */
#ifndef RMAEXT_AM_H
#define RMAEXT_AM_H

#include "am/message.h"
#include "exec/vector.h"
#include "xfer/operation.h"

/* am.c */
int rmx_peer_add(struct rmaext_fabric *fabric, const void *address, size_t len,
		 int pidfd, struct rmaext_peer **peer_p);
int rmx_am_start(struct rmaext_fabric *fabric);
void rmx_am_stop(struct rmaext_fabric *fabric, bool stays);
/* after mute: before and after the endpoint */
void rmx_am_cancel(struct rmaext_fabric *fabric);
int rmx_am_deregister(struct rmaext_fabric *fabric);
/* before the endpoint is closed: owners may give up at any time */
void rmx_am_mute(struct rmaext_fabric *fabric);
bool rmx_am_receives(const struct rmaext_fabric *fabric);
bool rmx_am_sends(const struct rmaext_fabric *fabric);
static inline bool rmx_reply_is_deferred(const struct rmaext_fabric *fabric)
{
	return atomic_load_explicit(&fabric->am->deferred_to,
				    memory_order_relaxed);
}

/* receive.c; by the CQ's reader, as all of the target's side */
int rmx_receive_more(struct rmaext_fabric *fabric);
int rmx_receive_post(struct rmaext_fabric *fabric,
		     struct rmx_receive_buffer *message);
void rmx_receive_failed(struct rmx_am *am, struct rmx_receive_buffer *message);
/* to be tried again after the next read of the CQ */
void rmx_receive_enqueue(struct rmx_am *am, struct rmx_receive_buffer *message,
			 enum rmx_state state);

/* dispatch.c: what the CQ's reader calls, see struct rmx_hooks */
extern const struct rmx_hooks rmx_am_hooks;
void rmx_am_complete(struct rmaext_fabric *fabric, void *context, size_t len,
		     const struct rmaext_error *failure);
void rmx_reply_send_deferred(struct rmaext_fabric *fabric);

/* handlers.c */
enum rmx_served {
	RMX_ANSWER,
	RMX_NOTHING,
	RMX_NO_WINDOW, /* yet */
	RMX_NO_GUARD   /* a part may be done */
};

bool rmx_same_token(const uint8_t *a, const uint8_t *b);
enum rmx_served rmx_serve(struct rmaext_fabric *fabric,
			  struct rmx_receive_buffer *message, bool may_wait,
			  int64_t ns);
/* This window is a target of messages; it is none any more. */
void rmx_serve_window(struct rmaext_fabric *fabric,
		      struct rmaext_window *window);
void rmx_serve_no_more(struct rmaext_window *window);

/* guest.c: at the end of a message; the bytes written, or taken off */
size_t rmx_card_write(const struct rmaext_window *window, char *at);
void rmx_card_take(struct rmaext_fabric *fabric,
		   struct rmx_receive_buffer *message);

/* ranges.c: what handlers.c does of elements, for ranges; the length of the
 * results */
int rmx_ranges_check(const struct rmaext_window *window, const char *data,
		     size_t len, size_t *results_p);
int rmx_ranges_apply(struct rmaext_window *window, const char *data,
		     char *results, struct rmx_done *done, int64_t ns);

/* batch.c */
enum rmx_step rmx_batch_step(void *batch);
int rmx_batch_overdue(struct rmaext_batch *batch);
void rmx_batch_give_up(struct rmaext_batch *batch);

/* am->lock held */
void rmx_batch_fail(struct rmx_send_buffer *buffer,
		    const struct rmaext_error *record);
bool rmx_batch_answer(struct rmx_send_buffer *buffer,
		      const struct rmx_reply_header *reply, const char *values,
		      size_t len);

/* message.c */
/* without the lock; desc: of all pieces but the first, which is the buffer's */
int rmx_message_send(struct rmaext_fabric *fabric,
		     struct rmx_send_buffer *buffer, const struct iovec *iov,
		     size_t count, void *desc);
/* am->lock held */
struct rmx_send_buffer *rmx_message_new(struct rmaext_fabric *fabric,
					struct rmaext_peer *peer,
					const struct rmaext_window *window);
void rmx_message_drop(struct rmx_am *am, struct rmx_send_buffer *buffer);
void rmx_message_free(struct rmx_am *am, struct rmx_send_buffer *buffer);
void rmx_message_done(struct rmx_am *am, struct rmx_send_buffer *buffer);

/* send_queue.c */
enum rmx_step rmx_message_step(struct rmaext_op **op_p);
void rmx_message_retry(struct rmaext_fabric *fabric);
/* am->lock held; of all who give a credit back */
void rmx_message_pump(struct rmaext_fabric *fabric, struct rmaext_peer *peer);
/* am->lock held; out of the line, if it is in it */
void rmx_op_unqueue(struct rmaext_op *op);

/* replies.c */
void rmx_message_sent(struct rmaext_fabric *fabric,
		      struct rmx_send_buffer *buffer,
		      const struct rmaext_error *failure);
void rmx_message_answered(struct rmaext_fabric *fabric, const char *data,
			  size_t len);
/* of an operation that nobody waits for any more */
void rmx_message_give_up(struct rmaext_op *op);
/* of all those to that rank (-1: to any) that were not waited for */
void rmx_message_forget(struct rmaext_window *window, int64_t rank);
/* am->lock held */
void rmx_message_fail_all(struct rmaext_fabric *fabric,
			  const struct rmaext_error *record);
/* Is it through? Then its owner, or nobody, has it. */
static inline void rmx_op_settle(struct rmaext_op *op)
{
	if (!op->queued && !op->flying)
		rmx_op_end(op);
}

#endif
