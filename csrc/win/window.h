/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A window and its targets, and the questions that are asked on every
 * operation.
 */
#ifndef RMAEXT_WINDOW_H
#define RMAEXT_WINDOW_H

#include "memory/device.h"
#include "net/endpoint.h"
#include "record/record.h"
#include "shm/control_block.h"
#include "shm/neighbour.h"
#include "win/pending.h"

/* What is known of a rank of a communicator, in all windows over it. */
struct rmx_member {
	/* NULL: not reached by the fabric, not used yet, or not to be added */
	struct rmaext_peer *_Atomic peer;
	struct rmaext_neighbour
		*neighbour;	       /* NULL: this rank, or another node's */
	struct rmx_doorbell *doorbell; /* NULL: it is not mapped */
};

struct rmx_pidfd {
	int64_t rank;
	int fd;
};

/* The ranks of a communicator. Windows over it count as users. */
struct rmaext_members {
	atomic_int users;
	int64_t count, self; /* number of ranks, this rank */
	int64_t here_count;
	int64_t *here; /* this rank and those with a neighbour, ascending */
	/*
	 * With addresses peers are added on first use: the provider keeps much
	 * more of a peer than an address.
	 */
	struct rmaext_fabric *fabric;	     /* NULL: there are no addresses */
	pthread_mutex_t lock;		     /* guards adding peers */
	struct rmaext_members *next, **prev; /* in fabric->members */
	uint8_t *addresses;		     /* address_len bytes a rank */
	uint8_t *serves;		     /* a rank has a progress thread */
	size_t address_len;
	struct rmx_pidfd *pidfds; /* ascending by rank */
	int64_t pidfd_count;
	pid_t owner; /* the process that has made it; not its children */
	struct rmx_member of[];
};

/* The control blocks of many windows, one after another. */
struct rmaext_blocks {
	atomic_int users;
	char *first[]; /* a rank's first block, if it is mapped here; or NULL */
};

#define RMX_FILLED 0x80 /* in rmx_target.access: the target has been set */

/*
 * A rank of a window as a target, in one cache line. rmx_target_of() finds it.
 * A target is filled in on first use. Until then it has no more than its row,
 * or where the ranks of a window are all alike it is zeros, in an untouched
 * page where there are many ranks.
 */
struct rmx_target {
	const struct rmx_member *member;
	union {
		/* RMAEXT_DIRECT: the memory, mapped here; so of RMAEXT_IPC,
		 * for devices */
		char *map;
		uint64_t address; /* RMAEXT_CMA: its address there */
		uint64_t base;	  /* RMAEXT_FABRIC: what transfers add */
	};
	uint64_t size; /* bytes */
	union {
		uint64_t key;
		/* RMAEXT_IPC: of the root's target; NULL: own memory, or it is
		 * not mapped any more */
		struct rmx_import *import;
	};
	/*
	 * What a flush waits for, and gets whose own calls wait for them. Who
	 * completes one changes one of these, last: the window may be freed
	 * once both are 0.
	 */
	rmx_pending pending;
	struct rmx_queue *queue; /* of xfer/post.c; guarded by backlog.lock */
	atomic_ushort gets;
	atomic_ushort finished; /* number of completions; shows progress */
	/*
	 * Of failed puts that no thread waits for: how many there are, their
	 * error, and how often flush has reported it.
	 */
	unsigned int unseen;
	atomic_short error;
	unsigned short reports;
	atomic_uchar access; /* rights, and RMX_FILLED */
	uint8_t align;	     /* address of offset 0, modulo 64 */
	uint8_t route;	     /* RMAEXT_DIRECT and so on */
	bool mapped;	     /* the raw key is; guarded by fabric->lock */
};

_Static_assert(sizeof(struct rmx_target) == RMX_LINE, "promised: 64 bytes");

/* What a target is filled with. */
struct rmx_row {
	uint64_t size, base, key;
	uint8_t access, align;
};

