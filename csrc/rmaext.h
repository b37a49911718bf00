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
typedef struct rmaext_arena rmaext_arena;
typedef struct rmaext_neighbour rmaext_neighbour;
typedef struct rmaext_storage rmaext_storage;
typedef struct rmaext_file rmaext_file;
typedef struct rmaext_node_barrier rmaext_node_barrier;
typedef struct rmaext_network_barrier rmaext_network_barrier;
typedef struct rmaext_memory rmaext_memory;
typedef struct rmaext_members rmaext_members;
typedef struct rmaext_blocks rmaext_blocks;
typedef struct rmaext_window rmaext_window;
typedef struct rmaext_op rmaext_op;
typedef struct rmx_device rmaext_device;
typedef struct rmaext_stream rmaext_stream;

enum {
	/* -EINPROGRESS: not an error, call the waiting function again */
	RMAEXT_PENDING = -115,
};

/* libfabric's own error numbers that callers meet, without the sign */
enum {
	RMAEXT_ETOOSMALL = 257,
	RMAEXT_EBADFLAGS = 260,
	RMAEXT_ENOKEY = 266,
};

/* ns that a function waits at most, before Python looks for signals */
enum { RMAEXT_SLICE = 100000000 };

enum { RMAEXT_READ = 1, RMAEXT_WRITE = 2 }; /* rights of origins */
/* with them, in records: the memory can be made persistent */
enum { RMAEXT_STORED = 4 };
/* with them: it lies on a device, and no CPU reads and writes it */
enum { RMAEXT_DEVICE = 8 };

/* routes; 3 is RMAEXT_MESSAGE. IPC: of devices, copied by a stream of ours */
enum { RMAEXT_DIRECT = 0, RMAEXT_CMA = 1, RMAEXT_FABRIC = 2, RMAEXT_IPC = 4 };

/* operations of updates */
enum {
	RMAEXT_MIN = 0,
	RMAEXT_MAX = 1,
	RMAEXT_SUM = 2,
	RMAEXT_PROD = 3,
	RMAEXT_LOR = 4,
	RMAEXT_LAND = 5,
	RMAEXT_BOR = 6,
	RMAEXT_BAND = 7,
	RMAEXT_LXOR = 8,
	RMAEXT_BXOR = 9,
	RMAEXT_NO_OP = 10, /* only reads */
	RMAEXT_REPLACE = 11,
	RMAEXT_CSWAP = 12,
	RMAEXT_MINLOC = 13, /* of pairs; equal values: the smaller index */
	RMAEXT_MAXLOC = 14,
};

/* kinds of operations */
enum { RMAEXT_PUT = 0, RMAEXT_GET = 1, RMAEXT_UPDATE = 2 };

/* arguments of rmaext_start_many() with one element that stands for all */
enum {
	RMAEXT_ONE_RANK = 1,
	RMAEXT_ONE_OFFSET = 2,
	RMAEXT_ONE_VALUE = 4,
	RMAEXT_ONE_COUNT = 8, /* of requests only */
};

/* element types */
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
	RMAEXT_BOOL = 13,
	RMAEXT_HALF = 14,
	/* a value and an index, laid out as C structs are */
	RMAEXT_FLOAT_INT32 = 15,
	RMAEXT_DOUBLE_INT32 = 16,
	RMAEXT_INT16_INT32 = 17,
	RMAEXT_INT32_INT32 = 18,
	RMAEXT_INT64_INT32 = 19,
	RMAEXT_DOUBLE_INT64 = 20,
	RMAEXT_INT64_INT64 = 21,
	RMAEXT_LONG_DOUBLE_INT32 = 22,
	RMAEXT_LONG_DOUBLE_COMPLEX = 23,
	RMAEXT_FLOAT_INT64 = 24,
	RMAEXT_INT32_INT64 = 25,
	RMAEXT_UINT64_INT64 = 26,
};

/* The last failure seen by this thread. */
struct rmaext_error {
	int code;	  /* negative fi_errno */
	int prov_errno;	  /* the provider's own number, 0 if none */
	int64_t rank;	  /* target rank, -1 if none */
	char call[32];	  /* the fi_* or rmaext_* call that failed */
	char detail[224]; /* words */
};

enum { RMAEXT_SECRET = 64 }; /* bytes; TCP-MD5 takes 80 at most */

/* Addresses whose first bits are these, an IPv4 address mapped to IPv6. */
struct rmaext_network {
	uint8_t address[16];
	uint32_t prefix; /* bits, 128 at most */
};

struct rmaext_fabric_options {
	const char *provider; /* as fi_info prints it */
	const char *domain;   /* NULL: the provider's first */
	const char *address;  /* numeric; NULL: the provider chooses */
	int mr_basic;	      /* ask for the deprecated FI_MR_BASIC */
	int hmem;	      /* ask for FI_HMEM: memory of devices, too */
	int progress;	      /* 0: no progress thread */
	int processes;	      /* about how many it is opened for */
	int64_t spin_ns;      /* how long a waiting origin spins */
	rmaext_arena *arena;  /* whose doorbell it rings; NULL: none */
	/*
	 * The number and bytes of origins that stay registered at most, where
	 * the provider demands FI_MR_LOCAL.
	 */
	uint64_t cache_count, cache_bytes;
	/* what may connect though no rank is there; or everyone, unchecked */
	const struct rmaext_network *networks;
	size_t network_count;
	int everyone;
	int one_host;	       /* its clients are processes of this host only */
	const uint8_t *secret; /* RMAEXT_SECRET bytes that sign; NULL: none */
};

/* What a network demands of registrations, see fi_mr(3); and of ranks' keys. */
enum {
	RMAEXT_MR_LOCAL = 1 << 2,
	RMAEXT_MR_RAW = 1 << 3,
	RMAEXT_MR_VIRT_ADDR = 1 << 4,
	RMAEXT_MR_ALLOCATED = 1 << 5,
	RMAEXT_MR_PROV_KEY = 1 << 6,
};

struct rmaext_fabric_info {
	char provider[64];
	char domain[64];
	char address[128]; /* fi_av_straddr of the own endpoint */
	uint64_t mr_mode;
	uint64_t caps; /* as fi_getinfo(3) has them */
	size_t key_size;
	size_t mr_iov_limit;  /* pieces of one registration at most */
	size_t auth_key_size; /* 0: the provider has none */
	size_t max_msg_size;
	int wait_fd; /* the CQ has a descriptor to sleep on */
	int guarded; /* connections of other users are closed unread */
};

/* What a provider says of itself when it is opened; sizes are bytes. */
struct rmaext_providers {
	uint64_t caps;
	uint64_t mr_mode;
	uint64_t key_size;
	uint64_t mr_count; /* registrations at most, as it says */
	uint64_t mr_iov_limit;
	uint64_t max_msg_size;
	uint64_t inject_size;
	uint64_t iov_limit;
	uint64_t rma_iov_limit;
	uint64_t tx_size; /* operations in flight */
	/* elements of uint64 that its atomics take at most; 0: none */
	uint64_t atomic_count;
	uint64_t fetch_count;
	uint64_t compare_count;
	int control_auto; /* it says that it makes progress without calls */
	int data_auto;
	int wait_fd; /* its CQ has a descriptor to sleep on */
};

/* The kind of device that memory is on; numbers of enum fi_hmem_iface. */
enum {
	RMAEXT_IFACE_SYSTEM = 0,
	RMAEXT_IFACE_CUDA = 1,
	RMAEXT_IFACE_ROCR = 2,
	RMAEXT_IFACE_ZE = 3,
	RMAEXT_IFACE_NEURON = 4,
	RMAEXT_IFACE_SYNAPSEAI = 5,
};

struct rmaext_piece {
	void *addr;
	uint64_t len;
};

/* Memory that other ranks are to use; see fi_mr(3). */
struct rmaext_memory_options {
	const struct rmaext_piece *pieces; /* of one region, in this order */
	size_t n_pieces;
	int access;		 /* RMAEXT_READ, RMAEXT_WRITE */
	uint64_t requested_key;	 /* where the provider does not choose */
	const uint8_t *auth_key; /* NULL: the domain's */
	size_t auth_key_len;
	int iface;	   /* RMAEXT_IFACE_SYSTEM and so on */
	int64_t device;	   /* number of the device, unless iface is SYSTEM */
	int persistent;	   /* FI_RMA_PMEM, where the provider knows it */
	int counts_writes; /* see rmaext_memory_writes() */
	int lazy;	   /* its pages come later: rmaext_memory_refresh() */
};

/* A part of an arena, as other processes find it. */
struct rmaext_block {
	int64_t fd; /* of its file, in the owner's process; -1: none */
	uint64_t inode;
	uint64_t size; /* of the whole file */
	uint64_t offset;
};

