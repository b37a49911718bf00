/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What any network is to this library: the table of its functions, with what
 * each must do, and the limits of an endpoint that is open. Rooms above see
 * nothing else of it; net/libfabric/ and net/ucx/ fill the table.
 *
 * Codes are 0 or -fi_errno, also of a network that has other numbers. A code
 * comes without an error record unless its function says that there is one.
 */
#ifndef RMAEXT_TRANSPORT_H
#define RMAEXT_TRANSPORT_H

#include <sys/uio.h>

#include "base/common.h"

struct rmaext_fabric;

/* Access to own memory that the network reads, and to such that it writes. */
#define RMX_SOURCE 1u
#define RMX_RESULT 2u
/* Access of others to memory of a window. */
#define RMX_REMOTE_READ 4u
#define RMX_REMOTE_WRITE 8u

/*
 * The context of a call that completes later: room of the transport's until
 * then. It comes first in its struct, whose address the completion gives back.
 */
struct rmx_call {
	void *of_transport[8];
};

#define RMX_POLL_MOST 16 /* completions of one poll */

struct rmx_completion {
	void *context; /* of the call; any other value is none of ours */
	size_t len;    /* of a message that came */
};

/* Registered memory. */
struct rmx_region {
	void *of_transport; /* NULL: it is not registered */
	void *desc;	    /* what calls that use the memory take; or NULL */
	void *writes;	    /* what counts those of others to it; or NULL */
};

/* Memory that is to be registered. */
struct rmx_registration {
	const struct iovec *iov;
	size_t count;
	unsigned int access; /* RMX_SOURCE and so on */
	uint64_t key;	     /* asked for, where the transport chooses none */
	const struct rmaext_memory_options *options; /* a window's; or NULL */
};

/* Where a read or write goes. */
struct rmx_remote {
	uint64_t peer;	/* as `add` gave it */
	uint64_t place; /* byte of the region, or address, see limits */
	uint64_t key;
};

/* What a transport's library, once it is opened, begins with. */
struct rmx_library {
	const struct rmx_transport *transport;
	const void
		*code; /* an address in it: such handlers of signals are its */
};

/* What an endpoint is like; `open` fills it. */
struct rmx_limits {
	char provider[64];    /* its name */
	size_t message;	      /* bytes of a message at most */
	size_t chunk;	      /* bytes of a read or write at most */
	size_t least;	      /* bytes of one at least, unless it is empty */
	size_t copied;	      /* bytes that inject and put_copy take */
	size_t pieces;	      /* of memory that a message is sent from */
	size_t region_pieces; /* of memory in one region */
	uint64_t keys;	      /* that registrations can ask for at a time */
	bool in_order;	      /* messages to a peer come in order */
	bool ip;	      /* addresses begin with a family, as sockaddr */
	bool padded; /* their lengths differ: zeros may follow a peer's */
	/*
	 * An address is that of a listening TCP socket. The kernel refuses a
	 * connection to a dead one, and a put costs as much as a message.
	 */
	bool tcp;
	bool registers; /* own memory must be registered, too */
	bool bound;	/* regions close before the endpoint does */
	bool addressed; /* a place is an address of the target's */
	bool raw_keys;	/* keys are mapped; see key_map */
	bool devices;	/* it reaches memory of devices */
};

struct rmx_transport {
	/* -- the endpoint; the thread that opens or closes it is alone */

	/*
	 * Opens all up to an endpoint that takes messages of `least_message`
	 * bytes, and sets f->limits, f->address and f->progress.cq_fd (-1:
	 * there is none to sleep on). After an error, which has a record, close
	 * and end are due, too.
	 */
	int (*open)(struct rmaext_fabric *f,
		    const struct rmaext_fabric_options *options,
		    size_t least_message);
	/*
	 * Closes the endpoint; then all that it was made of, which `stays` says
	 * is kept busy, so that its errors do not count. They record the first
	 * error, and set *ret_p unless an earlier error is there.
	 */
	void (*close)(struct rmaext_fabric *f, int *ret_p);
	void (*end)(struct rmaext_fabric *f, bool stays, int *ret_p);
	/* Returns words for a code of this transport's. */
	const char *(*words)(const struct rmaext_fabric *f, int code);
	/* Fills in what is not in the limits, of zeros. */
	void (*describe)(const struct rmaext_fabric *f,
			 struct rmaext_fabric_info *info_p);

