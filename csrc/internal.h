/* SPDX-License-Identifier: BSD-3-Clause */
/* Structures shared by the .c files. */
#ifndef RMAEXT_INTERNAL_H
#define RMAEXT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "control.h"
#include "rmaext.h"

#define RMX_SLOTS 1024		      /* chunks in flight, at most the CQ */
#define RMX_INLINE 1024		      /* bytes of a copy in its slot */
#define RMX_SLICE (100 * 1000 * 1000) /* ns in C before Python looks up */
#define RMX_NO_RANK (-1)
#define RMX_TOKEN 16 /* bytes that name a window in a message */
#define RMX_A_PUT ((uint64_t)1 << 32) /* in rmx_target.pending */

/*
 * A put up to this size is copied and returns at once; a longer one is read
 * by the network where it lies, and waits. Copying 32 KiB costs less than
 * the round trip that waiting would.
 */
#define RMX_COPY_MAX ((uint64_t)32 << 10)

/* libfabric's functions that are not inline, taken from one opened copy */
struct rmaext_library {
	void *handle;
	__typeof__(fi_getinfo) *getinfo;
	__typeof__(fi_freeinfo) *freeinfo;
	__typeof__(fi_dupinfo) *dupinfo;
	__typeof__(fi_fabric) *fabric;
	__typeof__(fi_version) *version;
	__typeof__(fi_strerror) *strerror;
	bool tune;	      /* private copy, not initialised yet */
	char plugins[4096];   /* where its providers may be loaded from */
	pthread_mutex_t lock; /* setenv around the first fi_getinfo */
};

/* Asks whether anybody listens at a peer's address; see knock.c. */
struct rmx_knock {
	pthread_mutex_t lock;
	int fd; /* the connection being tried; or -1 */
	int64_t since, next, pause;
	socklen_t len; /* 0: never ask */
	struct sockaddr_storage address;
};

struct rmaext_peer {
	fi_addr_t addr;
	int pidfd;	  /* readable once the peer's process is gone; or -1 */
	atomic_bool gone; /* pidfd was seen readable, or it refused */
	struct rmx_knock knock;
	atomic_uint slots; /* of operations and chunks on their way to it */
	uint64_t name;	   /* rmx_name of its address */
	struct rmaext_peer *next;
	/* messages to it, see message.c; guarded by executor.lock */
	unsigned int requests; /* unanswered */
	unsigned int bulks;    /* of these, parts of `bulk` */
	struct rmaext_op *bulk;
	struct rmaext_op *queue, **queue_end; /* not all sent yet */
	size_t queued;			      /* bytes of copies in it */
	uint64_t came, went;		      /* through the queue, ever */
	bool denied;			      /* a batch was, of late */
	struct rmaext_peer *next_stalled;
	bool stalled; /* in executor.stalled */
	atomic_uint answers;
};

/* Counts the threads inside calls on an object, so that close can wait. */
struct rmx_gate {
	atomic_int users;
	atomic_bool closed;
};

/* Who reads the completion queue, and who sleeps; see progress.c. */
struct rmx_progress {
	atomic_bool reader;   /* held by the one reader of the CQ */
	atomic_int waiters;   /* application threads that wait */
	atomic_uint visits;   /* how often one began to */
	atomic_int followers; /* of these, not reading: asleep on turn */
	atomic_uint turn;     /* futex: something changed for followers */
	atomic_bool thread_reads;
	atomic_bool stop;
	atomic_uint bell;      /* futex: the parked progress thread listens */
	atomic_bool long_park; /* it does not look up by itself for long */
	int cq_fd;	       /* -1: the provider has none */
	int wake_fd;	       /* calls the progress thread out of poll */
	pthread_t thread;
	bool running;
	int64_t spin; /* ns before a waiting origin sleeps */
};

/* Many operations in one message; see executor.c. */
#define RMX_BOXES 4096 /* messages, at most */
#define RMX_MESSAGE \
	16192 /* bytes; with its box four pages, within rxm's 16 KiB */
#define RMX_LANDINGS 2048	     /* messages that came, at most */
#define RMX_MOST ((size_t)512 << 10) /* bytes of values in one message */
#define RMX_CREDITS 4u		     /* requests to a peer, without an answer */
#define RMX_CELLS 256 /* places computed at a time, then operated on */
#define RMX_CLOSED 64
#define RMX_REQUEST 0x32516d72 /* "rmQ2", in native byte order */
#define RMX_REPLY 0x32416d72   /* "rmA2" */

