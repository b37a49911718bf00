/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that meet by the network: endpoints of this process, a thread each. */
#include "rig.h"
#include "net/endpoint.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MOST = 5, SHIFT = 128, SLICE = 20 * 1000 * 1000 };

struct rank {
	rmaext_fabric *fabric;
	rmaext_memory *memory;
	rmaext_window *window;
	rmaext_network_barrier *barrier;
	rmaext_peer *peer[MOST];
	pthread_t thread;
	char *block;
	int64_t number;
	struct rmaext_met met;
};

static struct rank ranks[MOST];
static int64_t size;
static size_t block_size;

static void window_open(struct rank *r, const char *keys, size_t key_len,
			const uint64_t *base)
{
	static const uint8_t token[16] = "fifteen letters";
	uint64_t sizes[MOST];
	uint8_t access[MOST], route[MOST], align[MOST];

	for (int64_t i = 0; i < size; i++) {
		r->peer[i] = peer_of(r->fabric, ranks[i].fabric);
		sizes[i] = block_size;
		access[i] = RMAEXT_READ | RMAEXT_WRITE;
		route[i] = RMAEXT_FABRIC;
		align[i] = 0;
	}
	OK(window_new(r->fabric,
		      &(struct ranks){
			      .count = size,
			      .self = r->number,
			      .token = token,
			      .peer = r->peer,
			      .size = sizes,
			      .base = base,
			      .access = access,
			      .align = align,
			      .route = route,
			      .keys = (const uint8_t *)keys,
			      .key_len = key_len,
		      },
		      10 * SECOND, &r->window));
}

/*
 * The last `deaf` ranks have their memory where the others do not put to.
 * `thread`: of progress, each.
 */
static void ranks_open(int64_t count, int64_t deaf, bool thread)
{
	char key[256], keys[MOST * sizeof(key)];
	uint64_t base[MOST];
	size_t len = 0;

	size = count;
	block_size = SHIFT + 2 * rmaext_network_barrier_bytes();
	for (int64_t i = 0; i < size; i++) {
		struct rank *r = &ranks[i];

		r->number = i;
		r->fabric = fabric_open(thread, false);
		r->block = aligned_alloc(64, (block_size + 63) / 64 * 64);
		CHECK(r->block);
		memset(r->block, 0, block_size);
		OK(memory_register(r->fabric, r->block, block_size,
				   RMAEXT_READ | RMAEXT_WRITE,
				   0x1122 + (uint64_t)i, &r->memory));
		len = sizeof(key);
		OK(rmaext_memory_key(r->memory, key, &len));
		memcpy(keys + (size_t)i * len, key, len);
		base[i] = rmaext_memory_base(r->memory);
	}
	for (int64_t i = 0; i < size; i++) {
		struct rank *r = &ranks[i];
		const uint64_t at =
			SHIFT +
			(i >= size - deaf ? rmaext_network_barrier_bytes() : 0);

		window_open(r, keys, len, base);
		OK(rmaext_network_barrier_open(r->window, r->block + at, SHIFT,
					       0, &r->barrier));
	}
}

static void ranks_close(void)
{
	for (int64_t i = 0; i < size; i++)
		rmaext_network_barrier_close(ranks[i].barrier);
	for (int64_t i = 0; i < size; i++) {
		OK(rmaext_window_close(ranks[i].window));
		rmaext_window_free(ranks[i].window);
	}
	for (int64_t i = 0; i < size; i++) {
		OK(rmaext_memory_close(&ranks[i].memory));
		OK(rmaext_fabric_close(&ranks[i].fabric));
		free(ranks[i].block);
	}
}

static int meet(struct rank *r, uint64_t step, unsigned int value)
{
	const int64_t end = now() + 20 * SECOND;
	int ret = RMAEXT_PENDING;

	while (ret == RMAEXT_PENDING && now() < end)
		ret = rmaext_network_barrier_meet(r->barrier, step, value,
						  SLICE, &r->met);
	return ret;
}

