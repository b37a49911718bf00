/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Where a provider demands FI_MR_LOCAL, each buffer that the network reads or
 * writes here is registered. Registering costs more than most transfers, so:
 *
 * - What is short is copied, from or to blocks that are registered once.
 * - What is long and *known* stays registered: memory of which the caller has
 *   promised, by rmaext_origin_know(), that it neither goes nor moves before
 *   rmaext_origin_forget() has returned. Nobody watches the memory itself: when
 *   a system call has unmapped it, it is too late, another thread may have
 *   something else there, and a NIC would still use the old pages.
 * - The rest is registered for one operation.
 *
 * Known memory is registered on first use, all of it, so that any part of it is
 * found by its address. When there is too much of it, what was not used for the
 * longest time is deregistered, and stays known.
 *
 * After a fork the parent has it still: from Linux 5.12 on the child gets
 * copies of pinned pages (before, `python -m rmaext info` says what to do).
 * With MADV_DONTFORK a child that only reads such an array would crash.
 */
#include "net/endpoint.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>

#define RMX_KEYS_TRIED 512u /* of one-byte keys, all */
#define RMX_OVERLAPS 8u	    /* known pieces looked at for one address */
#define RMX_SLAB 32u	    /* blocks */

/*
 * Of memory that only this side uses. Its key is of no use to anybody, but may
 * not be that of another region.
 */
int rmx_region_local(struct rmaext_fabric *f, void *addr, size_t len,
		     uint64_t access, struct rmx_region *region_p)
{
	struct rmx_registration_cache *o = &f->cache;
	struct iovec iov = {addr, len};
	int ret = -FI_ENOKEY;

	for (unsigned int i = 0; ret == -FI_ENOKEY && i < RMX_KEYS_TRIED; i++) {
		struct fi_mr_attr attr = {
			.mr_iov = &iov,
			.iov_count = 1,
			.access = access,
			.requested_key = __atomic_fetch_add(&o->next_key, 1,
							    __ATOMIC_RELAXED),
		};

		ret = rmx_region_open(f, &attr, 0, false, region_p);
	}
	return ret;
}

void *rmx_region_desc(const struct rmx_region *region)
{
	return region->mr ? fi_mr_desc(region->mr) : NULL;
}

/* -- known memory; the lock is held */

/* The first that begins after an address. */
static size_t after(const struct rmx_registration_cache *o, uintptr_t addr)
{
	size_t low = 0, high = o->count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (o->known[middle]->start > addr)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* NULL: none has all of these bytes. */
static struct rmx_cached_buffer *find(const struct rmx_registration_cache *o,
				      uintptr_t addr, uint64_t len)
{
	size_t i = after(o, addr);

	for (unsigned int k = 0; i && k < RMX_OVERLAPS; k++) {
		struct rmx_cached_buffer *it = o->known[--i];

		if (addr - it->start < it->len &&
		    len <= it->len - (addr - it->start))
			return it;
	}
	return NULL;
}

static int deregister(struct rmaext_fabric *f, struct rmx_cached_buffer *it)
{
	struct rmx_registration_cache *o = &f->cache;
	int ret = 0;

	if (!it->region.mr)
		return 0;
	ret = rmx_region_close(f, &it->region);
	if (!ret && it->token) {
		o->registered--;
		o->bytes -= it->len;
	}
	return ret;
}

/* The one that nobody has used for the longest time. False: all are in use. */
static bool evict(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *o = &f->cache;
	struct rmx_cached_buffer *oldest = NULL;

	for (size_t i = 0; i < o->count; i++) {
		struct rmx_cached_buffer *it = o->known[i];

		if (it->region.mr && !it->pinned && !atomic_load(&it->users) &&
		    (!oldest || it->used < oldest->used))
			oldest = it;
	}
	if (!oldest || deregister(f, oldest))
		return false;
	atomic_fetch_add(&o->evictions, 1);
	return true;
}

/* If the provider has no room for it, what is kept gives way. */
static int make_room(struct rmaext_fabric *f, struct rmx_cached_buffer *it,
		     uint64_t access)
{
	int ret;

	do
		ret = rmx_region_local(f, (void *)it->start, it->len, access,
				       &it->region);
	while ((ret == -FI_ENOMEM || ret == -FI_ENOSPC || ret == -FI_ENOKEY) &&
	       evict(f));
	return ret;
}

/* False: there is no room for it. */
static bool keep_registered(struct rmaext_fabric *f,
			    struct rmx_cached_buffer *it)
{
	struct rmx_registration_cache *o = &f->cache;

	if (it->len > o->most_bytes || !o->most)
		return false;
	while (o->registered >= o->most || o->bytes > o->most_bytes - it->len)
		if (!evict(f))
			return false;
	if (make_room(f, it, RMX_SOURCE | RMX_RESULT))
		return false;
	o->registered++;
	o->bytes += it->len;
	return true;
}

/* Those that were forgotten while in use, and are not any more. */
static void reap(struct rmaext_fabric *f)
{
	struct rmx_cached_buffer **link = &f->cache.others, *it;

	while ((it = *link)) {
		if (atomic_load(&it->users) || deregister(f, it)) {
			link = &it->next;
			continue;
		}
		*link = it->next;
		free(it);
	}
}

/* -- what operations have */

static struct rmx_cached_buffer *new_origin(const void *addr, uint64_t len)
{
	struct rmx_cached_buffer *it = calloc(1, sizeof(*it));

	if (it) {
		it->start = (uintptr_t)addr;
		it->len = len;
	}
	return it;
}

/* For one operation. */
static int register_once(struct rmaext_fabric *f, const void *addr,
			 uint64_t len, bool result,
			 struct rmx_cached_buffer **it_p)
{
	struct rmx_registration_cache *o = &f->cache;
	struct rmx_cached_buffer *it = new_origin(addr, len);
	int ret;

	if (!it)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "origin");
	ret = make_room(f, it, result ? RMX_RESULT : RMX_SOURCE);
	if (ret) {
		free(it);
		return ret;
	}
	it->once = true;
	it->next = o->others;
	o->others = it;
	*it_p = it;
	return 0;
}

