/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lanes of a block: its elements by their target. Lanes whose memory can be
 * copied by system call are carried out here, all others by messages.
 */
#include "exec/vector.h"

#include <stdlib.h>

#define RMX_PIECES 1024u /* UIO_MAXIOV, the most that process_vm_* take */

/*
 * The kernel takes 0.4 us for each piece that process_vm_* copy; a message
 * takes 40 us and more to the progress thread of the target and back, then 0.02
 * us each.
 */
#define RMX_MANY_PIECES 256u
#define RMX_SHORT_PIECE 64u /* bytes */

/*
 * Do so many elements of a rank go by messages, and not by this CPU? Puts over
 * cma never do: one that was given up could overwrite a later one by this CPU.
 */
static bool lane_by_messages(const struct rmaext_batch *b,
			     const struct rmx_target *t, uint32_t count)
{
	if (t->route == RMAEXT_FABRIC || rmx_updates(b) ||
	    (t->route == RMAEXT_CMA && !rmx_copies(t)))
		return true;
	return b->kind == RMAEXT_GET && count >= RMX_MANY_PIECES &&
	       b->unit <= RMX_SHORT_PIECE && b->fabric && t->member->peer &&
	       atomic_load(&t->member->peer->serves);
}

/* Makes a lane for each rank with elements that are not for this CPU. */
static int lanes_make(struct rmaext_batch *b)
{
	struct rmaext_window *w = b->window;
	uint32_t at = 0;
	size_t n = 0;

	memset(b->lane_of, 0, (size_t)w->count * sizeof(*b->lane_of));
	for (uint64_t i = b->start; i < b->end; i++) {
		const int64_t rank = rmx_rank_at(b, i);

		if ((uint64_t)rank >= (uint64_t)w->count)
			return rmx_changed(b);
		if (!rmx_batch_is_local(b, rank))
			n += !b->lane_of[rank]++;
	}
	free(b->lanes);
	b->lane_count = b->turn = 0;
	b->lanes = calloc(n + 1, sizeof(*b->lanes));
	if (!b->lanes)
		return rmx_no_memory("the lanes of a batch");
	for (int64_t rank = 0; b->lane_count < n; rank++) {
		struct rmx_lane *lane = &b->lanes[b->lane_count];
		struct rmx_target *t;

		if (!b->lane_of[rank])
			continue;
		t = rmx_target_of(w, rank);
		if (t->member->peer && atomic_load(&t->member->peer->gone))
			return rmx_check(w, rmx_batch_name(b), rank, 0, 0, 0);
		lane->rank = rank;
		lane->target = t;
		lane->messages = lane_by_messages(b, t, b->lane_of[rank]);
		if (lane->messages && !(b->fabric && t->member->peer))
			return rmx_changed(b);
		lane->next = lane->end = at;
		at += b->lane_of[rank];
		b->lane_of[rank] = (uint32_t)++b->lane_count;
	}
	b->lanes[n].next = at;
	return 0;
}

/* Sorts the elements by lane, and keeps their order within a lane. */
static int lanes_sort(struct rmaext_batch *b)
{
	for (uint64_t i = b->start; i < b->end; i++) {
		const int64_t rank = rmx_rank_at(b, i);
		struct rmx_lane *lane;
		uint32_t k;

		if ((uint64_t)rank >= (uint64_t)b->window->count)
			return rmx_changed(b);
		k = b->lane_of[rank];
		if (!k)
			continue;
		lane = &b->lanes[k - 1];
		if (lane->end == lane[1].next)
			return rmx_changed(b);
		b->order[lane->end++] = (uint32_t)(i - b->start);
	}
	for (size_t k = 0; k < b->lane_count; k++)
		if (b->lanes[k].end != b->lanes[k + 1].next)
			return rmx_changed(b);
	return 0;
}

static int lane_route(const struct rmx_lane *lane)
{
	return lane->messages ? RMAEXT_MESSAGE : RMAEXT_CMA;
}

