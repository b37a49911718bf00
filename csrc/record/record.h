/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The record: what this process does and has done, for itself and for tools in
 * other processes. rmaext.h has its layout. record.c makes it; threads.c enters
 * the threads; events.c keeps the latest events, and trace.c writes all of them
 * to files; sent.c says what slots were notified; entries.c, what windows,
 * locks and communicators there are; thread_state.c, what each thread is in.
 *
 * Writers take no lock. An entry belongs to one writer at a time: a thread's to
 * that thread, an event to the thread that drew its number, all others to who
 * holds `lock`.
 */
#ifndef RMAEXT_RECORD_H
#define RMAEXT_RECORD_H

#include "base/common.h"

/* What a window counts with; all zeros counts nothing. */
struct rmx_tally {
	struct rmaext_record_counts *of; /* of rank 0; NULL: nothing */
	int64_t last; /* this target's counters are for all after it, too */
	/* the entry behind it, rank RMX_SEVERAL, is of calls on many elements
	 * of several targets, by memory */
	struct rmaext_record_window *entry; /* the window's; or NULL */
	uint32_t id;			    /* of the entry; 0: it has none */
};

/* The tables of this process's record; NULL where nothing is recorded. */
struct rmx_record {
	struct rmaext_record_header *header;
	struct rmaext_record_thread *threads;
	struct rmaext_record_window *windows;
	struct rmaext_record_comm *comms;
	struct rmaext_record_lock *locks;
	struct rmaext_record_sent *sent;
	struct rmaext_record_site *sites;
	struct rmaext_record_event *events;
	pthread_mutex_t lock; /* guards all but events and threads */
	int fd;
	bool traced; /* direct operations are events, too */
};

extern struct rmx_record rmx_record;

#define RMX_SEVERAL INT64_MAX
#define RMX_COUNTERS                                            \
	((uint64_t)64 << 20) /* bytes for all windows' counters \
			      */

/*
 * The one writer of an entry is about to change it, and has: in between readers
 * find an odd number.
 */
