/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations on places all over the window: on elements, or, of requests, on
 * ranges of several. Where every target is mapped here, exec/many_direct.c does
 * the elements. Else a block of the places after another is sorted by target;
 * those of each target are copied here (exec/many_per_target.c), or are one
 * request, and the requests of a block are siblings. A request is one block;
 * its long places are a read or write each.
 */
#include "api/api.h"
#include "exec/guard.h"
#include "exec/many.h"
#include "xfer/siblings.h"

#include <stdio.h>
#include <stdlib.h>

#define PORTION_BYTES ((uint64_t)8 << 20) /* bytes of a block, about */

/* -- block by block */

/* Does the elements by memory of a block that has others too. */
static int portion_some_direct(struct rmx_many *b)
{
	int ret = 0;

	while (b->at < b->end && !ret) {
		const int64_t rank = rmx_rank_at(b, b->at);

		if ((uint64_t)rank >= (uint64_t)b->window->count)
			return rmx_changed(b);
		if (rmx_many_is_local(b, rank))
			ret = rmx_direct_portion(b, b->at + 1);
		else
			b->at++;
	}
	return ret;
}

/* Copies the ranges by memory. They are a request's: nobody changes them. */
static void ranges_by_memory(const struct rmx_many *b)
{
	for (uint64_t i = 0; i < b->all.count; i++) {
		const struct rmx_piece it = rmx_place_at(&b->all, i);
		const uint64_t at = it.offset - b->window->first;
		const int64_t rank = rmx_rank_at(b, i);
		char *there;

		if (!it.len || !rmx_many_is_local(b, rank))
			continue;
		there = rmx_target_of(b->window, rank)->map + at;
		rmx_count_direct(&b->window->tally, rank, rmx_many_counts_as(b),
				 at, it.len, false);
		if (it.value)
			rmx_copy(there, it.value, it.len);
		else
			rmx_copy(it.result, there, it.len);
	}
}

/* Does what is left of the block by memory. */
static int portion_by_memory(struct rmx_many *b)
{
	int ret;

	if (b->at == b->end || !(b->routes & RMX_ONLY_DIRECT))
		return 0;
	if (b->all.starts) {
		ranges_by_memory(b);
		return 0;
	}
	ret = b->routes == RMX_ONLY_DIRECT ? rmx_direct_portion(b, b->end)
					   : portion_some_direct(b);
	return ret == RMAEXT_PENDING
		       ? rmx_guard_overdue(b->busy, b->window->timeout,
					   &b->deadline)
		       : ret;
}

/*
 * Is a place long enough for a read or write of its own? Not of what is waited
 * for: an end of that wait lets go of messages only.
 */
static bool place_is_long(const struct rmx_many *b, const struct rmx_target *t,
			  uint64_t len)
{
	/* several places that notify go as messages, which are in order */
	const uint64_t most = b->notify < 0	 ? RMX_LONG_PLACE
			      : b->all.count > 1 ? UINT64_MAX
						 : RMX_COPY_MAX;

	return len > most && !b->waited && !b->window->root->attached &&
	       !rmx_by_message(b->window, t, len);
}

/*
 * Begins the long places of a request that are left, and takes them out of the
 * order of the others. *len_p: bytes of these.
 */
static int target_begin_long(struct rmx_many *b, struct rmx_per_target *it,
			     uint64_t *len_p)
{
	struct rmx_places *p = &it->places;
	uint32_t *order = b->order + it->first;
	const uint64_t end = p->count;
	int ret = 0;

	*len_p = 0;
	p->count = p->next;
	for (uint64_t i = p->next; i < end && !ret; i++) {
		const struct rmx_piece place = rmx_place_at(p, i);
		const uint64_t at = place.offset - b->window->first;
		struct rmx_op *op;

		if (!place_is_long(b, it->target, place.len)) {
			order[p->count++] = order[i];
			*len_p += place.len;
			continue;
		}
		ret = rmx_move_new(
			b->window,
			&(struct rmaext_call){
				.kind = b->kind,
				.notify = b->notify + 1,
				.rank = it->rank,
				.offset = at,
				.operand = place.value,
				.result = place.result,
				.count = place.len,
				.ended = rmx_siblings_ended(b->siblings),
			},
			&op);
		if (!ret)
			rmx_siblings_begin(b->siblings, op);
	}
	return ret;
}