enum rmx_form {
	RMX_ELEMENTS = 1, /* `count` offsets in bytes, then the values */
	RMX_RANGES = 2,	  /* `count` times a struct rmx_range with its values */
	RMX_LOOPS = 3,	  /* as elements, places as rmx_loops_pack() has them */
};

/* Header of a request. */
struct rmx_request {
	uint32_t magic;
	/* of elements; else 0 */
	uint8_t kind; /* as RMAEXT_PUT */
	uint8_t type; /* as RMAEXT_INT8 */
	uint8_t op;   /* of an update, as RMAEXT_SUM */
	uint8_t fetch;
	uint8_t token[RMX_TOKEN]; /* of the window */
	uint64_t id;
	uint64_t name; /* rmx_name of the origin's endpoint */
	uint32_t rank; /* of the origin */
	uint32_t count;
	uint64_t unit;
	uint8_t form;	 /* as enum rmx_form */
	uint8_t replies; /* at its end, to one of the peer's: 0 or 1 */
	uint8_t nothing[6];
};

enum { RMX_WITH_FETCH = 1, RMX_WITH_NOTIFY = 2 }; /* flags of a range */

/*
 * Elements that lie one after another. Their values follow, with
 * RMAEXT_CSWAP the compared before the new ones, with RMAEXT_NO_OP none. The
 * next range, and in a reply the next one's results, begin at a multiple of
 * RMX_ALIGN.
 */
struct rmx_range {
	uint64_t offset; /* bytes */
	uint64_t count;	 /* elements */
	uint32_t unit;
	uint8_t kind; /* as rmx_kind: RMX_UPDATE or RMX_MESSAGE_PUT */
	uint8_t op;
	uint8_t type;
	uint8_t flags;
	uint16_t slot; /* RMX_WITH_NOTIFY; else 0 */
	uint16_t zero[3];
};

#define RMX_ALIGN ((size_t)16)
#define RMX_ALIGNED(n) (((n) + RMX_ALIGN - 1) & ~(RMX_ALIGN - 1))

/* Header of a reply; the values follow. */
struct rmx_reply {
	uint32_t magic;
	int32_t status;
	uint64_t id;
	uint8_t token[RMX_TOKEN];
};

/* The longest message, and what has room for it with the longest reply. */
#define RMX_HEADERS (sizeof(struct rmx_request) + sizeof(struct rmx_range))
#define RMX_LONGEST (RMX_HEADERS + RMX_MOST)
#define RMX_LANDING ((RMX_LONGEST + 128 + RMX_MOST + 4095) & ~(size_t)4095)

enum rmx_state {
	RMX_FREE,
	RMX_ASKING,    /* a request of ours */
	RMX_RECEIVING, /* may come */
	RMX_REPLYING,  /* the reply is being sent */
	RMX_WAITING,   /* for the provider to take it: queued */
	RMX_EARLY,     /* a request to a window that is not there yet */
	RMX_BLOCKED,   /* by the guard of updates, or behind such a one */
};

/* A request of ours: the context of its fi_send. */
struct rmx_box {
	struct fi_context2 context; /* first, as in rmx_slot */
	/* whose request it is; both NULL: given up */
	struct rmaext_batch *batch;
	struct rmaext_op *op;	  /* and, unless bulk, those after it */
	struct rmaext_peer *peer; /* where it goes */
	struct rmx_box *next;	  /* free */
	struct rmx_lane *lane;	  /* of the batch */
	uint64_t part;		  /* of an element, or of an operation */
	uint32_t first;		  /* of the lane */
	uint32_t generation;	  /* tells late answers from others */
	uint32_t results;	  /* bytes that the answer has */
	uint16_t count, unit;
	uint8_t state;
	bool bulk;   /* a part of an operation that is longer than data */
	bool loaned; /* the values are sent from where its owner has them */
	bool sent;   /* the provider is done with data, and values */
	bool ended;  /* answered, and not sent yet */
	_Alignas(64) char data[RMX_MESSAGE];
};

/* How much of a request has been carried out, if its guard was not free. */
struct rmx_done {
	uint32_t parts;	   /* whole ranges, or elements */
	uint64_t elements; /* of the next range */
};

/* A message that comes: the context of its fi_recv, and of a reply's fi_send.
 */
