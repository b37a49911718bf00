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
typedef struct rmaext_near rmaext_near;
typedef struct rmaext_storage rmaext_storage;
typedef struct rmaext_file rmaext_file;
typedef struct rmaext_team rmaext_team;
typedef struct rmaext_memory rmaext_memory;
typedef struct rmaext_members rmaext_members;
typedef struct rmaext_blocks rmaext_blocks;
typedef struct rmaext_window rmaext_window;
typedef struct rmaext_op rmaext_op;
typedef struct rmaext_batch rmaext_batch;

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

enum { RMAEXT_READ = 1, RMAEXT_WRITE = 2 }; /* rights of origins */
/* with them, in records: the memory can be made persistent */
enum { RMAEXT_STORED = 4 };

enum { RMAEXT_DIRECT = 0, RMAEXT_CMA = 1, RMAEXT_FABRIC = 2 }; /* routes */

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

/* operations of rmaext_many and rmaext_begin */
enum { RMAEXT_PUT = 0, RMAEXT_GET = 1, RMAEXT_UPDATE = 2 };

/* its arguments that have one element, which stands for all */
enum { RMAEXT_ONE_RANK = 1, RMAEXT_ONE_OFFSET = 2, RMAEXT_ONE_VALUE = 4 };

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
	int hmem;	      /* ask for FI_HMEM: memory of devices, too */
	int progress;	      /* 0: no progress thread */
	int64_t spin_ns;      /* how long a waiting origin spins */
	rmaext_arena *arena;  /* whose bell it rings; NULL: none */
	/* origins that stay registered, where the provider demands FI_MR_LOCAL
	 */
	uint64_t cache_count, cache_bytes;
};

struct rmaext_fabric_info {
	char provider[64];
	char domain[64];
	char address[128]; /* fi_av_straddr of the own endpoint */
	uint64_t mr_mode;
	uint64_t caps; /* as fi_getinfo(3) has them */
	size_t key_size;
	size_t mr_iov_limit;  /* pieces of a memory */
	size_t auth_key_size; /* 0: the provider says none */
	size_t max_msg_size;
	int wait_fd; /* the CQ can be slept on */
};

/* A provider, as it would be opened; sizes are bytes. */
struct rmaext_survey {
	uint64_t caps;
	uint64_t mr_mode;
	uint64_t key_size;
	uint64_t mr_count; /* of registrations, as it says */
	uint64_t mr_iov_limit;
	uint64_t max_msg_size;
	uint64_t inject_size;
	uint64_t iov_limit;
	uint64_t rma_iov_limit;
	uint64_t tx_size; /* operations in flight */
	/* its own atomics: most elements of uint64; 0: none */
	uint64_t atomic_count;
	uint64_t fetch_count;
	uint64_t compare_count;
	int control_auto; /* it says that it needs no calls; not all do so */
	int data_auto;
	int wait_fd; /* its CQ can be slept on */
};

/* who made the memory, and what has it; numbers of enum fi_hmem_iface */
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

/* Memory that others are to use, see fi_mr(3). */
struct rmaext_memory_options {
	const struct rmaext_piece *pieces; /* one region, in this order */
	size_t n_pieces;
	int access;		 /* RMAEXT_READ, RMAEXT_WRITE */
	uint64_t requested_key;	 /* where the provider does not choose */
	const uint8_t *auth_key; /* NULL: the domain's */
	size_t auth_key_len;
	int iface;	   /* RMAEXT_IFACE_SYSTEM and so on */
	int64_t device;	   /* of iface, unless that is the system */
	int persistent;	   /* FI_RMA_PMEM, where the provider knows it */
	int counts_writes; /* see rmaext_memory_writes() */
	int lazy;	   /* pages come later: see rmaext_memory_refresh() */
};

/* Columns of which the first entry stands for all ranks. */
enum {
	RMAEXT_SAME_SIZE = 1,
	RMAEXT_SAME_BASE = 2,
	RMAEXT_SAME_ACCESS = 4,
	RMAEXT_SAME_ALIGN = 8,
	RMAEXT_SAME_KEY = 16,
	RMAEXT_SAME = 31, /* all of them: the window takes no memory a rank */
	/* of records only */
	RMAEXT_SAME_SHAPE = 32,
	RMAEXT_SAME_PARTS = 64,
};

