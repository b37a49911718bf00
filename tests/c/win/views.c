/* SPDX-License-Identifier: BSD-3-Clause */
/* Views of a window, and windows with memory that comes and goes. */
#include "rig.h"

#include <pthread.h>
#include <stdatomic.h>

#define FOREVER ((int64_t)10 * SECOND)

static const uint64_t zero;

static rmaext_window *view_of(rmaext_window *w, uint64_t first, uint64_t stride,
			      uint64_t size, int access)
{
	const struct rmaext_view what = {first, stride, &size,
					 0,	access, FOREVER};
	rmaext_window *view = NULL;

	OK(rmaext_window_view(w, &what, &view));
	CHECK(view);
	return view;
}

static int many(rmaext_window *w, int kind, uint64_t n, const int64_t *offsets,
		const void *values, void *results)
{
	const int64_t rank = 0;
	struct many_state state;
	int ret = many_begin(w, kind, RMAEXT_SUM, RMAEXT_UINT64, 8, n,
			     RMAEXT_ONE_RANK, &rank, offsets, values, results,
			     &state);

	while (ret == RMAEXT_PENDING)
		ret = many_wait(&state);
	many_release(&state);
	return ret;
}

/* -- views */

static void look(bool direct)
{
	const int both = RMAEXT_READ | RMAEXT_WRITE;
	const size_t big = 1 << 20, size = big + 1000;
	char *in = malloc(big), *out = malloc(big);
	rmaext_window *view, *inner, *reader;
	const uint64_t one = 1;
	uint64_t word = 0;
	struct rig r;

	CHECK(in && out);
	rig_open(&r, (struct rig_options){.size = size, .direct = direct});
	view = view_of(r.window, 104, 0, big, both);
	inner = view_of(view, 800, 0, 64, both);
	reader = view_of(inner, 0, 0, 64, RMAEXT_READ);
	for (size_t n = 1; n <= big; n = 3 * n + 1) {
		memset(r.window_memory, 0x11, size);
		fill(in, n, (unsigned int)n);
		OK(put(view, big - n, in, n));
		OK(flush(n % 2 ? view : r.window));
		CHECK(!memcmp(r.window_memory + 104 + big - n, in, n));
		EQUAL(r.window_memory[104 + big - n - 1], 0x11);
		EQUAL(r.window_memory[104 + big], 0x11);
		OK(get(view, big - n, out, n));
		CHECK(!memcmp(in, out, n));
	}
	memset(r.window_memory, 0, size);
	OK(fetch_add(inner, 8, RMAEXT_UINT64, &one, &word, 1));
	EQUAL(word, 0);
	OK(swap(inner, 8, RMAEXT_UINT64, &one, &one, &word, 1));
	EQUAL(word, 1);
	OK(fetch_add(r.window, 912, RMAEXT_UINT64, &one, &word, 1));
	EQUAL(word, 1);
	OK(get(reader, 8, &word, 8));
	EQUAL(word, 2);

	EQUAL(put(view, big - 7, in, 8), -ERANGE);
	EQUAL(get(inner, 64, out, 1), -ERANGE);
	EQUAL(get(inner, UINT64_MAX - 100, out, 1), -ERANGE);
	EQUAL(put(reader, 0, in, 1), -FI_EACCES);
	EQUAL(fetch_add(reader, 0, RMAEXT_UINT64, &one, &word, 1), -FI_EACCES);
	EQUAL(fetch_add(view, 4, RMAEXT_UINT64, &one, &word, 1), -FI_EFAULT);
	OK(get(inner, 8, &word, 8));
	EQUAL(word, 2);

	/* in any order; the window first, too */
	OK(rmaext_window_close(reader));
	EQUAL(get(reader, 0, out, 1), -FI_ESHUTDOWN);
	rmaext_window_free(reader);
	OK(rmaext_window_shut(inner));
	EQUAL(get(inner, 0, out, 1), -FI_ESHUTDOWN);
	OK(rmaext_window_close(r.window));
	EQUAL(get(view, 0, out, 1), -FI_ESHUTDOWN);
	EQUAL(flush(view), -FI_ESHUTDOWN);
	rmaext_window_free(inner);
	rmaext_window_free(r.window);
	rmaext_window_free(view);
	rig_window(&r, &(struct rig_options){.direct = direct}, &r.window);
	rig_close(&r);
	free(in);
	free(out);
}

static void by_network(void)
{
	look(false);
}

static void by_memory(void)
{
	look(true);
}

static void refusals(void)
{
	const uint64_t firsts[] = {0, 1, 100, 101, UINT64_MAX};
	const uint64_t sizes[] = {101, 100, 1, 1, 2};
	struct rmaext_view what = {.access = RMAEXT_READ, .timeout = FOREVER};
	rmaext_window *view = NULL;
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 100, .direct = true});
	for (size_t i = 0; i < COUNT(firsts); i++) {
		what.first = firsts[i];
		what.size = &sizes[i];
		EQUAL(rmaext_window_view(r.window, &what, &view), -ERANGE);
		EQUAL(view, NULL);
	}
	what.size = &zero;
	OK(rmaext_window_view(r.window, &what, &view));
	EQUAL(get(view, 0, &what, 1), -ERANGE);
	OK(rmaext_window_close(r.window));
	EQUAL(rmaext_window_view(r.window, &what, &view), -FI_ESHUTDOWN);
	rmaext_window_free(view);
	rmaext_window_free(r.window);
	r.window = NULL;
	rig_close(&r);
}

