/* SPDX-License-Identifier: BSD-3-Clause */
/* Many operations in a call: by message, by memory, by system call, and
 * refused. */
#include "pair.h"

/* Against a plain loop, places repeated. */
static void reference(rmaext_window *w, const struct rig *r)
{
	static int64_t offsets[N];
	static uint64_t values[N], results[N], cells[SIZE / 8];
	uint32_t seed = 7;

	for (int round = 0; round < 4; round++) {
		const uint64_t n = round ? N : 1;
		const int64_t range = round == 3 ? 5 : SIZE / 8;

		for (uint64_t i = 0; i < n; i++) {
			offsets[i] = (noise(&seed) >> 8) % range;
			values[i] = noise(&seed);
		}
		OK(many(w, RMAEXT_PUT, 0, 8, n, offsets, values, NULL));
		for (uint64_t i = 0; i < n; i++)
			cells[offsets[i]] = values[i];
		CHECK(!memcmp(r->window_memory, cells, SIZE));
		OK(many(w, RMAEXT_UPDATE, RMAEXT_UINT64, 8, n, offsets, values,
			NULL));
		for (uint64_t i = 0; i < n; i++)
			cells[offsets[i]] += values[i];
		CHECK(!memcmp(r->window_memory, cells, SIZE));
		OK(many(w, RMAEXT_UPDATE, RMAEXT_UINT64, 8, n, offsets, values,
			results));
		for (uint64_t i = 0; i < n; i++) {
			EQUAL(results[i], cells[offsets[i]]);
			cells[offsets[i]] += values[i];
		}
		OK(many(w, RMAEXT_GET, 0, 8, n, offsets, NULL, results));
		for (uint64_t i = 0; i < n; i++)
			EQUAL(results[i], cells[offsets[i]]);
	}
}

/* Elements of any size, one that needs several messages included. */
static void sizes(rmaext_window *w, const struct rig *r)
{
	const uint64_t units[] = {1, 2, 3, 4, 7, 16, 4096, 16120, 16121, 50000};

	for (size_t k = 0; k < COUNT(units); k++) {
		const uint64_t unit = units[k];
		const int64_t n = (int64_t)(r->size / unit);
		char *out = malloc(r->size), *in = malloc(r->size);
		int64_t *offsets = malloc(sizeof(*offsets) * (size_t)n);

		CHECK(out && in && offsets);
		for (int64_t i = 0; i < n; i++)
			offsets[i] = n - 1 - i;
		fill(out, r->size, (unsigned int)k);
		OK(many(w, RMAEXT_PUT, 0, unit, (uint64_t)n, offsets, out,
			NULL));
		for (int64_t i = 0; i < n; i++)
			CHECK(!memcmp(r->window_memory +
					      (uint64_t)offsets[i] * unit,
				      out + (uint64_t)i * unit, unit));
		OK(many(w, RMAEXT_GET, 0, unit, (uint64_t)n, offsets, NULL,
			in));
		CHECK(!memcmp(in, out, (uint64_t)n * unit));
		free(out);
		free(in);
		free(offsets);
	}
	rig_guards(r);
}

static int many_at(rmaext_window *w, int kind, uint64_t unit, uint64_t scale,
		   uint64_t n, const int64_t *offsets, void *data)
{
	const int64_t rank = 0;
	struct many_state state;
	int ret = rmaext_start_many(
		w,
		&(struct rmaext_places_call){
			.kind = kind,
			.op = RMAEXT_SUM,
			.type = RMAEXT_UINT64,
			.ones = RMAEXT_ONE_RANK,
			.unit = unit,
			.scale = scale,
			.count = n,
			.ranks = &rank,
			.offsets = offsets,
			.values = kind == RMAEXT_GET ? NULL : data,
			.results = kind == RMAEXT_GET ? data : NULL,
		},
		&state.op, &state.bad);

	while (ret == RMAEXT_PENDING)
		ret = many_wait(&state);
	many_release(&state);
	return ret;
}

