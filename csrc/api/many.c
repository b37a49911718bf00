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
	const struct rmx_places all = rmx_many_places(b, NULL, b->count);

	for (uint64_t i = 0; i < b->count; i++) {
		const struct rmx_piece it = rmx_place_at(&all, i);
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
	if (b->starts) {
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
	const uint64_t most = b->notify < 0  ? RMX_LONG_PLACE
			      : b->count > 1 ? UINT64_MAX
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
	uint64_t len =
		b->starts ? it->bytes : (it->places.count - done) * b->unit;
	struct rmx_op *op;
	int ret = b->longs || (b->starts && done)
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
			.result = b->results,
			.count = rmx_updates(b) ? len / b->unit : len,
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
	const uint64_t left = b->count - b->start;
	uint64_t most = RMX_PORTION;

	if (b->routes != RMX_ONLY_DIRECT && b->unit > PORTION_BYTES / most)
		most = 1 + PORTION_BYTES / b->unit;
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
		   b->count * b->unit);
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
		if (b->end == b->count)
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
	const int ret = many_go_on(b, slice);

	return ret && ret != RMAEXT_PENDING ? many_failed(b) : ret;
}

static void many_free(struct rmx_many *b)
{
	per_target_end(b);
	rmx_per_target_free(b);
	free(b->number_of);
	free(b->order);
	free(b->copies);
	free(b);
}

/*
 * What may be continued, or has other targets, lies on the heap. Its
 * blocks have `most` elements at most.
 */
static struct rmx_many *many_copy(const struct rmx_many *from, uint64_t most)
{
	const bool sorted = from->routes != RMX_ONLY_DIRECT;
	const uint64_t n = from->count < most ? from->count : most;
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
	int ret = rmx_window_enter(b->window, b->name);

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
	many_free((struct rmx_many *)owned);
	return 0;
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

/* All has been checked; b is from malloc(), or NULL. */
static int many_carry_out(struct rmx_many *b, struct rmaext_op **op_p)
{
	int ret;

	if (!b)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "malloc", "operation");
	b->owned.life = &many_life;
	b->deadline = rmx_now() + b->window->timeout;
	ret = many_run(b, RMX_SLICE);
	if (ret == RMAEXT_PENDING)
		*op_p = &b->owned;
	else
		many_free(b);
	return ret;
}

static int many_start(struct rmx_many *on_stack, struct rmaext_op **op_p,
		      int64_t *bad_p)
{
	int ret;

	if (rmx_direct_all(on_stack, &ret, &on_stack->end)) {
		if (ret || on_stack->end == on_stack->count)
			return ret;
		on_stack->at = on_stack->end;
		on_stack->routes = RMX_ONLY_DIRECT;
	} else {
		ret = rmx_many_check(on_stack, bad_p);
		if (ret)
			return ret;
	}
	return many_carry_out(many_copy(on_stack, RMX_PORTION), op_p);
}

int rmx_many_copy(struct rmaext_window *w, const struct rmaext_call *c,
		  struct rmx_places *places, struct rmaext_op **op_p)
{
	struct rmx_siblings *g = rmx_siblings_new(1, NULL);
	struct rmx_per_target *it = malloc(sizeof(*it));
	struct rmx_many *b = malloc(sizeof(*b));

	if (!g || !it || !b) {
		free(g);
		free(it);
		free(b);
		free(places);
		return rmx_no_memory("a copy of a part");
	}
	g->places = places;
	g->dispose = free;
	*it = (struct rmx_per_target){
		.rank = c->rank,
		.target = rmx_target_of(w, c->rank),
		.places = *places,
	};
	*b = (struct rmx_many){
		.window = w,
		.fabric = w->fabric,
		.name = rmx_call_name(c),
		.kind = c->kind,
		.unit = places->unit,
		.count = places->count,
		.end = places->count,
		.at = places->count,
		.results = places->results,
		.notify = -1,
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
	const uint64_t scale = c->scale ? c->scale : usual;
	const bool swap = update && c->op == RMAEXT_CSWAP;
	const size_t width = swap ? 2 * c->unit : c->unit;

	return (struct rmx_many){
		.window = w,
		.fabric = w->fabric,
		.name = rmx_kind_name(c->kind, c->op, c->results),
		.kind = c->kind,
		.op = update ? c->op : 0,
		.type = update ? c->type : 0,
		.access = rmx_cells_access(c->kind, c->op, c->results),
		.unit = c->unit,
		.width = width,
		.count = c->count,
		.limit = (INT64_MAX - c->unit) / scale,
		.rank_mask = c->ones & RMAEXT_ONE_RANK ? 0 : UINT64_MAX,
		.offset_mask = c->ones & RMAEXT_ONE_OFFSET ? 0 : UINT64_MAX,
		.step = c->ones & RMAEXT_ONE_VALUE ? 0 : width,
		.scale = scale,
		.ranks = c->ranks,
		.offsets = c->offsets,
		.values = c->kind == RMAEXT_GET ? NULL : c->values,
		.results = c->kind == RMAEXT_PUT ? NULL : c->results,
		.notify = c->notify - 1,
	};
}

/* Begins what is not done at once; all is one block. Copies come first. */
static int many_begin_far(struct rmx_many *b, int *ended)
{
	int ret = rmx_per_target_make(b);

	if (!ret)
		ret = rmx_per_target_copy(b, rmx_now() + RMX_SLICE);
	return ret ? ret : per_target_start(b, ended);
}

static void many_dispose(void *many)
{
	many_free(many);
}

int rmx_many_begin(struct rmaext_window *w, const struct rmaext_places_call *c,
		   struct rmaext_op **op_p, int64_t *bad_p)
{
	struct rmx_many *b = NULL, on_stack = many_make(w, c);
	struct rmx_siblings *g;
	int ret = rmx_many_own(&on_stack, c, bad_p);

	if (!ret)
		ret = rmx_many_check(&on_stack, bad_p);
	if (!ret) {
		b = many_copy(&on_stack, on_stack.count);
		ret = b ? 0 : rmx_no_memory("a call on many");
	}
	if (ret) {
		free(on_stack.copies);
		return ret;
	}
	b->end = b->count;
	if (!rmx_updates(b)) /* the caller makes those of memory here */
		ret = portion_by_memory(b);
	if (!ret && b->routes != RMX_ONLY_DIRECT)
		ret = many_begin_far(b, c->ended);
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
	g->dispose = many_dispose;
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
	struct rmx_many b = many_make(w, c);

	return many_start(&b, op_p, bad_p);
}
