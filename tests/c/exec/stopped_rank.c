/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A rank of the target's node does not run, in the middle of an update of the
 * target's memory. What others send to the target goes on, but for what cannot;
 * and that waits, in order, and is not lost.
 */
#include "rig.h"
#include "dtype/gather.h"
#include "am/am.h"

#include <sched.h>

/* Elements, the first half for bulk updates; ranks: 0 is the target. */
enum { LONG = 512, CELLS = 2 * LONG, A = 1, B = 2, STOPPED = 3, RANKS = 4 };

static const uint8_t secret[RMX_TOKEN] = "fifteen letters";

struct scene {
	rmaext_fabric *target, *from[B + 1];
	rmaext_memory *memory;
	rmaext_window *there, *window[B + 1];
	struct rmx_control_block *block;
	uint64_t *cells;
	uint64_t ones[LONG];
};

static rmaext_window *window_of(const struct scene *s, rmaext_fabric *f,
				int64_t self, double timeout)
{
	static struct rmaext_neighbour stopped = {.pidfd = -1};
	rmaext_neighbour *neighbour[RANKS] = {0};
	rmaext_peer *peer[RANKS] = {0};
	void *map[RANKS] = {0}, *control[RANKS] = {0};
	uint64_t size[RANKS], base[RANKS] = {0};
	uint8_t access[RANKS], align[RANKS] = {0}, route[RANKS];
	uint8_t keys[RANKS][64] = {0};
	size_t len = sizeof(keys[0]);
	rmaext_window *w = NULL;

	OK(rmaext_memory_key(s->memory, keys[0], &len));
	base[0] = rmaext_memory_base(s->memory);
	for (int r = 0; r < RANKS; r++) {
		size[r] = CELLS * 8;
		access[r] = RMAEXT_READ | RMAEXT_WRITE;
		route[r] = RMAEXT_FABRIC;
		memcpy(&keys[0][(size_t)r * len], keys[0], len);
	}
	if (self) {
		peer[0] = peer_of(f, s->target);
		map[self] = s->cells; /* nobody's target */
	} else {
		peer[A] = peer_of(f, s->from[A]);
		peer[B] = peer_of(f, s->from[B]);
		neighbour[STOPPED] = &stopped;
		map[0] = s->cells;
		control[0] = s->block;
		route[0] = RMAEXT_DIRECT;
	}
	OK(window_new(f,
		      &(struct ranks){
			      .count = RANKS,
			      .self = self,
			      .token = secret,
			      .peer = peer,
			      .neighbour = neighbour,
			      .map = map,
			      .control = control,
			      .size = size,
			      .base = base,
			      .access = access,
			      .align = align,
			      .route = route,
			      .keys = keys[0],
			      .key_len = len,
		      },
		      (int64_t)(timeout * 1e9), &w));
	return w;
}

static void scene_open(struct scene *s, double patience)
{
	memset(s, 0, sizeof(*s));
	s->target = fabric_open(true, false);
	s->block = aligned_alloc(64, rmaext_block_bytes(RANKS));
	s->cells = aligned_alloc(64, CELLS * 8);
	CHECK(s->block && s->cells);
	memset(s->block, 0, rmaext_block_bytes(RANKS));
	memset(s->cells, 0, CELLS * 8);
	for (size_t i = 0; i < LONG; i++)
		s->ones[i] = 1;
	OK(memory_register(s->target, s->cells, CELLS * 8,
			   RMAEXT_READ | RMAEXT_WRITE, 0x1234567, &s->memory));
	for (int r = A; r <= B; r++) {
		s->from[r] = fabric_open(true, false);
		s->window[r] = window_of(s, s->from[r], r, 20);
	}
	s->there = window_of(s, s->target, 0, patience);
}

