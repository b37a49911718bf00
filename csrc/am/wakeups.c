/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of other nodes that wait for a lock are told to look; see wakeups.h. */
#include "am/wakeups.h"
#include "shm/ticket_lock.h"

struct rmx_lock_update rmx_lock_update_find(struct rmaext_window *w,
					    const uint64_t *offsets,
					    const void *values, uint32_t n)
{
	const uint64_t bytes = rmaext_block_bytes(w->count);
	struct rmx_lock_update found = {0};

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t block = offsets[i] / bytes * bytes;
		const uint64_t word =
			(offsets[i] - block -
			 offsetof(struct rmx_control_block, lock)) /
			sizeof(int64_t);

		if (offsets[i] >= w->control_end || word >= RMX_LOCK_WORDS)
			continue;
		found.block = block;
		found.words =
			(int64_t *)(w->own + block +
				    offsetof(struct rmx_control_block, lock));
		memcpy(&found.more[word],
		       (const char *)values + i * sizeof(int64_t),
		       sizeof(int64_t));
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

/* Adds 1 to a rank's word; if it cannot now, that rank looks by itself. */
static void wakeup_send(struct rmaext_window *w, int64_t rank, uint64_t offset)
{
	const int64_t one = 1;
	struct rmaext_op *op;

	if (!rmx_peer_of(w, rank) || rmx_op_new(w, rank, RMX_UPDATE, offset,
						sizeof(one), sizeof(one), &op))
		return;
	op->op = RMAEXT_SUM;
	op->type = RMAEXT_INT64;
	op->unit = sizeof(one);
	op->operand = (const char *)&one;
	rmx_op_buffer(op);
	rmx_op_note(op);
	if (w->fabric->hooks->send(&op) == RMX_DONE)
		return;
	op->begun = 0; /* nothing was done */
	rmaext_op_release(&op);
}

void rmx_wakeups_send(struct rmaext_window *w, const char *at, uint64_t block,
		      unsigned int changes)
{
	const int64_t *words =
		(const int64_t *)(at +
				  offsetof(struct rmx_control_block, lock));
	struct rmaext_places places;
	const int64_t *slots;

	rmaext_block_places(w->count, &places);
	slots = (const int64_t *)at + places.slots;
	for (int64_t r = 0; r < w->count; r++) {
		const int64_t slot =
			__atomic_load_n(&slots[r], __ATOMIC_SEQ_CST);

		if (slot && rmx_target_of(w, r)->route != RMAEXT_DIRECT &&
		    rmx_lock_calls(words, slot, changes))
			wakeup_send(w, r,
				    block + places.wakeups * sizeof(int64_t));
	}
}
