/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations on their way. */
#ifndef RMAEXT_OPERATION_H
#define RMAEXT_OPERATION_H

#include "dtype/strides.h"
#include "win/window.h"

#define RMX_CONTEXTS 1024 /* chunks in flight */
#define RMX_INLINE 1024	  /* bytes of a copy in its context */

/*
 * A put up to this size is copied and returns at once; a longer one is read
 * by the network where it lies, and waits. Copying 32 KiB costs less than
 * the round trip that waiting would.
 */
#define RMX_COPY_MAX ((uint64_t)RMAEXT_COPIED)

/*
 * The last two go as messages, see send_queue.c. RMX_LOCAL_UPDATE: an update by
 * memory that waits for the guard; see update.c.
 */
enum rmx_kind {
	RMX_PUT,
	RMX_GET,
	RMX_LOCAL_UPDATE,
	RMX_UPDATE,
	RMX_MESSAGE_PUT
};

struct rmaext_op {
	struct rmaext_fabric *fabric;
	struct rmaext_window *window;
	struct rmx_target *target;
	struct rmx_context *context; /* that it lies in; NULL: malloc() */
	int64_t rank;
	enum rmx_kind kind;
	int op, type; /* of an update, as RMAEXT_SUM, RMAEXT_INT8 */
	int notify;   /* slot of a message put; -1: none */
	size_t unit;  /* bytes an element; chunks are multiples of it */
	size_t chunk; /* bytes a chunk, at most */
	uint64_t offset, len, posted;
	const struct rmx_strides *strides; /* where local goes; NULL: one run */
	/* source of a put, result of a get; of an update, or NULL */
	char *local;
	void *desc; /* of local, of a message's operand; NULL: of neither */
	struct rmx_cached_buffer *registered; /* that desc is of; or NULL */
	char *result; /* of a get: where local, a copy, goes in the end */
	bool bounce;  /* it lies in a bounce buffer, see registration_cache.c */
	const char *operand, *compare; /* of messages; the first also of puts */
	struct rmaext_op *next;	       /* in peer->queue, or in a box */
	unsigned int flying; /* messages; it and those two: am->lock */
	uint32_t results_at; /* in the reply */
	bool queued;
	uint64_t rest;		/* bytes behind len, to be put as a copy */
	struct rmaext_op *tail; /* that puts them */
	unsigned int sent;	/* chunks */
	atomic_uint completed;	/* of these; the CQ's reader alone counts */
	atomic_int error;
	/*
	 * local is a copy: once posted, and left by its owner, it is freed by
	 * the CQ's reader; the tail of another by whoever leaves it second.
	 */
	bool buffered;
	atomic_bool left;
	atomic_bool abandoned; /* its owner has given up, but not let go */
	unsigned int seen;
	int64_t timeout, deadline; /* 0: not waited for yet */
	/*
	 * Of a request, see nonblocking.c. ended is where its owner looks, and
	 * set last: then it may be freed.
	 */
	int *ended;	   /* NULL: it is none */
	atomic_uint open;  /* chunks in flight; one more in the backlog */
	atomic_bool waits; /* in the backlog */
	struct rmaext_op *behind;
	unsigned int shown; /* 1 + the target's reports, when it failed */
	bool told;	    /* its owner knows of the failure */
	int64_t look;	    /* when to ask next for the peer */
	struct rmaext_error failure; /* written before error is set */
};

/*
 * The context of one fi_* call. It has room for an operation: one that is
 * posted in one piece needs nothing else.
 */
struct rmx_context {
	struct fi_context2 fi; /* first: the CQ gives back its address */
	_Atomic(struct rmaext_op *) op; /* NULL: not in flight */
	atomic_uint next;		/* free context, by number */
	struct rmaext_op own;
	_Alignas(16) char payload[RMX_INLINE];
};

/* Requests that are not posted whole yet; see nonblocking.c. */
struct rmx_backlog {
	pthread_mutex_t lock;	    /* of the queues of all targets */
	struct rmx_queue *first;    /* of the targets that have one */
	atomic_uint count;	    /* of requests in them */
	atomic_uint_fast64_t ended; /* requests, ever */
};

/* The operations of an endpoint: their contexts, and those to be posted. */
struct rmx_transfers {
	struct rmx_context *contexts;
	struct rmx_region region; /* of them all, if that is demanded */
	atomic_uint_fast64_t free_contexts; /* see context.c */
	struct rmx_backlog backlog;
};

/* An operation with the longest copy, out of its slot. */
#define RMX_BOUNCE_BYTES (sizeof(struct rmaext_op) + RMX_COPY_MAX + RMX_INLINE)

