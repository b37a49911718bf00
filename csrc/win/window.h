/* SPDX-License-Identifier: BSD-3-Clause */
/* A window and its targets. */
#ifndef RMAEXT_WINDOW_H
#define RMAEXT_WINDOW_H

#include "net/endpoint.h"
#include "shm/control_block.h"
#include "shm/neighbour.h"

/* A rank of a communicator: what is the same in all windows over it. */
struct rmx_member {
	struct rmaext_peer *peer;      /* NULL: never by the fabric */
	struct rmaext_near *near;      /* NULL: the own rank, other nodes */
	struct rmx_doorbell *doorbell; /* NULL: not mapped */
};

struct rmaext_members {
	atomic_int users;
	int64_t count, self;
	int64_t here_count;
	int64_t *here; /* the own rank and those with a near, in order */
	struct rmx_member of[];
};

/* The control blocks of many windows, one behind the other. */
struct rmaext_blocks {
	atomic_int users;
	char *first[]; /* of each rank, as mapped here; or NULL */
};

#define RMX_A_PUT ((uint64_t)1 << 32) /* in rmx_target.pending */
#define RMX_FILLED 0x80 /* in rmx_target.access: the rest has been set */

/*
 * A window and a rank: one cache line. Found with rmx_target_of(), as those of
 * a window whose ranks are all alike are filled in on first use; until then
 * they are zeros, of untouched pages where there are many.
 */
struct rmx_target {
	const struct rmx_member *member;
	union {
		char *map;	  /* RMAEXT_DIRECT */
		uint64_t address; /* RMAEXT_CMA */
		uint64_t base;	  /* RMAEXT_FABRIC */
	};
	uint64_t size;
	uint64_t key;
	/*
	 * Chunks posted and not completed; in the upper half, those of puts.
	 * One word, as the window may be freed once it is 0.
	 */
	atomic_uint_fast64_t pending;
	struct rmx_queue *queue; /* of nonblocking.c; guarded by backlog.lock */
	atomic_uint finished;	 /* ever; shows flush that this one moves */
	/*
	 * Of puts that nobody waited for, the error, how many such there are,
	 * and how often flush has told of them.
	 */
	unsigned int unseen;
	atomic_short error;
	unsigned short reports;
	atomic_uchar access;
	uint8_t align; /* of offset 0, modulo 64 */
	uint8_t route;
	bool mapped; /* raw key is mapped; guarded by fabric->lock */
};

_Static_assert(sizeof(struct rmx_target) == RMX_LINE, "promised: 64 bytes");

/* What a target is filled with, where all are alike. */
struct rmx_row {
	uint64_t size, base, key;
	uint8_t access, align;
};

struct rmaext_window {
	/*
	 * A view is checked by itself, and its operations are those of the
	 * window that it looks at; which is its own root.
	 */
	struct rmaext_window *root;
	uint64_t first;	 /* byte of the root where a view begins */
	uint64_t stride; /* of elements in rmaext_many; 0: their own size */
	struct rmaext_fabric *fabric; /* NULL: all routes are direct */
	int64_t timeout;
	int64_t spin; /* ns, of who waits for memory */
	int64_t count;
	int64_t self;
	uint8_t token[RMX_TOKEN];
	char *own; /* this rank's memory */
	struct rmaext_members *members;
	struct rmaext_blocks *blocks; /* NULL: no control blocks */
	uint64_t block_at;	      /* where in them this window's begins */
	struct rmx_target *targets;
	struct rmx_row row; /* of those that are not filled */
	bool uneven;	    /* there are none: all were filled at once */
	struct rmx_attached *attached; /* of a dynamic window; else NULL */
	bool invites;		       /* its origins are guests; see guest.c */
	bool visits;		 /* it is another job's: by message only */
	uint8_t door[RMX_TOKEN]; /* of that job's endpoint */
	uint8_t *raw_keys;	 /* raw_len bytes each, FI_MR_RAW only */
	size_t raw_len;
	bool raw_same;		    /* there is one, for all ranks */
	struct rmx_rundown rundown; /* calls of this rank */
	struct rmx_rundown
		served;	      /* requests of others, until all have closed */
	pthread_mutex_t lock; /* guards failure, and who fills targets */
	struct rmaext_error failure; /* words for target->error */
	struct rmaext_window *next, **prev;
};

/* A window with its elements: what the fast tier works on. */
struct rmx_typed {
	struct rmaext_window *window;
	uint64_t unit; /* bytes an element */
	int type;      /* RMAEXT_INT8 and so on; -1: none, no atomics */
	char closed;   /* set by Python before it closes the window */
};

/*
 * check.c: rank, place and rights of an operation; that the target is not
 * known to be gone. `call` is for the words of the error.
 */
int rmx_check(const struct rmaext_window *window, const char *call,
	      int64_t rank, uint64_t offset, uint64_t len, int access);

/* key_map.c */
int rmx_key_map(struct rmaext_window *window, int64_t rank);
void rmx_key_unmap_all(struct rmaext_window *window);

