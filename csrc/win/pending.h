/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The operations that are on their way to a target, so that a flush can wait
 * for those that were when it began, while other threads go on. They complete
 * in any order, so they are counted by rounds, as sleepable RCU counts its
 * readers: one word has the number of the round and two counters, that of this
 * round and that of the round before. An operation remembers its share, which
 * is one in the counter of the round that it has begun in. A flush begins the
 * next round once all of the round before have completed. It is done when both
 * counters have been 0 since it began: each was when a flush began a round, in
 * the same instant, or else is when somebody looks.
 *
 * So a flush waits for what was on its way; beside flushes of other threads
 * also for what begins while that completes; and for nothing that begins later.
 */
#ifndef RMAEXT_PENDING_H
#define RMAEXT_PENDING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define RMX_COUNTER_BITS 30
#define RMX_ROUND_AT (2 * RMX_COUNTER_BITS)
#define RMX_ROUNDS ((uint64_t)1 << (64 - RMX_ROUND_AT)) /* then 0 comes */

typedef atomic_uint_fast64_t rmx_pending;

static inline uint64_t rmx_round_of(uint64_t pending)
{
	return pending >> RMX_ROUND_AT;
}

static inline uint64_t rmx_share_in(uint64_t round)
{
	return (uint64_t)1 << round % 2 * RMX_COUNTER_BITS;
}

/* How many operations of this round, or of the one before, are on their way. */
static inline uint64_t rmx_counted_in(uint64_t pending, uint64_t round)
{
	return pending / rmx_share_in(round) %
	       ((uint64_t)1 << RMX_COUNTER_BITS);
}

static inline uint64_t rmx_counted(uint64_t pending)
{
	return rmx_counted_in(pending, 0) + rmx_counted_in(pending, 1);
}

/*
 * The share of an operation that begins now, to be added and taken off again.
 * Only how long others wait depends on the round, so an old one does no harm.
 */
static inline uint64_t rmx_share_now(const rmx_pending *pending)
{
	return rmx_share_in(rmx_round_of(
		atomic_load_explicit(pending, memory_order_relaxed)));
}

/*
 * Have all completed that were on their way in round `begun`, which the caller
 * has read? It begins the next round if that is due. Any thread may ask.
 */
static inline bool rmx_completed_since(rmx_pending *pending, uint64_t begun)
{
	uint_fast64_t now = atomic_load(pending);

	for (;;) {
		const uint64_t round = rmx_round_of(now);
		const uint64_t rounds = (round - begun) % RMX_ROUNDS;

		if (rounds > 1 || !rmx_counted(now))
			return true;
		if (rmx_counted_in(now, round + 1))
			return false;
		if (rounds)
			return true;
		/* after the last round comes 0: the sum wraps around */
		if (atomic_compare_exchange_weak(
			    pending, &now, now + ((uint64_t)1 << RMX_ROUND_AT)))
			return false; /* this round's are on their way */
	}
}

#endif
