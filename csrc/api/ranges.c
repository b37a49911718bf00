/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One operation on each of many places, which all ranks of a window may have,
 * as requests. Short elements of one length are begun by api/many.c. Else what
 * is reached by memory is done at once; the short places of each other target
 * are one operation, which goes as messages; the long ones are a read or write
 * each.
 *
 * All places are copied and checked before the first is touched: what another
 * thread does to the caller's arrays of ranks, offsets and counts meanwhile
 * changes nothing.
 */
#include "api/api.h"
#include "exec/copy_places.h"
#include "exec/many.h"
#include "win/notify.h"
#include "xfer/siblings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LONG_PLACE ((uint64_t)8 << 10) /* bytes; a longer place goes alone */

/* One place, and where its values and results are in own memory. */
struct place {
	const struct rmx_target *target;
	int64_t rank;
	uint64_t at, len, from; /* bytes */
	bool near;		/* it is mapped here */
};

/* A call while it begins. */
struct begin {
	struct rmaext_window *window;
	const struct rmaext_places_call *call;
	uint64_t scale; /* bytes that an offset counts */
	uint64_t limit; /* of offsets whose bytes fit 63 bits */
	int access;
	struct place *places;
	uint64_t total;	 /* elements of all places */
	uint64_t far;	 /* places that are not mapped here */
	uint64_t *first; /* of each rank: its first in `order`; one more */
	uint64_t *order; /* the far places by rank */
};

static const char *begin_name(const struct begin *b)
{
	return rmx_kind_name(b->call->kind, 0, false);
}

static const char *place_value(const struct begin *b, const struct place *p)
{
	const bool one = b->call->ones & RMAEXT_ONE_VALUE;

	return (const char *)b->call->values + (one ? 0 : p->from);
}

static char *place_result(const struct begin *b, const struct place *p)
{
	return (char *)b->call->results + p->from;
}

/* -- checks */

static int64_t place_number(const int64_t *numbers, bool one, uint64_t i)
{
	return __atomic_load_n(&numbers[one ? 0 : i], __ATOMIC_RELAXED);
}

/* Copies what the caller's arrays have; false: no window has such a place. */
static bool place_read(struct begin *b, uint64_t i, struct place *p)
{
	const struct rmaext_places_call *c = b->call;
	const int64_t offset =
		place_number(c->offsets, c->ones & RMAEXT_ONE_OFFSET, i);
	const int64_t count =
		c->counts
			? place_number(c->counts, c->ones & RMAEXT_ONE_COUNT, i)
			: 1;

	p->rank = place_number(c->ranks, c->ones & RMAEXT_ONE_RANK, i);
	p->from = b->total * c->unit;
	if (offset < 0 || count < 0 || (uint64_t)offset > b->limit ||
	    (uint64_t)count > c->elements - b->total)
		return false;
	p->at = (uint64_t)offset * b->scale;
	p->len = (uint64_t)count * c->unit;
	b->total += (uint64_t)count;
	return true;
}

static int place_check(const struct begin *b, struct place *p)
{
	const struct rmaext_window *w = b->window;
	int ret;

	if (!rmx_passes(w, p->rank, p->at, p->len, b->access)) {
		ret = rmx_check(w, begin_name(b), p->rank, p->at, p->len,
				b->access);
		if (ret)
			return ret;
	}
	p->target = rmx_target_of(b->window, p->rank);
	p->near = rmx_kind_is_local(w, b->call->kind, p->rank);
	return rmx_kind_check_route(w, begin_name(b), p->rank, b->call->kind,
				    b->call->type, true);
}

static int places_make(struct begin *b, int64_t *bad_p)
{
	const struct rmaext_places_call *c = b->call;

	b->places = malloc(c->count * sizeof(*b->places));
	if (!b->places)
		return rmx_no_memory("the places of a call");
	for (uint64_t i = 0; i < c->count; i++) {
		struct place *p = &b->places[i];
		int ret;

		*bad_p = (int64_t)i;
		if (!place_read(b, i, p))
			return rmx_fail(-ERANGE, p->rank, begin_name(b),
					"offset or count is negative, or too "
					"large for any window");
		ret = place_check(b, p);
		if (ret)
			return ret;
		b->far += !p->near;
	}
	*bad_p = -1;
	if (c->notify &&
	    rmx_target_of(b->window, b->places->rank)->route != RMAEXT_FABRIC)
		return rmx_fail(-FI_EINVAL, b->places->rank, begin_name(b),
				"that rank is reached by memory: put, then "
				"notify");
	if (b->total != c->elements)
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, begin_name(b),
				"the array of counts changed during the call");
	return 0;
}

