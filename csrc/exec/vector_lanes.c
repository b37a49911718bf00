/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The lanes of a block: its elements by their target. Lanes whose memory can be
 * copied by system call are carried out here, all others by messages.
 */
#include "exec/copy_places.h"
#include "exec/vector.h"

#include <stdlib.h>

/* Do so many elements of a rank go by messages, and not by this CPU? */
static bool lane_by_messages(const struct rmx_batch *b,
			     const struct rmx_target *t, uint32_t count)
{
	return rmx_updates(b) || !rmx_copies(t) ||
	       (b->kind == RMAEXT_GET &&
		rmx_places_by_messages(b->window, t, count, b->unit));
}

/* Makes a lane for each rank with elements that are not for this CPU. */
static int lanes_make(struct rmx_batch *b)
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
	b->lane_count = 0;
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
		if ((lane->messages && !(b->fabric && t->member->peer)) ||
		    (t->access & b->access) != b->access)
			return rmx_changed(b);
		lane->first = lane->end = at;
		at += b->lane_of[rank];
		b->lane_of[rank] = (uint32_t)++b->lane_count;
	}
	b->lanes[n].first = at;
	return 0;
}

/* Sorts the elements by lane, and keeps their order within a lane. */
static int lanes_sort(struct rmx_batch *b)
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
		if (lane->end == lane[1].first)
			return rmx_changed(b);
		b->order[lane->end++] = (uint32_t)(i - b->start);
	}
	for (size_t k = 0; k < b->lane_count; k++)
		if (b->lanes[k].end != b->lanes[k + 1].first)
			return rmx_changed(b);
	return 0;
}

static struct rmx_places lane_places(const struct rmx_batch *b,
				     const struct rmx_lane *lane)
{
	return (struct rmx_places){
		.count = lane->end - lane->first,
		.unit = b->unit,
		.width = b->width,
		.order = b->order + lane->first,
		.start = b->start,
		.first = b->window->first,
		.offsets = (const char *)b->offsets,
		.scale = b->scale,
		.values = b->values,
		.results = b->results,
		.offset_step = b->offset_mask ? sizeof(*b->offsets) : 0,
		.value_step = b->step,
	};
}

int rmx_lanes_make(struct rmx_batch *b)
{
	int ret = lanes_make(b);

	b->begun = rmx_now();
	if (!ret)
		ret = lanes_sort(b);
	for (size_t k = 0; !ret && k < b->lane_count; k++)
		b->lanes[k].places = lane_places(b, &b->lanes[k]);
	return ret;
}

/* A lane was copied, or has failed. */
static void lane_record(const struct rmx_batch *b, const struct rmx_lane *lane,
			int ret)
{
	const uint64_t bytes = lane->places.count * b->unit;
	const unsigned int kind = rmx_batch_counts_as(b);

	rmx_count(&b->window->tally, lane->rank, kind, RMAEXT_CMA, 1, bytes);
	if (ret)
		rmx_count_error(&b->window->tally, lane->rank, kind,
				RMAEXT_CMA);
	if (rmx_record.traced)
		rmx_event_add(&(struct rmaext_record_event){
			.begin = b->begun,
			.end = rmx_now(),
			.bytes = bytes,
			.window = b->window->tally.id,
			.target = (int32_t)lane->rank,
			.outcome = ret,
			.kind = (uint8_t)kind,
			.route = RMAEXT_CMA,
		});
}

int rmx_lanes_copy(struct rmx_batch *b, int64_t until)
{
	int ret = 0;

	for (size_t k = 0; k < b->lane_count && !ret; k++) {
		struct rmx_lane *lane = &b->lanes[k];

		if (lane->messages || lane->places.next == lane->places.count)
			continue;
		ret = rmx_places_copy(b->window, lane->rank,
				      b->kind == RMAEXT_PUT, &lane->places,
				      until);
		if (!ret) {
			lane_record(b, lane, 0);
		} else if (!rmx_copies(lane->target)) {
			lane->messages = true; /* what is left of it */
			ret = 0;
		} else if (ret != RMAEXT_PENDING) {
			lane_record(b, lane, ret);
		}
	}
	return ret;
}
