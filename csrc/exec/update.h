/* SPDX-License-Identifier: BSD-3-Clause */
/* Updates of memory that is mapped here, by this CPU; see update.c. */
#ifndef RMAEXT_UPDATE_H
#define RMAEXT_UPDATE_H

#include "dtype/atomic_ops.h"
#include "dtype/layout.h"
#include "win/window.h"

/*
 * Are updates of that rank made by this CPU? Its memory must be mapped, and
 * have a guard, unless the window has none on any rank.
 */
static inline bool rmx_update_is_local(const struct rmaext_window *w,
				       int64_t rank)
{
	const struct rmx_target *t = rmx_target_of(w, rank);

	return t->route == RMAEXT_DIRECT && (rmx_control_block_of(w, rank) ||
					     !rmx_control_block_of(w, w->self));
}

/* Is an element at that offset aligned for updates? */
static inline bool rmx_update_aligned(const struct rmx_target *t,
				      uint64_t offset, int type)
{
	return !((t->align + offset) & (rmx_type_of(type).align - 1u));
}

/*
 * Updates memory of update->rank, which is mapped here and was checked, from
 * element *done on; its offset is not looked at. Any thread that may wait for
 * the guard calls it, and so does the reader of the CQ. Returns 0, or
 * RMAEXT_PENDING: the guard was not free for about `ns`; call it again with the
 * same *done, which is 0 at first.
 */
int rmx_update_apply(struct rmaext_window *window, void *memory,
		     const struct rmaext_call *update, uint64_t *done,
		     int64_t ns);

/* An update of elements anywhere in memory that is mapped here. */
struct rmx_rows {
	int op, type;
	uint64_t left; /* bytes at each of these, which are whole elements */
	struct rmx_walk memory, operand, result;
	bool with_operand, with_result;
};

/*
 * Does the same for rows: what is done is gone from them. The caller has
 * checked all, alignment too.
 */
int rmx_update_rows(struct rmaext_window *window, int64_t rank,
		    struct rmx_rows *rows, int64_t ns);

/*
 * Carries out an update of memory that this process can only copy: in bulk it
 * is read, updated here and written back. Returns 0, an error, or
 * RMAEXT_PENDING if nothing was done and a message is to do it: for one element
 * without a result, as many share a message; for more than some KiB; if the
 * owner refuses copies (overlap.h); if the guard takes long; or if earlier
 * operations, behind which it belongs, are on their way.
 */
int rmx_update_copied(struct rmaext_window *window,
		      const struct rmaext_call *update);

/*
 * Does what rmx_update_apply() does for n cells anywhere in that memory, all or
 * none of them. With RMAEXT_CSWAP a value is two elements: the one to compare
 * with, and the new one. `step` is the bytes from one value to the next, 0 for
 * one value for all. `results`, one element each, may be NULL but with
 * RMAEXT_CSWAP, and may begin where `values` does.
 */
int rmx_update_cells(struct rmaext_window *window, int64_t rank, int op,
		     int type, void *const *cells, size_t n, const char *values,
		     size_t step, char *results, int64_t ns);

/*
 * The same in a caller that has entered the guard for single updates, of a type
 * that needs no lock.
 */
void rmx_cells_update(int op, int type, void *const *cells, size_t n,
		      const char *values, size_t step, char *results);

/*
 * Both are for a caller in bulk: an update of elements in a row, and of n
 * cells, of any type. No other thread uses that memory.
 */
void rmx_update_in_bulk(char *memory, const struct rmaext_call *update);
void rmx_cells_in_bulk(int op, int type, void *const *cells, size_t n,
		       const char *values, size_t step, char *results);

/*
 * Carries out an update at once, if that needs no waiting, no message and no
 * error. The interpreter's lock may be held. Returns false if nothing was done:
 * rmaext_start() is needed.
 */
bool rmx_update_direct(struct rmaext_window *window,
		       const struct rmaext_call *update);

#endif