	/* -- any thread inside a call on the fabric calls these; none waits */

	/*
	 * Makes an address, which is of the own one's kind, a peer. Returns 0
	 * with *peer_p, or an error with a record. Only the CQ's reader
	 * removes one, to which nothing is on its way.
	 */
	int (*add)(struct rmaext_fabric *f, const void *address, size_t len,
		   uint64_t *peer_p);
	void (*remove)(struct rmaext_fabric *f, uint64_t peer);

	/*
	 * Hand a call to the network, which has the buffers until it completes.
	 * -FI_EAGAIN: it takes nothing now; read completions, and try again. A
	 * message completes at its origin when its buffers are free; a write,
	 * when its bytes are in the target's memory. inject and put_copy copy
	 * up to limits.copied bytes, and nobody hears of them. cancel may have
	 * a receive complete, as failed.
	 */
	int (*receive)(struct rmaext_fabric *f, void *buf, size_t len,
		       void *desc, struct rmx_call *call);
	int (*send)(struct rmaext_fabric *f, uint64_t peer,
		    const struct iovec *iov, void **descs, size_t count,
		    struct rmx_call *call);
	int (*inject)(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		      size_t len);
	int (*read)(struct rmaext_fabric *f, const struct rmx_remote *from,
		    void *buf, size_t len, void *desc, struct rmx_call *call);
	int (*write)(struct rmaext_fabric *f, const struct rmx_remote *to,
		     void *buf, size_t len, void *desc, struct rmx_call *call);
	int (*put_copy)(struct rmaext_fabric *f, const struct rmx_remote *to,
			const void *buf, size_t len);
	void (*cancel)(struct rmaext_fabric *f, struct rmx_call *call);

	/* -- the reader of completions alone calls these */

	/*
	 * Makes progress, fills in completions, RMX_POLL_MOST at most, and
	 * returns their number. If failure->code is set, the last one has
	 * failed so; if it has no context, it says that a connection was lost,
	 * and is said again if a message by it completes without a failure.
	 */
	int (*poll)(struct rmaext_fabric *f, struct rmx_completion *done,
		    struct rmaext_error *failure);
	/*
	 * Makes f->progress.cq_fd become readable by whatever comes from now
	 * on. False: something has come since the last poll.
	 */
	bool (*arm)(struct rmaext_fabric *f);
	/*
	 * A connection was lost. Is it the one by which this message went,
	 * which has completed, but was not answered? Then neither it nor its
	 * answer may come: fills in *failure_p. The call's room stays the
	 * transport's until the answer. NULL: the network does not tell, and
	 * those who wait ask whether the peer is there (net/liveness.c).
	 */
	bool (*lost)(struct rmaext_fabric *f, const struct rmx_call *call,
		     struct rmaext_error *failure_p);

	/* -- memory; any thread inside a call on the fabric calls these */

	/*
	 * Registers memory, and may block for up to 10 s. Returns 0, and the
	 * caller owns the region, or an error with a record; -FI_ENOKEY: the
	 * key is taken. deregister may return -FI_EBUSY: the region stays.
	 * refresh says that pages of it have come or changed; its error has a
	 * record.
	 */
	int (*register_memory)(struct rmaext_fabric *f,
			       const struct rmx_registration *what,
			       struct rmx_region *region_p);
	int (*deregister)(struct rmaext_fabric *f, struct rmx_region *region);
	const char *deregister_call; /* its name, for errors */
	int (*refresh)(struct rmaext_fabric *f, struct rmx_region *region,
		       const struct iovec *iov, size_t count);
	/* Returns how often others have written to a region that counts it. */
	uint64_t (*writes)(const struct rmx_region *region);
	/*
	 * Copies the key of a region, of *len bytes, and sets *len; with raw
	 * keys it may change *base, what places count from. An error has a
	 * record.
	 */
	int (*key)(struct rmaext_fabric *f, const struct rmx_region *region,
		   uint64_t *base, void *buf, size_t *len);
	/*
	 * Make of a raw key, of one peer, the eight bytes that reads and writes
	 * take. What was mapped is unmapped before the endpoint closes.
	 */
	int (*key_map)(struct rmaext_fabric *f, uint64_t base, uint8_t *raw,
		       size_t len, uint64_t *key_p);
	void (*key_unmap)(struct rmaext_fabric *f, uint64_t key);
};

#endif
