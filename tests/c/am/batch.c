/* SPDX-License-Identifier: BSD-3-Clause */
/* Many operations in a call, and the messages that carry them. */
#include "check.h"
#include "am/am.h"

#include <arpa/inet.h>
#include <sys/syscall.h>

enum { SIZE = 4096, N = 5000, THREADS = 3 };

static const uint8_t secret[RMX_TOKEN] = "fifteen letters";

/* A rig whose target has the window too, under a token. */
struct pair {
	struct rig r;
	rmaext_window *there;
	atomic_bool stop;
	pthread_t server;
};

struct lie { /* what the origin believes of the target */
	uint64_t size;
	int access;
	uint8_t align;
	uint8_t route;
	const uint8_t *token;
	struct rmaext_near *near;
	double timeout;
};

static rmaext_window *window_of(rmaext_fabric *f, rmaext_peer *peer,
				const struct rig *r, struct lie lie)
{
	uint64_t size = lie.size ? lie.size : r->size, base = 0;
	uint64_t address = (uintptr_t)r->window_memory;
	uint8_t access = (uint8_t)(lie.access ? lie.access : 3);
	void *map = r->window_memory;
	uint8_t key[256] = {0};
	rmaext_window *w = NULL;

	OK(window_new(f,
		      &(struct ranks){
			      .count = 1,
			      .token = lie.token ? lie.token : secret,
			      .peer = &peer,
			      .near = lie.near ? &lie.near : NULL,
			      .map = &map,
			      .address = &address,
			      .size = &size,
			      .base = &base,
			      .access = &access,
			      .align = &lie.align,
			      .route = &lie.route,
			      .keys = key,
			      .key_len = r->key_len,
		      },
		      (int64_t)((lie.timeout > 0 ? lie.timeout : 10) * 1e9),
		      &w));
	return w;
}

static void drop_window(rmaext_window *w)
{
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
}

static rmaext_window *here(struct pair *p, struct lie lie)
{
	lie.route = lie.route ? lie.route : RMAEXT_FABRIC;
	return window_of(p->r.origin, p->r.peer, &p->r, lie);
}

static void pair_open(struct pair *p, struct rig_options o)
{
	o.size = o.size ? o.size : SIZE;
	o.two = true;
	rig_open(&p->r, o);
	OK(rmaext_window_close(p->r.window));
	rmaext_window_free(p->r.window);
	p->r.window = here(p, (struct lie){.timeout = o.timeout});
	p->there = window_of(p->r.target, peer_of(p->r.target, p->r.origin),
			     &p->r, (struct lie){.route = RMAEXT_DIRECT});
	atomic_init(&p->stop, false);
}

static void pair_close(struct pair *p)
{
	if (p->there)
		drop_window(p->there);
	rig_close(&p->r);
}

static void *serve(void *arg)
{
	struct pair *p = arg;

	while (!atomic_load(&p->stop))
		rmaext_fabric_progress(p->r.target, 300000);
	return NULL;
}

static void serve_start(struct pair *p)
{
	atomic_store(&p->stop, false);
	OK(pthread_create(&p->server, NULL, serve, p));
}

static void serve_stop(struct pair *p)
{
	atomic_store(&p->stop, true);
	pthread_join(p->server, NULL);
}

/* One call on a window of one rank, to its end. */
static int many(rmaext_window *w, int kind, int type, uint64_t unit, uint64_t n,
		const int64_t *offsets, const void *values, void *results)
{
	const int64_t rank = 0;
	struct rmaext_many state;
	int ret =
		rmaext_many(w, kind, RMAEXT_SUM, type, unit, n, RMAEXT_ONE_RANK,
			    &rank, offsets, values, results, &state);

	while (ret == RMAEXT_PENDING)
		ret = rmaext_many_wait(&state);
	rmaext_many_release(&state);
	EQUAL(state.batch, NULL);
	return ret;
}

static int add(rmaext_window *w, int64_t offset, uint64_t value)
{
	return many(w, RMAEXT_UPDATE, RMAEXT_UINT64, 8, 1, &offset, &value,
		    NULL);
}

/* -- results */

static uint32_t noise(uint32_t *seed)
{
	return *seed = *seed * 1664525 + 1013904223;
}

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
	struct rmaext_many state;
	int ret = rmaext_many_at(w, kind, RMAEXT_SUM, RMAEXT_UINT64, unit,
				 scale, n, &rank, offsets,
				 kind == RMAEXT_GET ? NULL : data,
				 kind == RMAEXT_GET ? data : NULL, &state);

	while (ret == RMAEXT_PENDING)
		ret = rmaext_many_wait(&state);
	rmaext_many_release(&state);
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
	EQUAL(many_at(w, RMAEXT_PUT, 8, 0, 1, cells, ones), -FI_EINVAL);
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
	struct rmaext_near self = {.pid = getpid()};
	rmaext_window *w;
	struct pair p;

	if (!has_copies())
		return;
	pair_open(&p, (struct rig_options){0});
	w = here(&p, (struct lie){.route = RMAEXT_CMA, .near = &self});
	scaled(w, &p.r);
	reference(w, &p.r); /* updates by message */
	drop_window(w);
	pair_close(&p);
	pair_open(&p, (struct rig_options){.size = 120000});
	w = here(&p, (struct lie){.route = RMAEXT_CMA, .near = &self});
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
	struct rmaext_many state;

	memset(values, 0x11, sizeof(values));
	for (size_t k = 0; k < COUNT(bad); k++)
		for (int at = 0; at < 64; at += 21) {
			ranks[at] = ranks[63] = bad[k][0];
			offsets[at] = offsets[63] = bad[k][1];
			for (int kind = RMAEXT_PUT; kind <= RMAEXT_UPDATE;
			     kind++) {
				EQUAL(rmaext_many(w, kind, RMAEXT_SUM,
						  RMAEXT_UINT64, 8, 64, 0,
						  ranks, offsets, values,
						  values, &state),
				      -ERANGE);
				EQUAL(state.bad, at);
				EQUAL(state.batch, NULL);
			}
			ranks[at] = ranks[63] = offsets[at] = offsets[63] = 0;
		}
	for (size_t i = 0; i < r->size; i++)
		EQUAL(r->window_memory[i], 0);
	EQUAL(rmaext_many(w, 3, RMAEXT_SUM, 0, 8, 1, 0, ranks, offsets, values,
			  values, &state),
	      -FI_EINVAL);
	EQUAL(rmaext_many(w, RMAEXT_PUT, RMAEXT_SUM, 0, 0, 1, 0, ranks, offsets,
			  values, values, &state),
	      -FI_EINVAL);
	EQUAL(rmaext_many(w, RMAEXT_UPDATE, RMAEXT_MIN, RMAEXT_DOUBLE_COMPLEX,
			  16, 1, 0, ranks, offsets, values, values, &state),
	      -FI_EOPNOTSUPP);
	OK(rmaext_many(w, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_INT8, 1, 0, 0, NULL,
		       NULL, NULL, NULL, &state));
}

static void refused_here(void)
{
	struct rmaext_many state;
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
	EQUAL(rmaext_many(w, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_INT64, 8, 1, 0,
			  &zero, &zero, &value, NULL, &state),
	      -FI_EFAULT);
	EQUAL(state.bad, 0);
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
}

/* -- refusals by the target */

