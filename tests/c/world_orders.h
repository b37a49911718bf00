/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All orders of a small program, instead of a seed's. It is run again and
 * again, and says each time where several things could happen next; `path` is
 * what was chosen there. Each run takes the next path, in order.
 */
#ifndef RMAEXT_WORLD_ORDERS_H
#define RMAEXT_WORLD_ORDERS_H

#include "check.h"

enum { PATH = 200 /* choices in a run, at most */ };

static struct {
	bool on, ends; /* ends: the order of what comes now is all one */
	struct {
		uint8_t taken, of;
	} path[PATH];
	size_t at, length;
	uint64_t runs;
	/* hashes of the states that were met: a table of a power of two */
	uint64_t *seen;
	size_t seen_count, seen_size;
} every;

static void is(bool good, const char *what);

static inline size_t choose(size_t count)
{
	if (count == 1 || every.ends)
		return 0;
	CHECK(every.at < PATH);
	if (every.at == every.length) {
		every.path[every.length].taken = 0;
		every.path[every.length++].of = (uint8_t)count;
	}
	is(every.path[every.at].of == count, "the same path is another one");
	return every.path[every.at++].taken;
}

/* The next path in order; false: there is none. */
static inline bool path_next(void)
{
	every.at = 0;
	while (every.length && every.path[every.length - 1].taken + 1 ==
				       every.path[every.length - 1].of)
		every.length--;
	if (every.length)
		every.path[every.length - 1].taken++;
	return every.length;
}

/* Says it, and what this run has chosen, behind a failure. */
static inline void path_tell(void)
{
	for (size_t i = 0; i < every.at; i++)
		fprintf(stderr, "%s%d", i ? " " : "\tpath ",
			every.path[i].taken);
}

/* Of a state, a word after the other. */
static inline uint64_t state_mix(uint64_t hash, const uint64_t *words,
				 size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (words[i]) { /* most of a rank's memory is zeros */
			hash = (hash ^ words[i] ^ i << 48) *
			       UINT64_C(0x9e3779b97f4a7c15);
			hash ^= hash >> 29;
		}
	return hash;
}

/* True if it was there; else it is from now on. */
static inline bool seen_add(uint64_t hash)
{
	size_t i = hash & (every.seen_size - 1);

	while (every.seen[i] && every.seen[i] != hash)
		i = (i + 1) & (every.seen_size - 1);
	if (every.seen[i])
		return true;
	every.seen[i] = hash;
	every.seen_count++;
	return false;
}

/*
 * Was this state met on an earlier path? What may follow was tried then, and
 * the run can end. Where a path repeats the one before it, nothing is new. Two
 * states of a million have one hash once in 10^7 explorations.
 */
static inline bool seen(uint64_t (*state)(void))
{
	if (every.ends || every.at < every.length)
		return false;
	if (2 * every.seen_count >= every.seen_size) {
		uint64_t *old = every.seen;
		const size_t size = every.seen_size;

		every.seen_size = size ? 2 * size : 1 << 16;
		every.seen = calloc(every.seen_size, sizeof(*every.seen));
		CHECK(every.seen);
		every.seen_count = 0;
		for (size_t i = 0; i < size; i++)
			if (old[i])
				seen_add(old[i]);
		free(old);
	}
	return seen_add(state());
}

static inline void seen_forget(void)
{
	free(every.seen);
	every.seen = NULL;
	every.seen_count = every.seen_size = 0;
}

#endif
