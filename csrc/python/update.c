/* SPDX-License-Identifier: BSD-3-Clause */
/* Window's updates. What one does is told by the call: its op, what it returns.
 */
#include "python/cmethods.h"

/* The usual update: one element, on the direct route; inlined, which counts. */
__attribute__((always_inline)) static inline enum py_outcome
update_cell(struct py_call *c, int returns, const union py_cell *operand,
	    const union py_cell *compare, uint64_t offset)
{
	struct py_window *w = c->w;
	union py_cell old;
	const struct rmaext_call it = {
		.op = c->op,
		.type = w->it.type,
		.rank = c->rank,
		.offset = offset,
		.operand = operand,
		.compare = compare,
		.result = returns == PY_NOTHING ? NULL : &old,
		.count = 1,
	};

	if (!rmx_update_direct(w->it.window, &it))
		return PY_DECLINED;
	py_count_turn();
	if (returns == PY_NOTHING)
		return PY_DONE;
	c->result = PyArray_Scalar(&old, w->dtype, NULL);
	return c->result ? PY_DONE : PY_FAILED;
}

/* The usual update by message: one element, behind others of a loop. */
static bool update_join(struct py_window *w, const struct rmaext_call *it)
{
	return it->op != RMAEXT_NO_OP && rmx_update_valid(it->op, it->type) &&
	       py_target_allows(w, it->rank, it->offset, 1,
				rmx_update_access(it->op, false)) &&
	       !rmx_update_is_local(w->it.window, it->rank) &&
	       rmx_update_aligned(rmx_target_of(w->it.window, it->rank),
				  it->offset, it->type) &&
	       py_join(w, it);
}

static enum py_outcome transfer_update(struct py_window *w,
				       struct py_transfer *r)
{
	if (py_target_is_direct(w, r->it.rank) &&
	    r->it.count * w->it.unit <= PY_GIL_UPDATE_BYTES)
		return rmx_update_direct(w->it.window, &r->it) ? PY_DONE
							       : PY_DECLINED;
	if (!rmx_update_valid(r->it.op, w->it.type))
		return PY_DECLINED;
	return py_transfer_run(w, r);
}

/* Takes `old`, which is to get what there was; NULL: an exception is set. */
static enum py_outcome transfer_fetch(struct py_call *c, struct py_transfer *r,
				      PyArrayObject *old, bool scalar)
{
	enum py_outcome done;

	if (!old)
		return PY_FAILED;
	r->buffer[1] = (PyObject *)old;
	r->it.result = PyArray_DATA(old);
	done = transfer_update(c->w, r);
	if (done != PY_DONE) {
		Py_DECREF(old);
		return done;
	}
	/* PyArray_Return() takes the reference */
	c->result = scalar ? PyArray_Return(old) : (PyObject *)old;
	return c->result ? PY_DONE : PY_FAILED;
}

/* Describes an update of the call's place. False: there is no such place. */
static bool transfer_begin(const struct py_call *c, struct py_transfer *r)
{
	*r = (struct py_transfer){
		.it = {.kind = RMAEXT_UPDATE,
		       .op = c->op,
		       .type = c->w->it.type,
		       .rank = c->rank,
		       .count = 1},
		.name = c->is->name,
		.buffer = {Py_None, Py_None},
	};
	return py_is_open(c->w) && c->w->it.type >= 0 &&
	       py_to_bytes(c->w, c->index, &r->it.offset);
}

