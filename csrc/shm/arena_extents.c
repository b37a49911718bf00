/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What is free in an arena, and what is not: free parts in bins by size, those
 * in use in a hash table by address. Neighbours that are free become one.
 */
#include "shm/arena.h"

#include <stdlib.h>

#define TRIES 8 /* parts of one bin that are looked at */
#define FIRST_BITS 8

/* of a length of at least one line */
static unsigned int bin_of(uint64_t len)
{
	return 63 - (unsigned int)__builtin_clzll(len / RMX_LINE);
}

static struct rmx_extent **bucket_of(const struct rmx_extents *x,
				     const void *addr)
{
	const uint64_t key = (uintptr_t)addr / RMX_LINE * 0x9e3779b97f4a7c15;

	return &x->buckets[key >> (64 - x->bits)];
}

static void link_in(struct rmx_extent **list, struct rmx_extent *e)
{
	e->next = *list;
	e->prev = list;
	if (e->next)
		e->next->prev = &e->next;
	*list = e;
}

static void unlink_from(struct rmx_extent *e)
{
	*e->prev = e->next;
	if (e->next)
		e->next->prev = e->prev;
}

static void offer(struct rmx_extents *x, struct rmx_extent *e)
{
	const unsigned int bin = bin_of(e->len);

	e->used = false;
	link_in(&x->bins[bin], e);
	x->filled |= (uint64_t)1 << bin;
}

static void withdraw(struct rmx_extents *x, struct rmx_extent *e)
{
	const unsigned int bin = bin_of(e->len);

	unlink_from(e);
	if (!x->bins[bin])
		x->filled &= ~((uint64_t)1 << bin);
}

/* Twice as many buckets as soon as there are more blocks; slower without. */
static int widen(struct rmx_extents *x)
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
			unlink_from(e);
			link_in(bucket_of(x, e->addr), e);
		}
	free(before);
	return 0;
}

int rmx_extent_add(struct rmx_extents *x, char *addr, uint64_t len)
{
	struct rmx_extent *e = calloc(1, sizeof(*e));

	if (!e || (!x->bits && widen(x))) {
		free(e);
		return -ENOMEM;
	}
	e->addr = addr;
	e->len = len;
	offer(x, e);
	return 0;
}

static uint64_t skip_of(const struct rmx_extent *e, uint64_t align)
{
	return -(uintptr_t)e->addr % align;
}

static bool fits(const struct rmx_extent *e, uint64_t len, uint64_t align)
{
	const uint64_t skip = skip_of(e, align);

	return e->len >= skip && e->len - skip >= len;
}

/* From two bins further on all fit, but for what the alignment costs. */
static struct rmx_extent *find_free(const struct rmx_extents *x, uint64_t len,
				    uint64_t align)
{
	const unsigned int least = bin_of(len);
	uint64_t bins = x->filled >> least << least;

	for (; bins; bins &= bins - 1) {
		struct rmx_extent *e = x->bins[__builtin_ctzll(bins)];

		for (int i = 0; e && i < TRIES; i++, e = e->next)
			if (fits(e, len, align))
				return e;
	}
	return NULL;
}

/* Cut a free part, which is in no bin, in two; `rest` is what is behind. */
static void cut(struct rmx_extent *e, uint64_t len, struct rmx_extent *rest)
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
	struct rmx_extent *e = find_free(x, len, align), *spare[2];
	uint64_t skip;

	if (!e)
		return NULL;
	if (x->used >> x->bits)
		(void)widen(x);
	skip = skip_of(e, align);
	spare[0] = skip ? malloc(sizeof(**spare)) : NULL;
	spare[1] = e->len - skip > len ? malloc(sizeof(**spare)) : NULL;
	if ((skip && !spare[0]) || (e->len - skip > len && !spare[1])) {
		free(spare[0]);
		free(spare[1]);
		return NULL;
	}
	withdraw(x, e);
	if (skip) { /* what is before it stays free */
		cut(e, skip, spare[0]);
		offer(x, e);
		e = spare[0];
	}
	if (e->len > len) {
		cut(e, len, spare[1]);
		offer(x, spare[1]);
	}
	e->used = true;
	x->used++;
	link_in(bucket_of(x, e->addr), e);
	return e->addr;
}

struct rmx_extent *rmx_extent_find(const struct rmx_extents *x,
				   const void *addr)
{
	struct rmx_extent *e = *bucket_of(x, addr);

	while (e && e->addr != (const char *)addr)
		e = e->next;
	return e;
}

/* Join a free part, which is in no bin, with the one behind it. */
static void join(struct rmx_extent *e)
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

	unlink_from(e);
	x->used--;
	if (e->after && !e->after->used) {
		withdraw(x, e->after);
		join(e);
	}
	if (before && !before->used) {
		withdraw(x, before);
		join(before);
		e = before;
	}
	offer(x, e);
}
