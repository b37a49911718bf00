/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages: what goes over the wire, and who holds it. The words of this room:
 *
 * request, reply: the message of an origin to a target, and its answer.
 * credit: a peer may have so many requests without a reply at a time; each
 *     request takes a credit until it is answered or given up.
 * line: the operations to one peer of which some part is still to be sent, in
 *     the order in which they were begun.
 * bulk: an operation too long for one send buffer. It goes in parts.
 * loaned: values that the provider sends from where their owner has them.
 * coalesced: single short updates, or puts, that are one operation in the line;
 *     see coalesce.c.
 * early: a request to a window that this rank has not created yet. It waits.
 * blocked: a request whose guard of updates was not free, or one behind it from
 *     the same origin. It waits.
 * fat: a receive buffer of which more pages are in use than usually stay.
 */
#ifndef RMAEXT_MESSAGE_H
#define RMAEXT_MESSAGE_H

#include "dtype/places.h"
#include "net/endpoint.h"

#define RMX_SEND_BUFFERS 4096 /* requests of this rank, at most */
#define RMX_SEND_REGION 64    /* send buffers that are registered together */
/* bytes; a send buffer is four pages, and a message within rxm's 16 KiB */
#define RMX_MESSAGE 16192
#define RMX_SEND_BYTES (RMX_SEND_BUFFERS * sizeof(struct rmx_send_buffer))
#define RMX_RECEIVE_BUFFERS 2048     /* messages that came, at most */
#define RMX_MOST ((size_t)512 << 10) /* bytes of values in one message */
#define RMX_MESSAGE_PIECES 3	     /* that a message is sent from */
#define RMX_CREDITS 4u		     /* of a peer, at most */
/* Bytes of copies that wait for a peer; a copy counts as so many more. */
#define RMX_QUEUED ((size_t)256 << 10)
#define RMX_OVERHEAD 64
#define RMX_CLOSED 64	       /* closed windows whose tokens are remembered */
#define RMX_CHAINS 256	       /* lists of requests that wait, by origin */
#define RMX_REQUEST 0x33516d72 /* "rmQ3", in native byte order */
#define RMX_REPLY 0x32416d72   /* "rmA2" */

/* The header of a request. `count` items follow. */
struct rmx_request_header {
	uint32_t magic;
	uint32_t rank;		  /* of the origin */
	uint8_t token[RMX_TOKEN]; /* of the window */
	uint64_t id;
	uint64_t name; /* rmx_name of the origin's endpoint */
	uint32_t count;
	uint8_t replies; /* 1: a reply to the target's request is at its end */
	uint8_t sender;	 /* as enum rmx_sender */
	uint8_t nothing[2];
};

/*
 * Who sent a request: a rank, or a client, which is a process of another job
 * (see client.c); a client's first one has its introduction at the end, and so
 * has the message that only repeats it, which is not answered.
 */
enum rmx_sender {
	RMX_RANK = 0,
	RMX_CLIENT = 1,
	RMX_WITH_INTRODUCTION = 2,
	RMX_INTRODUCTION_ALONE = 3
};

struct rmx_introduction {
	uint8_t secret[RMX_TOKEN]; /* of the receiver's endpoint */
	uint16_t len;
	uint8_t address[238]; /* of the sender's endpoint, len bytes */
};

enum { RMX_WITH_FETCH = 1, RMX_WITH_NOTIFY = 2 }; /* flags of an item */

/*
 * An item: one operation on elements. Behind it are their places: of RMX_ROW
 * none, as they lie one after another from `offset` on; of RMX_ELEMENTS so many
 * offsets in bytes; of RMX_LOOPS what rmx_loops_pack() wrote. Then come their
 * values. With RMAEXT_CSWAP each is two elements, to compare with and new; but
 * of a row all those to compare with come first. With RMAEXT_NO_OP there are
 * none. The next item begins at a multiple of RMX_ALIGN, and so do its results
 * in the reply.
 */
