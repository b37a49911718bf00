/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The record's entries of windows with their counters, of locks and of
 * communicators. The static functions are called with rmx_record.lock held.
 */
#include "record/record.h"

#include <stdlib.h>

/* Room that the counters of closed windows have left, to be used again. */
struct spare {
	uint64_t place; /* in the file */
	int64_t targets;
};

static uint64_t counters_used; /* bytes from header->counters on */
static struct spare *spares;
static size_t spare_count, spare_room;
static uint32_t windows_made;
static int locks_most; /* entries of locks that were ever used */

/* -- locks */

static void lock_set(struct rmaext_record_lock *l,
		     const struct rmaext_record_lock *to)
{
	rmx_entry_begin(&l->seq);
	l->window = to->window;
	l->target = to->target;
	l->tid = to->tid;
	l->exclusive = to->exclusive;
	l->since = to->since;
	rmx_entry_end(&l->seq);
}

static void lock_clear(struct rmaext_record_lock *l)
{
	lock_set(l, &(struct rmaext_record_lock){0});
}

/* Returns a free entry, or NULL if there is none. */
static struct rmaext_record_lock *lock_free(void)
{
	struct rmaext_record_lock *l = rmx_record.locks;

	for (int i = 0; i < locks_most; i++, l++)
		if (!l->window)
			return l;
	return locks_most < RMAEXT_RECORD_LOCKS
		       ? &rmx_record.locks[locks_most++]
		       : NULL;
}

/* Returns the entry of a lock that this rank holds: if it can, this thread's.
 */
static struct rmaext_record_lock *lock_find(const struct rmaext_record_lock *it)
{
	struct rmaext_record_lock *l = rmx_record.locks, *found = NULL;

	for (int i = 0; i < locks_most; i++, l++) {
		if (l->window != it->window || l->target != it->target ||
		    l->exclusive != it->exclusive)
			continue;
		if (l->tid == it->tid)
			return l;
		found = l;
	}
	return found;
}

void rmx_record_holds(uint32_t window, int64_t target, bool exclusive,
		      bool held)
{
	const int64_t now = rmx_now();
	const struct rmaext_record_lock it = {
		.window = window,
		.target = (int32_t)target,
		.tid = rmx_thread_tid(),
		.exclusive = exclusive,
		.since = now,
	};
	int64_t since = now;
	struct rmaext_record_lock *l;

	if (!rmx_record.header || !window)
		return;
	pthread_mutex_lock(&rmx_record.lock);
	l = held ? lock_free() : lock_find(&it);
	if (l && held) {
		lock_set(l, &it);
	} else if (l) {
		since = l->since;
		lock_clear(l);
	}
	pthread_mutex_unlock(&rmx_record.lock);
	if (held)
		return;
	rmx_event_add(&(struct rmaext_record_event){
		.begin = since,
		.end = now,
		.offset = exclusive,
		.window = window,
		.target = (int32_t)target,
		.kind = RMAEXT_DID_UNLOCK,
	});
}

/* -- windows, and their counters */

static void *counters_at(uint64_t place)
{
	return (char *)rmx_record.header + place;
}

/* Returns the place of zeroed counters, or 0 if there is no room. */
static uint64_t counters_take(int64_t targets)
{
	const uint64_t bytes =
		(uint64_t)targets * sizeof(struct rmaext_record_counts);

	for (size_t i = spare_count; i--;)
		if (spares[i].targets == targets) {
			const uint64_t place = spares[i].place;

			spares[i] = spares[--spare_count];
			return place;
		}
	if (bytes > RMX_COUNTERS - counters_used)
		return 0;
	counters_used += bytes;
	return rmx_record.header->counters + counters_used - bytes;
}

/* Keeps the room; if memory is short it is lost. */
static void spare_add(uint64_t place, int64_t targets)
{
	if (spare_count == spare_room) {
		const size_t room = spare_room ? 2 * spare_room : 64;
		struct spare *more = realloc(spares, room * sizeof(*more));

		if (!more)
			return;
		spares = more;
		spare_room = room;
	}
	spares[spare_count++] = (struct spare){place, targets};
}

static void count_fold(struct rmaext_record_count *to,
		       const struct rmaext_record_count *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i].calls += from[i].calls;
		to[i].bytes += from[i].bytes;
		to[i].errors += from[i].errors;
	}
}

/*
 * Adds counters to those of closed windows, unless the window was rmaext's own,
 * and keeps their room. `folds` lets readers of both notice it.
 */
static void counters_give(uint64_t place, int64_t targets, bool hidden)
{
	struct rmaext_record_header *h = rmx_record.header;
	struct rmaext_record_counts *c = counters_at(place);

	rmx_entry_begin(&h->folds);
	for (int64_t i = 0; !hidden && i < targets; i++) {
		count_fold(h->closed.plain, c[i].plain, RMAEXT_KINDS);
		count_fold(&h->closed.shared[0][0], &c[i].shared[0][0],
			   RMAEXT_KINDS * RMAEXT_ROUTES);
	}
	memset(c, 0, (uint64_t)targets * sizeof(*c));
	rmx_entry_end(&h->folds);
	spare_add(place, targets);
}

/* Returns a free entry, else that of the window that was closed first. */
static struct rmaext_record_window *window_entry(void)
{
	struct rmaext_record_window *found = NULL, *w = rmx_record.windows;

	if (windows_made < RMAEXT_RECORD_WINDOWS)
		return w + windows_made;
	for (int i = 0; i < RMAEXT_RECORD_WINDOWS; i++, w++)
		if (w->state == RMAEXT_WINDOW_CLOSED &&
		    (!found || w->closed < found->closed))
			found = w;
	return found;
}

