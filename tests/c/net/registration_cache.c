/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Local memory over a provider that demands FI_MR_LOCAL and refuses what no
 * registration covers: the one of tests/provider/demand.
 */
#include "rig.h"

#include <pthread.h>
#include <sys/mman.h>

#define LONG ((size_t)1 << 20) /* bytes of an origin */

static struct rmaext_stats stats_of(const struct rig *r)
{
	struct rmaext_stats stats;

	rmaext_fabric_stats(r->origin, &stats);
	return stats;
}

/* Registrations that there are, since `before`. */
static long long more(const struct rig *r, const struct rmaext_stats *before)
{
	const struct rmaext_stats now = stats_of(r);

	return (long long)(now.registrations - now.deregistrations) -
	       (long long)(before->registrations - before->deregistrations);
}

static char *buffer(unsigned int seed)
{
	char *it = malloc(LONG);

	CHECK(it);
	fill(it, LONG, seed);
	return it;
}

static void rig_with(struct rig *r, uint64_t count)
{
	char *first = buffer(1);

	cache_count = count;
	rig_open(r, (struct rig_options){.size = 2 * LONG, .served = true});
	/* once, what is copied goes through memory that is then registered */
	OK(put(r->window, 0, first, LONG));
	OK(flush(r->window));
	free(first);
}

/* Without pages that are there, the provider refuses in that mode. */
static bool has_pages(void)
{
	return !strstr(getenv("DEMAND_MODE"), "verbs") || can_populate();
}

static void known(void)
{
	struct rmaext_stats before, after;
	char *a = buffer(2), *out = malloc(LONG);
	uint64_t token, other;
	struct rig r;

	CHECK(out);
	if (!has_pages())
		return;
	rig_with(&r, 8);
	before = stats_of(&r);
	EQUAL(rmaext_origin_know(r.origin, a, 0, 0, &token), -FI_EINVAL);
	EQUAL(rmaext_origin_know(r.origin, a, UINT64_MAX, 0, &token),
	      -FI_EINVAL);
	OK(rmaext_origin_know(r.origin, a, LONG, 0, &token));
	OK(rmaext_origin_know(r.origin, out, LONG, 0, &other));
	CHECK(token && other && token != other);
	EQUAL(more(&r, &before), 0); /* on first use */
	for (int i = 0; i < 3; i++) {
		OK(put(r.window, 0, a, LONG));
		OK(flush(r.window));
		OK(put(r.window, LONG, a + 70000, 90000)); /* a part of it */
		OK(get(r.window, 0, out, LONG));
		CHECK(!memcmp(out, a, LONG));
	}
	after = stats_of(&r);
	EQUAL(after.registrations - before.registrations, 2);
	EQUAL(after.misses - before.misses, 2);
	EQUAL(after.hits - before.hits, 7);
	/* from here on it is not found, whatever lies there */
	rmaext_origin_forget(r.origin, token);
	rmaext_origin_forget(r.origin, token);
	rmaext_origin_forget(r.origin, 0);
	EQUAL(more(&r, &before), 1);
	OK(put(r.window, 0, a, LONG));
	after = stats_of(&r);
	EQUAL(after.registrations - before.registrations, 3);
	EQUAL(more(&r, &before), 1);
	/* beyond its end: not found, though it begins in known memory */
	rmaext_origin_forget(r.origin, other);
	OK(rmaext_origin_know(r.origin, a, LONG - 1, 0, &token));
	OK(put(r.window, 0, a, LONG));
	EQUAL(more(&r, &before), 0);
	OK(flush(r.window));
	rig_close(&r); /* and with it what is known */
	free(a);
	free(out);
}

