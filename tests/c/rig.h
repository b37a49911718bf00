/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What most of the C tests work on: a window of one rank, over one or two
 * endpoints of this process, and operations on it to their end.
 */
#ifndef RMAEXT_RIG_H
#define RMAEXT_RIG_H

#include "check.h"

struct rig {
	rmaext_fabric *origin, *target; /* the same, or two */
	rmaext_peer *peer;
	rmaext_memory *memory;
	rmaext_window *window;
	rmaext_window *there; /* the target's own, if served */
	uint8_t token[16];
	struct rmaext_fabric_info info;
	char *block; /* guard, window, guard */
	char *window_memory;
	size_t size;
	char key[256];
	size_t key_len;
};

struct rig_options {
	size_t size;
	size_t shift;	  /* of the window from an aligned address */
	int access;	  /* 0: both */
	bool two;	  /* the target is an endpoint of its own */
	bool served;	  /* and has a window, to serve messages */
	bool no_progress; /* of the target by itself */
	bool no_thread;	  /* nor of the origin */
	bool mr_basic;
	bool direct; /* route */
	bool wrong_key;
	double timeout; /* seconds; 0: 10 */
};

static inline rmaext_fabric *fabric_open(bool progress, bool mr_basic)
{
	struct rmaext_fabric_options options = {
		.provider = provider,
		.address = strstr(provider, "shm") ? NULL : "127.0.0.1",
		.mr_basic = mr_basic,
		.progress = progress,
		.spin_ns = 20000,
		.arena = arena,
		.cache_count = cache_count,
		.cache_bytes = (uint64_t)1 << 30,
	};
	rmaext_fabric *f = NULL;

	OK(rmaext_fabric_open(library, &options, &f));
	CHECK(f);
	return f;
}

static inline rmaext_peer *peer_of(rmaext_fabric *origin, rmaext_fabric *target)
{
	char name[256];
	size_t len = sizeof(name);
	rmaext_peer *peer = NULL;

	OK(rmaext_fabric_address(target, name, &len));
	OK(rmaext_peer_add(origin, name, len, -1, &peer));
	CHECK(peer);
	return peer;
}

static inline int memory_register(rmaext_fabric *f, void *addr, size_t len,
				  int access, uint64_t key,
				  rmaext_memory **memory_p)
{
	const struct rmaext_piece piece = {addr, len};
	const struct rmaext_memory_options options = {
		.pieces = &piece,
		.n_pieces = 1,
		.access = access,
		.requested_key = key,
	};

	return rmaext_memory_register(f, &options, memory_p);
}

/* A window, described rank by rank; what no rank has may be NULL. */
struct ranks {
	int64_t count, self;
	const uint8_t *token;
	rmaext_peer *const *peer;
	rmaext_neighbour *const *neighbour;
	void *const *map;
	const uint64_t *address, *size, *base;
	const uint8_t *access, *align, *route, *keys;
	size_t key_len;
	void *const *control; /* blocks */
	int dynamic;
	rmaext_arena *arena;
	int64_t spin_ns;
	unsigned int same; /* columns that have one entry */
};

static inline int window_new(rmaext_fabric *f, const struct ranks *r,
			     int64_t timeout, rmaext_window **window_p)
{
	void *map[64] = {0}, *control[64] = {0};
	struct rmaext_targets targets = {
		.token = r->token,
		.same = r->same,
		.size = r->size,
		.base = r->base,
		.access = r->access,
		.align = r->align,
		.keys = r->keys,
		.key_len = r->key_len,
		.map = map,
		.dynamic = r->dynamic,
		.spin_ns = r->spin_ns,
	};
	uint64_t address[64] = {0};
	uint8_t route[64] = {0};
	int here = 0, ret;

	OK(rmaext_members_new(r->count, r->self, r->peer, r->neighbour,
			      r->arena, &targets.members));
	for (int64_t i = 0; i < r->count; i++) {
		if (i != r->self && !(r->neighbour && r->neighbour[i]))
			continue;
		map[here] = r->map ? r->map[i] : NULL;
		control[here] = r->control ? r->control[i] : NULL;
		address[here] = r->address ? r->address[i] : 0;
		route[here++] = r->route[i];
	}
	targets.address = address;
	targets.route = route;
	if (r->control)
		OK(rmaext_blocks_new(targets.members, control,
				     &targets.blocks));
	ret = rmaext_window_create(f, &targets, timeout, window_p);
	rmaext_blocks_release(targets.blocks);
	rmaext_members_release(targets.members);
	return ret;
}

static inline void rig_window(struct rig *r, const struct rig_options *o,
			      rmaext_window **window_p)
{
	uint64_t size = r->size, base = rmaext_memory_base(r->memory);
	uint8_t access =
		(uint8_t)(o->access ? o->access : RMAEXT_READ | RMAEXT_WRITE);
	uint8_t align = (uint8_t)((uintptr_t)r->window_memory % 64);
	uint8_t route = o->direct ? RMAEXT_DIRECT : RMAEXT_FABRIC;
	char key[sizeof(r->key)];
	void *map = r->window_memory;
	struct ranks targets = {
		.count = 1,
		.token = r->token,
		.map = &map,
		.peer = &r->peer,
		.size = &size,
		.base = &base,
		.access = &access,
		.align = &align,
		.route = &route,
		.keys = (const uint8_t *)key,
		.key_len = r->key_len,
		.arena = arena,
	};

	memcpy(key, r->key, sizeof(key));
	if (o->wrong_key)
		key[0] ^= 0x55;
	/* each serves itself, unless the target is an endpoint of its own */
	if (!r->there)
		(*(uint64_t *)(void *)r->token)++;
	OK(window_new(r->origin, &targets,
		      (int64_t)((o->timeout > 0 ? o->timeout : 10) * 1e9),
		      window_p));
}

