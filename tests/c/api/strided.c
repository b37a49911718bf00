/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of arrays: by memory, by system call, and over the network. */
#include "rig.h"
#include "am/am.h"

#include <stddef.h>

enum { DIMS = 6, MOST = 20 };

static const uint8_t secret[RMX_TOKEN] = "fifteen letters";

/* A rig whose target has the window too, under a token. */
struct pair {
	struct rig r;
	rmaext_window *there;
};

static rmaext_window *window_of(rmaext_fabric *f, rmaext_peer *peer,
				const struct rig *r, uint8_t route,
				struct rmaext_neighbour *neighbour, int access)
{
	uint64_t size = r->size, base = rmaext_memory_base(r->memory);
	uint64_t address = (uintptr_t)r->window_memory;
	uint8_t rights = (uint8_t)access, align = 0;
	void *map = r->window_memory;
	rmaext_window *w = NULL;

	OK(window_new(f,
		      &(struct ranks){
			      .count = 1,
			      .token = secret,
			      .peer = &peer,
			      .neighbour = neighbour ? &neighbour : NULL,
			      .map = &map,
			      .address = &address,
			      .size = &size,
			      .base = &base,
			      .access = &rights,
			      .align = &align,
			      .route = &route,
			      .keys = (const uint8_t *)r->key,
			      .key_len = r->key_len,
		      },
		      10 * SECOND, &w));
	return w;
}

static void drop(rmaext_window *w)
{
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
}

static void pair_open(struct pair *p, size_t size)
{
	rmaext_peer *peer;

	rig_open(&p->r, (struct rig_options){.size = size, .two = true});
	drop(p->r.window);
	p->r.window = NULL;
	peer = peer_of(p->r.target, p->r.origin);
	p->there = window_of(p->r.target, peer, &p->r, RMAEXT_DIRECT, NULL, 3);
}

static void pair_close(struct pair *p)
{
	drop(p->there);
	rig_close(&p->r);
}

struct part {
	uint64_t offset, unit;
	int ndim;
	int64_t shape[MOST], steps[MOST], locals[MOST];
};

static int move(rmaext_window *w, int kind, const struct part *p, void *buf)
{
	rmaext_op *op = NULL;

	return finish(strided_begin(w, 0, p->offset, kind, p->unit, p->ndim,
				    p->shape, p->steps, NULL, buf, &op),
		      &op);
}

static uint32_t noise(uint32_t *seed)
{
	return (*seed = *seed * 1664525 + 1013904223) >> 8;
}

/* A part of an array of random shape that fills the window, or most of it. */
static struct part draw(uint32_t *seed, uint64_t size)
{
	static const uint64_t units[] = {1, 2, 3, 8, 16, 24, 5000};
	struct part p = {.unit = units[noise(seed) % COUNT(units)]};
	int64_t step = (int64_t)p.unit, whole[DIMS];

	p.ndim = (int)(noise(seed) % DIMS);
	for (int k = p.ndim - 1; k >= 0; k--) {
		const int64_t most = (int64_t)size / step;

		whole[k] = 1 + noise(seed) % (most < 9 ? most : 9);
		if (k == 0 && noise(seed) % 2)
			whole[k] = most;
		p.steps[k] = step;
		step *= whole[k];
	}
	for (int k = 0; k < p.ndim; k++) {
		const int64_t first = noise(seed) % whole[k];
		const int64_t by = 1 + noise(seed) % 3;
		const bool back = noise(seed) % 4 == 0;
		const int64_t count = (whole[k] - first + by - 1) / by;

		p.shape[k] = noise(seed) % 40 ? whole[k] : 0;
		if (noise(seed) % 2)
			continue;
		p.shape[k] = count;
		p.offset += (uint64_t)((first + (back ? (count - 1) * by : 0)) *
				       p.steps[k]);
		p.steps[k] *= back ? -by : by;
	}
	return p;
}

