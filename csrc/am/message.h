/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages: what goes over the wire, and who holds it. */
#ifndef RMAEXT_MESSAGE_H
#define RMAEXT_MESSAGE_H

#include "net/endpoint.h"

/* Many operations in one message; see am.c. */
#define RMX_SEND_BUFFERS 4096 /* messages, at most */
#define RMX_SEND_REGION 64    /* of them, registered together */
#define RMX_MESSAGE \
	16192 /* bytes; with its buffer four pages, within rxm's 16 KiB */
#define RMX_SEND_BYTES (RMX_SEND_BUFFERS * sizeof(struct rmx_send_buffer))
#define RMX_RECEIVE_BUFFERS 2048     /* messages that came, at most */
#define RMX_MOST ((size_t)512 << 10) /* bytes of values in one message */
#define RMX_CREDITS 4u		     /* requests to a peer, without an answer */
#define RMX_CLOSED 64
#define RMX_CHAINS 256
#define RMX_REQUEST 0x32516d72 /* "rmQ2", in native byte order */
#define RMX_REPLY 0x32416d72   /* "rmA2" */

enum rmx_form {
	RMX_ELEMENTS = 1, /* `count` offsets in bytes, then the values */
	RMX_RANGES = 2,	  /* `count` times a struct rmx_range with its values */
	RMX_LOOPS = 3,	  /* as elements, places as rmx_loops_pack() has them */
};

/* Header of a request. */
struct rmx_request_header {
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
	uint8_t visits;	 /* as enum rmx_visitor */
	uint8_t nothing[5];
};

/* Of another job, as guest.c has it; one with a card has it at its end. */
enum rmx_visitor { RMX_RANK = 0, RMX_GUEST = 1, RMX_WITH_CARD = 2 };

struct rmx_card {
	uint8_t door[RMX_TOKEN]; /* the secret of whom it is for */
	uint16_t len;
	uint8_t address[238]; /* of whom it is from */
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
struct rmx_reply_header {
	uint32_t magic;
	int32_t status;
	uint64_t id;
	uint8_t token[RMX_TOKEN];
};

/* What a provider has to take in one: short operations, or all their results.
 */
#define RMX_LEAST (RMX_MESSAGE + sizeof(struct rmx_reply_header))

/* The longest message, and what has room for it with the longest reply. */
#define RMX_HEADERS \
	(sizeof(struct rmx_request_header) + sizeof(struct rmx_range))
#define RMX_LONGEST (RMX_HEADERS + RMX_MOST)
#define RMX_RECEIVE_BYTES (RMX_LONGEST + 128 + RMX_MOST)

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
struct rmx_send_buffer {
	struct fi_context2 context; /* first, as in rmx_context */
	/* whose request it is; both NULL: given up */
	struct rmaext_batch *batch;
	struct rmaext_op *op;	  /* and, unless bulk, those after it */
	struct rmaext_peer *peer; /* where it goes */
	struct rmx_send_buffer *next,
		**prev;	       /* free, or of peer->line->send_buffers */
	struct rmx_lane *lane; /* of the batch */
	uint64_t part;	       /* of an element, or of an operation */
	uint32_t first;	       /* of the lane */
	uint32_t generation;   /* tells late answers from others */
	uint32_t results;      /* bytes that the answer has */
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
struct rmx_receive_buffer {
	struct fi_context2 context;
	struct rmaext_peer *peer;	 /* who gets the reply */
	struct rmx_receive_buffer *next; /* in the list of its state */
	struct rmx_receive_buffer
		*chain;		  /* if early or blocked, in one of these */
	char *data;		  /* RMX_RECEIVE_BYTES; NULL: not yet */
	struct rmx_region region; /* of data, if it has to be registered */
	int64_t since;		  /* it came */
	struct rmx_done done;
	size_t len;
	size_t reply, reply_len; /* where it is in data */
	uint8_t state;
	bool fat; /* many of its pages are in use */
};

/* Messages to a peer, see send_queue.c; guarded by am->lock. */
struct rmx_line {
	unsigned int requests; /* unanswered */
	unsigned int bulks;    /* of these, parts of `bulk` */
	struct rmaext_op *bulk;
	struct rmx_send_buffer *send_buffers; /* of requests */
	struct rmaext_op *queue, **queue_end; /* not all sent yet */
	size_t queued;			      /* bytes of copies in it */
	uint64_t came, went;		      /* through the queue, ever */
	bool denied;			      /* a batch was, of late */
	struct rmaext_peer *next_stalled;
	bool stalled; /* in am->stalled */
};

struct rmx_am {
	/* guards free, made, mute, send_buffers in use, and what peers say of
	 * messages
	 */
	pthread_mutex_t lock;
	struct rmx_send_buffer *send_buffers; /* RMX_SEND_BUFFERS; pages come as
						 they are used */
	struct rmx_send_buffer *free;
	struct rmx_region send_regions[RMX_SEND_BUFFERS / RMX_SEND_REGION];
	unsigned int sends_made; /* send_buffers that were ever used */
	unsigned int credits;	 /* requests a peer may have at a time */
	size_t bulk;		 /* bytes of values in a message, at most */
	size_t iov;		 /* pieces of memory it may be sent from */
	uint64_t name;		 /* of the own endpoint */
	bool mute;		 /* nothing is sent any more */
	bool tagged;		 /* all messages are, see quirks.h */
	/* to whom the provider took no message */
	_Atomic(struct rmaext_peer *) stalled;
	/* a reply that may go with a message to that peer: see defer() */
	_Atomic(struct rmaext_peer *) deferred_to;
	struct rmx_reply_header deferred;
	/* the rest belongs to the CQ's reader */
	struct rmx_receive_buffer *receive_buffers; /* RMX_RECEIVE_BUFFERS */
	/* whose receives failed, the oldest first */
	struct rmx_receive_buffer *failed, **failed_end;
	unsigned int receives_made; /* that were ever used */
	unsigned int fat;
	unsigned int receiving, incoming;
	struct rmx_receive_buffer *queue, **queue_end;
	unsigned int queued;
	/* early or blocked, in their order; and by the name of the origin */
	struct rmx_receive_buffer *early, **early_end;
	struct rmx_receive_buffer *chains[RMX_CHAINS];
	unsigned int early_count; /* those that are not blocked */
	unsigned int links;	  /* fabric->links, when all were tried */
	/* guarded by fabric->lock */
	struct rmaext_window *recent;
	uint8_t closed[RMX_CLOSED][RMX_TOKEN]; /* the last windows to go */
	unsigned int closed_next;
	uint8_t door[RMX_TOKEN]; /* zeros: no guests; guarded by fabric->lock */
	unsigned int guests;	 /* that were admitted: the CQ's reader's */
};

#endif
