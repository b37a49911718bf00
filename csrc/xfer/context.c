/* SPDX-License-Identifier: BSD-3-Clause */
/* Contexts of fi_* calls, with room for an operation: a list without a lock. */
#include "xfer/operation.h"

#include <stdlib.h>

_Static_assert(2 * RMX_SLOTS <= RMX_COMPLETIONS,
	       "all may complete at once, and as many messages");

/*
 * The list of free slots is one word: in its low half their count and the
 * number of the first; above, how often it was changed, so that a taker who
 * was held up does not put a stale `next` in place.
 */
#define FREE_FIRST(word) ((word) & 0xffff)
#define FREE_COUNT(word) ((word) >> 16 & 0xffff)
#define FREE_CHANGE ((uint64_t)1 << 32)

static uint64_t free_word(uint64_t old, uint64_t count, uint64_t first)
{
	return ((old + FREE_CHANGE) & ~(FREE_CHANGE - 1)) | count << 16 | first;
}

int rmx_transfers_start(struct rmaext_fabric *f)
{
	struct rmx_transfers *t = f->transfers;

	t->slots = calloc(RMX_SLOTS, sizeof(*t->slots));
	if (!t->slots)
		return -FI_ENOMEM;
	for (unsigned int i = 0; i < RMX_SLOTS; i++)
		atomic_init(&t->slots[i].next, i + 1);
	atomic_init(&t->free_slots, free_word(0, RMX_SLOTS, 0));
	if (!f->origins.demanded)
		return 0;
	return rmx_region_local(f, t->slots, RMX_SLOTS * sizeof(*t->slots),
				RMX_SOURCE | RMX_RESULT, &t->region);
}

int rmx_transfers_deregister(struct rmaext_fabric *f)
{
	return rmx_region_close(f, &f->transfers->region);
}

unsigned int rmx_slots_in_flight(const struct rmaext_fabric *f)
{
	unsigned int n = 0;

	for (int i = 0; i < RMX_SLOTS; i++)
		n += f->transfers->slots[i].op != NULL;
	return n;
}

/*
 * One peer gets no more slots than are left for the others: what is on its way
 * to one that has stopped must not keep us from the rest.
 */
struct rmx_slot *rmx_slot_take(struct rmaext_fabric *f,
			       struct rmaext_peer *peer)
{
	uint_fast64_t old = atomic_load(&f->transfers->free_slots), new;
	struct rmx_slot *slot;

	do {
		if (atomic_load(&peer->slots) >= FREE_COUNT(old))
			return NULL;
		slot = &f->transfers->slots[FREE_FIRST(old)];
		new = free_word(old, FREE_COUNT(old) - 1,
				atomic_load(&slot->next));
	} while (!atomic_compare_exchange_weak(&f->transfers->free_slots, &old,
					       new));
	atomic_fetch_add(&peer->slots, 1);
	return slot;
}

/* The list is touched last: the fabric may be closing. */
void rmx_slot_give(struct rmaext_fabric *f, struct rmaext_peer *peer,
		   struct rmx_slot *slot)
{
	const uint64_t number = (uint64_t)(slot - f->transfers->slots);
	uint_fast64_t old = atomic_load(&f->transfers->free_slots), new;

	atomic_fetch_sub(&peer->slots, 1);
	do {
		atomic_store_explicit(&slot->next,
				      (unsigned int)FREE_FIRST(old),
				      memory_order_relaxed);
		new = free_word(old, FREE_COUNT(old) + 1, number);
	} while (!atomic_compare_exchange_weak(&f->transfers->free_slots, &old,
					       new));
}

/* The fabric is closed. What an operation still lies in stays. */
void rmx_slots_end(struct rmaext_fabric *f)
{
	if (FREE_COUNT(atomic_load(&f->transfers->free_slots)) < RMX_SLOTS)
		return;
	free(f->transfers->slots);
	f->transfers->slots = NULL;
}