/*
 * What a rank tells the others of its part of a window: the beginning of a
 * record, before its dimensions, 8 bytes each, the text of its dtype, its key.
 */
struct rmaext_part_record {
	uint64_t size, base;	   /* base: what the provider adds to offsets */
	uint64_t address;	   /* in its process */
	struct rmaext_block block; /* of its arena; fd -1: elsewhere */
	uint32_t parts; /* arrays that the window has there; 0: not a list */
	uint16_t dtype_len, key_len; /* bytes */
	uint8_t dims, access;
	uint8_t fresh; /* the communicator's first in that segment */
	uint8_t unused[5];
};

/* The columns of a window; a bit says that one entry stands for all ranks. */
enum {
	RMAEXT_SAME_SIZE = 1,
	RMAEXT_SAME_BASE = 2,
	RMAEXT_SAME_ACCESS = 4,
	RMAEXT_SAME_ALIGN = 8,
	RMAEXT_SAME_KEY = 16,
	RMAEXT_SAME = 31, /* all of them: the table of ranks is not filled */
	/* these two are of records only */
	RMAEXT_SAME_SHAPE = 32,
	RMAEXT_SAME_PARTS = 64,
};

/* What the records of all ranks have in common. */
struct rmaext_records {
	unsigned int same;
	uint64_t size, base; /* of rank 0, as are the next two */
	uint8_t access, align;
	size_t key_len;	   /* on ranks that have memory; 0: none has */
	size_t dims;	   /* dimensions of a shape at most */
	int64_t elsewhere; /* ranks with memory that is not in an arena */
	int64_t fresh;	   /* ranks that name a segment for the first time */
};

/*
 * What a window is on each rank. All is copied. Arrays of routes that no rank
 * has may be NULL.
 */
struct rmaext_targets {
	rmaext_members *members;
	const uint8_t *token; /* 16 secret bytes, the same on all ranks */
	/* these have an entry for each rank, or one for all where `same` says
	 * so */
	unsigned int same;
	const uint64_t *size;
	const uint64_t *base; /* what rmaext_memory_base gave there */
	const uint8_t *access;
	const uint8_t *align; /* address of the memory there, modulo 64 */
	const uint8_t *keys;  /* key_len bytes each */
	size_t key_len;
	/* these have one for each member that is here; the fabric is the route
	 * of all others */
	const uint8_t *route;
	void *const *map; /* of direct ones, and of this rank: the memory */
	/* of cma: the memory, in its process; of ipc: a struct rmaext_export */
	const uint64_t *address;
	rmaext_blocks *blocks; /* with the window's control blocks, or NULL */
	uint64_t block_at;     /* bytes in them where the window's begin */
	/*
	 * The window is dynamic: each rank's memory is what it has attached,
	 * and offsets are addresses. Sizes then have no meaning, and all
	 * routes, that of this rank too, must be the fabric's.
	 */
	int dynamic;
	int64_t spin_ns;       /* how long a wait for memory stays awake */
	const uint8_t *secret; /* of rmaext_client_open() alone */
	rmaext_device *device; /* that has this rank's memory; NULL: the host */
	const char *library;   /* of rmaext_device_find(), where a route is ipc;
				  it goes by the fabric if it cannot be mapped */
};

/* Memory of a device, as others of this node can map it; in records. */
struct rmaext_export {
	uint8_t device[16], handle[64];
	uint64_t kind; /* of handle */
	uint64_t at;   /* byte of what it leads to */
};

/*
 * A rank's word at the target of a lock: its kind, how many of the rank's
 * threads are inside as readers, and the ticket of its thread that is queued,
 * or was.
 */
enum {
	RMAEXT_SLOT_ACTIVE = 1, /* draws a ticket, enters, or is a writer */
	RMAEXT_SLOT_QUEUED = 2,
	RMAEXT_SLOT_ABANDONED = 3, /* a rank without a ticket has 0 */
	RMAEXT_SLOT_KINDS = 3,
	RMAEXT_SLOT_READER = 4,
	RMAEXT_SLOT_READERS = 0x7ffc,
	RMAEXT_SLOT_FAR = 0x8000, /* with a ticket: is told of its turn */
	RMAEXT_SLOT_TICKET = 16,  /* bits to its right */
};

/*
 * This rank's part in the lock of a target. The thread that is the owner alone
 * uses kind and ticket.
 */
struct rmaext_lock {
	int64_t *block; /* what the places count from, or NULL: not mapped */
	int64_t words;	/* place of: next ticket, turn, who is inside; sleepers
			 */
	int64_t slots;	/* place of a word for each rank */
	int64_t rank;	/* this rank */
	int64_t far;	/* RMAEXT_SLOT_FAR, or 0: it sleeps on the words */
	uint64_t owner; /* thread that queues, or is inside as a writer, or 0 */
	uint32_t window; /* for the record: the window's id there; 0: none */
	int64_t target;
	int64_t ticket;
	int kind;
	int inside; /* the owner has entered, or RMAEXT_LOCK_JOINS */
};

/* It is counted as a reader, and waits for a writer that is inside. */
enum { RMAEXT_LOCK_JOINS = 2 };

/* A lock that has not changed while a waiter looked at it. */
struct rmaext_lock_look {
	int64_t ticket; /* the waiter's; -1: it joins */
	int exclusive;
	int64_t turn, inside;
	int64_t count;	      /* of ranks; of each: */
	const int64_t *slots; /* its word */
	const uint8_t *gone;  /* it does nothing more, known before `slots` */
};

/* what rmaext_lock_judge() says */
enum {
	RMAEXT_LOCK_WAIT,
	RMAEXT_LOCK_PASS,
	RMAEXT_LOCK_LOST,
	RMAEXT_LOCK_UNKNOWN,
};

struct rmaext_change {
	int64_t place, value;
};

/*
 * How a call acts on a block that is not mapped here. It returns RMAEXT_PENDING
 * and what to send; it is called again with all answers since its beginning,
 * and goes through them from there. A message is `count` additions, answered by
 * the previous values of the words; or, if `swap`, one change from a value to
 * `to`, answered by the previous value. All that is 0 at the beginning.
 */
struct rmaext_exchange {
	const int64_t *answers;
	uint64_t answered, used;
	struct rmaext_change changes[4];
	uint64_t count;
	int64_t to;
	int swap, complete;
	int kind, inside; /* the owner's, before the call */
	int64_t ticket;
	int result; /* what the call has returned */
};

enum { RMAEXT_NOTIFY = 256 }; /* notification slots of a window */

/* A part of a window, in bytes. */
struct rmaext_view {
	uint64_t first;	      /* of every rank's memory */
	uint64_t stride;      /* offsets of many places count it; 0: elements */
	const uint64_t *size; /* of each rank's part, or one for all */
	int same;	      /* size has one entry, for all ranks */
	int access;	      /* the rights to keep, of those that there are */
	int64_t timeout;
};

/* Where things lie in a control block, in words of 8 bytes. */
struct rmaext_places {
	uint64_t lock;	  /* 4 of them */
	uint64_t storage; /* asked, done, failed, error */
	uint64_t calls;	  /* has left the window, number of the last call */
	uint64_t wakeups; /* how often this rank was told to look at a lock */
	uint64_t notify;
	uint64_t slots, posted, completed; /* a word a rank each */
};

/* A part of this rank's memory in a window, for clients; see am/client.c. */
struct rmaext_grant {
	const uint8_t *token; /* 16 secret bytes, of its own */
	uint64_t first, size; /* bytes */
	int access;
};

/* What a client knows of a grant. */
struct rmaext_client {
	rmaext_peer *owner;
	const uint8_t *token, *secret;
	uint64_t size;
	int access;
	int align;	 /* address of the memory there, modulo 64 */
	int64_t timeout; /* of the window */
};

/*
 * A part of an array in a window, as NumPy has it: shape[k] elements of `unit`
 * bytes, steps[k] bytes apart in the window, and locals[k] bytes apart in own
 * memory, which is one piece in C order if locals is NULL. Own memory may be in
 * pieces on the direct route only, and must not overlap the window there.
 */
struct rmaext_part {
	uint64_t unit;
	int ndim;
	const int64_t *shape, *steps, *locals;
};

/* One operation, which rmaext_start() is to do. */
struct rmaext_call {
	int kind; /* RMAEXT_PUT, RMAEXT_GET, RMAEXT_UPDATE */
	int op;	  /* of an update, RMAEXT_CSWAP included */
	int type;
	/* 1 + the slot of the rank to count up once a put is there; 0: none */
	int notify;
	int64_t rank;
	uint64_t offset;     /* bytes */
	const void *operand; /* of a put or update; of RMAEXT_NO_OP or NULL */
	const void *compare; /* of RMAEXT_CSWAP, which compares bits */
	void *result;	     /* of a get or update; it may be the operand */
	uint64_t count;	     /* bytes of a put or get, elements of an update */
	/* of a put or get that begins at offset; NULL: all is in a row */
	const struct rmaext_part *part;
	/*
	 * Of a request: set to 0 at first, and to 1 once it has ended. It must
	 * live as long as the buffers: it is the last of them to be written.
	 * NULL: it is no request. A part and a notification are none.
	 */
	int *ended;
};

