/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What a flush waits for while others go on: the operations that were on their
 * way when it began. Completions are held back, and let go one by one.
 */
#include "pair.h"
#include "xfer/operation.h"

enum { LONG_PUT = 72, FLUSHES = 3, OPS = 5, HELD_MOST = 64, SLICES = 100 };

/* -- the counters: all orders of a few operations and flushes */

struct model {
	rmx_pending pending;
	uint64_t share[OPS]; /* 0: the operation has not begun */
	bool counted[OPS], done[OPS];
	uint64_t round[FLUSHES];
	unsigned int must[FLUSHES]; /* operations, a bit each */
	unsigned int may[FLUSHES];  /* 0: not known yet */
	bool begun[FLUSHES], over[FLUSHES];
	int ops, flushes;
	bool held_up; /* threads are, between reading the round and counting */
};

static unsigned int on_its_way(const struct model *m)
{
	unsigned int bits = 0;

	for (int i = 0; i < OPS; i++)
		if (m->share[i] && !m->done[i])
			bits |= 1u << i;
	return bits;
}

static unsigned int counted(const struct model *m)
{
	unsigned int bits = 0;

	for (int i = 0; i < OPS; i++)
		if (m->counted[i] && !m->done[i])
			bits |= 1u << i;
	return bits;
}

/*
 * It waits for what it must, and for no more than what is on its way when that
 * has completed, unless a thread was held up.
 */
static void flush_looks(struct model *m, int k)
{
	const unsigned int left = on_its_way(m);

	m->over[k] = rmx_completed_since(&m->pending, m->round[k]);
	if (m->over[k])
		CHECK(!(left & m->must[k]));
	if (!m->may[k] && !(left & m->must[k]))
		m->may[k] = left | m->must[k] | 1u << OPS;
	if (m->may[k] && !(left & m->may[k]) && !m->held_up)
		CHECK(m->over[k]);
}

static void flushes_look(struct model *m)
{
	for (int k = 0; k < m->flushes; k++)
		if (m->begun[k] && !m->over[k])
			flush_looks(m, k);
}

static void explore(const struct model *before)
{
	struct model m = *before;
	bool moved = false;

	for (int i = 0; i < m.ops; i++) {
		m = *before;
		if (!m.share[i]) {
			m.share[i] = rmx_share_now(&m.pending);
			if (!m.held_up)
				atomic_fetch_add(&m.pending, m.share[i]);
			m.counted[i] = !m.held_up;
		} else if (!m.counted[i]) {
			m.counted[i] = true;
			atomic_fetch_add(&m.pending, m.share[i]);
		} else if (!m.done[i]) {
			m.done[i] = true;
			atomic_fetch_sub(&m.pending, m.share[i]);
		} else {
			continue;
		}
		moved = true;
		flushes_look(&m);
		explore(&m);
		if (!before->share[i])
			break; /* they begin in order */
	}
	for (int k = 0; k < m.flushes; k++) {
		m = *before;
		if (m.begun[k] || (k && !m.begun[k - 1]))
			continue;
		moved = m.begun[k] = true;
		m.must[k] = counted(&m);
		m.round[k] = rmx_round_of(m.pending);
		flush_looks(&m, k);
		explore(&m);
	}
	if (moved)
		return;
	EQUAL(rmx_counted(before->pending), 0);
	for (int k = 0; k < m.flushes; k++)
		CHECK(before->over[k]);
}

static void all_orders(void)
{
	struct model shapes[] = {
		{.ops = 5, .flushes = 2},
		{.ops = 3, .flushes = 3},
		{.ops = 3, .flushes = 2, .held_up = true},
	};

	for (size_t i = 0; i < COUNT(shapes); i++)
		for (int last = 0; last < 2; last++) {
			atomic_store(&shapes[i].pending,
				     last * ~(uint64_t)0 << RMX_ROUND_AT);
			explore(&shapes[i]);
		}
}

/* -- completions that are held back; the reader of the CQ has them */

struct held {
	void *context;
	size_t len;
};

static struct rmx_hooks hooks; /* of the origin */
static struct held held[HELD_MOST];
static atomic_int held_count;
static int let_through; /* so many are held at most; the others go, in order */

static bool within(const void *it, const void *first, size_t len)
{
	return (uintptr_t)it >= (uintptr_t)first &&
	       (uintptr_t)it - (uintptr_t)first < len;
}

static void held_go(struct rmaext_fabric *f, int which)
{
	const struct held it = held[which];

	memmove(held + which, held + which + 1,
		(size_t)(atomic_fetch_sub(&held_count, 1) - which - 1) *
			sizeof(*held));
	rmx_am_hooks.complete(f, it.context, it.len, NULL);
}