struct rmx_landing {
	struct fi_context2 context;
	struct rmaext_peer *peer; /* who gets the reply */
	struct rmx_landing *next; /* in the list of its state */
	char *data;		  /* RMX_LANDING; NULL: not yet */
	int64_t since;		  /* it came */
	struct rmx_done done;
	size_t len;
	size_t reply, reply_len; /* where it is in data */
	uint8_t state;
	bool fat; /* many of its pages are in use */
};

struct rmx_executor {
	/* guards free, made, mute, boxes in use, and what peers say of messages
	 */
	pthread_mutex_t lock;
	struct rmx_box *boxes; /* RMX_BOXES; pages come as they are used */
	struct rmx_box *free;
	unsigned int made;    /* boxes that were ever used */
	unsigned int credits; /* requests a peer may have at a time */
	size_t bulk;	      /* bytes of values in a message, at most */
	size_t iov;	      /* pieces of memory it may be sent from */
	uint64_t name;	      /* of the own endpoint */
	bool mute;	      /* nothing is sent any more */
	bool tagged;	      /* all messages are, see compat.h */
	/* to whom the provider took no message */
	_Atomic(struct rmaext_peer *) stalled;
	/* a reply that may go with a message to that peer: see owe() */
	_Atomic(struct rmaext_peer *) owed_to;
	struct rmx_reply owed;
	/* the rest belongs to the CQ's reader */
	struct rmx_landing *landings; /* RMX_LANDINGS */
	/* whose receives failed, the oldest first */
	struct rmx_landing *failed, **failed_end;
	unsigned int landed; /* that were ever used */
	unsigned int fat;
	unsigned int receiving, incoming;
	struct rmx_landing *queue, **queue_end;
	unsigned int queued;
	struct rmx_landing *early;
	unsigned int early_count;
	/* guarded by fabric->lock */
	struct rmaext_window *recent;
	uint8_t closed[RMX_CLOSED][RMX_TOKEN]; /* the last windows to go */
	unsigned int closed_next;
};

/* Requests that are not posted whole yet; see begin.c. */
struct rmx_backlog {
	pthread_mutex_t lock;	    /* of the queues of all targets */
	struct rmx_target *first;   /* of those with a queue */
	atomic_uint count;	    /* of requests in them */
	atomic_uint_fast64_t ended; /* requests, ever */
};

struct rmaext_fabric {
	struct rmaext_library *lib;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint64_t mr_mode;
	size_t key_size;
	size_t chunk;	       /* longest single read or write */
	size_t least;	       /* shortest, of those that are not empty */
	struct rmx_bell *bell; /* the own process's; or NULL */
	struct rmx_progress progress;
	pthread_mutex_t lock; /* peers, memories, windows, mapping */
	struct rmx_slot *slots;
	atomic_uint_fast64_t free_slots; /* see slot.c */
	struct rmaext_peer *peers;
	struct rmaext_memory *memories;
	struct rmaext_window *windows;
	atomic_uint peer_count;
	struct rmx_executor executor;
	struct rmx_backlog backlog;
	struct rmx_gate gate;
	struct rmaext_fabric *next; /* among the closed */
	/* the CQ's reader alone changes these */
	atomic_uint_fast64_t completed, failed;
	atomic_uint_fast64_t wakeups;
};

struct rmaext_memory {
	struct rmaext_fabric *fabric;
	struct fid_mr *mr;
	uint64_t base;
	struct rmaext_memory *next, **prev;
};

/* Wakes those who wait for words in the memory of a process; see bell.c. */
struct rmx_bell {
	_Alignas(RMX_LINE) atomic_uint listening; /* somebody may sleep */
	_Alignas(RMX_LINE) atomic_uint rings;	  /* futex */
};

/* In the last page of each segment of an arena. */
struct rmx_control {
	uint8_t nonce[RMX_TOKEN];
	/* of the first segment only: */
	atomic_int left;      /* its process takes no part any more */
	pthread_mutex_t life; /* robust, and held: its process lives */
	struct rmx_bell bell;
};

/* A process on the same node, reached without a network; see near.c. */
struct rmaext_near {
	pid_t pid;
	int pidfd;	  /* or -1 */
	uint64_t address; /* of the nonce, there */
	int reach;
	atomic_bool gone;
	uint8_t nonce[RMX_TOKEN];
	struct rmx_control *control; /* NULL: cannot be mapped */
	pthread_mutex_t lock;	     /* guards mappings */
	struct rmx_mapping *mappings;
};