/* What the records of all ranks, one after another, have in common. */
struct rmaext_records {
	unsigned int same;
	uint64_t size, base; /* of rank 0, as are the next two */
	uint8_t access, align;
	size_t key_len;	   /* of those that have memory, 0 if none has */
	size_t dims;	   /* the most that a shape has */
	int64_t elsewhere; /* ranks with memory that is not in an arena */
	int64_t fresh;	   /* ranks that name a segment for the first time */
};

/*
 * What a window is on each rank. All is copied. Those of routes that no rank
 * has may be NULL.
 */
struct rmaext_targets {
	rmaext_members *members;
	const uint8_t *token; /* 16 secret bytes, the same on all ranks */
	/* an entry a rank, or one */
	unsigned int same;
	const uint64_t *size;
	const uint64_t *base; /* what rmaext_memory_base gave there */
	const uint8_t *access;
	const uint8_t *align; /* address of the memory there, modulo 64 */
	const uint8_t *keys;  /* key_len bytes each */
	size_t key_len;
	/* an entry for each member that is here; the others' is the fabric */
	const uint8_t *route;
	void *const *map; /* direct: the memory there; the own one always */
	const uint64_t *address; /* cma: of the memory, in its process */
	/* where in them this window's begin; or NULL */
	rmaext_blocks *blocks;
	uint64_t block_at;
	/*
	 * Each rank's memory is what it has attached, offsets are addresses:
	 * sizes are without meaning, and all routes, the own one included,
	 * must be the fabric's.
	 */
	int dynamic;
	int64_t spin_ns;     /* how long who waits for memory spins */
	const uint8_t *door; /* of rmaext_visit_open() alone */
};

/*
 * A rank's word at the target of a lock: the kind, how many of its threads are
 * inside as readers, and the ticket of who is queued or was.
 */
enum {
	RMAEXT_SLOT_ACTIVE = 1, /* draws a ticket, or is inside as a writer */
	RMAEXT_SLOT_QUEUED = 2,
	RMAEXT_SLOT_ABANDONED = 3, /* who draws nothing: 0 */
	RMAEXT_SLOT_KINDS = 3,
	RMAEXT_SLOT_READER = 4,
	RMAEXT_SLOT_READERS = 0xfffc,
	RMAEXT_SLOT_TICKET = 16, /* bits to its right */
};

/* This rank's part in the lock of a target; kind and ticket are the owner's. */
struct rmaext_lock {
	int64_t *block; /* what the places count from, or NULL: not mapped */
	int64_t words;	/* next ticket, turns of readers, writers; sleepers */
	int64_t slots;	/* a word a rank */
	int64_t rank;	/* the own one */
	uint64_t owner; /* thread that queues, or is inside as a writer; or 0 */
	int64_t ticket;
	int kind;
	int inside; /* the owner has entered */
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
	struct rmaext_change changes[3];
	uint64_t count;
	int64_t to;
	int swap, complete;
	int kind, inside; /* the owner's, before the call */
	int64_t ticket;
	int result; /* what the call has returned */
};

enum { RMAEXT_NOTIFY = 256 }; /* notification slots of a window */

/* A part of a window; bytes. */
struct rmaext_view {
	uint64_t first;	      /* of every rank's memory */
	uint64_t stride;      /* offsets of rmaext_many count it; 0: elements */
	const uint64_t *size; /* of each rank's part, or one for all */
	int same;	      /* one for all */
	int access;	      /* of the rights that there are, those to keep */
	int64_t timeout;
};

/* Places in a control block, in 8-byte words. */
struct rmaext_places {
	uint64_t lock;	  /* 4 of them */
	uint64_t storage; /* asked, done, failed, error */
	uint64_t calls;	  /* has left the window, number of the last call */
	uint64_t notify;
	uint64_t slots, posted, completed; /* a word a rank each */
};

/* A part of this rank's memory in a window, for guests; see guest.c. */
struct rmaext_grant {
	const uint8_t *token; /* 16 secret bytes, of its own */
	uint64_t first, size; /* bytes */
	int access;
};

/* What a guest knows of it. */
struct rmaext_visit {
	rmaext_peer *owner;
	const uint8_t *token, *door;
	uint64_t size;
	int access;
	int align;	 /* address of the memory there, modulo 64 */
	int64_t timeout; /* of the window */
};