/* Offsets that count something else than elements. */
static void scaled(rmaext_window *w, const struct rig *r)
{
	enum { PLACES = 64, UNIT = 24 };
	const int64_t beyond[] = {-1, INT64_MAX, SIZE - UNIT + 1, SIZE};
	char out[PLACES * UNIT], in[PLACES * UNIT];
	uint64_t ones[PLACES], before, after;
	int64_t offsets[PLACES], cells[PLACES], last = SIZE - UNIT;

	for (int64_t i = 0; i < PLACES; i++) {
		offsets[i] = 3 + i * (UNIT + 5);
		cells[i] = i;
		ones[i] = 1;
	}
	fill(out, sizeof(out), 9);
	OK(many_at(w, RMAEXT_PUT, UNIT, 1, PLACES, offsets, out));
	for (size_t i = 0; i < PLACES; i++)
		CHECK(!memcmp(r->window_memory + offsets[i], out + i * UNIT,
			      UNIT));
	OK(many_at(w, RMAEXT_GET, UNIT, 1, PLACES, offsets, in));
	CHECK(!memcmp(in, out, sizeof(in)));
	OK(many_at(w, RMAEXT_GET, UNIT, 1, 1, &last, in));
	CHECK(!memcmp(in, r->window_memory + last, UNIT));
	for (size_t k = 0; k < COUNT(beyond); k++)
		EQUAL(many_at(w, RMAEXT_PUT, UNIT, 1, 1, &beyond[k], out),
		      -ERANGE);
	memcpy(&before, r->window_memory + 5 * 16, sizeof(before));
	OK(many_at(w, RMAEXT_UPDATE, 8, 16, PLACES, cells, ones));
	memcpy(&after, r->window_memory + 5 * 16, sizeof(after));
	EQUAL(after, before + 1);
	EQUAL(many_at(w, RMAEXT_UPDATE, 8, 4, PLACES, cells, ones), -FI_EFAULT);
	EQUAL(many_at(w, RMAEXT_PUT, 8, UINT64_MAX, 1, cells, ones),
	      -FI_EINVAL);
	memset(r->window_memory, 0, SIZE);
}

static void by_message(void)
{
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	scaled(p.r.window, &p.r);
	reference(p.r.window, &p.r);
	pair_close(&p);
	pair_open(&p, (struct rig_options){.size = 120000});
	sizes(p.r.window, &p.r);
	pair_close(&p);
}

static void by_memory(void)
{
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	scaled(p.there, &p.r);
	reference(p.there, &p.r);
	pair_close(&p);
	pair_open(&p, (struct rig_options){.size = 120000});
	sizes(p.there, &p.r);
	pair_close(&p);
}

static void by_system_call(void)
{
	struct rmaext_neighbour self = {.pid = getpid()};
	rmaext_window *w;
	struct pair p;

	if (!has_copies())
		return;
	pair_open(&p, (struct rig_options){0});
	w = here(&p, (struct lie){.route = RMAEXT_CMA, .neighbour = &self});
	scaled(w, &p.r);
	reference(w, &p.r); /* updates by message */
	drop_window(w);
	pair_close(&p);
	pair_open(&p, (struct rig_options){.size = 120000});
	w = here(&p, (struct lie){.route = RMAEXT_CMA, .neighbour = &self});
	sizes(w, &p.r);
	drop_window(w);
	pair_close(&p);
}

/* -- refusals by the origin */

