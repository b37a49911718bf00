/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Layouts against a model that lists the place of each byte: made of others at
 * random, each has the model's bytes in its order, and what it says of itself.
 */
#include "check.h"
#include "dtype/layout.h"

enum { MOST = 4000, ROUNDS = 4000, DEEP = 8 };

/* The places of the bytes, in order. */
struct model {
	uint64_t count;
	int64_t place[MOST];
};

static uint32_t dice(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static int64_t some(uint32_t *seed)
{
	return (int64_t)(dice(seed) % 81) - 40;
}

static void model_add(struct model *m, const struct model *of, int64_t by)
{
	for (uint64_t i = 0; i < of->count; i++)
		m->place[m->count++] = of->place[i] + by;
}

/* What a walk finds is what the model has, element after element. */
static void walk_checks(const struct rmx_layout *l, const struct model *m)
{
	const struct rmx_side side = {l, 2, 2 * m->count};
	int64_t low = INT64_MAX, high = INT64_MIN, first, last;
	static char memory[1]; /* never touched: only its addresses count */
	struct rmx_walk w;

	EQUAL(l->bytes, m->count);
	for (uint64_t i = 0; i < m->count; i++) {
		low = m->place[i] < low ? m->place[i] : low;
		high = m->place[i] + 1 > high ? m->place[i] + 1 : high;
	}
	EQUAL(l->low, m->count ? low : 0);
	EQUAL(l->high, m->count ? high : 0);
	CHECK(rmx_side_span(&side, &first, &last));
	EQUAL(first, l->low + (l->extent < 0 ? l->extent : 0));
	EQUAL(last, l->high + (l->extent > 0 ? l->extent : 0));
	for (uint64_t i = 0; i < l->runs; i++) {
		CHECK(l->run[i].len > 0);
		EQUAL((uint64_t)l->run[i].len % l->grain, 0);
		CHECK(!i || l->run[i - 1].offset + l->run[i - 1].len !=
				    l->run[i].offset);
	}
	if (!m->count)
		return;
	rmx_walk_start(&w, &side, memory);
	for (uint64_t i = 0; i < 2 * m->count; i++) {
		const int64_t by = i < m->count ? 0 : l->extent;

		EQUAL((intptr_t)w.at - (intptr_t)memory,
		      m->place[i % m->count] + by);
		rmx_walk_on(&w, 1);
	}
}

/* All runs begin at distances that the grain divides. */
static void grain_checks(const struct rmx_layout *l)
{
	int why = 0;
	struct rmx_layout *flat = rmx_layout_flat(l, &why);

	CHECK(flat);
	EQUAL(flat->bytes, l->bytes);
	for (uint64_t i = 0; i < flat->runs; i++)
		EQUAL((flat->run[i].offset - l->run->offset) %
			      (int64_t)l->grain,
		      0);
	free(flat);
}

/* Puts `l` and its model into what is made of them. */
static struct rmx_layout *step(const struct rmx_layout *l,
			       const struct model *m, struct model *made,
			       uint32_t *seed)
{
	int64_t counts[4], places[4], by;
	uint64_t n;
	int why = 0;

	made->count = 0;
	switch (dice(seed) % 5) {
	case 0:
		n = dice(seed) % 4;
		by = dice(seed) % 3 ? some(seed) : l->extent;
		if (n * m->count > MOST)
			return NULL;
		for (uint64_t i = 0; i < n; i++)
			model_add(made, m, (int64_t)i * by);
		return rmx_layout_loop(l, (int64_t)n, by, &why);
	case 1:
		by = some(seed);
		model_add(made, m, by);
		return rmx_layout_shift(l, by, &why);
	case 2:
		n = m->count ? dice(seed) % (m->count + 2) : 0;
		model_add(made, m, 0);
		made->count = n < m->count ? n : m->count;
		return rmx_layout_head(l, n, &why);
	default:
		n = dice(seed) % 5;
		for (uint64_t i = 0; i < n; i++) {
			counts[i] =
				dice(seed) % 3 ? (int64_t)(dice(seed) % 4) : 2;
			places[i] = some(seed);
		}
		if (12 * m->count > MOST)
			return NULL;
		by = dice(seed) % 2;
		for (uint64_t i = 0; i < n; i++)
			for (int64_t k = 0; k < counts[by ? 0 : i]; k++)
				model_add(made, m, places[i] + k * l->extent);
		return rmx_layout_blocks(l, n, counts, by, places, &why);
	}
}

static void nested(void)
{
	static struct model m, next;
	uint32_t seed = 3;
	int why = 0;

	for (int round = 0; round < ROUNDS; round++) {
		const int64_t unit = 1 + dice(&seed) % 9;
		struct rmx_layout *l = rmx_layout_new(
			&(struct rmx_run){0, unit}, 1,
			(struct rmx_basic){0, (uint64_t)unit, false}, unit,
			&why);

		CHECK(l);
		m.count = 0;
		for (int64_t k = 0; k < unit; k++)
			m.place[m.count++] = k;
		for (int depth = 0; depth < DEEP; depth++) {
			struct rmx_layout *made = step(l, &m, &next, &seed);

			if (!made)
				continue;
			if (dice(&seed) % 4 == 0)
				made->extent = some(&seed);
			free(l);
			l = made;
			m = next;
			walk_checks(l, &m);
			if (l->runs)
				grain_checks(l);
		}
		free(l);
	}
}

/* Data goes between any two, and nowhere else. */
static void copies(void)
{
	enum { ROOM = 1 << 16, MIDDLE = ROOM / 2 };
	static char from[ROOM], to[ROOM], want[ROOM];
	static struct model a, b;
	uint32_t seed = 5;
	int why = 0;

	for (int round = 0; round < 2000; round++) {
		const int64_t steps[2] = {9 + dice(&seed) % 30,
					  9 + dice(&seed) % 30};
		const struct rmx_run run = {dice(&seed) % 5,
					    1 + dice(&seed) % 9};
		struct rmx_layout *one = rmx_layout_new(
			&run, 1, (struct rmx_basic){0, 1, false}, 40, &why);
		struct rmx_layout *here =
			rmx_layout_loop(one, 12, steps[0], &why);
		struct rmx_layout *there = rmx_layout_blocks(
			one, 4, (int64_t[]){3, 2, 4, 3}, false,
			(int64_t[]){-500, 400, 0, -200}, &why);
		const struct rmx_side sides[2] = {{here, 3, 3 * here->bytes},
						  {there, 3, 3 * there->bytes}};
		struct rmx_walk x;

		EQUAL(here->bytes, there->bytes);
		here->extent = 400 + dice(&seed) % 100;
		there->extent = -1500;
		a.count = b.count = 0;
		for (int k = 0; k < 2; k++) {
			struct model *m = k ? &b : &a;

			rmx_walk_start(&x, &sides[k], from);
			for (uint64_t i = 0; i < sides[k].bytes; i++) {
				m->place[m->count++] = x.at - from;
				rmx_walk_on(&x, 1);
			}
		}
		for (int i = 0; i < ROOM; i++)
			from[i] = (char)dice(&seed);
		memset(to, 0, sizeof(to));
		memset(want, 0, sizeof(want));
		for (uint64_t i = 0; i < a.count; i++)
			want[MIDDLE + b.place[i]] = from[MIDDLE + a.place[i]];
		rmx_side_copy(&sides[1], to + MIDDLE, &sides[0], from + MIDDLE);
		CHECK(!memcmp(to, want, sizeof(to)));
		free(one);
		free(here);
		free(there);
	}
}

/* Parts of arrays, with any steps on both sides: a side may be one element. */
static void parts(void)
{
	enum { DIMS = 4, ROOM = 1 << 17, MIDDLE = ROOM / 2 };
	static const uint64_t units[] = {1, 2, 3, 4, 8, 12, 16, 40};
	static char from[ROOM], to[ROOM], want[ROOM];
	uint32_t seed = 9;

	for (int i = 0; i < ROOM; i++)
		from[i] = (char)dice(&seed);
	for (int round = 0; round < 1000; round++) {
		const uint64_t unit = units[dice(&seed) % COUNT(units)];
		const int ndim = (int)(dice(&seed) % (DIMS + 1));
		int64_t shape[DIMS], steps[2][DIMS], n[DIMS] = {0};
		struct rmx_side side[2];
		struct rmx_layout l[2];
		int64_t next[2] = {(int64_t)unit, (int64_t)unit};
		int k;

		for (k = ndim - 1; k >= 0; k--) {
			shape[k] = 1 + dice(&seed) % 3;
			for (int j = 0; j < 2; j++) {
				steps[j][k] =
					next[j] * (dice(&seed) % 4 ? 1 : 2);
				next[j] = steps[j][k] * shape[k];
				if (dice(&seed) % 4 == 0)
					steps[j][k] = j ? -steps[j][k] : 0;
			}
		}
		for (int j = 0; j < 2; j++) {
			CHECK(rmx_layout_part(&l[j], unit, ndim, shape,
					      steps[j]));
			side[j] = (struct rmx_side){&l[j], 1, l[j].bytes};
			CHECK(rmx_part_at(&l[j], 0) == 0);
		}
		memset(to, 0, sizeof(to));
		memset(want, 0, sizeof(want));
		do {
			int64_t at[2] = {MIDDLE, MIDDLE};

			for (k = 0; k < ndim; k++)
				for (int j = 0; j < 2; j++)
					at[j] += n[k] * steps[j][k];
			memcpy(want + at[1], from + at[0], unit);
			for (k = ndim - 1; k >= 0 && ++n[k] == shape[k]; k--)
				n[k] = 0;
		} while (k >= 0);
		rmx_side_copy(&side[1], to + MIDDLE, &side[0], from + MIDDLE);
		CHECK(!memcmp(to, want, sizeof(to)));
	}
}

/* What does not fit 63 bits, and what no memory holds, is refused. */
static void too_large(void)
{
	const struct rmx_basic basic = {0, 1, false};
	const struct rmx_run two[] = {{0, 1}, {16, 1}};
	struct rmx_layout *l, *deep, *more;
	int why = 0;

	l = rmx_layout_new(two, 2, basic, 24, &why);
	CHECK(l);
	CHECK(!rmx_layout_loop(l, INT64_MAX / 2, 24, &why));
	EQUAL(why, -FI_EOVERFLOW);
	CHECK(!rmx_layout_loop(l, 3, INT64_MAX / 2, &why));
	EQUAL(why, -FI_EOVERFLOW);
	CHECK(!rmx_layout_shift(l, INT64_MAX - 16, &why));
	EQUAL(why, -FI_EOVERFLOW);
	CHECK(!rmx_layout_blocks(l, 2, (int64_t[]){1, 1 << 30}, false,
				 (int64_t[]){0, INT64_MAX - 16}, &why));
	EQUAL(why, -FI_EOVERFLOW);
	CHECK(!rmx_layout_blocks(l, 2, (int64_t[]){INT64_MAX / 64, 3}, false,
				 (int64_t[]){0, 5}, &why));
	deep = rmx_layout_loop(l, 1 << 30, 48, &why);
	CHECK(deep); /* regular: it takes no memory */
	more = rmx_layout_loop(deep, 1 << 26, INT64_C(48) << 30, &why);
	CHECK(more);
	EQUAL(more->bytes, UINT64_C(2) << 56);
	CHECK(!rmx_layout_flat(more, &why));
	EQUAL(why, -FI_ENOMEM);
	free(more);
	free(deep);
	free(l);
}

/* There is room for as many loops as 63 bits count the bytes of. */
static void many_loops(void)
{
	struct rmx_layout *l, *next;
	int why = 0, depth = 0;

	l = rmx_layout_new(&(struct rmx_run){0, 1}, 1,
			   (struct rmx_basic){0, 1, false}, 1, &why);
	for (;; depth++) {
		next = rmx_layout_loop(l, 2, l->high + depth % 2, &why);
		free(l);
		l = next;
		if (!l)
			break;
		EQUAL(l->bytes, UINT64_C(2) << depth);
	}
	EQUAL(why, -FI_EOVERFLOW);
	/* the steps add bytes in between, and so reach the end before */
	CHECK(depth > 60);
}

const struct test tests[] = {
	{.name = "nested", .run = nested},
	{.name = "copies", .run = copies},
	{.name = "parts", .run = parts},
	{.name = "too_large", .run = too_large},
	{.name = "many_loops", .run = many_loops},
	{0},
};