/* -- by memory */

static void places_copy_near(const struct begin *b)
{
	for (uint64_t i = 0; i < b->call->count; i++) {
		const struct place *p = &b->places[i];
		char *there;

		if (!p->len || !p->near)
			continue;
		there = p->target->map + p->at;
		rmx_count_direct(&b->window->tally, p->rank,
				 rmx_counted_as(b->call->kind, false), p->at,
				 p->len, false);
		if (b->call->kind == RMAEXT_PUT)
			rmx_copy(there, place_value(b, p), p->len);
		else
			rmx_copy(place_result(b, p), there, p->len);
	}
}

/* -- by the network */

/* Sorts the far places by rank; they keep their order. */
static int places_sort(struct begin *b)
{
	const uint64_t ranks = (uint64_t)b->window->count;
	uint64_t at = 0;

	b->first = calloc(ranks + 2, sizeof(*b->first));
	b->order = malloc(b->far * sizeof(*b->order));
	if (!b->first || !b->order)
		return rmx_no_memory("the places of a call");
	for (uint64_t i = 0; i < b->call->count; i++)
		if (!b->places[i].near)
			b->first[b->places[i].rank + 2]++;
	for (uint64_t r = 0; r < ranks; r++)
		b->first[r + 1] = at += b->first[r + 1];
	for (uint64_t i = 0; i < b->call->count; i++)
		if (!b->places[i].near)
			b->order[b->first[b->places[i].rank + 1]++] = i;
	return 0;
}

/* Is a place long enough for a read or write of its own? */
static bool place_is_long(const struct begin *b, const struct place *p)
{
	const struct rmaext_window *w = b->window;

	/* what is to notify goes as messages, which are in order */
	return p->len > LONG_PLACE && !b->call->notify && !w->root->attached &&
	       !rmx_by_message(w, p->target, p->len);
}

/* How many pieces a place is: each has room in a message. */
static uint64_t place_pieces(const struct begin *b, const struct place *p)
{
	return place_is_long(b, p)
		       ? 0
		       : (p->len + RMX_PIECE_MOST - 1) / RMX_PIECE_MOST;
}

/* The places of a rank: all, each whole; or the short ones, for messages. */
static struct rmx_places *pieces_new(const struct begin *b, int64_t rank,
				     uint64_t count, bool all)
{
	const bool put = b->call->kind == RMAEXT_PUT;
	struct rmx_piece *pieces;
	struct rmx_places *places =
		malloc(sizeof(*places) + count * sizeof(*pieces));
	uint64_t n = 0;

	if (!places)
		return NULL;
	pieces = (struct rmx_piece *)(places + 1);
	for (uint64_t k = b->first[rank]; k < b->first[rank + 1]; k++) {
		const struct place *p = &b->places[b->order[k]];
		uint64_t some;

		if (!all && place_is_long(b, p))
			continue;
		for (uint64_t at = 0; at < p->len; at += some) {
			struct rmx_piece *it = &pieces[n++];

			some = p->len - at;
			if (!all && some > RMX_PIECE_MOST)
				some = RMX_PIECE_MOST;
			*it = (struct rmx_piece){
				.offset = b->window->first + p->at + at,
				.len = some,
				.value = put ? place_value(b, p) + at : NULL,
				.result = put ? NULL : place_result(b, p) + at,
			};
		}
	}
	*places = (struct rmx_places){
		.count = n,
		.owned = true,
		.pieces = pieces,
	};
	return places;
}

/* By the kernel. */
static int places_copy(const struct begin *b, int64_t rank)
{
	struct rmx_places *places =
		pieces_new(b, rank, b->first[rank + 1] - b->first[rank], true);
	int ret;

	if (!places)
		return rmx_no_memory("the places of a call");
	ret = rmx_places_copy(b->window, rank, b->call->kind == RMAEXT_PUT,
			      places, INT64_MAX);
	free(places);
	return ret;
}