/* Words that lie 24 bytes apart, from byte 8 on. */
static void strides(void)
{
	const int64_t offsets[] = {0, 3, 9, 3}, wrong[] = {0, 10};
	uint64_t values[] = {1, 2, 3, 4}, got[4] = {0};
	rmaext_window *view, *odd;
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 240, .direct = true});
	view = view_of(r.window, 8, 24, 232, RMAEXT_READ | RMAEXT_WRITE);
	odd = view_of(r.window, 8, 20, 232, RMAEXT_READ | RMAEXT_WRITE);
	OK(many(view, RMAEXT_PUT, 4, offsets, values, NULL));
	OK(many(view, RMAEXT_UPDATE, 4, offsets, values, NULL));
	OK(many(view, RMAEXT_GET, 4, offsets, NULL, got));
	EQUAL(got[0], 2);
	EQUAL(got[1], 10);
	EQUAL(got[2], 6);
	for (size_t at = 0; at < 240; at += 8) {
		memcpy(got, r.window_memory + at, 8);
		EQUAL(got[0], at == 8 ? 2 : at == 80 ? 10 : at == 224 ? 6 : 0);
	}
	EQUAL(many(view, RMAEXT_PUT, 2, wrong, values, NULL), -ERANGE);
	EQUAL(many(odd, RMAEXT_UPDATE, 1, offsets, values, NULL), -FI_EFAULT);
	OK(many(odd, RMAEXT_GET, 4, offsets, NULL, got));
	rmaext_window_free(view);
	rmaext_window_free(odd);
	rig_close(&r);
}

/* -- threads that make views, and use them, until the window is closed */

static atomic_bool stop;

static void *viewer(void *arg)
{
	const int both = RMAEXT_READ | RMAEXT_WRITE;
	const uint64_t size = 512, one = 1;
	const struct rmaext_view what = {64, 0, &size, 0, both, FOREVER};
	rmaext_window *w = arg, *view;
	char buf[512] = {0};
	uint64_t word;
	int ret;

	for (;;) {
		if (rmaext_window_view(w, &what, &view))
			return NULL;
		ret = put(view, 0, buf, 8);
		if (!ret)
			ret = get(view, 256, buf, 256);
		if (!ret)
			ret = fetch_add(view, 16, RMAEXT_UINT64, &one, &word,
					1);
		if (!ret)
			ret = flush(view);
		if (ret)
			EQUAL(ret, -FI_ESHUTDOWN);
		OK(rmaext_window_close(view));
		rmaext_window_free(view);
	}
}

static void close_under_views(void)
{
	enum { THREADS = 3 };
	pthread_t threads[THREADS];
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 1024});
	for (int round = 0; round < 5; round++) {
		const int64_t end = now() + 5 * SECOND;

		for (int i = 0; i < THREADS; i++)
			OK(pthread_create(&threads[i], NULL, viewer, r.window));
		nap(0.02);
		while (rmaext_window_close(r.window) == -FI_EBUSY)
			CHECK(now() < end);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		rmaext_window_free(r.window);
		rig_window(&r, &(struct rig_options){0}, &r.window);
	}
	rig_close(&r);
}

/* -- memory that comes and goes */

static void dynamic_window(struct rig *r, rmaext_window **window_p)
{
	static const uint8_t token[16] = "of this window";
	const uint64_t size = INT64_MAX, base = 0, key = 0;
	const uint8_t access = RMAEXT_READ | RMAEXT_WRITE, align = 0;
	const uint8_t route = RMAEXT_FABRIC;
	const struct ranks targets = {
		.count = 1,
		.token = token,
		.peer = &r->peer,
		.size = &size,
		.base = &base,
		.access = &access,
		.align = &align,
		.route = &route,
		.keys = (const uint8_t *)&key,
		.key_len = sizeof(key),
		.dynamic = 1,
	};

	OK(window_new(r->origin, &targets, FOREVER, window_p));
}

static int64_t place(const void *at)
{
	return (int64_t)((uintptr_t)at / 8);
}

