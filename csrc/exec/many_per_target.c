/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The elements of a block by their target. Those of targets whose memory can be
 * copied by system call, or by a stream, are carried out here, all others go by
 * messages.
 */
#include "exec/copy_places.h"
#include "exec/many.h"
#include "exec/streamed.h"
#include "memory/device.h"
#include "record/record.h"

#include <stdlib.h>

/* Do so many elements of a rank go by messages, and not by this CPU? */
static bool target_by_messages(const struct rmx_many *b, int64_t rank,
			       uint32_t count)
{
	const struct rmx_target *t = rmx_target_of(b->window, rank);

	if (!rmx_updates(b) && rmx_device_of(b->window, rank))
		return false;
	return rmx_updates(b) || !rmx_copies(t) ||
	       (b->kind == RMAEXT_GET && !b->all.starts &&
		rmx_places_by_messages(b->window, t, count, b->all.unit));
}

/* Finds the ranks with elements that are not for this CPU, and how many. */
static int per_target_make(struct rmx_many *b)
{
	struct rmaext_window *w = b->window;
	uint32_t at = 0;
	size_t n = 0;

	memset(b->number_of, 0, (size_t)w->count * sizeof(*b->number_of));
	for (uint64_t i = b->start; i < b->end; i++) {
		const int64_t rank = rmx_rank_at(b, i);

		if ((uint64_t)rank >= (uint64_t)w->count)
			return rmx_changed(b);
		if (!rmx_many_is_local(b, rank) && rmx_len_number(&b->all, i))
			n += !b->number_of[rank]++;
	}
	rmx_per_target_free(b);
	b->per_target = calloc(n + 1, sizeof(*b->per_target));
	if (!b->per_target)
		return rmx_no_memory("the targets of a call");
	for (int64_t rank = 0; b->target_count < n; rank++) {
		struct rmx_per_target *it = &b->per_target[b->target_count];
		struct rmx_target *t;

		if (!b->number_of[rank])
			continue;
		t = rmx_target_of(w, rank);
		if (t->member->peer && atomic_load(&t->member->peer->gone))
			return rmx_check(w, b->name, rank, 0, 0, 0);
		it->rank = rank;
		it->target = t;
		it->messages = target_by_messages(b, rank, b->number_of[rank]);
		if ((it->messages && !(w->fabric && t->member->peer)) ||
		    (t->access & b->access) != b->access)
			return rmx_changed(b);
		it->first = at;
		it->places = b->all;
		it->places.order = b->order + at;
		it->places.start = b->start;
		it->places.count = 0; /* they come next */
		if (b->op == RMAEXT_NO_OP)
			it->places.values = NULL;
		at += b->number_of[rank];
		b->number_of[rank] = (uint32_t)++b->target_count;
	}
	b->per_target[n].first = at;
	return 0;
}

/* Sorts the elements by target, and keeps their order within one. */
static int per_target_sort(struct rmx_many *b)
{
	for (uint64_t i = b->start; i < b->end; i++) {
		const int64_t rank = rmx_rank_at(b, i);
		struct rmx_per_target *it;
		uint64_t at;
		uint32_t k;

		if ((uint64_t)rank >= (uint64_t)b->window->count)
			return rmx_changed(b);
		k = b->number_of[rank];
		if (!k || !rmx_len_number(&b->all, i))
			continue;
		it = &b->per_target[k - 1];
		at = it->first + it->places.count++;
		if (at == it[1].first)
			return rmx_changed(b);
		b->order[at] = (uint32_t)(i - b->start);
		it->bytes += rmx_len_number(&b->all, i);
	}
	for (size_t k = 0; k < b->target_count; k++) {
		const struct rmx_per_target *it = &b->per_target[k];

		if (it->first + it->places.count != it[1].first)
			return rmx_changed(b);
	}
	return 0;
}

int rmx_per_target_make(struct rmx_many *b)
{
	int ret = per_target_make(b);

	b->begun = rmx_now();
	return ret ? ret : per_target_sort(b);
}