/* MPI's levels of support for threads, by our own numbers. */
enum {
	RMAEXT_MPI_FUNNELED = 0, /* only the main thread may call MPI */
	RMAEXT_MPI_SERIALIZED = 1,
	RMAEXT_MPI_MULTIPLE = 2,
};

/* What a wait needs to have MPI make progress. */
struct rmaext_mpi {
	uint64_t iprobe, test, is_thread_main; /* addresses of functions */
	int handle_bytes;		       /* of a communicator */
	int any_source;
	int tag;   /* that no message has */
	int level; /* RMAEXT_MPI_FUNNELED and so on */
};

/* What the ranks of a team brought to a meeting. */
struct rmaext_met {
	unsigned int worst; /* the largest of their values */
	int differ;	    /* their steps are not all the same */
};

/* comparisons of rmaext_wait_until() */
enum {
	RMAEXT_EQ = 0,
	RMAEXT_NE = 1,
	RMAEXT_LT = 2,
	RMAEXT_LE = 3,
	RMAEXT_GT = 4,
	RMAEXT_GE = 5,
};

/*
 * A condition on an element in the memory that a rank has in a window, or in
 * its control block. Of value and seen, as many bytes count as the type has,
 * from the first on.
 */
struct rmaext_condition {
	uint64_t offset; /* bytes */
	uint64_t value;
	uint64_t seen; /* out: what was there */
	uint8_t block; /* 1: offset is in the control block */
	uint8_t type;  /* integers, bool, real floats up to 8 bytes */
	uint8_t comparison;
	uint8_t holds; /* out: 1 if it held */
};

/* State of a wait that is continued over several calls; zero it first. */
struct rmaext_wait {
	int64_t timeout; /* in: ns without progress until -FI_ETIMEDOUT */
	int64_t deadline;
	int64_t rank;
	uint64_t seen;
	uint64_t begun;
};

/*
 * One operation on each of `count` places, which rmaext_start_many() is to do.
 * Place i is one element of `unit` bytes at offsets[i] in the window of
 * ranks[i]; or, of a request, counts[i] elements from there on. Values and
 * results have those of place 0, then those of place 1, and so on: `elements`
 * together. `op` and `type` are those of an update. A value of RMAEXT_CSWAP is
 * two elements: that to compare with, and the new one. A get has no values, a
 * put no results. The arrays are the caller's.
 */
struct rmaext_places_call {
	int kind, op, type;
	int ones; /* RMAEXT_ONE_VALUE without counts only */
	uint64_t unit, count;
	/* bytes that an offset counts; 0: an element, as the window has it */
	uint64_t scale;
	const int64_t *ranks, *offsets, *counts;
	const void *values; /* NULL: a get */
	void *results;	    /* NULL: a put, or they are not wanted */
	/*
	 * Of a request: set to 0 at first, and to 1 once all is done or has
	 * ended. It must live as long as values and results. NULL: it is no
	 * request, and has none of what follows.
	 */
	int *ended;
	uint64_t elements;
	/*
	 * 1 + the slot of the target to count up once all of a put is in its
	 * memory, where that is of one rank, reached over the network, and not
	 * empty; 0: none.
	 */
	int notify;
};

struct rmaext_stats {
	uint64_t posted;
	uint64_t completed;
	uint64_t failed;
	uint64_t thread_wakeups;
	/* of memory, by this fabric: windows' and origins' */
	uint64_t registrations;
	uint64_t deregistrations;
	/* of origins where the provider demands FI_MR_LOCAL; else 0 */
	uint64_t hits;
	uint64_t misses;
	uint64_t evictions;
	uint64_t bounced; /* short: copied to or from registered memory */
	/* of connections that others have opened, where they are checked */
	uint64_t admitted;
	uint64_t refused;
};

/* What a process says of itself to those that may share its node. */
struct rmaext_process {
	int64_t pid;
	uint64_t address; /* of the nonce in its memory */
	uint8_t nonce[16];
	struct rmaext_block first; /* its first segment */
};

enum { RMAEXT_CAN_MAP = 1, RMAEXT_CAN_COPY = 2 };

enum { RMAEXT_BARRIER_SLOT = 512 }; /* bytes of a rank's record or reason */

void rmaext_error_last(struct rmaext_error *error_p);
const char *rmaext_strerror(const rmaext_library *lib, int code);

enum {
	RMAEXT_LIBRARY_SHARED = 1, /* others in this process use this copy */
	RMAEXT_LIBRARY_THEIRS = 2, /* it is to have no settings of ours */
	RMAEXT_LIBRARY_BARE = 4,   /* none of its plug-ins has a device here */
};

/*
 * Opens the libfabric at that path. flags: RMAEXT_LIBRARY_*. close frees the
 * struct; the code stays loaded.
 */
int rmaext_library_open(const char *path, int flags, rmaext_library **lib_p);
uint32_t rmaext_library_version(const rmaext_library *lib);
void rmaext_library_close(rmaext_library *lib);
/*
 * Opens the UCX whose libucp is at that path; it stays open. `any`: it may use
 * transports that do no RDMA, for tests of rmaext. version writes its number.
 */
int rmaext_ucx_open(const char *path, int any, rmaext_library **lib_p);
void rmaext_ucx_version(const rmaext_library *lib, char version[16]);

/*
 * Writes a line "provider \t domain \t interface \t address \t prefix length"
 * for each endpoint that could be opened. *len is the size of buf, and then
 * that of the text. -FI_ETOOSMALL: it is larger.
 */
int rmaext_candidates(rmaext_library *lib, const char *provider, int mr_basic,
		      char *buf, size_t *len);

/* Opens the provider's first domain, asks what it can do, and closes it. */
int rmaext_providers(rmaext_library *lib, const char *provider, int mr_basic,
		     struct rmaext_providers *survey_p);
/*
 * Writes a line "variable \t value \t help" for each setting of libfabric and
 * of its providers, without a value if it is not set. buf and *len are as those
 * of rmaext_candidates().
 */
int rmaext_settings(rmaext_library *lib, char *buf, size_t *len);

/*
 * Opens an endpoint with a progress thread, unless options say none. The caller
 * owns *fabric_p until it closes it; it closes lib later than that. options may
 * be freed at once.
 */
int rmaext_fabric_open(rmaext_library *lib,
		       const struct rmaext_fabric_options *options,
		       rmaext_fabric **fabric_p);
void rmaext_fabric_describe(rmaext_fabric *fabric,
			    struct rmaext_fabric_info *info_p);
void rmaext_fabric_stats(rmaext_fabric *fabric, struct rmaext_stats *stats_p);
int rmaext_fabric_address(rmaext_fabric *fabric, void *buf, size_t *len);
/*
 * Closes the fabric, its memories and windows, and sets *fabric to NULL. Other
 * threads may still call with it: they get -FI_ESHUTDOWN. Operations in flight
 * end, and their owners still release them. -FI_EBUSY: another thread does not
 * leave a call; new calls are refused, and *fabric is left. RMAEXT_PENDING: the
 * endpoint stays until the process ends, and may still write to the buffers of
 * its operations.
 */
int rmaext_fabric_close(rmaext_fabric **fabric);
/* Serves the network for up to `slice`; returns early after a signal. */
void rmaext_fabric_progress(rmaext_fabric *fabric, int64_t slice);
/* Ends a wait of several slices: the progress thread takes over at once. */
void rmaext_fabric_leave(rmaext_fabric *fabric);

/*
 * Adds the process whose endpoint has this address. The peer lives as long as
 * the fabric. pidfd, or -1, becomes readable once the process has ended; it is
 * the fabric's from here on.
 */
int rmaext_peer_add(rmaext_fabric *fabric, const void *address, size_t len,
		    int pidfd, rmaext_peer **peer_p);

/*
 * Memory that other processes of this node may map. It stays until the process
 * ends. allocate returns a block of zeros, aligned to 64 bytes, or to a page if
 * it has one or more. Any thread may call these functions.
 */
int rmaext_arena_open(const uint8_t *nonce, rmaext_arena **arena_p);
void rmaext_arena_describe(rmaext_arena *arena,
			   struct rmaext_process *process_p);
int rmaext_arena_allocate(rmaext_arena *arena, uint64_t len, void **addr_p);
/*
 * Allocates whole pages near the address `wanted`, or anywhere if that is 0.
 * RMAEXT_EXACTLY: at that address, or -EEXIST if something lies there.
 * RMAEXT_HUGE: of huge pages, all of which are there at once.
 */