/* What a request is to do. */
struct rmaext_call {
	int kind; /* RMAEXT_PUT, RMAEXT_GET, RMAEXT_UPDATE */
	int op;	  /* of an update, RMAEXT_CSWAP included */
	int type;
	int64_t rank;
	uint64_t offset;     /* bytes */
	const void *operand; /* of put and update */
	const void *compare;
	void *result;
	uint64_t count; /* bytes of put and get, elements of an update */
	/*
	 * Set to 0 at first, and to 1 once it has ended: the last that is
	 * done to the buffers, of which this is one.
	 */
	int *ended;
};

/* MPI's levels of support for threads, by our own numbers. */
enum {
	RMAEXT_MPI_FUNNELED =
		0, /* the main thread only, or there is one only */
	RMAEXT_MPI_SERIALIZED = 1,
	RMAEXT_MPI_MULTIPLE = 2,
};

/* What a wait needs to move MPI; addresses of functions. */
struct rmaext_mpi {
	uint64_t iprobe, test, is_thread_main;
	int handle_bytes; /* of a communicator */
	int any_source;
	int tag; /* of no message */
	int level;
};

/* What the ranks of a team brought to a meeting. */
struct rmaext_met {
	unsigned int worst; /* largest of their values */
	int differ;	    /* they do not take it for the same step */
};

/* of rmaext_wait_until */
enum {
	RMAEXT_EQ = 0,
	RMAEXT_NE = 1,
	RMAEXT_LT = 2,
	RMAEXT_LE = 3,
	RMAEXT_GT = 4,
	RMAEXT_GE = 5,
};

/*
 * An element in the memory that a rank has in a window, or in its control
 * block, compared with a value. Of value and seen the first bytes count.
 */
struct rmaext_condition {
	uint64_t offset; /* bytes */
	uint64_t value;
	uint64_t seen; /* out: what was there */
	uint8_t block; /* in the control block */
	uint8_t type;  /* integers, bool, real floats up to 8 bytes */
	uint8_t comparison;
	uint8_t holds; /* out */
};

/* State of a wait that is continued over several calls; zero it first. */
struct rmaext_wait {
	int64_t timeout; /* in: ns without progress until -FI_ETIMEDOUT */
	int64_t deadline;
	int64_t rank;
	uint64_t seen;
};

/* What rmaext_many leaves to be continued. */
struct rmaext_many {
	rmaext_batch *batch; /* NULL: nothing */
	int64_t bad;	     /* index of the first element refused, or -1 */
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
};

/* A part of an arena, as other processes find it. */
struct rmaext_block {
	int64_t fd; /* in the owner */
	uint64_t inode;
	uint64_t size; /* of the whole file */
	uint64_t offset;
};

/* What a process tells those that may share its node. */
struct rmaext_process {
	int64_t pid;
	uint64_t address; /* of the nonce in its memory */
	uint8_t nonce[16];
	struct rmaext_block first; /* its first segment */
};

enum { RMAEXT_CAN_MAP = 1, RMAEXT_CAN_COPY = 2 };

enum { RMAEXT_TEAM_SLOT = 512 }; /* bytes */

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

/* Opens the provider's first domain and closes it again. */
int rmaext_survey(rmaext_library *lib, const char *provider, int mr_basic,
		  struct rmaext_survey *survey_p);
/*
 * Lines "variable \t value \t help", one a setting of libfabric and of its
 * providers; no value: not set. Errors as those of rmaext_candidates().
 */
int rmaext_settings(rmaext_library *lib, char *buf, size_t *len);

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
 * RMAEXT_PENDING: the endpoint stays until the process ends, and may still
 * write to what its operations had.
 */
int rmaext_fabric_close(rmaext_fabric **fabric);
/* serve the network for up to `slice`; returns early after a signal */
void rmaext_fabric_progress(rmaext_fabric *fabric, int64_t slice);
/* after the last slice of a wait: the progress thread takes over at once */
void rmaext_fabric_leave(rmaext_fabric *fabric);

/* pidfd: readable once the peer is gone, owned by the fabric; -1 if none */
int rmaext_peer_add(rmaext_fabric *fabric, const void *address, size_t len,
		    int pidfd, rmaext_peer **peer_p);

/*
 * Memory that others on this node may map. Blocks are zeros, aligned to 64
 * bytes, those of a page or more to pages. Stays until the process ends.
 */
int rmaext_arena_open(const uint8_t *nonce, rmaext_arena **arena_p);
void rmaext_arena_describe(rmaext_arena *arena,
			   struct rmaext_process *process_p);
