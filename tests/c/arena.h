/* SPDX-License-Identifier: BSD-3-Clause */
/* An arena of this process. */
#ifndef RMAEXT_ARENA_H
#define RMAEXT_ARENA_H

#include "rig.h"

#include <stdint.h>
#include <sys/random.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define TAIL ((uint64_t)4096) /* bytes of a segment that are no block's */
#define NONCE 16

/* Arenas and neighbours stay until the process ends. */
static inline rmaext_arena *arena_open(void)
{
	uint8_t nonce[NONCE];
	rmaext_arena *arena = NULL;

	EQUAL(getrandom(nonce, NONCE, 0), NONCE);
	leaky(true);
	OK(rmaext_arena_open(nonce, &arena));
	leaky(false);
	return arena;
}

static inline char *allocate(rmaext_arena *arena, uint64_t len)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	void *addr = NULL;

	OK(rmaext_arena_allocate(arena, len, &addr));
	EQUAL((uintptr_t)addr % (len >= 2 * MIB ? 2 * MIB
				 : len >= page	? page
						: 64),
	      0);
	return addr;
}

static inline bool filled(const char *addr, size_t len, unsigned int seed)
{
	char *wanted = malloc(len);
	bool same;

	CHECK(wanted);
	fill(wanted, len, seed);
	same = !memcmp(addr, wanted, len);
	free(wanted);
	return same;
}

#endif
