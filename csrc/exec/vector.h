/* SPDX-License-Identifier: BSD-3-Clause */
/* What is left to do of an rmaext_many: for vector.c, vector_direct.c,
 * vector_lanes.c and batch.c. */
#ifndef RMAEXT_VECTOR_H
#define RMAEXT_VECTOR_H

#include "dtype/gather.h"
#include "dtype/strides.h"
#include "exec/update.h"

#include <string.h>

#define RMX_PORTION ((uint64_t)1 << 18) /* elements sorted at a time */
#define RMX_PIECES_BYTES ((size_t)64 << 10)
#define RMX_ONLY_DIRECT (1u << RMAEXT_DIRECT)

/* What goes to one target: order[next..end) of the block. */
struct rmx_lane {
	int64_t rank;
	struct rmx_target *target;
	uint32_t next, end;
	uint64_t part;	 /* bytes done of a long element */
	bool messages;	 /* else by system call */
	uint64_t ticket; /* what was in line before, peer->went; 0: not known */
	atomic_uint unanswered;
};

struct rmaext_batch {
	struct rmaext_window *window;
	struct rmaext_fabric *fabric; /* the struct outlives its closing */
	int kind, op, type, access;
	size_t unit;
	uint64_t count;
	uint64_t limit; /* offsets below it fit 63 bits as bytes */
	/* of the index; 0: one element stands for all */
	uint64_t rank_mask, offset_mask;
	size_t step;		     /* bytes from value to value */
	size_t scale;		     /* bytes that an offset counts */
	struct rmx_strides *strides; /* instead of offsets; or NULL */
	const int64_t *ranks, *offsets;
	const char *values;
	char *results;
	unsigned int routes;	/* a bit for each that there is */
	uint64_t start, end;	/* the block */
	uint64_t at;		/* what is before it is done, if by memory */
	int64_t busy;		/* the rank whose guard was not free */
	uint32_t *order;	/* its elements, by target, from start */
	uint32_t *lane_of;	/* rank: 1 + its lane's index */
	struct rmx_lane *lanes; /* and an empty one at the end */
	size_t lane_count, turn;
	char *pieces; /* RMX_PIECES_BYTES */
	atomic_uint unanswered, answers;
	atomic_int error;
	struct rmaext_error failure; /* written before error is set */
	int64_t deadline;
	unsigned int seen;
};

static inline const char *rmx_many_name(int kind, bool fetch)
{
	if (kind == RMAEXT_UPDATE)
		return fetch ? "fetch_op_many" : "accumulate_many";
	return kind == RMAEXT_PUT ? "put_many" : "get_many";
}

static inline const char *rmx_batch_name(const struct rmaext_batch *b)
{
	return rmx_many_name(b->kind, b->results);
}

static inline int64_t rmx_rank_at(const struct rmaext_batch *b, uint64_t i)
{
	return __atomic_load_n(&b->ranks[i & b->rank_mask], __ATOMIC_RELAXED);
}

static inline uint64_t rmx_offset_at(const struct rmaext_batch *b, uint64_t i)
{
	if (b->strides)
		return b->strides->first + rmx_strides_at(b->strides, i);
	return (uint64_t)__atomic_load_n(&b->offsets[i & b->offset_mask],
					 __ATOMIC_RELAXED);
}

static inline const char *rmx_value_at(const struct rmaext_batch *b, uint64_t i)
{
	return b->values ? b->values + i * b->step : NULL;
}

static inline char *rmx_result_at(const struct rmaext_batch *b, uint64_t i)
{
	return b->results ? b->results + i * b->unit : NULL;
}

static inline bool rmx_updates(const struct rmaext_batch *b)
{
	return b->kind == RMAEXT_UPDATE;
}

/*
 * The place of an element, or NULL. Asked anew wherever memory is touched:
 * another thread may have changed the caller's arrays since they were checked.
 */
static inline struct rmx_target *rmx_place(const struct rmaext_batch *b,
					   int64_t rank, uint64_t offset,
					   uint64_t *at_p)
{
	struct rmx_target *t;

	if ((uint64_t)rank >= (uint64_t)b->window->count || offset >= b->limit)
		return NULL;
	t = rmx_target_of(b->window, rank);
	*at_p = offset * b->scale;
	if (*at_p + b->unit > t->size || (t->access & b->access) != b->access)
		return NULL;
	return t;
}

static inline int rmx_changed(const struct rmaext_batch *b)
{
	return rmx_fail(-FI_EINVAL, RMX_NO_RANK, rmx_batch_name(b),
			"ranks or offsets changed during the call");
}

/* What an update needs of its target, besides a route. */
static inline bool rmx_batch_aligned(const struct rmaext_batch *b,
				     const struct rmx_target *t)
{
	return !rmx_updates(b) || (rmx_update_aligned(t, 0, b->type) &&
				   b->scale % rmx_type_of(b->type).align == 0);
}

/* Is that rank's memory for this CPU to work on? */
static inline bool rmx_batch_is_local(const struct rmaext_batch *b,
				      int64_t rank)
{
	if (rmx_updates(b))
		return rmx_update_is_local(b->window, rank);
	return rmx_target_of(b->window, rank)->route == RMAEXT_DIRECT;
}

/*
 * vector_direct.c: do them, or the first block, if all are valid and by memory,
 * at once; else false, and nothing is done. And what is known to be so, from
 * `at` on; RMAEXT_PENDING: a guard is not to be had for now.
 */
bool rmx_direct_all(const struct rmaext_batch *batch, int *ret_p,
		    uint64_t *done_p);
int rmx_direct_portion(struct rmaext_batch *batch, uint64_t end);

/* vector_lanes.c: sort a block by target; do what needs no message, for a
 * while */
int rmx_lanes_make(struct rmaext_batch *batch);
int rmx_lanes_copy(struct rmaext_batch *batch, int64_t until);

#endif