enum { RMAEXT_EXACTLY = 1, RMAEXT_HUGE = 2 };
int rmaext_arena_place(rmaext_arena *arena, uint64_t len, uint64_t wanted,
		       int how, void **addr_p);
/* Does nothing in a forked child, or after rmaext_arena_leave(). */
void rmaext_arena_free(rmaext_arena *arena, void *addr);
/* Returns 1 and sets *block_p if the bytes lie in the arena, else 0. */
int rmaext_arena_find(rmaext_arena *arena, const void *addr, uint64_t len,
		      struct rmaext_block *block_p);
/* Tells the peers that this process takes no part any more. */
void rmaext_arena_leave(rmaext_arena *arena);

/* Counts the bytes of own memory, of any kind, whose pages are there. */
int rmaext_pages_resident(const void *addr, uint64_t len, uint64_t *bytes_p);
/* Has all pages there, for writing or for reading. */
int rmaext_pages_populate(void *addr, uint64_t len, int write);
/* Gives the system a hint, as madvise(2) does. */
int rmaext_pages_advise(void *addr, uint64_t len, int willneed);

/*
 * Memory that is mapped from a file. A thread of this process writes it back
 * when a peer asks, which counts `asked` up in the control block and then rings
 * this process's doorbell. Until remove returns the thread may read the pieces
 * and use the block.
 */
int rmaext_storage_open(rmaext_arena *arena, rmaext_storage **storage_p);
int rmaext_storage_add(rmaext_storage *storage, void *block,
		       const struct rmaext_piece *pieces, size_t count,
		       rmaext_file **file_p);
void rmaext_storage_remove(rmaext_storage *storage, rmaext_file *file);
void rmaext_storage_close(rmaext_storage **storage_p);
/* Writes memory back in the calling thread; leaves no error record. */
int rmaext_storage_write(void *addr, uint64_t len);

/*
 * A beacon is an abstract socket, which processes of the same network namespace
 * see until the caller closes its descriptor. `random` is 16 bytes; open writes
 * a name of 64 digits that begins with them. visible writes for each of `count`
 * names, one behind the other, whether that beacon is there: 1, 0, or -1: the
 * kernel does not say.
 */
int rmaext_beacon_open(const uint8_t *random, char *name, int *fd_p);
void rmaext_beacons_visible(const char *names, int64_t count, int8_t *seen);

/*
 * A process that claims to be on this node. open finds out which ways to its
 * memory work, and reach returns these. The struct stays until this process
 * ends, as do pidfd and what was mapped.
 */
int rmaext_neighbour_open(const struct rmaext_process *process, int pidfd,
			  rmaext_neighbour **neighbour_p);
int rmaext_neighbour_reach(const rmaext_neighbour *neighbour);
/* Returns 1 if its memory says that it takes no part any more, else 0. */
int rmaext_neighbour_left(const rmaext_neighbour *neighbour);
int rmaext_neighbour_map(rmaext_neighbour *neighbour,
			 const struct rmaext_block *block, uint64_t len,
			 void **addr_p);

/*
 * Progress of MPI: threads that wait here call it, where they may; see
 * base/mpi_progress.c. begin is called once. use names a communicator of two
 * ranks or more, which must stay until use is called with 0; that returns when
 * no thread is in a call on it.
 */
void rmaext_mpi_begin(const struct rmaext_mpi *mpi);
void rmaext_mpi_use(uint64_t comm);
/* Sets the ns between calls: at least, of a sleeper at first, and at most. */
void rmaext_mpi_pace(int64_t often, int64_t first, int64_t most);
/* 1: this thread, which is of this library, never calls MPI; -1: it ends. */
void rmaext_mpi_aside(int more);
/*
 * Calls MPI now if it is time to. It is for functions that do not wait, which a
 * program may use to poll. Returns 1 if MPI had something to do.
 */
int rmaext_mpi_glance(void);
/* Sleeps for so many ns, and calls MPI meanwhile; a signal ends it early. */
void rmaext_mpi_nap(int64_t ns);
/* Ends all calls of MPI, before it is finalized or in a forked child. */
void rmaext_mpi_end(int forked);
/* Starts a thread that calls MPI while the program computes. */
int rmaext_mpi_thread(void);
/*
 * Tests an MPI_Request, which this thread has begun, until it is done: 0, or
 * RMAEXT_PENDING after a slice, then call it again. It serves the network of
 * `fabric` meanwhile, which may be NULL. *quiet is 0 before the first call, and
 * otherwise this function's own.
 */
int rmaext_mpi_wait(void *request, rmaext_fabric *fabric, int64_t *quiet,
		    int64_t slice);

/*
 * The barrier of the ranks of one node. The board is
 * rmaext_node_barrier_bytes() zeros that all of them map. meet waits until all
 * ranks have come, and says what they have brought; RMAEXT_PENDING: the slice
 * is over, call it again. Each rank has two slots for records. It writes to
 * them by turns before a meeting, and all ranks read them after that meeting
 * and before the next. When a rank gives up, this meeting and all later ones
 * fail with -FI_ECANCELED on all ranks. A rank closes the team when it has left
 * the last meeting. The board must stay until all ranks have done so, as some
 * may still be waking up in it: it is deserted then.
 */
uint64_t rmaext_node_barrier_bytes(int64_t size);
int rmaext_node_barrier_open(void *board, int64_t rank, int64_t size,
			     int64_t spin, rmaext_node_barrier **team_p);
/* Names the communicator, for the record; see rmaext_record_comm(). */
void rmaext_node_barrier_name(rmaext_node_barrier *team, uint64_t id);
/* Returns 0, or -FI_EMSGSIZE if it is too long for a slot; writes nothing then.
 */
int rmaext_node_barrier_write(rmaext_node_barrier *team, const uint8_t *record,
			      uint64_t len);
/*
 * Copies the records of all ranks, one after another, and returns their bytes.
 * data has room for a slot of each rank.
 */
uint64_t rmaext_node_barrier_read(const rmaext_node_barrier *team,
				  uint8_t *data, int32_t *lengths);
/* step: the number of the step that this rank takes the meeting for. */
int rmaext_node_barrier_meet(rmaext_node_barrier *team, uint64_t step,
			     unsigned int value, int64_t slice,
			     struct rmaext_met *met_p);
/* Returns 1 if that rank has not come to the meeting that this one waits in. */
int rmaext_node_barrier_awaits(const rmaext_node_barrier *team, int64_t rank);
/* Say that this rank's program has come to its end, and ask it of a rank. */
void rmaext_node_barrier_end(rmaext_node_barrier *team);
int rmaext_node_barrier_ended(const rmaext_node_barrier *team, int64_t rank);
/* Gives the reason why this rank is to give up, cut to a slot. */
void rmaext_node_barrier_explain(rmaext_node_barrier *team, const uint8_t *why,
				 uint64_t len);
/* Returns how many reasons all ranks have given. */
unsigned int rmaext_node_barrier_said(const rmaext_node_barrier *team);
/* Copies the reason of a rank into `why`, a slot, and returns its length. */
uint64_t rmaext_node_barrier_reason(const rmaext_node_barrier *team,
				    int64_t rank, uint8_t *why);
void rmaext_node_barrier_give_up(rmaext_node_barrier *team);
/* Returns the first rank that has given up, or -1. */
int64_t rmaext_node_barrier_given_up(const rmaext_node_barrier *team);
void rmaext_node_barrier_close(rmaext_node_barrier *team);
int rmaext_node_barrier_deserted(const void *board, int64_t size);

/*
 * The barrier of ranks that share no memory, over a window that reaches all of
 * them by the network. Each has rmaext_network_barrier_bytes() zeros in it at
 * byte `offset`, `own` on this rank. id names the communicator, for the record.
 * meet waits as rmaext_node_barrier_meet(). A meeting to which this rank has
 * come goes on after the call, too. Close it before the window.
 */
uint64_t rmaext_network_barrier_bytes(void);
int rmaext_network_barrier_open(rmaext_window *window, void *own,
				uint64_t offset, uint64_t id,
				rmaext_network_barrier **barrier_p);
int rmaext_network_barrier_meet(rmaext_network_barrier *barrier, uint64_t step,
				unsigned int value, int64_t slice,
				struct rmaext_met *met_p);
/* Returns to how many meetings this rank has come. */
uint64_t rmaext_network_barrier_came(const rmaext_network_barrier *barrier);
/*
 * What a connection that broke has swallowed: awaits returns the rank whose two
 * words are missing, and the byte in the window where they are on that rank; or
 * -1. heard takes them; others than those that are missing are ignored.
 */
int64_t rmaext_network_barrier_awaits(rmaext_network_barrier *barrier,
				      uint64_t *offset_p);
void rmaext_network_barrier_heard(rmaext_network_barrier *barrier,
				  uint64_t offset, const uint64_t *words);
