/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The plain cases of MPI.Win's operations, on a window of bytes. All functions
 * return whether they did it; if not, nothing was done, and Python does it
 * (rmaext.compat.transfer) or knows what is wrong.
 */
#include "python/compat/compat.h"

/* What was not taken, because of an exception that came meanwhile, failed. */
static enum py_outcome outcome_of(enum py_outcome done)
{
	return done == PY_DECLINED && PyErr_Occurred() ? PY_FAILED : done;
}

/* Are there bytes between the elements that only a layout tells? */
static bool part_has_gaps(const struct py_part *p)
{
	return !p->layout && p->basic.gaps;
}

enum py_outcome py_mpi_move(struct py_window *w, PyObject *units,
			    PyObject *buffer, PyObject *rank, PyObject *target,
			    bool put)
{
	enum py_outcome done = PY_DECLINED;
	struct py_target t = {0};
	struct py_part p = {0};

	if (!py_part_take(&p, buffer, !put) ||
	    !py_target_take(w, units, rank, target, &p, &t) ||
	    p.side.bytes != t.part.side.bytes || part_has_gaps(&p) ||
	    part_has_gaps(&t.part))
		; /* Python does it */
	else if (p.layout || t.part.layout)
		done = py_move_sides(w, put, t.rank, t.offset, &t.part.side,
				     &p.side, p.data);
	else
		done = py_move(w, put, p.owner, p.data, p.side.bytes, t.rank,
			       t.offset);
	py_part_drop(&p);
	py_part_drop(&t.part);
	return outcome_of(done);
}

/* Are these elements of the same type, which has updates? */
static bool parts_agree(const struct py_part *a, const struct py_part *b)
{
	return a->basic.type >= 0 && a->basic.type == b->basic.type &&
	       a->side.bytes == b->side.bytes;
}

static enum py_outcome part_update(struct py_window *w,
				   const struct py_part *origin,
				   const struct py_part *compare,
				   const struct py_part *result, int op,
				   const struct py_target *t)
{
	const struct rmaext_call it = {
		.op = op,
		.type = origin->basic.type,
		.rank = t->rank,
		.offset = t->offset,
		.operand = origin->data,
		.compare = compare ? compare->data : NULL,
		.result = result ? result->data : NULL,
		.count = origin->count,
	};

	if (!parts_agree(origin, &t->part) ||
	    (compare && !parts_agree(origin, compare)) ||
	    (result && !parts_agree(origin, result)))
		return PY_DECLINED;
	if (origin->layout || t->part.layout || (result && result->layout) ||
	    origin->side.bytes > PY_GIL_UPDATE_BYTES)
		return py_update_sides(w, op, origin, result, t);
	return rmx_update_direct(w->it.window, &it) ? PY_DONE : PY_DECLINED;
}

/* Is it one element of a predefined type? */
static bool part_is_single(const struct py_part *p)
{
	return p->count == 1 && !p->layout;
}

enum py_outcome py_mpi_update(struct py_window *w, PyObject *units,
			      PyObject *buffer, PyObject *wanted, PyObject *old,
			      PyObject *rank, PyObject *target, int op,
			      bool single)
{
	struct py_part origin = {0}, compare = {0}, result = {0};
	enum py_outcome done = PY_DECLINED;
	struct py_target t = {0};

	if (py_part_take(&origin, buffer, false) &&
	    (!single || part_is_single(&origin)) &&
	    (!wanted || (py_part_take(&compare, wanted, false) &&
			 part_is_single(&compare))) &&
	    (!old || py_part_take(&result, old, true)) &&
	    py_target_take(w, units, rank, target, &origin, &t))
		done = part_update(w, &origin, wanted ? &compare : NULL,
				   old ? &result : NULL, op, &t);
	py_part_drop(&origin);
	py_part_drop(&compare);
	py_part_drop(&result);
	py_part_drop(&t.part);
	return outcome_of(done);
}
