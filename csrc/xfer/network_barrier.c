/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The barrier of ranks that share no memory: they meet by words that they put
 * into one another's memory. In round k a rank puts its words into the memory
 * of the rank 2^k after it, and awaits those of the rank 2^k before it; after
 * the last round it has heard, through others, of all ranks (Hensgen, Finkel
 * and Manber: Two algorithms for barrier synchronization, 1988). What the ranks
 * bring is the largest of their values, and whether they have come for
 * different steps; of both it does no harm that a rank hears twice.
 *
 * A rank that has come is needed no more: whoever reads the completion queue
 * takes the rounds further, be that the progress thread. So a meeting to which
 * all have come takes place for all of them, whatever happens to a rank later
 * but its death.
 *
 * Words are put without a completion. Those that a broken connection has
 * swallowed can be asked for, as a rank keeps what it has put: see
 * rmaext_network_barrier_awaits().
 */
#include "xfer/network_barrier.h"

#include <stdlib.h>

#define ROUNDS 32 /* for 2^32 ranks */
/*
 * ns from the begin of a meeting, or from the last request of a peer, until a
 * rank that waits may sleep
 */
#define AWAKE ((int64_t)5000 * 1000)

/*
 * What goes in one put. The upper 16 bits of each word number the meeting,
 * since the two may arrive one after the other.
 */
struct words {
	atomic_uint_fast64_t step; /* hash of the step */
	atomic_uint_fast64_t rest; /* DIFFER, and the value */
};

#define NUMBER_SHIFT 48
#define DIFFER (UINT64_C(1) << 32)

/*
 * A rank's part of the memory, zeros at first. Rounds have two places, used by
 * turns: a rank is at most one meeting ahead of another.
 */
struct memory {
	atomic_uint_fast64_t came; /* number of meetings that it came to */
	uint64_t unused;
	struct words heard[2][ROUNDS], said[2][ROUNDS];
};

enum { AWAY, INSIDE, OVER };

struct rmaext_network_barrier {
	struct rmaext_network_barrier *next; /* of its fabric */
	struct rmaext_fabric *fabric; /* stays; the window may forget it */
	struct rmaext_window *window;
	uint64_t at; /* bytes to the memory of each rank */
	struct memory *own;
	int64_t rank, size;
	unsigned int rounds;
	uint64_t id; /* of the communicator, in records; or 0 */
	struct rmaext_record_comm *comm; /* its entry; or NULL */
	int64_t since;			 /* time when it came to the meeting */
	atomic_int state;
	atomic_bool unsent; /* the provider did not take the words yet */
	/* the lock of the fabric's meetings guards the rest */
	uint64_t number; /* of meetings that it came to */
	uint64_t step;	 /* as in words; and what is known so far: */
	uint64_t differ, value;
	unsigned int round;
};

static uint64_t words_number(uint64_t number)
{
	return number << NUMBER_SHIFT;
}