static void refused_there(void)
{
	static const uint8_t other[RMX_TOKEN] = "some other name";
	const int64_t far = SIZE / 8, zero = 0;
	uint64_t value = 1;
	rmaext_window *w;
	struct pair p;

	pair_open(&p, (struct rig_options){.shift = 4});
	w = here(&p, (struct lie){.size = 2 * SIZE});
	EQUAL(many(w, RMAEXT_PUT, 0, 8, 1, &far, &value, NULL), -ERANGE);
	EQUAL(many(w, RMAEXT_GET, 0, 8, 1, &far, NULL, &value), -ERANGE);
	EQUAL(add(w, 0, 1), -FI_EFAULT); /* the shift */
	drop_window(w);
	w = here(&p, (struct lie){.token = other, .timeout = 0.3});
	EQUAL(many(w, RMAEXT_PUT, 0, 8, 1, &zero, &value, NULL), -FI_ETIMEDOUT);
	drop_window(w);
	drop_window(p.there);
	p.there = window_of(p.r.target, peer_of(p.r.target, p.r.origin), &p.r,
			    (struct lie){.access = RMAEXT_READ});
	EQUAL(many(p.r.window, RMAEXT_PUT, 0, 8, 1, &zero, &value, NULL),
	      -FI_EACCES);
	OK(rmaext_window_close(p.there));
	EQUAL(many(p.r.window, RMAEXT_GET, 0, 8, 1, &zero, NULL, &value),
	      -FI_ESHUTDOWN);
	rmaext_window_free(p.there);
	p.there = NULL;
	for (size_t i = 0; i < p.r.size; i++)
		EQUAL(p.r.window_memory[i], 0);
	pair_close(&p);
}

/* A message by hand: header, two offsets, two values. */
struct message {
	struct rmx_request_header q;
	uint64_t offsets[2], values[2];
	char more[RMX_MESSAGE];
};

static void raw(struct pair *p, const void *message, size_t len)
{
	struct rmaext_fabric *f = p->r.origin;
	int ret;

	do {
		ret = (int)fi_send(f->ep, message, len, NULL, p->r.peer->addr,
				   NULL);
		rmaext_fabric_progress(f, 20000);
	} while (ret == -FI_EAGAIN);
	OK(ret);
}

/* Requests come before their window does; they are carried out in order. */
static void early(void)
{
	static uint8_t token[RMX_TOKEN] = "the next one";
	static int64_t offsets[N];
	static uint64_t values[N];
	const int64_t rank = 0;
	struct rmaext_many state;
	rmaext_window *next, *there;
	struct pair p;
	int ret;

	for (int k = 0; k < N; k++)
		values[k] = (uint64_t)k;
	pair_open(&p, (struct rig_options){0});
	OK(add(p.r.window, 1, 1));
	for (int i = 0; i < 3; i++) {
		token[15]++;
		next = here(&p, (struct lie){.token = token});
		offsets[0] = 2; /* the rest to 0 */
		values[0] = (uint64_t)i;
		ret = rmaext_many(next, RMAEXT_PUT, RMAEXT_SUM, 0, 8, N,
				  RMAEXT_ONE_RANK, &rank, offsets, values, NULL,
				  &state);
		EQUAL(ret, RMAEXT_PENDING);
		EQUAL(((uint64_t *)p.r.window_memory)[2], i ? i - 1 : 0);
		there = window_of(
			p.r.target, peer_of(p.r.target, p.r.origin), &p.r,
			(struct lie){.route = RMAEXT_DIRECT, .token = token});
		while (ret == RMAEXT_PENDING)
			ret = rmaext_many_wait(&state);
		OK(ret);
		EQUAL(((uint64_t *)p.r.window_memory)[0], N - 1);
		EQUAL(((uint64_t *)p.r.window_memory)[2], i);
		drop_window(there);
		drop_window(next);
	}
	pair_close(&p);
}

/*
 * Many origins are early; the others go on. What waits is looked at now and
 * then, each with those of its own origin only: the alarm tells otherwise.
 */
static void many_early(void)
{
	enum { ORIGINS = 450, EACH = 4, ROUNDS = 3000 };
	struct message m = {
		.q = {.magic = RMX_REQUEST,
		      .form = RMX_ELEMENTS,
		      .kind = RMAEXT_PUT,
		      .token = "it never comes",
		      .count = 1,
		      .unit = 8},
	};
	rmaext_peer *peer;
	char address[256];
	size_t len = sizeof(address);
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	OK(add(p.r.window, 0, 1));
	OK(rmaext_fabric_address(p.r.origin, address, &len));
	for (int i = 0; i < ORIGINS; i++) {
		/* of a sockaddr_in */
		const uint32_t host = htonl(0x7f010000u + (uint32_t)i);

		memcpy(address + 4, &host, sizeof(host));
		OK(rmaext_peer_add(p.r.target, address, len, -1, &peer));
		m.q.name = rmx_name(address, len);
		for (int k = 0; k < EACH; k++)
			raw(&p, &m, offsetof(struct message, values));
	}
	for (int i = 0; i < ROUNDS; i++)
		OK(add(p.r.window, 0, 1));
	EQUAL(*(uint64_t *)p.r.window_memory, ROUNDS + 1);
	serve_stop(&p);
	EQUAL(p.r.target->am->early_count, ORIGINS * EACH);
	pair_close(&p);
}