/* context.c */
int rmx_transfers_start(struct rmaext_fabric *fabric);
int rmx_transfers_deregister(struct rmaext_fabric *fabric);
struct rmx_context *rmx_context_take(struct rmaext_fabric *fabric,
				     struct rmaext_peer *peer);
void rmx_context_give(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
		      struct rmx_context *context);
void rmx_contexts_free(struct rmaext_fabric *fabric);
unsigned int rmx_contexts_in_flight(const struct rmaext_fabric *fabric);

/* operation.c */
int rmx_op_new(struct rmaext_window *window, int64_t rank, enum rmx_kind kind,
	       uint64_t offset, uint64_t len, size_t payload,
	       struct rmaext_op **op_p);
/*
 * The same of a put or get whose own memory is buf: registered, or a copy, if
 * the provider demands it. room: for the caller, at rmx_op_payload().
 */
int rmx_op_over(struct rmaext_window *window, int64_t rank, enum rmx_kind kind,
		uint64_t offset, const void *buf, uint64_t len, size_t room,
		struct rmaext_op **op_p);
char *rmx_op_payload(struct rmaext_op *op);
/* out of its context, if it is in one; NULL: no memory for it, and it is gone
 */
struct rmaext_op *rmx_op_apart(struct rmaext_op *op);
/* of a new one: copy op->operand, as rmx_op_new() had room for it */
void rmx_op_buffer(struct rmaext_op *op);
static inline bool rmx_is_message(const struct rmaext_op *op)
{
	return op->kind >= RMX_UPDATE;
}
/* Of an update: are its results wanted? */
static inline bool rmx_op_fetches(const struct rmaext_op *op)
{
	return op->kind == RMX_UPDATE && op->local;
}
/* Nobody waits for it but flush: a copy, or a request that was dropped. */
static inline bool rmx_is_nobodys(const struct rmaext_op *op)
{
	return op->buffered || (op->ended && atomic_load(&op->abandoned));
}
/* A flush waits for all but gets. */
static inline uint64_t rmx_counts_as(const struct rmaext_op *op)
{
	return op->kind != RMX_GET ? RMX_A_PUT + 1 : 1;
}

/* post.c */
int rmx_op_post_chunk(struct rmaext_op *op);
int rmx_op_begin(struct rmaext_op *op, struct rmaext_op **op_p);
int rmx_op_run(struct rmaext_op *op, struct rmaext_op **op_p);
/* a slice more of one that is no request; inside the window */
int rmx_op_wait(struct rmaext_op *op);

/* completion.c */
/* by the context of its call, whatever a provider gives as one */
void rmx_op_complete(struct rmaext_fabric *fabric, void *named,
		     const struct rmaext_error *failure);
void rmx_op_failed(struct rmaext_op *op, const struct rmaext_error *record);
/* of one that goes as messages: all that will be has been done */
void rmx_op_end(struct rmaext_op *op);
void rmx_op_free(struct rmaext_op *op);
void rmx_op_let_go(struct rmaext_op *op);  /* of the caller's memory */
void rmx_op_dispose(struct rmaext_op *op); /* of one that is in no context */
bool rmx_op_reads(const struct rmaext_fabric *fabric);
void rmx_op_shut_all(struct rmaext_fabric *fabric);

/* nonblocking.c */
int rmx_begin(struct rmaext_op *op, int *ended, struct rmaext_op **op_p);
void rmx_request_failed(struct rmaext_op *op);
void rmx_request_release(struct rmaext_op *op);
void rmx_request_free(struct rmaext_op *op);
void rmx_backlog_push(struct rmaext_fabric *fabric);
void rmx_backlog_shut(struct rmaext_fabric *fabric,
		      const struct rmaext_error *record);
static inline bool rmx_backlog_waits(const struct rmaext_fabric *fabric)
{
	return atomic_load(&fabric->transfers->backlog.count);
}

/* put_get.c; the caller has checked the place */
int rmx_put_new(struct rmaext_window *window, int64_t rank, uint64_t offset,
		const void *buf, uint64_t len, struct rmaext_op **op_p);
int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context);
int rmx_get_new(struct rmaext_window *window, int64_t rank, uint64_t offset,
		void *buf, uint64_t len, struct rmaext_op **op_p);
int rmx_message_put(struct rmaext_window *window, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot,
		    struct rmaext_op **op_p);
int rmx_message_post(struct rmaext_window *window, int64_t rank,
		     uint64_t offset, const void *buf, uint64_t len, int slot);

#endif