struct rmx_target {
	struct rmaext_peer *peer;
	struct rmaext_near *near;
	char *map;	  /* RMAEXT_DIRECT */
	uint64_t address; /* RMAEXT_CMA */
	struct rmx_block
		*control;      /* NULL: not mapped, or the window has none */
	struct rmx_bell *bell; /* NULL: not mapped */
	uint64_t size;
	uint64_t base;
	uint64_t key;
	/*
	 * Chunks posted and not completed; in the upper half, those of puts.
	 * One word, as the window may be freed once it is 0.
	 */
	atomic_uint_fast64_t pending;
	atomic_uint finished; /* ever; shows flush that this one moves */
	atomic_int error;     /* of a put that nobody waited for */
	/* how many such there are, and how often flush has told of them */
	unsigned int unseen, reports;
	/* guarded by fabric->backlog.lock */
	struct rmaext_op *queue, **queue_end; /* requests, oldest first */
	struct rmx_target *next_behind;
	uint8_t access;
	uint8_t align; /* of offset 0, modulo 64 */
	uint8_t route;
	bool mapped; /* raw key is mapped; guarded by fabric->lock */
};

struct rmaext_window {
	/*
	 * A view is checked by itself, and its operations are those of the
	 * window that it looks at; which is its own root.
	 */
	struct rmaext_window *root;
	uint64_t first;	 /* byte of the root where a view begins */
	uint64_t stride; /* of elements in rmaext_many; 0: their own size */
	struct rmaext_fabric *fabric; /* NULL: all routes are direct */
	int64_t timeout;
	int64_t spin; /* ns, of who waits for memory */
	int64_t count;
	int64_t self;
	uint8_t token[RMX_TOKEN];
	struct rmx_target *targets;
	struct rmx_attached *attached; /* of a dynamic window; else NULL */
	uint8_t *raw_keys; /* count * raw_len bytes, FI_MR_RAW only */
	size_t raw_len;
	struct rmx_gate gate;	/* calls of this rank */
	struct rmx_gate served; /* requests of others, until all have closed */
	pthread_mutex_t lock;	/* guards failure */
	struct rmaext_error failure; /* words for target->error */
	struct rmaext_window *next, **prev;
};

/*
 * The last two go as messages, see message.c. RMX_HERE: an update by memory
 * that waits for the guard; see update.c.
 */
enum rmx_kind { RMX_PUT, RMX_GET, RMX_HERE, RMX_UPDATE, RMX_MESSAGE_PUT };

/* Nested loops over runs of bytes, the innermost first; see strided.c. */
#define RMX_DIMS 64 /* NumPy has no more */

struct rmx_dim {
	uint64_t count;
	int64_t step, local; /* bytes, in the window and in own memory */
};

struct rmx_strides {
	int64_t rank;	/* of a batch only, as is first */
	uint64_t first; /* byte of the window */
	uint64_t run;	/* bytes in one piece on both sides */
	uint64_t runs;
	uint32_t ndim;
	struct rmx_dim dim[RMX_DIMS]; /* copies have ndim of them */
};

struct rmaext_op {
	struct rmaext_fabric *fabric;
	struct rmaext_window *window;
	struct rmx_target *target;
	struct rmx_slot *slot; /* that it lies in; NULL: malloc() */
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
	const char *operand, *compare; /* of messages; the first also of puts */
	struct rmaext_op *next;	       /* in peer->queue, or in a box */
	unsigned int flying; /* messages; it and those two: executor.lock */
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
	 * Of a request, see begin.c. ended is where its owner looks, and
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
struct rmx_slot {
	struct fi_context2 context; /* first: the CQ gives back its address */
	_Atomic(struct rmaext_op *) op; /* NULL: not in flight */
	atomic_uint next;		/* free slot, by number */
	struct rmaext_op own;
	_Alignas(16) char payload[RMX_INLINE];
};

/* A window with its elements: what the fast tier works on. */
struct rmx_typed {
	struct rmaext_window *window;
	uint64_t unit; /* bytes an element */
	int type;      /* RMAEXT_INT8 and so on; -1: none, no atomics */
	char closed;   /* set by Python before it closes the window */
};

/* What a waiter wants next. */
enum rmx_step {
	RMX_DONE,
	RMX_SLEEP, /* until a completion */
	RMX_RETRY, /* the provider said EAGAIN: soon, event or not */
};

/* error.c */
#define RMX_PRINTF(n) __attribute__((format(printf, n, n + 1)))
int rmx_fail(int code, int64_t rank, const char *call, const char *format, ...)
	RMX_PRINTF(4);
int rmx_fail_record(const struct rmaext_error *record);

/* signals.c: around everything that may start a provider */
struct rmx_signals *rmx_signals_hold(void);
void rmx_signals_give_back(struct rmx_signals *signals);

/* gate.c */
int rmx_gate_enter(struct rmx_gate *gate, const char *call, const char *closed);
bool rmx_gate_try(struct rmx_gate *gate); /* without an error record */
void rmx_gate_leave(struct rmx_gate *gate);
int rmx_gate_shut(struct rmx_gate *gate);

/* arena.c: NULL of NULL */
struct rmx_bell *rmx_arena_bell(struct rmaext_arena *arena);

/* library.c */
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p);