/* Element by element, as a plain loop would. */
static uint64_t reference(const struct part *p, bool put, char *memory,
			  char *buf)
{
	int64_t at[DIMS] = {0};
	uint64_t n = 0;

	for (int k = 0; k < p->ndim; k++)
		if (!p->shape[k])
			return 0;
	for (;;) {
		char *place = memory + p->offset;
		int k = p->ndim - 1;

		for (int d = 0; d < p->ndim; d++)
			place += at[d] * p->steps[d];
		if (put)
			memcpy(place, buf + n * p->unit, p->unit);
		else
			memcpy(buf + n * p->unit, place, p->unit);
		n++;
		while (k >= 0 && ++at[k] == p->shape[k])
			at[k--] = 0;
		if (k < 0)
			return n * p->unit;
	}
}

static void compare(rmaext_window *w, const struct rig *r, int rounds)
{
	char *model = malloc(r->size), *buf = malloc(r->size);
	char *wanted = malloc(r->size);
	uint32_t seed = 11;

	CHECK(model && buf && wanted);
	fill(model, r->size, 3);
	memcpy(r->window_memory, model, r->size);
	for (int i = 0; i < rounds; i++) {
		struct part p = draw(&seed, r->size);
		uint64_t bytes;

		bytes = reference(&p, false, model, wanted);
		memset(buf, 0x33, r->size);
		OK(move(w, RMAEXT_GET, &p, buf));
		CHECK(!memcmp(buf, wanted, bytes));
		for (uint64_t k = bytes; k < r->size; k++)
			EQUAL(buf[k], 0x33);
		fill(buf, r->size, (unsigned int)i);
		reference(&p, true, model, buf);
		OK(move(w, RMAEXT_PUT, &p, buf));
		OK(flush(w));
		CHECK(!memcmp(r->window_memory, model, r->size));
	}
	rig_guards(r);
	free(model);
	free(buf);
	free(wanted);
}

static void by_memory(void)
{
	struct pair p;

	pair_open(&p, 60000);
	compare(p.there, &p.r, 500);
	pair_close(&p);
}

static void by_system_call(void)
{
	struct rmaext_neighbour self = {.pid = getpid()};
	rmaext_window *w;
	struct pair p;

	if (!has_copies())
		return;
	pair_open(&p, 60000);
	w = window_of(p.r.origin, p.r.peer, &p.r, RMAEXT_CMA, &self, 3);
	compare(w, &p.r, 300);
	drop(w);
	pair_close(&p);
}

/* The kernel refuses to copy: all goes by messages, long runs too. */
static void by_messages(void)
{
	struct rmaext_neighbour self = {.pid = getpid(), .refuses = true};
	rmaext_window *w;
	struct pair p;

	pair_open(&p, 60000);
	w = window_of(p.r.origin, p.r.peer, &p.r, RMAEXT_CMA, &self, 3);
	compare(w, &p.r, 300);
	drop(w);
	pair_close(&p);
}

static void by_network(void)
{
	rmaext_window *w;
	struct pair p;

	pair_open(&p, 300000); /* runs that are sent by themselves, too */
	w = window_of(p.r.origin, p.r.peer, &p.r, RMAEXT_FABRIC, NULL, 3);
	compare(w, &p.r, 150);
	drop(w);
	pair_close(&p);
	pair_open(&p, 5000);
	w = window_of(p.r.origin, p.r.peer, &p.r, RMAEXT_FABRIC, NULL, 3);
	compare(w, &p.r, 300);
	drop(w);
	pair_close(&p);
}