struct rmx_item {
	uint64_t offset; /* bytes, of a row; else 0 */
	uint64_t count;	 /* elements */
	uint32_t unit;	 /* bytes of each; 1: a row that is put or got */
	uint8_t kind;	 /* as RMAEXT_PUT */
	uint8_t op;	 /* of an update, as RMAEXT_SUM */
	uint8_t type;	 /* as RMAEXT_INT8 */
	uint8_t flags;
	uint16_t slot; /* to be notified, RMX_WITH_NOTIFY; else 0 */
	uint8_t form;  /* as enum rmx_form */
	uint8_t zero[5];
};

#define RMX_ALIGN ((size_t)16)
#define RMX_ALIGNED(n) (((n) + RMX_ALIGN - 1) & ~(RMX_ALIGN - 1))

/* The header of a reply; the results follow. */
struct rmx_reply_header {
	uint32_t magic;
	int32_t status;
	uint64_t id;
	uint8_t token[RMX_TOKEN];
};

/*
 * The least that a provider has to take in one message: short operations, or
 * all their results.
 */
#define RMX_LEAST (RMX_MESSAGE + sizeof(struct rmx_reply_header))

/* The longest message; a receive buffer has room for the longest reply too. */
#define RMX_HEADERS \
	(sizeof(struct rmx_request_header) + sizeof(struct rmx_item))
#define RMX_LONGEST (RMX_HEADERS + RMX_MOST)
/* The most bytes of a piece of an operation that has many, see places.h. */
#define RMX_PIECE_MOST ((uint64_t)(RMX_MESSAGE - RMX_HEADERS))
#define RMX_RECEIVE_BYTES (RMX_LONGEST + 128 + RMX_MOST)

enum rmx_state {
	RMX_FREE,
	RMX_ASKING,    /* a send buffer has a request of ours */
	RMX_RECEIVING, /* a receive is posted, or is queued to be posted */
	RMX_REPLYING,  /* the provider sends the reply */
	RMX_WAITING,   /* the provider did not take the reply: it is queued */
	RMX_EARLY,     /* the request waits for its window */
	RMX_BLOCKED,   /* the request waits for the guard of updates */
};

/* A request of ours: the context of its sending. */
struct rmx_send_buffer {
	struct rmx_call call; /* first: the completion gives back its address */
	/* NULL: it was given up; unless it is shared, of those after it too */
	struct rmx_op *op;
	struct rmaext_peer *peer; /* the target */
	/* among the free ones, or in peer->line->send_buffers */
	struct rmx_send_buffer *next, **prev;
	uint32_t generation;  /* tells a late reply from the one awaited */
	uint32_t results;     /* bytes of results that the reply must have */
	struct rmx_some some; /* if shared: the places; if bulk: the part */
	uint8_t state;
	bool shared; /* it has a part of an operation, others may have more */
	bool bulk;   /* and that is a bulk operation */
	bool loaned;
	bool sent;  /* the provider is done with data and loaned values */
	bool ended; /* it was answered before it was `sent` */
	union {
		_Alignas(64) char data[RMX_MESSAGE];
		struct rmx_request_header request; /* with which it begins */
	};
};

/* All items of a request that was checked. */
struct rmx_sum {
	uint64_t elements, bytes; /* there, a row being one element */
	size_t results;		  /* bytes in the reply */
};

/* How much of a blocked request has been carried out. */
struct rmx_done {
	uint32_t items;
	uint64_t elements; /* of the next item, besides */
};

/* A message that came: the context of its receive, then of its reply's. */
struct rmx_receive_buffer {
	struct rmx_call call;
	struct rmaext_peer *peer;	 /* gets the reply */
	struct rmx_receive_buffer *next; /* in the list of its state */
	/* early or blocked: the next in its list of am->chains */
	struct rmx_receive_buffer *chain;
	union {
		char *data; /* RMX_RECEIVE_BYTES; NULL: never used */
		/* with which it begins, once message_take() has seen one */
		const struct rmx_request_header *request;
	};
	struct rmx_region region; /* of data, if it has to be registered */
	int64_t since;		  /* when it came, or its reply began to wait */
	int64_t patience;	  /* ns that the reply to a rank waits */
	int refusal;		  /* of the client that sent it, or 0 */
	struct rmx_sum sum;
	struct rmx_done done;
	size_t len;
	size_t reply, reply_len; /* where the reply is in data */
	uint8_t state;
	bool fat;
};

