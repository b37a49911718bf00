/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The only ABI of the C shim. Python's cffi reads the part between the two
 * "cdef" marks; it therefore holds plain declarations and no macros.
 *
 * Every function that can fail returns 0 or a negative fi_errno; the details
 * of the calling thread's last failure are read with rmaext_error_last().
 * Sizes and offsets are bytes, times nanoseconds.
 */
#ifndef RMAEXT_H
#define RMAEXT_H

#include <stddef.h>
#include <stdint.h>

/* cdef begin */
typedef struct rmaext_library rmaext_library;
typedef struct rmaext_fabric rmaext_fabric;
typedef struct rmaext_peer rmaext_peer;
typedef struct rmaext_near rmaext_near;
typedef struct rmaext_memory rmaext_memory;
typedef struct rmaext_window rmaext_window;
typedef struct rmaext_op rmaext_op;

enum {
	/* -EINPROGRESS: not an error, call the waiting function again */
	RMAEXT_PENDING = -115,
};

enum { RMAEXT_READ = 1, RMAEXT_WRITE = 2 }; /* rights of origins */

enum { RMAEXT_DIRECT = 0, RMAEXT_CMA = 1, RMAEXT_FABRIC = 2 }; /* routes */

enum { RMAEXT_SUM = 2, RMAEXT_CSWAP = 12 }; /* as enum fi_op */

/* element types, as enum fi_datatype */
enum {
	RMAEXT_INT8 = 0,
	RMAEXT_UINT8 = 1,
	RMAEXT_INT16 = 2,
	RMAEXT_UINT16 = 3,
	RMAEXT_INT32 = 4,
	RMAEXT_UINT32 = 5,
	RMAEXT_INT64 = 6,
	RMAEXT_UINT64 = 7,
	RMAEXT_FLOAT = 8,
	RMAEXT_DOUBLE = 9,
	RMAEXT_FLOAT_COMPLEX = 10,
	RMAEXT_DOUBLE_COMPLEX = 11,
	RMAEXT_LONG_DOUBLE = 12,
};

/* The last failure seen by this thread. */
struct rmaext_error {
	int code;	  /* negative fi_errno */
	int prov_errno;	  /* the provider's own number, 0 if none */
	int64_t rank;	  /* target rank, -1 if none */
	char call[32];	  /* the fi_* or rmaext_* call that failed */
	char detail[224]; /* words */
};

struct rmaext_fabric_options {
	const char *provider; /* as fi_info prints it */
	const char *domain;   /* NULL: the provider's first */
	const char *address;  /* numeric; NULL: the provider chooses */
	int mr_basic;	      /* ask for the deprecated FI_MR_BASIC */
	int progress;	      /* 0: no progress thread */
	int64_t spin_ns;      /* how long a waiting origin spins */
};

struct rmaext_fabric_info {
	char provider[64];
	char domain[64];
	char address[128]; /* fi_av_straddr of the own endpoint */
	uint64_t mr_mode;
	size_t key_size;
	size_t max_msg_size;
	int native_atomics; /* the ops table is there */
	int wait_fd;	    /* the CQ can be slept on */
	int cpu_atomics;    /* remote atomics run on the target's CPU */
};

/* Per-rank description of a window; arrays of `count` entries, copied. */
struct rmaext_targets {
	int64_t count;
	int64_t self;		  /* the own rank; its map is always set */
	const uint8_t *token;	  /* 16 secret bytes, the same on all ranks */
	rmaext_peer *const *peer; /* NULL entries: never by the fabric */
	rmaext_near *const *near; /* NULL entries: own rank, other nodes */
	void *const *map;	  /* direct: the memory there, as mapped here */
	const uint64_t *address;  /* cma: of the memory, in its process */
	const uint64_t *size;
	const uint64_t *base; /* what rmaext_memory_base gave there */
	const uint8_t *access;
	const uint8_t *align; /* address of the memory there, modulo 64 */
	const uint8_t *route;
	const uint8_t *keys; /* key_len bytes a rank */
	size_t key_len;
};

/* State of a wait that is continued over several calls; zero it first. */
struct rmaext_wait {
	int64_t timeout; /* in: ns without progress until -FI_ETIMEDOUT */
	int64_t deadline;
	int64_t rank;
	uint64_t seen;
};

struct rmaext_stats {
	uint64_t posted;
	uint64_t completed;
	uint64_t failed;
	uint64_t thread_wakeups;
};

void rmaext_error_last(struct rmaext_error *error_p);
const char *rmaext_strerror(const rmaext_library *lib, int code);