/* The least recently used gives way, unless it is pinned. */
static void limits(void)
{
	struct rmaext_stats before, after;
	uint64_t tokens[4];
	char *at[4];
	struct rig r;

	rig_with(&r, 2);
	before = stats_of(&r);
	for (unsigned int i = 0; i < COUNT(at); i++) {
		at[i] = buffer(i);
		OK(rmaext_origin_know(r.origin, at[i], LONG, i == 0,
				      &tokens[i]));
	}
	for (unsigned int i = 0; i < COUNT(at); i++) {
		OK(put(r.window, 0, at[i], LONG));
		OK(flush(r.window));
		CHECK(!memcmp(r.window_memory, at[i], LONG));
		EQUAL(more(&r, &before), i ? 2 : 1);
	}
	OK(put(r.window, 0, at[0], LONG));
	OK(put(r.window, 0, at[3], LONG));
	after = stats_of(&r);
	EQUAL(after.hits - before.hits, 2);
	EQUAL(after.evictions - before.evictions, 2);
	for (unsigned int i = 0; i < COUNT(at); i++) {
		rmaext_origin_forget(r.origin, tokens[i]);
		free(at[i]);
	}
	EQUAL(more(&r, &before), 0);
	OK(flush(r.window)); /* the copied ends of the puts are on their way */
	rig_close(&r);
}

/* Memory goes, and other memory comes to the same address. */
static void same_address(void)
{
	struct rmaext_stats before;
	const int rights = PROT_READ | PROT_WRITE;
	char *at = NULL;
	uint64_t token;
	struct rig r;

	if (!has_pages())
		return;
	rig_with(&r, 8);
	before = stats_of(&r);
	for (unsigned int i = 0; i < 5; i++) {
		at = mmap(at, LONG, rights,
			  MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0),
			  -1, 0);
		CHECK(at != MAP_FAILED);
		fill(at, LONG, i);
		OK(rmaext_origin_know(r.origin, at, LONG, 0, &token));
		OK(put(r.window, 0, at, LONG));
		OK(flush(r.window));
		CHECK(!memcmp(r.window_memory, at, LONG));
		EQUAL(more(&r, &before), 1);
		rmaext_origin_forget(r.origin, token);
		EQUAL(more(&r, &before), 0);
	}
	munmap(at, LONG);
	rig_close(&r);
}

/* All kinds of operations, of memory that nobody has told of. */
static void unknown(void)
{
	static const size_t lengths[] = {1, 1000, 1025, 32768, 32769, LONG};
	char *in = buffer(3), *out = malloc(LONG + 1);
	struct rmaext_stats before;
	struct rig r;

	CHECK(out);
	if (!has_pages())
		return;
	rig_with(&r, 8);
	/* the first turn registers what messages go through */
	for (size_t i = 0; i < 2 * COUNT(lengths); i++) {
		const size_t len = lengths[i % COUNT(lengths)];
		struct rmaext_call call = {
			.kind = RMAEXT_PUT, .operand = in, .count = len};
		rmaext_op *op = NULL;
		int ended = 0;

		if (i == COUNT(lengths))
			before = stats_of(&r);
		OK(put(r.window, 0, in, len));
		OK(flush(r.window));
		CHECK(!memcmp(r.window_memory, in, len));
		memset(out, 7, len + 1);
		OK(get(r.window, 0, out, len));
		CHECK(!memcmp(out, in, len));
		EQUAL(out[len], 7);
		/* requests */
		memset(r.window_memory, 0, len);
		call.ended = &ended;
		EQUAL(rmaext_start(r.window, &call, &op), RMAEXT_PENDING);
		OK(finish(RMAEXT_PENDING, &op));
		CHECK(!memcmp(r.window_memory, in, len));
		memset(out, 7, len + 1);
		call.kind = RMAEXT_GET;
		call.result = out;
		EQUAL(rmaext_start(r.window, &call, &op), RMAEXT_PENDING);
		OK(finish(RMAEXT_PENDING, &op));
		CHECK(!memcmp(out, in, len));
		EQUAL(out[len], 7);
		/* messages, in part longer than one; they add nothing */
		memset(out, 0, len);
		OK(update(r.window, 0, RMAEXT_BOR, RMAEXT_UINT8, out, NULL,
			  len));
		OK(update(r.window, 0, RMAEXT_BOR, RMAEXT_UINT8, in, out, len));
		CHECK(!memcmp(out, in, len));
	}
	/* landings for messages come as they are needed, and stay */
	CHECK(more(&r, &before) <= 4);
	EQUAL(stats_of(&r).misses - before.misses, 13);
	EQUAL(stats_of(&r).hits, before.hits);
	rig_close(&r);
	free(in);
	free(out);
}