int rmaext_arena_allocate(rmaext_arena *arena, uint64_t len, void **addr_p);
/*
 * The same in whole pages, at a certain address (RMAEXT_EXACTLY: -EEXIST if
 * something lies there), or near it; 0: anywhere. RMAEXT_HUGE: of huge pages,
 * which are all there at once.
 */
enum { RMAEXT_EXACTLY = 1, RMAEXT_HUGE = 2 };
int rmaext_arena_place(rmaext_arena *arena, uint64_t len, uint64_t wanted,
		       int how, void **addr_p);
/* nothing in a forked child, and after rmaext_arena_leave */
void rmaext_arena_free(rmaext_arena *arena, void *addr);
/* 1 if the bytes lie in the arena */
int rmaext_arena_find(rmaext_arena *arena, const void *addr, uint64_t len,
		      struct rmaext_block *block_p);
/* tell the peers that this process takes no part any more */
void rmaext_arena_leave(rmaext_arena *arena);

/* Own memory, whatever it is: how many bytes of its pages are there. */
int rmaext_pages_resident(const void *addr, uint64_t len, uint64_t *bytes_p);
/* have all pages there, for writing or for reading */
int rmaext_pages_populate(void *addr, uint64_t len, int write);
/* a hint to the system, as madvise(2) */
int rmaext_pages_advise(void *addr, uint64_t len, int willneed);

/*
 * Memory that is mapped from a file: a thread writes it back when a peer asks,
 * by counting `asked` up in the control block, and then rings this process's
 * bell. Until remove returns it may look at the pieces and at the block.
 */
int rmaext_storage_open(rmaext_arena *arena, rmaext_storage **storage_p);
int rmaext_storage_add(rmaext_storage *storage, void *block,
		       const struct rmaext_piece *pieces, size_t count,
		       rmaext_file **file_p);
void rmaext_storage_remove(rmaext_storage *storage, rmaext_file *file);
void rmaext_storage_close(rmaext_storage **storage_p);
/* the same in this thread; no error record */
int rmaext_storage_write(void *addr, uint64_t len);

/*
 * A process that claims to be on this node; what can be done is proven. It
 * stays until the process ends, as do pidfd and what it has mapped.
 */
int rmaext_near_open(const struct rmaext_process *process, int pidfd,
		     rmaext_near **near_p);
int rmaext_near_reach(const rmaext_near *near);
/* 1 if a process of this network namespace has an abstract socket so named */
int rmaext_near_visible(const char *name);
int rmaext_near_map(rmaext_near *near, const struct rmaext_block *block,
		    uint64_t len, void **addr_p);

/*
 * MPI, which whoever waits moves meanwhile, where the thread may call it: see
 * mpi_progress.c. begin once; then use a communicator of two ranks or more, as
 * long as it is there: 0 ends that, and returns when no thread is in a call on
 * it.
 */
void rmaext_mpi_begin(const struct rmaext_mpi *mpi);
void rmaext_mpi_use(uint64_t comm);
/* ns between calls; of one who sleeps meanwhile, at first and after long */
void rmaext_mpi_pace(int64_t often, int64_t first, int64_t most);
/* 1: this thread, one of ours, never calls it; -1: it ends */
void rmaext_mpi_aside(int more);
/*
 * Call it now, if it is time, as rmx_pace_turn() does: for calls that do not
 * wait, with which programs may poll. 1: it had something to do.
 */
int rmaext_mpi_glance(void);
/* sleep, and call it meanwhile; returns early after a signal */
void rmaext_mpi_nap(int64_t ns);
/* before MPI is finalized; and in a forked child */
void rmaext_mpi_end(int forked);
/* a thread that moves MPI while the program computes */
int rmaext_mpi_thread(void);
/*
 * Test an MPI_Request, which this thread has begun, until it is done: 0, or
 * RMAEXT_PENDING after a slice. The network is served meanwhile; fabric: or
 * NULL. *quiet is 0 at first, and this function's.
 */
int rmaext_mpi_wait(void *request, rmaext_fabric *fabric, int64_t *quiet,
		    int64_t slice);

/*
 * Ranks of one node. board: rmaext_team_bytes() zeros that all of them map.
 * meet waits until all have come, and says what they brought; for so long, or
 * RMAEXT_PENDING: call it again. Each rank has two slots, which it writes to by
 * turns before a meeting, and all read after it, before the next. Who gives up
 * is waited for no more: this and all later meetings fail, -FI_ECANCELED, on
 * all ranks. Who has left the last meeting closes; the board must stay until
 * all have done so, as some may still be waking up in it: then it is deserted.
 */
