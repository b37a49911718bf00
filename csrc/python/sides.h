/* SPDX-License-Identifier: BSD-3-Clause */
/* Elements that lie anywhere, at either side of an operation by memory. */
#ifndef RMAEXT_SIDES_H
#define RMAEXT_SIDES_H

#include "python/cmethods.h"

/* layout.c: the type Layout; `it` is its own. The rest is for Python to read.
 */
struct py_layout {
	PyObject_HEAD struct rmx_layout *it;
	long long nbytes, extent, grain, first, number;
	bool whole;
};
extern PyTypeObject py_layout_type;
/* Takes over what rmx_layout_new() and its kin return, or raises why. */
PyObject *py_layout_new(struct rmx_layout *it, int why);

/*
 * Elements in a buffer that a caller gave, or in a window. They are of a
 * predefined type unless there is a layout.
 */
struct py_part {
	char *data;
	uint64_t count;
	struct rmx_basic basic; /* unit 0: of several types */
	struct py_layout *layout;
	struct rmx_side side;
	PyObject *owner; /* keeps data alive; NULL: only `view` does */
	Py_buffer view;
};
struct py_target {
	struct py_part part; /* without data */
	int64_t rank;
	uint64_t offset;
};

/*
 * sides.c: operations by memory on elements that lie anywhere at either
 * side, as many bytes on each. Long ones release the GIL; the caller keeps
 * `own`, which is at `data`, alive.
 */
enum py_outcome py_move_sides(struct py_window *w, bool put, int64_t rank,
			      uint64_t offset, const struct rmx_side *there,
			      const struct rmx_side *own, char *data);
/* result: NULL, or elements for what there was */
enum py_outcome py_update_sides(struct py_window *w, int op,
				const struct py_part *origin,
				const struct py_part *result,
				const struct py_target *t);

#endif
