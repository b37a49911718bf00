/* SPDX-License-Identifier: BSD-3-Clause */
/* Structures shared by the .c files. */
#ifndef RMAEXT_INTERNAL_H
#define RMAEXT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sys/socket.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "rmaext.h"

#define RMX_SLOTS 1024		      /* chunks in flight, at most the CQ */
#define RMX_INLINE 1024		      /* bytes of a copy in its slot */
#define RMX_SLICE (100 * 1000 * 1000) /* ns in C before Python looks up */
#define RMX_NO_RANK (-1)
#define RMX_TOKEN 16 /* bytes that name a window in a message */
#define RMX_A_PUT ((uint64_t)1 << 32) /* in rmx_target.pending */

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
	struct rmaext_peer *next;
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
	bool atomics; /* the ops table is there */
	bool cpu_atomics;
	struct rmx_progress progress;
	pthread_mutex_t lock; /* peers, memories, windows, mapping */
	struct rmx_slot *slots;
	atomic_uint_fast64_t free_slots; /* see slot.c */
	struct rmaext_peer *peers;
	struct rmaext_memory *memories;
	struct rmaext_window *windows;
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

/* A process on the same node, reached without a network; see near.c. */
struct rmaext_near {
	pid_t pid;
};

struct rmx_target {
	struct rmaext_peer *peer;
	struct rmaext_near *near;
	char *map;	  /* RMAEXT_DIRECT */
	uint64_t address; /* RMAEXT_CMA */
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
	uint8_t access;
	uint8_t align; /* of offset 0, modulo 64 */
	uint8_t route;
	bool mapped; /* raw key is mapped; guarded by fabric->lock */
};

struct rmaext_window {
	struct rmaext_fabric *fabric; /* NULL: all routes are direct */
	int64_t timeout;
	int64_t count;
	int64_t self;
	uint8_t token[RMX_TOKEN];
	struct rmx_target *targets;
	uint8_t *raw_keys; /* count * raw_len bytes, FI_MR_RAW only */
	size_t raw_len;
	struct rmx_gate gate;
	pthread_mutex_t lock;	     /* guards failure */
	struct rmaext_error failure; /* words for target->error */
	struct rmaext_window *next, **prev;
};

enum rmx_kind { RMX_PUT, RMX_GET, RMX_FETCH_ADD, RMX_CSWAP };

struct rmaext_op {
	struct rmaext_fabric *fabric;
	struct rmaext_window *window;
	struct rmx_target *target;
	struct rmx_slot *slot; /* that it lies in; NULL: malloc() */
	int64_t rank;
	enum rmx_kind kind;
	enum fi_datatype type;
	size_t unit;  /* bytes an element; chunks are multiples of it */
	size_t chunk; /* bytes a chunk, at most */
	uint64_t offset, len, posted;
	char *local; /* source of a put, result of the rest */
	const char *operand, *compare;
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
	int64_t deadline;	     /* 0: not waited for yet */
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
void rmx_gate_leave(struct rmx_gate *gate);
int rmx_gate_shut(struct rmx_gate *gate);

/* library.c */
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p);

/* fabric.c */
struct fi_info *rmx_hints(struct rmaext_library *lib, const char *provider,
			  const char *domain, int mr_basic, bool atomics);

int rmx_fabric_enter(struct rmaext_fabric *fabric, const char *call);
void rmx_fabric_leave(struct rmaext_fabric *fabric);

/* key.c */
int rmx_key_map(struct rmaext_window *window, int64_t rank);
void rmx_key_unmap_all(struct rmaext_window *window);

/* window.c */
int rmx_window_enter(struct rmaext_window *window, const char *call);
void rmx_window_leave(struct rmaext_window *window);
void rmx_window_unlink(struct rmaext_window *window);

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
void rmx_op_complete(struct rmx_slot *slot, const struct rmaext_error *failure);
void rmx_op_shut_all(struct rmaext_fabric *fabric);

/* rma.c */
int rmx_check(const struct rmaext_window *window, const char *call,
	      int64_t rank, uint64_t offset, uint64_t len, int access);
int rmx_rma_post(struct rmaext_op *op, uint64_t offset, size_t len,
		 void *context);

/* near.c: copy by system call; -FI_ENOTCONN once the process is gone */
int rmx_cma_write(struct rmx_target *target, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len);
int rmx_cma_read(struct rmx_target *target, int64_t rank, uint64_t offset,
		 void *buf, uint64_t len);

/* knock.c */
void rmx_knock_init(struct rmx_knock *knock, const struct fi_info *info,
		    const void *address, size_t len);
void rmx_knock_end(struct rmx_knock *knock);
bool rmx_knock(struct rmx_knock *knock, int64_t now, int64_t since);

/* atomic.c */
int rmx_atomic_post(struct rmaext_op *op, uint64_t offset, size_t len,
		    void *context);

/* sleep.c */
#define RMX_NAP_MAX ((int64_t)1000 * 1000) /* between looks, without a fd */
enum { RMX_BY_NETWORK = 1, RMX_BY_OTHER = 2, RMX_INTERRUPTED = 4 };
int64_t rmx_now(void);
void rmx_relax(void);
void rmx_futex_sleep(atomic_uint *word, unsigned int value, int64_t ns);
void rmx_futex_wake(atomic_uint *word);
bool rmx_busy(const struct rmx_progress *progress);
int rmx_doze(struct rmaext_fabric *fabric, int other_fd, int64_t ns,
	     int64_t *nap);

/* progress.c */
int rmx_progress_start(struct rmaext_fabric *fabric, int thread, int64_t spin);
void rmx_progress_stop(struct rmaext_fabric *fabric);
/*
 * step() more until RMX_DONE; RMAEXT_PENDING at `until` or after a signal.
 * Spins `spins` times as long as usual before it sleeps.
 */
int rmx_wait(struct rmaext_fabric *fabric, struct rmaext_peer *peer,
	     enum rmx_step (*step)(void *), void *arg, int64_t until,
	     unsigned int spins);
int rmx_deadline(struct rmaext_peer *peer, int64_t rank, const char *call,
		 int64_t timeout, int64_t *deadline, bool moved);

#endif