static void scene_close(struct scene *s)
{
	EQUAL(atomic_load(&s->block->bulk), 0);
	EQUAL(atomic_load(&s->block->waiters), 0);
	for (int r = 0; r < RANKS; r++)
		EQUAL(atomic_load(&s->block->guard[r].singles), 0);
	for (int r = A; r <= B; r++) {
		OK(rmaext_window_close(s->window[r]));
		rmaext_window_free(s->window[r]);
	}
	OK(rmaext_window_close(s->there));
	rmaext_window_free(s->there);
	OK(rmaext_memory_close(&s->memory));
	for (int r = A; r <= B; r++)
		OK(rmaext_fabric_close(&s->from[r]));
	OK(rmaext_fabric_close(&s->target));
	free(s->block);
	free(s->cells);
}

static void stop(struct scene *s, bool in_bulk)
{
	if (in_bulk)
		atomic_store(&s->block->bulk, 1 + STOPPED);
	else
		atomic_fetch_add(&s->block->guard[STOPPED].singles, 1);
}

static void go_on(struct scene *s, bool in_bulk)
{
	if (in_bulk)
		atomic_store(&s->block->bulk, 0);
	else
		atomic_fetch_sub(&s->block->guard[STOPPED].singles, 1);
}

/* Begin an update of n elements, with the old values of the first as result. */
static rmaext_op *begin(struct scene *s, int rank, int op, uint64_t first,
			const uint64_t *values, uint64_t *old, uint64_t n)
{
	rmaext_op *handle = NULL;
	int ret = update_begin(s->window[rank], 0, first * 8, op, RMAEXT_UINT64,
			       values, NULL, old, n, &handle);

	EQUAL(ret, RMAEXT_PENDING);
	return handle;
}

/* Puts and gets, and single updates unless somebody is in bulk. */
static void others_go_on(struct scene *s, bool singles)
{
	const uint64_t before = s->cells[LONG];

	for (uint64_t i = 1; i <= 200; i++) {
		uint64_t word = i, old = 0;

		OK(put(s->window[B], (LONG + 1) * 8, &word, 8));
		OK(flush_for(s->window[B], 0, 10));
		OK(get(s->window[B], (LONG + 1) * 8, &old, 8));
		EQUAL(old, i);
		if (!singles)
			continue;
		OK(fetch_add(s->window[B], LONG * 8, RMAEXT_UINT64, s->ones,
			     &old, 1));
		EQUAL(old, before + i - 1);
	}
}

static void in_single(void)
{
	uint64_t old[LONG], later, ten = 10;
	rmaext_op *bulk, *single;
	struct scene s;

	scene_open(&s, 20);
	stop(&s, false);
	bulk = begin(&s, A, RMAEXT_SUM, 0, s.ones, old, LONG);
	/* behind it, though it could be carried out */
	single = begin(&s, A, RMAEXT_REPLACE, 0, &ten, &later, 1);
	others_go_on(&s, true);
	EQUAL(rmaext_op_wait(bulk, TENTH), RMAEXT_PENDING);
	EQUAL(s.cells[0], 0);
	go_on(&s, false);
	OK(finish(RMAEXT_PENDING, &bulk));
	OK(finish(RMAEXT_PENDING, &single));
	EQUAL(later, 1);
	EQUAL(s.cells[0], 10);
	EQUAL(s.cells[LONG - 1], 1);
	EQUAL(old[LONG - 1], 0);
	EQUAL(s.cells[LONG], 200);
	scene_close(&s);
}

static void in_bulk(void)
{
	uint64_t old[LONG], first, second;
	rmaext_op *bulk, *single[2];
	struct scene s;

	scene_open(&s, 20);
	stop(&s, true);
	bulk = begin(&s, A, RMAEXT_SUM, 0, s.ones, old, LONG);
	single[0] = begin(&s, A, RMAEXT_SUM, 0, s.ones, &first, 1);
	single[1] = begin(&s, A, RMAEXT_SUM, 0, s.ones, &second, 1);
	nap(0.01);
	others_go_on(&s, false);
	EQUAL(s.cells[0], 0);
	go_on(&s, true);
	OK(finish(RMAEXT_PENDING, &bulk));
	OK(finish(RMAEXT_PENDING, &single[0]));
	OK(finish(RMAEXT_PENDING, &single[1]));
	EQUAL(s.cells[0], 3);
	EQUAL(first, 1);
	EQUAL(second, 2);
	scene_close(&s);
}

