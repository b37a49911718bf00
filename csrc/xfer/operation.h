/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations of the fabric route, from their making until they have completed.
 * Each struct rmx_op has one owner, the call or the caller's handle that
 * made it, unless it is a copy; the CQ's reader is whichever thread reads the
 * completion queue just now.
 */
#ifndef RMAEXT_OPERATION_H
#define RMAEXT_OPERATION_H

#include "base/life.h"
#include "dtype/places.h"
#include "win/window.h"

#define RMX_CONTEXTS 1024 /* chunks in flight */
#define RMX_INLINE 1024	  /* bytes of a copy in its context */

/*
 * A put up to this size is copied and returns at once; a longer one is read
 * by the network where it lies, and waits. Copying 32 KiB costs less than
 * the round trip that waiting would.
 */
#define RMX_COPY_MAX ((uint64_t)RMAEXT_COPIED)

struct rmx_siblings; /* requests that are one for their owner: siblings.h */

struct rmx_op {
	struct rmaext_op owned; /* its life is set when an owner gets it */
	struct rmaext_fabric *fabric;
	struct rmaext_window *window;
	struct rmx_target *target;
	struct rmx_context *context; /* it lies in this; NULL: it does not */
	int64_t rank;
	int kind;     /* as RMAEXT_PUT */
	int op, type; /* of an update, as RMAEXT_SUM, RMAEXT_INT8 */
	int notify;   /* slot of a put; -1: none */
	size_t unit;  /* bytes of an element of a message */
	uint64_t offset, len, posted;
	/*
	 * NULL: one range, of len bytes at offset. In messages am->lock guards
	 * them. Of a read or write they are loops.
	 */
	struct rmx_places *places;
	/*
	 * The source of a put, the destination of a get, the result of an
	 * update; NULL: the update has none.
	 */
	char *local;
	/* registers local, or a message's operand; NULL: neither needs it */
	void *desc;
	struct rmx_cached_buffer *registered; /* desc is its; or NULL */
	/* of a get whose local is a copy: where that is copied in the end */
	char *result;
	bool bounce; /* it lies in a bounce buffer, see registration_cache.c */
	const char *operand, *compare; /* of an update or a message put */
	bool is_message; /* it goes as messages; else it is a read or write */
	/*
	 * Of an operation that goes as messages; am->lock guards the next four:
	 * the one behind it in its peer's line, or in its send buffer; its
	 * messages that are not answered; where its result is in the reply;
	 * whether it is in the line.
	 */
	struct rmx_op *next;
	unsigned int flying;
	uint32_t results_at;
	bool queued;
	/*
	 * Of a write that notifies: the message that does, until that has
	 * ended, for which the write stays open. Of the message: the write, and
	 * whether it is still to wait for that in the line. am->lock guards
	 * them once the write has begun.
	 */
	_Atomic(struct rmx_op *) note;
	struct rmx_op *write;
	bool held;
	unsigned int sent;     /* chunks */
	atomic_uint completed; /* of these; only the CQ's reader counts */
	atomic_int error;
	/*
	 * Its data is a copy: once it is handed over nobody owns it, and the
	 * CQ's reader frees it. Else it has an owner, who waits for *ended.
	 */
	bool buffered;
	bool hint;	/* nobody learns whether it arrives */
	uint64_t share; /* of target->pending, see there; 0: it is in `gets` */
	/* its owner has given up waiting, but still has it */
	atomic_bool abandoned;
	/* for the record: 0, or when it began; its site and thread */
	int64_t begun;
	uint32_t site;
	uint16_t thread;
	int outcome;	   /* the error that it has ended with; or 0 */
	unsigned int seen; /* progress at the last look; see rmx_deadline() */
	int64_t timeout, deadline; /* deadline 0: not waited for yet */
	/*
	 * Its owner reads *ended, which is set last: from then on the owner may
	 * free it. NULL: it has no owner, or is not begun. `over`: the owner
	 * waits in the call that began it; else it is a request.
	 */
	int *ended;
	int over;
	struct rmx_siblings
		*siblings; /* they live as long as *ended; or NULL */
	/* chunks in flight, 1 while in the backlog, and 1 for its note */
	atomic_uint open;
	atomic_bool waits;     /* it is in the backlog */
	struct rmx_op *behind; /* the next in the backlog */
	/* 1 + target->reports of when it failed; 0: no flush will report it */
	unsigned int shown;
	bool told;    /* its owner knows of the failure */
	int64_t look; /* when to ask next whether the peer is alive */
	struct rmaext_error failure; /* written before error is set */
};