/* What goes to a peer as messages, see send_queue.c; am->lock guards it. */
struct rmx_line {
	unsigned int requests; /* that are not answered */
	unsigned int bulks;    /* of these, parts of `bulk` */
	struct rmx_op *bulk;   /* the bulk operation that is on its way */
	struct rmx_send_buffer *send_buffers; /* of the requests */
	struct rmx_op *queue, **queue_end;    /* the line */
	size_t queued;			      /* bytes of copies in the line */
	/* the last in line, a coalesced one that may still grow; or NULL */
	_Atomic(struct rmx_op *) open;
	atomic_uint singles; /* went by themselves since the last flush */
	struct rmaext_peer *next_stalled;
	bool stalled; /* the provider took nothing: it is in am->stalled */
	int64_t introduction; /* when the own one last went there; 0: never */
	/* the rest belongs to the CQ's reader */
	unsigned int replies; /* that the provider sends, or did not take yet */
	int64_t heard;	      /* a client: when it last sent something */
	bool turned;	      /* a client that has no place, but is told so */
};

struct rmx_am {
	/*
	 * Guards the send buffers, mute, each peer's line, and operations as
	 * far as replies change them.
	 */
	pthread_mutex_t lock;
	/* RMX_SEND_BUFFERS, whose pages come as they are used */
	struct rmx_send_buffer *send_buffers;
	struct rmx_send_buffer *free;
	struct rmx_region send_regions[RMX_SEND_BUFFERS / RMX_SEND_REGION];
	unsigned int sends_made; /* send buffers that were ever used */
	unsigned int credits;	 /* of each peer */
	size_t bulk;		 /* bytes of values in a message, at most */
	uint64_t name;		 /* of the own endpoint */
	bool mute;		 /* nothing is sent any more */
	/* peers to which the provider took no message */
	_Atomic(struct rmaext_peer *) stalled;
	/* a reply that may go with a request to that peer: see reply_defer() */
	_Atomic(struct rmaext_peer *) deferred_to;
	struct rmx_reply_header deferred;
	int64_t deferred_until; /* when it is dropped */
	/* the rest belongs to the CQ's reader */
	struct rmx_receive_buffer *receive_buffers; /* RMX_RECEIVE_BUFFERS */
	/* those whose receives failed, the oldest first */
	struct rmx_receive_buffer *failed, **failed_end;
	unsigned int receives_made; /* receive buffers that were ever used */
	unsigned int fat;	    /* of these */
	unsigned int receiving;	    /* receives that are posted */
	unsigned int incoming;	    /* receive buffers in any use */
	/* those that the provider did not take: replies and receives */
	struct rmx_receive_buffer *queue, **queue_end;
	unsigned int queued;
	/* early and blocked requests, in their order; and by their origin */
	struct rmx_receive_buffer *early, **early_end;
	struct rmx_receive_buffer *chains[RMX_CHAINS];
	unsigned int early_count; /* without those that are blocked */
	unsigned int links;	  /* fabric->links, when all were tried */
	/* fabric->lock guards the rest, clients apart */
	struct rmaext_window *recent;	       /* of the last request */
	uint8_t closed[RMX_CLOSED][RMX_TOKEN]; /* the last windows to go */
	unsigned int closed_next;
	uint8_t secret[RMX_TOKEN]; /* that admits clients; zeros: none may come
				    */
	unsigned int clients;	   /* that have a place; the CQ's reader's */
	unsigned int turned;	   /* that are told that they have none */
};

#endif
