/* SPDX-License-Identifier: BSD-3-Clause */
/* put, get and flush: sizes, places, refusals, errors. */
#include "rig.h"

static const size_t sizes[] = {
	1,
	2,
	7,
	8,
	63,
	64,
	65,
	4095,
	4096,
	16383,
	32767,
	32768,
	32769,
	65537,
	1 << 20,
	(4 << 20) - 1,
	4 << 20,
	(4 << 20) + 1,
	(9 << 20) + 13,
};

static void move(bool direct)
{
	const size_t size = (9 << 20) + 100;
	char *in = malloc(size), *out = malloc(size + 2 * GUARD);
	struct rig r;

	CHECK(in && out);
	rig_open(&r, (struct rig_options){.size = size, .direct = direct});
	for (size_t i = 0; i < COUNT(sizes); i++) {
		const size_t n = sizes[i];
		const size_t places[] = {0, (size - n) / 2 | 1, size - n};

		for (size_t j = 0; j < COUNT(places); j++) {
			const size_t at = places[j];
			char *start = r.window_memory + at;

			memset(r.window_memory, 0x11, size);
			fill(in, n, (unsigned int)(i + j));
			OK(put(r.window, at, in, n));
			if (n <= 1 << 20) /* it may be reused at once */
				memset(in, 0, n);
			OK(flush(r.window));
			fill(in, n, (unsigned int)(i + j));
			CHECK(!memcmp(start, in, n));
			CHECK(!at || start[-1] == 0x11);
			CHECK(at + n == size || start[n] == 0x11);

			fill(start, n, (unsigned int)(i + j + 50));
			memset(out, 0x22, n + 2 * GUARD);
			OK(get(r.window, at, out + GUARD, n));
			CHECK(!memcmp(out + GUARD, start, n));
			for (size_t k = 0; k < GUARD; k++) {
				EQUAL(out[k], 0x22);
				EQUAL(out[GUARD + n + k], 0x22);
			}
		}
		rig_guards(&r);
	}
	rig_close(&r);
	free(in);
	free(out);
}

static void by_network(void)
{
	move(false);
}

static void by_memory(void)
{
	move(true);
}

/* All operations there give this code, send nothing and change nothing. */
static void refuse(struct rig *r, int64_t rank, uint64_t at, uint64_t n,
		   int code)
{
	char *before = malloc(r->size), buf[64], same[64];
	struct rmaext_stats first, last;
	struct rmaext_error e;
	rmaext_op *op = NULL;

	CHECK(before && n % 8 == 0);
	memcpy(before, r->window_memory, r->size);
	memset(buf, 0x3c, sizeof(buf));
	memset(same, 0x3c, sizeof(same));
	rmaext_fabric_stats(r->origin, &first);
	EQUAL(put_begin(r->window, rank, at, buf, n, &op), code);
	EQUAL(op, NULL);
	rmaext_error_last(&e);
	EQUAL(e.code, code);
	CHECK(!strcmp(e.call, "put") && *e.detail);
	EQUAL(e.rank, code == -FI_ESHUTDOWN ? -1 : rank);
	EQUAL(get_begin(r->window, rank, at, buf, n, &op), code);
	EQUAL(op, NULL);
	EQUAL(update_begin(r->window, rank, at, RMAEXT_SUM, RMAEXT_UINT64, same,
			   NULL, buf, n / 8, &op),
	      code);
	EQUAL(op, NULL);
	EQUAL(update_begin(r->window, rank, at, RMAEXT_CSWAP, RMAEXT_UINT64,
			   same, same, buf, n / 8, &op),
	      code);
	EQUAL(op, NULL);
	rmaext_fabric_stats(r->origin, &last);
	EQUAL(last.posted, first.posted);
	CHECK(!memcmp(before, r->window_memory, r->size));
	CHECK(!memcmp(buf, same, sizeof(buf)));
	rig_guards(r);
	free(before);
}

static void next_works(struct rig *r)
{
	uint64_t value = 0x0123456789abcdef, is = 0;

	OK(put(r->window, 8, &value, 8));
	OK(flush(r->window));
	CHECK(!memcmp(r->window_memory + 8, &value, 8));
	OK(get(r->window, 8, &is, 8));
	EQUAL(is, value);
}

static void rights(struct rig *r, struct rig_options o)
{
	rmaext_window *whole = r->window, *w;
	uint64_t word = 5, kept = 6;

	memcpy(r->window_memory, &kept, 8);
	o.access = RMAEXT_READ;
	rig_window(r, &o, &w);
	EQUAL(put(w, 0, &word, 8), -FI_EACCES);
	EQUAL(fetch_add(w, 0, RMAEXT_UINT64, &word, &word, 1), -FI_EACCES);
	EQUAL(swap(w, 0, RMAEXT_UINT64, &kept, &word, &word, 1), -FI_EACCES);
	OK(flush(w));
	EQUAL(word, 5);
	OK(get(w, 0, &word, 8));
	EQUAL(word, 6);
	OK(rmaext_window_close(w));
	rmaext_window_free(w);

	o.access = RMAEXT_WRITE;
	rig_window(r, &o, &w);
	EQUAL(get(w, 0, &kept, 8), -FI_EACCES);
	EQUAL(fetch_add(w, 0, RMAEXT_UINT64, &kept, &kept, 1), -FI_EACCES);
	EQUAL(kept, 6);
	word = 7;
	OK(put(w, 0, &word, 8));
	OK(flush(w));
	EQUAL(*r->window_memory, 7);
	OK(rmaext_window_close(w));
	r->window = w;
	refuse(r, 0, 0, 8, -FI_ESHUTDOWN);
	EQUAL(flush(w), -FI_ESHUTDOWN);
	rmaext_window_free(w);
	r->window = whole;
	next_works(r);
}