/* A message of elements, of which the first were carried out before. */
static void elements(void)
{
	enum { N = 3 * RMX_CELLS };
	const int64_t rank = 0;
	int64_t offsets[N];
	uint64_t values[N], old[N];
	struct many_state many;
	struct scene s;
	int64_t until;
	int ret;

	scene_open(&s, 20);
	for (int i = 0; i < N; i++) {
		offsets[i] = i % LONG;
		values[i] = 1;
	}
	stop(&s, true);
	ret = many_begin(s.window[A], RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_UINT64,
			 8, N, RMAEXT_ONE_RANK, &rank, offsets, values, old,
			 &many);
	EQUAL(ret, RMAEXT_PENDING);
	/* it comes in between, in vain; well within the time limit of 20 s */
	until = rmx_now() + 5 * SECOND;
	while (!s.cells[0] && rmx_now() < until) {
		go_on(&s, true);
		sched_yield();
		stop(&s, true);
		others_go_on(&s, false);
	}
	go_on(&s, true);
	while (ret == RMAEXT_PENDING)
		ret = many_wait(&many);
	OK(ret);
	for (int i = 0; i < LONG; i++)
		EQUAL(s.cells[i], i < N - LONG ? 2 : 1);
	for (int i = 0; i < N; i++)
		EQUAL(old[i], i < LONG ? 0 : 1);
	scene_close(&s);
}

/* A bulk update may be writing it. */
__attribute__((no_sanitize("thread"))) static uint64_t
seen(const uint64_t *cell)
{
	return *(const volatile uint64_t *)cell;
}

/* An origin that gives up does not take up all that the target can receive. */
static void given_up(void)
{
	uint64_t old[LONG];
	struct scene s;
	int refused = 0;

	scene_open(&s, 20);
	/* connected: what is given up later has been sent */
	OK(fetch_add(s.window[A], LONG * 8, RMAEXT_UINT64, s.ones, old, 1));
	stop(&s, false);
	for (int i = 0; i < 50; i++) {
		rmaext_op *op = NULL;
		int ret = update_begin(s.window[A], 0, 0, RMAEXT_SUM,
				       RMAEXT_UINT64, s.ones, NULL, old, LONG,
				       &op);

		for (int k = 0; ret == RMAEXT_PENDING; k++) {
			if (i < RMX_CREDITS && k == 2)
				break; /* the target keeps it */
			nap(1e-3);
			ret = rmaext_op_wait(op, TENTH);
		}
		refused += ret == -FI_ETIMEDOUT;
		while (rmaext_op_release(&op) == RMAEXT_PENDING)
			nap(1e-4);
	}
	EQUAL(refused, 50 - RMX_CREDITS);
	others_go_on(&s, true);
	go_on(&s, false);
	while (seen(s.cells) < RMX_CREDITS)
		nap(1e-3);
	OK(fetch_add(s.window[A], 0, RMAEXT_UINT64, s.ones, old, LONG));
	EQUAL(s.cells[0], RMX_CREDITS + 1);
	scene_close(&s);
}

/* The target does not keep it for ever. */
static void too_late(void)
{
	uint64_t old[LONG];
	struct scene s;

	scene_open(&s, 0.3);
	stop(&s, false);
	EQUAL(fetch_add(s.window[A], 0, RMAEXT_UINT64, s.ones, old, LONG),
	      -FI_ETIMEDOUT);
	go_on(&s, false);
	OK(fetch_add(s.window[A], 0, RMAEXT_UINT64, s.ones, old, LONG));
	EQUAL(old[0], 0);
	scene_close(&s);
}

const struct test tests[] = {
	{"in_single", in_single, NULL, NULL},
	{"in_bulk", in_bulk, NULL, NULL},
	{"elements", elements, NULL, NULL},
	{"given_up", given_up, NULL, NULL},
	{"too_late", too_late, NULL, NULL},
	{0},
};