/* The short places of a rank, as one operation. */
static int member_begin_short(const struct begin *b, int64_t rank,
			      uint64_t count, struct rmx_siblings *g)
{
	const struct rmaext_places_call *c = b->call;
	struct rmx_places *places = pieces_new(b, rank, count, false);
	struct rmx_op *op;
	int ret;

	if (!places)
		return rmx_no_memory("the places of a call");
	ret = rmx_op_new(b->window, rank,
			 c->kind == RMAEXT_PUT ? RMX_MESSAGE_PUT
					       : RMX_MESSAGE_GET,
			 0, 0, 0, &op);
	if (ret) {
		free(places);
		return ret;
	}
	for (uint64_t k = 0; k < places->count; k++)
		op->len += places->pieces[k].len;
	op->places = places;
	op->local = c->results;
	op->unit = 1;
	op->notify = c->notify - 1;
	return rmx_siblings_begin(g, op);
}

static int member_begin_long(const struct begin *b, const struct place *p,
			     struct rmx_siblings *g)
{
	const bool put = b->call->kind == RMAEXT_PUT;
	struct rmx_op *op;
	int ret = put ? rmx_put_new(b->window, p->rank, p->at,
				    place_value(b, p), p->len, &op)
		      : rmx_get_new(b->window, p->rank, p->at,
				    place_result(b, p), p->len, &op);

	return ret ? ret : rmx_siblings_begin(g, op);
}

static int rank_begin(const struct begin *b, int64_t rank,
		      struct rmx_siblings *g)
{
	const uint64_t start = b->first[rank], end = b->first[rank + 1];
	const struct place *first;
	uint64_t pieces = 0;
	int ret = 0;

	if (start == end)
		return 0;
	first = &b->places[b->order[start]];
	if (rmx_copies(first->target)) {
		ret = places_copy(b, rank);
		if (!ret || rmx_copies(first->target))
			return ret;
		ret = 0; /* refused: by messages */
	}
	for (uint64_t k = start; k < end && !ret; k++) {
		const struct place *p = &b->places[b->order[k]];

		pieces += place_pieces(b, p);
		if (place_is_long(b, p))
			ret = member_begin_long(b, p, g);
	}
	if (pieces && !ret)
		ret = member_begin_short(b, rank, pieces, g);
	return ret;
}

/* How many operations there are: of each rank one, and the long places. */
static uint64_t begin_members(const struct begin *b)
{
	uint64_t n = 0;

	for (int64_t rank = 0; rank < b->window->count; rank++)
		n += b->first[rank] < b->first[rank + 1];
	for (uint64_t k = 0; k < b->far; k++)
		n += place_is_long(b, &b->places[b->order[k]]);
	return n;
}

static int begin_far(struct begin *b, struct rmaext_op **op_p)
{
	struct rmx_siblings *g;
	uint64_t members;
	int ret = places_sort(b);

	if (ret)
		return ret;
	members = begin_members(b);
	g = rmx_siblings_new(members, b->call->ended);
	if (!g)
		return rmx_no_memory("the requests of a call");
	for (int64_t rank = 0; rank < b->window->count && !ret; rank++)
		ret = rank_begin(b, rank, g);
	rmx_siblings_begun(g);
	if (g->count) {
		*op_p = &g->owned;
		return ret ? ret : RMAEXT_PENDING;
	}
	rmx_siblings_end(g);
	return ret;
}

/* Are they elements, which are packed tightly into messages? */
static bool are_elements(const struct rmaext_places_call *c)
{
	return !c->counts && !c->notify &&
	       (c->unit <= LONG_PLACE || c->kind == RMAEXT_UPDATE);
}

int rmx_siblings_start(struct rmaext_window *w,
		       const struct rmaext_places_call *call,
		       struct rmaext_op **op_p, int64_t *bad_p)
{
	struct begin b = {.window = w, .call = call};
	int ret;

	if (are_elements(call))
		return rmx_many_begin(w, call, op_p, bad_p);
	b.scale = call->scale ? call->scale
		  : w->stride ? w->stride
			      : call->unit;
	b.limit = INT64_MAX / b.scale;
	b.access = call->kind == RMAEXT_PUT ? RMAEXT_WRITE : RMAEXT_READ;
	ret = places_make(&b, bad_p);
	if (!ret)
		places_copy_near(&b);
	if (!ret && b.far)
		ret = begin_far(&b, op_p);
	free(b.places);
	free(b.first);
	free(b.order);
	return ret;
}
