/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The places of an operation on many are read, and checked, before anything is
 * done.
 */
#include "api/api.h"
#include "exec/many.h"

#include <errno.h>
#include <stdlib.h>

/* Records that no window has such a range. */
static int range_refuse(const struct rmx_many *b, uint64_t i)
{
	return rmx_fail(-ERANGE, rmx_rank_at(b, i), b->name,
			"offset or count is negative, or too large for any "
			"window");
}

/* What rmx_check() does not look at. */
static int many_check_route(const struct rmx_many *b, int64_t rank)
{
	const struct rmaext_window *w = b->window;
	const struct rmx_target *t = rmx_target_of(w, rank);
	const char *call = b->name;

	if (!rmx_many_aligned(b, t))
		return rmx_fail(-FI_EFAULT, rank, call,
				"the memory there is not aligned to %u, as "
				"updates of this dtype need it",
				rmx_type_of(b->type).align);
	if (rmx_many_is_local(b, rank) ||
	    ((t->route == RMAEXT_CMA || rmx_device_of(b->window, rank)) &&
	     !rmx_updates(b)) ||
	    (w->fabric && rmx_peer_of(w, rank)))
		return 0;
	return rmx_fail(-FI_EOPNOTSUPP, rank, call,
			"no route leads there: that rank has no network");
}

/*
 * Records what is wrong with a place, if anything is. Its rank has been read,
 * as another thread may change the array: it is valid once this returns 0.
 */
static int many_check_one(const struct rmx_many *b, int64_t rank, uint64_t i)
{
	const uint64_t offset = rmx_offset_number(&b->all, i);
	const char *call = b->name;
	int ret;

	if (offset >= b->limit)
		return b->all.starts
			       ? range_refuse(b, i)
			       : rmx_fail(-ERANGE, rank, call,
					  "offset %lld is not in the window "
					  "there",
					  (long long)offset);
	ret = rmx_check(b->window, call, rank, offset * b->all.scale,
			rmx_len_number(&b->all, i), b->access);
	return ret ? ret : many_check_route(b, rank);
}

static unsigned int many_route_bit(const struct rmx_many *b, int64_t rank)
{
	const int route = rmx_target_of(b->window, rank)->route;

	return 1u << (rmx_many_is_local(b, rank) ? RMAEXT_DIRECT
		      : route == RMAEXT_DIRECT	 ? RMAEXT_FABRIC
						 : route);
}

/* What is by memory has nothing that could notify once it is there. */
static int many_check_notify(const struct rmx_many *b)
{
	if (b->notify < 0 || !(b->routes & ~(1u << RMAEXT_FABRIC)))
		return 0;
	return rmx_fail(-FI_EINVAL, rmx_rank_at(b, 0), b->name,
			"that rank is reached by memory: put, then notify");
}

/* A quick look; what may be wrong many_check_one() finds out. */
static bool many_passes(const struct rmx_many *b, int64_t rank, uint64_t i)
{
	uint64_t at;
	const struct rmx_target *t =
		rmx_place(b, rank, rmx_offset_number(&b->all, i),
			  rmx_len_number(&b->all, i), &at);

	return t && !rmx_doubtful(t) && rmx_many_aligned(b, t) &&
	       (rmx_many_is_local(b, rank) ||
		(b->window->fabric && t->member->peer));
}

int rmx_many_check(struct rmx_many *b, int64_t *bad_p)
{
	unsigned int routes = 0;

	for (uint64_t i = 0; i < b->all.count; i++) {
		const int64_t rank = rmx_rank_at(b, i);
		const int ret = many_passes(b, rank, i)
					? 0
					: many_check_one(b, rank, i);

		if (ret) {
			*bad_p = (int64_t)i;
			return ret;
		}
		routes |= many_route_bit(b, rank);
	}
	b->routes = routes;
	return many_check_notify(b);
}

/* Reads the counts of ranges into b->all.starts, which have room. */
static int starts_read(struct rmx_many *b, const struct rmaext_places_call *c,
		       uint64_t *starts, int64_t *bad_p)
{
	const uint64_t mask = c->ones & RMAEXT_ONE_COUNT ? 0 : UINT64_MAX;
	uint64_t at = 0;

	for (uint64_t i = 0; i < c->count; i++) {
		const int64_t n =
			c->counts ? __atomic_load_n(&c->counts[i & mask],
						    __ATOMIC_RELAXED)
				  : 1;

		if (n < 0 || (uint64_t)n > c->elements - at) {
			*bad_p = (int64_t)i;
			return range_refuse(b, i);
		}
		starts[i] = at;
		at += (uint64_t)n;
		b->longs += (uint64_t)n * c->unit > RMX_LONG_PLACE;
	}
	starts[c->count] = at;
	b->all.starts = starts;
	if (at == c->elements)
		return 0;
	return rmx_fail(-FI_EINVAL, RMX_NO_RANK, b->name,
			"the array of counts changed during the call");
}

/*
 * Copies ranks, offsets and counts, which the caller may change after the call.
 * Elements that are to notify go as ranges, as these alone do.
 */
int rmx_many_own(struct rmx_many *b, const struct rmaext_places_call *c,
		 int64_t *bad_p)
{
	const uint64_t ranks = b->rank_mask ? b->all.count : 1;
	const uint64_t offsets = b->all.offset_step ? b->all.count : 1;
	const uint64_t starts = c->counts || c->notify ? b->all.count + 1 : 0;
	int64_t *copies = malloc((ranks + offsets + starts) * sizeof(*copies));

	if (!copies)
		return rmx_no_memory("the places of a call");
	memcpy(copies, b->ranks, ranks * sizeof(*copies));
	memcpy(copies + ranks, b->all.offsets, offsets * sizeof(*copies));
	b->copies = copies;
	b->ranks = copies;
	b->all.offsets = (char *)(copies + ranks);
	if (starts)
		return starts_read(b, c, (uint64_t *)copies + ranks + offsets,
				   bad_p);
	if (!rmx_updates(b) && b->all.unit > RMX_LONG_PLACE)
		b->longs = b->all.count;
	return 0;
}
