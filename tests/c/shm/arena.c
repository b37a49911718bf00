/* SPDX-License-Identifier: BSD-3-Clause */
/* The arena: what is free and what is not, pieces at an address, pages. */
#define _GNU_SOURCE
#include "check.h"
#include "shm/arena.h"

#include <sys/mman.h>
#include <sys/random.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define SIZE ((size_t)1 << 20)
#define BLOCKS 2000
#define ROUNDS 40000

static rmaext_arena *arena_open(void)
{
	uint8_t nonce[RMX_TOKEN];
	rmaext_arena *arena = NULL;

	EQUAL(getrandom(nonce, sizeof(nonce), 0), sizeof(nonce));
	leaky(true); /* stays until the process ends */
	OK(rmaext_arena_open(nonce, &arena));
	leaky(false);
	return arena;
}

static uint32_t random_number(void)
{
	static uint64_t state = 88172645463325252;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32);
}

/* -- extents */

static char *memory; /* never touched */

/* Blocks of the reference: one byte a line, which says whose it is. */
struct block {
	uint64_t first, lines;
};

static void hand_over(uint16_t *owner, const struct block *b, unsigned int from,
		      unsigned int to)
{
	for (uint64_t i = b->first; i < b->first + b->lines; i++) {
		EQUAL(owner[i], from);
		owner[i] = (uint16_t)to;
	}
}

/* No two overlap, all are aligned, nothing is lost. */
static void extents_at_random(void)
{
	static uint16_t owner[SIZE / RMX_LINE];
	static const uint64_t aligns[] = {64, 64, 64, 128, 4096};
	struct block blocks[BLOCKS] = {0};
	struct rmx_extents x = {0};
	unsigned int refused = 0;
	char *addr;

	memory = aligned_alloc(RMX_HUGE_PAGE, RMX_HUGE_PAGE);
	CHECK(memory);
	OK(rmx_extent_add(&x, memory, SIZE));
	for (unsigned int round = 0; round < ROUNDS; round++) {
		const unsigned int i = random_number() % BLOCKS;
		struct block *b = &blocks[i];
		const uint64_t align = aligns[random_number() % COUNT(aligns)];

		if (b->lines) {
			struct rmx_extent *e = rmx_extent_find(
				&x, memory + b->first * RMX_LINE);

			CHECK(e && e->used);
			EQUAL(e->len, b->lines * RMX_LINE);
			hand_over(owner, b, i + 1, 0);
			rmx_extent_free(&x, e);
			b->lines = 0;
			continue;
		}
		b->lines = 1 + random_number() % (random_number() % 64 + 1);
		addr = rmx_extent_take(&x, b->lines * RMX_LINE, align);
		if (!addr) {
			b->lines = 0;
			refused++;
			continue;
		}
		EQUAL((uintptr_t)addr % align, 0);
		CHECK(addr >= memory);
		b->first = (uint64_t)(addr - memory) / RMX_LINE;
		CHECK((b->first + b->lines) * RMX_LINE <= SIZE);
		hand_over(owner, b, 0, i + 1);
	}
	CHECK(refused < ROUNDS / 4);
	for (unsigned int i = 0; i < BLOCKS; i++)
		if (blocks[i].lines)
			rmx_extent_free(
				&x,
				rmx_extent_find(&x, memory + blocks[i].first *
								     RMX_LINE));
	/* it is one piece again */
	EQUAL(x.used, 0);
	addr = rmx_extent_take(&x, SIZE, RMX_HUGE_PAGE);
	EQUAL(addr, memory);
	EQUAL(rmx_extent_take(&x, RMX_LINE, RMX_LINE), NULL);
	free(rmx_extent_find(&x, addr));
	free(x.buckets);
	free(memory);
}