int rmx_cache_get(struct rmaext_fabric *f, const void *addr, uint64_t len,
		  bool result, struct rmx_cached_buffer **it_p)
{
	struct rmx_registration_cache *o = &f->cache;
	struct rmx_cached_buffer *it;
	int ret = 0;

	pthread_mutex_lock(&o->lock);
	it = find(o, (uintptr_t)addr, len);
	if (it && it->region.mr) {
		atomic_fetch_add(&o->hits, 1);
	} else {
		atomic_fetch_add(&o->misses, 1);
		reap(f);
		if (!it || !keep_registered(f, it))
			ret = register_once(f, addr, len, result, &it);
	}
	if (!ret) {
		it->used = ++o->clock;
		atomic_fetch_add(&it->users, 1);
		*it_p = it;
	}
	pthread_mutex_unlock(&o->lock);
	return ret;
}

/* Before its owner is told that the operation has ended. */
void rmx_cache_put(struct rmaext_fabric *f, struct rmx_cached_buffer *it)
{
	struct rmx_registration_cache *o = &f->cache;
	const bool once = it->once;

	/* then it may be freed at any time */
	if (atomic_fetch_sub(&it->users, 1) > 1 || !once)
		return;
	pthread_mutex_lock(&o->lock);
	reap(f);
	pthread_mutex_unlock(&o->lock);
}

/* -- blocks: operations with a copy, see rmx_op_new() */

static bool new_slab(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *o = &f->cache;
	const size_t bytes = RMX_SLAB * o->bounce_bytes;
	struct rmx_slab *slab = calloc(1, sizeof(*slab));

	if (slab)
		slab->blocks = aligned_alloc(64, bytes);
	if (!slab || !slab->blocks ||
	    rmx_region_local(f, slab->blocks, bytes, RMX_SOURCE | RMX_RESULT,
			     &slab->region)) {
		if (slab)
			free(slab->blocks);
		free(slab);
		return false;
	}
	slab->next = o->slabs;
	o->slabs = slab;
	for (size_t i = 0; i < RMX_SLAB; i++) {
		char *block = slab->blocks + i * o->bounce_bytes;

		*(void **)(void *)block = o->free_bounces;
		o->free_bounces = block;
	}
	return true;
}

bool rmx_bounce_fits(const struct rmaext_fabric *f, size_t bytes)
{
	return f->cache.demanded && bytes <= f->cache.bounce_bytes;
}

void *rmx_bounce_take(struct rmaext_fabric *f, void **desc_p)
{
	struct rmx_registration_cache *o = &f->cache;
	const size_t bytes = RMX_SLAB * o->bounce_bytes;
	struct rmx_slab *slab;
	char *block = NULL;

	pthread_mutex_lock(&o->bounce_lock);
	if (o->free_bounces || new_slab(f)) {
		block = o->free_bounces;
		o->free_bounces = *(void **)(void *)block;
		atomic_fetch_add(&o->bounces_used, 1);
	}
	for (slab = o->slabs; block; slab = slab->next)
		if (block >= slab->blocks && block < slab->blocks + bytes)
			break;
	pthread_mutex_unlock(&o->bounce_lock);
	if (block)
		*desc_p = rmx_region_desc(&slab->region);
	return block;
}

void rmx_bounce_give(struct rmaext_fabric *f, void *block)
{
	struct rmx_registration_cache *o = &f->cache;

	pthread_mutex_lock(&o->bounce_lock);
	*(void **)block = o->free_bounces;
	o->free_bounces = block;
	atomic_fetch_sub(&o->bounces_used, 1);
	pthread_mutex_unlock(&o->bounce_lock);
}

/* -- calls */

