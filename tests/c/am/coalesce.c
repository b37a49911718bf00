/* SPDX-License-Identifier: BSD-3-Clause */
/* Loops of single updates and puts: in what messages they go, and in order. */
#include "pair.h"

enum { CELLS = SIZE / 8 };

static int single(rmaext_window *w, uint64_t cell, int op, uint64_t value)
{
	return update(w, 8 * cell, op, RMAEXT_UINT64, &value, NULL, 1);
}

/* The target answers nothing from here on, and is connected. */
static void open_deaf(struct pair *p, double timeout)
{
	pair_open(p, (struct rig_options){.no_progress = true,
					  .timeout = timeout});
	serve_start(p);
	OK(add(p->r.window, 0, 0));
	serve_stop(p);
}

static struct rmx_line *line_of(const struct pair *p)
{
	return p->r.peer->line;
}

/* The operations in the line. */
static int queued(const struct pair *p)
{
	int n = 0;

	for (const struct rmx_op *op = line_of(p)->queue; op; op = op->next)
		n++;
	return n;
}

/* The first go at once, the others wait together, and come with a flush. */
static void together(void)
{
	enum { UPDATES = 3000 };
	unsigned int answers;
	struct pair p;

	open_deaf(&p, 10);
	answers = atomic_load(&p.r.peer->answers);
	for (unsigned int i = 0; i < UPDATES; i++) {
		EQUAL(line_of(&p)->requests, i < RMX_CREDITS ? i : RMX_CREDITS);
		OK(single(p.r.window, i % CELLS, RMAEXT_SUM, i + 1));
	}
	EQUAL(queued(&p), 3);
	serve_start(&p);
	OK(flush(p.r.window));
	serve_stop(&p);
	EQUAL(atomic_load(&p.r.peer->answers) - answers, RMX_CREDITS + 3);
	for (uint64_t k = 0; k < CELLS; k++) {
		uint64_t sum = 0;

		for (uint64_t i = k; i < UPDATES; i += CELLS)
			sum += i + 1;
		EQUAL(((uint64_t *)p.r.window_memory)[k], sum);
	}
	pair_close(&p);
}

/* What one origin did to its cells, in its order. */
static void model(uint64_t *cell, int op, uint64_t value)
{
	*cell = op == RMAEXT_SUM    ? *cell + value
		: op == RMAEXT_PROD ? *cell * value
				    : value;
}

/*
 * Updates of different kinds and lengths to the same few cells, alone, in rows,
 * in batches, with results, as requests: each finds what the one before left.
 */
static void order_of(uint32_t seed, bool pauses)
{
	enum { FEW_CELLS = 5, ROW = 3, STEPS = 20000 };
	static const int ops[] = {RMAEXT_SUM, RMAEXT_PROD, RMAEXT_REPLACE};
	uint64_t wanted[FEW_CELLS] = {0}, old, row[ROW];
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	for (int i = 0; i < STEPS; i++) {
		const uint32_t dice = noise(&seed) >> 8;
		const int op = ops[dice / 7 % (dice % 97 < 90 ? 1 : 3)];
		const uint64_t value = noise(&seed) >> 8, at = dice % FEW_CELLS;
		const uint64_t first = dice % (FEW_CELLS - ROW + 1);
		const int64_t index = (int64_t)at;

		switch (dice / 101 % 200) {
		case 0:
			for (uint64_t k = 0; k < ROW; k++) {
				row[k] = value + k;
				model(&wanted[first + k], op, row[k]);
			}
			OK(update(p.r.window, 8 * first, op, RMAEXT_UINT64, row,
				  NULL, ROW));
			break;
		case 1:
			OK(update(p.r.window, 8 * at, op, RMAEXT_UINT64, &value,
				  &old, 1));
			EQUAL(old, wanted[at]);
			model(&wanted[at], op, value);
			break;
		case 2:
			OK(add(p.r.window, index, value));
			model(&wanted[at], RMAEXT_SUM, value);
			break;
		case 3:
			OK(flush(p.r.window));
			EQUAL(((uint64_t *)p.r.window_memory)[at], wanted[at]);
			break;
		default:
			OK(single(p.r.window, at, op, value));
			model(&wanted[at], op, value);
			break;
		}
		if (pauses && dice % 500 == 0)
			nap(1e-4);
	}
	OK(flush(p.r.window));
	for (int k = 0; k < FEW_CELLS; k++)
		EQUAL(((uint64_t *)p.r.window_memory)[k], wanted[k]);
	pair_close(&p);
}

static void order(void)
{
	for (uint32_t seed = 0; seed < 3; seed++)
		order_of(seed, seed % 2);
}

/* Several threads of the origin, and the target itself, add to one cell. */
static void *adds(void *arg)
{
	struct worker *me = arg;

	for (int i = 0; i < N && !me->ret; i++) {
		me->ret = single(me->window, 1, RMAEXT_SUM, 1);
		if (!me->ret && i % 1000 == 0)
			me->ret = flush(me->window);
	}
	return NULL;
}

static void threads(void)
{
	struct worker all[THREADS], own;
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	start_all(all, THREADS, p.r.window, adds);
	start_all(&own, 1, p.there, adds);
	join_all(all, THREADS, 0);
	join_all(&own, 1, 0);
	OK(flush(p.r.window));
	EQUAL(((uint64_t *)p.r.window_memory)[1], (THREADS + 1) * N);
	pair_close(&p);
}