/* Ends of reads and writes, and replies. */
static void hold(struct rmaext_fabric *f, void *context, size_t len,
		 const struct rmaext_error *failure)
{
	OK(failure != NULL);
	if (!within(context, f->transfers->contexts,
		    RMX_CONTEXTS * sizeof(struct rmx_context)) &&
	    !within(context, f->am->receive_buffers,
		    RMX_RECEIVE_BUFFERS * sizeof(*f->am->receive_buffers))) {
		rmx_am_hooks.complete(f, context, len, NULL);
		return;
	}
	CHECK(atomic_load(&held_count) < HELD_MOST);
	held[atomic_fetch_add(&held_count, 1)] = (struct held){context, len};
	while (atomic_load(&held_count) > let_through)
		held_go(f, 0);
}

static void pair_open_silent(struct pair *p)
{
	pair_open(p, (struct rig_options){.no_thread = true});
}

/* From now on, when the first operations have connected it to its ranks. */
static void hold_from_now(struct pair *p, rmaext_window *w, int most)
{
	rmaext_op *op;

	for (int64_t rank = 0; rank < w->count; rank++)
		OK(finish(put_begin(w, rank, 0, "", 1, &op), &op));
	OK(flush(w));
	hooks = rmx_am_hooks;
	hooks.complete = hold;
	p->r.origin->hooks = &hooks;
	let_through = most;
	atomic_store(&held_count, 0);
}

static void until_held(struct pair *p, int n)
{
	const int64_t end = now() + 20 * SECOND;

	while (atomic_load(&held_count) < n) {
		CHECK(now() < end);
		rmaext_fabric_progress(p->r.origin, SECOND / 1000);
	}
	EQUAL(atomic_load(&held_count), n);
}

static void pair_close_holding(struct pair *p)
{
	p->r.origin->hooks = &rmx_am_hooks;
	while (atomic_load(&held_count))
		held_go(p->r.origin, 0);
	OK(flush(p->r.window));
	pair_close(p);
}

/* -- the operations that a flush waits for */

static void put_long(rmaext_window *w, int64_t rank)
{
	const char values[LONG_PUT] = {1};
	rmaext_op *op;

	OK(put_begin(w, rank, 0, values, sizeof(values), &op));
}

static void update_one(rmaext_window *w, int64_t rank)
{
	const uint64_t one = 1;
	rmaext_op *op;

	OK(update_begin(w, rank, 512, RMAEXT_SUM, RMAEXT_UINT64, &one, NULL,
			NULL, 1, &op));
}

static struct {
	rmaext_op *op;
	int ended;
} requests[OPS];
static size_t request_count;

static void put_request(rmaext_window *w, int64_t rank)
{
	static const char values[LONG_PUT] = {1};
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.rank = rank,
		.offset = 1024,
		.operand = values,
		.count = sizeof(values),
		.ended = &requests[request_count].ended,
	};

	CHECK(request_count < COUNT(requests));
	EQUAL(rmaext_start(w, &call, &requests[request_count++].op),
	      RMAEXT_PENDING);
}

static void requests_free(void)
{
	while (request_count)
		OK(rmaext_op_release(&requests[--request_count].op));
}

static void (*const issues[])(rmaext_window *w, int64_t rank) = {
	put_long,
	update_one,
	put_request,
};

static void what_was_there(void)
{
	rmaext_window *w;
	struct pair p;

	for (size_t i = 0; i < 2 * COUNT(issues); i++) {
		const int64_t rank = i % 2 ? 0 : -1;

		pair_open_silent(&p);
		w = here(&p, (struct lie){.reads = true});
		hold_from_now(&p, w, HELD_MOST);
		issues[i / 2](w, 0);
		until_held(&p, 1);
		for (int k = 0; k < 2; k++) {
			struct rmaext_wait wait = {.timeout = 60 * SECOND};

			EQUAL(rmaext_flush(w, rank, &wait), RMAEXT_PENDING);
			issues[i / 2](w, 0);
			until_held(&p, 2);
			EQUAL(rmaext_flush(w, rank, &wait), RMAEXT_PENDING);
			held_go(p.r.origin, 0);
			OK(rmaext_flush(w, rank, &wait));
			EQUAL(rmaext_window_pending(w), 1);
		}
		held_go(p.r.origin, 0);
		OK(flush(w));
		EQUAL(rmaext_window_pending(w), 0);
		requests_free();
		drop_window(w);
		pair_close_holding(&p);
	}
}

/* -- other threads go on: one of their operations is always on its way */

static atomic_bool stop;

static void *go_on(void *arg)
{
	struct worker *me = arg;

	while (!atomic_load(&stop))
		issues[me->ret](me->window, 0);
	me->ret = 0;
	return NULL;
}

