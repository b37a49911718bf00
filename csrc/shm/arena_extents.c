/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is free in an arena, and what is in use. Free extents are in bins by
 * their size, extents in use are in a hash table by their address. Two free
 * extents that lie side by side become one.
 */
#include "shm/arena.h"

#include <stdlib.h>

#define TRIES 8	     /* extents of one bin that are looked at */
#define FIRST_BITS 8 /* of the first hash table */

/* The length is at least one line of cache. */
static unsigned int extent_bin(uint64_t len)
{
	return 63 - (unsigned int)__builtin_clzll(len / RMX_LINE);
}

static struct rmx_extent **address_bucket(const struct rmx_extents *x,
					  const void *addr)
{
	const uint64_t key = (uintptr_t)addr / RMX_LINE * 0x9e3779b97f4a7c15;

	return &x->buckets[key >> (64 - x->bits)];
}

static void extent_link(struct rmx_extent **list, struct rmx_extent *e)
{
	e->next = *list;
	e->prev = list;
	if (e->next)
		e->next->prev = &e->next;
	*list = e;
}

static void extent_unlink(struct rmx_extent *e)
{
	*e->prev = e->next;
	if (e->next)
		e->next->prev = e->prev;
}

static void extent_offer(struct rmx_extents *x, struct rmx_extent *e)
{
	const unsigned int bin = extent_bin(e->len);

	e->used = false;
	extent_link(&x->bins[bin], e);
	x->filled |= (uint64_t)1 << bin;
}

static void extent_withdraw(struct rmx_extents *x, struct rmx_extent *e)
{
	const unsigned int bin = extent_bin(e->len);

	extent_unlink(e);
	if (!x->bins[bin])
		x->filled &= ~((uint64_t)1 << bin);
}

/* Without memory for more buckets the table stays as it is, and is slower. */
static int buckets_double(struct rmx_extents *x)
{
	const unsigned int bits = x->bits ? x->bits + 1 : FIRST_BITS;
	const uint64_t n = x->bits ? (uint64_t)1 << x->bits : 0;
	struct rmx_extent **before = x->buckets, *e;
	struct rmx_extent **now = calloc((size_t)1 << bits, sizeof(*now));

	if (!now)
		return -ENOMEM;
	x->buckets = now;
	x->bits = bits;
	for (uint64_t i = 0; i < n; i++)
		while ((e = before[i])) {
			extent_unlink(e);
			extent_link(address_bucket(x, e->addr), e);
		}
	free(before);
	return 0;
}

int rmx_extent_add(struct rmx_extents *x, char *addr, uint64_t len)
{
	struct rmx_extent *e = calloc(1, sizeof(*e));

	if (!e || (!x->bits && buckets_double(x))) {
		free(e);
		return -ENOMEM;
	}
	e->addr = addr;
	e->len = len;
	extent_offer(x, e);
	return 0;
}

static uint64_t extent_skip(const struct rmx_extent *e, uint64_t align)
{
	return -(uintptr_t)e->addr % align;
}

static bool extent_fits(const struct rmx_extent *e, uint64_t len,
			uint64_t align)
{
	const uint64_t skip = extent_skip(e, align);

	return e->len >= skip && e->len - skip >= len;
}

/*
 * The first bin has extents that are too short as well; all of the later bins
 * are long enough, unless the alignment takes too much.
 */
static struct rmx_extent *extent_find_free(const struct rmx_extents *x,
					   uint64_t len, uint64_t align)
{
	const unsigned int least = extent_bin(len);
	uint64_t bins = x->filled >> least << least;

	for (; bins; bins &= bins - 1) {
		struct rmx_extent *e = x->bins[__builtin_ctzll(bins)];

		for (int i = 0; e && i < TRIES; i++, e = e->next)
			if (extent_fits(e, len, align))
				return e;
	}
	return NULL;
}

/* Cuts a free extent, which is in no bin, in two; `rest` is the second one. */
static void extent_cut(struct rmx_extent *e, uint64_t len,
		       struct rmx_extent *rest)
{
	*rest = (struct rmx_extent){
		.addr = e->addr + len,
		.len = e->len - len,
		.before = e,
		.after = e->after,
	};
	if (rest->after)
		rest->after->before = rest;
	e->after = rest;
	e->len = len;
}

char *rmx_extent_take(struct rmx_extents *x, uint64_t len, uint64_t align)
{
	struct rmx_extent *e = extent_find_free(x, len, align), *spare[2];
	uint64_t skip;

	if (!e)
		return NULL;
	if (x->used >> x->bits)
		(void)buckets_double(x);
	skip = extent_skip(e, align);
	spare[0] = skip ? malloc(sizeof(**spare)) : NULL;
	spare[1] = e->len - skip > len ? malloc(sizeof(**spare)) : NULL;
	if ((skip && !spare[0]) || (e->len - skip > len && !spare[1])) {
		free(spare[0]);
		free(spare[1]);
		return NULL;
	}
	extent_withdraw(x, e);
	if (skip) { /* what lies before the block stays free */
		extent_cut(e, skip, spare[0]);
		extent_offer(x, e);
		e = spare[0];
	}
	if (e->len > len) {
		extent_cut(e, len, spare[1]);
		extent_offer(x, spare[1]);
	}
	e->used = true;
	x->used++;
	extent_link(address_bucket(x, e->addr), e);
	return e->addr;
}

struct rmx_extent *rmx_extent_find(const struct rmx_extents *x,
				   const void *addr)
{
	struct rmx_extent *e = *address_bucket(x, addr);

	while (e && e->addr != (const char *)addr)
		e = e->next;
	return e;
}

/* Joins a free extent, which is in no bin, with the one that follows. */
static void extent_join(struct rmx_extent *e)
{
	struct rmx_extent *after = e->after;

	e->len += after->len;
	e->after = after->after;
	if (e->after)
		e->after->before = e;
	free(after);
}

void rmx_extent_free(struct rmx_extents *x, struct rmx_extent *e)
{
	struct rmx_extent *before = e->before;

	extent_unlink(e);
	x->used--;
	if (e->after && !e->after->used) {
		extent_withdraw(x, e->after);
		extent_join(e);
	}
	if (before && !before->used) {
		extent_withdraw(x, before);
		extent_join(before);
		e = before;
	}
	extent_offer(x, e);
}