static void together(void *(*work)(void *))
{
	for (int64_t i = 0; i < size; i++)
		OK(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]));
	for (int64_t i = 0; i < size; i++)
		pthread_join(ranks[i].thread, NULL);
}

/* -- all come, again and again */

enum { MEETINGS = 2000 };

static atomic_uint came[MEETINGS];

/* What a rank brings to a meeting: one rank has the largest. */
static unsigned int value_of(int64_t rank, int meeting)
{
	return rank == meeting % size ? (unsigned int)meeting + 7
				      : (unsigned int)rank;
}

static void *comes(void *arg)
{
	struct rank *r = arg;

	for (int i = 0; i < MEETINGS; i++) {
		const bool odd = i % 5 == 3; /* one rank calls another step */
		const uint64_t step = 1000 + (uint64_t)i;

		atomic_fetch_add(&came[i], 1);
		OK(meet(r, step + (odd && r->number == i % size),
			value_of(r->number, i)));
		EQUAL(atomic_load(&came[i]), size);
		EQUAL(r->met.differ, odd);
		EQUAL(r->met.worst, i + 7);
		EQUAL(rmaext_network_barrier_came(r->barrier), i + 1);
	}
	return NULL;
}

static void meet_often(int64_t count)
{
	memset(came, 0, sizeof(came));
	ranks_open(count, 0, true);
	together(comes);
	ranks_close();
}

static void meet_by_two(void)
{
	meet_often(2);
}

static void meet_by_three(void)
{
	meet_often(3);
}

static void meet_by_five(void)
{
	meet_often(5);
}

/* -- words are put without completions */

static atomic_int completions;
static void (*own_complete)(struct rmaext_fabric *, void *, size_t,
			    const struct rmaext_error *);

static void counted_complete(struct rmaext_fabric *f, void *context, size_t len,
			     const struct rmaext_error *failure)
{
	atomic_fetch_add(&completions, 1);
	own_complete(f, context, len, failure);
}

static void meet_without_completions(void)
{
	const struct rmx_hooks *own_hooks;
	struct rmx_hooks hooks;

	memset(came, 0, sizeof(came));
	ranks_open(3, 0, false);
	own_hooks = ranks[0].fabric->hooks;
	hooks = *own_hooks;
	own_complete = hooks.complete;
	hooks.complete = counted_complete;
	for (int64_t i = 0; i < size; i++)
		ranks[i].fabric->hooks = &hooks;
	together(comes);
	EQUAL(atomic_load(&completions), 0);
	for (int64_t i = 0; i < size; i++)
		ranks[i].fabric->hooks = own_hooks;
	ranks_close();
}

/* -- a rank that has come is needed no more */

static atomic_bool given_up;

static void *gives_up(void *arg)
{
	struct rank *r = arg;

	if (r->number == 0) { /* comes, and is never in it again */
		EQUAL(rmaext_network_barrier_meet(r->barrier, 5, 1, 0, &r->met),
		      RMAEXT_PENDING);
		atomic_store(&given_up, true);
		return NULL;
	}
	while (!atomic_load(&given_up))
		nap(1e-3);
	OK(meet(r, 5, 0));
	EQUAL(r->met.worst, 1);
	return NULL;
}

static void others_meet(void)
{
	ranks_open(5, 0, true);
	together(gives_up);
	ranks_close();
}

/* -- words that are lost can be asked for */