static void malformed(void)
{
	static struct message m, good, loops;
	struct pair p;
	uint64_t *cells;
	uint32_t seed = 1;

	pair_open(&p, (struct rig_options){0});
	cells = (uint64_t *)p.r.window_memory;
	OK(add(p.r.window, 0, 0));
	good = (struct message){
		.q = {.magic = RMX_REQUEST,
		      .form = RMX_ELEMENTS,
		      .kind = RMAEXT_UPDATE,
		      .op = RMAEXT_SUM,
		      .type = RMAEXT_UINT64,
		      .id = 4000,
		      .name = p.r.origin->am->name,
		      .count = 2,
		      .unit = 8},
		.offsets = {8, 16},
		.values = {5, 6},
	};
	memcpy(good.q.token, secret, sizeof(secret));
	const size_t len = offsetof(struct message, more);

#define BAD(length, ...)                       \
	do {                                   \
		m = good;                      \
		__VA_ARGS__;                   \
		raw(&p, &m, length);           \
		OK(add(p.r.window, 0, 1));     \
		EQUAL(cells[1], 0);            \
		EQUAL(cells[2], 0);            \
		EQUAL(cells[SIZE / 8 - 1], 0); \
	} while (0)

	for (size_t n = 1; n < len; n += n < 8 ? 1 : 7)
		BAD(n, );
	BAD(len + 1, );
	BAD(len + 16, );
	BAD(RMX_MESSAGE, );
	BAD(len, m.q.magic = 0);
	BAD(len, m.q.magic ^= 1);
	BAD(len, m.q.magic = RMX_REPLY);
	BAD(len, m.q.magic = RMX_REPLY; m.q.id = 0);
	BAD(len, m.q.magic = RMX_REPLY; m.q.id = UINT64_MAX);
	BAD(len, m.q.form = 0);
	BAD(len, m.q.form = RMX_RANGES);
	BAD(len, m.q.form = 3);
	BAD(len, m.q.kind = 4);
	BAD(len, m.q.kind = 255);
	BAD(len, m.q.kind = RMAEXT_GET);
	BAD(len, m.q.type = RMAEXT_LONG_DOUBLE);
	BAD(len, m.q.type = 255);
	BAD(len, m.q.type = RMAEXT_INT32);
	BAD(len, m.q.form = RMX_LOOPS);
	BAD(len, m.q.form = 4);
	BAD(len, m.q.count = 0);
	BAD(len, m.q.count = 1);
	BAD(len, m.q.count = 3);
	BAD(len, m.q.count = UINT32_MAX);
	BAD(len, m.q.kind = RMAEXT_PUT; m.q.count = 0x10000000; m.q.unit = 8);
	BAD(len, m.q.kind = RMAEXT_PUT; m.q.unit = 0);
	BAD(len, m.q.kind = RMAEXT_PUT; m.q.unit = 9);
	BAD(len, m.q.kind = RMAEXT_PUT; m.q.unit = UINT64_MAX - 7);
	BAD(len, m.q.kind = RMAEXT_PUT; m.q.unit = (uint64_t)1 << 63);
	BAD(len - 16, m.q.kind = RMAEXT_GET; m.q.unit = RMX_MESSAGE);
	BAD(len - 16, m.q.kind = RMAEXT_GET; m.q.unit = UINT64_MAX / 2);
	BAD(len, m.q.rank = 1);
	BAD(len, m.q.rank = UINT32_MAX);
	BAD(len, m.offsets[1] = SIZE);
	BAD(len, m.offsets[1] = SIZE - 7);
	BAD(len, m.offsets[1] = UINT64_MAX);
	BAD(len, m.offsets[1] = UINT64_MAX - 7);
	BAD(len, m.offsets[0] = (uint64_t)1 << 63);
	BAD(len, m.offsets[0] = 12);
	BAD(len, m.q.token[0] ^= 1);
	BAD(len, m.q.token[15] ^= 0x80; m.q.name++);
	BAD(len, memset(m.q.token, 0, sizeof(m.q.token)));
	/* one loop of two turns: first, start, count, step; and two values */
	loops = good;
	loops.q.form = RMX_LOOPS;
	memcpy(loops.offsets, (uint64_t[]){1, 8, 0, 2, 8, 5, 6}, 7 * 8);
	BAD(len + 24, m = loops; m.offsets[0] = 0);
	BAD(len + 24, m = loops; m.offsets[0] = 2);
	BAD(len + 24, m = loops; m.offsets[0] = UINT64_MAX);
	BAD(len + 24, m = loops; m.q.count = 3);
	BAD(len + 32, m = loops);
	BAD(len + 16, m = loops);
	BAD(len + 24, m = loops; m.offsets[1] = SIZE);
	BAD(len + 24, m = loops; m.offsets[1] = UINT64_MAX - 7);
	BAD(len + 24, m = loops; m.offsets[1] = 12);
	BAD(len + 24, m = loops; m.values[0] = SIZE / 8 - 2);
	BAD(len + 24, m = loops; m.values[0] = (uint64_t)1 << 60);
	BAD(len + 24, m = loops; m.values[1] = 0);
	BAD(len + 24, m = loops; *(uint64_t *)(void *)m.more = SIZE - 8);
	BAD(len + 24, m = loops; *(uint64_t *)(void *)m.more = (uint64_t)-16);
	for (int i = 0; i < 300; i++) /* any byte of the header but the token */
		BAD(len, {
			const size_t at = (noise(&seed) >> 8) % sizeof(m.q);

			memset(m.q.token, (int)(seed >> 24) | 1,
			       sizeof(m.q.token));
			((unsigned char *)&m)[at] = (unsigned char)(seed >> 16);
		});
	raw(&p, &good, len); /* what a good one does */
	OK(add(p.r.window, 0, 1));
	EQUAL(cells[1], 5);
	EQUAL(cells[2], 6);
	raw(&p, &loops, len + 24);
	OK(add(p.r.window, 0, 1));
	EQUAL(cells[1], 10);
	EQUAL(cells[2], 12);
	rig_guards(&p.r);
	pair_close(&p);
}

/*
 * Longer than any receive. 1.17 ends the connection, perhaps with what was sent
 * after it; then it is made anew.
 */
static void oversize(void)
{
	static const char zeros[3 * RMX_LONGEST];
	const size_t sizes[] = {RMX_LONGEST + 1, sizeof(zeros)};
	struct pair p;

	pair_open(&p, (struct rig_options){.timeout = 0.5});
	OK(add(p.r.window, 0, 1));
	for (size_t i = 0; i < COUNT(sizes); i++) {
		int64_t end = now() + 10 * SECOND;

		raw(&p, zeros, sizes[i]);
		while (add(p.r.window, 1, 1))
			CHECK(now() < end);
		for (int k = 0; k < 20; k++)
			OK(add(p.r.window, 0, 1));
	}
	EQUAL(*(uint64_t *)p.r.window_memory, 41);
	pair_close(&p);
}

/* -- endings */

/* Nothing is written after the release; then all works again. */
static void late(void)
{
	enum { MANY = 4000 };
	static int64_t offsets[MANY];
	static uint64_t values[MANY], results[MANY];
	const int64_t rank = 0;
	struct rmaext_many state;
	rmaext_window *patient;
	struct pair p;
	int ret;

	pair_open(&p,
		  (struct rig_options){.no_progress = true, .timeout = 0.3});
	patient = here(&p, (struct lie){0});
	serve_start(&p);
	OK(add(patient, 0, 0));
	serve_stop(&p);
	memset(results, 0x77, sizeof(results));
	for (int i = 0; i < 5; i++) {
		ret = rmaext_many(p.r.window, RMAEXT_UPDATE, RMAEXT_SUM,
				  RMAEXT_UINT64, 8, MANY, RMAEXT_ONE_RANK,
				  &rank, offsets, values, results, &state);
		if (i % 2) { /* given up */
			EQUAL(ret, RMAEXT_PENDING);
		} else {
			while (ret == RMAEXT_PENDING)
				ret = rmaext_many_wait(&state);
			EQUAL(ret, -FI_ETIMEDOUT);
		}
		rmaext_many_release(&state);
	}
	serve_start(&p);
	for (int i = 0; i < 30; i++) {
		rmaext_fabric_progress(p.r.origin, 3000000);
		for (int k = 0; k < MANY; k++)
			EQUAL(results[k], 0x7777777777777777);
	}
	for (int i = 0; i < 50; i++)
		OK(add(patient, 1, 2));
	serve_stop(&p);
	drop_window(patient);
	EQUAL(((uint64_t *)p.r.window_memory)[1], 100);
	pair_close(&p);
}

/* The owner gives up while answers come. */
static void give_up(void)
{
	enum { MANY = 3000 };
	static int64_t offsets[MANY];
	const int64_t rank = 0;
	struct rmaext_many state;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	for (int i = 0; i < 300; i++) {
		rmaext_window *w =
			here(&p, (struct lie){.timeout = 2e-6 * (i % 60 + 1)});
		uint64_t *values = calloc(MANY, 8), *results = calloc(MANY, 8);
		int ret;

		CHECK(values && results);
		ret = rmaext_many(w, i % 3, RMAEXT_SUM, RMAEXT_UINT64, 8, MANY,
				  RMAEXT_ONE_RANK, &rank, offsets, values,
				  results, &state);
		CHECK(!ret || ret == RMAEXT_PENDING || ret == -FI_ETIMEDOUT);
		rmaext_many_release(&state);
		free(values);
		free(results);
		drop_window(w);
	}
	OK(add(p.r.window, 0, 1));
	serve_stop(&p);
	pair_close(&p);
}

/* Boxes that are not used: they keep others from the peer. */
static void take_boxes(struct pair *p, struct rmx_send_buffer **boxes, int n)
{
	struct rmx_am *ex = p->r.origin->am;

	pthread_mutex_lock(&ex->lock);
	for (int i = 0; i < n; i++) {
		boxes[i] = rmx_message_new(p->r.origin, p->r.peer, p->r.window);
		CHECK(boxes[i]);
	}
	pthread_mutex_unlock(&ex->lock);
}

/* The last ones are taken next, for what is in line. */
static void drop_boxes(struct pair *p, struct rmx_send_buffer **boxes, int n)
{
	struct rmx_am *ex = p->r.origin->am;

	pthread_mutex_lock(&ex->lock);
	for (int i = 0; i < n; i++)
		rmx_message_drop(ex, boxes[i]);
	rmx_message_pump(p->r.origin, p->r.peer);
	pthread_mutex_unlock(&ex->lock);
}