static int know(struct rmaext_fabric *f, const void *addr, uint64_t len,
		int pinned, uint64_t *token_p)
{
	struct rmx_registration_cache *o = &f->cache;
	struct rmx_cached_buffer *it, **more;
	size_t i;

	if (!len || len - 1 > UINTPTR_MAX - (uintptr_t)addr)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "rmaext_origin_know",
				"%llu bytes", (unsigned long long)len);
	it = new_origin(addr, len);
	if (!it)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "origin");
	it->pinned = pinned;
	pthread_mutex_lock(&o->lock);
	if (o->count == o->room) {
		more = realloc(o->known, (2 * o->room + 8) * sizeof(*more));
		if (!more) {
			pthread_mutex_unlock(&o->lock);
			free(it);
			return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "realloc",
					"origins");
		}
		o->known = more;
		o->room = 2 * o->room + 8;
	}
	i = after(o, it->start);
	memmove(&o->known[i + 1], &o->known[i],
		(o->count - i) * sizeof(*o->known));
	o->known[i] = it;
	o->count++;
	*token_p = it->token = ++o->last_token;
	pthread_mutex_unlock(&o->lock);
	return 0;
}

int rmaext_origin_know(rmaext_fabric *f, const void *addr, uint64_t len,
		       int pinned, uint64_t *token_p)
{
	int ret = rmx_fabric_enter(f, "rmaext_origin_know");

	*token_p = 0;
	if (ret)
		return ret;
	if (f->cache.demanded)
		ret = know(f, addr, len, pinned, token_p);
	rmx_fabric_leave(f);
	return ret;
}

static void forget(struct rmaext_fabric *f, uint64_t token)
{
	struct rmx_registration_cache *o = &f->cache;
	struct rmx_cached_buffer *it = NULL;
	size_t i;

	for (i = 0; i < o->count && !it; i++)
		if (o->known[i]->token == token)
			it = o->known[i];
	if (!it)
		return;
	memmove(&o->known[i - 1], &o->known[i],
		(o->count - i) * sizeof(*o->known));
	o->count--;
	if (it->region.mr) {
		o->registered--;
		o->bytes -= it->len;
	}
	it->token = 0;
	it->next = o->others;
	o->others = it;
	reap(f);
}

void rmaext_origin_forget(rmaext_fabric *f, uint64_t token)
{
	if (!token || !rmx_rundown_try(&f->rundown))
		return; /* closing it has deregistered all */
	pthread_mutex_lock(&f->cache.lock);
	forget(f, token);
	pthread_mutex_unlock(&f->cache.lock);
	rmx_fabric_leave(f);
}

/* -- begin and end */

/* So that windows find keys of their own. */
static uint64_t most_of(const struct rmaext_fabric *f, uint64_t wanted)
{
	const uint64_t most = f->key_size && f->key_size < 8
				      ? (1ULL << (8 * f->key_size)) / 8
				      : UINT64_MAX;

	return f->mr_mode & (FI_MR_PROV_KEY | FI_MR_RAW) || wanted < most
		       ? wanted
		       : most;
}

int rmx_cache_start(struct rmaext_fabric *f,
		    const struct rmaext_fabric_options *options,
		    size_t bounce_bytes)
{
	struct rmx_registration_cache *o = &f->cache;

	pthread_mutex_init(&o->lock, NULL);
	pthread_mutex_init(&o->bounce_lock, NULL);
	o->demanded = f->mr_mode & FI_MR_LOCAL;
	if (!o->demanded)
		return 0;
	o->most = most_of(f, options->cache_count);
	o->most_bytes = options->cache_bytes;
	o->bounce_bytes =
		(bounce_bytes + RMX_LINE - 1) & ~(size_t)(RMX_LINE - 1);
	if (getrandom(&o->next_key, sizeof(o->next_key), 0) < 0)
		return -FI_EIO;
	return 0;
}

/* The endpoint is closed: nothing is read or written any more. */
int rmx_cache_close(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *o = &f->cache;
	int ret, first = 0;

	if (!o->demanded)
		return 0;
	pthread_mutex_lock(&o->lock);
	for (size_t i = 0; i < o->count; i++) {
		ret = deregister(f, o->known[i]);
		first = first ? first : ret;
	}
	for (struct rmx_cached_buffer *it = o->others; it; it = it->next) {
		ret = deregister(f, it);
		first = first ? first : ret;
	}
	pthread_mutex_unlock(&o->lock);
	for (struct rmx_slab *s = o->slabs; s; s = s->next) {
		ret = rmx_region_close(f, &s->region);
		first = first ? first : ret;
	}
	return first;
}

/* What an operation still lies in, or has, stays. */
void rmx_cache_free(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *o = &f->cache;
	struct rmx_slab *slab;

	if (!o->demanded)
		return;
	pthread_mutex_lock(&o->lock);
	while (o->count) {
		struct rmx_cached_buffer *it = o->known[--o->count];

		it->token = 0;
		it->next = o->others;
		o->others = it;
	}
	free(o->known);
	o->known = NULL;
	o->room = 0;
	reap(f);
	pthread_mutex_unlock(&o->lock);
	while (!atomic_load(&o->bounces_used) && (slab = o->slabs)) {
		o->slabs = slab->next;
		free(slab->blocks);
		free(slab);
	}
}