/* Nanoseconds of a block taken and given back, the best of many. */
static int64_t cost(rmaext_arena *a)
{
	int64_t best = INT64_MAX;

	for (int i = 0; i < 200; i++) {
		const int64_t start = now();
		int64_t spent;
		void *addr;

		for (int k = 0; k < 10; k++) {
			OK(rmaext_arena_allocate(a, 300, &addr));
			rmaext_arena_free(a, addr);
		}
		spent = now() - start;
		best = spent < best ? spent : best;
	}
	return best;
}

/* Once 33 us: the free list was walked from its start. */
static void many_live_blocks(void)
{
	static void *block[20000];
	rmaext_arena *a = arena_open();
	const int64_t few = cost(a);

	leaky(true);
	for (size_t i = 0; i < COUNT(block); i++)
		OK(rmaext_arena_allocate(a, 64 + i % 7 * 64, &block[i]));
	for (size_t i = 0; i < COUNT(block); i += 2) /* in holes too small */
		rmaext_arena_free(a, block[i]);
	CHECK(cost(a) < 20 * few);
	for (size_t i = 1; i < COUNT(block); i += 2)
		rmaext_arena_free(a, block[i]);
	leaky(false);
}

/* -- places */

static char *hole(uint64_t len)
{
	char *at =
		mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	munmap(at, len);
	return at;
}

static int place(rmaext_arena *a, uint64_t len, const void *wanted, int how,
		 char **addr_p)
{
	void *addr = NULL;
	int ret;

	leaky(true);
	ret = rmaext_arena_place(a, len, (uintptr_t)wanted, how, &addr);
	leaky(false);
	*addr_p = addr;
	return ret;
}

static bool zeros(const char *addr, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (addr[i])
			return false;
	return true;
}

static void places(void)
{
	rmaext_arena *a = arena_open();
	const uint64_t len = 5 * rmx_page() + 1;
	char *at = hole(MIB), *addr, *other;
	struct rmaext_block block, again;
	int open = 0;

	for (int round = 0; round < 5; round++) {
		OK(place(a, len, at, RMAEXT_EXACTLY, &addr));
		EQUAL(addr, at);
		CHECK(zeros(addr, len));
		memset(addr, 0x5a, len);
		EQUAL(rmaext_arena_find(a, addr + 5, len - 5, &block), 1);
		EQUAL(block.offset, 5);
		/* what is there stays */
		EQUAL(place(a, len, at, RMAEXT_EXACTLY, &other), -EEXIST);
		EQUAL(place(a, len, at - 5 * rmx_page(), RMAEXT_EXACTLY,
			    &other),
		      -EEXIST);
		EQUAL(addr[0], 0x5a);
		/* a hint is less than an order */
		OK(place(a, len, at, 0, &other));
		CHECK(other != at);
		CHECK(zeros(other, len));
		EQUAL(rmaext_arena_find(a, other, len, &again), 1);
		CHECK(again.inode != block.inode);
		rmaext_arena_free(a, other);
		rmaext_arena_free(a, addr + rmx_page()); /* no block */
		EQUAL(addr[0], 0x5a);
		rmaext_arena_free(a, addr);
		EQUAL(rmaext_arena_find(a, addr, 1, &block), 0);
		if (!round) /* the files are used again */
			open = entries_of("/proc/self/fd");
		EQUAL(entries_of("/proc/self/fd"), open);
		/* and the address is free for others */
		CHECK(mmap(at, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0) == at);
		munmap(at, len);
	}
	EQUAL(place(a, 0, at, RMAEXT_EXACTLY, &addr), -ENOMEM);
	EQUAL(place(a, UINT64_MAX / 2, at, RMAEXT_EXACTLY, &addr), -ENOMEM);
#ifndef __SANITIZE_THREAD__ /* whose mmap takes such an address for none */
	CHECK(place(a, len, (void *)((uintptr_t)1 << 62), RMAEXT_EXACTLY,
		    &addr));
#endif
}