void rmx_record_window(struct rmx_tally *tally,
		       const struct rmaext_record_window *facts)
{
	struct rmaext_record_window *w, made = *facts;

	if (!rmx_record.header)
		return;
	made.targets = facts->ranks < RMAEXT_RECORD_TARGETS
			       ? facts->ranks
			       : RMAEXT_RECORD_TARGETS;
	made.targets++; /* several at a time */
	pthread_mutex_lock(&rmx_record.lock);
	w = window_entry();
	made.counts = w ? counters_take(made.targets) : 0;
	if (!made.counts)
		rmx_record.header->uncounted++;
	if (w) {
		made.id = ++windows_made;
		made.state = RMAEXT_WINDOW_OPEN;
		made.created = rmx_now();
		rmx_entry_begin(&w->seq);
		made.seq = w->seq;
		*w = made;
		rmx_entry_end(&w->seq);
		tally->id = made.id;
		tally->entry = w;
	}
	if (made.counts) {
		tally->last = made.targets - 2;
		tally->of = counters_at(made.counts);
	}
	pthread_mutex_unlock(&rmx_record.lock);
	if (tally->id)
		rmx_event_add(&(struct rmaext_record_event){
			.begin = made.created,
			.end = made.created,
			.window = made.id,
			.target = -1,
			.bytes = made.bytes,
			.kind = RMAEXT_DID_CREATE,
		});
}

/* The window is closed; returns its entry, or NULL. Holds the lock. */
static struct rmaext_record_window *window_close(const struct rmx_tally *tally,
						 int64_t now)
{
	const uint32_t id = tally->id;
	struct rmaext_record_window *w = tally->entry;
	struct rmaext_record_lock *l = rmx_record.locks;

	for (int i = 0; i < locks_most; i++, l++)
		if (l->window == id) /* an error kept it from being released */
			lock_clear(l);
	if (w->id != id) /* another window has taken it since */
		return NULL;
	if (w->state == RMAEXT_WINDOW_OPEN) {
		rmx_entry_begin(&w->seq);
		w->state = RMAEXT_WINDOW_CLOSED;
		w->closed = now;
		rmx_entry_end(&w->seq);
	}
	return w;
}

void rmx_record_abandon(const struct rmx_tally *tally)
{
	const int64_t now = rmx_now();

	if (!rmx_record.header || !tally->id)
		return;
	pthread_mutex_lock(&rmx_record.lock);
	window_close(tally, now);
	pthread_mutex_unlock(&rmx_record.lock);
	rmx_event_add(&(struct rmaext_record_event){
		.begin = now,
		.end = now,
		.window = tally->id,
		.target = -1,
		.kind = RMAEXT_DID_CLOSE,
	});
}

void rmx_record_close(struct rmx_tally *tally)
{
	const struct rmx_tally was = *tally;
	struct rmaext_record_window *w;

	*tally = (struct rmx_tally){0};
	if (!rmx_record.header || !was.id)
		return;
	rmx_record_abandon(&was);
	rmx_sent_forget(&was);
	pthread_mutex_lock(&rmx_record.lock);
	w = window_close(&was, 0);
	if (w && w->counts) {
		rmx_entry_begin(&w->seq);
		counters_give(w->counts, w->targets, w->hidden);
		w->counts = 0;
		rmx_entry_end(&w->seq);
	}
	pthread_mutex_unlock(&rmx_record.lock);
}

/* -- communicators */

struct rmaext_record_comm *rmx_record_comm_find(uint64_t id)
{
	struct rmaext_record_comm *c = rmx_record.comms;

	if (!rmx_record.header)
		return NULL;
	for (int i = 0; i < RMAEXT_RECORD_COMMS; i++, c++)
		if (c->id == id)
			return c;
	return NULL;
}

void rmaext_record_comm(uint64_t id, int64_t size, int64_t rank, int64_t here)
{
	struct rmaext_record_comm *c;

	pthread_mutex_lock(&rmx_record.lock);
	c = rmx_record_comm_find(id);
	if (!c)
		c = rmx_record_comm_find(0);
	if (c) {
		rmx_entry_begin(&c->seq);
		c->id = id;
		c->size = size;
		c->rank = rank;
		c->here = here;
		rmx_entry_end(&c->seq);
	}
	pthread_mutex_unlock(&rmx_record.lock);
}

void rmaext_record_comm_gone(uint64_t id)
{
	struct rmaext_record_comm *c;

	pthread_mutex_lock(&rmx_record.lock);
	c = rmx_record_comm_find(id);
	if (c) {
		const uint64_t seq = c->seq;

		rmx_entry_begin(&c->seq);
		*c = (struct rmaext_record_comm){.seq = seq + 1};
		rmx_entry_end(&c->seq);
	}
	pthread_mutex_unlock(&rmx_record.lock);
}

/* Only one thread at a time is in a meeting of a communicator. */
void rmx_record_comes(struct rmaext_record_comm *c, uint64_t step, int64_t now)
{
	if (!c)
		return;
	rmx_entry_begin(&c->seq);
	c->step = step;
	c->came = now;
	rmx_entry_end(&c->seq);
}

void rmx_record_goes(struct rmaext_record_comm *c, int64_t now)
{
	if (!c)
		return;
	rmx_entry_begin(&c->seq);
	c->steps++;
	c->left = now;
	rmx_entry_end(&c->seq);
}
