/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A fabric is one opened provider with its endpoint: its peers, the memory that
 * is registered with it, its windows, and the progress of its operations.
 */
#ifndef RMAEXT_ENDPOINT_H
#define RMAEXT_ENDPOINT_H

#include <sys/socket.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "admission/admission.h"
#include "net/progress.h"
#include "net/registration_cache.h"
#include "shm/neighbour.h"

/* access to own memory that the network reads, and to such that it writes */
#define RMX_SOURCE (FI_SEND | FI_WRITE)
#define RMX_RESULT (FI_RECV | FI_READ)
#define RMX_COMPLETIONS 2048 /* that the CQ holds: of chunks, of messages */
#define RMX_NAME 1024	     /* bytes of an address at most, which ucx has */
#define RMX_NAMES 1024	     /* chains of peers, by rmx_name */

/* libfabric's functions that are not inline, taken from one opened copy. */
struct rmaext_library {
	void *handle;
	__typeof__(fi_getinfo) *getinfo;
	__typeof__(fi_freeinfo) *freeinfo;
	__typeof__(fi_dupinfo) *dupinfo;
	__typeof__(fi_fabric) *fabric;
	__typeof__(fi_version) *version;
	__typeof__(fi_strerror) *strerror;
	bool shared;	      /* others may have initialised it */
	atomic_bool tune;     /* its next fi_getinfo has settings of ours */
	char path[4096];      /* of the file, without links */
	char plugins[4200];   /* folder that its providers are loaded from */
	pthread_mutex_t lock; /* held around fi_getinfo and its setenv */
};

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
	fi_addr_t addr;
	int pidfd;	  /* readable once the peer's process is gone; or -1 */
	atomic_bool gone; /* the process or its endpoint was seen to be gone */
	atomic_bool serves; /* a progress thread of it answers messages */
	bool guest; /* no rank: it is answered only, and may be removed */
	struct rmx_probe probe;
	atomic_uint contexts; /* operations and chunks on their way to it */
	uint64_t name;	      /* rmx_name of its address */
	struct rmaext_peer *next, *same; /* in the list, in the chain */
	atomic_uint answers;   /* number of its answers: it makes progress */
	struct rmx_line *line; /* the messages to it, of am/ */
};

/* What all registrations of a fabric share; see region.c. */
struct rmx_registrar {
	pthread_mutex_t lock; /* guards asked, and who reads eq */
	uintptr_t asked;      /* context of the last that eq reports */
	/* reports registrations, where the provider needs it; or NULL */
	_Atomic(struct fid_eq *) eq;
	atomic_uint_fast64_t opened, closed; /* numbers of registrations */
};

/* The barriers over the network; see xfer/network_barrier.c. */
struct rmx_meetings {
	pthread_mutex_t lock; /* guards the list */
	struct rmaext_network_barrier *first;
	atomic_uint inside; /* meetings that this rank waits in */
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
	size_t chunk; /* bytes of a read or write at most */
	size_t least; /* bytes of one at least, unless it is empty */
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
	atomic_uint guests;	/* that have a peer */
	struct rmx_rundown rundown;
	struct rmaext_fabric *next; /* in the list of closed fabrics */
	/* only the reader of the CQ changes these two */
	atomic_uint_fast64_t completed, failed;
	atomic_uint_fast64_t wakeups;
	struct rmx_registrar registrar;
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

/* -- library.c */

/*
 * Looks a symbol up in an opened library. Returns its address, or NULL if the
 * library has none of that name and version.
 */
void *rmx_symbol(void *handle, const char *name, const char *version);

/*
 * Calls fi_getinfo, with the environment and the signals as this library needs
 * them. Any thread may call it; it takes lib->lock. Returns what fi_getinfo
 * returns; the caller frees *info_p by lib->freeinfo().
 */
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p);

/*
 * Set those of `count` environment variables (name, value) that are not set, as
 * ours[] notes, and unset them again. The lock of the library is held between
 * the two calls.
 */
void rmx_settings_hold(struct rmaext_library *lib,
		       const char *const (*settings)[2], size_t count,
		       bool *ours);
void rmx_settings_give_back(struct rmaext_library *lib,
			    const char *const (*settings)[2], size_t count,
			    const bool *ours);

/* -- endpoint.c */

/*
 * Makes the hints for fi_getinfo; a NULL provider or domain means any. Returns
 * what the caller frees by lib->freeinfo(), or NULL if memory is short.
 */
struct fi_info *rmx_hints(struct rmaext_library *lib, const char *provider,
			  const char *domain, int mr_basic);