/* The operation that an owner has, which is one; or NULL. */
static inline struct rmx_op *rmx_op_of(struct rmaext_op *owned)
{
	return (struct rmx_op *)owned;
}

/*
 * The context of one read or write. It has room for an operation, so that one
 * which is posted in one piece needs no other memory.
 */
struct rmx_context {
	struct rmx_call call; /* first: the completion gives back its address */
	_Atomic(struct rmx_op *) op; /* NULL: not in flight */
	atomic_uint next; /* free ones from the one behind to the next free */
	struct rmx_op own;
	_Alignas(16) char payload[RMX_INLINE];
};

/* Operations of which some chunks are not posted yet; see post.c. */
struct rmx_backlog {
	pthread_mutex_t lock;	    /* guards the queues of all targets */
	struct rmx_queue *first;    /* of the targets that have one */
	atomic_uint count;	    /* operations in all queues */
	atomic_uint_fast64_t ended; /* operations that have ended, ever */
};

/* The operations of an endpoint: their contexts, and those to be posted. */
struct rmx_transfers {
	struct rmx_context *contexts;
	struct rmx_region region; /* registers them, where it is demanded */
	atomic_uint_fast64_t free_contexts; /* see context.c */
	struct rmx_backlog backlog;
};

/* An operation with the longest copy, where it does not lie in a context. */
#define RMX_BOUNCE_BYTES (sizeof(struct rmx_op) + RMX_COPY_MAX + RMX_INLINE)

/*
 * context.c: rmaext_fabric_open() and _close() call start, deregister and free,
 * with no other thread inside the fabric. start and deregister return 0 or
 * -fi_errno without an error record; deregister may be called again. free
 * leaves the contexts where they are if an operation still lies in one.
 */
int rmx_transfers_start(struct rmaext_fabric *fabric);
int rmx_transfers_deregister(struct rmaext_fabric *fabric);
void rmx_contexts_free(struct rmaext_fabric *fabric);
/*
 * Any thread may take a context and give it back; no lock is needed. take
 * returns NULL where the peer has as many as are left for all. The taker, or
 * who it hands the context to, gives it back once. in_flight counts without a
 * lock: others may take and give meanwhile.
 */
struct rmx_context *rmx_context_take(struct rmaext_fabric *fabric,
				     struct rmaext_peer *peer);
void rmx_context_give(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
		      struct rmx_context *context);
unsigned int rmx_contexts_in_flight(const struct rmaext_fabric *fabric);

/*
 * operation.c: make an operation on checked places, with `room` for the caller
 * at rmx_op_payload(). A request does not lie in a context. The caller is
 * inside the window and becomes the owner. They return 0 or -fi_errno with a
 * record.
 *
 * A put or get by the NIC. Where the provider demands registered memory,
 * op->local is a registered copy of a short origin buffer, and a longer one is
 * registered until the operation lets go of it. buffered: a put is copied in
 * any case, so that nobody has to wait for it.
 */
int rmx_op_over(struct rmaext_window *window, const struct rmaext_call *call,
		bool buffered, size_t room, struct rmx_op **op_p);
/*
 * A call that goes as messages. buffered: what it sends is copied, so that
 * nobody has to wait for it.
 */
int rmx_message_op(struct rmaext_window *window, const struct rmaext_call *call,
		   bool buffered, size_t room, struct rmx_op **op_p);
char *rmx_op_payload(struct rmx_op *op);
/*
 * free: of an operation that has no owner, or was not begun. let_go gives back
 * the registration of its origin buffer and its places only, dispose the memory
 * of one that has let go.
 */
void rmx_op_free(struct rmx_op *op);
void rmx_op_let_go(struct rmx_op *op);
void rmx_op_dispose(struct rmx_op *op);
/* Is it a copy that stands for many, see am/coalesce.c? */
static inline bool rmx_is_coalesced(const struct rmx_op *op)
{
	return op->places && op->places->room;
}
/* Does it return what is, or was, there? */
static inline bool rmx_op_fetches(const struct rmx_op *op)
{
	return op->kind == RMAEXT_GET ||
	       (op->kind == RMAEXT_UPDATE && op->local);
}
/*
 * For the record: note() says that the operation begins, and end() that it has
 * ended; an operation that was not noted has no event. count() counts it. The
 * functions that carry operations out call these.
 */