/* `next` moves, but lanes lie one after another. */
static uint64_t lane_bytes(const struct rmaext_batch *b,
			   const struct rmx_lane *lane)
{
	const uint32_t first = lane == b->lanes ? 0 : lane[-1].end;

	return (uint64_t)(lane->end - first) * b->unit;
}

void rmx_lanes_record(const struct rmaext_batch *b, int ret)
{
	for (size_t k = 0; k < b->lane_count; k++) {
		const struct rmx_lane *lane = &b->lanes[k];

		if (ret && lane->rank == b->failure.rank)
			rmx_count_error(&b->window->tally, lane->rank,
					rmx_batch_counts_as(b),
					lane_route(lane));
		if (lane->messages || rmx_record.traced)
			rmx_event_add(&(struct rmaext_record_event){
				.begin = b->begun,
				.end = rmx_now(),
				.bytes = lane_bytes(b, lane),
				.window = b->window->tally.id,
				.target = (int32_t)lane->rank,
				.outcome = ret,
				.kind = (uint8_t)rmx_batch_counts_as(b),
				.route = (uint8_t)lane_route(lane),
			});
	}
}

int rmx_lanes_make(struct rmaext_batch *b)
{
	int ret = lanes_make(b);

	if (!ret)
		ret = lanes_sort(b);
	b->begun = rmx_now();
	for (size_t k = 0; !ret && k < b->lane_count; k++)
		rmx_count(&b->window->tally, b->lanes[k].rank,
			  rmx_batch_counts_as(b), lane_route(&b->lanes[k]), 1,
			  lane_bytes(b, &b->lanes[k]));
	return ret;
}

/* Copies some of a lane by one system call, short elements by a buffer. */
static int lane_copy_pieces(struct rmaext_batch *b, struct rmx_lane *lane)
{
	const bool put = b->kind == RMAEXT_PUT;
	const bool whole = b->unit > RMX_PIECES_BYTES;
	const uint32_t first = lane->next;
	struct iovec pieces[RMX_PIECES];
	uint64_t i = b->start + b->order[first], at = 0;
	char *buf = b->pieces;
	size_t n = 0, len = 0;
	int ret;

	if (whole)
		buf = put ? (char *)(uintptr_t)rmx_value_at(b, i)
			  : rmx_result_at(b, i);
	do {
		i = b->start + b->order[lane->next];
		if (rmx_place(b, lane->rank, rmx_offset_at(b, i), &at) !=
		    lane->target)
			return rmx_changed(b);
		pieces[n++] = (struct iovec){
			(void *)(uintptr_t)(lane->target->address + at),
			b->unit,
		};
		if (put && !whole)
			memcpy(buf + len, rmx_value_at(b, i), b->unit);
		len += b->unit;
		lane->next++;
	} while (lane->next < lane->end && n < RMX_PIECES &&
		 len + b->unit <= RMX_PIECES_BYTES);
	ret = rmx_cma_pieces(lane->target->member->neighbour, lane->rank, put,
			     pieces, n, buf, len);
	for (size_t k = 0; !ret && !put && !whole && k < n; k++)
		memcpy(rmx_result_at(b, b->start + b->order[first + k]),
		       buf + k * b->unit, b->unit);
	return ret;
}

int rmx_lanes_copy(struct rmaext_batch *b, int64_t until)
{
	int ret = 0;

	for (size_t k = 0; k < b->lane_count; k++) {
		struct rmx_lane *lane = &b->lanes[k];

		while (!lane->messages && lane->next < lane->end && !ret) {
			const uint32_t next = lane->next;

			ret = lane_copy_pieces(b, lane);
			if (ret && !rmx_copies(lane->target)) {
				lane->messages = true;
				lane->next = next;
				ret = 0;
			}
			if (!ret && rmx_now() > until)
				ret = RMAEXT_PENDING;
		}
	}
	return ret;
}