/* What the record has of a target's elements. */
struct did {
	unsigned int kind;
	uint64_t offset, bytes;
};

static struct did target_did(const struct rmx_many *b,
			     const struct rmx_per_target *it)
{
	struct did did = {.kind = rmx_many_counts_as(b)};

	/* elsewhere the message that notifies is an operation of its own */
	if (b->is_part && b->notify >= 0 &&
	    rmx_control_block_of(b->window, it->rank)) {
		did.kind = RMAEXT_DID_NOTIFY;
		did.offset = (uint64_t)b->notify;
	} else if (b->is_part) {
		did.offset = it->places.first - b->window->first;
	}
	for (uint64_t i = 0; i < it->places.count; i++)
		did.bytes += rmx_place_at(&it->places, i).len;
	return did;
}

/* The elements of a target were copied, or that has failed. */
static void target_record(const struct rmx_many *b,
			  const struct rmx_per_target *it, int ret)
{
	const struct rmx_tally *tally = &b->window->tally;
	const struct did did = target_did(b, it);
	const int route = it->target->route;

	rmx_count(tally, it->rank, did.kind, route, 1, did.bytes);
	if (ret)
		rmx_count_error(tally, it->rank, did.kind, route);
	if (tally->of && rmx_record.traced)
		rmx_event_add(&(struct rmaext_record_event){
			.begin = b->begun,
			.end = rmx_now(),
			.offset = did.offset,
			.bytes = did.bytes,
			.window = tally->id,
			.target = (int32_t)it->rank,
			.outcome = ret,
			.kind = (uint8_t)did.kind,
			.route = (uint8_t)route,
		});
}

/* Copies by a stream. Later than at first that is a wait, which the record has.
 */
static int target_copy_streamed(const struct rmx_many *b,
				struct rmx_per_target *it, int64_t until)
{
	int ret;

	if (it->stream) {
		const struct did did = target_did(b, it);

		rmx_now_in(did.kind, b->window->tally.id, it->rank, did.offset,
			   did.bytes);
	}
	ret = rmx_streamed_places(b->window, it->rank, b->kind == RMAEXT_PUT,
				  &it->places, until, &it->stream);
	if (ret != RMAEXT_PENDING)
		rmx_now_out(b->window->tally.id, ret, false);
	return ret;
}

int rmx_per_target_copy(struct rmx_many *b, int64_t until)
{
	int ret = 0;

	for (size_t k = 0; k < b->target_count && !ret; k++) {
		struct rmx_per_target *it = &b->per_target[k];
		const bool put = b->kind == RMAEXT_PUT;
		const struct rmx_device *device;

		if (it->messages ||
		    (it->places.next == it->places.count && !it->stream))
			continue;
		device = rmx_device_of(b->window, it->rank);
		if (!device && it->stream) {
			ret = rmx_streamed_closed(put ? "put" : "get",
						  it->rank);
			target_record(b, it, ret);
			return ret;
		}
		if (!device && it->target->route != RMAEXT_CMA) {
			it->messages = true; /* it is not mapped any more */
			continue;
		}
		ret = device ? target_copy_streamed(b, it, until)
			     : rmx_places_copy(b->window, it->rank, put,
					       &it->places, until);
		if (!ret) {
			target_record(b, it, 0);
		} else if (it->target->route == RMAEXT_CMA &&
			   !rmx_copies(it->target)) {
			it->messages = true; /* what is left of it */
			ret = 0;
		} else if (ret != RMAEXT_PENDING) {
			target_record(b, it, ret);
		}
	}
	return ret;
}

void rmx_per_target_free(struct rmx_many *b)
{
	for (size_t k = 0; k < b->target_count; k++)
		if (b->per_target[k].stream)
			rmx_stream_give(b->per_target[k].stream);
	free(b->per_target);
	b->per_target = NULL;
	b->target_count = 0;
}