/*
 * Returns a copy of the first entry of exactly that provider, and of that
 * domain unless it is NULL, which the caller frees by lib->freeinfo(), or NULL.
 * Frees the list, which may be NULL. The name "tcp" in the hints finds
 * "tcp;ofi_rxm" as well, and rxm of 1.17 does not heed the name of a domain.
 */
struct fi_info *rmx_info_exact(struct rmaext_library *lib,
			       struct fi_info *infos, const char *provider,
			       const char *domain);

/*
 * Opens all up to an enabled endpoint that takes messages of `least_message`
 * bytes. The thread that opens the fabric calls it, before others know of it.
 * Returns 0, or an error with a record: the next two functions are then due to
 * close what was opened.
 */
int rmx_endpoint_open(struct rmaext_fabric *fabric,
		      const struct rmaext_fabric_options *options,
		      size_t least_message);

/*
 * Close the endpoint, and then all that it was made of. No other thread uses
 * the fabric. They record the first error, and set *ret_p unless an earlier
 * error is there. `stays` says that operations keep the domain busy, so that
 * its errors, and those of the fabric, do not count.
 */
void rmx_endpoint_close(struct rmaext_fabric *fabric, int *ret_p);
void rmx_domain_close(struct rmaext_fabric *fabric, bool stays, int *ret_p);

/* Returns a hash of an endpoint's address, in eight bytes. It is no secret. */
uint64_t rmx_name(const void *address, size_t len);

/*
 * Adds the address of a peer, and links the peer, which is zeros, to the
 * fabric. The caller is inside a call on the fabric and does not hold its lock.
 * Returns 0, and the fabric owns peer and pidfd (-1: none), or an error with a
 * record, and they stay the caller's.
 */
int rmx_peer_insert(struct rmaext_fabric *fabric, const void *address,
		    size_t len, int pidfd, struct rmaext_peer *peer);

/* Returns how many ranks and guests may send messages. */
static inline unsigned int rmx_peers_expected(const struct rmaext_fabric *f)
{
	return atomic_load(&f->ranks) + atomic_load(&f->guests);
}

/*
 * Removes a guest, to which nothing is on its way. Only the CQ's reader calls
 * it, which then frees the peer.
 */
void rmx_peer_remove(struct rmaext_fabric *fabric, struct rmaext_peer *peer);

/*
 * Returns the peer of that name, the last one added that is not known to be
 * gone if there are several, or NULL. Guests are found only by the CQ's reader,
 * which asks for them: it alone keeps them. Takes the lock of the fabric.
 */
struct rmaext_peer *rmx_peer_find(struct rmaext_fabric *fabric, uint64_t name,
				  bool guests);

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

/* -- region.c: any thread inside a call on the fabric may call these */

/*
 * Registers memory, in the steps that the provider demands. `flags` are those
 * of fi_mr_regattr; FI_RMA_EVENT asks to count writes, whether or not the
 * provider wants to be told. `lazy` leaves the pages for rmx_region_refresh().
 * *attr is changed. May block for up to 10 s. Returns 0, and the caller owns
 * the region, or an error with a record.
 */
int rmx_region_open(struct rmaext_fabric *fabric, struct fi_mr_attr *attr,
		    uint64_t flags, bool lazy, struct rmx_region *region_p);

/*
 * Deregisters memory; a region without registration is none. Returns 0, or an
 * error without a record, such as -FI_EBUSY: the region then stays.
 */
int rmx_region_close(struct rmaext_fabric *fabric, struct rmx_region *region);

/*
 * Tells a provider that wants to know it that pages of a region have come or
 * changed. Returns 0, or an error with a record.
 */
int rmx_region_refresh(struct rmaext_fabric *fabric, struct rmx_region *region,
		       const struct iovec *iov, size_t count);

/*
 * Registers memory that only this side uses, with a key that no other region
 * has. Where FI_MR_LOCAL is demanded only. Returns as rmx_region_open() does.
 */
int rmx_region_local(struct rmaext_fabric *fabric, void *addr, size_t len,
		     uint64_t access, struct rmx_region *region_p);

/* Returns the descriptor that transfers take, or NULL if it is not registered.
 */
void *rmx_region_desc(const struct rmx_region *region);

/* -- registration.c */

/*
 * Deregisters the memory of all windows when the fabric closes. The structs
 * stay until their owners close them. Records the first error, as above.
 */
void rmx_memories_close(struct rmaext_fabric *fabric, int *ret_p);

/* -- liveness.c */

/*
 * Prepares the probe of a peer at that address, for providers whose address is
 * that of a TCP socket; for others it never asks. end closes its connection.
 */
void rmx_probe_init(struct rmx_probe *probe, const struct fi_info *info,
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
