/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that several windows of this process have; see overlap.h. */
#include "exec/overlap.h"

/* A child may be forked while another thread of its parent holds the lock. */
static struct {
	pthread_once_t once;
	pthread_mutex_t lock;
	struct rmaext_window *first;
} listed = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

static void listed_lock(void)
{
	pthread_mutex_lock(&listed.lock);
}

static void listed_unlock(void)
{
	pthread_mutex_unlock(&listed.lock);
}

static void listed_prepare(void)
{
	pthread_atfork(listed_lock, listed_unlock, listed_unlock);
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

/* Refuses copies in a window, and waits for those that are under way. */
static int copies_refuse(struct rmaext_window *w)
{
	int64_t deadline = 0;
	int ret;

	atomic_store(&block_of(w)->copies, RMX_COPIES_REFUSED);
	do {
		ret = rmx_bulk_await(w, w->self, RMX_SLICE);
		if (ret == RMAEXT_PENDING)
			ret = rmx_guard_overdue(w->self, w->timeout, &deadline);
	} while (ret == RMAEXT_PENDING);
	return ret;
}

/*
 * Refuses copies in all windows that have some of these bytes, but in those of
 * one control block, whose guard is the same. *found_p: there are such windows.
 * The caller has the lock.
 */
static int refuse_others(const struct rmx_control_block *mine, uintptr_t start,
			 uintptr_t end, bool *found_p)
{
	int ret = 0;

	for (struct rmaext_window *w = listed.first; w && !ret; w = w->beside)
		if (block_of(w) != mine && overlaps(w, start, end)) {
			*found_p = true;
			ret = copies_refuse(w);
		}
	return ret;
}

static void list(struct rmaext_window *w)
{
	w->beside = listed.first;
	w->beside_of = &listed.first;
	if (w->beside)
		w->beside->beside_of = &w->beside;
	listed.first = w;
}

int rmx_overlap_begin(struct rmaext_window *w)
{
	struct rmx_control_block *b = block_of(w);
	bool found = false;
	int ret = 0;

	if (!b || !(w->attached || (w->own && rmx_target_of(w, w->self)->size)))
		return 0;
	pthread_once(&listed.once, listed_prepare);
	listed_lock();
	if (!w->attached)
		ret = refuse_others(b, (uintptr_t)w->own, own_end(w), &found);
	if (found) /* a block may be of several windows */
		atomic_store(&b->copies, RMX_COPIES_REFUSED);
	if (!ret)
		list(w);
	listed_unlock();
	return ret;
}

void rmx_overlap_end(struct rmaext_window *w)
{
	listed_lock();
	if (w->beside_of) {
		*w->beside_of = w->beside;
		if (w->beside)
			w->beside->beside_of = w->beside_of;
		w->beside_of = NULL;
	}
	listed_unlock();
}

int rmx_overlap_attached(const struct rmaext_window *w, const void *addr,
			 uint64_t len)
{
	const uintptr_t start = (uintptr_t)addr;
	bool found = false;
	int ret;

	listed_lock();
	ret = refuse_others(block_of(w), start, start + len, &found);
	listed_unlock();
	return ret;
}

void rmx_overlap_open(struct rmaext_window *w)
{
	struct rmx_control_block *b = block_of(w);
	unsigned int untold = RMX_COPIES_UNTOLD;

	if (b)
		atomic_compare_exchange_strong(&b->copies, &untold,
					       RMX_COPIES_MADE);
}