static enum py_outcome update_run(struct py_call *c, int returns,
				  PyObject *value)
{
	const bool fetch = returns != PY_NOTHING;
	enum py_outcome done = PY_DECLINED;
	struct py_window *w = c->w;
	struct py_transfer r;
	PyArrayObject *array;
	struct py_origin o;

	if (!transfer_begin(c, &r) ||
	    !py_origin_take(w, value, NPY_MAX_INTP, &o))
		return PY_DECLINED;
	array = o.copy ? o.copy : (PyArrayObject *)value;
	if (o.data == &o.cell) {
		if (returns != PY_ARRAY && py_rank_is_direct(w, c->rank))
			return update_cell(c, returns, &o.cell, NULL,
					   r.it.offset);
		array = NULL;
	}
	r.it.operand = o.data;
	r.it.count = o.bytes / w->it.unit;
	if (returns == PY_SCALAR && array && PyArray_NDIM(array))
		goto out;
	if (r.it.count == 1 && !fetch && !py_rank_is_direct(w, c->rank) &&
	    update_join(w, &r.it)) {
		done = PY_DONE;
		goto out;
	}
	if (!py_target_allows(w, c->rank, r.it.offset, r.it.count,
			      rmx_update_access(c->op, fetch)))
		goto out;
	if (!array) { /* C may use it for long */
		array = o.copy = py_new_array(w, 0, NULL);
		if (!array)
			return PY_FAILED;
		memcpy(PyArray_DATA(array), &o.cell, w->it.unit);
	}
	r.buffer[0] = (PyObject *)array;
	r.it.operand = PyArray_DATA(array);
	done = fetch ? transfer_fetch(c, &r,
				      py_new_array(w, PyArray_NDIM(array),
						   PyArray_DIMS(array)),
				      returns != PY_ARRAY)
		     : transfer_update(w, &r);
out:
	Py_XDECREF(o.copy);
	return done;
}

/* -- the methods */

static enum py_outcome try_update(struct py_call *c)
{
	return update_run(c, c->is->returns, c->got[0]);
}

static enum py_outcome try_accumulate(struct py_call *c)
{
	return c->key ? py_update_part(c) : try_update(c);
}

PY_METHOD(window, accumulate, try_accumulate);

PY_METHOD(window, get_accumulate, try_update, .returns = PY_ARRAY);

PY_METHOD(window, fetch_op, try_update, .returns = PY_SCALAR);

PY_METHOD(window, fetch_add, try_update, .does = RMAEXT_SUM,
	  .returns = PY_SCALAR_OR_ARRAY);

static enum py_outcome try_swap(struct py_call *c)
{
	union py_cell expected, swap;
	struct py_window *w = c->w;
	PyArrayObject *both; /* C may use them for long */
	enum py_outcome done;
	struct py_transfer r;

	if (!transfer_begin(c, &r) || !py_pack(w, c->got[0], &expected) ||
	    !py_pack(w, c->got[1], &swap))
		return PY_DECLINED;
	if (py_rank_is_direct(w, c->rank))
		return update_cell(c, PY_SCALAR, &swap, &expected, r.it.offset);
	if (!py_target_allows(w, c->rank, r.it.offset, 1,
			      rmx_update_access(c->op, true)))
		return PY_DECLINED;
	both = py_new_array(w, 1, &(npy_intp){2});
	if (!both)
		return PY_FAILED;
	r.buffer[0] = (PyObject *)both;
	r.it.compare = PyArray_DATA(both);
	r.it.operand = PyArray_BYTES(both) + w->it.unit;
	memcpy(PyArray_DATA(both), &expected, w->it.unit);
	memcpy(PyArray_BYTES(both) + w->it.unit, &swap, w->it.unit);
	done = transfer_fetch(c, &r, py_new_array(w, 0, NULL), true);
	Py_DECREF(both);
	return done;
}

PY_METHOD(window, compare_and_swap, try_swap, .does = RMAEXT_CSWAP);

/* load: an update that only reads; store: one that only writes. */
static enum py_outcome try_load(struct py_call *c)
{
	if (c->count >= 0)
		return PY_DECLINED;
	/* an operand, as messages have one; nobody reads it */
	return update_run(c, PY_SCALAR,
			  c->w->it.type == RMAEXT_BOOL ? Py_False
						       : py_names.zero);
}

PY_METHOD(window, load, try_load, .does = RMAEXT_NO_OP);

static enum py_outcome try_store(struct py_call *c)
{
	const bool direct =
		py_is_open(c->w) && py_rank_is_direct(c->w, c->rank);
	/* the previous values are the answer that it has been applied */
	const enum py_outcome done = update_run(
		c, direct ? PY_NOTHING : PY_SCALAR_OR_ARRAY, c->got[0]);

	if (done == PY_DONE)
		Py_CLEAR(c->result);
	return done;
}

PY_METHOD(window, store, try_store, .does = RMAEXT_REPLACE);
