/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where a provider demands FI_MR_LOCAL, each buffer that the network reads or
 * writes here must be registered. Registering costs more than most transfers,
 * so:
 *
 * - A short buffer is copied, from or to a bounce buffer that stays registered
 *   (bounce.c).
 * - A long buffer stays registered if it is *known*: the caller has promised,
 * by rmaext_origin_know(), that this memory is neither freed nor moved before
 *   rmaext_origin_forget() has returned. Nothing watches the memory itself:
 * once a system call has unmapped it, it is too late, as another thread may
 * have mapped something else there, and a NIC would still use the old pages.
 * - All other buffers are registered for one operation.
 *
 * Known memory is registered as a whole on first use, so that any part of it is
 * found by its address. When there is too much of it, the memory that was not
 * used for the longest time is deregistered, and stays known.
 *
 * After a fork the parent keeps its registrations: from Linux 5.12 on the child
 * gets copies of pinned pages (before, `python -m rmaext info` says what to
 * do). MADV_DONTFORK is no way, as a child that only reads such an array would
 * crash.
 */
#include "net/endpoint.h"

#include <stdlib.h>
#include <sys/random.h>

#define RMX_OVERLAPS 8u /* known buffers looked at for one address */

/* -- known memory; the caller holds the cache's lock */

/* Returns the index of the first buffer that begins after an address. */
static size_t known_after(const struct rmx_registration_cache *c,
			  uintptr_t addr)
{
	size_t low = 0, high = c->count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (c->known[middle]->start > addr)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* Returns a known buffer that has all of these bytes, or NULL. */
static struct rmx_cached_buffer *
known_find(const struct rmx_registration_cache *c, uintptr_t addr, uint64_t len)
{
	size_t i = known_after(c, addr);

	for (unsigned int k = 0; i && k < RMX_OVERLAPS; k++) {
		struct rmx_cached_buffer *b = c->known[--i];

		if (addr - b->start < b->len &&
		    len <= b->len - (addr - b->start))
			return b;
	}
	return NULL;
}

static int buffer_deregister(struct rmaext_fabric *f,
			     struct rmx_cached_buffer *b)
{
	struct rmx_registration_cache *c = &f->cache;
	int ret = 0;

	if (!b->region.of_transport)
		return 0;
	ret = rmx_region_close(f, &b->region);
	if (!ret && b->token) {
		c->registered--;
		c->bytes -= b->len;
	}
	return ret;
}

/*
 * Deregisters the buffer that was not used for the longest time. False: all are
 * in use, or pinned.
 */
static bool cache_evict(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *c = &f->cache;
	struct rmx_cached_buffer *oldest = NULL;

	for (size_t i = 0; i < c->count; i++) {
		struct rmx_cached_buffer *b = c->known[i];

		if (b->region.of_transport && !b->pinned &&
		    !atomic_load(&b->users) &&
		    (!oldest || b->used < oldest->used))
			oldest = b;
	}
	if (!oldest || buffer_deregister(f, oldest))
		return false;
	atomic_fetch_add(&c->evictions, 1);
	return true;
}

/* Registers a buffer, and evicts others while the provider has no room. */
static int buffer_register(struct rmaext_fabric *f, struct rmx_cached_buffer *b,
			   uint64_t access)
{
	int ret;

	do
		ret = rmx_region_local(f, (void *)b->start, b->len, access,
				       &b->region);
	while ((ret == -FI_ENOMEM || ret == -FI_ENOSPC || ret == -FI_ENOKEY) &&
	       cache_evict(f));
	return ret;
}

/* Registers a known buffer, which stays so. False: there is no room for it. */
static bool buffer_keep(struct rmaext_fabric *f, struct rmx_cached_buffer *b)
{
	struct rmx_registration_cache *c = &f->cache;

	if (b->len > c->most_bytes || !c->most)
		return false;
	while (c->registered >= c->most || c->bytes > c->most_bytes - b->len)
		if (!cache_evict(f))
			return false;
	if (buffer_register(f, b, RMX_SOURCE | RMX_RESULT))
		return false;
	c->registered++;
	c->bytes += b->len;
	return true;
}

/* Frees the buffers without a token that no operation uses any more. */
static void cache_reap(struct rmaext_fabric *f)
{
	struct rmx_cached_buffer **link = &f->cache.others, *b;

	while ((b = *link)) {
		if (atomic_load(&b->users) || buffer_deregister(f, b)) {
			link = &b->next;
			continue;
		}
		*link = b->next;
		free(b);
	}
}

/* -- buffers of operations */

static struct rmx_cached_buffer *buffer_new(const void *addr, uint64_t len)
{
	struct rmx_cached_buffer *b = calloc(1, sizeof(*b));

	if (b) {
		b->start = (uintptr_t)addr;
		b->len = len;
	}
	return b;
}

static int buffer_register_once(struct rmaext_fabric *f, const void *addr,
				uint64_t len, bool result,
				struct rmx_cached_buffer **buffer_p)
{
	struct rmx_registration_cache *c = &f->cache;
	struct rmx_cached_buffer *b = buffer_new(addr, len);
	int ret;

	if (!b)
		return rmx_no_memory("a registered buffer");
	ret = buffer_register(f, b, result ? RMX_RESULT : RMX_SOURCE);
	if (ret) {
		free(b);
		return ret;
	}
	b->once = true;
	b->next = c->others;
	c->others = b;
	*buffer_p = b;
	return 0;
}

int rmx_cache_get(struct rmaext_fabric *f, const void *addr, uint64_t len,
		  bool result, struct rmx_cached_buffer **buffer_p)
{
	struct rmx_registration_cache *c = &f->cache;
	struct rmx_cached_buffer *b;
	int ret = 0;

	pthread_mutex_lock(&c->lock);
	b = known_find(c, (uintptr_t)addr, len);
	if (b && b->region.of_transport) {
		atomic_fetch_add(&c->hits, 1);
	} else {
		atomic_fetch_add(&c->misses, 1);
		cache_reap(f);
		if (!b || !buffer_keep(f, b))
			ret = buffer_register_once(f, addr, len, result, &b);
	}
	if (!ret) {
		b->used = ++c->clock;
		atomic_fetch_add(&b->users, 1);
		*buffer_p = b;
	}
	pthread_mutex_unlock(&c->lock);
	return ret;
}

void rmx_cache_put(struct rmaext_fabric *f, struct rmx_cached_buffer *b)
{
	struct rmx_registration_cache *c = &f->cache;
	const bool once = b->once;

	/* from here on the buffer may be freed at any time */
	if (atomic_fetch_sub(&b->users, 1) > 1 || !once)
		return;
	pthread_mutex_lock(&c->lock);
	cache_reap(f);
	pthread_mutex_unlock(&c->lock);
}

/* -- what the caller promises */

static int cache_know(struct rmaext_fabric *f, const void *addr, uint64_t len,
		      int pinned, uint64_t *token_p)
{
	struct rmx_registration_cache *c = &f->cache;
	struct rmx_cached_buffer *b, **more;
	size_t i;

	if (!len || len - 1 > UINTPTR_MAX - (uintptr_t)addr)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "rmaext_origin_know",
				"an origin cannot have %llu bytes",
				(unsigned long long)len);
	b = buffer_new(addr, len);
	if (!b)
		return rmx_no_memory("a registered buffer");
	b->pinned = pinned;
	pthread_mutex_lock(&c->lock);
	if (c->count == c->room) {
		more = realloc(c->known, (2 * c->room + 8) * sizeof(*more));
		if (!more) {
			pthread_mutex_unlock(&c->lock);
			free(b);
			return rmx_no_memory("registered buffers");
		}
		c->known = more;
		c->room = 2 * c->room + 8;
	}
	i = known_after(c, b->start);
	memmove(&c->known[i + 1], &c->known[i],
		(c->count - i) * sizeof(*c->known));
	c->known[i] = b;
	c->count++;
	*token_p = b->token = ++c->last_token;
	pthread_mutex_unlock(&c->lock);
	return 0;
}