static void others_go_on(void)
{
	struct worker other;
	struct pair p;
	int ret;

	for (int i = 0; i < 4; i++) {
		struct rmaext_wait wait = {.timeout = 60 * SECOND};

		pair_open_silent(&p);
		other = (struct worker){
			.window = here(&p, (struct lie){.reads = true}),
			.ret = i / 2,
		};
		hold_from_now(&p, other.window, 1);
		atomic_store(&stop, false);
		OK(pthread_create(&other.thread, NULL, go_on, &other));
		until_held(&p, 1);
		for (int k = 0; k < SLICES; k++) {
			ret = rmaext_flush(other.window, i % 2 - 1, &wait);
			if (ret != RMAEXT_PENDING)
				break;
		}
		OK(ret);
		CHECK(rmaext_window_pending(other.window) > 0);
		atomic_store(&stop, true);
		join_all(&other, 1, 0);
		let_through = 0;
		while (atomic_load(&held_count))
			held_go(p.r.origin, 0);
		OK(flush(other.window));
		drop_window(other.window);
		pair_close_holding(&p);
	}
}

/* -- a flush of all ranks in several slices */

/* Both ranks are the pair's target. */
static rmaext_window *window_of_two(struct pair *p)
{
	rmaext_peer *peers[2] = {p->r.peer, peer_of(p->r.origin, p->r.target)};
	const uint64_t size[2] = {p->r.size, p->r.size};
	const uint64_t base[2] = {rmaext_memory_base(p->r.memory),
				  rmaext_memory_base(p->r.memory)};
	const uint8_t access[2] = {3, 3}, align[2] = {0};
	const uint8_t route[2] = {RMAEXT_FABRIC, RMAEXT_FABRIC};
	uint8_t keys[2 * sizeof(p->r.key)];
	rmaext_window *w = NULL;

	memcpy(keys, p->r.key, p->r.key_len);
	memcpy(keys + p->r.key_len, p->r.key, p->r.key_len);
	OK(window_new(p->r.origin,
		      &(struct ranks){
			      .count = 2,
			      .token = secret,
			      .peer = peers,
			      .size = size,
			      .base = base,
			      .access = access,
			      .align = align,
			      .route = route,
			      .keys = keys,
			      .key_len = p->r.key_len,
		      },
		      60 * SECOND, &w));
	return w;
}

/* A rank that an earlier slice has flushed is not flushed again. */
static void rank_by_rank(void)
{
	struct rmaext_wait wait = {.timeout = 60 * SECOND};
	rmaext_window *w;
	struct pair p;

	pair_open_silent(&p);
	w = window_of_two(&p);
	hold_from_now(&p, w, HELD_MOST);
	put_long(w, 0);
	until_held(&p, 1);
	put_long(w, 1);
	until_held(&p, 2);
	EQUAL(rmaext_flush(w, -1, &wait), RMAEXT_PENDING);
	held_go(p.r.origin, 0);
	EQUAL(rmaext_flush(w, -1, &wait), RMAEXT_PENDING);
	put_long(w, 0);
	until_held(&p, 2);
	EQUAL(rmaext_flush(w, -1, &wait), RMAEXT_PENDING);
	held_go(p.r.origin, 0);
	OK(rmaext_flush(w, -1, &wait));
	EQUAL(rmaext_window_pending(w), 1);
	held_go(p.r.origin, 0);
	drop_window(w);
	pair_close_holding(&p);
}

/* That a rank is lost is told although another one takes another slice. */
static void lost_in_an_earlier_slice(void)
{
	struct rmaext_wait wait = {.timeout = 60 * SECOND};
	struct rmaext_error e;
	rmaext_window *w;
	struct pair p;

	pair_open_silent(&p);
	w = window_of_two(&p);
	hold_from_now(&p, w, HELD_MOST);
	put_long(w, 0);
	until_held(&p, 1);
	put_long(w, 1);
	until_held(&p, 2);
	atomic_store(&w->members->of[0].peer->gone, true);
	EQUAL(rmaext_flush(w, -1, &wait), RMAEXT_PENDING);
	held_go(p.r.origin, 0);
	held_go(p.r.origin, 0);
	EQUAL(rmaext_flush(w, -1, &wait), -FI_ENOTCONN);
	rmaext_error_last(&e);
	EQUAL(e.rank, 0);
	OK(flush(w)); /* it is told once */
	atomic_store(&w->members->of[0].peer->gone, false);
	drop_window(w);
	pair_close_holding(&p);
}

const struct test tests[] = {
	{"all_orders", all_orders, NULL, NULL},
	{"what_was_there", what_was_there, NULL, NULL},
	{"others_go_on", others_go_on, NULL, NULL},
	{"rank_by_rank", rank_by_rank, NULL, NULL},
	{"lost_in_an_earlier_slice", lost_in_an_earlier_slice, NULL, NULL},
	{0},
};