/* Begins a request for a target whose elements go by messages. */
static int target_begin(struct rmx_many *b, struct rmx_per_target *it)
{
	const uint64_t done = it->places.next; /* by system calls */
	uint64_t len = b->all.starts ? it->bytes
				     : (it->places.count - done) * b->all.unit;
	struct rmx_op *op;
	int ret = b->longs || (b->all.starts && done)
			  ? target_begin_long(b, it, &len)
			  : 0;

	it->begun = true;
	if (ret || !len)
		return ret;
	ret = rmx_message_op(
		b->window,
		&(struct rmaext_call){
			.kind = b->kind,
			.op = b->op,
			.type = b->type,
			.notify = b->notify + 1,
			.rank = it->rank,
			.result = b->all.results,
			.count = rmx_updates(b) ? len / b->all.unit : len,
			.ended = rmx_siblings_ended(b->siblings),
		},
		false, 0, &op);
	if (ret)
		return ret;
	op->places = &it->places;
	/* who waits for it always learns of its failure, and no flush does */
	op->told = !b->copies;
	rmx_siblings_begin(b->siblings, op);
	return 0;
}

static int per_target_begin(struct rmx_many *b)
{
	int ret = 0;

	for (size_t k = 0; k < b->target_count && !ret; k++)
		if (b->per_target[k].messages && !b->per_target[k].begun)
			ret = target_begin(b, &b->per_target[k]);
	return ret;
}

/* Begins the requests of a block, which is sorted by target. */
static int per_target_start(struct rmx_many *b, int *ended)
{
	b->siblings = rmx_siblings_new(b->target_count + b->longs, ended);
	return b->siblings ? per_target_begin(b)
			   : rmx_no_memory("the requests of a call");
}

/* Nothing refers to the elements of the last block any more. */
static void per_target_end(struct rmx_many *b)
{
	rmx_siblings_end(b->siblings);
	b->siblings = NULL;
}

/*
 * How many elements the next block has: others wait behind it in the line of a
 * peer.
 */
static uint64_t portion_count(const struct rmx_many *b)
{
	const uint64_t left = b->all.count - b->start;
	uint64_t most = RMX_PORTION;

	if (b->routes != RMX_ONLY_DIRECT && b->all.unit > PORTION_BYTES / most)
		most = 1 + PORTION_BYTES / b->all.unit;
	return left < most ? left : most;
}

static int portion_next(struct rmx_many *b)
{
	int ret;

	per_target_end(b);
	b->start = b->at = b->end;
	b->end = b->start + portion_count(b);
	if (b->routes == RMX_ONLY_DIRECT)
		return 0;
	ret = rmx_per_target_make(b);
	return ret ? ret
		   : per_target_start(b, NULL); /* others are done meanwhile */
}

/* Waits until the block's requests have ended. */
static int per_target_wait(struct rmx_many *b, int64_t until)
{
	const int64_t rank = b->target_count == 1 ? b->per_target->rank : -1;
	int ret = per_target_begin(b);

	if (ret || !b->siblings->count)
		return ret;
	rmx_now_in(rmx_many_counts_as(b), b->window->tally.id, rank, 0,
		   b->all.count * b->all.unit);
	ret = rmx_siblings_wait(b->siblings, until);
	rmx_now_out(b->window->tally.id, ret, false);
	return ret;
}

/* The error of an operation by its own name is one of this call. */
static int many_failed(const struct rmx_many *b)
{
	static const char *const own[] = {"wait", "put", "get", "update"};
	struct rmaext_error record;

	rmaext_error_last(&record);
	for (size_t k = 0; k < sizeof(own) / sizeof(*own); k++)
		if (!strcmp(record.call, own[k]))
			snprintf(record.call, sizeof(record.call), "%s",
				 b->name);
	return rmx_fail_record(&record);
}

static int many_go_on(struct rmx_many *b, int64_t slice)
{
	const int64_t until = rmx_now() + slice;
	int ret = 0;

	for (;;) {
		ret = portion_by_memory(b);
		if (!ret)
			ret = rmx_per_target_copy(b, until);
		if (!ret && b->waited && !b->siblings)
			ret = per_target_start(b, NULL);
		if (!ret && b->siblings)
			ret = per_target_wait(b, until);
		if (ret)
			return ret;
		b->deadline = rmx_now() + b->window->timeout;
		if (b->end == b->all.count)
			return 0;
		if (b->end && rmx_now() > until)
			return RMAEXT_PENDING;
		ret = portion_next(b);
		if (ret)
			return ret;
	}
}

