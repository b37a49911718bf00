/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lock of a target: a ticket lock for readers and writers in its control
 * block. Who comes draws a ticket. A reader enters when all who came before
 * have entered as readers or left as writers, a writer when all have left.
 * rmaext/_sync/ticket_lock.py decides what to do about those who died in the
 * queue, and sends the messages where the block is not mapped here.
 *
 * Each rank's word in `slots` says what it has, from before it draws a ticket
 * until after it has given it back, so that a ticket which nobody alive
 * accounts for is a dead rank's. All its changes are additions: the threads of
 * a rank that leave as readers share it with the one that queues.
 */
#define _GNU_SOURCE
#include "base/await.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NEXT, READERS, WRITERS, SLEEPERS }; /* of words */

static int64_t raise(int64_t *word, int64_t value)
{
	return __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

static int64_t load(const int64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* -- words that others wait for -------------------------------------------- */

/* The half of a word that changes: a futex is of 32 bits. */
static const uint32_t *low_half(const int64_t *word)
{
	return (const uint32_t *)word +
	       (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 1 : 0);
}

/* Only who waits for this value is woken, or shares its bit. */
static uint32_t bit_of(int64_t value)
{
	return UINT32_C(1) << (value & 31);
}

static void wake(const int64_t *sleepers, const int64_t *word, int64_t value)
{
	if (load(sleepers))
		syscall(SYS_futex, low_half(word), FUTEX_WAKE_BITSET, INT_MAX,
			NULL, NULL, bit_of(value));
}

void rmaext_word_raise(int64_t *sleepers, int64_t *word)
{
	const int64_t value = raise(word, 1) + 1;

	wake(sleepers, word, value);
}

struct word {
	int64_t *sleepers;
	const int64_t *word;
	int64_t least;
};

static enum rmx_step grown(void *arg)
{
	const struct word *w = arg;

	return load(w->word) >= w->least ? RMX_DONE : RMX_SLEEP;
}

static bool sleep_on(void *arg, int64_t ns)
{
	const struct word *w = arg;
	const int64_t until = rmx_now() + ns;
	const struct timespec end = {
		.tv_sec = (time_t)(until / 1000000000),
		.tv_nsec = (long)(until % 1000000000),
	};
	bool slept = true;
	int64_t value;

	raise(w->sleepers, 1);
	value = load(w->word);
	/* a rank that is killed here leaves a sleeper too many: idle wakes */
	if (value < w->least)
		slept = !syscall(SYS_futex, low_half(w->word),
				 FUTEX_WAIT_BITSET, (uint32_t)value, &end, NULL,
				 bit_of(w->least)) ||
			errno != EINTR;
	raise(w->sleepers, -1);
	return slept;
}

int rmaext_word_await(int64_t *sleepers, const int64_t *word, int64_t least,
		      int64_t spin, int64_t sleep)
{
	struct word w = {sleepers, word, least};
	const struct rmx_await wait = {
		.look = grown,
		.sleep = sleep_on,
		.arg = &w,
		.spin = spin,
		.nap = sleep,
	};

	if (grown(&w) == RMX_DONE)
		return 1;
	if (spin + sleep <= 0) {
		rmaext_mpi_glance();
		return 0;
	}
	return !rmx_await(&wait, rmx_now() + spin + sleep, NULL);
}

void rmaext_barrier(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}

/* -- changes of the block, by atomics or by messages ------------------------
 */

/* True if the call was begun before, and goes on with more answers. */
static bool exchange_begin(struct rmaext_exchange *e)
{
	const bool again = e && e->count;

	if (e)
		e->count = e->used = e->complete = e->swap = 0;
	return again;
}

/*
 * The previous value, if there is an answer. If not, the change becomes a part
 * of the message to be sent; or nothing, if the message is complete.
 */
static void exchange_ask(struct rmaext_exchange *e, int64_t place,
			 int64_t value, int64_t *old_p)
{
	if (e->complete)
		return;
	if (e->used < e->answered)
		*old_p = e->answers[e->used++];
	else
		e->changes[e->count++] = (struct rmaext_change){place, value};
}

/* Are there answers to all so far? If not, the message is complete. */
static bool answered(struct rmaext_exchange *e)
{
	if (e && e->count)
		e->complete = 1;
	return !e || !e->complete;
}

static int exchange_end(struct rmaext_exchange *e, int ret)
{
	if (!e)
		return ret;
	e->result = e->count ? RMAEXT_PENDING : ret;
	return e->result;
}

static int64_t look(const struct rmaext_lock *l, struct rmaext_exchange *e,
		    int64_t place)
{
	int64_t value = 0;

	if (!e)
		return load(&l->block[place]);
	exchange_ask(e, place, 0, &value);
	return value;
}

static void wake_turn(const struct rmaext_lock *l, int64_t place, int64_t value)
{
	const int64_t *words = l->block + l->words;

	if (place == l->words + READERS || place == l->words + WRITERS)
		wake(&words[SLEEPERS], &l->block[place], value);
}

static int64_t add(const struct rmaext_lock *l, struct rmaext_exchange *e,
		   int64_t place, int64_t more)
{
	int64_t old = 0;

	if (e) {
		exchange_ask(e, place, more, &old);
	} else {
		old = raise(&l->block[place], more);
		wake_turn(l, place, old + more);
	}
	return old;
}

/* Changes a word if it is `from`: true, also where that has no answer yet. */
static bool swap(const struct rmaext_lock *l, struct rmaext_exchange *e,
		 int64_t place, int64_t from, int64_t to)
{
	int64_t old = from;

	if (e) {
		if (!answered(e))
			return true;
		exchange_ask(e, place, from, &old);
		e->swap = !answered(e);
		e->to = to;
	} else if (__atomic_compare_exchange_n(&l->block[place], &old, to,
					       false, __ATOMIC_SEQ_CST,
					       __ATOMIC_SEQ_CST)) {
		wake_turn(l, place, to);
	}
	return old == from;
}

/* -- the lock -------------------------------------------------------------- */

/* What the own slot holds besides the number of readers. */
static int64_t content(const struct rmaext_lock *l, int kind)
{
	if (kind == 0 || kind == RMAEXT_SLOT_ACTIVE)
		return kind;
	return l->ticket << RMAEXT_SLOT_TICKET | kind;
}

static void change(struct rmaext_lock *l, struct rmaext_exchange *e, int kind,
		   int64_t more)
{
	const int64_t old = content(l, l->kind);

	l->kind = kind;
	add(l, e, l->slots + l->rank, content(l, kind) + more - old);
}

static int64_t turn(const struct rmaext_lock *l, int exclusive)
{
	return l->words + (exclusive ? WRITERS : READERS);
}

static void enter(struct rmaext_lock *l, struct rmaext_exchange *e,
		  int exclusive)
{
	l->inside = 1;
	if (exclusive) {
		if (l->kind != RMAEXT_SLOT_ACTIVE)
			change(l, e, RMAEXT_SLOT_ACTIVE, 0);
		return;
	}
	if (l->kind == RMAEXT_SLOT_ACTIVE)
		add(l, e, turn(l, 0), 1);
	else /* no addition: who finds a queued rank dead may do it for it */
		swap(l, e, turn(l, 0), l->ticket, l->ticket + 1);
	change(l, e, 0, RMAEXT_SLOT_READER);
}

static int try_enter(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int exclusive)
{
	const int64_t now = look(l, e, turn(l, exclusive));

	if (!answered(e) || now != l->ticket)
		return 0;
	enter(l, e, exclusive);
	return 1;
}

/* Takes up an abandoned ticket of its own, unless another has passed it on. */
static bool resume(struct rmaext_lock *l, struct rmaext_exchange *e)
{
	const int64_t from = content(l, RMAEXT_SLOT_ABANDONED);
	const int64_t slot = l->slots + l->rank;
	int64_t value;

	l->kind = 0;
	do {
		value = look(l, e, slot);
		if (!answered(e) || (value & ~RMAEXT_SLOT_READERS) != from)
			return false;
	} while (!swap(l, e, slot, value,
		       value - RMAEXT_SLOT_ABANDONED + RMAEXT_SLOT_QUEUED));
	l->kind = RMAEXT_SLOT_QUEUED;
	return true;
}

static int draw(struct rmaext_lock *l, struct rmaext_exchange *e, int exclusive)
{
	int64_t now;

	change(l, e, RMAEXT_SLOT_ACTIVE, 0);
	l->ticket = add(l, e, l->words + NEXT, 1);
	now = look(l, e, turn(l, exclusive));
	if (answered(e) && now == l->ticket) {
		enter(l, e, exclusive);
		return 1;
	}
	change(l, e, RMAEXT_SLOT_QUEUED, 0);
	return 0;
}

/* What the owner has may change when there are all answers: not before. */
static void owner_begin(const struct rmaext_lock *l, struct rmaext_exchange *e)
{
	if (!e)
		return;
	e->ticket = l->ticket;
	e->kind = l->kind;
	e->inside = l->inside;
}

static int owner_end(struct rmaext_lock *l, struct rmaext_exchange *e, int ret)
{
	ret = exchange_end(e, ret);
	if (ret == RMAEXT_PENDING) {
		l->ticket = e->ticket;
		l->kind = e->kind;
		l->inside = e->inside;
	}
	return ret;
}

/* After it another thread may be the owner. */
static int owner_leave(struct rmaext_lock *l, struct rmaext_exchange *e)
{
	int ret;

	l->inside = 0;
	ret = owner_end(l, e, 0);
	if (!ret)
		__atomic_store_n(&l->owner, 0, __ATOMIC_SEQ_CST);
	return ret;
}

int rmaext_lock_take(struct rmaext_lock *l, struct rmaext_exchange *e,
		     uint64_t thread, int exclusive)
{
	const bool again = exchange_begin(e);
	uint64_t owner = 0;
	int ret;

	if (!__atomic_compare_exchange_n(&l->owner, &owner, thread, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) &&
	    !(again && owner == thread))
		return exchange_end(e, -FI_EBUSY);
	owner_begin(l, e);
	if (l->kind == RMAEXT_SLOT_ABANDONED && resume(l, e))
		ret = try_enter(l, e, exclusive);
	else
		ret = draw(l, e, exclusive);
	return owner_end(l, e, ret);
}

int rmaext_lock_wait(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int exclusive, int64_t spin, int64_t sleep)
{
	exchange_begin(e);
	owner_begin(l, e);
	if (!e)
		rmaext_word_await(&l->block[l->words + SLEEPERS],
				  &l->block[turn(l, exclusive)], l->ticket,
				  spin, sleep);
	return owner_end(l, e, try_enter(l, e, exclusive));
}

/* The slot last, so that each ticket is always accounted for. */
static void leave(struct rmaext_lock *l, struct rmaext_exchange *e,
		  int exclusive)
{
	if (exclusive)
		add(l, e, turn(l, 0), 1);
	add(l, e, turn(l, 1), 1);
	if (exclusive)
		change(l, e, 0, 0);
	else
		add(l, e, l->slots + l->rank, -(int64_t)RMAEXT_SLOT_READER);
}

int rmaext_lock_leave(struct rmaext_lock *l, struct rmaext_exchange *e,
		      int exclusive)
{
	exchange_begin(e);
	if (exclusive)
		owner_begin(l, e);
	leave(l, e, exclusive);
	/* when a reader leaves, another thread may be the owner */
	return exclusive ? owner_leave(l, e) : exchange_end(e, 0);
}

int rmaext_lock_undo(struct rmaext_lock *l, struct rmaext_exchange *e,
		     uint64_t thread, int exclusive)
{
	exchange_begin(e);
	if (__atomic_load_n(&l->owner, __ATOMIC_SEQ_CST) != thread)
		return exchange_end(e, 0);
	owner_begin(l, e);
	if (l->inside)
		leave(l, e, exclusive);
	else if (l->kind == RMAEXT_SLOT_QUEUED)
		change(l, e, RMAEXT_SLOT_ABANDONED, 0);
	return owner_leave(l, e);
}

int rmaext_lock_pass(struct rmaext_lock *l, struct rmaext_exchange *e,
		     int64_t rank, int64_t seen)
{
	const int64_t ticket = seen >> RMAEXT_SLOT_TICKET;
	const int64_t slot = l->slots + rank;
	int64_t value;

	exchange_begin(e);
	do {
		value = look(l, e, slot);
		if (!answered(e) || (value ^ seen) & ~RMAEXT_SLOT_READERS)
			return exchange_end(e, 0);
	} while (!swap(l, e, slot, value, value & RMAEXT_SLOT_READERS));
	swap(l, e, turn(l, 0), ticket, ticket + 1);
	add(l, e, turn(l, 1), 1);
	return exchange_end(e, 1);
}