uint64_t rmaext_team_bytes(int64_t size);
int rmaext_team_open(void *board, int64_t rank, int64_t size, int64_t spin,
		     rmaext_team **team_p);
/* -FI_EMSGSIZE: too long for a slot, nothing was written */
int rmaext_team_write(rmaext_team *team, const uint8_t *record, uint64_t len);
/* All ranks' records, one after another; the bytes. data: a slot a rank. */
uint64_t rmaext_team_read(const rmaext_team *team, uint8_t *data,
			  int32_t *lengths);
/* step: what this rank takes the meeting for */
int rmaext_team_meet(rmaext_team *team, uint64_t step, unsigned int value,
		     int64_t slice, struct rmaext_met *met_p);
/* 1 if that rank has not come to the meeting that this one waits in */
int rmaext_team_awaits(const rmaext_team *team, int64_t rank);
/* this rank's program has come to its end; has a rank's? */
void rmaext_team_end(rmaext_team *team);
int rmaext_team_ended(const rmaext_team *team, int64_t rank);
/* what this rank has to say of its leaving; cut at the end of a slot */
void rmaext_team_explain(rmaext_team *team, const uint8_t *why, uint64_t len);
/* how often any rank had something to say */
unsigned int rmaext_team_said(const rmaext_team *team);
/* what a rank has said; its length. why: a slot */
uint64_t rmaext_team_reason(const rmaext_team *team, int64_t rank,
			    uint8_t *why);
void rmaext_team_give_up(rmaext_team *team);
/* the first rank that did, or -1 */
int64_t rmaext_team_given_up(const rmaext_team *team);
void rmaext_team_close(rmaext_team *team);
int rmaext_team_deserted(const void *board, int64_t size);

/*
 * -FI_EINVAL: no bytes, no rights, or more pieces than mr_iov_limit.
 * -FI_EOPNOTSUPP: memory of a device, which the provider does not reach. Others
 * are the provider's: -FI_ENOKEY, -FI_EKEYREJECTED and so on.
 */
int rmaext_memory_register(rmaext_fabric *fabric,
			   const struct rmaext_memory_options *options,
			   rmaext_memory **memory_p);
/*
 * The pages behind these bytes have come, or are others now. What the provider
 * does not want to know it is not told. Nobody may use the memory meanwhile.
 */
int rmaext_memory_refresh(rmaext_memory *memory, uint64_t offset, uint64_t len);
/*
 * Writes and atomics of others that have arrived. -FI_ENOSYS: not counted, as
 * nobody asked for it or the provider does not count.
 */
int rmaext_memory_writes(rmaext_memory *memory, uint64_t *count_p);
/* Origins and results of at most so many bytes are copied. */
enum { RMAEXT_COPIED = 32 << 10 };
/*
 * Own memory that operations will read or write: from here on it neither goes
 * nor moves, until it is forgotten. So it may stay registered, where the
 * provider demands that local memory is (else *token_p is 0, and nothing is
 * done). pinned: once it is registered, it stays so.
 */
int rmaext_origin_know(rmaext_fabric *fabric, const void *addr, uint64_t len,
		       int pinned, uint64_t *token_p);
/* No operation uses it any more. Harmless where the token is 0. */
void rmaext_origin_forget(rmaext_fabric *fabric, uint64_t token);
int rmaext_memory_key(rmaext_memory *memory, void *buf, size_t *len);
uint64_t rmaext_memory_base(const rmaext_memory *memory);
int rmaext_memory_close(rmaext_memory **memory);

/* of the control block of a window over so many ranks; see control_block.h */
uint64_t rmaext_block_bytes(int64_t count);
void rmaext_block_places(int64_t count, struct rmaext_places *places_p);

/*
 * A word in a control block that only grows. raise adds 1; await waits for so
 * many ns, first awake, then asleep, until it is `least`: 1, else 0.
 */
void rmaext_word_raise(int64_t *sleepers, int64_t *word);
/* moves MPI meanwhile */
int rmaext_word_await(int64_t *sleepers, const int64_t *word, int64_t least,
		      int64_t spin, int64_t sleep);
/* SEQ_CST, for the memory of this process */
void rmaext_barrier(void);

/*
 * take returns 1: inside, 0: queued, then call wait; -FI_EBUSY: another thread
 * of this rank is the owner. Readers give the ownership up themselves, by
 * owner = inside = 0, once they have noted that they are inside. pass: let
 * those behind a rank that will not come go on, if its slot is still as seen.
 * exchange: NULL where the block is mapped.
 */
