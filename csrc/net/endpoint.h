/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A fabric is one opened provider with its endpoint: its peers, the memory that
 * is registered with it, its windows, and the progress of its operations.
 */
#ifndef RMAEXT_ENDPOINT_H
#define RMAEXT_ENDPOINT_H

#include <sys/socket.h>

#include "admission/admission.h"
#include "net/progress.h"
#include "net/registration_cache.h"
#include "shm/neighbour.h"

#define RMX_COMPLETIONS 2048 /* that the CQ holds: of chunks, of messages */
#define RMX_NAME 1024	     /* bytes of an address at most, which ucx has */
#define RMX_NAMES 1024	     /* chains of peers, by rmx_name */

/* Asks whether anybody listens at a peer's address; see liveness.c. */
struct rmx_probe {
	pthread_mutex_t lock;
	int fd;		     /* the connection that is tried, or -1 */
	int64_t since;	     /* the wait that asks, by its last progress */
	int64_t next, pause; /* time of the next try, ns to the one after */
	socklen_t len;	     /* of the address; 0: it never asks */
	struct sockaddr_storage address;
};

struct rmaext_peer {
	uint64_t addr;	  /* as the transport has it */
	int pidfd;	  /* readable once the peer's process is gone; or -1 */
	atomic_bool gone; /* the process or its endpoint was seen to be gone */
	atomic_bool serves; /* a progress thread of it answers messages */
	bool client; /* no rank: it is answered only, and may be removed */
	struct rmx_probe probe;
	atomic_uint contexts; /* operations and chunks on their way to it */
	uint64_t name;	      /* rmx_name of its address */
	struct rmaext_peer *next, *same; /* in the list, in the chain */
	atomic_uint answers; /* number of its answers: it makes progress */
	/* messages in its line that wait for writes, whose chunks count, too */
	atomic_uint held;
	struct rmx_line *line; /* the messages to it, of am/ */
};

/* The barriers over the network; see xfer/network_barrier.c. */
struct rmx_meetings {
	pthread_mutex_t lock; /* guards the list */
	struct rmaext_network_barrier *first;
	atomic_uint inside; /* meetings that this rank waits in */
};

struct rmaext_fabric {
	const struct rmx_transport *transport;
	struct rmaext_library *lib;    /* the transport's */
	struct rmx_endpoint *endpoint; /* the transport's */
	struct rmx_limits limits;
	char address[RMX_NAME]; /* of the endpoint */
	size_t address_len;
	struct rmx_doorbell *doorbell; /* of this process, or NULL */
	struct rmx_progress progress;
	pthread_mutex_t lock; /* guards the lists and chains, and raw_key.c */
	const struct rmx_hooks *hooks;
	struct rmx_transfers *transfers; /* of xfer/ */
	struct rmx_am *am;		 /* of am/ */
	struct rmx_meetings meetings;
	struct rmaext_peer *peers, *named[RMX_NAMES];
	struct rmaext_members *members; /* whose peers come on first use */
	struct rmaext_memory *memories;
	struct rmaext_window *windows;
	atomic_uint links;	/* number of windows that were ever linked */
	unsigned int ranks_met; /* that have a peer; guarded by `lock` */
	atomic_uint ranks;	/* of the largest communicator, or ranks_met */
	atomic_uint clients;	/* that have a peer */
	struct rmx_rundown rundown;
	struct rmaext_fabric *next; /* in the list of closed fabrics */
	/* only the reader of the CQ changes these two */
	atomic_uint_fast64_t completed, failed;
	atomic_uint_fast64_t wakeups;
	/* numbers of registrations */
	atomic_uint_fast64_t regions_opened, regions_closed;
	struct rmx_registration_cache cache;
	struct rmx_admission admission;
};

/* Registered memory of a window. */
struct rmaext_memory {
	struct rmaext_fabric *fabric;
	struct rmx_region region;
	uint64_t base;
	struct rmaext_memory *next, **prev;
	size_t iov_count;
	struct iovec iov[];
};