void rmaext_network_barrier_close(rmaext_network_barrier *barrier);

/*
 * Where the ranks of a communicator meet, at one of the two, and how far they
 * are. A rank that is alone has neither. Python owns it, and reads and writes
 * it with the GIL held.
 */
struct rmaext_meetings {
	rmaext_node_barrier *team;
	rmaext_network_barrier *far;
	/*
	 * The thread that is in a collective call, or 0; whether that has a
	 * step in Python; whether all calls are refused; and whether the ranks
	 * meet there: else by MPI. Of these a fence by C sets `turn` alone.
	 */
	uint64_t turn;
	int stepping, refused, meets;
	struct rmaext_met met; /* what came of the last meeting */
	int over;	       /* `met` is yet to be told: see rmaext_meet() */
	int64_t number;	       /* of the last collective call */
	int64_t begun;	       /* number of meetings */
	uint64_t fence;	       /* the word of a fence, but for what changes */
};
/* Takes the turn for a thread, unless another has it; returns who has it. */
uint64_t rmaext_meetings_turn(struct rmaext_meetings *meetings,
			      uint64_t thread);
/*
 * Meets there, as rmaext_node_barrier_meet(). If a meeting is over already
 * whose outcome its caller has left to another, it returns 0 at once.
 */
int rmaext_meet(struct rmaext_meetings *meetings, uint64_t step,
		unsigned int value, int64_t slice);

/*
 * Registers memory for other ranks. -FI_EINVAL: it has no bytes, no rights, or
 * more pieces than mr_iov_limit. -FI_EOPNOTSUPP: it is a device's, which the
 * provider does not reach. All other errors are the provider's, such as
 * -FI_ENOKEY or -FI_EKEYREJECTED.
 */
int rmaext_memory_register(rmaext_fabric *fabric,
			   const struct rmaext_memory_options *options,
			   rmaext_memory **memory_p);
/*
 * Tells the provider, if it wants to know, that the pages behind these bytes
 * have come or were replaced. Nobody may use the memory meanwhile.
 */
int rmaext_memory_refresh(rmaext_memory *memory, uint64_t offset, uint64_t len);
/*
 * Counts the writes and atomics of other ranks that have arrived. -FI_ENOSYS:
 * the registration did not ask for it, or the provider does not count.
 */
int rmaext_memory_writes(rmaext_memory *memory, uint64_t *count_p);
/* Origins and results of at most so many bytes are copied. */
enum { RMAEXT_COPIED = 32 << 10 };
/*
 * Promises that own memory, which operations will read or write, is neither
 * freed nor moved until it is forgotten. So it may stay registered where the
 * provider demands that local memory is registered; elsewhere nothing is done,
 * and *token_p is 0. pinned: once it is registered it stays so.
 */
int rmaext_origin_know(rmaext_fabric *fabric, const void *addr, uint64_t len,
		       int pinned, uint64_t *token_p);
/* Ends that promise: no operation uses the memory. A token of 0 does nothing.
 */
void rmaext_origin_forget(rmaext_fabric *fabric, uint64_t token);
int rmaext_memory_key(rmaext_memory *memory, void *buf, size_t *len);
uint64_t rmaext_memory_base(const rmaext_memory *memory);
int rmaext_memory_close(rmaext_memory **memory);

/* The layout of a control block, over so many ranks; see control_block.h. */
uint64_t rmaext_block_bytes(int64_t count);
void rmaext_block_places(int64_t count, struct rmaext_places *places_p);

/*
 * A word in a control block that only grows. raise adds 1 to it. await waits
 * until it is at least `least`, for `spin` ns awake and `sleep` ns asleep, in
 * which it calls MPI. It returns 1 then, else 0.
 */
void rmaext_word_raise(int64_t *sleepers, int64_t *word);
int rmaext_word_await(int64_t *sleepers, const int64_t *word, int64_t least,
		      int64_t spin, int64_t sleep);
/* A sequentially consistent fence for the memory of this process. */
void rmaext_barrier(void);

/*
 * The lock of a target; see shm/ticket_lock.c. `exchange` is NULL where the
 * block is mapped. take returns 1 if the thread is inside, 0 if it is queued
 * and must call wait, or -FI_EBUSY if another thread of this rank is the owner.
 * A reader gives the ownership up once it has noted that it is inside.
 */
int rmaext_lock_take(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     uint64_t thread, int exclusive);
/*
 * A reader enters without a ticket, past those who are queued. The caller alone
 * uses the lock, whose kind is 0: a rank has another one for each thread that
 * joins. Returns as take does, but never -FI_EBUSY. Its ticket is the turn of a
 * waiter that it has passed, or -1.
 */
int rmaext_lock_join(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     uint64_t thread);
/* Waits so many ns, spinning first; with an exchange it only looks. */
int rmaext_lock_wait(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     int exclusive, int64_t spin, int64_t sleep);
/* A reader that is inside lets other threads of its rank be the owner. */
void rmaext_lock_disown(struct rmaext_lock *lock);
int rmaext_lock_leave(struct rmaext_lock *lock,
		      struct rmaext_exchange *exchange, int exclusive);
/* Undoes what the owner has done, queued or inside; other threads nothing. */
int rmaext_lock_undo(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     uint64_t thread, int exclusive);
/*
 * Says what a waiter does about a lock that does not move: WAIT for somebody
 * alive; PASS: let those behind *rank_p go on; LOST: *rank_p had the lock when
 * it died; UNKNOWN: nobody alive and nobody dead accounts for the ticket whose
 * turn it is. Where no rank is named, *rank_p is -1.
 */
int rmaext_lock_judge(const struct rmaext_lock_look *look, int64_t *rank_p);
/* Gives up the turn of a rank that will not come, if its slot is as `seen`. */
int rmaext_lock_pass(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     int64_t rank, int64_t seen);

/*
 * Checks the records of all ranks, which lie one after another, of a window
 * whose elements have `itemsize` bytes. -FI_EINVAL, without a record of the
 * error: one is not valid, or they differ where they must not; window_record.py
 * says what is wrong.
 */
int rmaext_records_check(const uint8_t *data, const int32_t *lengths,
			 int64_t count, uint64_t itemsize,
			 struct rmaext_records *records_p);
/*
 * Writes one column of checked records, `width` bytes a rank. Access and align
 * are uint8_t, keys are their bytes, shapes are uint64_t with the number of
 * dimensions first, and all else is uint64_t.
 */
void rmaext_records_column(const uint8_t *data, const int32_t *lengths,
			   int64_t count, int column, size_t width, void *to);
/*
 * Finds the routes to the ranks of `here`, in ascending order, from checked
 * records. It maps the memory of each rank that has an entry in `neighbour`, or
 * notes its address; what it says of ranks whose entry is NULL is left as it
 * is.
 */
struct rmaext_ways {
	uint8_t *route;
	void **map;	   /* direct */
	uint64_t *address; /* cma: in its process; ipc: what is exported */
};
int rmaext_records_ways(const uint8_t *data, const int32_t *lengths,
			const int64_t *here, int64_t count,
			rmaext_neighbour *const *neighbour,
			const struct rmaext_ways *ways);
/*
 * The table of ranks, where a window has one: the fields of rank 0, and the
 * bytes from rank to rank. `step` is 0 where all ranks are alike.
 */
struct rmaext_rows {
	const uint64_t *size;
	const uint8_t *access; /* has other bits than rights as well */
	const uint8_t *align;
	size_t step;
};
void rmaext_window_rows(rmaext_window *window, struct rmaext_rows *rows_p);

/* How is a rank reached, which may be otherwise than it was asked for? */
int rmaext_window_route(const rmaext_window *window, int64_t rank);

/*
 * The ranks of a communicator, for all windows over it. `peers` and
 * `neighbours` have an entry for each rank, which may be NULL, or are NULL
 * themselves; this rank has no neighbour. This rank and those with a neighbour
 * are the ones that are here. Control blocks have a pointer for each rank that
 * is here. Windows count as users of both, which are freed when the last user
 * releases them.
 */
int rmaext_members_new(int64_t count, int64_t self, rmaext_peer *const *peers,
		       rmaext_neighbour *const *neighbours, rmaext_arena *arena,
		       rmaext_members **members_p);
void rmaext_members_release(rmaext_members *members);

/*
 * The addresses of a communicator's ranks, `len` bytes each, and whether a rank
 * has a progress thread. pidfds are those of some ranks, in ascending order.
 */
struct rmaext_addresses {
	const uint8_t *address;
	size_t len;
	const uint8_t *serves;
	const int64_t *ranks;
	const int32_t *pidfds;
	int64_t pidfd_count;
};
/*
 * Lets ranks be reached by the fabric; windows over the members come later. The
 * addresses are copied, a peer is added when its rank is first used, and the
 * pidfds, which are duplicated then, stay open. Returns an error if an address
 * cannot be a peer's.
 */
