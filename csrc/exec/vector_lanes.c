/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of a block that go to one target each. */
#include "exec/vector.h"

#include <stdlib.h>

#define RMX_PIECES 1024u /* UIO_MAXIOV, of process_vm_* */

/* One lane for each rank that has elements in the block and is not direct. */
static int make_lanes(struct rmaext_batch *b)
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
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "lanes");
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
		lane->messages = t->route == RMAEXT_FABRIC || rmx_updates(b);
		if (lane->messages && !(b->fabric && t->member->peer))
			return rmx_changed(b);
		lane->next = lane->end = at;
		at += b->lane_of[rank];
		b->lane_of[rank] = (uint32_t)++b->lane_count;
	}
	b->lanes[n].next = at;
	return 0;
}

/* Sort the block by lane, without changing the order within one. */
static int sort(struct rmaext_batch *b)
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

int rmx_lanes_make(struct rmaext_batch *b)
{
	int ret = make_lanes(b);

	return ret ? ret : sort(b);
}

/* Some of a lane by process_vm_readv or -writev, short ones via a buffer. */
static int by_pieces(struct rmaext_batch *b, struct rmx_lane *lane)
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
	ret = rmx_cma_pieces(lane->target->member->near, lane->rank, put,
			     pieces, n, buf, len);
	for (size_t k = 0; !ret && !put && !whole && k < n; k++)
		memcpy(rmx_result_at(b, b->start + b->order[first + k]),
		       buf + k * b->unit, b->unit);
	return ret;
}

/* By system call, until the time is up. */
int rmx_lanes_copy(struct rmaext_batch *b, int64_t until)
{
	int ret = 0;

	for (size_t k = 0; k < b->lane_count; k++) {
		struct rmx_lane *lane = &b->lanes[k];

		while (!lane->messages && lane->next < lane->end && !ret) {
			ret = by_pieces(b, lane);
			if (!ret && rmx_now() > until)
				ret = RMAEXT_PENDING;
		}
	}
	return ret;
}