/* A neighbour's view of such a piece, and of what comes to lie there next. */
static void places_of_a_neighbour(void)
{
	rmaext_arena *a = arena_open();
	struct rmaext_process process;
	struct rmaext_block block;
	rmaext_neighbour *neighbour;
	char *addr;
	void *seen;

	rmaext_arena_describe(a, &process);
	leaky(true);
	OK(rmaext_neighbour_open(&process, -1, &neighbour));
	leaky(false);
	for (int round = 1; round < 4; round++) {
		OK(place(a, 3 * rmx_page(), hole(MIB), RMAEXT_EXACTLY, &addr));
		EQUAL(rmaext_arena_find(a, addr, 3 * rmx_page(), &block), 1);
		leaky(true);
		OK(rmaext_neighbour_map(neighbour, &block, 3 * rmx_page(),
					&seen));
		leaky(false);
		CHECK(zeros(seen, 3 * rmx_page()));
		memset(addr, round, 3 * rmx_page());
		EQUAL(((char *)seen)[3 * rmx_page() - 1], round);
		rmaext_arena_free(a, addr);
	}
}

static void huge_pages(void)
{
	rmaext_arena *a = arena_open();
	const uint64_t len = 3 * RMX_HUGE_PAGE;
	uint64_t there;
	char *addr;
	int ret;

	/* more than there can be */
	CHECK(place(a, (uint64_t)1 << 45, NULL, RMAEXT_HUGE, &addr) < 0);
	for (int round = 0; round < 3; round++) {
		ret = place(a, len, NULL, RMAEXT_HUGE, &addr);
		if (ret) {
			printf("no huge pages: %s\n", strerror(-ret));
			return;
		}
		EQUAL((uintptr_t)addr % RMX_HUGE_PAGE, 0);
		CHECK(zeros(addr, len));
		memset(addr, 1, len);
		OK(rmaext_pages_resident(addr, len, &there));
		EQUAL(there, len);
		rmaext_arena_free(a, addr);
	}
}

/* -- pages */

static uint64_t resident(const char *addr, uint64_t len)
{
	uint64_t there = 0;

	OK(rmaext_pages_resident(addr, len, &there));
	return there / rmx_page();
}

static void pages(void)
{
	rmaext_arena *a = arena_open();
	const uint64_t len = 40 * MIB; /* more than one batch */
	void *addr;
	char *at;

	if (!can_populate())
		return;
	leaky(true);
	OK(rmaext_arena_allocate(a, len, &addr));
	leaky(false);
	at = addr;
	EQUAL(resident(at, len), 0);
	OK(rmaext_pages_populate(at + 10, 1, 1));
	OK(rmaext_pages_populate(at + 2 * rmx_page() - 1, 2, 1));
	OK(rmaext_pages_populate(at + len - 1, 1, 1));
	EQUAL(resident(at, len), 4);
	EQUAL(resident(at + rmx_page() + 5, rmx_page()), 2);
	OK(rmaext_pages_advise(at, len, 0));
	OK(rmaext_pages_advise(at + 1, len - 1, 1));
	OK(rmaext_pages_populate(at, len, 1));
	EQUAL(resident(at, len), len / rmx_page());
	CHECK(zeros(at, len));
	rmaext_arena_free(a, addr);
	at = hole(MIB);
	EQUAL(rmaext_pages_populate(at, 10, 1), -ENOMEM);
	CHECK(rmaext_pages_resident(at, 10, &(uint64_t){0}));
	CHECK(rmaext_pages_advise(at, 10, 1) < 0);
}

const struct test tests[] = {
	{"extents_at_random", extents_at_random, NULL, NULL},
	{"many_live_blocks", many_live_blocks, NULL, NULL},
	{"places", places, NULL, NULL},
	{"places_of_a_neighbour", places_of_a_neighbour, NULL, NULL},
	{"huge_pages", huge_pages, NULL, NULL},
	{"pages", pages, NULL, NULL},
	{0}};