struct rmaext_window {
	/*
	 * The window that a view is a part of; a window is its own root. The
	 * checks are made against the view, and the root has the operations.
	 */
	struct rmaext_window *root;
	uint64_t first;	 /* byte of the root where a view begins */
	uint64_t stride; /* of elements in rmaext_many; 0: their own size */
	struct rmaext_fabric *fabric; /* NULL: all routes are direct */
	int64_t timeout;
	int64_t spin;  /* ns for which a wait for memory stays awake */
	int64_t count; /* number of ranks */
	int64_t self;  /* this rank */
	uint8_t token[RMX_TOKEN];
	char *own; /* this rank's memory */
	struct rmaext_members *members;
	struct rmaext_blocks *blocks; /* NULL: no control blocks */
	uint64_t block_at;	      /* bytes to this window's block */
	struct rmx_target *targets;
	struct rmx_tally tally; /* of a view: its root's */
	struct rmx_row row;	/* of targets that are not filled yet */
	bool uneven;		/* ranks differ: each target has its row */
	struct rmx_attached *attached; /* of a dynamic window; else NULL */
	struct rmx_device
		*device; /* that has this rank's memory; NULL: the host */
	/* bytes of a rank's control blocks, if the window is over such; or 0 */
	atomic_uint_fast64_t control_end;
	bool invites;	/* a grant: its origins are clients; see am/client.c */
	bool is_client; /* a client's: another job has it, messages reach it */
	uint8_t secret[RMX_TOKEN]; /* of the owner's endpoint, if it is a
				      client's */
	uint8_t *raw_keys;	   /* raw_len bytes each, raw keys only */
	size_t raw_len;
	bool raw_same;		     /* there is one key, for all ranks */
	struct rmx_rundown rundown;  /* calls of this rank */
	struct rmx_rundown served;   /* requests of other ranks */
	pthread_mutex_t lock;	     /* guards failure, and filling targets */
	struct rmaext_error failure; /* the record of target->error */
	struct rmaext_window *next, **prev;
	/* others of this process that have memory; guarded in exec/overlap.c */
	struct rmaext_window *beside, **beside_of;
};

/* A window and its element type, for the C methods and compiled Python. */
struct rmx_typed {
	struct rmaext_window *window;
	uint64_t unit; /* bytes an element */
	int type;      /* RMAEXT_INT8 and so on; -1: one without updates */
	char closed;   /* set by Python before it closes the window */
};

/* -- check.c */

/*
 * Enters and leaves a call on a window and on its root. Any thread may call
 * enter, as the struct stays until rmaext_window_free(). It returns 0, or
 * -FI_ESHUTDOWN with a record of `call` once the window is closed.
 */
int rmx_window_enter(struct rmaext_window *window, const char *call);
void rmx_window_leave(struct rmaext_window *window);

/*
 * Checks rank, bounds and rights of an operation, and that the target is not
 * known to be gone. Any thread inside a call on the window may call it, before
 * anything is sent. Returns 0, or -ERANGE, -FI_EACCES or -FI_ENOTCONN with a
 * record of `call`.
 */
int rmx_check(const struct rmaext_window *window, const char *call,
	      int64_t rank, uint64_t offset, uint64_t len, int access);

/* -- raw_key.c */

/*
 * Maps the raw key of a rank before the first transfer to it; does nothing
 * where keys have eight bytes. Takes fabric->lock. Returns 0, or an error with
 * a record.
 */
int rmx_key_map(struct rmaext_window *window, int64_t rank);

/* Unmaps all keys of a window, which is closed to transfers. */
void rmx_key_unmap_all(struct rmaext_window *window);

/* -- rank_table.c */

/*
 * Returns the peer of a rank, which it adds if that was not used yet; or NULL
 * if the rank has none. Any thread inside a call on the fabric or on a window
 * may call it, and the reader of the CQ. Takes the locks of the members and the
 * fabric.
 */
struct rmaext_peer *rmx_member_peer(struct rmaext_members *members,
				    int64_t rank);

/*
 * Comes after it has returned NULL to the same thread. Returns the error that
 * says why, with a record of `call`.
 */
int rmx_peer_missing(const struct rmaext_members *members, int64_t rank,
		     const char *call);

/*
 * Returns the peer of that name, which is that rank in a communicator; or NULL.
 * As rmx_member_peer() in all else.
 */
struct rmaext_peer *rmx_origin_find(struct rmaext_fabric *fabric, uint64_t name,
				    int64_t rank);

/*
 * Add a user, which rmaext_members_release() or rmaext_blocks_release() ends,
 * and return their argument. Blocks may be NULL.
 */
struct rmaext_members *rmx_members_hold(struct rmaext_members *members);
struct rmaext_blocks *rmx_blocks_hold(struct rmaext_blocks *blocks);

/*
 * Returns a table of zeros, whose untouched pages take no memory, or NULL if
 * memory is short. The caller owns it, and frees it with the same count.
 */
struct rmx_target *rmx_targets_new(int64_t count);
void rmx_targets_free(struct rmx_target *targets, int64_t count);

