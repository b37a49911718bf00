/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One operation on many places, as rmaext_start_many() begins it: elements, or
 * ranges of several. api/many.c checks it, many_direct.c and many_per_target.c
 * carry out what needs no message; the rest are requests, siblings for each
 * block.
 */
#ifndef RMAEXT_MANY_H
#define RMAEXT_MANY_H

#include "base/life.h"
#include "dtype/gather.h"
#include "dtype/places.h"
#include "exec/update.h"

#define RMX_PORTION ((uint64_t)1 << 18) /* elements of a block */
/* bytes; a longer place of a request goes alone */
#define RMX_LONG_PLACE ((uint64_t)8 << 10)
#define RMX_ONLY_DIRECT (1u << RMAEXT_DIRECT)

/* The elements of a block that go to one target, in order from `first` on. */
struct rmx_per_target {
	int64_t rank;
	struct rmx_target *target;
	uint32_t first;
	bool messages; /* they go by messages, else a copy is made here */
	bool begun;    /* a request has these places */
	uint64_t bytes;
	struct rmx_places places;
	struct rmaext_stream *stream; /* that copies them now; or NULL */
};

struct rmx_many {
	struct rmaext_op owned;
	struct rmaext_window *window;
	const char *name; /* of the operation, for error records */
	int kind, op, type, access;
	struct rmx_places all; /* in the order of the caller's arrays */
	uint64_t limit;	    /* offsets below it have bytes that fit 63 bits */
	uint64_t rank_mask; /* of the index; 0: one rank stands for all */
	const int64_t *ranks;
	/* ranks, offsets and starts, from malloc(); NULL: the caller's */
	int64_t *copies;
	bool fresh;	     /* of a get: nobody sees results if it fails */
	unsigned int routes; /* a bit for each route of an element */
	uint64_t start, end; /* the block that is being carried out */
	uint64_t at;	     /* elements before it are done by memory */
	int64_t busy;	     /* rank whose guard was not free */
	uint32_t *order;     /* the block's elements by target, from start */
	uint32_t *number_of; /* of a rank: 1 + its index in per_target */
	struct rmx_per_target *per_target; /* with an empty one at the end */
	size_t target_count;
	struct rmx_siblings *siblings; /* of the block; or NULL */
	int64_t deadline;	       /* of the wait for a guard */
	int64_t begun; /* when the block was sorted, for the record */
	int notify;    /* slot of a put; -1: none */
	/* a message that notifies of what was copied, and goes on; or NULL */
	struct rmaext_op *notifies;
	uint64_t longs; /* places too long for messages, or more */
	bool waited;	/* it is a request whose copies a wait makes; then come
			 * messages */
	bool is_part;	/* of an array, to be copied: it has one target */
};

/* What the record has of it: RMAEXT_DID_PUT and so on. */
static inline unsigned int rmx_many_counts_as(const struct rmx_many *b)
{
	return rmx_counted_as(b->kind, b->all.results);
}

/* Returns the name of the operation, for error records. */
static inline const char *rmx_kind_name(int kind, int op, bool fetch)
{
	if (kind == RMAEXT_UPDATE && op == RMAEXT_CSWAP)
		return "compare_and_swap_many";
	if (kind == RMAEXT_UPDATE)
		return fetch ? "fetch_op_many" : "accumulate_many";
	return kind == RMAEXT_PUT ? "put_many" : "get_many";
}

/*
 * Return what the caller's arrays have for element i. Ranks are read in one
 * piece, as another thread may change them.
 */
static inline int64_t rmx_rank_at(const struct rmx_many *b, uint64_t i)
{
	return __atomic_load_n(&b->ranks[i & b->rank_mask], __ATOMIC_RELAXED);
}

static inline const char *rmx_value_at(const struct rmx_many *b, uint64_t i)
{
	return b->all.values ? b->all.values + i * b->all.value_step : NULL;
}

static inline char *rmx_result_at(const struct rmx_many *b, uint64_t i)
{
	return b->all.results ? b->all.results + i * b->all.unit : NULL;
}

/* Is it an update? */
static inline bool rmx_updates(const struct rmx_many *b)
{
	return b->kind == RMAEXT_UPDATE;
}

/*
 * Returns the target of `len` bytes and their first there, or NULL if they are
 * not in the window. It is asked anew wherever memory is touched, as another
 * thread may have changed the caller's arrays since they were checked.
 */
static inline struct rmx_target *rmx_place(const struct rmx_many *b,
					   int64_t rank, uint64_t offset,
					   uint64_t len, uint64_t *at_p)
{
	struct rmx_target *t;

	if ((uint64_t)rank >= (uint64_t)b->window->count || offset >= b->limit)
		return NULL;
	t = rmx_target_of(b->window, rank);
	*at_p = offset * b->all.scale;
	if (*at_p + len > t->size || (t->access & b->access) != b->access)
		return NULL;
	return t;
}

/* Records that an array has changed since it was checked; -FI_EINVAL. */
static inline int rmx_changed(const struct rmx_many *b)
{
	return rmx_fail(-FI_EINVAL, RMX_NO_RANK, b->name,
			"the arrays of ranks or offsets changed during the "
			"call");
}

/* Are the elements aligned for updates there? */
static inline bool rmx_many_aligned(const struct rmx_many *b,
				    const struct rmx_target *t)
{
	return !rmx_updates(b) ||
	       (rmx_update_aligned(t, 0, b->type) &&
		b->all.scale % rmx_type_of(b->type).align == 0);
}

/* Does this CPU carry it out on a rank? */
static inline bool rmx_many_is_local(const struct rmx_many *b, int64_t rank)
{
	if (rmx_updates(b))
		return rmx_update_is_local(b->window, rank);
	return rmx_target_of(b->window, rank)->route == RMAEXT_DIRECT;
}

/* -- many_direct.c */

/*
 * Carries it out at once, or its first block, if all elements are valid
 * and for this CPU. It does not wait, so the interpreter's lock may be held.
 * Returns false if nothing was done; else *done_p is the number of elements
 * that are done, and *ret_p is 0 or an error with a record.
 */
bool rmx_direct_all(const struct rmx_many *many, int *ret_p, uint64_t *done_p);

/*
 * Carries out the elements from many->at up to `end`, all of which are for
 * this CPU. Returns 0, an error with a record, or RMAEXT_PENDING: a guard was
 * not free, that of many->busy; call it again.
 */
int rmx_direct_portion(struct rmx_many *many, uint64_t end);

/* -- many_per_target.c */

/*
 * Sorts the places of the block that are not for this CPU by their target, but
 * for empty ones. Returns 0, or an error with a record.
 */
int rmx_per_target_make(struct rmx_many *many);

/*
 * Copies what needs no message by system calls, or streams. Returns 0 when all
 * are done, RMAEXT_PENDING at the time `until`, or an error with a record.
 */
int rmx_per_target_copy(struct rmx_many *many, int64_t until);
/* Nothing of the caller's is copied any more. */
void rmx_per_target_free(struct rmx_many *many);

#endif