static void refusals_of(bool direct)
{
	static const uint64_t top = (uint64_t)1 << 63;
	struct rig_options o = {.size = 4096, .direct = direct};
	struct rmaext_wait wait = {.timeout = SECOND};
	uint64_t word = 5;
	rmaext_op *op;
	struct rig r;

	rig_open(&r, o);
	refuse(&r, 1, 0, 8, -ERANGE);
	refuse(&r, -1, 0, 8, -ERANGE);
	refuse(&r, INT64_MAX, 0, 8, -ERANGE);
	refuse(&r, INT64_MIN, 0, 8, -ERANGE);
	next_works(&r);
	refuse(&r, 0, 4089, 8, -ERANGE);
	refuse(&r, 0, 4097, 0, -ERANGE);
	refuse(&r, 0, 0, 4104, -ERANGE);
	refuse(&r, 0, UINT64_MAX, 8, -ERANGE);
	refuse(&r, 0, UINT64_MAX - 7, 8, -ERANGE);
	refuse(&r, 0, 8, UINT64_MAX - 7, -ERANGE);
	refuse(&r, 0, top, top, -ERANGE);
	next_works(&r);
	/* nothing, at the end, is allowed */
	OK(put(r.window, 4096, NULL, 0));
	OK(get(r.window, 4096, NULL, 0));
	OK(fetch_add(r.window, 4096, RMAEXT_INT8, NULL, NULL, 0));
	EQUAL(rmaext_flush(r.window, 1, &wait), -ERANGE);
	EQUAL(update_begin(r.window, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, &word,
			   NULL, &word, (uint64_t)1 << 61, &op),
	      -FI_EINVAL);
	EQUAL(op, NULL);
	next_works(&r);
	rights(&r, o);
	rig_close(&r);
}

static void refusals(void)
{
	refusals_of(false);
}

static void refusals_by_memory(void)
{
	refusals_of(true);
}

/* More puts than slots, none waited for but by the flush. */
static void in_flight(void)
{
	enum { N = 6000, WORDS = 18 }; /* too long to join others */
	struct rmaext_stats stats;
	uint32_t *values = malloc(N * WORDS * sizeof(*values));
	struct rig r;

	CHECK(values);
	rig_open(&r, (struct rig_options){.size = N * WORDS * 4, .two = true});
	for (unsigned int round = 1; round < 5; round++) {
		for (unsigned int i = 0; i < N; i++) {
			for (unsigned int k = 0; k < WORDS; k++)
				values[i * WORDS + k] = i * round + k;
			OK(put(r.window, i * WORDS * 4, &values[i * WORDS],
			       WORDS * 4));
		}
		OK(round % 2 ? flush(r.window) : flush_for(r.window, 0, 10));
		CHECK(!memcmp(r.window_memory, values, N * WORDS * 4));
		rmaext_fabric_stats(r.origin, &stats);
		EQUAL(stats.posted, round * N);
		EQUAL(stats.completed, round * N);
		EQUAL(stats.failed, 0);
	}
	rig_close(&r);
	free(values);
}

/*
 * A target that refuses what the origin let pass: the error reaches the caller
 * or, for a put that nobody waits for, the next flush, once.
 */
static void wrong_key(void)
{
	struct rig_options wrong = {.wrong_key = true, .timeout = 3};
	struct rmaext_error e;
	rmaext_window *w;
	uint64_t word = 5;
	struct rig r;
	int ret;

	rig_open(&r, (struct rig_options){.size = 1 << 20, .two = true});
	next_works(&r);
	rig_window(&r, &wrong, &w);
	ret = put(w, 0, &word, 8);
	if (!ret) {
		ret = flush_for(w, -1, 3);
		rmaext_error_last(&e);
		CHECK(e.code == ret && e.rank == 0 && *e.detail);
		printf("\tput: %s: %s (%d)\n", e.call, e.detail, ret);
	}
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	EQUAL(*r.window_memory, 0);
	OK(flush(w)); /* reported once */
	ret = get(w, 0, &word, 8);
	rmaext_error_last(&e);
	CHECK(ret < 0 && ret != -FI_ETIMEDOUT);
	printf("\tget: %s: %s (%d)\n", e.call, e.detail, ret);
	EQUAL(word, 5);
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
	/* the connection may have gone with it; it must come back */
	for (int64_t end = now() + 10 * SECOND; now() < end;) {
		if (!put(r.window, 0, "abcdefgh", 8) && !flush(r.window) &&
		    !get(r.window, 0, &word, 8))
			break;
		nap(0.02);
	}
	CHECK(!memcmp(r.window_memory, "abcdefgh", 8));
	CHECK(!memcmp(&word, "abcdefgh", 8));
	rig_guards(&r);
	rig_close(&r);
}

const struct test tests[] = {
	{"by_network", by_network, NULL, NULL},
	{"by_memory", by_memory, NULL, NULL},
	{"refusals", refusals, NULL, NULL},
	{"refusals_by_memory", refusals_by_memory, NULL, NULL},
	{"in_flight", in_flight, NULL, NULL},
	{"wrong_key", wrong_key, NULL, NULL},
	{0},
};