int rmaext_members_connect(rmaext_members *members, rmaext_fabric *fabric,
			   const struct rmaext_addresses *addresses);
int rmaext_blocks_new(const rmaext_members *members, void *const *first,
		      rmaext_blocks **blocks_p);
void rmaext_blocks_release(rmaext_blocks *blocks);

/*
 * Creates a window, which other ranks reach by messages from then on. targets
 * may be freed at once; the memory stays where it is until the window is
 * closed. fabric is NULL where no route needs it. The caller owns *window_p: it
 * closes it, then frees it.
 */
int rmaext_window_create(rmaext_fabric *fabric,
			 const struct rmaext_targets *targets, int64_t timeout,
			 rmaext_window **window_p);
/*
 * Lets others on the node update this rank's memory by copies, if it is in no
 * other window; after all windows are made that share its control block.
 */
void rmaext_window_open(rmaext_window *window);
/*
 * Says that the window is over control blocks, that many. Ranks that wait for a
 * lock in one of them are told when to look, if that is mapped here: told by
 * the reader of the completion queue of a change that came as a message, and by
 * rmaext_lock_tell() of one that the caller has made, in the block that is
 * mapped there, and is so many bytes from the window's start.
 */
void rmaext_window_controls(rmaext_window *window, uint64_t blocks);
void rmaext_lock_tell(rmaext_window *controls, void *at, uint64_t block,
		      int exclusive);
/*
 * Makes a view: a window over a part of another's memory, without a
 * registration of its own. Its operations are the other's, whose flush and
 * close they need. A view must be shut before the other window is closed, and
 * may be freed after it.
 */
int rmaext_window_view(rmaext_window *of, const struct rmaext_view *view,
		       rmaext_window **view_p);
/*
 * The first half of closing: from then on operations of this rank fail with
 * -FI_ESHUTDOWN, while those of other ranks are still served. -FI_EBUSY: calls
 * of other threads do not end, which may write to other ranks' memory.
 */
int rmaext_window_shut(rmaext_window *window);
/* Undoes that, where the window is not to be closed yet. */
void rmaext_window_reopen(rmaext_window *window);
/*
 * Closes a window, which no other rank uses any more: operations fail with
 * -FI_ESHUTDOWN. -FI_EBUSY: transfers or calls of other threads are in flight;
 * no new ones begin, but the memory must stay registered. Call it again.
 */
int rmaext_window_close(rmaext_window *window);
/* Returns the number of transfers in flight, given-up ones included. */
int64_t rmaext_window_pending(rmaext_window *window);
/*
 * Of a closed window, or of one whose fabric was closed; else does nothing. Its
 * operations must have been released.
 */
void rmaext_window_free(rmaext_window *window);

/*
 * Memory for processes of other jobs, which are clients. secret, 16 bytes for
 * the fabric's lifetime, admits those that know it: before that no grant can be
 * reached. A grant is a window that only clients use. Its owner ends it with
 * rmaext_window_close(), before it closes the window that the grant is of.
 */
int rmaext_clients_admit(rmaext_fabric *fabric, const uint8_t *secret);
int rmaext_grant_open(rmaext_fabric *fabric, rmaext_window *of,
		      const struct rmaext_grant *grant,
		      rmaext_window **grant_p);
/*
 * The client's window, with one rank, 0: the owner of the grant. Before all
 * else the client announces itself; a flush waits for the owner's answer.
 */
int rmaext_client_open(rmaext_fabric *fabric,
		       const struct rmaext_client *client,
		       rmaext_window **window_p);
int rmaext_client_announce(rmaext_window *window);

/*
 * Memory of devices: CUDA's. `library` is the file of its driver, which is
 * opened on first use. Any thread may call these, which block; all return 0 or
 * an error with a record: -FI_ENOENT: no library; -EREMOTEIO: CUDA's own;
 * -ERANGE: the bytes reach beyond an allocation; -FI_EOPNOTSUPP: the device has
 * no active primary context. A device stays until the process ends.
 */
int rmaext_device_find(const char *library, const void *address, uint64_t len,
		       int *number_p);
int rmaext_device_open(const char *library, int number,
		       rmaext_device **device_p);
/*
 * A stream of ours, which only the caller uses until it gives it back; take
 * does not wait. handle, which comes next, returns the application's name of
 * it, by which others put work of theirs there; it waits while all streams are
 * in use and copies go on that were given up. behind: what comes from now on
 * comes behind what a stream of the application's has. copy begins one, which
 * comes behind what others have put there; `in`: to the device. `there` is its
 * memory; the runs, offset and length of each in bytes at both ends, and the
 * memory of the host stay until the stream has ended or was given back: no
 * device uses these. wait waits for all that was begun. handle and wait do so
 * for `slice` ns at most: RMAEXT_PENDING, call it again; -FI_ETIMEDOUT after
 * `timeout` ns. give returns 1 if some of that goes on.
 */
int rmaext_stream_take(rmaext_device *device, int64_t timeout,
		       rmaext_stream **stream_p);
int rmaext_stream_handle(rmaext_stream *stream, int64_t slice,
			 uint64_t *handle_p);
int rmaext_stream_give(rmaext_stream *stream);
/* How many streams of a device go on that were given back? */
int rmaext_device_late(rmaext_device *device);
int rmaext_stream_behind(rmaext_stream *stream, uint64_t handle);
int rmaext_stream_copy(rmaext_stream *stream, int in, void *there, void *here,
		       const int64_t *runs, uint64_t count);
int rmaext_stream_wait(rmaext_stream *stream, int64_t slice);
/*
 * Of undefined contents. What is freed goes when the device has nothing to do,
 * for which free waits a second at most: later one of these calls does it, or
 * rmaext_stream_take(). free has no errors: all went with the context.
 */
int rmaext_device_allocate(rmaext_device *device, uint64_t len,
			   void **memory_p);
void rmaext_device_free(rmaext_device *device, void *memory);
/*
 * A put whose operand, or a get whose result, is memory of the stream's device,
 * behind all that is in the stream; complete when it returns 0. RMAEXT_PENDING
 * after `slice` ns: call it again, as it was. -EXDEV, without a record: it has
 * not begun, as no stream of that device reaches the rank, or both overlap.
 */
int rmaext_stream_across(rmaext_stream *stream, rmaext_window *window,
			 const struct rmaext_call *call, int64_t slice);

/*
 * export: -FI_EOPNOTSUPP: no other process can map it. What it returns is good
 * until unexport, for which zeros will do, too. try says why another's memory
 * of `size` bytes cannot be mapped here, or 0.
 */
int rmaext_device_export(rmaext_device *device, const void *address,
			 uint64_t len, struct rmaext_export *export_p);
void rmaext_device_unexport(const struct rmaext_export *exported);
int rmaext_import_try(const char *library, const void *exported, uint64_t size);
/*
 * Returns where a rank's memory of a device is mapped in this process, until
 * the window is closed; or NULL.
 */
void *rmaext_device_memory(rmaext_window *window, int64_t rank);

/*
 * Attach memory of this rank to a dynamic window, and detach it. -EEXIST: some
 * of it is attached. -ENXIO: it is not attached as one piece. When detach
 * returns no rank uses the memory any more.
 */
int rmaext_attach(rmaext_window *window, const void *addr, uint64_t len);
int rmaext_detach(rmaext_window *window, const void *addr, uint64_t len);

/*
 * Carries an operation out. It returns 0 once it is done: the operand may be
 * reused, and the result, if there is one, is there. An update is atomic for
 * each element. It waits for a slice at most. With RMAEXT_PENDING or an error,
 * and *op_p set, the caller owns the operation, which may still use its
 * buffers: it calls rmaext_op_wait() until that is no longer pending, then
 * rmaext_op_release(). With *op_p NULL there is nothing to do. One thread at a
 * time may use *op_p.
 *
 * A request does not wait: RMAEXT_PENDING, and the operation goes on by itself,
 * also after rmaext_op_release(), which returns RMAEXT_PENDING until it has
 * ended: applied at the target, or failed. -FI_EAGAIN with *op_p set: an update
 * by memory whose guard others hold, or what this process copies for more than
 * a slice, by the kernel or a device, is no request, and needs
 * rmaext_op_wait() until it is done.
 */
int rmaext_start(rmaext_window *window, const struct rmaext_call *call,
		 rmaext_op **op_p);