/* Puts that nobody waits for, more of them than the line of a peer takes. */
static void copies(void)
{
	enum { ROWS = 700, PUTS = 2 * RMX_QUEUED / (8 * ROWS) };
	const uint64_t size = 8 * ROWS * PUTS;
	struct part p = {.unit = 8, .ndim = 1, .shape = {ROWS}};
	uint64_t row[ROWS], *there;
	rmaext_window *w;
	struct pair pair;

	pair_open(&pair, size);
	w = window_of(pair.r.origin, pair.r.peer, &pair.r, RMAEXT_FABRIC, NULL,
		      3);
	there = (uint64_t *)(void *)pair.r.window_memory;
	p.steps[0] = 8 * PUTS;
	for (uint64_t k = 0; k < PUTS; k++) {
		rmaext_op *op = NULL;

		for (uint64_t i = 0; i < ROWS; i++)
			row[i] = k << 32 | i;
		p.offset = 8 * k;
		OK(finish(strided_begin(w, 0, p.offset, RMAEXT_PUT, p.unit,
					p.ndim, p.shape, p.steps, NULL, row,
					&op),
			  &op));
		memset(row, 0xff, sizeof(row)); /* the origin may be reused */
	}
	OK(flush(w));
	for (uint64_t k = 0; k < PUTS; k++)
		for (uint64_t i = 0; i < ROWS; i++)
			EQUAL(there[i * PUTS + k], k << 32 | i);
	drop(w);
	pair_close(&pair);
}

/* The window there has been closed: the flush says so, once. */
static void closed_there(void)
{
	const struct part p = {
		.unit = 8, .ndim = 1, .shape = {3000}, .steps = {16}};
	static uint64_t row[3000];
	rmaext_window *w;
	struct pair pair;

	pair_open(&pair, 48000);
	w = window_of(pair.r.origin, pair.r.peer, &pair.r, RMAEXT_FABRIC, NULL,
		      3);
	OK(move(w, RMAEXT_PUT, &p, row));
	OK(flush(w));
	drop(pair.there);
	for (int i = 0; i < 20; i++)
		OK(move(w, RMAEXT_PUT, &p, row));
	EQUAL(flush(w), -FI_ESHUTDOWN);
	OK(flush(w));
	drop(w);
	rig_close(&pair.r);
}

/* More loops than a message has room for. */
static void many_loops(void)
{
	struct part p = {.unit = 1, .ndim = 18};
	static char out[1 << 18], in[1 << 18];
	rmaext_window *w;
	struct pair pair;

	pair_open(&pair, sizeof(out));
	w = window_of(pair.r.origin, pair.r.peer, &pair.r, RMAEXT_FABRIC, NULL,
		      3);
	fill(out, sizeof(out), 5);
	for (int k = 0; k < p.ndim; k++) {
		p.shape[k] = 2;
		p.steps[k] = (int64_t)1 << k; /* transposed */
	}
	OK(move(w, RMAEXT_PUT, &p, out));
	for (unsigned int i = 0; i < sizeof(out); i++) {
		unsigned int at = 0;

		for (int k = 0; k < p.ndim; k++)
			at |= (i >> k & 1) << (p.ndim - 1 - k);
		EQUAL(pair.r.window_memory[at], out[i]);
	}
	OK(move(w, RMAEXT_GET, &p, in));
	CHECK(!memcmp(in, out, sizeof(out)));
	drop(w);
	pair_close(&pair);
}

/* Two rows: what they leave between is kept. */
static void rows(rmaext_window *w, const struct rig *r, uint64_t unit)
{
	const struct part p = {.unit = unit,
			       .ndim = 1,
			       .shape = {2},
			       .steps = {(int64_t)unit + 8}};
	char *out = malloc(2 * unit), *in = malloc(2 * unit);

	CHECK(out && in);
	fill(out, 2 * unit, (unsigned int)unit);
	memset(r->window_memory, 0x77, r->size);
	OK(move(w, RMAEXT_PUT, &p, out));
	OK(flush(w));
	CHECK(!memcmp(r->window_memory, out, unit));
	CHECK(!memcmp(r->window_memory + unit + 8, out + unit, unit));
	for (int i = 0; i < 8; i++)
		EQUAL(r->window_memory[unit + (uint64_t)i], 0x77);
	OK(move(w, RMAEXT_GET, &p, in));
	CHECK(!memcmp(in, out, 2 * unit));
	free(out);
	free(in);
}