static void first_bad(rmaext_window *w, const struct rig *r)
{
	const int64_t bad[][2] = {{1, 0},	   {-1, 0},
				  {0, SIZE / 8},   {0, -1},
				  {0, INT64_MAX},  {0, INT64_MIN},
				  {INT64_MAX, 0},  {0, (int64_t)1 << 61},
				  {INT64_MIN, -1}, {0, ((int64_t)1 << 61) - 1}};
	int64_t ranks[64] = {0}, offsets[64] = {0};
	uint64_t values[64];
	struct many_state state;

	memset(values, 0x11, sizeof(values));
	for (size_t k = 0; k < COUNT(bad); k++)
		for (int at = 0; at < 64; at += 21) {
			ranks[at] = ranks[63] = bad[k][0];
			offsets[at] = offsets[63] = bad[k][1];
			for (int kind = RMAEXT_PUT; kind <= RMAEXT_UPDATE;
			     kind++) {
				EQUAL(many_begin(w, kind, RMAEXT_SUM,
						 RMAEXT_UINT64, 8, 64, 0, ranks,
						 offsets, values, values,
						 &state),
				      -ERANGE);
				EQUAL(state.bad, at);
				EQUAL(state.op, NULL);
			}
			ranks[at] = ranks[63] = offsets[at] = offsets[63] = 0;
		}
	for (size_t i = 0; i < r->size; i++)
		EQUAL(r->window_memory[i], 0);
	EQUAL(many_begin(w, 3, RMAEXT_SUM, 0, 8, 1, 0, ranks, offsets, values,
			 values, &state),
	      -FI_EINVAL);
	EQUAL(many_begin(w, RMAEXT_PUT, RMAEXT_SUM, 0, 0, 1, 0, ranks, offsets,
			 values, values, &state),
	      -FI_EINVAL);
	EQUAL(many_begin(w, RMAEXT_UPDATE, RMAEXT_MIN, RMAEXT_DOUBLE_COMPLEX,
			 16, 1, 0, ranks, offsets, values, values, &state),
	      -FI_EOPNOTSUPP);
	OK(many_begin(w, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_INT8, 1, 0, 0, NULL,
		      NULL, NULL, NULL, &state));
}

static void refused_here(void)
{
	struct many_state state;
	const int64_t zero = 0;
	uint64_t value = 1;
	rmaext_window *w;
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	first_bad(p.r.window, &p.r);
	first_bad(p.there, &p.r);
	w = here(&p, (struct lie){.access = RMAEXT_READ});
	EQUAL(add(w, 0, 1), -FI_EACCES);
	OK(many(w, RMAEXT_GET, 0, 8, 1, &zero, NULL, &value));
	drop_window(w);
	w = here(&p, (struct lie){.access = RMAEXT_WRITE});
	EQUAL(many(w, RMAEXT_GET, 0, 8, 1, &zero, NULL, &value), -FI_EACCES);
	EQUAL(many(w, RMAEXT_UPDATE, RMAEXT_INT64, 8, 1, &zero, &value, &value),
	      -FI_EACCES);
	OK(add(w, 0, 1));
	drop_window(w);
	w = here(&p, (struct lie){.align = 4});
	EQUAL(many_begin(w, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_INT64, 8, 1, 0,
			 &zero, &zero, &value, NULL, &state),
	      -FI_EFAULT);
	EQUAL(state.bad, 0);
	drop_window(w);
	w = window_of(p.r.origin, NULL, &p.r,
		      (struct lie){.route = RMAEXT_FABRIC});
	for (int kind = RMAEXT_PUT; kind <= RMAEXT_UPDATE; kind++) {
		EQUAL(many_begin(w, kind, RMAEXT_SUM, RMAEXT_INT64, 8, 1, 0,
				 &zero, &zero, &value, &value, &state),
		      -FI_EOPNOTSUPP);
		EQUAL(state.bad, 0);
	}
	drop_window(w);
	OK(rmaext_window_close(p.r.window));
	EQUAL(add(p.r.window, 0, 1), -FI_ESHUTDOWN);
	rmaext_window_free(p.r.window);
	p.r.window = NULL;
	pair_close(&p);
}

/* What compiled Python holds on to: there need not be a window any more. */
static void closed_for_compiled_code(void)
{
	const struct rmx_typed it = {.unit = 8, .type = -1, .closed = 1};
	const uint64_t number = (uintptr_t)&it;
	uint64_t value = 0;

	EQUAL(rmaext_nb_flush(number, -1), -FI_ESHUTDOWN);
	EQUAL(rmaext_nb_flush(number, 0), -FI_ESHUTDOWN);
	EQUAL(rmaext_nb_put(number, 0, 0, (uintptr_t)&value, 1), -FI_ESHUTDOWN);
	EQUAL(rmaext_nb_get(number, 0, 0, (uintptr_t)&value, 1), -FI_ESHUTDOWN);
	EQUAL(rmaext_nb_fetch_add_int64(number, 0, 0, 1, 0), -FI_ESHUTDOWN);
	EQUAL(rmaext_nb_compare_and_swap(number, 0, 0, (uintptr_t)&value,
					 (uintptr_t)&value, 0),
	      -FI_ESHUTDOWN);
	EQUAL(rmaext_nb_compare_and_swap_int64(number, 0, 0, 0, 1, 0),
	      -FI_ESHUTDOWN);
}