int rmaext_origin_know(rmaext_fabric *f, const void *addr, uint64_t len,
		       int pinned, uint64_t *token_p)
{
	int ret = rmx_fabric_enter(f, "rmaext_origin_know");

	*token_p = 0;
	if (ret)
		return ret;
	if (f->limits.registers)
		ret = cache_know(f, addr, len, pinned, token_p);
	rmx_fabric_leave(f);
	return ret;
}

static void cache_forget(struct rmaext_fabric *f, uint64_t token)
{
	struct rmx_registration_cache *c = &f->cache;
	struct rmx_cached_buffer *b = NULL;
	size_t i;

	for (i = 0; i < c->count && !b; i++)
		if (c->known[i]->token == token)
			b = c->known[i];
	if (!b)
		return;
	memmove(&c->known[i - 1], &c->known[i],
		(c->count - i) * sizeof(*c->known));
	c->count--;
	if (b->region.of_transport) {
		c->registered--;
		c->bytes -= b->len;
	}
	b->token = 0;
	b->next = c->others;
	c->others = b;
	cache_reap(f);
}

void rmaext_origin_forget(rmaext_fabric *f, uint64_t token)
{
	if (!token || !rmx_rundown_try(&f->rundown))
		return; /* closing the fabric deregistered all */
	pthread_mutex_lock(&f->cache.lock);
	cache_forget(f, token);
	pthread_mutex_unlock(&f->cache.lock);
	rmx_fabric_leave(f);
}