/* Rows that fill a message, with or without what tells where they are. */
static void long_rows(void)
{
	const uint64_t room = RMX_MESSAGE - RMX_HEADERS;
	struct rmaext_neighbour self = {.pid = getpid(), .refuses = true};
	rmaext_window *w;
	struct pair pair;

	pair_open(&pair, 2 * room + 64);
	w = window_of(pair.r.origin, pair.r.peer, &pair.r, RMAEXT_CMA, &self,
		      3);
	for (uint64_t unit = room - 48; unit <= room + 8; unit++)
		rows(w, &pair.r, unit);
	drop(w);
	pair_close(&pair);
}

/* The same call where the memory is mapped: a byte is a run like others. */
static void short_rows_here(void)
{
	struct pair pair;

	pair_open(&pair, 64);
	for (uint64_t unit = 1; unit <= 9; unit++)
		rows(pair.there, &pair.r, unit);
	pair_close(&pair);
}

/* Own memory in pieces too: columns to columns. */
static void pieces(void)
{
	const struct part p = {8, 8, 2, {50, 2}, {80, 16}, {24, -8}};
	uint64_t own[50][3], *at;
	rmaext_op *op = NULL;
	struct pair pair;

	pair_open(&pair, 4000);
	fill(own, sizeof(own), 1);
	OK(strided_begin(pair.there, 0, p.offset, RMAEXT_PUT, p.unit, p.ndim,
			 p.shape, p.steps, p.locals, &own[0][2], &op));
	at = (uint64_t *)(void *)pair.r.window_memory;
	for (int i = 0; i < 50; i++) {
		EQUAL(at[10 * i], 0);
		EQUAL(at[10 * i + 1], own[i][2]);
		EQUAL(at[10 * i + 2], 0);
		EQUAL(at[10 * i + 3], own[i][1]);
		at[10 * i + 1] = at[10 * i + 3] = 7;
	}
	OK(strided_begin(pair.there, 0, p.offset, RMAEXT_GET, p.unit, p.ndim,
			 p.shape, p.steps, p.locals, &own[0][2], &op));
	for (int i = 0; i < 50; i++) {
		CHECK(own[i][0] != 7);
		EQUAL(own[i][1], 7);
		EQUAL(own[i][2], 7);
	}
	pair_close(&pair);
}