/*
 * Copies that nobody answers are given up, many in a message, in time however
 * many messages there once were: the alarm tells otherwise.
 */
static void forgotten(void)
{
	enum { MADE = 4000, COPIES = 2500, ROUNDS = 300 };
	static struct rmx_send_buffer *boxes[MADE];
	static const uint64_t one = 1;
	rmaext_window *patient;
	rmaext_op *op;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	patient = here(&p, (struct lie){0});
	take_boxes(&p, boxes, MADE);
	drop_boxes(&p, boxes, MADE);
	for (int i = 0; i < ROUNDS; i++) {
		serve_start(&p);
		OK(add(patient, 0, 0));
		serve_stop(&p);
		take_boxes(&p, boxes, RMX_CREDITS);
		for (int k = 0; k < COPIES; k++)
			OK(rmaext_update(p.r.window, 0, 8, RMAEXT_SUM,
					 RMAEXT_UINT64, &one, NULL, NULL, 1,
					 &op));
		drop_boxes(&p, boxes, RMX_CREDITS);
		EQUAL(flush_for(p.r.window, 0, 1e-3), -FI_ETIMEDOUT);
	}
	drop_window(patient);
	pair_close(&p);
}

/* What is in line behind a batch goes when the batch is given up. */
static void behind_given_up(void)
{
	enum { MANY = 8000 }; /* more than there are credits for */
	static int64_t offsets[MANY];
	static uint64_t values[MANY], results[MANY];
	const int64_t rank = 0;
	struct rmaext_many state;
	const uint64_t one = 1;
	rmaext_op *op;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	OK(add(p.r.window, 0, 0));
	serve_stop(&p);
	EQUAL(rmaext_many(p.r.window, RMAEXT_UPDATE, RMAEXT_SUM, RMAEXT_UINT64,
			  8, MANY, RMAEXT_ONE_RANK, &rank, offsets, values,
			  results, &state),
	      RMAEXT_PENDING);
	OK(rmaext_update(p.r.window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64, &one,
			 NULL, NULL, 1, &op));
	rmaext_many_release(&state);
	serve_start(&p);
	OK(flush(p.r.window));
	serve_stop(&p);
	EQUAL(((uint64_t *)p.r.window_memory)[1], 1);
	pair_close(&p);
}

/* The fabric closes with requests on their way. */
static void close_fabric(void)
{
	static int64_t offsets[N];
	static uint64_t values[N];
	const int64_t rank = 0;
	struct rmaext_many state;
	struct pair p;

	for (int i = 0; i < 2; i++) {
		pair_open(&p, (struct rig_options){.no_progress = true});
		EQUAL(rmaext_many(p.r.window, RMAEXT_UPDATE, RMAEXT_SUM,
				  RMAEXT_UINT64, 8, N, RMAEXT_ONE_RANK, &rank,
				  offsets, values, NULL, &state),
		      RMAEXT_PENDING);
		OK(rmaext_fabric_close(&p.r.origin));
		if (i)
			EQUAL(rmaext_many_wait(&state), -FI_ESHUTDOWN);
		rmaext_many_release(&state);
		rmaext_window_free(p.r.window);
		drop_window(p.there);
		OK(rmaext_memory_close(&p.r.memory));
		OK(rmaext_fabric_close(&p.r.target));
		rig_guards(&p.r);
		free(p.r.block);
	}
}

/* -- threads */

struct worker {
	pthread_t thread;
	rmaext_window *window;
	int ret;
	int64_t *offsets;
	atomic_bool *stop;
};

static void *adder(void *arg)
{
	struct worker *me = arg;
	int64_t offsets[200];
	uint64_t values[200];

	for (int i = 0; i < 200; i++) {
		offsets[i] = i % 3;
		values[i] = 1;
	}
	for (int i = 0; i < 30 && !me->ret; i++)
		me->ret = many(me->window, RMAEXT_UPDATE, RMAEXT_UINT64, 8, 200,
			       offsets, values, i % 2 ? NULL : values);
	return NULL;
}

/* fetch_add leaves its results in values: count places, not sums. */
static void *counter(void *arg)
{
	struct worker *me = arg;
	const uint64_t one = 1;

	for (int i = 0; i < 6000 && !me->ret; i++)
		me->ret = add(me->window, 0, one);
	return NULL;
}

static void *until_closed(void *arg)
{
	struct worker *me = arg;

	do
		me->ret = add(me->window, 0, 1);
	while (!me->ret);
	return NULL;
}

static void start_all(struct worker *all, int n, rmaext_window *w,
		      void *(*work)(void *))
{
	for (int i = 0; i < n; i++) {
		all[i] = (struct worker){.window = w};
		OK(pthread_create(&all[i].thread, NULL, work, &all[i]));
	}
}

static void join_all(struct worker *all, int n, int wanted)
{
	for (int i = 0; i < n; i++) {
		pthread_join(all[i].thread, NULL);
		EQUAL(all[i].ret, wanted);
	}
}

/* By message from several threads, and by memory: none is lost. */
static void threads(void)
{
	struct worker all[THREADS], one;
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	start_all(all, THREADS, p.r.window, counter);
	start_all(&one, 1, p.there, counter);
	join_all(&one, 1, 0);
	join_all(all, THREADS, 0);
	EQUAL(*(uint64_t *)p.r.window_memory, (THREADS + 1) * 6000);
	start_all(all, THREADS, p.r.window, adder);
	join_all(all, THREADS, 0);
	pair_close(&p);
}

/* The target closes the window under requests. */
static void close_there(void)
{
	struct worker all[THREADS];
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	for (int i = 0; i < 10; i++) {
		start_all(all, THREADS, p.r.window, until_closed);
		nap(0.01);
		drop_window(p.there);
		join_all(all, THREADS, -FI_ESHUTDOWN);
		p.there = window_of(p.r.target, peer_of(p.r.target, p.r.origin),
				    &p.r, (struct lie){.route = RMAEXT_DIRECT});
	}
	pair_close(&p);
}