/* fabric.c */
struct fi_info *rmx_hints(struct rmaext_library *lib, const char *provider,
			  const char *domain, int mr_basic);

int rmx_fabric_enter(struct rmaext_fabric *fabric, const char *call);
void rmx_fabric_leave(struct rmaext_fabric *fabric);

/* key.c */
int rmx_key_map(struct rmaext_window *window, int64_t rank);
void rmx_key_unmap_all(struct rmaext_window *window);

/* window.c */
int rmx_window_enter(struct rmaext_window *window, const char *call);
void rmx_window_leave(struct rmaext_window *window);
void rmx_window_unlink(struct rmaext_window *window);

/* attach.c */
struct rmx_attached *rmx_attached_new(void);
void rmx_attached_free(struct rmx_attached *attached);
/* around all that looks at the memory; nothing for NULL */
void rmx_attached_lock(struct rmx_attached *attached);
void rmx_attached_unlock(struct rmx_attached *attached);
bool rmx_attached_has(const struct rmx_attached *attached, uint64_t address,
		      uint64_t len);

/* slot.c */
int rmx_slots_make(struct rmaext_fabric *fabric);
struct rmx_slot *rmx_slot_take(struct rmaext_fabric *fabric,
			       struct rmaext_peer *peer);
void rmx_slot_give(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
		   struct rmx_slot *slot);
void rmx_slots_end(struct rmaext_fabric *fabric);

/* op.c */
int rmx_op_new(struct rmaext_window *window, int64_t rank, enum rmx_kind kind,
	       uint64_t offset, uint64_t len, size_t payload,
	       struct rmaext_op **op_p);
int rmx_op_begin(struct rmaext_op *op, struct rmaext_op **op_p);
int rmx_op_run(struct rmaext_op *op, struct rmaext_op **op_p);
/* of one that goes as messages: all that will be has been done */
void rmx_op_failed(struct rmaext_op *op, const struct rmaext_error *record);
void rmx_op_end(struct rmaext_op *op);
/* of a new one: copy op->operand, as rmx_op_new() had room for it */
void rmx_op_buffer(struct rmaext_op *op);
static inline bool rmx_is_message(const struct rmaext_op *op)
{
	return op->kind >= RMX_UPDATE;
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
void rmx_op_complete(struct rmx_slot *slot, const struct rmaext_error *failure);
int rmx_op_post_chunk(struct rmaext_op *op);
bool rmx_op_reads(const struct rmaext_fabric *fabric);
void rmx_op_shut_all(struct rmaext_fabric *fabric);

/* update.c; inside the window */
int rmx_begin_update(struct rmaext_window *window,
		     const struct rmaext_call *call, struct rmaext_op **op_p);
/* of RMX_HERE, from malloc(): a slice more */
int rmx_here_wait(struct rmaext_op *op);

/* begin.c */
int rmx_begin(struct rmaext_op *op, int *ended, struct rmaext_op **op_p);
void rmx_begun_failed(struct rmaext_op *op);
void rmx_begun_less(struct rmaext_op *op);
void rmx_begun_free(struct rmaext_op *op);
void rmx_backlog_push(struct rmaext_fabric *fabric);
void rmx_backlog_shut(struct rmaext_fabric *fabric,
		      const struct rmaext_error *record);
static inline bool rmx_backlog_waits(const struct rmaext_fabric *fabric)
{
	return atomic_load(&fabric->backlog.count);
}

/* rma.c */
int rmx_check(const struct rmaext_window *window, const char *call,
	      int64_t rank, uint64_t offset, uint64_t len, int access);
int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context);
int rmx_get_new(struct rmaext_window *window, int64_t rank, uint64_t offset,
		void *buf, uint64_t len, struct rmaext_op **op_p);