/* Nothing outside is touched, however the numbers overflow. */
static void refused(void)
{
	static const struct {
		struct part p;
		int code;
	} bad[] = {
		{{.unit = 8, .offset = 4000}, -ERANGE},
		{{.unit = 8, .offset = 3993}, -ERANGE},
		{{.unit = 8, .offset = UINT64_MAX}, -ERANGE},
		{{.unit = 8, .ndim = 1, .shape = {2}, .steps = {3993}},
		 -ERANGE},
		{{.unit = 8, .ndim = 1, .shape = {2}, .steps = {-8}}, -ERANGE},
		{{.unit = 8, .ndim = 1, .shape = {501}, .steps = {8}}, -ERANGE},
		{{.unit = 8, .ndim = 1, .shape = {2}, .steps = {INT64_MIN}},
		 -ERANGE},
		{{.unit = 8, .ndim = 1, .shape = {3}, .steps = {INT64_MAX}},
		 -ERANGE},
		{{.unit = 8,
		  .offset = 16,
		  .ndim = 2,
		  .shape = {2, 2},
		  .steps = {INT64_MAX / 2, INT64_MAX / 2 + 9}},
		 -ERANGE},
		{{.unit = 0}, -FI_EINVAL},
		{{.unit = UINT64_MAX}, -FI_EINVAL},
		{{.unit = 8, .ndim = 1, .shape = {-1}, .steps = {8}},
		 -FI_EINVAL},
		{{.unit = 8, .ndim = 1, .shape = {INT64_MAX}, .steps = {0}},
		 -FI_EINVAL},
		{{.unit = 8, .ndim = -1}, -FI_EINVAL},
		{{.unit = 8, .ndim = 65}, -FI_EINVAL},
	};
	static char buf[8192];
	rmaext_window *w[2];
	struct pair pair;

	pair_open(&pair, 4000);
	w[0] = pair.there;
	w[1] = window_of(pair.r.origin, pair.r.peer, &pair.r, RMAEXT_FABRIC,
			 NULL, 3);
	for (size_t i = 0; i < COUNT(bad); i++)
		for (int k = 0; k < 4; k++) {
			const struct part *p = &bad[i].p;
			rmaext_op *op = NULL;

			EQUAL(strided_begin(w[k / 2], 0, p->offset, k % 2,
					    p->unit, p->ndim, p->shape,
					    p->steps, NULL, buf, &op),
			      bad[i].code);
			EQUAL(op, NULL);
		}
	for (size_t i = 0; i < pair.r.size; i++)
		EQUAL(pair.r.window_memory[i], 0);
	drop(w[1]);
	w[1] = window_of(pair.r.origin, pair.r.peer, &pair.r, RMAEXT_FABRIC,
			 NULL, RMAEXT_READ);
	EQUAL(move(w[1], RMAEXT_PUT,
		   &(struct part){
			   .unit = 8, .ndim = 1, .shape = {2}, .steps = {16}},
		   buf),
	      -FI_EACCES);
	drop(w[1]);
	pair_close(&pair);
}

/* What a stranger says of loops. */
static void strange_loops(void)
{
	const struct rmx_layout good = {.loops = 2, .loop = {{3, 16}, {4, -8}}};
	uint64_t words[3 + 2 * 16], first = 0, start = 0;
	struct rmx_layout l;

	EQUAL(rmx_loops_bytes(&good), 56);
	rmx_loops_pack(&good, 100, 5, words);
	CHECK(rmx_loops_unpack(&l, words, 56, &first, &start));
	EQUAL(start, 5);
	EQUAL(first, 100);
	for (uint64_t i = 0; i < 12; i++)
		EQUAL(rmx_part_at(&l, i), rmx_part_at(&good, i));
	CHECK(!rmx_loops_unpack(&l, words, 55, &first, &start));
	CHECK(!rmx_loops_unpack(&l, words, 0, &first, &start));
	for (uint64_t loops = 0; loops < 200; loops++) {
		words[0] = loops;
		memset(words + 3, 1, sizeof(words) - 24);
		EQUAL(rmx_loops_unpack(&l, words, sizeof(words), &first,
				       &start),
		      loops && loops <= 16);
	}
	words[0] = 2;
	words[5] = 0; /* turns of a loop */
	CHECK(!rmx_loops_unpack(&l, words, 56, &first, &start));
	memset(words, 0xff, sizeof(words));
	CHECK(!rmx_loops_unpack(&l, words, sizeof(words), &first, &start));
	words[0] = 16;
	CHECK(rmx_loops_unpack(&l, words, sizeof(words), &first, &start));
	rmx_part_at(&l, start); /* some number */
}

const struct test tests[] = {
	{.name = "by_memory", .run = by_memory},
	{.name = "by_system_call", .run = by_system_call},
	{.name = "by_messages", .run = by_messages},
	{.name = "by_network", .run = by_network},
	{.name = "copies", .run = copies},
	{.name = "closed_there", .run = closed_there},
	{.name = "many_loops", .run = many_loops},
	{.name = "long_rows", .run = long_rows},
	{.name = "short_rows_here", .run = short_rows_here},
	{.name = "pieces", .run = pieces},
	{.name = "refused", .run = refused},
	{.name = "strange_loops", .run = strange_loops},
	{0},
};
