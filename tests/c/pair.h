/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A window that two endpoints of this process have: what the origin's sends to
 * the target's goes as messages.
 */
#ifndef RMAEXT_PAIR_H
#define RMAEXT_PAIR_H

#include "rig.h"
#include "am/am.h"

#include <pthread.h>
#include <stdatomic.h>

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
	struct rmaext_neighbour *neighbour;
	double timeout;
	bool reads; /* it has the key and base of the target's memory */
};

static inline rmaext_window *window_of(rmaext_fabric *f, rmaext_peer *peer,
				       const struct rig *r, struct lie lie)
{
	uint64_t size = lie.size ? lie.size : r->size, base = 0;
	uint64_t address = (uintptr_t)r->window_memory;
	uint8_t access = (uint8_t)(lie.access ? lie.access : 3);
	void *map = r->window_memory;
	uint8_t key[256] = {0};
	rmaext_window *w = NULL;

	if (lie.reads) {
		memcpy(key, r->key, r->key_len);
		base = rmaext_memory_base(r->memory);
	}
	OK(window_new(
		f,
		&(struct ranks){
			.count = 1,
			.token = lie.token ? lie.token : secret,
			.peer = &peer,
			.neighbour = lie.neighbour ? &lie.neighbour : NULL,
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
		(int64_t)((lie.timeout > 0 ? lie.timeout : 10) * 1e9), &w));
	return w;
}

static inline void drop_window(rmaext_window *w)
{
	OK(rmaext_window_close(w));
	rmaext_window_free(w);
}

static inline rmaext_window *here(struct pair *p, struct lie lie)
{
	lie.route = lie.route ? lie.route : RMAEXT_FABRIC;
	return window_of(p->r.origin, p->r.peer, &p->r, lie);
}

static inline void pair_open(struct pair *p, struct rig_options o)
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

static inline void pair_close(struct pair *p)
{
	if (p->there)
		drop_window(p->there);
	rig_close(&p->r);
}

static inline void *serve(void *arg)
{
	struct pair *p = arg;

	while (!atomic_load(&p->stop))
		rmaext_fabric_progress(p->r.target, 300000);
	return NULL;
}

static inline void serve_start(struct pair *p)
{
	atomic_store(&p->stop, false);
	OK(pthread_create(&p->server, NULL, serve, p));
}

static inline void serve_stop(struct pair *p)
{
	atomic_store(&p->stop, true);
	pthread_join(p->server, NULL);
}

/* One call on a window of one rank, to its end. */
static inline int many(rmaext_window *w, int kind, int type, uint64_t unit,
		       uint64_t n, const int64_t *offsets, const void *values,
		       void *results)
{
	const int64_t rank = 0;
	struct many_state state;
	int ret =
		many_begin(w, kind, RMAEXT_SUM, type, unit, n, RMAEXT_ONE_RANK,
			   &rank, offsets, values, results, &state);

	while (ret == RMAEXT_PENDING)
		ret = many_wait(&state);
	many_release(&state);
	EQUAL(state.op, NULL);
	return ret;
}

static inline int add(rmaext_window *w, int64_t offset, uint64_t value)
{
	return many(w, RMAEXT_UPDATE, RMAEXT_UINT64, 8, 1, &offset, &value,
		    NULL);
}

/* Puts by a message that notifies, unless slot is -1. */
static inline int message_put(rmaext_window *w, uint64_t offset,
			      const void *buf, uint64_t len, int slot,
			      rmaext_op **op_p)
{
	const struct rmaext_call put = {
		.kind = RMAEXT_PUT,
		.notify = slot + 1,
		.offset = offset,
		.operand = buf,
		.count = len,
	};

	return rmx_message_put(w, &put, op_p);
}

/* -- results */

static inline uint32_t noise(uint32_t *seed)
{
	return *seed = *seed * 1664525 + 1013904223;
}

/* -- threads */

struct worker {
	pthread_t thread;
	rmaext_window *window;
	int ret;
	int64_t *offsets;
	atomic_bool *stop;
};

static inline void start_all(struct worker *all, int n, rmaext_window *w,
			     void *(*work)(void *))
{
	for (int i = 0; i < n; i++) {
		all[i] = (struct worker){.window = w};
		OK(pthread_create(&all[i].thread, NULL, work, &all[i]));
	}
}

static inline void join_all(struct worker *all, int n, int wanted)
{
	for (int i = 0; i < n; i++) {
		pthread_join(all[i].thread, NULL);
		EQUAL(all[i].ret, wanted);
	}
}

static inline struct rmx_control_block *block_new(void)
{
	const size_t size = rmaext_block_bytes(1);
	void *block = aligned_alloc(64, size);

	CHECK(block);
	return memset(block, 0, size);
}

static inline void block_give(struct rmaext_window *w,
			      struct rmx_control_block *block)
{
	void *first = block;

	rmaext_blocks_release(w->blocks);
	w->blocks = NULL;
	if (block)
		OK(rmaext_blocks_new(w->members, &first, &w->blocks));
}

#endif