/* -- begin and end */

/* Limits the registrations that are kept, so that keys are left for windows. */
static uint64_t cache_most(const struct rmaext_fabric *f, uint64_t wanted)
{
	const uint64_t most = f->limits.keys / 8;

	return wanted < most ? wanted : most;
}

int rmx_cache_start(struct rmaext_fabric *f,
		    const struct rmaext_fabric_options *options,
		    size_t bounce_bytes)
{
	struct rmx_registration_cache *c = &f->cache;

	if (!f->limits.registers)
		return 0;
	c->most = cache_most(f, options->cache_count);
	c->most_bytes = options->cache_bytes;
	c->bounce_bytes =
		(bounce_bytes + RMX_LINE - 1) & ~(size_t)(RMX_LINE - 1);
	if (getrandom(&c->next_key, sizeof(c->next_key), 0) < 0)
		return -FI_EIO;
	return 0;
}

int rmx_cache_close(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *c = &f->cache;
	int ret, first = 0;

	if (!f->limits.registers)
		return 0;
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < c->count; i++) {
		ret = buffer_deregister(f, c->known[i]);
		first = first ? first : ret;
	}
	for (struct rmx_cached_buffer *b = c->others; b; b = b->next) {
		ret = buffer_deregister(f, b);
		first = first ? first : ret;
	}
	pthread_mutex_unlock(&c->lock);
	for (struct rmx_slab *s = c->slabs; s; s = s->next) {
		ret = rmx_region_close(f, &s->region);
		first = first ? first : ret;
	}
	return first;
}

void rmx_cache_free(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *c = &f->cache;
	struct rmx_slab *slab;

	if (!f->limits.registers)
		return;
	pthread_mutex_lock(&c->lock);
	while (c->count) {
		struct rmx_cached_buffer *b = c->known[--c->count];

		b->token = 0;
		b->next = c->others;
		c->others = b;
	}
	free(c->known);
	c->known = NULL;
	c->room = 0;
	cache_reap(f);
	pthread_mutex_unlock(&c->lock);
	while (!atomic_load(&c->bounces_used) && (slab = c->slabs)) {
		c->slabs = slab->next;
		free(slab->blocks);
		free(slab);
	}
}
