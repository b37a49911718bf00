/* SPDX-License-Identifier: BSD-3-Clause */
/* Updates of memory that is mapped here: update.c. */
#ifndef RMAEXT_UPDATE_H
#define RMAEXT_UPDATE_H

#include "dtype/element.h"
#include "win/window.h"

/* An update of elements in a row, as rmaext_update() takes it. */
struct rmx_update {
	int op, type;
	const void *operand; /* NULL: of RMAEXT_NO_OP */
	const void *compare; /* of RMAEXT_CSWAP only */
	void *result;	     /* may be the operand; NULL: not wanted */
	uint64_t count;
};

/* Are updates of that rank made by this CPU? */
static inline bool rmx_update_is_local(const struct rmaext_window *w,
				       int64_t rank)
{
	const struct rmx_target *t = rmx_target_of(w, rank);

	/* with a guard, or in a window that has none at all */
	return t->route == RMAEXT_DIRECT && (rmx_control_block_of(w, rank) ||
					     !rmx_control_block_of(w, w->self));
}

static inline bool rmx_update_aligned(const struct rmx_target *t,
				      uint64_t offset, int type)
{
	return !((t->align + offset) & (rmx_type_of(type).align - 1u));
}

/*
 * Memory of a rank, as mapped here and checked, from element *done on.
 * RMAEXT_PENDING: the guard was not to be had in about `ns`; to be gone on
 * with.
 */
int rmx_update_apply(struct rmaext_window *window, int64_t rank, void *memory,
		     const struct rmx_update *update, uint64_t *done,
		     int64_t ns);

/*
 * The same for places all over it, for all but RMAEXT_CSWAP, all or none; step:
 * bytes from one value to the next, 0 where all have the same. results may be
 * values.
 */
int rmx_update_cells(struct rmaext_window *window, int64_t rank, int op,
		     int type, void *const *cells, size_t n, const char *values,
		     size_t step, char *results, int64_t ns);

/*
 * False where the whole of rmaext_update() is needed, if only to wait or to
 * refuse: then nothing was done.
 */
bool rmx_update_direct(struct rmaext_window *window, int64_t rank,
		       uint64_t offset, const struct rmx_update *update);

#endif