static void attach(void)
{
	static uint64_t pool[64];
	uint64_t values[] = {5, 6}, got[2] = {0}, *array = &pool[16];
	int64_t at[2] = {place(array), place(array + 7)};
	rmaext_window *w;
	struct rig r;

	rig_open(&r, (struct rig_options){.size = 64});
	dynamic_window(&r, &w);
	EQUAL(many(w, RMAEXT_PUT, 2, at, values, NULL), -ERANGE);
	OK(rmaext_attach(w, array, 64));
	EQUAL(rmaext_attach(w, array, 64), -EEXIST);
	EQUAL(rmaext_attach(w, array - 1, 9), -EEXIST);
	EQUAL(rmaext_attach(w, array + 7, 64), -EEXIST);
	EQUAL(rmaext_attach(w, pool, sizeof(pool)), -EEXIST);
	EQUAL(rmaext_attach(w, array + 3, 8), -EEXIST);
	EQUAL(rmaext_attach(w, array, 0), -FI_EINVAL);
	EQUAL(rmaext_detach(w, array, 63), -ENXIO);
	EQUAL(rmaext_detach(w, array + 1, 8), -ENXIO);
	EQUAL(rmaext_detach(w, pool, 8), -ENXIO);
	OK(many(w, RMAEXT_PUT, 2, at, values, NULL));
	OK(many(w, RMAEXT_UPDATE, 2, at, values, got));
	EQUAL(got[0], 5);
	EQUAL(got[1], 6);
	EQUAL(array[0], 10);
	EQUAL(array[7], 12);
	at[1]++;
	EQUAL(many(w, RMAEXT_PUT, 2, at, values, NULL), -ERANGE);
	EQUAL(array[0], 10); /* none of them */
	EQUAL(array[8], 0);
	OK(rmaext_attach(w, array + 8, 64));
	OK(many(w, RMAEXT_PUT, 2, at, values, NULL));
	EQUAL(array[8], 6);
	OK(rmaext_detach(w, array, 64));
	EQUAL(array[0], 5);
	EQUAL(many(w, RMAEXT_GET, 2, at, NULL, got), -ERANGE);
	OK(many(w, RMAEXT_GET, 1, &at[1], NULL, got));
	EQUAL(got[0], 6);
	/* by one message each; what is refused takes nothing else with it */
	OK(put(w, (uintptr_t)(array + 9), values, 8));
	OK(put(w, (uintptr_t)array, values, 8));
	OK(put(w, (uintptr_t)(array + 10), values, 8));
	EQUAL(flush(w), -ERANGE);
	OK(flush(w));
	EQUAL(array[0], 5);
	EQUAL(array[9], 5);
	EQUAL(array[10], 5);
	OK(swap(w, (uintptr_t)(array + 9), RMAEXT_UINT64, values, values + 1,
		got, 1));
	EQUAL(got[0], 5);
	EQUAL(array[9], 6);
	EQUAL(swap(w, (uintptr_t)array, RMAEXT_UINT64, values, values + 1, got,
		   1),
	      -ERANGE);
	EQUAL(get(w, (uintptr_t)(array + 8), got, 8), -FI_EOPNOTSUPP);
	/* many, in no order */
	for (size_t i = 0; i < 60; i += 2)
		OK(rmaext_attach(w, &((char *)pool)[i * 37 % 60 / 2 * 4], 4));
	OK(rmaext_window_close(w));
	EQUAL(rmaext_attach(w, pool, 8), -FI_ESHUTDOWN);
	rmaext_window_free(w);
	EQUAL(rmaext_attach(r.window, pool, 8), -FI_EINVAL);
	rig_close(&r);
}

static void *writer(void *arg)
{
	rmaext_window *w = ((void **)arg)[0];
	const int64_t at = place(((void **)arg)[1]);
	const uint64_t value = 7;
	int ret;

	while (!atomic_load(&stop)) {
		ret = many(w, RMAEXT_PUT, 1, &at, &value, NULL);
		if (ret)
			EQUAL(ret, -ERANGE);
	}
	return NULL;
}

/* What is detached may be freed at once. */
static void detach_under_fire(void)
{
	uint64_t *memory = aligned_alloc(64, 64), *const same = memory;
	rmaext_window *w;
	pthread_t thread;
	void *arg[2];
	struct rig r;

	CHECK(memory);
	rig_open(&r, (struct rig_options){.size = 64});
	dynamic_window(&r, &w);
	arg[0] = w;
	arg[1] = same;
	atomic_store(&stop, false);
	OK(pthread_create(&thread, NULL, writer, arg));
	for (int i = 0; i < 300; i++) {
		memset(memory, 0, 64);
		OK(rmaext_attach(w, memory, 64));
		while (i % 4 == 0 && !__atomic_load_n(memory, __ATOMIC_RELAXED))
			nap(1e-5);
		OK(rmaext_detach(w, memory, 64));
		memory[0] = 0;
		nap(1e-5);
		EQUAL(memory[0], 0);
	}
	free(memory);
	nap(0.01); /* of use under ASan */
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	rig_close(&r);
}

const struct test tests[] = {
	{"by_network", by_network, NULL, NULL},
	{"by_memory", by_memory, NULL, NULL},
	{"refusals", refusals, NULL, NULL},
	{"strides", strides, NULL, NULL},
	{"close_under_views", close_under_views, NULL, NULL},
	{"attach", attach, NULL, NULL},
	{"detach_under_fire", detach_under_fire, NULL, NULL},
	{0},
};