/* near.c */
bool rmx_near_gone(struct rmaext_near *near);
/* copy by system call; -FI_ENOTCONN once the process is gone */
int rmx_cma_write(struct rmx_target *target, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len);
int rmx_cma_read(struct rmx_target *target, int64_t rank, uint64_t offset,
		 void *buf, uint64_t len);

/* the same, of n pieces of remote memory; buf has them one after another */
int rmx_cma_pieces(struct rmx_target *target, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len);

/* strided.c: a part of an array, with bytes from element to element */
struct rmx_part {
	uint64_t unit;
	int ndim;
	const int64_t *shape, *steps;
};

bool rmx_strides_make(struct rmx_strides *strides, const struct rmx_part *part,
		      const int64_t *locals);
size_t rmx_strides_bytes(const struct rmx_strides *strides);
int rmx_strides_check(const struct rmx_strides *strides,
		      const struct rmaext_window *window, const char *call,
		      int64_t rank, uint64_t offset, int access);
/* by memory; the two must not overlap */
void rmx_strides_copy(const struct rmx_strides *strides, bool put, char *remote,
		      char *local);

bool rmx_strides_overlap(const struct rmx_strides *strides, const char *remote,
			 const char *local);

/* Where run number i is, from the first. A stranger's loops may overflow. */
static inline uint64_t rmx_strides_at(const struct rmx_strides *s, uint64_t i)
{
	uint64_t at = 0;

	for (uint32_t d = 0; d + 1 < s->ndim; d++) {
		at += i % s->dim[d].count * (uint64_t)s->dim[d].step;
		i /= s->dim[d].count;
	}
	return s->ndim ? at + i * (uint64_t)s->dim[s->ndim - 1].step : 0;
}

/* in a message: what rmx_strides_at() needs, from number `start` on */
size_t rmx_loops_bytes(const struct rmx_strides *strides); /* 0: too many */
void rmx_loops_pack(const struct rmx_strides *strides, uint64_t first,
		    uint64_t start, void *buf);
bool rmx_loops_unpack(struct rmx_strides *strides, const void *buf, size_t len,
		      uint64_t *start_p);

/* knock.c */
void rmx_knock_init(struct rmx_knock *knock, const struct fi_info *info,
		    const void *address, size_t len);
void rmx_knock_end(struct rmx_knock *knock);
bool rmx_knock(struct rmx_knock *knock, int64_t now, int64_t since);

/*
 * May it be gone? Two loads, no call: the kernel marks a robust mutex when
 * its holder is killed. (Elsewhere than in glibc: when its pidfd is next
 * asked.) Without its memory, only the pidfd tells that the pid is still its.
 */
static inline bool rmx_near_doubtful(const struct rmaext_near *near)
{
	const struct rmx_control *control = near ? near->control : NULL;

	if (!control)
		return near && near->reach;
#ifdef __GLIBC__
	if (__atomic_load_n(&control->life.__data.__lock, __ATOMIC_RELAXED) &
	    FUTEX_OWNER_DIED)
		return true;
#endif
	return atomic_load_explicit(&control->left, memory_order_relaxed) ||
	       atomic_load_explicit(&near->gone, memory_order_relaxed);
}

static inline bool rmx_doubtful(const struct rmx_target *t)
{
	return (t->peer &&
		atomic_load_explicit(&t->peer->gone, memory_order_relaxed)) ||
	       rmx_near_doubtful(t->near);
}

/* The questions of rmx_check(), which calls this first, without its words. */
static inline bool rmx_passes(const struct rmaext_window *w, int64_t rank,
			      uint64_t offset, uint64_t len, int access)
{
	const struct rmx_target *t;

	if (rank < 0 || rank >= w->count)
		return false;
	t = &w->targets[rank];
	return offset <= t->size && len <= t->size - offset &&
	       (t->access & access) == access && !rmx_doubtful(t);
}

/* bell.c */
void rmx_bell_ring(struct rmx_bell *bell);

/*
 * Memory there has changed, for those who wait for that. Behind a seq_cst
 * fence, or a seq_cst change.
 */
static inline void rmx_tell(struct rmx_bell *bell)
{
	if (bell && atomic_load(&bell->listening))
		rmx_bell_ring(bell);
}