int rmaext_lock_take(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     uint64_t thread, int exclusive);
/* for so many ns; with an exchange it only looks */
int rmaext_lock_wait(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     int exclusive, int64_t spin, int64_t sleep);
int rmaext_lock_leave(struct rmaext_lock *lock,
		      struct rmaext_exchange *exchange, int exclusive);
/* of the owner, whether queued or inside; else nothing */
int rmaext_lock_undo(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     uint64_t thread, int exclusive);
int rmaext_lock_pass(struct rmaext_lock *lock, struct rmaext_exchange *exchange,
		     int64_t rank, int64_t seen);

/*
 * -FI_EINVAL: some are not in order, or differ where they must not; keys.py has
 * the words for what is wrong. Its elements have `itemsize` bytes.
 */
int rmaext_records_check(const uint8_t *data, const int32_t *lengths,
			 int64_t count, uint64_t itemsize,
			 struct rmaext_records *records_p);
/*
 * One column of what was checked, `width` bytes a rank: uint64_t, or uint8_t of
 * access and align; keys as they are; of shapes uint64_t, the number of
 * dimensions first.
 */
void rmaext_records_column(const uint8_t *data, const int32_t *lengths,
			   int64_t count, int column, size_t width, void *to);
/*
 * How the ranks of `here`, in ascending order, are reached: an entry each.
 * Memory of those that `near` has is mapped, or its address noted; the others,
 * NULL there, are left as they are. Records as above, which were checked.
 */
struct rmaext_ways {
	uint8_t *route;
	void **map;	   /* direct */
	uint64_t *address; /* cma: in its process */
};
int rmaext_records_ways(const uint8_t *data, const int32_t *lengths,
			const int64_t *here, int64_t count,
			rmaext_near *const *near,
			const struct rmaext_ways *ways);
/*
 * Where the window has a row for each rank, that of rank 0, and the bytes from
 * row to row; else 0 bytes.
 */
struct rmaext_rows {
	const uint64_t *size;
	const uint8_t *access; /* with other bits than rights, too */
	const uint8_t *align;
	size_t step;
};
void rmaext_window_rows(rmaext_window *window, struct rmaext_rows *rows_p);

/*
 * The ranks of a communicator, for all windows over it. `peers` and `nears`
 * have an entry each, which may be NULL, or are NULL; the own rank has no near.
 * Those that are here are the own rank and those with a near. The windows keep
 * it, and so with control blocks: a pointer for each that is here.
 */
int rmaext_members_new(int64_t count, int64_t self, rmaext_peer *const *peers,
		       rmaext_near *const *nears, rmaext_arena *arena,
		       rmaext_members **members_p);
void rmaext_members_release(rmaext_members *members);
int rmaext_blocks_new(const rmaext_members *members, void *const *first,
		      rmaext_blocks **blocks_p);
void rmaext_blocks_release(rmaext_blocks *blocks);

int rmaext_window_create(rmaext_fabric *fabric,
			 const struct rmaext_targets *targets, int64_t timeout,
			 rmaext_window **window_p);
/*
 * A window over a part of another's memory, without a registration of its own.
 * What is pending is the other's, whose flush and close it needs; it must be
 * shut before the other is closed, and may be freed after it.
 */
int rmaext_window_view(rmaext_window *of, const struct rmaext_view *view,
		       rmaext_window **view_p);
/*
 * The first half of closing: later operations of this rank fail with
 * -FI_ESHUTDOWN, while those of others are served. -FI_EBUSY while other
 * threads' calls are in flight, which may write to other ranks' memory.
 */
int rmaext_window_shut(rmaext_window *window);
/* after that, where it is not to be closed yet */
void rmaext_window_reopen(rmaext_window *window);
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
 * Memory for processes of other jobs. secret: 16 bytes, for a fabric's
 * lifetime; before the door is open, no grant can be reached. A grant is a
 * window that only guests use; it ends with rmaext_window_close(), and must be
 * closed before the window that it is a part of.
 */
int rmaext_door_open(rmaext_fabric *fabric, const uint8_t *secret);
int rmaext_grant_open(rmaext_fabric *fabric, rmaext_window *of,
		      const struct rmaext_grant *grant,
		      rmaext_window **grant_p);
/*
 * The guest's window, of one rank, 0. It is announced to its owner before all
 * else; a flush waits for the answer.
 */