struct worker {
	struct rig *rig;
	char *shared;
	unsigned int seed;
	pthread_t thread;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	char *own = buffer(w->seed), *out = malloc(LONG);
	uint64_t token = 0;

	CHECK(out);
	for (unsigned int i = 0; i < 30; i++) {
		const size_t len = 40000 + 7000 * (i + w->seed);

		if (i % 3 == 0) {
			rmaext_origin_forget(w->rig->origin, token);
			OK(rmaext_origin_know(w->rig->origin, own, LONG, 0,
					      &token));
		}
		OK(put(w->rig->window, 0, w->shared, len));
		OK(put(w->rig->window, LONG, own, len));
		OK(get(w->rig->window, 0, out, len));
		CHECK(!memcmp(out, w->shared, len));
	}
	rmaext_origin_forget(w->rig->origin, token);
	OK(flush(w->rig->window));
	free(own);
	free(out);
	return NULL;
}

/* Several look for memory, register it and push out that of others. */
static void threads(void)
{
	struct worker workers[4];
	char *shared = buffer(9);
	uint64_t token;
	struct rig r;

	if (!has_pages())
		return;
	rig_with(&r, 3);
	OK(put(r.window, 0, shared, LONG));
	OK(rmaext_origin_know(r.origin, shared, LONG, 0, &token));
	for (unsigned int i = 0; i < COUNT(workers); i++) {
		workers[i] = (struct worker){&r, shared, i, 0};
		OK(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (unsigned int i = 0; i < COUNT(workers); i++)
		pthread_join(workers[i].thread, NULL);
	CHECK(stats_of(&r).hits > 0);
	rig_close(&r);
	free(shared);
}

static void not_demanded(void)
{
	uint64_t token = 7;
	char *a = buffer(1);
	struct rig r;

	rig_with(&r, 8);
	OK(rmaext_origin_know(r.origin, a, LONG, 0, &token));
	EQUAL(token, 0);
	OK(put(r.window, 0, a, LONG));
	OK(flush(r.window));
	EQUAL(stats_of(&r).registrations, 1);
	EQUAL(stats_of(&r).misses, 0);
	rig_close(&r);
	free(a);
}

/* It keeps what was posted on an endpoint until the process ends. */
#define DEMAND(mode)                                                           \
	"FI_PROVIDER_PATH=build/provider DEMAND_REPORT=build/provider/origin " \
	"ASAN_OPTIONS=detect_leaks=0 DEMAND_MODE=" mode

/* The event of a registration that was given up is no news of the next one. */
static void late_event(void)
{
	const struct rig_options o = {.size = 4096};
	rmaext_memory *first, *none = NULL;
	rmaext_window *w;
	struct rig r;

	rig_open(&r, o);
	first = r.memory;
	setenv("DEMAND_FAULT", "eq_read:*:EIO", 1);
	EQUAL(memory_register(r.target, r.window_memory, r.size, 3, 5, &none),
	      -FI_EIO);
	unsetenv("DEMAND_FAULT");
	nap(0.1);
	OK(memory_register(r.target, r.window_memory, r.size, 3, 6, &r.memory));
	r.key_len = sizeof(r.key);
	OK(rmaext_memory_key(r.memory, r.key, &r.key_len));
	rig_window(&r, &o, &w);
	OK(put(w, 0, "12345678", 8));
	OK(flush(w));
	CHECK(!memcmp(r.window_memory, "12345678", 8));
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	OK(rmaext_memory_close(&first));
	rig_close(&r);
}

const struct test tests[] = {
	{"known", known, DEMAND("verbs"), "demand"},
	{"known_endpoint", known, DEMAND("local+endpoint+async"), "demand"},
	{"limits", limits, DEMAND("local"), "demand"},
	{"same_address", same_address, DEMAND("verbs"), "demand"},
	{"unknown", unknown, DEMAND("verbs+mmu_notify"), "demand"},
	{"unknown_short_keys", unknown, DEMAND("local DEMAND_KEY_SIZE=2"),
	 "demand"},
	{"threads", threads, DEMAND("verbs"), "demand"},
	{"late_event", late_event, DEMAND("async DEMAND_ASYNC_US=50000"),
	 "demand"},
	{"not_demanded", not_demanded, NULL, NULL},
	{0},
};