/*
 * Sets all of a target but what another route than the fabric needs; and fills
 * it if its rank is here or has its peer. Only one thread sets a target, with
 * window->lock held once others know the window.
 */
void rmx_target_set(struct rmaext_window *window, int64_t rank,
		    const struct rmx_row *row);

/* Fills a target that is not filled yet; takes window->lock. */
void rmx_target_fill(const struct rmaext_window *window, int64_t rank);

/* Returns what a target is or would be filled with; key and base are left. */
struct rmx_row rmx_target_row(const struct rmaext_window *window, int64_t rank);

/* -- window.c */

/*
 * Makes a window; messages find it after rmx_serve_window() only. What
 * `targets` points to is copied, its members and blocks are held. Returns 0,
 * and the caller owns the window, or -FI_ENOMEM with a record.
 */
int rmx_window_new(struct rmaext_fabric *fabric,
		   const struct rmaext_targets *targets, int64_t timeout,
		   struct rmaext_window **window_p);

/*
 * Makes a window of its own, which no message finds yet, over a part of the
 * memory that this rank has in `of`. Returns 0, and the caller owns it, or an
 * error with a record.
 */
int rmx_window_part(struct rmaext_window *of, const struct rmaext_grant *grant,
		    struct rmaext_window **part_p);

/*
 * Unmaps what other processes' devices have of the window: no call on it or its
 * views is under way. If it is opened again messages go there. The owner may
 * free its memory once all ranks have done so.
 */
void rmx_imports_drop(struct rmaext_window *window);

/* Frees a window, or a view, that nobody uses any more. */
void rmx_window_free(struct rmaext_window *window);

/* Returns the words for an answer that says that the window is closed there. */
static inline const char *rmx_closed_there(const struct rmaext_window *w)
{
	return w->is_client ? "the window there is closed, or the grant revoked"
			    : "the window there is closed";
}

/*
 * Are puts and gets there copied by the kernel? It may have refused one since
 * the window was made: then they go as messages, if there is a network.
 */
static inline bool rmx_copies(const struct rmx_target *t)
{
	return t->route == RMAEXT_CMA &&
	       !(atomic_load_explicit(&t->member->neighbour->refuses,
				      memory_order_relaxed) &&
		 t->member->peer);
}

/* Does the target's memory lie on a device? No network reaches that. */
static inline bool rmx_on_device(const struct rmx_target *t)
{
	return atomic_load_explicit(&t->access, memory_order_relaxed) &
	       RMAEXT_DEVICE;
}

/*
 * Which device copies puts and gets to a rank, in a stream of this process?
 * NULL: none does. The caller is inside the window.
 */
static inline struct rmx_device *rmx_device_of(const struct rmaext_window *w,
					       int64_t rank)
{
	const struct rmx_import *import;

	if (w->targets[rank].route != RMAEXT_IPC)
		return NULL;
	if (rank == w->self)
		return w->device;
	import = w->root->targets[rank].import;
	return import ? import->device : NULL;
}

/* Do puts and gets of so many bytes go as messages? */
static inline bool rmx_by_message(const struct rmaext_window *w,
				  const struct rmx_target *t, uint64_t len)
{
	return w->is_client || len < w->fabric->limits.least ||
	       t->route == RMAEXT_CMA || rmx_on_device(t);
}

/* Copy from and to a target whose route is RMAEXT_CMA; see rmx_cma_write(). */
static inline int rmx_target_write(const struct rmx_target *t, int64_t rank,
				   uint64_t offset, const void *buf,
				   uint64_t len)
{
	return rmx_cma_write(t->member->neighbour, rank, t->address + offset,
			     buf, len);
}

static inline int rmx_target_read(const struct rmx_target *t, int64_t rank,
				  uint64_t offset, void *buf, uint64_t len)
{
	return rmx_cma_read(t->member->neighbour, rank, t->address + offset,
			    buf, len);
}

/* -- attached.c */

/* Makes the list of what is attached to a dynamic window; NULL: no memory. */
struct rmx_attached *rmx_attached_new(void);

/* Frees a list, which may be NULL, that no other thread uses. */
void rmx_attached_free(struct rmx_attached *attached);

/*
 * Are held around all that uses attached memory: what is attached stays so in
 * between. They do nothing for NULL, which is any other window.
 */
void rmx_attached_lock(struct rmx_attached *attached);
void rmx_attached_unlock(struct rmx_attached *attached);

