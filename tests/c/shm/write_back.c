/* SPDX-License-Identifier: BSD-3-Clause */
/* Files behind memory: who asks, who writes, what fails. msync is this file's
 * own. */
#define _GNU_SOURCE
#include "check.h"
#include "am/am.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/random.h>

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

static atomic_int begun, calls, inside, fails;
static atomic_bool held;	/* it does not return */
static atomic_long nanoseconds; /* that each call takes */
static void *last_addr;
static size_t last_len;

int msync(void *addr, size_t len, int flags)
{
	EQUAL(flags, MS_SYNC);
	EQUAL((uintptr_t)addr % PAGE, 0);
	EQUAL(atomic_fetch_add(&inside, 1), 0);
	atomic_fetch_add(&begun, 1);
	while (atomic_load(&held))
		nap(1e-3);
	nap((double)atomic_load(&nanoseconds) * 1e-9);
	last_addr = addr;
	last_len = len;
	atomic_fetch_sub(&inside, 1);
	atomic_fetch_add(&calls, 1);
	errno = EIO;
	return atomic_load(&fails) ? -1 : 0;
}

static rmaext_arena *arena_open(void)
{
	uint8_t nonce[RMX_TOKEN];
	rmaext_arena *arena = NULL;

	EQUAL(getrandom(nonce, sizeof(nonce), 0), sizeof(nonce));
	leaky(true);
	OK(rmaext_arena_open(nonce, &arena));
	leaky(false);
	return arena;
}

static struct rmx_control_block *block_new(void)
{
	const size_t size = rmaext_block_bytes(1);
	struct rmx_control_block *block = aligned_alloc(RMX_LINE, size);

	CHECK(block);
	memset(block, 0, size);
	return block;
}

static rmaext_file *add(rmaext_storage *s, struct rmx_control_block *block,
			void *addr, uint64_t len)
{
	const struct rmaext_piece piece = {addr, len};
	rmaext_file *file = NULL;

	OK(rmaext_storage_add(s, block, &piece, 1, &file));
	return file;
}

static void ask(rmaext_arena *a, struct rmx_control_block *block)
{
	atomic_fetch_add(&block->storage.asked, 1);
	rmx_wake_waiters(rmx_arena_doorbell(a));
}

static void await(struct rmx_control_block *block, int64_t done)
{
	const int64_t end = now() + 10000000000;

	while (atomic_load(&block->storage.done) < done) {
		CHECK(now() < end);
		nap(1e-4);
	}
}

static void asked(rmaext_arena *a)
{
	static char memory[3 << 16]; /* three of the largest pages */
	struct rmx_control_block *one = block_new(), *two = block_new();
	rmaext_storage *s = NULL;
	rmaext_file *first, *second;
	int before;

	OK(rmaext_storage_open(a, &s));
	first = add(s, one, memory + 10, 100);
	second = add(s, two, memory + PAGE - 1, PAGE);
	nap(0.02);
	EQUAL(atomic_load(&calls), 0);
	for (int64_t i = 1; i < 20; i++) {
		ask(a, one);
		await(one, i);
		EQUAL(last_len % PAGE, ((uintptr_t)memory + 110) % PAGE);
		EQUAL(atomic_load(&calls), i);
		EQUAL(atomic_load(&two->storage.done), 0);
	}
	ask(a, two);
	await(two, 1);
	EQUAL(atomic_load(&two->storage.failed), 0);
	/* what goes wrong is told to those who asked, and only to them */
	atomic_store(&fails, 1);
	ask(a, two);
	await(two, 2);
	EQUAL(atomic_load(&two->storage.failed), 2);
	EQUAL(atomic_load(&two->storage.error), -EIO);
	atomic_store(&fails, 0);
	ask(a, two);
	await(two, 3);
	EQUAL(atomic_load(&two->storage.failed), 2);
	EQUAL(rmaext_storage_write(memory, 1), 0);
	/* waits for the one that is being written */
	atomic_store(&nanoseconds, 200 * 1000 * 1000);
	before = atomic_load(&begun);
	ask(a, one);
	while (atomic_load(&begun) == before)
		nap(1e-4);
	rmaext_storage_remove(s, first);
	EQUAL(atomic_load(&inside), 0);
	await(one, 20);
	atomic_store(&nanoseconds, 0);
	/* nobody is there any more */
	ask(a, one);
	ask(a, two);
	await(two, 4);
	EQUAL(atomic_load(&one->storage.done), 20);
	rmaext_storage_remove(s, second);
	rmaext_storage_close(&s);
	EQUAL(s, NULL);
	rmaext_storage_close(&s);
	free(one);
	free(two);
}

static void by_bell(void)
{
	asked(arena_open());
}

static void without_bell(void)
{
	asked(NULL);
}

/* Many questions that come while one is answered are answered together. */
static void together(void)
{
	static char memory[4096];
	rmaext_arena *a = arena_open();
	struct rmx_control_block *block = block_new();
	rmaext_storage *s = NULL;

	OK(rmaext_storage_open(a, &s));
	add(s, block, memory, sizeof(memory));
	atomic_store(&held, true);
	ask(a, block);
	while (!atomic_load(&inside))
		nap(1e-4);
	for (int i = 1; i < 100; i++)
		ask(a, block);
	EQUAL(atomic_load(&block->storage.done), 0);
	atomic_store(&held, false);
	await(block, 100);
	EQUAL(atomic_load(&calls), 2);
	rmaext_storage_close(&s); /* with what it has */
	free(block);
}

const struct test tests[] = {
	{"by_bell", by_bell, NULL, NULL},
	{"without_bell", without_bell, NULL, NULL},
	{"together", together, NULL, NULL},
	{0},
};