/* Returns words for a code. */
static inline const char *rmx_words(const struct rmaext_fabric *f, int code)
{
	return f->transport->words(f, code);
}

/* -- endpoint.c */

/*
 * Returns a hash of an endpoint's address, in eight bytes; zeros at its end do
 * not count. It is no secret.
 */
uint64_t rmx_name(const void *address, size_t len);

/*
 * Adds the address of a peer, and links the peer, which is zeros, to the
 * fabric. The caller is inside a call on the fabric and does not hold its lock.
 * Returns 0, and the fabric owns peer and pidfd (-1: none), or an error with a
 * record, and they stay the caller's.
 */
int rmx_peer_insert(struct rmaext_fabric *fabric, const void *address,
		    size_t len, int pidfd, struct rmaext_peer *peer);

/* Returns how many ranks and clients may send messages. */
static inline unsigned int rmx_peers_expected(const struct rmaext_fabric *f)
{
	return atomic_load(&f->ranks) + atomic_load(&f->clients);
}

/*
 * Removes a client, to which nothing is on its way. Only the CQ's reader calls
 * it, which then frees the peer.
 */
void rmx_peer_remove(struct rmaext_fabric *fabric, struct rmaext_peer *peer);

/*
 * Returns the peer of that name, the last one added that is not known to be
 * gone if there are several, or NULL. Clients are found only by the CQ's
 * reader, which asks for them: it alone keeps them. Takes the lock of the
 * fabric.
 */
struct rmaext_peer *rmx_peer_find(struct rmaext_fabric *fabric, uint64_t name,
				  bool clients);

/*
 * Returns 0 if a peer of the own endpoint can have this address, or -FI_EINVAL
 * with a record.
 */
int rmx_address_check(struct rmaext_fabric *fabric, const void *address,
		      size_t len);

/*
 * Enters and leaves a call on the fabric, as each ABI function does. enter
 * returns 0, or -FI_ESHUTDOWN with a record once the fabric is closed.
 */
int rmx_fabric_enter(struct rmaext_fabric *fabric, const char *call);
void rmx_fabric_leave(struct rmaext_fabric *fabric);

/* -- registration.c: any thread inside a call on the fabric may call these */

/*
 * Registers memory that only this side uses, with a key that no other region
 * has; only where limits.registers. Returns 0, and the caller owns the region,
 * or an error with a record.
 */
int rmx_region_local(struct rmaext_fabric *fabric, void *addr, size_t len,
		     unsigned int access, struct rmx_region *region_p);

/*
 * Deregisters memory; a region without registration is none. Returns 0, or an
 * error without a record, such as -FI_EBUSY: the region then stays.
 */
int rmx_region_close(struct rmaext_fabric *fabric, struct rmx_region *region);

/* Records such an error, and sets *ret_p, unless an earlier one is there. */
void rmx_region_closed(struct rmaext_fabric *fabric, int ret, int *ret_p);

/*
 * Deregisters the memory of all windows when the fabric closes. The structs
 * stay until their owners close them. Records the first error, as above.
 */
void rmx_memories_close(struct rmaext_fabric *fabric, int *ret_p);

/* -- liveness.c */

/* Asks the kernel, where it watches the peer's process, whether that is gone.
 */
void rmx_peer_look(struct rmaext_peer *peer);

/*
 * Prepares the probe of a peer at that address, where addresses are those of
 * TCP sockets; elsewhere it never asks. end closes its connection.
 */
void rmx_probe_init(struct rmx_probe *probe, const struct rmx_limits *limits,
		    const void *address, size_t len);
void rmx_probe_end(struct rmx_probe *probe);

/*
 * Goes on asking whether somebody listens at the peer's address. Any thread
 * calls it every now and then, in a wait that has seen no progress since
 * `since`. It does not block. Returns true if the connection was refused: the
 * endpoint is gone.
 */
bool rmx_probe_ask(struct rmx_probe *probe, int64_t now, int64_t since);

#endif