static int many_run(struct rmx_many *b, int64_t slice)
{
	int ret = many_go_on(b, slice);

	/* what went as messages has done so */
	if (!ret && b->is_part && b->notify >= 0 && !b->per_target->messages)
		ret = rmx_notify(b->window, b->per_target->rank, b->notify,
				 &b->notifies);
	return ret && ret != RMAEXT_PENDING ? many_failed(b) : ret;
}

static void many_free(void *many)
{
	struct rmx_many *b = many;

	per_target_end(b);
	rmx_per_target_free(b);
	free(b->number_of);
	free(b->order);
	free(b->copies);
	free(b);
}

/*
 * What may be continued, or has other targets, lies on the heap. A request is
 * one block.
 */
static struct rmx_many *many_copy(const struct rmx_many *from, bool request)
{
	const bool sorted = from->routes != RMX_ONLY_DIRECT;
	const bool one = request || from->all.count < RMX_PORTION;
	const uint64_t n = one ? from->all.count : RMX_PORTION;
	struct rmx_many *b = malloc(sizeof(*b));

	if (!b)
		return NULL;
	*b = *from;
	if (!sorted)
		return b;
	b->order = malloc(n * sizeof(*b->order));
	b->number_of = malloc((size_t)b->window->count * sizeof(*b->number_of));
	if (b->order && b->number_of)
		return b;
	b->copies = NULL; /* they are still the caller's */
	many_free(b);
	return NULL;
}

/* What is over is released before the window is left: it may be closed then. */
static int many_wait(struct rmaext_op *owned, int64_t slice)
{
	struct rmx_many *b = (struct rmx_many *)owned;
	int ret;

	if (b->notifies)
		return rmaext_op_wait(b->notifies, slice);
	ret = rmx_window_enter(b->window, b->name);
	if (ret)
		return ret;
	ret = many_run(b, slice);
	/* also if it has failed before it waited again */
	rmx_now_out(b->window->tally.id, ret, false);
	if (ret != RMAEXT_PENDING)
		per_target_end(b);
	rmx_window_leave(b->window);
	return ret;
}

static int many_release(struct rmaext_op *owned)
{
	struct rmx_many *b = (struct rmx_many *)owned;
	const int ret = rmaext_op_release(&b->notifies);

	if (!ret)
		many_free(b);
	return ret;
}

/* But for a part, its targets change from block to block. */
static int64_t many_rank(const struct rmaext_op *owned)
{
	const struct rmx_many *b = (const struct rmx_many *)owned;

	return b->is_part ? b->per_target->rank : RMX_NO_RANK;
}

static const struct rmx_life many_life = {
	.wait = many_wait,
	.release = many_release,
	.rank = many_rank,
};

/* All has been checked; b is from malloc(). */
static int many_carry_out(struct rmx_many *b, struct rmaext_op **op_p)
{
	int ret;

	b->owned.life = &many_life;
	b->deadline = rmx_now() + b->window->timeout;
	ret = many_run(b, RMX_SLICE);
	if (ret == RMAEXT_PENDING || b->notifies)
		*op_p = &b->owned;
	else
		many_free(b);
	return ret;
}

int rmx_many_copy(struct rmaext_window *w, const struct rmaext_call *c,
		  const struct rmx_layout *part, struct rmaext_op **op_p)
{
	const bool put = c->kind == RMAEXT_PUT;
	struct rmx_siblings *g = rmx_siblings_new(1, NULL);
	struct rmx_per_target *it = malloc(sizeof(*it));
	struct rmx_many *b = malloc(sizeof(*b));
	void *room = malloc(rmx_part_places_bytes(part));
	const struct rmx_places *places;

	if (!g || !it || !b || !room) {
		free(g);
		free(it);
		free(b);
		free(room);
		return rmx_no_memory("a copy");
	}
	places = rmx_part_places(room, part, w->first + c->offset,
				 put ? c->operand : NULL,
				 put ? NULL : c->result);
	g->places = room;
	g->dispose = free;
	*it = (struct rmx_per_target){
		.rank = c->rank,
		.target = rmx_target_of(w, c->rank),
		.places = *places,
	};
	*b = (struct rmx_many){
		.window = w,
		.name = rmx_call_name(c),
		.kind = c->kind,
		.all = *places,
		.end = places->count,
		.at = places->count,
		.notify = c->notify - 1,
		.is_part = true,
		.per_target = it,
		.target_count = 1,
		.siblings = g,
		.begun = rmx_now(),
	};
	return many_carry_out(b, op_p);
}

