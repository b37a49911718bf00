/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The transport over UCX, by UCP: library.c opens a copy of it, endpoint.c an
 * endpoint; peer.c connects peers, and flushes what was put to them; traffic.c
 * hands over calls and reads completions; region.c registers memory, and has
 * its keys; words.c translates.
 *
 * UCP's worker, which is the endpoint, is used by one thread at a time, under
 * the lock of the endpoint. That guards all lists below as well. What UCP calls
 * back, it calls under that lock, too, from within a call of ours: so what is
 * called back changes these lists, frees what has ended, and no more.
 *
 * The completion of a put says that its buffer is free, not where its bytes
 * are. So each is followed by a flush of its peer, whose end says that all puts
 * before it are in the target's memory. One is on its way at a time, and the
 * puts that come meanwhile share the next.
 *
 * Active messages carry messages, whole and eager: UCP promises no order of
 * them, so limits.in_order is false. Tagged ones have an order, but once a
 * receive was matched with the beginning of a message whose sender then dies,
 * nothing gives its buffer back.
 *
 * The loss of a connection ends what is on its way, and the messages whose
 * buffers were free already, unless they are answered: UCP says nothing of
 * those, so the reader is told to ask. UCP does not tell either whether the
 * peer has died, or has refused a write to memory that it deregistered; so the
 * next call makes a new connection, and fails again if nobody is there.
 */
#ifndef RMAEXT_UCX_H
#define RMAEXT_UCX_H

#include "net/endpoint.h"
#include "net/ucx/abi.h"

#define RMX_UCX_KEY 64 /* bytes of a key, or twice, three times as many */

/* UCP's functions, by what comes after "ucp_", of one opened copy. */
#define RMX_UCP_FUNCTIONS(X)          \
	X(get_version)                \
	X(config_read)                \
	X(config_modify)              \
	X(config_release)             \
	X(init_version)               \
	X(cleanup)                    \
	X(worker_create)              \
	X(worker_destroy)             \
	X(worker_get_address)         \
	X(worker_release_address)     \
	X(worker_set_am_recv_handler) \
	X(worker_progress)            \
	X(worker_get_efd)             \
	X(worker_arm)                 \
	X(worker_signal)              \
	X(ep_create)                  \
	X(ep_query)                   \
	X(ep_close_nbx)               \
	X(ep_flush_nbx)               \
	X(am_send_nbx)                \
	X(put_nbx)                    \
	X(get_nbx)                    \
	X(request_free)               \
	X(mem_map)                    \
	X(mem_unmap)                  \
	X(mem_query)                  \
	X(mem_advise)                 \
	X(rkey_pack)                  \
	X(rkey_buffer_release)        \
	X(ep_rkey_unpack)             \
	X(rkey_destroy)

struct rmx_ucp {
#define X(name) __typeof__(ucp_##name) *name;
	RMX_UCP_FUNCTIONS(X)
#undef X
	__typeof__(ucs_status_string) *status_string;
};

struct rmaext_library {
	struct rmx_library head;
	struct rmx_ucp ucp;
	bool any; /* it may use any of its transports: for tests */
};

struct rmx_ucx_calls {
	struct rmx_ucx_call *first, **end; /* NULL, NULL: none */
};

/* A peer; its address is behind it, as UCP has it. */
struct rmx_ucx_peer {
	struct rmx_endpoint *endpoint;
	struct rmx_ucx_peer *next, **prev;
	ucp_ep_h ep;	    /* NULL: there is none */
	unsigned int epoch; /* number of the last ep */
	bool broken;	    /* the ep has failed: it is to be closed */
	bool due;	    /* it is in endpoint->due */
	struct rmx_ucx_peer *next_due;
	struct rmx_ucx_calls written; /* puts since the flush began */
	/* the first put that the flush on its way covers, or NULL: none is */
	struct rmx_ucx_call *flushing;
	_Alignas(8) char address[];
};

/* A key of memory of a peer's, which it has packed. */
struct rmx_ucx_key {
	ucp_rkey_h rkey;    /* as unpacked for peer's ep of that epoch */
	unsigned int epoch; /* 0: it was not unpacked */
	unsigned int users; /* calls on their way */
	bool unmapped;	    /* the last user frees it */
	_Alignas(8) char packed[];
};

/* A call on its way, in the room of a struct rmx_call, or in one of its own. */
struct rmx_ucx_call {
	struct rmx_ucx_call *next;
	struct rmx_endpoint *endpoint;
	struct rmx_ucx_key *key;   /* of a read or write; else NULL */
	void *buf;		   /* of a receive */
	size_t len;		   /* of it, or of the message that came */
	const char *name;	   /* of UCP's function */
	struct rmx_ucx_peer *peer; /* it may have gone; NULL: it has */
	unsigned int epoch;	   /* of its ep */
	ucs_status_t status;
	bool own;     /* a copy is behind it, and nobody hears of it */
	bool free;    /* UCP is done with its buffer */
	bool applied; /* a flush covers it, or it needs none */
};