int rmaext_visit_open(rmaext_fabric *fabric, const struct rmaext_visit *visit,
		      rmaext_window **window_p);
int rmaext_visit_announce(rmaext_window *window);

/*
 * Memory of this rank for a dynamic window: -EEXIST if some of it is attached,
 * -ENXIO unless just that is. When detach returns, nobody looks at it any more.
 */
int rmaext_attach(rmaext_window *window, const void *addr, uint64_t len);
int rmaext_detach(rmaext_window *window, const void *addr, uint64_t len);

/*
 * put returns 0 once buf may be reused. get returns 0 once the
 * result is there. RMAEXT_PENDING or an error with *op_p set: the operation
 * may still use its buffers. Call rmaext_op_wait() until it is no longer
 * pending, then rmaext_op_release().
 */
int rmaext_put(rmaext_window *window, int64_t rank, uint64_t offset,
	       const void *buf, uint64_t len, rmaext_op **op_p);
int rmaext_get(rmaext_window *window, int64_t rank, uint64_t offset, void *buf,
	       uint64_t len, rmaext_op **op_p);
/*
 * `op` on count elements, atomically each; with a result, which gets what was
 * there, like get, else like put. compare: of RMAEXT_CSWAP only, which compares
 * bits. The operand of RMAEXT_NO_OP may be NULL; result may be operand.
 */
int rmaext_update(rmaext_window *window, int64_t rank, uint64_t offset, int op,
		  int type, const void *operand, const void *compare,
		  void *result, uint64_t count, rmaext_op **op_p);
/* is there such an operation on that type? */
int rmaext_update_valid(int op, int type);
/* that its elements need in a window; bytes */
int rmaext_type_align(int type);
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

/*
 * A request: 0 if it was done at once, or RMAEXT_PENDING with *op_p set. Does
 * not wait. -FI_EAGAIN with *op_p set: an update by memory that others keep us
 * from, and no request yet; rmaext_op_wait() until it is done. A request goes
 * on without rmaext_op_test() or rmaext_op_wait(), after rmaext_op_release()
 * too, which gives RMAEXT_PENDING until it has ended. It ends when it is
 * applied at the target. One thread at a time may use *op_p.
 */
int rmaext_begin(rmaext_window *window, const struct rmaext_call *call,
		 rmaext_op **op_p);
/*
 * As rmaext_op_wait(), but does not wait, or for up to the slice only. Errors
 * may come of a request that has not ended: -FI_ETIMEDOUT, it may be waited for
 * again; -FI_ENOTCONN, -FI_ESHUTDOWN.
 */
int rmaext_op_test(rmaext_op *op);
int rmaext_op_wait_for(rmaext_op *op, int64_t slice);
/* 1: nothing of it was sent, and it has ended; 0: it goes on */
int rmaext_op_cancel(rmaext_op *op);
/*
 * Until more requests of this fabric have ended than *seen, or the slice is
 * over; sets *seen. What had ended by then has `ended` set.
 */
int rmaext_fabric_wait_ended(rmaext_fabric *fabric, uint64_t *seen,
			     int64_t slice);

/*
 * One operation on each of `count` elements of `unit` bytes, at offsets[i]
 * elements in the window of ranks[i]. All are checked before the first is
 * carried out: -ERANGE, -FI_EACCES, -FI_EFAULT, -FI_EOPNOTSUPP or -FI_ENOTCONN,
 * with many_p->bad set. Returns 0 once all are applied at their targets.
 * RMAEXT_PENDING: the arrays are in use until rmaext_many_wait() returns
 * something else, or rmaext_many_release() gives the rest up; that is harmless
 * at any time. After an error, any of them may have been applied or not. `op`
 * and `type` count for updates only, and RMAEXT_CSWAP is none of them. A get
 * has no values, a put no results; an update that has none needs no right to
 * read.
 */
int rmaext_many(rmaext_window *window, int kind, int op, int type,
		uint64_t unit, uint64_t count, int ones, const int64_t *ranks,
		const int64_t *offsets, const void *values, void *results,
		struct rmaext_many *many_p);
/* The same of one rank, where an offset counts `scale` bytes, at least 1. */
int rmaext_many_at(rmaext_window *window, int kind, int op, int type,
		   uint64_t unit, uint64_t scale, uint64_t count,
		   const int64_t *rank, const int64_t *offsets,
		   const void *values, void *results,
		   struct rmaext_many *many_p);