void rmx_op_note(struct rmx_op *op);
void rmx_op_count(const struct rmx_op *op);
void rmx_op_note_end(const struct rmx_op *op);
/* What the record has of it: RMAEXT_DID_PUT and so on. */
unsigned int rmx_op_counts_as(const struct rmx_op *op);
/* Only a flush waits for it: a copy, or what its owner has given up. */
static inline bool rmx_is_nobodys(const struct rmx_op *op)
{
	if (op->write)
		op = op->write;
	return op->buffered || (op->ended && atomic_load(&op->abandoned));
}
/* Its owner waits later, or never, and not in the call that has begun it. */
static inline bool rmx_op_is_request(const struct rmx_op *op)
{
	return op->ended && op->ended != &op->over;
}
/*
 * Counts an operation as on its way. A flush does not wait for a get whose own
 * call waits for it, as that may be given up.
 */
static inline void rmx_pending_add(struct rmx_op *op)
{
	struct rmx_target *t = op->target;

	if (op->kind == RMAEXT_GET && !op->is_message &&
	    !rmx_op_is_request(op)) {
		atomic_fetch_add(&t->gets, 1);
		return;
	}
	op->share = rmx_share_now(&t->pending);
	atomic_fetch_add(&t->pending, op->share);
}
/* It has completed. The operation may be gone, and then the window may be. */
static inline void rmx_pending_sub(struct rmx_target *t, uint64_t share)
{
	if (share)
		atomic_fetch_sub(&t->pending, share);
	else
		atomic_fetch_sub(&t->gets, 1);
}

/*
 * How many times as long as usual a wait for it spins: for as long as a chunk
 * takes at 1 GB/s, where the usual time is 50 us.
 */
static inline unsigned int rmx_op_spins(const struct rmx_op *op)
{
	const size_t chunk = op->fabric->limits.chunk;

	return 1 +
	       (unsigned int)(op->len < chunk ? op->len : chunk) / (64 << 10);
}

/*
 * post.c: who begins an operation posts it, and once it is in the backlog who
 * holds that lock. Posts the next chunk. -FI_EAGAIN: the provider wants
 * progress first; -FI_ENOSPC: no context is free; -FI_EBUSY: as many chunks of
 * it are in flight as may be; other codes are the provider's, without a record.
 * After 0 a copy may be freed already.
 */
int rmx_op_post_chunk(struct rmx_op *op);
/*
 * Posts what can be posted at once of an operation that has begun, and leaves
 * the rest to the CQ's reader. It may have ended when this returns.
 */
void rmx_op_post(struct rmx_op *op);
/* Takes one out of the backlog, whose lock the caller holds; it may end. */
void rmx_backlog_take_out(struct rmx_op *op);
/*
 * The CQ's reader posts what waits in the backlog; takes backlog.lock. Not NULL
 * is the error with which all that fails: the endpoint is gone.
 */
void rmx_backlog_push(struct rmaext_fabric *fabric,
		      const struct rmaext_error *shut);
static inline bool rmx_backlog_waits(const struct rmaext_fabric *fabric)
{
	return atomic_load(&fabric->transfers->backlog.count);
}

/*
 * completion.c: the CQ's reader says that a call has completed, or failed
 * (failure, else NULL). `named` is the context that the provider names, which
 * may be none of ours: then it is counted as failed and ignored, and false is
 * returned. The operation may be freed by this.
 */
bool rmx_op_complete(struct rmaext_fabric *fabric, void *named,
		     const struct rmaext_error *failure);
/*
 * The error that the provider took no chunk or message to a rank. Unlike
 * rmx_fail() it leaves this thread's record: whoever serves the network may be
 * about to return that.
 */
struct rmaext_error rmx_post_failure(const struct rmaext_fabric *fabric,
				     int64_t rank, int code);
/*
 * Ends an operation that goes as messages, if nothing of it is in line or on
 * its way any more: each was answered, has failed or was given up. The caller
 * holds am->lock; the operation may be freed by this.
 */