/* What a flush would do, if there is nothing to wait for and no error. */
static inline bool rmx_flushed(const struct rmaext_window *w, int64_t rank)
{
	int64_t end = rank < 0 ? w->count : rank + 1;

	/* orders what the direct route stored */
	atomic_thread_fence(memory_order_seq_cst);
	w = w->root;
	if (rank >= 0 && rmx_doubtful(&w->targets[rank]))
		return false;
	for (rank = rank < 0 ? 0 : rank; rank < end; rank++) {
		const struct rmx_target *t = &w->targets[rank];

		rmx_tell(t->bell);
		/* in this order: an error is left before it counts down */
		if (atomic_load(&t->pending) >= RMX_A_PUT ||
		    atomic_load(&t->error))
			return false;
	}
	return true;
}

/*
 * Does the window have these bytes of this rank's memory? Asked at the target;
 * of a dynamic window its offsets are addresses, and the caller has the lock.
 */
static inline bool rmx_has(const struct rmaext_window *w, uint64_t offset,
			   uint64_t len)
{
	const struct rmx_target *t = &w->targets[w->self];

	if (w->attached)
		return rmx_attached_has(w->attached, offset, len);
	return t->map && offset <= t->size && len <= t->size - offset;
}

static inline char *rmx_own(const struct rmaext_window *w, uint64_t offset)
{
	return (char *)((uintptr_t)w->targets[w->self].map + offset);
}

/* Aligned elements in one piece; others may look at them meanwhile. */
#define RMX_COPY_AS(type)                                              \
	do {                                                           \
		type value;                                            \
                                                                       \
		if ((uintptr_t)to % sizeof(value))                     \
			break;                                         \
		memcpy(&value, from, sizeof(value));                   \
		__atomic_store_n((type *)to, value, __ATOMIC_RELAXED); \
		return;                                                \
	} while (0)

static inline void rmx_copy(void *to, const void *from, uint64_t len)
{
	switch (len) {
	case 0:
		return; /* and to may be NULL */
	case 1:
		RMX_COPY_AS(uint8_t);
		break;
	case 2:
		RMX_COPY_AS(uint16_t);
		break;
	case 4:
		RMX_COPY_AS(uint32_t);
		break;
	case 8:
		RMX_COPY_AS(uint64_t);
		break;
	}
	memmove(to, from, len);
}

static inline void rmx_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* cells.c: kinds are those of rmaext_many, op is that of an update */
bool rmx_cells_valid(int kind, int op, int type, size_t unit);
int rmx_cells_access(int kind, int op, bool fetch); /* rights it needs */
/* puts and gets */
void rmx_cells_move(int kind, size_t unit, void *const *cells, size_t n,
		    const char *values, size_t step, char *results);

/* many.c: the arguments of rmaext_many */
struct rmx_many {
	struct rmaext_window *window;
	int kind, op, type;
	uint64_t unit, count;
	int ones;
	const int64_t *ranks, *offsets;
	const void *values;
	void *results;
	uint64_t scale; /* bytes that an offset counts; 0: as the window has it
			 */
};

/*
 * All of it, where it is short, plain and by memory. False: nothing was done,
 * and rmaext_many() does it, or knows why not. The caller keeps the window
 * open.
 */
bool rmx_many_direct(const struct rmx_many *many, int *ret_p);

/* elements are runs; takes over strides, which malloc() gave, in any case */
int rmx_many_strided(struct rmaext_window *window, int kind,
		     struct rmx_strides *strides, void *buf,
		     struct rmaext_many *many_p);

/* executor.c */
uint64_t rmx_name(const void *address, size_t len);
int rmx_executor_start(struct rmaext_fabric *fabric);
void rmx_executor_stop(struct rmaext_fabric *fabric, bool stays);
/* before the endpoint is closed: owners may give up at any time */
void rmx_executor_mute(struct rmaext_fabric *fabric);
bool rmx_executor_owns(const struct rmaext_fabric *fabric, const void *context);
/* by the CQ's reader: a completion, and after each batch of them */
void rmx_executor_complete(struct rmaext_fabric *fabric, void *context,
			   size_t len, const struct rmaext_error *failure);
void rmx_executor_retry(struct rmaext_fabric *fabric);
bool rmx_executor_sends(const struct rmaext_fabric *fabric);
void rmx_executor_pay(struct rmaext_fabric *fabric);
static inline bool rmx_executor_owes(const struct rmaext_fabric *fabric)
{
	return atomic_load_explicit(&fabric->executor.owed_to,
				    memory_order_relaxed);
}
static inline bool rmx_executor_waits(const struct rmaext_fabric *fabric)
{
	return fabric->executor.queue || fabric->executor.early ||
	       atomic_load(&fabric->executor.stalled);
}
/* executor.lock held */
struct rmx_box *rmx_box_take(struct rmx_executor *executor);
void rmx_box_free(struct rmx_executor *executor, struct rmx_box *box);