/* shared != 0: somebody initialised this copy, its environment is read */
int rmaext_library_open(const char *path, int shared, rmaext_library **lib_p);
uint32_t rmaext_library_version(const rmaext_library *lib);
void rmaext_library_close(rmaext_library *lib);

/*
 * Lines "provider \t domain \t interface \t address \t prefix length", one an
 * endpoint that could be opened. -FI_ETOOSMALL sets *len to what is needed.
 */
int rmaext_candidates(rmaext_library *lib, const char *provider, int mr_basic,
		      char *buf, size_t *len);

int rmaext_fabric_open(rmaext_library *lib,
		       const struct rmaext_fabric_options *options,
		       rmaext_fabric **fabric_p);
void rmaext_fabric_describe(rmaext_fabric *fabric,
			    struct rmaext_fabric_info *info_p);
void rmaext_fabric_stats(rmaext_fabric *fabric, struct rmaext_stats *stats_p);
int rmaext_fabric_address(rmaext_fabric *fabric, void *buf, size_t *len);
/*
 * NULLs *fabric, which other threads may still use: their calls then fail with
 * -FI_ESHUTDOWN. Memories are deregistered, windows closed;
 * operations in flight end, and their owners may still release them.
 */
int rmaext_fabric_close(rmaext_fabric **fabric);
/* serve the network for up to `slice`; returns early after a signal */
void rmaext_fabric_progress(rmaext_fabric *fabric, int64_t slice);
/* after the last slice of a wait: the progress thread takes over at once */
void rmaext_fabric_leave(rmaext_fabric *fabric);

/* pidfd: readable once the peer is gone, owned by the fabric; -1 if none */
int rmaext_peer_add(rmaext_fabric *fabric, const void *address, size_t len,
		    int pidfd, rmaext_peer **peer_p);

int rmaext_memory_register(rmaext_fabric *fabric, void *addr, size_t len,
			   int access, uint64_t requested_key,
			   rmaext_memory **memory_p);
int rmaext_memory_key(rmaext_memory *memory, void *buf, size_t *len);
uint64_t rmaext_memory_base(const rmaext_memory *memory);
int rmaext_memory_close(rmaext_memory **memory);

int rmaext_window_create(rmaext_fabric *fabric,
			 const struct rmaext_targets *targets, int64_t timeout,
			 rmaext_window **window_p);
/*
 * Later operations fail with -FI_ESHUTDOWN. -FI_EBUSY while transfers or other
 * threads' calls are in flight: the window is closed to new ones, its memory
 * must stay registered.
 */
int rmaext_window_close(rmaext_window *window);
/* transfers in flight, those given up included */
int64_t rmaext_window_pending(rmaext_window *window);
/*
 * Of a closed window, or of one whose fabric was closed; else does nothing. Its
 * operations must have been released.
 */
void rmaext_window_free(rmaext_window *window);

/*
 * put returns 0 once buf may be reused. get and the atomics return 0 once the
 * result is there. RMAEXT_PENDING or an error with *op_p set: the operation
 * may still use its buffers. Call rmaext_op_wait() until it is no longer
 * pending, then rmaext_op_release().
 */
int rmaext_put(rmaext_window *window, int64_t rank, uint64_t offset,
	       const void *buf, uint64_t len, rmaext_op **op_p);
int rmaext_get(rmaext_window *window, int64_t rank, uint64_t offset, void *buf,
	       uint64_t len, rmaext_op **op_p);
int rmaext_fetch_add(rmaext_window *window, int64_t rank, uint64_t offset,
		     int type, const void *operand, void *result,
		     uint64_t count, rmaext_op **op_p);
int rmaext_compare_and_swap(rmaext_window *window, int64_t rank,
			    uint64_t offset, int type, const void *compare,
			    const void *swap, void *result, uint64_t count,
			    rmaext_op **op_p);
/*
 * Begins to connect to rank, which the first operation would do otherwise, by
 * reading a byte from it. Does not wait: RMAEXT_PENDING with *op_p set, as
 * above. 0 where the fabric is not the route.
 */
int rmaext_connect(rmaext_window *window, int64_t rank, rmaext_op **op_p);
int rmaext_op_wait(rmaext_op *op);
/*
 * Post no more of it. 0: its buffers are free and *op is NULL.
 * RMAEXT_PENDING: the network may still use them; ask again later.
 */
int rmaext_op_release(rmaext_op **op);

/* wait until every put to rank (-1: to all) is applied there */
int rmaext_flush(rmaext_window *window, int64_t rank, struct rmaext_wait *wait);
/* the atomic works on this route, with this type */
int rmaext_atomic_valid(rmaext_window *window, int64_t rank, int type, int op);
/* cdef end */

#endif