void rmx_op_settle(struct rmx_op *op);
/* Is the answer to a read on its way? Asked while the fabric closes. */
bool rmx_op_reads(const struct rmaext_fabric *fabric);
/*
 * rmaext_fabric_close() ends all operations once the endpoint is closed or
 * stays unused; before it, rmx_backlog_push(). Owners may release theirs
 * meanwhile.
 */
void rmx_op_shut_all(struct rmaext_fabric *fabric,
		     const struct rmaext_error *record);

/*
 * completion.c. part_ended: one of what holds an operation open is over; the
 * last one ends it. failed notes the first failure; takes window->lock, as the
 * next three do. abandon: its owner gives it up, and a flush reports what has
 * failed, or will. report: returns what came of one that has ended; no flush
 * says it any more. told: its owner knows, or will not ask: nor does a flush.
 */
void rmx_op_part_ended(struct rmx_op *op);
void rmx_op_failed(struct rmx_op *op, const struct rmaext_error *record);
void rmx_op_abandon(struct rmx_op *op);
int rmx_op_report(struct rmx_op *op);
void rmx_op_told(struct rmx_op *op);

/*
 * life.c: the callers are inside the window.
 *
 * Begins a new operation and, unless it is a request, waits for one slice. 0:
 * it has ended, or is a copy that others complete, and it is gone. Else the
 * code: with *op_p set, as it is with RMAEXT_PENDING, the operation is the
 * caller's, to be waited for or released. Of a request it is RMAEXT_PENDING,
 * and *op->ended is set when it ends, maybe before this returns; the caller may
 * have set op->siblings.
 */
int rmx_op_run(struct rmx_op *op, struct rmaext_op **op_p);
static inline bool rmx_op_has_ended(const struct rmx_op *op)
{
	return __atomic_load_n(op->ended, __ATOMIC_ACQUIRE);
}
/*
 * For the owner of several: waits says that the time limit counts from now on,
 * unless the owner has waited just before. step is for rmx_wait(). overdue, of
 * one that has not ended: does its peer live, and do its answers come? It
 * returns RMAEXT_PENDING, or the error with a record.
 */
void rmx_op_waits(struct rmx_op *op, int64_t now);
enum rmx_step rmx_op_step(void *op);
int rmx_op_overdue(struct rmx_op *op, int64_t now);

/*
 * Where byte `offset` of a target's memory is, for reads and writes. Without
 * addresses a raw key was mapped with its base. Else it is added: the window's
 * memory may begin amid the region.
 */
static inline struct rmx_remote rmx_remote_at(const struct rmaext_fabric *f,
					      const struct rmx_target *t,
					      uint64_t offset)
{
	const bool relative = f->limits.raw_keys && !f->limits.addressed;

	return (struct rmx_remote){
		.peer = t->member->peer->addr,
		.place = offset + (relative ? 0 : t->base),
		.key = t->key,
	};
}

/*
 * put_get.c: the callers are inside the window and have checked the place.
 * Makes the operation of a put or a get, by the NIC or, where it is too short
 * for that or the window is another job's, by message. A put by the NIC that
 * notifies has a message behind it, which goes once the bytes are there; what
 * this rank sends by message afterwards goes behind that. Returns as
 * rmx_op_over().
 */
int rmx_move_new(struct rmaext_window *window, const struct rmaext_call *call,
		 struct rmx_op **op_p);
/*
 * As a put by rmaext_start(), but carried out by the target's process, which
 * then notifies if that is asked for. It is in order with the updates of this
 * rank. Returns as rmx_op_run().
 */
int rmx_message_put(struct rmaext_window *window,
		    const struct rmaext_call *call, struct rmaext_op **op_p);
/*
 * The same with a copy, and without waiting. -FI_EAGAIN: too much waits for
 * that rank, or the operand is longer than a copy may be; nothing was done.
 */
int rmx_message_post(struct rmaext_window *window,
		     const struct rmaext_call *call);
/*
 * Notifies of a put that is there: where the rank's counters cannot be mapped
 * its process counts. Returns as rmx_message_put().
 */
int rmx_notify(struct rmaext_window *window, int64_t rank, int slot,
	       struct rmaext_op **op_p);
/*
 * Puts some bytes at a checked place, whose key is mapped. Nobody learns
 * whether they arrive. Returns 0, or -FI_EAGAIN: nothing was done, try again;
 * or another -fi_errno without a record.
 */
int rmx_put_small(struct rmaext_window *window, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len);

#endif