static inline void rmx_entry_begin(uint64_t *seq)
{
	__atomic_store_n(seq, *seq + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void rmx_entry_end(uint64_t *seq)
{
	__atomic_store_n(seq, *seq + 1, __ATOMIC_RELEASE);
}

/* -- counters: any thread, without a lock */

/*
 * Returns the counters of a target, or NULL. The rank may be any number, as
 * those of arrays that another thread changes meanwhile; and the window may be
 * closed meanwhile.
 */
static inline struct rmaext_record_counts *
rmx_counts(const struct rmx_tally *tally, int64_t rank)
{
	struct rmaext_record_counts *of =
		__atomic_load_n(&tally->of, __ATOMIC_RELAXED);
	const int64_t last = tally->last;

	if ((uint64_t)rank > (uint64_t)last) /* negative ones, too */
		rank = rank == RMX_SEVERAL ? last + 1 : last;
	return of ? of + rank : NULL;
}

/* Counts an operation on a route; kind is RMAEXT_DID_PUT and so on. */
static inline void rmx_count(const struct rmx_tally *tally, int64_t rank,
			     unsigned int kind, int route, uint64_t calls,
			     uint64_t bytes)
{
	struct rmaext_record_counts *counts = rmx_counts(tally, rank);
	struct rmaext_record_count *c;

	if (!counts)
		return;
	c = &counts->shared[kind - 1][route];
	__atomic_fetch_add(&c->calls, calls, __ATOMIC_RELAXED);
	__atomic_fetch_add(&c->bytes, bytes, __ATOMIC_RELAXED);
}

static inline void rmx_count_errors(const struct rmx_tally *tally, int64_t rank,
				    unsigned int kind, int route,
				    uint64_t calls)
{
	struct rmaext_record_counts *counts = rmx_counts(tally, rank);

	if (counts)
		__atomic_fetch_add(&counts->shared[kind - 1][route].errors,
				   calls, __ATOMIC_RELAXED);
}

static inline void rmx_count_error(const struct rmx_tally *tally, int64_t rank,
				   unsigned int kind, int route)
{
	rmx_count_errors(tally, rank, kind, route, 1);
}

/* The kind of an update, or of a put or get (RMAEXT_PUT, RMAEXT_GET). */
static inline unsigned int rmx_counted_as(int kind, bool fetch)
{
	if (kind == RMAEXT_PUT)
		return RMAEXT_DID_PUT;
	if (kind == RMAEXT_GET)
		return RMAEXT_DID_GET;
	return fetch ? RMAEXT_DID_FETCH : RMAEXT_DID_UPDATE;
}

/* -- sent.c: what slots were notified; any thread, without a lock */

/* Finds an entry, or makes it; NULL if there is no room, or no record. */
struct rmaext_record_sent *rmx_sent_enter(uint64_t key);
/* See rmaext_record_sends(). */
int rmx_sent_from(const struct rmx_tally *tally, int64_t rank, int slot,
		  const char *site);
/* The entries of a window that is closed are free again. */
void rmx_sent_forget(const struct rmx_tally *tally);

static inline uint64_t rmx_sent_place(uint64_t key)
{
	return (key * 0x9e3779b97f4a7c15) >> 51; /* of 2^13, see rmaext.h */
}

/* Returns the entry of a target's slot, or NULL. */
static inline struct rmaext_record_sent *rmx_sent(const struct rmx_tally *tally,
						  int64_t rank, int slot)
{
	const uint64_t key = (uint64_t)tally->id << 32 | (uint64_t)rank << 8 |
			     (uint64_t)slot;
	struct rmaext_record_sent *sent;

	if (!tally->id || (uint64_t)rank >> 24)
		return NULL;
	sent = &rmx_record.sent[rmx_sent_place(key)];
	if (__atomic_load_n(&sent->key, __ATOMIC_ACQUIRE) == key)
		return sent;
	return rmx_sent_enter(key);
}

/* Counts a notification; `held`: see rmx_count_direct(). */
static inline void rmx_sent_count(struct rmaext_record_sent *sent, bool held)
{
	if (!sent)
		return;
	if (held)
		sent->plain++;
	else
		__atomic_fetch_add(&sent->shared, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&sent->last, rmx_now_about(), __ATOMIC_RELAXED);
}

/* -- threads.c */

/* Names the calling thread, of at most 15 characters, and enters it. */
void rmx_thread_named(const char *name);

/* This thread's number of the kernel, and the index of its entry. */
int32_t rmx_thread_tid(void);
uint16_t rmx_thread_index(void);

/* This thread's entry, or NULL if it has none of its own. */
struct rmaext_record_thread *rmx_thread_entry(void);

/* -- thread_state.c: what the calling thread is in */

/*
 * The thread begins to wait, or goes on with the same wait in another slice.
 * `kind` is RMAEXT_IN_FLUSH and so on. Returns the time. Does nothing within a
 * wait of many steps, whose waits are part of it.
 */
int64_t rmx_now_in(unsigned int kind, uint32_t window, int64_t target,
		   uint64_t offset, uint64_t bytes);

/*
 * The wait, of that window, has returned `ret`: unless that is RMAEXT_PENDING
 * it is over. Adds an event if `event` is set.
 */
void rmx_now_out(uint32_t window, int ret, bool event);

/*
 * The calling thread waits for a lock (RMAEXT_IN_LOCK) or an epoch, in as many
 * steps as it takes; and that is over.
 */
void rmx_now_enter(unsigned int kind, uint32_t window, int64_t target,
		   uint64_t offset);
void rmx_now_leave(unsigned int kind, int ret);

/*
 * The calling thread comes to a meeting of a communicator's ranks, or goes on
 * with it; and has returned `ret` from it. `comm` may be NULL.
 */
void rmx_now_meets(struct rmaext_record_comm *comm, uint64_t id, uint64_t step);
void rmx_now_met(struct rmaext_record_comm *comm, int ret);

/* -- events.c */

/* Adds an event of this thread, and of the public call that it is in. */
void rmx_event_add(const struct rmaext_record_event *event);
/* Adds an event whose site and thread are given. */
void rmx_event_write(const struct rmaext_record_event *event);
/* The site of the public call that this thread is in, of traces; or 0. */
uint32_t rmx_event_site(void);

/*
 * Of traces: an operation that this thread has just carried out, by memory. Its
 * begin is that of the public call. Called if rmx_record.traced only.
 */
void rmx_event_here(const struct rmx_tally *tally, int64_t rank,
		    unsigned int kind, int route, uint64_t offset,
		    uint64_t bytes);

/*
 * Counts a direct operation that is done or about to be, and traces it. `held`:
 * the caller holds the GIL, and is counted by plain additions.
 */
static inline void rmx_count_direct(const struct rmx_tally *tally, int64_t rank,
				    unsigned int kind, uint64_t offset,
				    uint64_t bytes, bool held)
{
	struct rmaext_record_counts *counts = rmx_counts(tally, rank);

	if (!counts)
		return;
	if (held) {
		counts->plain[kind - 1].calls++;
		counts->plain[kind - 1].bytes += bytes;
	} else {
		rmx_count(tally, rank, kind, RMAEXT_DIRECT, 1, bytes);
	}
	if (rmx_record.traced)
		rmx_event_here(tally, rank, kind, RMAEXT_DIRECT, offset, bytes);
}

/* The same of a copy by the kernel or a device, which has returned `ret`. */
static inline void rmx_count_copy(const struct rmx_tally *tally, int64_t rank,
				  unsigned int kind, int route, uint64_t offset,
				  uint64_t bytes, int ret)
{
	rmx_count(tally, rank, kind, route, 1, bytes);
	if (ret)
		rmx_count_error(tally, rank, kind, route);
	if (tally->of && rmx_record.traced)
		rmx_event_here(tally, rank, kind, route, offset, bytes);
}

/* -- entries.c */

/*
 * Gives a closed window's counters back, whose sums the header keeps. No thread
 * counts with the tally any more, or with those of views.
 */
void rmx_record_close(struct rmx_tally *tally);

/* The same of a window whose operations may still end: its counters stay. */
void rmx_record_abandon(const struct rmx_tally *tally);

/*
 * Enters a window, and sets the tally that it is to count with. Nothing is set
 * where there is no record.
 */
void rmx_record_window(struct rmx_tally *tally,
		       const struct rmaext_record_window *facts);

/*
 * The entry of a communicator, or NULL. The thread that is in a meeting of its
 * ranks says that it has come there, and that it has left. The entry may be
 * NULL.
 */
struct rmaext_record_comm *rmx_record_comm_find(uint64_t id);
void rmx_record_comes(struct rmaext_record_comm *comm, uint64_t step,
		      int64_t now);
void rmx_record_goes(struct rmaext_record_comm *comm, int64_t now);

/* The calling thread has taken a lock of a target (`held`), or given it back.
 */
void rmx_record_holds(uint32_t window, int64_t target, bool exclusive,
		      bool held);

/* -- trace.c */

/*
 * Waits until there is room for the event `number`, for 1 s at most. Once a
 * thread has given up, none waits before the writer goes on: the caller may
 * hold locks, and be a progress thread.
 */
void rmx_trace_room(uint64_t number);

#endif