/* rank_table.c: NULL of NULL */
struct rmaext_members *rmx_members_hold(struct rmaext_members *members);
struct rmaext_blocks *rmx_blocks_hold(struct rmaext_blocks *blocks);
/* zeros, of which untouched pages take no memory; NULL: there is none left */
struct rmx_target *rmx_targets_new(int64_t count);
void rmx_targets_free(struct rmx_target *targets, int64_t count);
/* all but what is of another route than the fabric */
void rmx_target_set(struct rmaext_window *window, int64_t rank,
		    const struct rmx_row *row);
void rmx_target_fill(const struct rmaext_window *window, int64_t rank);

/* window.c */
int rmx_window_enter(struct rmaext_window *window, const char *call);
void rmx_window_leave(struct rmaext_window *window);
/* A window that no message finds yet; see rmx_serve_window(). */
int rmx_window_new(struct rmaext_fabric *fabric,
		   const struct rmaext_targets *targets, int64_t timeout,
		   struct rmaext_window **window_p);
/* a window of its own, not linked, over a part of what this rank has there */
int rmx_window_part(struct rmaext_window *of, const struct rmaext_grant *grant,
		    struct rmaext_window **part_p);
static inline const char *rmx_closed_there(const struct rmaext_window *w)
{
	return w->visits ? "the window there is closed, or the grant revoked"
			 : "the window there is closed";
}

/* Do puts and gets of so many bytes go as messages? */
static inline bool rmx_by_message(const struct rmaext_window *w, uint64_t len)
{
	return w->visits || len < w->fabric->least;
}

/* copies by system call from and to a target whose route is RMAEXT_CMA */
static inline int rmx_target_write(const struct rmx_target *t, int64_t rank,
				   uint64_t offset, const void *buf,
				   uint64_t len)
{
	return rmx_cma_write(t->member->near, rank, t->address + offset, buf,
			     len);
}

static inline int rmx_target_read(const struct rmx_target *t, int64_t rank,
				  uint64_t offset, void *buf, uint64_t len)
{
	return rmx_cma_read(t->member->near, rank, t->address + offset, buf,
			    len);
}

/* attached.c */
struct rmx_attached *rmx_attached_new(void);
void rmx_attached_free(struct rmx_attached *attached);
/* around all that looks at the memory; nothing for NULL */
void rmx_attached_lock(struct rmx_attached *attached);
void rmx_attached_unlock(struct rmx_attached *attached);
bool rmx_attached_has(const struct rmx_attached *attached, uint64_t address,
		      uint64_t len);

static inline bool rmx_filled(const struct rmx_target *t)
{
	return atomic_load_explicit(&t->access, memory_order_acquire) &
	       RMX_FILLED;
}

/* Of a rank that there is. */
static inline struct rmx_target *rmx_target_of(const struct rmaext_window *w,
					       int64_t rank)
{
	struct rmx_target *t = &w->targets[rank];

	if (!rmx_filled(t))
		rmx_target_fill(w, rank);
	return t;
}

static inline struct rmx_control_block *
rmx_control_block_of(const struct rmaext_window *w, int64_t rank)
{
	char *first = w->blocks ? w->blocks->first[rank] : NULL;

	return first ? (struct rmx_control_block *)(void *)(first + w->block_at)
		     : NULL;
}

static inline bool rmx_doubtful(const struct rmx_target *t)
{
	const struct rmx_member *m = t->member;

	return (m->peer &&
		atomic_load_explicit(&m->peer->gone, memory_order_relaxed)) ||
	       rmx_near_doubtful(m->near);
}

/*
 * The questions of rmx_check(), which calls this first, without its words; and
 * whether it is filled.
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

/* What a flush would do, if there is nothing to wait for and no error. */
static inline bool rmx_flushed(const struct rmaext_window *w, int64_t rank)
{
	int64_t end = rank < 0 ? w->count : rank + 1;

	/* orders what the direct route stored */
	atomic_thread_fence(memory_order_seq_cst);
	w = w->root;
	if (rank >= 0 && rmx_doubtful(rmx_target_of(w, rank)))
		return false;
	for (rank = rank < 0 ? 0 : rank; rank < end; rank++) {
		const struct rmx_target *t = &w->targets[rank];

		if (!rmx_filled(t)) /* never used */
			continue;
		rmx_wake_waiters(t->member->doorbell);
		/* in this order: an error is left before it counts down */
		if (atomic_load(&t->pending) >= RMX_A_PUT ||
		    atomic_load(&t->error))
			return false;
	}
	return true;
}

/*
 * Does the window have these bytes of this rank's memory? Asked at the target;
 * of a dynamic window its offsets are addresses, and the caller has the lock.
 */
static inline bool rmx_has(const struct rmaext_window *w, uint64_t offset,
			   uint64_t len)
{
	const struct rmx_target *t = &w->targets[w->self];

	if (w->attached)
		return rmx_attached_has(w->attached, offset, len);
	return w->own && offset <= t->size && len <= t->size - offset;
}

static inline char *rmx_own(const struct rmaext_window *w, uint64_t offset)
{
	return (char *)((uintptr_t)w->own + offset);
}

#endif