/* And the origin its own. */
static void close_here(void)
{
	struct worker all[THREADS];
	struct pair p;

	pair_open(&p, (struct rig_options){0});
	for (int i = 0; i < 10; i++) {
		start_all(all, THREADS, p.r.window, until_closed);
		nap(0.01);
		OK(rmaext_window_close(p.r.window));
		join_all(all, THREADS, -FI_ESHUTDOWN);
		rmaext_window_free(p.r.window);
		p.r.window = here(&p, (struct lie){0});
	}
	pair_close(&p);
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
	struct rmaext_near self = {.pid = getpid()};
	rmaext_window *windows[3];
	const int routes = has_copies() ? 3 : 2;
	atomic_bool stop;
	struct worker one = {.offsets = offsets, .stop = &stop};
	struct pair p;

	atomic_init(&stop, false);
	pair_open(&p, (struct rig_options){0});
	windows[0] = p.r.window;
	windows[1] = p.there;
	windows[2] = here(&p, (struct lie){.route = RMAEXT_CMA, .near = &self});
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

/* One target answers nothing; the other's are not held up. */
static void others_go_on(void)
{
	enum { MANY = 20000 };
	static int64_t offsets[MANY];
	static uint64_t values[MANY];
	const int64_t rank = 0;
	struct rmaext_many state;
	rmaext_window *silent;
	rmaext_fabric *mute;
	rmaext_peer *peer;
	struct pair p;
	int64_t begin;

	pair_open(&p, (struct rig_options){0});
	mute = fabric_open(false, false);
	peer = peer_of(p.r.origin, mute);
	silent = window_of(p.r.origin, peer, &p.r,
			   (struct lie){.route = RMAEXT_FABRIC});
	for (int i = 0; i < 3; i++) {
		EQUAL(rmaext_many(silent, RMAEXT_UPDATE, RMAEXT_SUM,
				  RMAEXT_UINT64, 8, MANY, RMAEXT_ONE_RANK,
				  &rank, offsets, values, NULL, &state),
		      RMAEXT_PENDING);
		begin = now();
		for (int k = 0; k < 100; k++)
			OK(add(p.r.window, 0, 1));
		CHECK(now() - begin < 5 * SECOND);
		if (i < 2)
			rmaext_many_release(&state);
	}
	rmaext_many_release(&state);
	drop_window(silent);
	OK(rmaext_fabric_close(&mute));
	pair_close(&p);
}

/* -- operations that go as messages -- */

/* Bits that only the order of the updates makes: c = c * 3 is not to be had,
 * so a replace and a sum by turns. */
static void in_order(void)
{
	enum { MOST = 40000 }; /* more than a box, less than a message */
	static const uint64_t counts[] = {1,	1,    3000, 2,	  5000, 1,
					  MOST, 2000, 1,    MOST, MOST, 7};
	static uint64_t ones[MOST], high[MOST], old[MOST];
	struct pair p;
	uint64_t *cells;

	for (int k = 0; k < MOST; k++)
		ones[k] = 1;
	pair_open(&p, (struct rig_options){.size = MOST * 8});
	cells = (uint64_t *)p.r.window_memory;
	for (int round = 0; round < 30; round++) {
		uint64_t want = 1000;

		for (size_t k = 0; k < COUNT(counts); k++) {
			const size_t n =
				counts[(k + (size_t)round * 5) % COUNT(counts)];

			if ((k + (size_t)round) % 3) {
				OK(update(p.r.window, 0, RMAEXT_SUM,
					  RMAEXT_UINT64, ones, NULL, n));
				want++;
				continue;
			}
			want = 1000 * (k + 1);
			for (size_t i = 0; i < n; i++)
				high[i] = want;
			OK(update(p.r.window, 0, RMAEXT_REPLACE, RMAEXT_UINT64,
				  high, NULL, n));
		}
		if (round % 2) {
			OK(update(p.r.window, 0, RMAEXT_NO_OP, RMAEXT_UINT64,
				  NULL, old, 1));
			EQUAL(old[0], want);
		} else if (round % 4) {
			const int64_t zero = 0;

			OK(many(p.r.window, RMAEXT_GET, 0, 8, 1, &zero, NULL,
				old));
			EQUAL(old[0], want);
		}
		OK(flush(p.r.window));
		EQUAL(cells[0], want);
	}
	pair_close(&p);
}

/* Of all lengths around those that change how it is sent. */
static void lengths(void)
{
	enum { MOST = 300000 };
	static const size_t counts[] = {1,     7,     2000,   2009, 2010,
					2011,  4096,  4097,   5000, 65535,
					65536, 65537, 131073, MOST};
	uint64_t *values = malloc(MOST * 8), *old = malloc(MOST * 8);
	uint64_t *want = calloc(MOST, 8), *cells;
	struct pair p;

	CHECK(values && old && want);
	pair_open(&p, (struct rig_options){.size = MOST * 8});
	cells = (uint64_t *)p.r.window_memory;
	for (size_t k = 0; k < COUNT(counts); k++) {
		const size_t n = counts[k], at = (MOST - n) / 2;

		fill(values, n * 8, (unsigned int)k);
		OK(update(p.r.window, at * 8, RMAEXT_SUM, RMAEXT_UINT64, values,
			  NULL, n));
		for (size_t i = 0; i < n; i++)
			want[at + i] += values[i];
		OK(flush(p.r.window));
		CHECK(!memcmp(cells, want, MOST * 8));
		memset(old, 0, n * 8);
		OK(update(p.r.window, at * 8, RMAEXT_SUM, RMAEXT_UINT64, values,
			  old, n));
		CHECK(!memcmp(old, want + at, n * 8));
		for (size_t i = 0; i < n; i++)
			want[at + i] += values[i];
		CHECK(!memcmp(cells, want, MOST * 8));
		OK(update(p.r.window, at * 8, RMAEXT_NO_OP, RMAEXT_UINT64, NULL,
			  old, n));
		CHECK(!memcmp(old, want + at, n * 8));
		/* every other one is swapped */
		for (size_t i = 0; i < n; i++)
			old[i] += i % 2;
		OK(swap(p.r.window, at * 8, RMAEXT_UINT64, old, values, old,
			n));
		CHECK(!memcmp(old, want + at, n * 8));
		for (size_t i = 0; i < n; i += 2)
			want[at + i] = values[i];
		CHECK(!memcmp(cells, want, MOST * 8));
	}
	free(values);
	free(old);
	free(want);
	pair_close(&p);
}

/* More of them than there are credits, slots or room in line. */
static void stream(void)
{
	enum { MANY = 30000 };
	const uint64_t one = 1;
	char block[3000];
	struct pair p;
	uint64_t *cells;

	memset(block, 0, sizeof(block));
	block[0] = 1;
	pair_open(&p, (struct rig_options){0});
	cells = (uint64_t *)p.r.window_memory;
	for (uint64_t i = 0; i < MANY; i++)
		OK(update(p.r.window, 8 * (i % 7), RMAEXT_SUM, RMAEXT_UINT64,
			  &one, NULL, 1));
	for (int i = 0; i < 3000; i++)
		OK(update(p.r.window, 64, RMAEXT_SUM, RMAEXT_UINT64, block,
			  NULL, sizeof(block) / 8));
	OK(flush(p.r.window));
	for (uint64_t i = 0; i < 7; i++)
		EQUAL(cells[i], MANY / 7 + (i < MANY % 7));
	EQUAL(cells[8], 3000);
	EQUAL(rmaext_window_pending(p.r.window), 0);
	pair_close(&p);
}

static struct rmx_control_block *block_new(void)
{
	const size_t size = rmaext_block_bytes(1);
	void *block = aligned_alloc(64, size);

	CHECK(block);
	return memset(block, 0, size);
}

static void block_give(struct rmaext_window *w, struct rmx_control_block *block)
{
	void *first = block;

	rmaext_blocks_release(w->blocks);
	w->blocks = NULL;
	if (block)
		OK(rmaext_blocks_new(w->members, &first, &w->blocks));
}

/* Puts in order with updates, counted where they arrive. */
static void notify(void)
{
	enum { LONG = 20000 }; /* words: several messages of a provider */
	static uint64_t words[LONG];
	struct rmx_control_block *block = block_new();
	struct pair p;
	rmaext_op *op;

	pair_open(&p, (struct rig_options){.size = LONG * 8});
	block_give(p.there, block);
	for (uint64_t i = 1; i <= 200; i++) {
		words[0] = i;
		OK(finish(rmx_message_put(p.r.window, 0, 8, words, 8, 3, &op),
			  &op));
		OK(finish(rmx_message_put(p.r.window, 0, 0, NULL, 0, 255, &op),
			  &op));
		OK(update(p.r.window, 8, RMAEXT_SUM, RMAEXT_UINT64, words, NULL,
			  1));
	}
	OK(flush(p.r.window));
	EQUAL(((uint64_t *)p.r.window_memory)[1], 400);
	EQUAL(atomic_load(&block->notify[3]), 200);
	EQUAL(atomic_load(&block->notify[255]), 200);
	fill(words, sizeof(words), 3);
	OK(finish(
		rmx_message_put(p.r.window, 0, 0, words, sizeof(words), 4, &op),
		&op));
	CHECK(!memcmp(p.r.window_memory, words, sizeof(words)));
	EQUAL(atomic_load(&block->notify[4]), 1);
	/* of a provider that sends from one piece of memory only: in parts */
	p.r.origin->am->iov = 1;
	OK(finish(
		rmx_message_put(p.r.window, 0, 0, words, sizeof(words), 5, &op),
		&op));
	EQUAL(atomic_load(&block->notify[5]), 1);
	OK(finish(rmx_message_put(p.r.window, 0, 8, words, 8, -1, &op), &op));
	OK(flush(p.r.window));
	CHECK(!memcmp(p.r.window_memory + 8, words, 8));
	for (int k = 0; k < RMAEXT_NOTIFY; k++)
		EQUAL(atomic_load(&block->notify[k]),
		      k == 3 || k == 255 ? 200 : k == 4 || k == 5);
	block_give(p.there, NULL); /* then it refuses */
	OK(finish(rmx_message_put(p.r.window, 0, 8, words, 8, 3, &op), &op));
	EQUAL(flush(p.r.window), -FI_EINVAL);
	pair_close(&p);
	free(block);
}

/* A range by hand, or two. */
struct two_ranges {
	struct rmx_request_header q;
	struct rmx_range one;
	uint64_t first[2];
	struct rmx_range two;
	uint64_t second[2];
	char more[64];
};

static void malformed_ranges(void)
{
	static struct two_ranges m, good;
	struct rmx_control_block *block = block_new();
	struct pair p;
	uint64_t *cells;
	uint32_t seed = 5;

	pair_open(&p, (struct rig_options){0});
	block_give(p.there, block);
	cells = (uint64_t *)p.r.window_memory;
	OK(add(p.r.window, 0, 0));
	good = (struct two_ranges){
		.q = {.magic = RMX_REQUEST,
		      .form = RMX_RANGES,
		      .id = 4000,
		      .name = p.r.origin->am->name,
		      .count = 2},
		.one = {.offset = 8,
			.count = 2,
			.unit = 8,
			.kind = RMX_UPDATE,
			.op = RMAEXT_SUM,
			.type = RMAEXT_UINT64},
		.first = {5, 6},
		.two = {.offset = 24,
			.count = 16,
			.unit = 1,
			.kind = RMX_MESSAGE_PUT,
			.flags = RMX_WITH_NOTIFY,
			.slot = 7},
		.second = {7, 8},
	};
	memcpy(good.q.token, secret, sizeof(secret));
	const size_t len = offsetof(struct two_ranges, more);

#undef BAD
#define BAD(length, ...)                              \
	do {                                          \
		m = good;                             \
		__VA_ARGS__;                          \
		raw(&p, &m, length);                  \
		OK(add(p.r.window, 0, 1));            \
		for (int k_ = 1; k_ < SIZE / 8; k_++) \
			EQUAL(cells[k_], 0);          \
		EQUAL(block->notify[7], 0);           \
	} while (0)

	for (size_t n = sizeof(m.q); n < len; n += 7)
		BAD(n, );
	BAD(len + 1, );
	BAD(len + 16, );
	BAD(len, m.q.count = 0);
	BAD(len, m.q.count = 1);
	BAD(len, m.q.count = 3);
	BAD(len, m.q.count = UINT32_MAX);
	BAD(len, m.q.kind = 1);
	BAD(len, m.q.type = 1);
	BAD(len, m.q.unit = 8);
	BAD(len, m.q.op = 1);
	BAD(len, m.q.form = RMX_ELEMENTS);
	BAD(len, m.one.kind = RMX_PUT);
	BAD(len, m.one.kind = RMX_GET);
	BAD(len, m.one.kind = 200);
	BAD(len, m.one.op = RMAEXT_MAXLOC);
	BAD(len, m.one.op = 255);
	BAD(len, m.one.op = RMAEXT_CSWAP);
	BAD(len, m.one.op = RMAEXT_NO_OP);
	BAD(len, m.one.op = RMAEXT_CSWAP; m.one.flags = RMX_WITH_FETCH);
	BAD(len, m.one.op = RMAEXT_NO_OP; m.one.flags = RMX_WITH_FETCH);
	BAD(len, m.one.type = RMAEXT_INT32);
	BAD(len, m.one.type = 255);
	BAD(len, m.one.flags = RMX_WITH_NOTIFY);
	BAD(len, m.one.flags = 4);
	BAD(len, m.one.slot = 1);
	BAD(len, m.one.zero[2] = 1);
	BAD(len, m.one.unit = 0);
	BAD(len, m.one.unit = 16; m.one.count = 1);
	BAD(len, m.one.count = 0);
	BAD(len, m.one.count = 3);
	BAD(len, m.one.count = UINT64_MAX / 8 + 2);
	BAD(len, m.one.count = (uint64_t)1 << 61);
	BAD(len, m.one.offset = SIZE - 8);
	BAD(len, m.one.offset = SIZE);
	BAD(len, m.one.offset = UINT64_MAX - 7);
	BAD(len, m.one.offset = 12);
	BAD(len, m.two.flags = RMX_WITH_FETCH);
	BAD(len, m.two.op = RMAEXT_SUM);
	BAD(len, m.two.type = RMAEXT_UINT64);
	BAD(len, m.two.unit = 8; m.two.count = 2);
	BAD(len, m.two.slot = RMAEXT_NOTIFY);
	BAD(len, m.two.slot = UINT16_MAX);
	BAD(len, m.two.offset = SIZE - 15);
	BAD(len, m.two.count = UINT64_MAX);
	BAD(len, m.two.count = 17);
	BAD(len - 16, m.one.op = RMAEXT_NO_OP; m.one.flags = RMX_WITH_FETCH;
	    m.one.type = RMAEXT_UINT8; m.one.unit = 1;
	    m.one.count = UINT64_MAX);
	for (int i = 0; i < 300; i++) /* of either range */
		BAD(len, {
			const size_t at = (noise(&seed) >> 8) % sizeof(m.two);
			char *it = (char *)(seed & 0x80 ? &m.one : &m.two);

			m.q.count = 3; /* bad in any case */
			it[at] = (char)(seed >> 16);
		});
	raw(&p, &good, len);
	OK(add(p.r.window, 0, 1));
	EQUAL(cells[1], 5);
	EQUAL(cells[2], 6);
	EQUAL(cells[3], 7);
	EQUAL(cells[4], 8);
	EQUAL(block->notify[7], 1);
	rig_guards(&p.r);
	pair_close(&p);
	free(block);
}

/* What the target refuses although the origin did not: left to the flush. */
static void refused_updates(void)
{
	const uint64_t one = 1;
	uint64_t old = 9;
	rmaext_window *w;
	struct pair p;

	pair_open(&p, (struct rig_options){.shift = 4});
	w = here(&p, (struct lie){.size = 2 * SIZE});
	OK(update(w, SIZE, RMAEXT_SUM, RMAEXT_UINT32, &one, NULL, 1));
	EQUAL(flush(w), -ERANGE);
	OK(flush(w));
	EQUAL(update(w, SIZE, RMAEXT_SUM, RMAEXT_UINT32, &one, &old, 1),
	      -ERANGE);
	EQUAL(update(w, 0, RMAEXT_SUM, RMAEXT_UINT64, &one, &old, 1),
	      -FI_EFAULT);
	OK(flush(w));
	EQUAL(old, 9);
	drop_window(w);
	OK(rmaext_window_close(p.there));
	OK(update(p.r.window, 0, RMAEXT_SUM, RMAEXT_UINT8, &one, NULL, 1));
	EQUAL(flush(p.r.window), -FI_ESHUTDOWN);
	rmaext_window_free(p.there);
	p.there = NULL;
	pair_close(&p);
}

/* Early ones wait for their window, in order, long or short. */
static void early_updates(void)
{
	static uint8_t token[RMX_TOKEN] = "the next one";
	enum { LONG = 30000 };
	static uint64_t sevens[LONG];
	rmaext_window *next, *there;
	uint64_t *cells, five = 5;
	rmaext_op *op, *last;
	struct pair p;
	int ret;

	for (int k = 0; k < LONG; k++)
		sevens[k] = 7;
	pair_open(&p, (struct rig_options){.size = LONG * 8});
	cells = (uint64_t *)p.r.window_memory;
	for (int i = 0; i < 3; i++) {
		token[15]++;
		next = here(&p, (struct lie){.token = token});
		OK(rmaext_update(next, 0, 0, RMAEXT_REPLACE, RMAEXT_UINT64,
				 &five, NULL, NULL, 1, &op));
		ret = rmaext_update(next, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				    sevens, NULL, NULL, LONG, &last);
		EQUAL(ret, RMAEXT_PENDING);
		OK(rmaext_update(next, 0, 8, RMAEXT_REPLACE, RMAEXT_UINT64,
				 &five, NULL, NULL, 1, &op));
		there = window_of(
			p.r.target, peer_of(p.r.target, p.r.origin), &p.r,
			(struct lie){.route = RMAEXT_DIRECT, .token = token});
		OK(finish(ret, &last));
		OK(flush(next));
		EQUAL(cells[0], 12);
		EQUAL(cells[1], 5);
		EQUAL(cells[2], 7 * (i + 1));
		drop_window(there);
		drop_window(next);
	}
	pair_close(&p);
}

/* Nobody answers: short ones, a long one, one behind it. */
static void unanswered(void)
{
	enum { LONG = 200000 };
	uint64_t *values = calloc(LONG, 8), *old = calloc(LONG, 8), one = 1;
	rmaext_op *ops[3], *none;
	rmaext_window *patient;
	struct pair p;

	CHECK(values && old);
	pair_open(&p, (struct rig_options){.no_progress = true,
					   .timeout = 0.3,
					   .size = LONG * 8 + 8});
	patient = here(&p, (struct lie){0});
	serve_start(&p);
	OK(add(patient, 0, 0));
	serve_stop(&p);
	for (int i = 0; i < 20; i++)
		OK(rmaext_update(p.r.window, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				 &one, NULL, NULL, 1, &none));
	for (int i = 0; i < 3; i++) {
		memset(old, 0x77, 8 * LONG);
		EQUAL(rmaext_update(p.r.window, 0, 8, RMAEXT_SUM, RMAEXT_UINT64,
				    values, NULL, old, i == 1 ? LONG : 1,
				    &ops[i]),
		      RMAEXT_PENDING);
	}
	EQUAL(flush_for(p.r.window, -1, 0.2), -FI_ETIMEDOUT);
	for (int i = 0; i < 3; i++)
		while (rmaext_op_release(&ops[i]) == RMAEXT_PENDING)
			rmaext_fabric_progress(p.r.target, 1000000);
	EQUAL(rmaext_window_pending(p.r.window), 0);
	serve_start(&p);
	rmaext_fabric_progress(p.r.origin, 50000000);
	for (int k = 0; k < LONG; k++)
		EQUAL(old[k], 0x7777777777777777);
	for (int i = 0; i < 50; i++)
		OK(add(patient, 16, 2));
	OK(update(patient, 8, RMAEXT_SUM, RMAEXT_UINT64, values, old, LONG));
	drop_window(patient);
	serve_stop(&p);
	EQUAL(((uint64_t *)p.r.window_memory)[16], 100);
	free(values);
	free(old);
	pair_close(&p);
}

/* The process there is killed with a line before it. */
/*
 * A provider reports a receive as failed twice, as ofi_rxm does with a message
 * of two pieces when its sender dies: the landing must not be posted twice.
 */
static void failed_twice(void)
{
	const struct rmaext_error error = {.code = -FI_ECANCELED};
	const int64_t end = now() + 10 * SECOND;
	struct rmx_receive_buffer *landing;
	struct rmx_am *ex;
	unsigned int posted = 0;
	struct pair p;

	pair_open(&p, (struct rig_options){.no_progress = true});
	serve_start(&p);
	OK(add(p.r.window, 0, 1));
	serve_stop(&p);
	ex = p.r.target->am;
	landing = &ex->receive_buffers[1];
	EQUAL(landing->state, RMX_RECEIVING);
	fi_cancel(&p.r.target->ep->fid, &landing->context);
	while (landing->state == RMX_RECEIVING) {
		CHECK(now() < end);
		rmaext_fabric_progress(p.r.target, 1000000);
	}
	rmx_am_complete(p.r.target, &landing->context, 0, &error);
	EQUAL(landing->state, RMX_FREE);
	for (unsigned int i = 0; i < ex->receives_made; i++)
		posted += ex->receive_buffers[i].state == RMX_RECEIVING;
	EQUAL(posted, ex->receiving);
	serve_start(&p);
	for (int i = 0; i < 100; i++)
		OK(add(p.r.window, 0, 1));
	serve_stop(&p);
	EQUAL(*(uint64_t *)p.r.window_memory, 101);
	pair_close(&p);
}

/* Sends long messages of two pieces to that endpoint, until it is killed. */
static void sender(const int *from, const int *to)
{
	static char values[RMX_MOST];
	const struct iovec iov[] = {{values, 64}, {values, sizeof(values)}};
	char name[256];
	size_t len = (size_t)read(*from, name, sizeof(name));
	rmaext_fabric *f = fabric_open(false, false);
	struct fi_context2 contexts[RMX_CREDITS + 1];
	rmaext_peer *peer;

	OK(rmaext_peer_add(f, name, len, -1, &peer));
	while (fi_send(f->ep, values, 64, NULL, peer->addr, &contexts[0]))
		rmaext_fabric_progress(f, 1000000);
	rmaext_fabric_progress(f, 10000000);
	CHECK(write(*to, "c", 1) == 1 && read(*from, name, 1) == 1);
	for (unsigned int i = 1; i <= RMX_CREDITS; i++) {
		const struct fi_msg message = {
			.msg_iov = iov,
			.iov_count = COUNT(iov),
			.addr = peer->addr,
			.context = &contexts[i],
		};

		OK(fi_sendmsg(f->ep, &message, FI_COMPLETION));
	}
	rmaext_fabric_progress(f, 10000000);
	CHECK(write(*to, "s", 1) == 1);
	pause();
}

/* The reads of its messages fail: those of others are received as before. */
static void sender_killed(void)
{
	enum { LONG = 150000 };
	uint64_t *ones = malloc(LONG * sizeof(*ones));
	int to[2], from[2], status;
	const uint64_t *cells;
	const int64_t end = now() + 10 * SECOND;
	char name[256], byte;
	size_t len = sizeof(name);
	struct rmx_am *ex;
	struct pair p;
	pid_t child;

	CHECK(ones && !pipe(to) && !pipe(from));
	child = fork_child();
	if (!child)
		sender(&to[0], &from[1]);
	for (int i = 0; i < LONG; i++)
		ones[i] = 1;
	pair_open(&p,
		  (struct rig_options){.size = LONG * 8, .no_progress = true});
	OK(rmaext_fabric_address(p.r.target, name, &len));
	CHECK(write(to[1], name, len) == (ssize_t)len);
	ex = p.r.target->am;
	serve_start(&p);
	OK(add(p.r.window, 0, 1));
	CHECK(read(from[0], &byte, 1) == 1);
	serve_stop(&p);
	CHECK(write(to[1], "g", 1) == 1 && read(from[0], &byte, 1) == 1);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	leaky(true); /* the registrations for those reads */
	for (unsigned int i = 0; i < RMX_CREDITS; i++)
		while (ex->receive_buffers[i].state == RMX_RECEIVING) {
			CHECK(now() < end);
			rmaext_fabric_progress(p.r.target, 1000000);
		}
	leaky(false);
	serve_start(&p);
	for (int i = 0; i < 20; i++) {
		OK(add(p.r.window, 0, 1));
		OK(update(p.r.window, 0, RMAEXT_SUM, RMAEXT_UINT64, ones, NULL,
			  LONG));
	}
	OK(flush(p.r.window));
	serve_stop(&p);
	cells = (uint64_t *)p.r.window_memory;
	EQUAL(cells[0], 41);
	EQUAL(cells[LONG - 1], 20);
	free(ones);
	pair_close(&p);
}

static void killed(void)
{
	enum { LONG = 200000 };
	uint64_t *values = calloc(LONG, 8), one = 1;
	char name[256];
	size_t len = sizeof(name);
	int tell[2], status;
	rmaext_window *w;
	rmaext_peer *peer;
	rmaext_fabric *f;
	rmaext_op *op;
	struct pair p;
	int64_t begin;
	pid_t child;
	int ret;

	CHECK(values && !pipe(tell));
	child = fork_child();
	if (!child) { /* opens, and is connected to, but serves nothing */
		f = fabric_open(false, false);
		OK(rmaext_fabric_address(f, name, &len));
		CHECK(write(tell[1], name, len) == (ssize_t)len);
		for (int i = 0; i < 200; i++)
			rmaext_fabric_progress(f, 5000000);
		pause();
	}
	len = (size_t)read(tell[0], name, sizeof(name));
	CHECK((ssize_t)len > 0);
	pair_open(&p, (struct rig_options){.size = LONG * 8});
	OK(rmaext_peer_add(p.r.origin, name, len,
			   (int)syscall(SYS_pidfd_open, child, 0), &peer));
	w = window_of(p.r.origin, peer, &p.r,
		      (struct lie){.route = RMAEXT_FABRIC, .timeout = 20});
	for (int i = 0; i < 300; i++)
		OK(rmaext_update(w, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL,
				 NULL, 1, &op));
	ret = rmaext_update(w, 0, 0, RMAEXT_SUM, RMAEXT_UINT64, values, NULL,
			    NULL, LONG, &op);
	EQUAL(ret, RMAEXT_PENDING);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	begin = now();
	while (ret == RMAEXT_PENDING)
		ret = rmaext_op_wait(op);
	CHECK(ret == -FI_ENOTCONN || ret == -FI_ECONNRESET || ret < 0);
	while (rmaext_op_release(&op) == RMAEXT_PENDING)
		CHECK(now() - begin < 10 * SECOND);
	CHECK(flush(w) < 0);
	CHECK(now() - begin < 10 * SECOND);
	OK(add(p.r.window, 0, 1)); /* others go on */
	drop_window(w);
	free(values);
	pair_close(&p);
}

/* The fabric closes with a line, and its owners come later. */
static void close_with_line(void)
{
	enum { LONG = 200000 };
	uint64_t *values = calloc(LONG, 8), one = 1;
	rmaext_op *op, *none;
	struct pair p;

	CHECK(values);
	for (int i = 0; i < 2; i++) {
		pair_open(&p, (struct rig_options){.no_progress = true,
						   .size = LONG * 8});
		for (int k = 0; k < 100; k++)
			OK(rmaext_update(p.r.window, 0, 0, RMAEXT_SUM,
					 RMAEXT_UINT64, &one, NULL, NULL, 1,
					 &none));
		EQUAL(rmaext_update(p.r.window, 0, 0, RMAEXT_SUM, RMAEXT_UINT64,
				    values, NULL, values, LONG, &op),
		      RMAEXT_PENDING);
		if (i)
			OK(rmaext_fabric_close(&p.r.origin));
		else
			OK(rmaext_window_shut(p.r.window));
		EQUAL(rmaext_op_wait(op), -FI_ESHUTDOWN);
		if (!i)
			OK(rmaext_fabric_close(&p.r.origin));
		OK(rmaext_op_release(&op));
		EQUAL(rmaext_window_pending(p.r.window), 0);
		rmaext_window_free(p.r.window);
		drop_window(p.there);
		OK(rmaext_memory_close(&p.r.memory));
		OK(rmaext_fabric_close(&p.r.target));
		rig_guards(&p.r);
		free(p.r.block);
	}
	free(values);
}

static void *updater(void *arg)
{
	enum { LONG = 6000 };
	struct worker *me = arg;
	static const size_t counts[] = {1, 1, 1, 3000, 2, LONG, 1, 500};
	uint64_t *ones = malloc(LONG * 8), *old = malloc(LONG * 8);

	CHECK(ones && old);
	for (int k = 0; k < LONG; k++)
		ones[k] = 1;
	for (int i = 0; i < 800 && !me->ret; i++) {
		me->ret = update(me->window, 0, RMAEXT_SUM, RMAEXT_UINT64, ones,
				 i % 5 ? NULL : old, counts[i % 8]);
		if (!me->ret && i % 50 == 0)
			me->ret = add(me->window, 0, 1);
		if (!me->ret && i % 100 == 0)
			me->ret = flush(me->window);
	}
	free(ones);
	free(old);
	return NULL;
}

/* Updates of all lengths, batches and flushes from several threads. */
static void many_threads(void)
{
	struct worker all[THREADS];
	struct pair p;

	pair_open(&p, (struct rig_options){.size = 48000});
	start_all(all, THREADS, p.r.window, updater);
	join_all(all, THREADS, 0);
	OK(flush(p.r.window));
	EQUAL(*(uint64_t *)p.r.window_memory, THREADS * 816);
	pair_close(&p);
}

const struct test tests[] = {
	{"by_message", by_message, NULL, NULL},
	{"by_memory", by_memory, NULL, NULL},
	{"by_system_call", by_system_call, NULL, NULL},
	{"refused_here", refused_here, NULL, NULL},
	{"closed_for_compiled_code", closed_for_compiled_code, NULL, NULL},
	{"refused_there", refused_there, NULL, NULL},
	{"early", early, NULL, NULL},
	{"many_early", many_early, NULL, NULL},
	{"malformed", malformed, NULL, NULL},
	{"oversize", oversize, NULL, NULL},
	{"late", late, NULL, NULL},
	{"give_up", give_up, NULL, NULL},
	{"behind_given_up", behind_given_up, NULL, NULL},
	{"forgotten", forgotten, NULL, NULL},
	{"close_fabric", close_fabric, NULL, NULL},
	{"threads", threads, NULL, NULL},
	{"close_there", close_there, NULL, NULL},
	{"close_here", close_here, NULL, NULL},
	{"changed", changed, NULL, NULL},
	{"others_go_on", others_go_on, NULL, NULL},
	{"in_order", in_order, NULL, NULL},
	{"lengths", lengths, NULL, NULL},
	{"stream", stream, NULL, NULL},
	{"notify", notify, NULL, NULL},
	{"malformed_ranges", malformed_ranges, NULL, NULL},
	{"refused_updates", refused_updates, NULL, NULL},
	{"early_updates", early_updates, NULL, NULL},
	{"unanswered", unanswered, NULL, NULL},
	{"failed_twice", failed_twice, NULL, NULL},
	{"sender_killed", sender_killed, NULL, NULL},
	{"killed", killed, NULL, NULL},
	{"close_with_line", close_with_line, NULL, NULL},
	{"many_threads", many_threads, NULL, NULL},
	{0},
};
