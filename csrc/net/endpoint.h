/* SPDX-License-Identifier: BSD-3-Clause */
/* An endpoint: its peers, memories, and who reads its CQ. */
#ifndef RMAEXT_ENDPOINT_H
#define RMAEXT_ENDPOINT_H

#include <sys/socket.h>
#include <sys/uio.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include "base/await.h"
#include "net/registration_cache.h"
#include "shm/neighbour.h"

/* access to own memory that the network reads, and that it writes */
#define RMX_SOURCE (FI_SEND | FI_WRITE)
#define RMX_RESULT (FI_RECV | FI_READ)
#define RMX_COMPLETIONS 2048 /* in the CQ: of chunks, and of messages */
#define RMX_NAME 1024 /* bytes of an endpoint's name at most: those of ucx */

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
	char path[4096];      /* without links */
	char plugins[4096];   /* where its providers may be loaded from */
	pthread_mutex_t lock; /* setenv around the first fi_getinfo */
};

/* Asks whether anybody listens at a peer's address; see liveness_probe.c. */
struct rmx_probe {
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
	struct rmx_probe probe;
	atomic_uint contexts; /* of operations and chunks on their way to it */
	uint64_t name;	      /* rmx_name of its address */
	struct rmaext_peer *next;
	atomic_uint answers;   /* that came from it: shows that it moves */
	struct rmx_line *line; /* messages to it, of am/ */
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
	atomic_uint unpark; /* futex: the parked progress thread sleeps on it */
	atomic_bool long_park; /* it does not look up by itself for long */
	int cq_fd;	       /* -1: the provider has none */
	int wake_fd;	       /* calls the progress thread out of poll */
	pthread_t thread;
	bool running;
	int64_t spin; /* ns before a waiting origin sleeps */
};

/*
 * What the rooms above do for those below, of one endpoint. Its CQ's reader
 * calls the first three; the next two, whoever waits or gives up; the last,
 * whoever holds fabric->lock.
 */
struct rmx_hooks {
	/* a completion, by the context of its call; a NULL failure: none */
	void (*complete)(struct rmaext_fabric *fabric, void *context,
			 size_t len, const struct rmaext_error *failure);
	void (*before_read)(struct rmaext_fabric *fabric);
	/* tries again what the provider did not take before */
	void (*after_read)(struct rmaext_fabric *fabric);
	/* Is there something to be tried again that no event announces? */
	bool (*restless)(const struct rmaext_fabric *fabric);
	/* of an operation that goes as messages: as rmx_op_run() posts others
	 */
	enum rmx_step (*send)(struct rmaext_op **op_p);
	void (*give_up)(struct rmaext_op *op);
	/* nobody waits any more for what goes to that rank (-1: to any) */
	void (*forget)(struct rmaext_window *window, int64_t rank);
};

/* What all registrations of a fabric share. */
struct rmx_registrar {
	pthread_mutex_t lock; /* of eq and asked */
	/* registrations that it was to tell of: the last one's context */
	uintptr_t asked;
	/* that says what was registered; or NULL */
	_Atomic(struct fid_eq *) eq;
	atomic_uint_fast64_t opened, closed;
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
	size_t chunk; /* longest single read or write */
	size_t least; /* shortest, of those that are not empty */
	struct rmx_doorbell *doorbell; /* the own process's; or NULL */
	struct rmx_progress progress;
	pthread_mutex_t lock; /* peers, memories, windows, mapping */
	const struct rmx_hooks *hooks;
	struct rmx_transfers *transfers; /* of xfer/ */
	struct rmx_am *am;		 /* of am/ */
	struct rmaext_peer *peers;
	struct rmaext_memory *memories;
	struct rmaext_window *windows;
	atomic_uint links; /* of windows, ever */
	atomic_uint peer_count;
	struct rmx_rundown rundown;
	struct rmaext_fabric *next; /* among the closed */
	/* the CQ's reader alone changes these */
	atomic_uint_fast64_t completed, failed;
	atomic_uint_fast64_t wakeups;
	struct rmx_registrar registrar;
	struct rmx_registration_cache cache;
};

struct rmaext_memory {
	struct rmaext_fabric *fabric;
	struct rmx_region region;
	uint64_t base;
	struct rmaext_memory *next, **prev;
	size_t iov_count;
	struct iovec iov[];
};

/* library.c */
/* NULL: it has none of that name and version */
void *rmx_symbol(void *handle, const char *name, const char *version);
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p);

/* endpoint.c */
struct fi_info *rmx_hints(struct rmaext_library *lib, const char *provider,
			  const char *domain, int mr_basic);

/*
 * Opens all up to an enabled endpoint, which takes messages of so many bytes.
 * What was opened before an error is for the next two to close.
 */
