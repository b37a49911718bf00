/* SPDX-License-Identifier: BSD-3-Clause */
/* A window and its targets. */
#ifndef RMAEXT_WINDOW_H
#define RMAEXT_WINDOW_H

#include "fabric.h"
#include "near.h"

struct rmx_target {
	struct rmaext_peer *peer;
	struct rmaext_near *near;
	char *map;	  /* RMAEXT_DIRECT */
	uint64_t address; /* RMAEXT_CMA */
	struct rmx_block
		*control;      /* NULL: not mapped, or the window has none */
	struct rmx_bell *bell; /* NULL: not mapped */
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
	/* how many such there are, and how often flush has told of them */
	unsigned int unseen, reports;
	/* guarded by fabric->backlog.lock */
	struct rmaext_op *queue, **queue_end; /* requests, oldest first */
	struct rmx_target *next_behind;
	uint8_t access;
	uint8_t align; /* of offset 0, modulo 64 */
	uint8_t route;
	bool mapped; /* raw key is mapped; guarded by fabric->lock */
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
	struct rmx_target *targets;
	struct rmx_attached *attached; /* of a dynamic window; else NULL */
	uint8_t *raw_keys; /* count * raw_len bytes, FI_MR_RAW only */
	size_t raw_len;
	struct rmx_gate gate;	/* calls of this rank */
	struct rmx_gate served; /* requests of others, until all have closed */
	pthread_mutex_t lock;	/* guards failure */
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

/* key.c */
int rmx_key_map(struct rmaext_window *window, int64_t rank);
void rmx_key_unmap_all(struct rmaext_window *window);

/* window.c */
int rmx_window_enter(struct rmaext_window *window, const char *call);
void rmx_window_leave(struct rmaext_window *window);
void rmx_window_unlink(struct rmaext_window *window);

/* attach.c */
struct rmx_attached *rmx_attached_new(void);
void rmx_attached_free(struct rmx_attached *attached);
/* around all that looks at the memory; nothing for NULL */
void rmx_attached_lock(struct rmx_attached *attached);
void rmx_attached_unlock(struct rmx_attached *attached);
bool rmx_attached_has(const struct rmx_attached *attached, uint64_t address,
		      uint64_t len);

/* near.c */
bool rmx_near_gone(struct rmaext_near *near);
/* copy by system call; -FI_ENOTCONN once the process is gone */
int rmx_cma_write(struct rmx_target *target, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len);
int rmx_cma_read(struct rmx_target *target, int64_t rank, uint64_t offset,
		 void *buf, uint64_t len);

/* the same, of n pieces of remote memory; buf has them one after another */
int rmx_cma_pieces(struct rmx_target *target, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len);

static inline bool rmx_doubtful(const struct rmx_target *t)
{
	return (t->peer &&
		atomic_load_explicit(&t->peer->gone, memory_order_relaxed)) ||
	       rmx_near_doubtful(t->near);
}

/* The questions of rmx_check(), which calls this first, without its words. */
static inline bool rmx_passes(const struct rmaext_window *w, int64_t rank,
			      uint64_t offset, uint64_t len, int access)
{
	const struct rmx_target *t;

	if (rank < 0 || rank >= w->count)
		return false;
	t = &w->targets[rank];
	return offset <= t->size && len <= t->size - offset &&
	       (t->access & access) == access && !rmx_doubtful(t);
}

/* What a flush would do, if there is nothing to wait for and no error. */
static inline bool rmx_flushed(const struct rmaext_window *w, int64_t rank)
{
	int64_t end = rank < 0 ? w->count : rank + 1;

	/* orders what the direct route stored */
	atomic_thread_fence(memory_order_seq_cst);
	w = w->root;
	if (rank >= 0 && rmx_doubtful(&w->targets[rank]))
		return false;
	for (rank = rank < 0 ? 0 : rank; rank < end; rank++) {
		const struct rmx_target *t = &w->targets[rank];

		rmx_tell(t->bell);
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
	return t->map && offset <= t->size && len <= t->size - offset;
}

static inline char *rmx_own(const struct rmaext_window *w, uint64_t offset)
{
	return (char *)((uintptr_t)w->targets[w->self].map + offset);
}

#endif