/* serve.c */
enum rmx_served {
	RMX_ANSWER,
	RMX_NOTHING,
	RMX_NO_WINDOW, /* yet */
	RMX_NO_GUARD   /* a part may be done */
};

bool rmx_same_token(const uint8_t *a, const uint8_t *b);
enum rmx_served rmx_serve(struct rmaext_fabric *fabric,
			  struct rmx_landing *landing, bool may_wait,
			  int64_t ns);
/* fabric->lock held: this window is no target any more */
void rmx_serve_no_more(struct rmaext_fabric *fabric,
		       const struct rmaext_window *window);

/* range.c: the same for ranges; the length of the results */
int rmx_ranges_check(const struct rmaext_window *window, const char *data,
		     size_t len, size_t *results_p);
int rmx_ranges_apply(struct rmaext_window *window, const char *data,
		     char *results, struct rmx_done *done, int64_t ns);

/* request.c; executor.lock held */
void rmx_batch_fail(struct rmx_box *box, const struct rmaext_error *record);
bool rmx_batch_answer(struct rmx_box *box, const struct rmx_reply *reply,
		      const char *values, size_t len);

/* message.c */
enum rmx_step rmx_message_step(struct rmaext_op **op_p);
int rmx_message_put(struct rmaext_window *window, int64_t rank, uint64_t offset,
		    const void *buf, uint64_t len, int slot,
		    struct rmaext_op **op_p);
int rmx_message_post(struct rmaext_window *window, int64_t rank,
		     uint64_t offset, const void *buf, uint64_t len, int slot);
void rmx_message_sent(struct rmaext_fabric *fabric, struct rmx_box *box,
		      const struct rmaext_error *failure);
void rmx_message_answered(struct rmaext_fabric *fabric, const char *data,
			  size_t len);
void rmx_message_retry(struct rmaext_fabric *fabric);
/* executor.lock held; of all who give a credit back */
void rmx_message_pump(struct rmaext_fabric *fabric, struct rmaext_peer *peer);
/* without the lock */
int rmx_message_send(struct rmaext_fabric *fabric, struct rmx_box *box,
		     const struct iovec *iov, size_t count);
/* of an operation that nobody waits for any more */
void rmx_message_give_up(struct rmaext_op *op);
/* of all those to that rank (-1: to any) that were not waited for */
void rmx_message_forget(struct rmaext_window *window, int64_t rank);
/* executor.lock held */
void rmx_message_fail_all(struct rmaext_fabric *fabric,
			  const struct rmaext_error *record);
struct rmx_box *rmx_message_new(struct rmaext_fabric *fabric,
				struct rmaext_peer *peer,
				const struct rmaext_window *window);
void rmx_message_drop(struct rmx_executor *executor, struct rmx_box *box);
void rmx_message_free(struct rmx_executor *executor, struct rmx_box *box);

/* sleep.c */
#define RMX_NAP_MAX ((int64_t)1000 * 1000) /* between looks, without a fd */
enum { RMX_BY_NETWORK = 1, RMX_BY_OTHER = 2, RMX_INTERRUPTED = 4 };
int64_t rmx_now(void);
void rmx_futex_sleep(atomic_uint *word, unsigned int value, int64_t ns);
void rmx_futex_wake(atomic_uint *word);
bool rmx_busy(const struct rmx_progress *progress);
int rmx_doze(struct rmaext_fabric *fabric, int other_fd, int64_t ns,
	     int64_t *nap);

/* progress.c */
int rmx_progress_start(struct rmaext_fabric *fabric, int thread, int64_t spin);
void rmx_progress_stop(struct rmaext_fabric *fabric);
void rmx_progress_settle(struct rmaext_fabric *fabric);
/* the caller has read the queue, and now sleeps elsewhere */
void rmx_progress_hand_over(struct rmaext_fabric *fabric);
/*
 * step() more until RMX_DONE; RMAEXT_PENDING at `until` or after a signal.
 * Spins `spins` times as long as usual before it sleeps.
 */
int rmx_wait(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
	     enum rmx_step (*step)(void *), void *arg, int64_t until,
	     unsigned int spins);
void rmx_look(struct rmaext_fabric *fabric);
void rmx_progress_call(struct rmaext_fabric *fabric);
int rmx_deadline(struct rmaext_peer *peer, int64_t rank, const char *call,
		 int64_t timeout, int64_t *deadline, bool moved);

#endif