static inline void rig_serve(struct rig *r, const struct rig_options *o)
{
	rmaext_fabric *origin = r->origin;
	rmaext_peer *peer = r->peer;
	struct rig_options there = *o;

	there.direct = true;
	r->origin = r->target;
	r->peer = peer_of(r->target, origin);
	rig_window(r, &there, &r->there);
	r->origin = origin;
	r->peer = peer;
}

static inline void rig_open(struct rig *r, struct rig_options o)
{
	static uint64_t next_key = 0x1122334455667700;
	int access = o.access ? o.access : RMAEXT_READ | RMAEXT_WRITE;

	memset(r, 0, sizeof(*r));
	r->size = o.size;
	r->block = aligned_alloc(64, (2 * GUARD + o.size + 127) / 64 * 64);
	CHECK(r->block);
	memset(r->block, 0xa5, 2 * GUARD + o.size + o.shift);
	r->window_memory = r->block + GUARD + o.shift;
	memset(r->window_memory, 0, o.size);
	r->target = fabric_open(!o.no_progress, o.mr_basic);
	r->origin = o.two ? fabric_open(!o.no_thread, o.mr_basic) : r->target;
	rmaext_fabric_describe(r->origin, &r->info);
	if (strstr(provider, "ofi_mrail")) /* never frees its regions */
		leaky(true);
	OK(memory_register(r->target, r->window_memory, r->size, access,
			   ++next_key, &r->memory));
	if (strstr(provider, "ofi_mrail"))
		leaky(false);
	r->key_len = sizeof(r->key);
	OK(rmaext_memory_key(r->memory, r->key, &r->key_len));
	r->peer = peer_of(r->origin, r->target);
	if (o.served)
		rig_serve(r, &o);
	rig_window(r, &o, &r->window);
}

static inline void rig_guards(const struct rig *r)
{
	const unsigned char *end = (unsigned char *)r->window_memory + r->size;

	for (const char *p = r->block; p < r->window_memory; p++)
		EQUAL((unsigned char)*p, 0xa5);
	for (size_t i = 0; i < GUARD; i++)
		EQUAL(end[i], 0xa5);
}

static inline void rig_close(struct rig *r)
{
	rig_guards(r);
	if (r->window) {
		OK(rmaext_window_close(r->window));
		rmaext_window_free(r->window);
	}
	if (r->there) {
		OK(rmaext_window_close(r->there));
		rmaext_window_free(r->there);
	}
	if (r->memory) {
		OK(rmaext_memory_close(&r->memory));
		EQUAL(r->memory, NULL);
	}
	if (r->target != r->origin)
		OK(rmaext_fabric_close(&r->target));
	OK(rmaext_fabric_close(&r->origin));
	free(r->block);
}

/* -- operations to their end */

/* After the first call: wait, then release; returns the code. */
static inline int finish(int ret, rmaext_op **op)
{
	while (ret == RMAEXT_PENDING && *op)
		ret = rmaext_op_wait(*op, TENTH);
	/* closed under us: on its way until the answer or the endpoint's end */
	while (ret == -FI_ESHUTDOWN && rmaext_op_release(op) == RMAEXT_PENDING)
		nap(1e-4);
	OK(rmaext_op_release(op));
	EQUAL(*op, NULL);
	return ret;
}

static inline int put(rmaext_window *w, uint64_t offset, const void *buf,
		      uint64_t len)
{
	rmaext_op *op = NULL;

	return finish(put_begin(w, 0, offset, buf, len, &op), &op);
}

static inline int get(rmaext_window *w, uint64_t offset, void *buf,
		      uint64_t len)
{
	rmaext_op *op = NULL;

	return finish(get_begin(w, 0, offset, buf, len, &op), &op);
}

static inline int flush_for(rmaext_window *w, int64_t rank, double seconds)
{
	struct rmaext_wait wait = {.timeout = (int64_t)(seconds * 1e9)};
	int ret;

	do
		ret = rmaext_flush(w, rank, &wait);
	while (ret == RMAEXT_PENDING);
	return ret;
}

static inline int flush(rmaext_window *w)
{
	return flush_for(w, -1, 10);
}

static inline int fetch_add(rmaext_window *w, uint64_t offset, int type,
			    const void *operand, void *result, uint64_t count)
{
	rmaext_op *op = NULL;

	return finish(update_begin(w, 0, offset, RMAEXT_SUM, type, operand,
				   NULL, result, count, &op),
		      &op);
}

/* any update; without a result, an accumulate */
static inline int update(rmaext_window *w, uint64_t offset, int operation,
			 int type, const void *operand, void *result,
			 uint64_t count)
{
	rmaext_op *op = NULL;

	return finish(update_begin(w, 0, offset, operation, type, operand, NULL,
				   result, count, &op),
		      &op);
}

static inline int swap(rmaext_window *w, uint64_t offset, int type,
		       const void *compare, const void *value, void *result,
		       uint64_t count)
{
	rmaext_op *op = NULL;

	return finish(update_begin(w, 0, offset, RMAEXT_CSWAP, type, value,
				   compare, result, count, &op),
		      &op);
}

/* bytes that depend on the place and on a seed */
static inline void fill(void *buf, size_t len, unsigned int seed)
{
	unsigned char *p = buf;

	for (size_t i = 0; i < len; i++)
		p[i] = (unsigned char)(seed * 131 + i * 7 + (i >> 8) + 1);
}

#endif
