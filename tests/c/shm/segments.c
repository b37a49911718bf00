/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks of an arena in its segments: what is found, what is given back. */
#include "arena.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>

static bool zeros(const char *addr, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		if (addr[i])
			return false;
	return true;
}

static uint64_t inode_of(rmaext_arena *arena, const char *addr)
{
	struct rmaext_block block;

	EQUAL(rmaext_arena_find(arena, addr, 1, &block), 1);
	return block.inode;
}

/* -- the arena */

static const uint64_t sizes[] = {
	1,	  63,	       64,	 65,	   4095, TAIL,
	TAIL + 1, 64 * KIB,    64 * KIB, 100001,   MIB,	 2 * MIB - 1,
	2 * MIB,  2 * MIB + 1, 8,	 20 * MIB, 3,	 64 * KIB - 1};

static void blocks(void)
{
	rmaext_arena *a = arena_open();
	char *block[COUNT(sizes)];
	size_t n = COUNT(sizes);
	int open = 0;

	for (unsigned int round = 0; round < 5; round++) {
		for (size_t i = 0; i < n; i++) {
			block[i] = allocate(a, sizes[i]);
			CHECK(zeros(block[i], sizes[i]));
			fill(block[i], sizes[i], (unsigned int)i + round);
		}
		for (size_t i = 0; i < n; i++)
			CHECK(filled(block[i], sizes[i],
				     (unsigned int)i + round));
		if (round < 2) /* the order of the frees differs */
			open = entries_of("/proc/self/fd");
		EQUAL(entries_of("/proc/self/fd"), open);
		for (size_t i = 0; i < n; i++) /* 7 and n: no factor */
			rmaext_arena_free(a, block[(7 * i + round) % n]);
	}
	block[0] = allocate(a, 64);
	rmaext_arena_free(a, block[0]);
	rmaext_arena_free(a, block[0]); /* twice, or another's: ignored */
	rmaext_arena_free(a, block);
	rmaext_arena_free(a, block[0] + 64);
}

static void absurd_sizes(void)
{
	static const uint64_t absurd[] = {0,
					  UINT64_MAX,
					  UINT64_MAX - 63,
					  (uint64_t)1 << 63,
					  (uint64_t)1 << 62,
					  (uint64_t)1 << 50};
	rmaext_arena *a = arena_open();
	int before = entries_of("/proc/self/fd");
	void *addr = NULL;

	for (size_t i = 0; i < COUNT(absurd); i++) {
		EQUAL(rmaext_arena_allocate(a, absurd[i], &addr), -ENOMEM);
		EQUAL(addr, NULL);
	}
	EQUAL(entries_of("/proc/self/fd"), before);
	rmaext_arena_free(a, allocate(a, 8));
}

static void find(void)
{
	rmaext_arena *a = arena_open();
	struct rmaext_process process;
	struct rmaext_block block;
	char *first = allocate(a, 100), *base, on_stack;
	uint64_t usable;

	rmaext_arena_describe(a, &process);
	EQUAL(process.pid, getpid());
	EQUAL(rmaext_arena_find(a, first, 100, &block), 1);
	EQUAL(block.fd, process.first.fd);
	EQUAL(block.inode, process.first.inode);
	EQUAL(block.size, process.first.size);
	base = first - block.offset;
	usable = block.size - TAIL;
	EQUAL(rmaext_arena_find(a, base + 77, usable - 77, &block), 1);
	EQUAL(block.offset, 77);
	EQUAL(rmaext_arena_find(a, base + usable - 1, 1, &block), 1);
	EQUAL(rmaext_arena_find(a, base, usable + 1, &block), 0);
	EQUAL(rmaext_arena_find(a, base + usable, 1, &block), 0);
	EQUAL(rmaext_arena_find(a, base - 1, 1, &block), 0);
	EQUAL(rmaext_arena_find(a, base + 1, UINT64_MAX, &block), 0);
	EQUAL(rmaext_arena_find(a, &on_stack, 1, &block), 0);
	/* in the second segment */
	base = allocate(a, 50 * MIB);
	EQUAL(rmaext_arena_find(a, base, 50 * MIB, &block), 1);
	CHECK(block.inode != process.first.inode);
	/* what the peers are told stays the first */
	rmaext_arena_describe(a, &process);
	CHECK(block.inode != process.first.inode);
}