int rmx_endpoint_open(struct rmaext_fabric *fabric,
		      const struct rmaext_fabric_options *options,
		      size_t least_message);
/* The endpoint alone, then all that it was made of; the first error counts. */
void rmx_endpoint_close(struct rmaext_fabric *fabric, int *ret_p);
void rmx_domain_close(struct rmaext_fabric *fabric, bool stays, int *ret_p);
uint64_t rmx_name(const void *address, size_t len);
/* peer: zeros, the caller's until it has been added */
int rmx_peer_insert(struct rmaext_fabric *fabric, const void *address,
		    size_t len, int pidfd, struct rmaext_peer *peer);
int rmx_fabric_enter(struct rmaext_fabric *fabric, const char *call);
void rmx_fabric_leave(struct rmaext_fabric *fabric);

/* region.c */
/* flags: FI_RMA_EVENT also where the provider does not want to be told */
int rmx_region_open(struct rmaext_fabric *fabric, struct fi_mr_attr *attr,
		    uint64_t flags, bool lazy, struct rmx_region *region_p);
/* -FI_EBUSY: it stays */
int rmx_region_close(struct rmaext_fabric *fabric, struct rmx_region *region);
int rmx_region_refresh(struct rmaext_fabric *fabric, struct rmx_region *region,
		       const struct iovec *iov, size_t count);
/* back the bytes with pages, and leave what is in them */
void rmx_touch(void *addr, size_t len, bool writable);

/* registration.c */
void rmx_memories_close(struct rmaext_fabric *fabric, int *ret_p);

/* registration_cache.c; all but start, close, end: where it is demanded only */
/* bounce_bytes: of an operation with a copy, as rmx_bounce_take() gives it */
int rmx_cache_start(struct rmaext_fabric *fabric,
		    const struct rmaext_fabric_options *options,
		    size_t bounce_bytes);
int rmx_cache_close(struct rmaext_fabric *fabric);
void rmx_cache_free(struct rmaext_fabric *fabric);
int rmx_region_local(struct rmaext_fabric *fabric, void *addr, size_t len,
		     uint64_t access, struct rmx_region *region_p);
void *rmx_region_desc(const struct rmx_region *region); /* NULL: of none */
/* result: it is to be written */
int rmx_cache_get(struct rmaext_fabric *fabric, const void *addr, uint64_t len,
		  bool result, struct rmx_cached_buffer **origin_p);
void rmx_cache_put(struct rmaext_fabric *fabric,
		   struct rmx_cached_buffer *origin);
bool rmx_bounce_fits(const struct rmaext_fabric *fabric, size_t bytes);
void *rmx_bounce_take(struct rmaext_fabric *fabric, void **desc_p);
void rmx_bounce_give(struct rmaext_fabric *fabric, void *block);

/* liveness_probe.c */
void rmx_probe_init(struct rmx_probe *knock, const struct fi_info *info,
		    const void *address, size_t len);
void rmx_probe_end(struct rmx_probe *knock);
bool rmx_probe_ask(struct rmx_probe *knock, int64_t now, int64_t since);

/* doze.c: sleeping until the network has something, or time is up */
#define RMX_NAP_MAX ((int64_t)1000 * 1000) /* between looks, without a fd */
enum { RMX_BY_NETWORK = 1, RMX_BY_OTHER = 2, RMX_INTERRUPTED = 4 };
bool rmx_busy(const struct rmx_progress *progress);
int rmx_doze(struct rmaext_fabric *fabric, int other_fd, int64_t ns,
	     int64_t *nap);

/* progress.c */
int rmx_progress_start(struct rmaext_fabric *fabric, int thread, int64_t spin);
void rmx_progress_stop(struct rmaext_fabric *fabric);
void rmx_progress_settle(struct rmaext_fabric *fabric,
			 bool (*unsettled)(const struct rmaext_fabric *));
/* the caller has read the queue, and now sleeps elsewhere */
void rmx_progress_hand_over(struct rmaext_fabric *fabric);
/*
 * step() more until RMX_DONE; RMAEXT_PENDING at `until` or after a signal.
 * Spins `spins` times as long as usual before it sleeps.
 */
int rmx_wait(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
	     enum rmx_step (*step)(void *), void *arg, int64_t until,
	     unsigned int spins);
/* The same for one who waits for MPI, and serves the network meanwhile. */
int rmx_wait_at(struct rmaext_fabric *fabric, enum rmx_step (*step)(void *),
		void *arg, int64_t until, struct rmx_pace *pace);
void rmx_look(struct rmaext_fabric *fabric);
void rmx_progress_call(struct rmaext_fabric *fabric);
int rmx_deadline(struct rmaext_peer *peer, int64_t rank, const char *call,
		 int64_t timeout, int64_t *deadline, bool moved);

#endif