static void *asks(void *arg)
{
	const size_t there = SHIFT + rmaext_network_barrier_bytes();
	const int64_t end = now() + 20 * SECOND;
	struct rank *r = arg;
	int ret = RMAEXT_PENDING;
	uint64_t words[2], at = 0;

	while (ret == RMAEXT_PENDING && now() < end) {
		const int64_t from =
			rmaext_network_barrier_awaits(r->barrier, &at);

		if (from >= 0) {
			const char *said = ranks[from].block + at;

			if (from >= size - 2) /* deaf, too */
				said += there - SHIFT;
			for (int k = 0; k < 2; k++)
				words[k] = __atomic_load_n(
					(const uint64_t *)(const void *)said +
						k,
					__ATOMIC_SEQ_CST);
			/* those of another round are not taken */
			rmaext_network_barrier_heard(r->barrier, at + 16,
						     words);
			rmaext_network_barrier_heard(r->barrier, at, words);
		}
		ret = rmaext_network_barrier_meet(r->barrier, 9,
						  (unsigned int)r->number,
						  2000000, &r->met);
	}
	OK(ret);
	EQUAL(r->met.worst, size - 1);
	EQUAL(r->met.differ, 0);
	return NULL;
}

static void *is_deaf(void *arg)
{
	struct rank *r = arg;

	if (r->number == size - 1)
		EQUAL(rmaext_network_barrier_meet(r->barrier, 9,
						  (unsigned int)r->number,
						  SLICE, &r->met),
		      RMAEXT_PENDING);
	return asks(arg);
}

static void hear_what_was_lost(void)
{
	ranks_open(4, 2, true);
	together(is_deaf);
	ranks_close();
}

/*
 * -- words that come while a rank makes sure that it may sleep
 *
 * The transport's `arm` moves data: nothing else tells of what was there
 * before.
 */

static struct rmx_transport late_transport;
static const struct rmx_transport *own_transport;
static atomic_int to_sleep; /* 1: rank 0 will, 2: the words may come */
static int64_t to_sleep_since;

static bool late_arm(struct rmaext_fabric *fabric)
{
	/* it spins, and yields, for 5 ms before */
	const bool dozes = rmx_now() > to_sleep_since + SLICE / 10;
	int was = 1;

	if (dozes && atomic_compare_exchange_strong(&to_sleep, &was, 2))
		nap(0.02);
	return own_transport->arm(fabric);
}

/* A slice lasts 100 ms, which pass if a rank sleeps beside its words. */
static void *hears_late(void *arg)
{
	struct rank *r = arg;
	const int64_t begin = rmx_now();
	int64_t least = SECOND;
	uint64_t step = 1;

	for (int round = 0; round < 5; round++, step++) {
		OK(meet(r, step++, 0)); /* all are connected, and awake */
		if (r->number) {
			while (atomic_load(&to_sleep) != 2)
				CHECK(rmx_now() < begin + 10 * SECOND);
			OK(meet(r, step, 0));
			continue;
		}
		to_sleep_since = rmx_now();
		atomic_store(&to_sleep, 1);
		if (rmaext_network_barrier_meet(r->barrier, step, 0, SECOND,
						&r->met))
			OK(meet(r, step, 0));
		if (rmx_now() - to_sleep_since < least)
			least = rmx_now() - to_sleep_since;
		atomic_store(&to_sleep, 0);
	}
	CHECK(r->number || least < 75000000);
	return NULL;
}

static void hear_late(void)
{
	struct rmaext_fabric *fabric;

	ranks_open(2, 0, false);
	fabric = ranks[0].fabric;
	if (fabric->progress.cq_fd >= 0) {
		own_transport = fabric->transport;
		late_transport = *own_transport;
		late_transport.arm = late_arm;
		fabric->transport = &late_transport;
		together(hears_late);
		fabric->transport = own_transport;
	}
	ranks_close();
}

const struct test tests[] = {
	{"two_ranks", meet_by_two, NULL, NULL},
	{"three_ranks", meet_by_three, NULL, NULL},
	{"five_ranks", meet_by_five, NULL, NULL},
	{"no_completions", meet_without_completions, NULL, NULL},
	{"others_meet", others_meet, NULL, NULL},
	{"lost_words", hear_what_was_lost, NULL, NULL},
	{"late_words", hear_late, NULL, NULL},
	{0},
};