static void gives_back(void)
{
	rmaext_arena *a = arena_open();
	struct rmaext_block block;
	struct stat status;
	char *odd, *large;

	for (int i = 0; i < 5; i++) {
		odd = allocate(a, 70001);
		large = allocate(a, 64 * MIB);
		memset(large, 1, 64 * MIB);
		memset(odd, 1, 70001);
		EQUAL(rmaext_arena_find(a, large, 1, &block), 1);
		OK(fstat((int)block.fd, &status));
		CHECK(status.st_blocks * 512 >= (int64_t)(64 * MIB));
		rmaext_arena_free(a, large);
		OK(fstat((int)block.fd, &status));
		CHECK(status.st_blocks * 512 < (int64_t)(4 * MIB));
		rmaext_arena_free(a, odd);
	}
	EQUAL(entries_of("/proc/self/fd") < 20, 1);
	/* what is never touched takes nothing */
	large = allocate(a, 5 * 1024 * MIB);
	large[4 * 1024 * MIB] = 1;
	EQUAL(rmaext_arena_find(a, large, 1, &block), 1);
	OK(fstat((int)block.fd, &status));
	CHECK(status.st_blocks * 512 < (int64_t)(4 * MIB));
}

static void many_blocks(void)
{
	enum { MANY = 10000 };
	static char *block[MANY];
	rmaext_arena *a = arena_open();
	struct rmaext_process process;
	char *whole;

	rmaext_arena_describe(a, &process);

	for (int i = 0; i < MANY; i++) {
		block[i] = allocate(a, 100);
		fill(block[i], 100, (unsigned int)i);
	}
	for (int i = 0; i < MANY; i += 2)
		rmaext_arena_free(a, block[i]);
	for (int i = 1; i < MANY; i += 2) {
		CHECK(filled(block[i], 100, (unsigned int)i));
		rmaext_arena_free(a, block[i]);
	}
	/* joined again: the whole first segment, but for its tail */
	whole = allocate(a, 16 * MIB - TAIL);
	EQUAL(inode_of(a, whole), process.first.inode);
	CHECK(zeros(whole, 16 * MIB - TAIL));
}

static void *churn(void *arg)
{
	enum { KEPT = 16 };
	char *block[KEPT] = {NULL};
	uint64_t len[KEPT] = {0};
	unsigned int seed = (unsigned int)(uintptr_t)&block;
	struct rmaext_process process;

	for (unsigned int i = 0; i < 3000; i++) {
		size_t at = (size_t)rand_r(&seed) % KEPT;

		if (block[at]) {
			CHECK(filled(block[at], len[at], (unsigned int)at));
			rmaext_arena_free(arg, block[at]);
		}
		len[at] = 1 + (uint64_t)rand_r(&seed) %
				      (i % 50 ? 3 * KIB : 300 * KIB);
		block[at] = allocate(arg, len[at]);
		CHECK(zeros(block[at], len[at]));
		fill(block[at], len[at], (unsigned int)at);
		rmaext_arena_describe(arg, &process);
	}
	return NULL;
}

static void arena_threads(void)
{
	rmaext_arena *a = arena_open();
	pthread_t threads[2];

	for (size_t i = 0; i < COUNT(threads); i++)
		OK(pthread_create(&threads[i], NULL, churn, a));
	for (size_t i = 0; i < COUNT(threads); i++)
		OK(pthread_join(threads[i], NULL));
}

const struct test tests[] = {
	{"blocks", blocks, NULL, NULL},
	{"absurd_sizes", absurd_sizes, NULL, NULL},
	{"find", find, NULL, NULL},
	{"gives_back", gives_back, NULL, NULL},
	{"many_blocks", many_blocks, NULL, NULL},
	{"arena_threads", arena_threads, NULL, NULL},
	{0},
};
