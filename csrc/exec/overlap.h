/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory that several windows of this process have. A single update is atomic
 * against those by way of any window. Of copies (rmx_update_copied()) only the
 * guard of their own window knows, so its owner lets others make them only
 * where no other window, or part of a dynamic one, has some of its memory.
 *
 * The owner says so in the window's control block once it has made the window:
 * before that, others ask by message, which waits for the window.
 */
#ifndef RMAEXT_OVERLAP_H
#define RMAEXT_OVERLAP_H

#include "exec/guard.h"

/*
 * Lists a window that has memory of this rank, until rmx_overlap_end(). It and
 * the others that have some of it refuse copies from then on, for good, and
 * none is under way when it returns.
 */
void rmx_overlap_begin(struct rmaext_window *window);
void rmx_overlap_end(struct rmaext_window *window);

/* Does the same for memory that has just been attached to a window. */
void rmx_overlap_attached(const struct rmaext_window *window, const void *addr,
			  uint64_t len);

/* Lets others make copies, unless the window refuses them. */
void rmx_overlap_open(struct rmaext_window *window);

#endif
