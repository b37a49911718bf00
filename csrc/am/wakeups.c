/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of other nodes that wait for a lock are told to look; see wakeups.h. */
#include "am/wakeups.h"

static int64_t *lock_words(char *block)
{
	return (int64_t *)(void *)(block +
				   offsetof(struct rmx_control_block, lock));
}

struct rmx_lock_update rmx_lock_update_find(struct rmaext_window *w,
					    const uint64_t *offsets,
					    const void *values, uint32_t n)
{
	const uint64_t bytes = rmaext_block_bytes(w->count);
	const uint64_t end = atomic_load(&w->control_end);
	struct rmx_lock_update found = {0};

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t block = offsets[i] / bytes * bytes;
		const uint64_t word =
			(offsets[i] - block -
			 offsetof(struct rmx_control_block, lock)) /
			sizeof(int64_t);
		int64_t more;

		if (offsets[i] >= end || word >= RMX_LOCK_WORDS)
			continue;
		if (!found.words || found.block != block)
			found = (struct rmx_lock_update){
				.words = lock_words(w->own + block),
				.block = block,
			};
		memcpy(&more, (const char *)values + i * sizeof(more),
		       sizeof(more));
		/* any sum may come: it is taken as what a word holds */
		found.more[word] =
			(int64_t)((uint64_t)found.more[word] + (uint64_t)more);
	}
	return found;
}

void rmx_lock_update_tell(struct rmaext_window *w,
			  const struct rmx_lock_update *u)
{
	unsigned int changes = 0;

	for (uint64_t i = 0; u->words && i < RMX_LOCK_WORDS; i++)
		if (u->more[i])
			changes |= rmx_lock_changed(
				u->words, i, u->more[i],
				__atomic_load_n(&u->words[i],
						__ATOMIC_SEQ_CST));
	if (changes)
		rmx_wakeups_send(w, w->own + u->block, u->block, changes);
}

void rmx_lock_swap_tell(struct rmaext_window *w, uint64_t offset)
{
	struct rmx_lock_update u;
	const int64_t one = 1;

	u = rmx_lock_update_find(w, &offset, &one, 1);
	rmx_lock_update_tell(w, &u);
}

/* Adds 1 to a rank's word; if it cannot now, that rank looks by itself. */
static void wakeup_send(struct rmaext_window *w, int64_t rank, uint64_t offset)
{
	const int64_t one = 1;
	const struct rmaext_call add = {
		.kind = RMAEXT_UPDATE,
		.op = RMAEXT_SUM,
		.type = RMAEXT_INT64,
		.rank = rank,
		.offset = offset,
		.operand = &one,
		.count = 1,
	};
	struct rmx_op *op;

	if (!rmx_peer_of(w, rank) || rmx_message_op(w, &add, true, 0, &op))
		return;
	op->hint = true;
	if (w->fabric->hooks->send(&op) != RMX_DONE)
		rmx_op_free(op); /* nothing was done */
}

void rmx_wakeups_send(struct rmaext_window *w, char *at, uint64_t block,
		      unsigned int changes)
{
	const int64_t *words = lock_words(at);
	struct rmaext_places places;
	const int64_t *slots;

	rmaext_block_places(w->count, &places);
	slots = (const int64_t *)(void *)at + places.slots;
	for (int64_t r = 0; r < w->count; r++) {
		const int64_t slot =
			__atomic_load_n(&slots[r], __ATOMIC_SEQ_CST);

		if (slot && rmx_lock_calls(words, slot, changes))
			wakeup_send(w, r,
				    block + places.wakeups * sizeof(int64_t));
	}
}