/* Is there such an operation on that type? Any numbers may be asked for. */
int rmaext_update_valid(int op, int type);
/* The alignment, in bytes, that updates need of elements of that type. */
int rmaext_type_align(int type);
/*
 * Begins, or carries out, an operation on many places. All are checked before
 * the first is touched; if one is refused (-ERANGE, -FI_EACCES, -FI_EFAULT,
 * -FI_EOPNOTSUPP, -FI_ENOTCONN), *bad_p is its index, else -1. After any other
 * error, any of the places may have been done or not. RMAEXT_CSWAP must have
 * results; an update without results needs no right to read. It returns as
 * rmaext_start(), 0 once all is done.
 *
 * Until the operation is released, values and results are in use; ranks,
 * offsets and counts too, unless it is a request, which has copied them. A
 * request does puts and gets by memory at once, and leaves updates of memory
 * that is mapped here, which it has checked, to a call that is none.
 */
int rmaext_start_many(rmaext_window *window,
		      const struct rmaext_places_call *call, rmaext_op **op_p,
		      int64_t *bad_p);

/*
 * Waits for `slice` ns, or RMAEXT_SLICE, at most; with 0 it only looks. 0: it
 * is done. RMAEXT_PENDING: call it again. Whatever it returns, the operation
 * stays the caller's. Some errors are of a request that has not ended:
 * -FI_ETIMEDOUT, which may be waited for again, -FI_ENOTCONN and -FI_ESHUTDOWN.
 * Of many places it waits for all, or for the first failure.
 */
int rmaext_op_wait(rmaext_op *op, int64_t slice);
/*
 * Ends the operation: no more of it is posted, unless it is a request. 0: its
 * buffers may be freed, and *op is NULL. RMAEXT_PENDING: the network may still
 * use them; call it again later. A NULL *op is harmless.
 */
int rmaext_op_release(rmaext_op **op);
/* 1: nothing of the request was sent, and it has ended; 0: it goes on. */
int rmaext_op_cancel(rmaext_op *op);
/* The rank of the first that is not known to have ended well, or -1. */
int64_t rmaext_op_rank(const rmaext_op *op);
/*
 * Waits until more requests of this fabric have ended than *seen, or the slice
 * is over, and sets *seen. A request that had ended by then has `ended` set.
 */
int rmaext_fabric_wait_ended(rmaext_fabric *fabric, uint64_t *seen,
			     int64_t slice);

/*
 * Waits until any, or every, condition holds of a rank's memory, which must be
 * mapped here: 0. RMAEXT_PENDING after `slice`, 100 ms or a signal: call it
 * again. Flushes, updates and notifications that go to that rank wake it. It
 * looks every millisecond as well, unless all conditions are in control blocks
 * and the rank has an arena.
 */
int rmaext_wait_until(rmaext_window *window, int64_t rank,
		      struct rmaext_condition *conditions, uint64_t count,
		      int every, int64_t slice);

/*
 * Gives back the count that rmaext_notify_wait() took off an own slot, and sets
 * *seen to 0; if it is 0, there is nothing to give back.
 */
int rmaext_notify_return(rmaext_window *window, int slot, int64_t count,
			 int64_t *seen);
/*
 * Waits until an own slot has counted so many, and takes them off; *seen_p is
 * what it had before. Any number of threads may wait for a slot. RMAEXT_PENDING
 * as for rmaext_wait_until(); with a slice of 0 it only looks.
 */
int rmaext_notify_wait(rmaext_window *window, int slot, int64_t count,
		       int64_t slice, int64_t *seen_p);

/*
 * Waits until every put and request to rank (-1: to all) that has begun before
 * is applied there, and for none that other threads begin for ever after. It
 * reports, once, errors of those that nobody waited for. RMAEXT_PENDING after a
 * slice: call it again with the same *wait, which the caller zeroes at first.
 */
int rmaext_flush(rmaext_window *window, int64_t rank, struct rmaext_wait *wait);
/*
 * Returns what an operation would be refused for, or 0; nothing is sent. type
 * is that of a fetch_add, else -1.
 */
int rmaext_window_check(rmaext_window *window, int64_t rank, uint64_t offset,
			uint64_t len, int access, int type);

/*
 * The record of a process: what it does and has done, in a file without a name
 * that its windows' owner keeps open and other processes of the same user map
 * (record/record.c). The whole layout is here. Whoever reads it takes no lock:
 * an entry that has `seq` is whole if `seq` is the same, and even, before and
 * after it was copied. Bytes that nothing has been written to are 0.
 */
enum {
	RMAEXT_RECORD_LAYOUT = 4, /* changes with the layout */
	RMAEXT_RECORD_EVENTS = 65536,
	RMAEXT_RECORD_THREADS = 256,
	RMAEXT_RECORD_WINDOWS = 4096,
	RMAEXT_RECORD_COMMS = 1024,
	RMAEXT_RECORD_LOCKS = 4096,
	RMAEXT_RECORD_SENT = 8192,
	RMAEXT_RECORD_SITES = 256,
	/* targets that are counted apart; the last one's are of all after it */
	RMAEXT_RECORD_TARGETS = 4096,
	RMAEXT_KINDS = 5, /* kinds of operations that are counted */
	/* RMAEXT_DIRECT, _CMA, _FABRIC, _MESSAGE, and _IPC */
	RMAEXT_ROUTES = 5,
};

/* A route of records only: over the network, carried out by the target. */
enum { RMAEXT_MESSAGE = 3 };

/* What a thread is in, and what an event was. 0: in no call of rmaext. */
enum {
	/* operations, by origins; the first five, less 1, index counters */
	RMAEXT_DID_PUT = 1,
	RMAEXT_DID_GET = 2,
	RMAEXT_DID_UPDATE = 3, /* without a result */
	RMAEXT_DID_FETCH = 4,  /* an update with a result */
	RMAEXT_DID_NOTIFY = 5, /* a put with a notification; offset: slot */
	/* the same, carried out here for the rank `target` */
	RMAEXT_SERVED_PUT = 6,
	RMAEXT_SERVED_GET = 7,
	RMAEXT_SERVED_UPDATE = 8,
	RMAEXT_SERVED_FETCH = 9,
	RMAEXT_SERVED_NOTIFY = 10,
	/* waits */
	RMAEXT_IN_FLUSH = 11,	/* target: -1 is all ranks */
	RMAEXT_IN_REQUEST = 12, /* for a request, or several */
	/* a meeting of all ranks; offset: the step; bytes: id of the comm */
	RMAEXT_IN_MEETING = 13,
	RMAEXT_IN_MPI = 14,    /* for a request of MPI; as a meeting */
	RMAEXT_IN_LOCK = 15,   /* offset: 1 exclusive, 0 shared */
	RMAEXT_IN_NOTIFY = 16, /* wait_notify; offset: slot; bytes: count */
	RMAEXT_IN_UNTIL = 17,  /* wait_until; offset: of the first word */
	RMAEXT_IN_EPOCH = 18,  /* start, wait: for post, complete */
	RMAEXT_IN_GUARD = 19,  /* of updates, by another's bulk update */
	/* others, in events only */
	RMAEXT_DID_CREATE = 20,
	RMAEXT_DID_CLOSE = 21,
	RMAEXT_DID_UNLOCK = 22, /* begin: when the lock was taken */
	/* a container's wait, in its own words; target: -1 is any rank */
	RMAEXT_IN_CONTAINER = 23,
};

struct rmaext_record_count {
	uint64_t calls, bytes, errors;
};

/* Of one window and one target. A reader adds `plain` and `shared`. */
struct rmaext_record_counts {
	/* direct ones of threads that hold the GIL; `errors` is 0 */
	struct rmaext_record_count plain[5];
	struct rmaext_record_count shared[5][5]; /* by kind and route */
	/*
	 * From how many updates by message on a hint is due, as the target's
	 * memory could be mapped here if it were rmaext's; 0: none.
	 */
	uint64_t hint_from;
	uint64_t zero[5]; /* whole cache lines */
};

struct rmaext_record_event {
	uint64_t seq;	    /* 2 * (its number + 1); odd: being written */
	int64_t begin, end; /* CLOCK_MONOTONIC, ns */
	uint64_t offset;    /* bytes in the target's memory; or see above */
	uint64_t bytes;
	uint32_t window; /* id of the window; 0: none */
	int32_t target;	 /* its rank in the window; of SERVED, the origin */
	uint32_t site;	 /* where the program was, of traces; 0: unknown */
	int32_t outcome; /* 0, or a negative fi_errno */
	uint8_t kind, route;
	uint16_t thread; /* index in the table of threads */
	uint32_t more;	 /* operations that this event stands for, besides */
};

struct rmaext_record_thread {
	uint64_t seq;
	int32_t tid;   /* of the kernel; 0: nobody's */
	uint32_t kind; /* RMAEXT_IN_FLUSH and so on, RMAEXT_DID_PUT too; or 0 */
	uint32_t window;
	int32_t target; /* its rank in the window; -1: all; -2: none */
	int64_t since;	/* ns */
	uint64_t offset, bytes;
	int64_t waited; /* ns in all waits before this one */
	uint64_t waits; /* their number */
	char name[16];	/* of the thread, as the kernel has it */
	/* these two are filled in when a wait has lasted 0.1 s, else empty */
	char site[128]; /* "path:line" of the program */
	char text[64];	/* call, and whom it waits for */
};