/* The upper bits are for the number. (The finaliser of MurmurHash3.) */
static uint64_t step_hash(uint64_t step)
{
	step = (step ^ step >> 33) * UINT64_C(0xff51afd7ed558ccd);
	step = (step ^ step >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return (step ^ step >> 33) >> (64 - NUMBER_SHIFT);
}

static int64_t other(const struct rmaext_network_barrier *b, bool after)
{
	const int64_t distance = (int64_t)1 << b->round;

	return (b->rank + (after ? distance : b->size - distance)) % b->size;
}

static size_t place(const struct rmaext_network_barrier *b, size_t of)
{
	return of +
	       ((b->number & 1) * ROUNDS + b->round) * sizeof(struct words);
}

static struct words *words_at(const struct rmaext_network_barrier *b, size_t of)
{
	return (struct words *)(void *)((char *)b->own + place(b, of));
}

/* Puts the words of this round. What fails for good can be asked for. */
static void barrier_post(struct rmaext_network_barrier *b)
{
	const struct words *said = words_at(b, offsetof(struct memory, said));
	const uint64_t to = b->at + place(b, offsetof(struct memory, heard));
	const int64_t rank = other(b, true);
	const struct rmaext_peer *peer =
		rmx_target_of(b->window, rank)->member->peer;
	int ret = atomic_load(&peer->gone) ? 0
					   : rmx_put_small(b->window, rank, to,
							   said, sizeof(*said));

	atomic_store(&b->unsent, ret == -FI_EAGAIN);
}

static void barrier_say(struct rmaext_network_barrier *b)
{
	struct words *said = words_at(b, offsetof(struct memory, said));
	const uint64_t number = words_number(b->number);

	atomic_store(&said->step, number | b->step);
	atomic_store(&said->rest, number | b->differ | b->value);
	barrier_post(b);
}

/* Takes the meeting as far as it goes now. */
static void barrier_advance(struct rmaext_network_barrier *b)
{
	const uint64_t number = words_number(b->number);

	while (atomic_load(&b->state) == INSIDE) {
		struct words *heard =
			words_at(b, offsetof(struct memory, heard));
		uint64_t step, rest;

		if (atomic_load(&b->unsent))
			barrier_post(b);
		if (atomic_load(&b->unsent))
			return;
		step = atomic_load(&heard->step) ^ number;
		rest = atomic_load(&heard->rest) ^ number;
		if (step >> NUMBER_SHIFT || rest >> NUMBER_SHIFT)
			return;
		if (step != b->step || rest & DIFFER)
			b->differ = DIFFER;
		rest &= DIFFER - 1;
		b->value = rest > b->value ? rest : b->value;
		if (++b->round < b->rounds)
			barrier_say(b);
		else
			atomic_store(&b->state, OVER);
	}
}

/* The same, with the lock held. True: the meeting is over by that. */
static bool barrier_try(struct rmaext_network_barrier *b)
{
	barrier_advance(b);
	if (atomic_load(&b->state) != OVER)
		return false;
	atomic_fetch_sub(&b->fabric->meetings.inside, 1);
	return true;
}

void rmx_meetings_advance(struct rmaext_fabric *f)
{
	bool over = false;

	pthread_mutex_lock(&f->meetings.lock);
	for (struct rmaext_network_barrier *b = f->meetings.first; b;
	     b = b->next) {
		if (atomic_load(&b->state) != INSIDE ||
		    !rmx_rundown_try(&b->window->rundown))
			continue;
		over = barrier_try(b) || over;
		rmx_rundown_leave(&b->window->rundown);
	}
	pthread_mutex_unlock(&f->meetings.lock);
	if (over && atomic_load(&f->progress.followers))
		rmx_futex_wake(&f->progress.turn);
}

bool rmx_meetings_retry(const struct rmaext_fabric *f)
{
	struct rmaext_fabric *it = (struct rmaext_fabric *)(uintptr_t)f;
	bool found = false;

	pthread_mutex_lock(&it->meetings.lock);
	for (struct rmaext_network_barrier *b = it->meetings.first; b;
	     b = b->next)
		found = found || (atomic_load(&b->state) == INSIDE &&
				  atomic_load(&b->unsent));
	pthread_mutex_unlock(&it->meetings.lock);
	return found;
}

/* -- what Python calls */

uint64_t rmaext_network_barrier_bytes(void)
{
	return sizeof(struct memory);
}

int rmaext_network_barrier_open(rmaext_window *window, void *own,
				uint64_t offset, uint64_t id,
				rmaext_network_barrier **barrier_p)
{
	struct rmaext_network_barrier *b = calloc(1, sizeof(*b));
	struct rmaext_fabric *f = window->fabric;
	int64_t to;
	int ret = 0;

	if (!b)
		return rmx_no_memory("the ranks of a communicator");
	b->fabric = f;
	b->window = window;
	b->at = offset;
	b->own = own;
	b->rank = window->self;
	b->size = window->count;
	b->id = id;
	b->comm = rmx_record_comm_find(id);
	while (!ret && (int64_t)1 << b->rounds < b->size) {
		b->round = b->rounds++;
		to = other(b, true);
		ret = rmx_peer_of(window, to)
			      ? rmx_key_map(window, to)
			      : rmx_peer_missing(window->members, to,
						 "meeting");
	}
	if (ret) {
		free(b);
		return ret;
	}
	pthread_mutex_lock(&f->meetings.lock);
	b->next = f->meetings.first;
	f->meetings.first = b;
	pthread_mutex_unlock(&f->meetings.lock);
	*barrier_p = b;
	return 0;
}

void rmaext_network_barrier_close(rmaext_network_barrier *b)
{
	struct rmx_meetings *all = &b->fabric->meetings;
	struct rmaext_network_barrier **p;

	pthread_mutex_lock(&all->lock);
	for (p = &all->first; *p && *p != b; p = &(*p)->next)
		;
	if (*p)
		*p = b->next;
	if (atomic_load(&b->state) == INSIDE) /* it was given up */
		atomic_fetch_sub(&all->inside, 1);
	pthread_mutex_unlock(&all->lock);
	free(b);
}

static void barrier_come(struct rmaext_network_barrier *b, uint64_t step,
			 unsigned int value)
{
	struct rmx_meetings *all = &b->fabric->meetings;

	pthread_mutex_lock(&all->lock);
	b->number++;
	b->step = step_hash(step);
	b->value = value;
	b->differ = 0;
	b->round = 0;
	atomic_store(&b->own->came, b->number);
	barrier_say(b);
	atomic_store(&b->state, INSIDE);
	atomic_fetch_add(&all->inside, 1);
	barrier_try(b); /* no event tells of words that are here already */
	pthread_mutex_unlock(&all->lock);
}

static enum rmx_step barrier_step(void *arg)
{
	struct rmaext_network_barrier *b = arg;

	if (atomic_load(&b->unsent)) /* the queue may be another thread's */
		rmx_meetings_advance(b->fabric);
	if (atomic_load(&b->state) == OVER)
		return RMX_DONE;
	return atomic_load(&b->unsent) ? RMX_RETRY : RMX_SLEEP;
}

int rmaext_network_barrier_meet(rmaext_network_barrier *b, uint64_t step,
				unsigned int value, int64_t slice,
				struct rmaext_met *met_p)
{
	struct rmx_pace pace = {0};
	int64_t now;
	int ret = rmx_window_enter(b->window, "meeting");

	if (ret)
		return ret;
	rmx_now_meets(b->comm, b->id, step); /* again, if interrupted */
	now = rmx_now();
	if (atomic_load(&b->state) == AWAY) {
		b->since = now;
		barrier_come(b, step, value);
	}
	rmx_pace_begin(&pace, now);
	if (b->fabric->progress.spin) /* no rank wants this core */
		pace.awake = AWAKE;
	pace.yields = b->since + AWAKE;
	ret = rmx_wait_serving(b->fabric, barrier_step, b,
			       now + (slice < RMX_SLICE ? slice : RMX_SLICE),
			       &pace);
	if (!ret) {
		met_p->worst = (unsigned int)b->value;
		met_p->differ = b->differ != 0;
		atomic_store(&b->state, AWAY);
		rmx_now_met(b->comm, 0);
	}
	rmx_window_leave(b->window);
	return ret;
}

int64_t rmaext_network_barrier_awaits(rmaext_network_barrier *b,
				      uint64_t *offset_p)
{
	struct rmx_meetings *all = &b->fabric->meetings;
	int64_t from = -1;

	pthread_mutex_lock(&all->lock);
	if (atomic_load(&b->state) == INSIDE) {
		from = other(b, false);
		*offset_p = b->at + place(b, offsetof(struct memory, said));
	}
	pthread_mutex_unlock(&all->lock);
	return from;
}

void rmaext_network_barrier_heard(rmaext_network_barrier *b, uint64_t offset,
				  const uint64_t *words)
{
	struct rmx_meetings *all = &b->fabric->meetings;
	const uint64_t number = words_number(b->number);
	struct words *heard;

	pthread_mutex_lock(&all->lock);
	if (atomic_load(&b->state) == INSIDE &&
	    offset == b->at + place(b, offsetof(struct memory, said)) &&
	    !((words[0] ^ number) >> NUMBER_SHIFT) &&
	    !((words[1] ^ number) >> NUMBER_SHIFT)) {
		heard = words_at(b, offsetof(struct memory, heard));
		atomic_store(&heard->step, words[0]);
		atomic_store(&heard->rest, words[1]);
	}
	pthread_mutex_unlock(&all->lock);
}

uint64_t rmaext_network_barrier_came(const rmaext_network_barrier *b)
{
	return b->number;
}
