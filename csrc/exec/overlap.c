/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that several windows of this process have; see overlap.h. */
#include "exec/overlap.h"

#define RMX_COPY_MOST ((int64_t)1000 * 1000 * 1000) /* ns of a copy */

/* In a forked child the list is as another thread of its parent has left it. */
static struct {
	pthread_once_t once;
	pthread_mutex_t lock;
	struct rmaext_window *first;
	bool forked;
} listed = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void listed_forked(void)
{
	pthread_mutex_init(&listed.lock, NULL);
	listed.forked = true;
}

static void listed_prepare(void)
{
	pthread_atfork(NULL, NULL, listed_forked);
}

/* False in a forked child, whose windows nobody uses. */
static bool listed_lock(void)
{
	pthread_once(&listed.once, listed_prepare);
	pthread_mutex_lock(&listed.lock);
	if (listed.forked)
		pthread_mutex_unlock(&listed.lock);
	return !listed.forked;
}

static void listed_unlock(void)
{
	pthread_mutex_unlock(&listed.lock);
}

static struct rmx_control_block *block_of(const struct rmaext_window *w)
{
	return rmx_control_block_of(w, w->self);
}

static uintptr_t own_end(const struct rmaext_window *w)
{
	return (uintptr_t)w->own + rmx_target_of(w, w->self)->size;
}

static bool overlaps(const struct rmaext_window *w, uintptr_t start,
		     uintptr_t end)
{
	if (w->attached)
		return rmx_attached_meets(w->attached, start, end);
	return (uintptr_t)w->own < end && start < own_end(w);
}

/*
 * Finds a window that has some of these bytes and has not refused copies yet,
 * but none of one control block, whose guard is the same; has it refuse them,
 * and enters it. The caller has the lock. *found_p: there is such a window,
 * whether or not it has refused before.
 */
static struct rmaext_window *refuse_next(const struct rmx_control_block *mine,
					 uintptr_t start, uintptr_t end,
					 bool *found_p)
{
	for (struct rmaext_window *w = listed.first; w; w = w->beside) {
		struct rmx_control_block *b = block_of(w);

		if (b == mine || !overlaps(w, start, end))
			continue;
		*found_p = true;
		if (atomic_exchange(&b->copies, RMX_COPIES_REFUSED) !=
			    RMX_COPIES_REFUSED &&
		    rmx_rundown_try(&w->rundown))
			return w;
	}
	return NULL;
}

/*
 * Waits for a copy that is under way, which takes microseconds. Of a process
 * that was stopped in the middle of one it gives up: it may undo one update
 * when it goes on. Each wait is so short that MPI is not called.
 */
static void copy_await(struct rmaext_window *w)
{
	const int64_t end = rmx_now() + RMX_COPY_MOST;

	while (rmx_bulk_await(w, w->self, RMX_PATIENCE) && rmx_now() < end)
		;
	rmx_rundown_leave(&w->rundown);
}

/* Refuses copies in all others that have some of these bytes; are there any? */
static bool refuse_others(const struct rmx_control_block *mine, uintptr_t start,
			  uintptr_t end)
{
	struct rmaext_window *w = NULL;
	bool found = false;

	do {
		if (!listed_lock())
			return false;
		w = refuse_next(mine, start, end, &found);
		listed_unlock();
		if (w)
			copy_await(w);
	} while (w);
	return found;
}

static void list(struct rmaext_window *w)
{
	w->beside = listed.first;
	w->beside_of = &listed.first;
	if (w->beside)
		w->beside->beside_of = &w->beside;
	listed.first = w;
}

void rmx_overlap_begin(struct rmaext_window *w)
{
	struct rmx_control_block *b = block_of(w);

	if (!b || !(w->attached || (w->own && rmx_target_of(w, w->self)->size)))
		return;
	/* listed first: of two that begin at once, the later one finds both */
	if (!listed_lock())
		return;
	list(w);
	listed_unlock();
	if (!w->attached && refuse_others(b, (uintptr_t)w->own, own_end(w)))
		atomic_store(&b->copies, RMX_COPIES_REFUSED);
}

void rmx_overlap_end(struct rmaext_window *w)
{
	if (!listed_lock())
		return;
	if (w->beside_of) {
		*w->beside_of = w->beside;
		if (w->beside)
			w->beside->beside_of = w->beside_of;
		w->beside_of = NULL;
	}
	listed_unlock();
}

void rmx_overlap_attached(const struct rmaext_window *w, const void *addr,
			  uint64_t len)
{
	const uintptr_t start = (uintptr_t)addr;

	refuse_others(block_of(w), start, start + len);
}

void rmx_overlap_open(struct rmaext_window *w)
{
	struct rmx_control_block *b = block_of(w);
	unsigned int untold = RMX_COPIES_UNTOLD;

	if (b)
		atomic_compare_exchange_strong(&b->copies, &untold,
					       RMX_COPIES_MADE);
}
