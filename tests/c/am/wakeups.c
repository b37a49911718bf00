/* SPDX-License-Identifier: BSD-3-Clause */
/* Who waits for a lock over the network is told when it may enter. */
#include "rig.h"

#define WRITER (INT64_C(1) << 32)
#define BLOCKS 2

enum { TURN = 1, INSIDE = 2 };

/* A window over control blocks of one rank, which is origin, target, waiter. */
struct locks {
	struct rig r;
	struct rmaext_places at;
	int64_t *block; /* the last one */
	uint64_t first; /* its first word in the window */
	uint64_t bytes; /* of a block */
};

static void locks_open(struct locks *l)
{
	const uint64_t bytes = rmaext_block_bytes(1);

	/* there is something behind the blocks */
	rig_open(&l->r, (struct rig_options){.size = BLOCKS * bytes + 256});
	rmaext_window_controls(l->r.window, BLOCKS);
	rmaext_block_places(1, &l->at);
	l->bytes = bytes;
	l->first = (BLOCKS - 1) * bytes / sizeof(int64_t);
	l->block = (int64_t *)(void *)l->r.window_memory + l->first;
}

static int64_t word(const int64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

/* Adds to the turn, and to those inside, in one message as their owners do. */
static void lock_add(const struct locks *l, int64_t turn, int64_t inside)
{
	const int64_t rank = 0, words = (int64_t)(l->first + l->at.lock);
	const int64_t at[] = {words + INSIDE, words + TURN};
	const int64_t more[] = {inside, turn};
	struct many_state state;
	int64_t old[2];
	int ret = many_begin(l->r.window, RMAEXT_UPDATE, RMAEXT_SUM,
			     RMAEXT_INT64, sizeof(rank), 2, RMAEXT_ONE_RANK,
			     &rank, at, more, old, &state);

	while (ret == RMAEXT_PENDING)
		ret = many_wait(&state);
	OK(ret);
}

/* How often was the rank told? What was sent is there after a flush. */
static int64_t told(struct locks *l)
{
	OK(flush(l->r.window));
	return word(&l->block[l->at.wakeups]);
}

static void turns(void)
{
	struct locks l;
	int64_t *slot, old;

	locks_open(&l);
	slot = &l.block[l.at.slots];
	*slot = INT64_C(2) << RMAEXT_SLOT_TICKET | RMAEXT_SLOT_FAR |
		RMAEXT_SLOT_QUEUED;
	lock_add(&l, 1, 0);
	EQUAL(told(&l), 0);
	lock_add(&l, 0, 0); /* one that only looks */
	EQUAL(told(&l), 0);
	lock_add(&l, 1, 0);
	EQUAL(told(&l), 1);
	/* a writer at its turn waits for readers */
	lock_add(&l, 0, 2);
	lock_add(&l, 0, -1);
	EQUAL(told(&l), 1);
	lock_add(&l, 0, -1);
	EQUAL(told(&l), 2);
	/* another has passed a ticket on */
	OK(swap(l.r.window, 8 * (l.first + l.at.lock + TURN), RMAEXT_INT64,
		&(int64_t){2}, &(int64_t){1}, &old, 1));
	EQUAL(told(&l), 2);
	OK(swap(l.r.window, 8 * (l.first + l.at.lock + TURN), RMAEXT_INT64,
		&(int64_t){1}, &(int64_t){2}, &old, 1));
	EQUAL(told(&l), 3);
	/* it sleeps on the words themselves */
	*slot -= RMAEXT_SLOT_FAR;
	lock_add(&l, -1, 0);
	lock_add(&l, 1, 0);
	EQUAL(told(&l), 3);
	/* one that joins waits for a writer, which may only try */
	*slot = RMAEXT_SLOT_READER;
	lock_add(&l, 0, WRITER + 1);
	lock_add(&l, 0, -WRITER);
	lock_add(&l, 0, WRITER);
	EQUAL(told(&l), 3);
	lock_add(&l, 1, -WRITER);
	EQUAL(told(&l), 4);
	lock_add(&l, 1, 0);
	EQUAL(told(&l), 4);
	/* the other block has another lock */
	EQUAL(word(l.block - l.bytes / sizeof(int64_t) + l.at.wakeups), 0);
	rig_close(&l.r);
}

/* Any update of any byte is an update, and nothing else. */
static void other_types(void)
{
	enum { MOST = 8192 };
	static const struct {
		int type;
		int64_t unit;
	} types[] = {
		{RMAEXT_INT8, 1},   {RMAEXT_UINT16, 2}, {RMAEXT_FLOAT, 4},
		{RMAEXT_DOUBLE, 8}, {RMAEXT_INT64, 8},
	};
	static int64_t at[MOST];
	static char values[8 * MOST];
	const int64_t rank = 0;
	struct many_state state;
	struct locks l;

	locks_open(&l);
	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		const int64_t unit = types[t].unit;
		const int64_t n = (int64_t)l.r.size / unit;
		int ret;

		CHECK(n <= MOST);
		memset(values, 0, sizeof(values));
		for (int64_t i = 0; i < n; i++) {
			at[i] = i;
			values[i * unit] = 1;
		}
		ret = many_begin(l.r.window, RMAEXT_UPDATE, RMAEXT_SUM,
				 types[t].type, (uint64_t)unit, (uint64_t)n,
				 RMAEXT_ONE_RANK, &rank, at, values, NULL,
				 &state);
		while (ret == RMAEXT_PENDING)
			ret = many_wait(&state);
		OK(ret);
	}
	OK(flush(l.r.window));
	rig_close(&l.r);
}

const struct test tests[] = {
	{"turns", turns, NULL, NULL},
	{"other_types", other_types, NULL, NULL},
	{0},
};
