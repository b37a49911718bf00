/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What protocols cost with many ranks: messages and bytes of the network, and
 * memory, of each rank. The world is calm. A line of JSON says each; what is
 * more than its formula allows is a failure. RANKS=1024 is a job of so many
 * (tests/world/scale.py, `make sim-scale`).
 */
#ifndef WORLD_RANKS
#define WORLD_RANKS 256
#endif
#include "world_scale.h"

#include <malloc.h>

enum { WINDOWS = 8, SOME = 4 /* ranks, for what each has p of */ };

static uint64_t barrier_bytes;
static rmaext_network_barrier *barriers[RANKS];

static void died(int number)
{
	(void)number;
}

static void tell(void)
{
}

/* All that is on its way arrives. */
static void quiet(void)
{
	while (world.flight_count)
		step();
}

/* -- what ranks do */

static void notify_next(int rank)
{
	const uint64_t value = 1;
	const struct rmaext_call call = {.kind = RMAEXT_PUT,
					 .rank = (rank + 1) % world.ranks,
					 .offset = barrier_bytes,
					 .operand = &value,
					 .count = 8,
					 .notify = 1};
	rmaext_op *op = NULL;
	int ret = rmaext_start(world.node[rank].window, &call, &op);

	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op, TENTH);
	OK(ret);
	OK(rmaext_op_release(&op));
}

static void put_one(int rank, int target)
{
	const uint64_t value = 1;
	rmaext_op *op = NULL;

	OK(put_begin(world.node[rank].window, target, barrier_bytes, &value, 8,
		     &op));
}

static void fence(void)
{
	struct rmaext_met met;
	int left = world.ranks, ret;
	static bool met_by[RANKS];

	memset(met_by, 0, sizeof(met_by));
	while (left) {
		for (int i = 0; i < world.ranks; i++) {
			if (met_by[i])
				continue;
			ret = rmaext_network_barrier_meet(barriers[i], 1, 0, 0,
							  &met);
			CHECK(!ret || ret == RMAEXT_PENDING);
			met_by[i] = !ret;
			left -= !ret;
			EQUAL(!ret && met.differ, 0);
		}
		quiet();
	}
}

static void put_next(int rank)
{
	put_one(rank, (rank + 1) % world.ranks);
}

static void put_to_all(int rank)
{
	for (int target = 0; target < world.ranks; target++)
		put_one(rank, target);
}

static void barrier_open(int rank)
{
	OK(rmaext_network_barrier_open(world.node[rank].window,
				       world.node[rank].cells, 0, 0,
				       &barriers[rank]));
}

/* A window whose control block has a page that is used, as of shm/arena.c. */
static void window_first(int rank)
{
	struct node *n = &world.node[rank];
	void *block = mmap(NULL, rmaext_block_bytes(world.ranks),
			   PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(block != MAP_FAILED);
	n->block = block;
	n->cells = calloc(world.cells, 8);
	CHECK(n->cells);
	OK(rmaext_blocks_new(n->members, &block, &n->blocks));
	n->window = window_make(rank, "a window's token");
}

/* Without messages to others, which could not tell them apart. */
static void windows_idle(int rank)
{
	for (int k = 0; k < WINDOWS; k++)
		window_make(rank, "an idle window  ");
}

static void each(void (*does)(int rank), int ranks)
{
	for (int i = 0; i < ranks; i++)
		does(i);
	quiet();
}

static void flush_all(int rank)
{
	flush(rank, -1);
}

static void ranks_run(void)
{
	const char *text = getenv("RANKS");
	const int ranks = text ? atoi(text) : 64;
	const double p = ranks;
	double rounds = 0;

	CHECK(ranks >= SOME && ranks <= RANKS);
	if (text)
		alarm(0);
	while ((double)(1 << (int)rounds) < p)
		rounds++;
	world.flights = world.store;
	world.ranks = ranks;
	world.active = -1;
	world.calm = true;
	world.died = died;
	world.tell = tell;
	barrier_bytes = rmaext_network_barrier_bytes();
	world.cells = barrier_bytes / 8 + 1;

	/*
	 * A page is 4 KiB, and what is zeros is taken from the end of the heap,
	 * untouched: there are not mappings enough for so many ranks.
	 */
	OK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	mallopt(M_MMAP_MAX, 0);
	mallopt(M_TOP_PAD, 0);
	measure();
	each(node_open, ranks);
	measured("endpoint", ranks, 0, 0);
	each(members_open, ranks);
	measured("communicator", ranks, 0, 0);
	each(window_first, ranks);
	measured("window", ranks, 0, 0);
	each(windows_idle, SOME);
	is(memory() - begun.memory <= SOME * WINDOWS * 8192,
	   "idle windows have memory for their peers");
	measured("idle window", SOME * WINDOWS, 0, 0);
	each(barrier_open, ranks);
	measured("meetings", ranks, 0, 0);
	fence();
	measured("fence", ranks, rounds, 16 * rounds);
	each(notify_next, ranks);
	measured("notification", ranks, 2, 136);
	each(flush_all, ranks);
	measured("flush of nothing", ranks, 0, 0);
	each(put_next, ranks);
	each(flush_all, ranks);
	measured("put and flush to all", ranks, 1, 8);
	/* itself, one for each round, and who has notified it */
	is(world.node[0].fabric->ranks_met <= 2 + rounds,
	   "a flush of all ranks makes peers of them");
	each(put_to_all, SOME);
	each(flush_all, SOME);
	measured("put to all and flush", SOME, p, 8 * p);
}

const struct test tests[] = {
	{"ranks", ranks_run, NULL, NULL},
	{0},
};