int rmaext_many_wait(struct rmaext_many *many);
void rmaext_many_release(struct rmaext_many *many);

/*
 * Own memory that lies in `count` runs, each so many bytes long and so far from
 * base, to one piece (kind RMAEXT_PUT), or from it (RMAEXT_GET).
 */
void rmaext_runs_copy(int kind, void *base, const int64_t *offsets,
		      const int64_t *lengths, uint64_t count, void *piece);

/*
 * A put or get (RMAEXT_PUT, RMAEXT_GET) of a part of an array that begins at
 * `offset`: shape[k] elements of `unit` bytes, steps[k] bytes apart in the
 * window, and locals[k] in own memory, where NULL is one piece in C order. On
 * the direct route alone own memory may be in pieces; there the two must not
 * overlap. What rmaext_strided_whole() says no to is done by
 * rmaext_strided_many(), which is continued as rmaext_many(). Else as
 * rmaext_put() and rmaext_get().
 */
int rmaext_strided_whole(rmaext_window *window, int64_t rank, uint64_t unit,
			 int ndim, const int64_t *shape, const int64_t *steps);
int rmaext_strided(rmaext_window *window, int64_t rank, uint64_t offset,
		   int kind, uint64_t unit, int ndim, const int64_t *shape,
		   const int64_t *steps, const int64_t *locals, void *buf,
		   rmaext_op **op_p);
int rmaext_strided_many(rmaext_window *window, int64_t rank, uint64_t offset,
			int kind, uint64_t unit, int ndim, const int64_t *shape,
			const int64_t *steps, void *buf,
			struct rmaext_many *many_p);

/*
 * Wait until any, or every, condition holds of memory of a rank that is mapped
 * here: 0. RMAEXT_PENDING after `slice`, 100 ms or a signal: call it again.
 * Woken by flushes, updates and notifications that go there. Of memory outside
 * control blocks, or without an arena, it looks every millisecond, too.
 */
int rmaext_wait_until(rmaext_window *window, int64_t rank,
		      struct rmaext_condition *conditions, uint64_t count,
		      int every, int64_t slice);

/*
 * As rmaext_put(), then counts one up in a slot of the rank. By the fabric at
 * most RMAEXT_NOTIFY_MOST bytes: what is longer is put and flushed before,
 * and nothing goes with the notification.
 */
enum { RMAEXT_NOTIFY_MOST = 32 << 10 };
int rmaext_put_notify(rmaext_window *window, int64_t rank, uint64_t offset,
		      const void *buf, uint64_t len, int slot,
		      rmaext_op **op_p);
/*
 * Gives back what rmaext_notify_wait() took off an own slot; nothing where
 * *seen is 0, as it is afterwards.
 */
int rmaext_notify_return(rmaext_window *window, int slot, int64_t count,
			 int64_t *seen);
/*
 * Wait until the own slot has counted so many, and take them off; *seen_p is
 * what there was. RMAEXT_PENDING as above; with a slice of 0 it only looks.
 */
int rmaext_notify_wait(rmaext_window *window, int slot, int64_t count,
		       int64_t slice, int64_t *seen_p);

/* wait until every put and request to rank (-1: to all) is applied there */
int rmaext_flush(rmaext_window *window, int64_t rank, struct rmaext_wait *wait);
/* what an operation would be refused for; type: of a fetch_add, else -1 */
int rmaext_window_check(rmaext_window *window, int64_t rank, uint64_t offset,
			uint64_t len, int access, int type);

/*
 * For compiled Python (numba), which knows integers and floats only. `window`
 * is what Window.numba says, index and count are elements, an address is that
 * of the caller's memory. They return when the caller's memory may be reused:
 * 0, or a negative fi_errno. No Python is called, and no lock of it is dropped.
 * old: where the previous value goes, 0: nowhere.
 */
int rmaext_nb_put(uint64_t window, int64_t rank, int64_t index,
		  uint64_t address, int64_t count);
int rmaext_nb_get(uint64_t window, int64_t rank, int64_t index,
		  uint64_t address, int64_t count);
int rmaext_nb_fetch_add_int64(uint64_t window, int64_t rank, int64_t index,
			      int64_t value, uint64_t old);
int rmaext_nb_fetch_add_float64(uint64_t window, int64_t rank, int64_t index,
				double value, uint64_t old);
int rmaext_nb_flush(uint64_t window, int64_t rank);
/* cdef end */

#endif
