/* SPDX-License-Identifier: BSD-3-Clause */
/* Places in the memory of a neighbour, which the kernel copies (RMAEXT_CMA). */
#ifndef RMAEXT_COPY_PLACES_H
#define RMAEXT_COPY_PLACES_H

#include "dtype/places.h"
#include "win/window.h"

/*
 * Are so many elements of `unit` bytes to be got from a rank by messages,
 * although the kernel could copy them? That is faster where they are many.
 */
bool rmx_places_by_messages(const struct rmaext_window *window,
			    const struct rmx_target *target, uint64_t count,
			    uint64_t unit);

/* Is it in the window, and the error if it is not, though it was checked? */
bool rmx_place_is_inside(const struct rmaext_window *window, int64_t rank,
			 const struct rmx_piece *piece);
int rmx_places_changed(int64_t rank, bool put);

/*
 * Copies places of that rank, from places->next on, until all are copied (0) or
 * the time `until` (RMAEXT_PENDING: call it again). Else an error with a
 * record; if rmx_copies() of the target is false then, the kernel has refused
 * the places that are left. The caller is inside the window. The places are
 * checked again: another thread may change what they are computed from.
 */
int rmx_places_copy(const struct rmaext_window *window, int64_t rank, bool put,
		    struct rmx_places *places, int64_t until);

#endif