enum { RMAEXT_WINDOW_OPEN = 1, RMAEXT_WINDOW_CLOSED = 2 };

struct rmaext_record_window {
	uint64_t seq;
	uint32_t id; /* of this process, from 1 on; not that of other ranks */
	uint32_t state;	 /* 0: free */
	uint64_t comm;	 /* id of its communicator, the same on all ranks */
	uint32_t number; /* of the communicator's windows, the same on all */
	uint32_t hidden; /* 1: rmaext's own, for control blocks */
	int64_t ranks, self;
	uint64_t unit;	/* bytes of an element */
	uint64_t bytes; /* of this rank's memory */
	int64_t created, closed;
	uint64_t counts; /* place in the file of counters; 0: it has none */
	/*
	 * Number of counters. The last are of calls on many elements of several
	 * targets at a time, by memory.
	 */
	int64_t targets;
	char dtype[24];
	char kind[24]; /* "Window", "SharedWindow", ... */
	char site[64]; /* "app.py:12": where the program has made it */
};

struct rmaext_record_comm {
	uint64_t seq;
	uint64_t id; /* 0: free */
	int64_t size, rank;
	int64_t here;	    /* ranks that share this node's memory */
	uint64_t step;	    /* of the last meeting that this rank came to */
	uint64_t steps;	    /* number of meetings that it has left */
	int64_t came, left; /* when it came to the last one, and left one */
};

/* A lock of a target that this rank holds. */
struct rmaext_record_lock {
	uint64_t seq;
	uint32_t window; /* 0: free */
	int32_t target;
	int32_t tid;
	uint32_t exclusive;
	int64_t since;
};

/*
 * Notifications of one window, target and slot, which the key names: the
 * window's id times 2^32, the target times 2^8, and the slot; 0: free. The key
 * is that of a whole entry if it was the same before and after.
 */
struct rmaext_record_sent {
	uint64_t key;
	uint64_t plain, shared; /* how many: as in rmaext_record_counts */
	int64_t last;		/* when the last one was, to some ms */
	uint32_t site; /* 1 + index of where the first one was; 0: not told */
	uint32_t unused;
};

/* "path:line" of the program; the last one stands for all others, and is "". */
struct rmaext_record_site {
	char at[128];
};

enum { RMAEXT_RUNS = 1, RMAEXT_LEAVES = 2, RMAEXT_ENDED = 3 };

struct rmaext_record_header {
	char magic[8]; /* "rmaextR" */
	uint32_t layout, header_bytes;
	char version[24];   /* of rmaext */
	uint64_t bytes;	    /* of the file */
	int64_t pid;	    /* in its own namespace */
	char job[96];	    /* the same for all ranks of a job on this node */
	int64_t rank, size; /* in MPI_COMM_WORLD */
	char host[64];
	char program[256];
	char network[64]; /* provider and device of its last endpoint; or empty
			   */
	/* the same moment by CLOCK_MONOTONIC and by CLOCK_REALTIME, ns */
	int64_t monotonic, realtime;
	uint32_t state;	 /* RMAEXT_RUNS and so on */
	uint32_t traced; /* 1: every event goes to a file, too */
	/* the exception that ends the program, set before `state`; or empty */
	char raised[256];
	/* places of the tables in the file */
	uint64_t threads, windows, comms, locks, sent, sites, events, counters;
	uint64_t next;	    /* number of the next event */
	uint64_t lost;	    /* events that a trace could not take */
	uint64_t uncounted; /* windows for which there was no room */
	/*
	 * Odd while a window's counters are added to `closed`: counters of
	 * windows and `closed` belong together if it was the same, and even,
	 * before and after.
	 */
	uint64_t folds;
	/* of windows that are closed, all targets together */
	struct rmaext_record_counts closed;
};

/*
 * Opens this process's record. Called once, with what does not change; the
 * tables are set here. -ENOMEM: there is none, and nothing is recorded.
 */
int rmaext_record_open(const struct rmaext_record_header *facts);
/* The record, or NULL. */
struct rmaext_record_header *rmaext_record_own(void);
/* Says that this process leaves: RMAEXT_LEAVES, RMAEXT_ENDED. */
void rmaext_record_leave(uint32_t state);
/*
 * Enters a window, of which rmaext_window_create() has made the C object; the
 * facts that are not known to C are given. Views share their root's entry.
 */
void rmaext_record_window(rmaext_window *window,
			  const struct rmaext_record_window *facts);
/* The id of the window's entry; 0: it has none. */
uint32_t rmaext_record_id(const rmaext_window *window);
/* The window's counters, which stay readable; or NULL. */
struct rmaext_record_counts *rmaext_record_counters(const rmaext_window *window,
						    int64_t *targets_p);
/* This rank uses the window no more, though its memory stays. */
void rmaext_record_abandon(rmaext_window *window);
/*
 * A communicator, by an id that is the same on all ranks, and the number of
 * ranks that share this node's memory; and its end.
 */
void rmaext_record_comm(uint64_t id, int64_t size, int64_t rank, int64_t here);
void rmaext_record_comm_gone(uint64_t id);
/* The calling thread comes to a meeting by MPI, and leaves it. */
void rmaext_record_meets(uint64_t comm, uint64_t step);
void rmaext_record_met(int outcome);
/*
 * Says from where a rank's slot is notified first, unless `site` is NULL.
 * Returns whether that has not been said yet.
 */
int rmaext_record_sends(rmaext_window *window, int64_t rank, int slot,
			const char *site);
/*
 * The calling thread waits in a loop of Python's: RMAEXT_IN_EPOCH and so on;
 * target -2: none. It has ended, by an error or 0.
 */
void rmaext_record_waits(const rmaext_window *window, uint32_t kind,
			 int64_t target, uint64_t offset);
void rmaext_record_waited(uint32_t kind, int outcome);
/*
 * The calling thread's wait has lasted: where the program is, and what it waits
 * for. Either may be NULL. It holds until the wait is over; of a container's
 * wait the first text does, as steps of it may be waits that last.
 */
void rmaext_record_tell(const char *site, const char *text);
/*
 * The calling thread is in no call any more, as an exception ends its wait. A
 * container's goes on, until rmaext_record_waited().
 */
void rmaext_record_quit(void);
/* The same of an operation or flush; a meeting, lock or epoch goes on. */
void rmaext_record_give_up(void);
/*
 * 1: the calling thread is said to be in the wait still that has ended just
 * now, for those who are to find out why it has failed. 0: no longer, unless it
 * is in that wait indeed. Returns for how many ns it has waited; 0: there was
 * no wait.
 */
int64_t rmaext_record_again(int again);
/*
 * Writes all events from now on to files PATH.0.events, PATH.1.events and so
 * on. A file has half of `most` bytes; the latest two are kept. 0 or -errno.
 */
int rmaext_record_trace(const char *path, uint64_t most);
/*
 * Says whether the trace is whole: 0, or the -errno of what could not be
 * written; *lost_p is the number of events that are in no file, and *dropped_p
 * that of files that were removed for want of room.
 */
int rmaext_record_traced(uint64_t *lost_p, uint64_t *dropped_p);
/* The calling thread is in a public call, at that site; 0: no longer. */
void rmaext_record_at(uint32_t site);

/*
 * For compiled Python (numba), which knows integers and floats only, with or
 * without the GIL. `window` is what Window.numba returns, index and count are
 * elements, address is that of the caller's memory. They return when that
 * memory may be reused: 0, or a negative fi_errno. They call no Python, and do
 * not release the GIL. old is the address for the previous value, or 0.
 */
int rmaext_nb_put(uint64_t window, int64_t rank, int64_t index,
		  uint64_t address, int64_t count);
int rmaext_nb_get(uint64_t window, int64_t rank, int64_t index,
		  uint64_t address, int64_t count);
int rmaext_nb_fetch_add_int64(uint64_t window, int64_t rank, int64_t index,
			      int64_t value, uint64_t old);
int rmaext_nb_fetch_add_float64(uint64_t window, int64_t rank, int64_t index,
				double value, uint64_t old);
/* compare and value are addresses, of an element each: for any type. */
int rmaext_nb_compare_and_swap(uint64_t window, int64_t rank, int64_t index,
			       uint64_t compare, uint64_t value, uint64_t old);
int rmaext_nb_compare_and_swap_int64(uint64_t window, int64_t rank,
				     int64_t index, int64_t compare,
				     int64_t value, uint64_t old);
int rmaext_nb_compare_and_swap_float64(uint64_t window, int64_t rank,
				       int64_t index, double compare,
				       double value, uint64_t old);
int rmaext_nb_flush(uint64_t window, int64_t rank);
/* cdef end */

#endif