/* Elements of each length, and two kinds by turns. */
static void kinds(void)
{
	enum { EACH = 700 };
	static const int types[] = {RMAEXT_INT8, RMAEXT_UINT16, RMAEXT_INT32,
				    RMAEXT_INT64};
	const int64_t one = 1;
	const uint32_t mark = 0x5a5a5a5a;
	rmaext_window *w;
	rmaext_op *op;
	struct pair p;

	open_deaf(&p, 10);
	w = here(&p, (struct lie){.reads = true});
	for (int i = 0; i < EACH; i++)
		for (size_t t = 0; t < COUNT(types); t++)
			OK(update(p.r.window, 64 * t, RMAEXT_SUM, types[t],
				  &one, NULL, 1));
	for (size_t t = 0; t < COUNT(types); t++)
		for (int i = 0; i < EACH; i++)
			OK(update(p.r.window, 64 * t + 16, RMAEXT_SUM, types[t],
				  &one, NULL, 1));
	serve_start(&p);
	OK(flush(p.r.window)); /* its operations had all contexts */
	for (int i = 0; i < EACH; i++)
		OK(put_begin(w, 0, 1024 + 4 * (uint64_t)i, &mark, sizeof(mark),
			     &op));
	OK(flush(p.r.window));
	OK(flush(w));
	serve_stop(&p);
	drop_window(w);
	for (int k = 0; k < 2; k++) {
		const char *at = p.r.window_memory + 16 * k;

		EQUAL(*(int8_t *)at, (int8_t)EACH);
		EQUAL(*(uint16_t *)(at + 64), EACH);
		EQUAL(*(int32_t *)(at + 128), EACH);
		EQUAL(*(int64_t *)(at + 192), EACH);
	}
	for (int i = 0; i < EACH; i++)
		EQUAL(((uint32_t *)(p.r.window_memory + 1024))[i], mark);
	pair_close(&p);
}

/* Puts that find others on their way go with them. */
static void puts_together(void)
{
	enum { PUTS = 400 };
	rmaext_window *w;
	rmaext_op *op;
	struct pair p;

	open_deaf(&p, 10);
	w = here(&p, (struct lie){.reads = true});
	for (uint64_t i = 0; i < PUTS; i++)
		OK(put_begin(w, 0, 8 * i, &i, sizeof(i), &op));
	EQUAL(line_of(&p)->requests, 1);
	EQUAL(queued(&p), 1);
	serve_start(&p);
	OK(flush(w));
	serve_stop(&p);
	drop_window(w);
	for (uint64_t i = 0; i < PUTS; i++)
		EQUAL(((uint64_t *)p.r.window_memory)[i], i);
	pair_close(&p);
}

/* The target refuses coalesced ones: the next flush says so, once. */
static void refused(void)
{
	rmaext_window *lied;
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	lied = here(&p, (struct lie){.size = 2 * SIZE});
	for (int i = 0; i < 300; i++)
		OK(single(lied, CELLS + 2, RMAEXT_SUM, 1));
	EQUAL(flush(lied), -ERANGE);
	OK(flush(lied));
	for (int i = 0; i < 300; i++)
		OK(single(lied, 0, RMAEXT_SUM, 1));
	OK(flush(lied));
	EQUAL(((uint64_t *)p.r.window_memory)[0], 300);
	drop_window(lied);
	pair_close(&p);
}

/* Nobody answers: a flush is in time, and drops them. The line goes on. */
static void overdue(void)
{
	struct pair p;

	open_deaf(&p, 10);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 2000; i++)
			OK(single(p.r.window, 1, RMAEXT_SUM, 1));
		EQUAL(flush_for(p.r.window, 0, 0.2), -FI_ETIMEDOUT);
		EQUAL(rmaext_window_pending(p.r.window), 0);
		EQUAL(line_of(&p)->queued, 0);
		EQUAL(line_of(&p)->queue, NULL);
	}
	serve_start(&p);
	OK(single(p.r.window, 2, RMAEXT_REPLACE, 7));
	OK(flush(p.r.window));
	serve_stop(&p);
	EQUAL(((uint64_t *)p.r.window_memory)[2], 7);
	pair_close(&p);
}

/* A line takes only so many: then the loop waits for the target. */
static void full(void)
{
	enum { LOTS = 100000 };
	rmaext_op *op = NULL;
	const uint64_t one = 1;
	struct pair p;
	int ret = 0, n = 0;

	open_deaf(&p, 10);
	while (!ret && ++n < LOTS)
		ret = update_begin(p.r.window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64,
				   &one, NULL, NULL, 1, &op);
	EQUAL(ret, RMAEXT_PENDING);
	CHECK(line_of(&p)->queued < RMX_QUEUED + 64);
	serve_start(&p);
	OK(finish(ret, &op));
	OK(flush(p.r.window));
	serve_stop(&p);
	EQUAL(((uint64_t *)p.r.window_memory)[1], n);
	pair_close(&p);
}

const struct test tests[] = {
	{"together", together, NULL, NULL},
	{"order", order, NULL, NULL},
	{"threads", threads, NULL, NULL},
	{"kinds", kinds, NULL, NULL},
	{"puts_together", puts_together, NULL, NULL},
	{"refused", refused, NULL, NULL},
	{"overdue", overdue, NULL, NULL},
	{"full", full, NULL, NULL},
	{0},
};
