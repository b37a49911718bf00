/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Bounce buffers: registered memory of this library, for operations that copy
 * short buffers (see rmx_op_over()). A slab of many of them is registered at
 * once.
 */
#include "net/endpoint.h"

#include <stdlib.h>

#define RMX_SLAB 32u /* bounce buffers of a slab */

static bool slab_new(struct rmaext_fabric *f)
{
	struct rmx_registration_cache *c = &f->cache;
	const size_t bytes = RMX_SLAB * c->bounce_bytes;
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
	slab->next = c->slabs;
	c->slabs = slab;
	for (size_t i = 0; i < RMX_SLAB; i++) {
		char *block = slab->blocks + i * c->bounce_bytes;

		*(void **)(void *)block = c->free_bounces;
		c->free_bounces = block;
	}
	return true;
}

bool rmx_bounce_fits(const struct rmaext_fabric *f, size_t bytes)
{
	return f->limits.registers && bytes <= f->cache.bounce_bytes;
}

void *rmx_bounce_take(struct rmaext_fabric *f, void **desc_p)
{
	struct rmx_registration_cache *c = &f->cache;
	const size_t bytes = RMX_SLAB * c->bounce_bytes;
	struct rmx_slab *slab;
	char *block = NULL;

	pthread_mutex_lock(&c->bounce_lock);
	if (c->free_bounces || slab_new(f)) {
		block = c->free_bounces;
		c->free_bounces = *(void **)(void *)block;
		atomic_fetch_add(&c->bounces_used, 1);
	}
	for (slab = c->slabs; block; slab = slab->next)
		if (block >= slab->blocks && block < slab->blocks + bytes)
			break;
	pthread_mutex_unlock(&c->bounce_lock);
	if (block)
		*desc_p = slab->region.desc;
	return block;
}

void rmx_bounce_give(struct rmaext_fabric *f, void *block)
{
	struct rmx_registration_cache *c = &f->cache;

	pthread_mutex_lock(&c->bounce_lock);
	*(void **)block = c->free_bounces;
	c->free_bounces = block;
	atomic_fetch_sub(&c->bounces_used, 1);
	pthread_mutex_unlock(&c->bounce_lock);
}