/* A message that came when no receive was posted. */
struct rmx_ucx_arrival {
	struct rmx_ucx_arrival *next;
	size_t len;
	char data[];
};

struct rmx_endpoint {
	const struct rmx_ucp *ucp;
	ucp_context_h context; /* any thread may use it: registrations */
	ucp_worker_h worker;
	pthread_mutex_t lock; /* guards the worker, and all below */
	bool armed;	      /* the reader may sleep: it is to be woken */
	bool lost; /* a connection, of which the reader has not been told */
	struct rmx_ucx_peer *peers;
	struct rmx_ucx_peer *due; /* to be closed, or to be flushed */
	struct rmx_ucx_calls done, receives;
	struct rmx_ucx_arrival *arrivals, **arrivals_end;
	unsigned int closing; /* connections that are being closed */
	char devices[128];    /* by which its peers are reached */
};

/* The table. */
extern const struct rmx_transport rmx_ucx;

/* -- words.c */

/* Returns the code of a status; 0: it is no error. */
int rmx_ucx_code(ucs_status_t status);

/*
 * Writes the transports that may be used, of those that UCX_TLS names. False:
 * it names none that does RDMA.
 */
bool rmx_ucx_transports(const char *wanted, char *buf, size_t size);

/* -- region.c: what the table has of it */
int rmx_ucx_register(struct rmaext_fabric *f,
		     const struct rmx_registration *what,
		     struct rmx_region *region_p);
int rmx_ucx_deregister(struct rmaext_fabric *f, struct rmx_region *region);
int rmx_ucx_refresh(struct rmaext_fabric *f, struct rmx_region *region,
		    const struct iovec *iov, size_t count);
int rmx_ucx_key(struct rmaext_fabric *f, const struct rmx_region *region,
		uint64_t *base, void *buf, size_t *len);
int rmx_ucx_key_map(struct rmaext_fabric *f, uint64_t base, uint8_t *raw,
		    size_t len, uint64_t *key_p);
void rmx_ucx_key_unmap(struct rmaext_fabric *f, uint64_t key);

/*
 * A call to that peer, which is connected, uses a key; and lets go of it.
 * e->lock is held. use returns 0 or a code without a record.
 */
int rmx_ucx_key_use(const struct rmx_ucx_peer *peer, struct rmx_ucx_key *key);
void rmx_ucx_key_leave(struct rmx_endpoint *e, struct rmx_ucx_key *key);

/* -- peer.c: the caller holds e->lock */

/*
 * Has a connection to the peer begin, unless there is one. Returns 0, or an
 * error with a record.
 */
int rmx_ucx_connect(const struct rmaext_fabric *f, struct rmx_ucx_peer *peer);
/* Ends it at once; what is on its way completes as failed. */
void rmx_ucx_disconnect(struct rmx_ucx_peer *peer);
/* Begins a flush for the puts since the last one, if that has ended. */
void rmx_ucx_flush(struct rmx_ucx_peer *peer);
/* Closes what has failed, and begins the flushes that are due. */
void rmx_ucx_settle(struct rmx_endpoint *e);
/* Has the connection been lost that a call, which has failed, was to take? */
bool rmx_ucx_lost(const struct rmx_ucx_call *call);
/* UCP is done with a call, or its flush is: it may be complete now. */
void rmx_ucx_call_ended(struct rmx_ucx_call *call);
/* Appends a call to a list. */
void rmx_ucx_append(struct rmx_ucx_calls *calls, struct rmx_ucx_call *call);
struct rmx_ucx_call *rmx_ucx_take(struct rmx_ucx_calls *calls);

/* -- traffic.c: what the table has of it, and where UCP brings messages */
int rmx_ucx_receive(struct rmaext_fabric *f, void *buf, size_t len, void *desc,
		    struct rmx_call *call);
int rmx_ucx_send(struct rmaext_fabric *f, uint64_t peer,
		 const struct iovec *iov, void **descs, size_t count,
		 struct rmx_call *call);
int rmx_ucx_inject(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		   size_t len);
int rmx_ucx_read(struct rmaext_fabric *f, const struct rmx_remote *from,
		 void *buf, size_t len, void *desc, struct rmx_call *call);
int rmx_ucx_write(struct rmaext_fabric *f, const struct rmx_remote *to,
		  void *buf, size_t len, void *desc, struct rmx_call *call);
int rmx_ucx_put_copy(struct rmaext_fabric *f, const struct rmx_remote *to,
		     const void *buf, size_t len);
int rmx_ucx_poll(struct rmaext_fabric *f, struct rmx_completion *done,
		 struct rmaext_error *failure);
bool rmx_ucx_arm(struct rmaext_fabric *f);
bool rmx_ucx_message_lost(struct rmaext_fabric *f, const struct rmx_call *call,
			  struct rmaext_error *failure_p);
ucs_status_t rmx_ucx_arrived(void *arg, const void *header,
			     size_t header_length, void *data, size_t length,
			     const ucp_am_recv_param_t *param);

#endif