/* Are all of these bytes attached? The caller holds the lock. */
bool rmx_attached_has(const struct rmx_attached *attached, uint64_t address,
		      uint64_t len);

/* Is one of the bytes from start to end attached? Takes the lock. */
bool rmx_attached_meets(struct rmx_attached *attached, uintptr_t start,
			uintptr_t end);

/* Add a range to a dynamic window's list and take one from it. */
int rmx_attached_change(struct rmaext_window *window, bool attach,
			const void *addr, uint64_t len);

/* Has the target been set? If so, the caller sees all of it: acquire order. */
static inline bool rmx_filled(const struct rmx_target *t)
{
	return atomic_load_explicit(&t->access, memory_order_acquire) &
	       RMX_FILLED;
}

/* Returns the target of a rank, which the caller has checked to exist. */
static inline struct rmx_target *rmx_target_of(const struct rmaext_window *w,
					       int64_t rank)
{
	struct rmx_target *t = &w->targets[rank];

	if (!rmx_filled(t))
		rmx_target_fill(w, rank);
	return t;
}

/*
 * Returns the peer of a rank that has an endpoint, or NULL if it has none, or
 * cannot be added now.
 */
static inline struct rmaext_peer *rmx_peer_of(const struct rmaext_window *w,
					      int64_t rank)
{
	struct rmaext_peer *peer = rmx_target_of(w, rank)->member->peer;

	return peer ? peer : rmx_member_peer(w->members, rank);
}

/* Returns a rank's control block of the window, or NULL if it is not mapped. */
static inline struct rmx_control_block *
rmx_control_block_of(const struct rmaext_window *w, int64_t rank)
{
	char *first = w->blocks ? w->blocks->first[rank] : NULL;

	return first ? (struct rmx_control_block *)(void *)(first + w->block_at)
		     : NULL;
}

/* May the target be gone? Without a system call; rmx_check() knows for sure. */
static inline bool rmx_doubtful(const struct rmx_target *t)
{
	const struct rmx_member *m = t->member;

	return (m->peer &&
		atomic_load_explicit(&m->peer->gone, memory_order_relaxed)) ||
	       rmx_neighbour_doubtful(m->neighbour);
}

/*
 * Says yes if the operation may be posted and the target is filled. If it says
 * no, rmx_check() finds out why, or that it may be posted after all.
 */
static inline bool rmx_passes(const struct rmaext_window *w, int64_t rank,
			      uint64_t offset, uint64_t len, int access)
{
	const int needed = access | RMX_FILLED;
	const struct rmx_target *t;

	if (rank < 0 || rank >= w->count)
		return false;
	t = &w->targets[rank];
	return (atomic_load_explicit(&t->access, memory_order_acquire) &
		needed) == needed &&
	       offset <= t->size && len <= t->size - offset && !rmx_doubtful(t);
}

/*
 * Does all of a flush to a rank (-1: to all) if there is nothing to wait for
 * and no error to report. Returns false if there is: rmaext_flush() is needed.
 */
static inline bool rmx_flushed(const struct rmaext_window *w, int64_t rank)
{
	int64_t end = rank < 0 ? w->count : rank + 1;

	/* stores by the direct route come before all that follows */
	atomic_thread_fence(memory_order_seq_cst);
	w = w->root;
	if (rank >= 0 && rmx_doubtful(rmx_target_of(w, rank)))
		return false;
	for (rank = rank < 0 ? 0 : rank; rank < end; rank++) {
		const struct rmx_target *t = &w->targets[rank];

		if (!rmx_filled(t)) /* it was never used */
			continue;
		rmx_wake_waiters(t->member->doorbell);
		/* pending comes first: an error is set before it goes down */
		if (rmx_counted(atomic_load(&t->pending)) ||
		    atomic_load(&t->error))
			return false;
	}
	return true;
}

/*
 * Does this rank's memory in the window have these bytes? The target asks it of
 * each request. Of a dynamic window the caller holds the lock of rmx_attached.
 */
static inline bool rmx_has(const struct rmaext_window *w, uint64_t offset,
			   uint64_t len)
{
	const struct rmx_target *t = &w->targets[w->self];

	if (w->attached)
		return rmx_attached_has(w->attached, offset, len);
	return w->own && offset <= t->size && len <= t->size - offset;
}

/* Returns an address in this rank's memory; of a dynamic window, the offset. */
static inline char *rmx_own(const struct rmaext_window *w, uint64_t offset)
{
	return (char *)((uintptr_t)w->own + offset);
}

#endif