static struct rmx_many many_make(struct rmaext_window *w,
				 const struct rmaext_places_call *c)
{
	const bool update = c->kind == RMAEXT_UPDATE;
	const uint64_t usual = w->stride ? w->stride : c->unit;
	const bool swap = update && c->op == RMAEXT_CSWAP;
	struct rmx_places all = {
		.count = c->count,
		.unit = c->unit,
		.width = swap ? 2 * c->unit : c->unit,
		.first = w->first,
		.offsets = (const char *)c->offsets,
		.scale = c->scale ? c->scale : usual,
		.values = c->kind == RMAEXT_GET ? NULL : c->values,
		.results = c->kind == RMAEXT_PUT ? NULL : c->results,
	};

	if (!(c->ones & RMAEXT_ONE_OFFSET))
		all.offset_step = sizeof(*c->offsets);
	if (!(c->ones & RMAEXT_ONE_VALUE))
		all.value_step = all.width;
	return (struct rmx_many){
		.window = w,
		.name = rmx_kind_name(c->kind, c->op, c->results),
		.kind = c->kind,
		.op = update ? c->op : 0,
		.type = update ? c->type : 0,
		.access = rmx_cells_access(c->kind, c->op, c->results),
		.all = all,
		.limit = (INT64_MAX - c->unit) / all.scale,
		.rank_mask = c->ones & RMAEXT_ONE_RANK ? 0 : UINT64_MAX,
		.ranks = c->ranks,
		.notify = c->notify - 1,
	};
}

/* As many_carry_out(), of a request, which goes on by itself, and is one block.
 */
static int many_begin(struct rmx_many *b, int *ended, struct rmaext_op **op_p)
{
	struct rmx_siblings *g;
	int ret = 0;

	b->end = b->all.count;
	if (!rmx_updates(b)) /* the caller makes those of memory here */
		ret = portion_by_memory(b);
	if (!ret && b->routes != RMX_ONLY_DIRECT) {
		ret = rmx_per_target_make(b);
		if (!ret)
			ret = rmx_per_target_copy(b, rmx_now() + RMX_SLICE);
		if (!ret)
			ret = per_target_start(b, ended);
	}
	if (ret == RMAEXT_PENDING) { /* nothing copies but a call that waits */
		b->owned.life = &many_life;
		b->at = b->end;
		b->waited = true;
		*op_p = &b->owned;
		return -FI_EAGAIN;
	}
	g = b->siblings;
	if (!g || !g->count) {
		many_free(b);
		return ret;
	}
	b->siblings = NULL; /* they own it, and not the other way round */
	g->places = b;
	g->dispose = many_free;
	rmx_sibling_ended(g);
	*op_p = &g->owned;
	return ret ? ret : RMAEXT_PENDING;
}

bool rmx_many_direct(struct rmaext_window *w,
		     const struct rmaext_places_call *c, bool fresh, int *ret_p)
{
	struct rmx_many b;
	uint64_t done;

	if (c->count > RMX_PORTION ||
	    !rmx_cells_valid(c->kind, c->op, c->type, c->unit))
		return false;
	b = many_make(w, c);
	b.fresh = fresh;
	return rmx_direct_all(&b, ret_p, &done);
}

int rmx_many_start(struct rmaext_window *w, const struct rmaext_places_call *c,
		   struct rmaext_op **op_p, int64_t *bad_p)
{
	struct rmx_many *b, on_stack = many_make(w, c);
	int ret;

	if (!c->ended && rmx_direct_all(&on_stack, &ret, &on_stack.end)) {
		if (ret || on_stack.end == on_stack.all.count)
			return ret;
		on_stack.at = on_stack.end;
		on_stack.routes = RMX_ONLY_DIRECT;
	} else {
		ret = c->ended ? rmx_many_own(&on_stack, c, bad_p) : 0;
		if (!ret)
			ret = rmx_many_check(&on_stack, bad_p);
	}
	b = ret ? NULL : many_copy(&on_stack, c->ended);
	if (!b) {
		free(on_stack.copies);
		return ret ? ret : rmx_no_memory("a call on many");
	}
	return c->ended ? many_begin(b, c->ended, op_p)
			: many_carry_out(b, op_p);
}
