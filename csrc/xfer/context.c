/* SPDX-License-Identifier: BSD-3-Clause */
/* The contexts of reads and writes. The list of the free ones needs no lock. */
#include "xfer/operation.h"

#include <stdlib.h>

_Static_assert(RMX_CONTEXTS <= UINT16_MAX, "the word of the free ones");
_Static_assert(2 * RMX_CONTEXTS <= RMX_COMPLETIONS,
	       "all contexts and as many messages may complete at once");

/*
 * The list of free contexts is one word. Its low half has their count and the
 * number of the first; its upper half counts the changes, so that the exchange
 * of a taker that was held up fails, and no stale `next` gets into the list.
 * `next` counts from the context behind, so that zeros are a list in order: the
 * contexts, 1.7 MB, take no memory until they are used.
 */
#define FREE_FIRST(word) ((word) & 0xffff)
#define FREE_COUNT(word) ((word) >> 16 & 0xffff)
#define FREE_CHANGE ((uint64_t)1 << 32)

static uint64_t free_list_word(uint64_t old, uint64_t count, uint64_t first)
{
	return ((old + FREE_CHANGE) & ~(FREE_CHANGE - 1)) | count << 16 | first;
}

int rmx_transfers_start(struct rmaext_fabric *f)
{
	struct rmx_transfers *t = f->transfers;

	t->contexts = calloc(RMX_CONTEXTS, sizeof(*t->contexts));
	if (!t->contexts)
		return -FI_ENOMEM;
	atomic_init(&t->free_contexts, free_list_word(0, RMX_CONTEXTS, 0));
	if (!f->limits.registers)
		return 0;
	return rmx_region_local(f, t->contexts,
				RMX_CONTEXTS * sizeof(*t->contexts),
				RMX_SOURCE | RMX_RESULT, &t->region);
}

int rmx_transfers_deregister(struct rmaext_fabric *f)
{
	return rmx_region_close(f, &f->transfers->region);
}

unsigned int rmx_contexts_in_flight(const struct rmaext_fabric *f)
{
	unsigned int n = 0;

	for (int i = 0; i < RMX_CONTEXTS; i++)
		n += f->transfers->contexts[i].op != NULL;
	return n;
}

/*
 * One peer gets no more contexts than are left for the others: operations on
 * their way to a process that has stopped must not keep us from the others.
 */
struct rmx_context *rmx_context_take(struct rmaext_fabric *f,
				     struct rmaext_peer *peer)
{
	uint_fast64_t old = atomic_load(&f->transfers->free_contexts), new;
	struct rmx_context *context;

	do {
		if (atomic_load(&peer->contexts) >= FREE_COUNT(old))
			return NULL;
		context = &f->transfers->contexts[FREE_FIRST(old)];
		new = free_list_word(
			old, FREE_COUNT(old) - 1,
			FREE_FIRST(old + 1 + atomic_load(&context->next)));
	} while (!atomic_compare_exchange_weak(&f->transfers->free_contexts,
					       &old, new));
	atomic_fetch_add(&peer->contexts, 1);
	return context;
}

/* The list is changed last: after that the fabric may close. */
void rmx_context_give(struct rmaext_fabric *f, struct rmaext_peer *peer,
		      struct rmx_context *context)
{
	const uint64_t number = (uint64_t)(context - f->transfers->contexts);
	uint_fast64_t old = atomic_load(&f->transfers->free_contexts), new;

	atomic_fetch_sub(&peer->contexts, 1);
	do {
		atomic_store_explicit(
			&context->next,
			(unsigned int)(FREE_FIRST(old) - number - 1),
			memory_order_relaxed);
		new = free_list_word(old, FREE_COUNT(old) + 1, number);
	} while (!atomic_compare_exchange_weak(&f->transfers->free_contexts,
					       &old, new));
}

void rmx_contexts_free(struct rmaext_fabric *f)
{
	if (FREE_COUNT(atomic_load(&f->transfers->free_contexts)) <
	    RMX_CONTEXTS)
		return;
	free(f->transfers->contexts);
	f->transfers->contexts = NULL;
}