static void *shifter(void *arg)
{
	struct worker *me = arg;
	uint32_t seed = 3;

	while (!atomic_load(me->stop)) {
		const int at = (int)(noise(&seed) >> 8) % N;
		const int64_t to = (noise(&seed) & 0x1000) ? -1 : SIZE;

		__atomic_store_n(&me->offsets[at], to, __ATOMIC_RELAXED);
		__atomic_store_n(&me->offsets[at], 3, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* Another thread changes the offsets during the call: no place is missed. */
static void changed(void)
{
	static int64_t offsets[N];
	static uint64_t values[N], results[N];
	struct rmaext_neighbour self = {.pid = getpid()};
	rmaext_window *windows[3];
	const int routes = has_copies() ? 3 : 2;
	atomic_bool stop;
	struct worker one = {.offsets = offsets, .stop = &stop};
	struct pair p;

	atomic_init(&stop, false);
	pair_open(&p, (struct rig_options){0});
	windows[0] = p.r.window;
	windows[1] = p.there;
	windows[2] =
		here(&p, (struct lie){.route = RMAEXT_CMA, .neighbour = &self});
	OK(pthread_create(&one.thread, NULL, shifter, &one));
	for (int i = 0; i < 240; i++) {
		int ret = many(windows[i % routes], i % 4, RMAEXT_UINT64, 8, N,
			       offsets, values, results);

		CHECK(!ret || ret == -ERANGE || ret == -FI_EINVAL);
		rig_guards(&p.r);
	}
	atomic_store(&stop, true);
	pthread_join(one.thread, NULL);
	drop_window(windows[2]);
	pair_close(&p);
}

static void *rank_shifter(void *arg)
{
	struct worker *me = arg;

	while (!atomic_load(me->stop)) {
		__atomic_store_n(&me->offsets[1], (int64_t)1 << 40,
				 __ATOMIC_RELAXED);
		rmx_relax(); /* others see it */
		__atomic_store_n(&me->offsets[1], 0, __ATOMIC_RELAXED);
		rmx_relax();
	}
	return NULL;
}

/* The same of a rank, which is none while it is looked at, or is one again. */
static void rank_changed(void)
{
	static const int64_t offsets[2] = {3, 5};
	static const uint64_t values[2] = {7, 9};
	static int64_t ranks[2];
	struct many_state state;
	atomic_bool stop;
	struct worker one = {.offsets = ranks, .stop = &stop};
	struct pair p;

	atomic_init(&stop, false);
	pair_open(&p, (struct rig_options){0});
	OK(pthread_create(&one.thread, NULL, rank_shifter, &one));
	for (int i = 0; i < 20000; i++) {
		int ret = many_begin(i % 2 ? p.r.window : p.there, RMAEXT_PUT,
				     0, 0, 8, 2, 0, ranks, offsets, values,
				     NULL, &state);

		while (ret == RMAEXT_PENDING)
			ret = many_wait(&state);
		CHECK(!ret || ret == -ERANGE || ret == -FI_EINVAL);
	}
	atomic_store(&stop, true);
	pthread_join(one.thread, NULL);
	pair_close(&p);
}

const struct test tests[] = {
	{"by_message", by_message, NULL, NULL},
	{"by_memory", by_memory, NULL, NULL},
	{"by_system_call", by_system_call, NULL, NULL},
	{"refused_here", refused_here, NULL, NULL},
	{"closed_for_compiled_code", closed_for_compiled_code, NULL, NULL},
	{"changed", changed, NULL, NULL},
	{"rank_changed", rank_changed, NULL, NULL},
	{0},
};
