/* SPDX-License-Identifier: BSD-3-Clause */
/* Window's updates: their docstrings and arguments. */
#include "python/cmethods.h"

/* The usual update: one element, on the direct route; inlined, which counts. */
__attribute__((always_inline)) static inline enum py_outcome
update_cell(struct py_window *w, const struct py_update *u,
	    const union py_cell *operand, const union py_cell *compare,
	    int64_t rank, uint64_t offset, PyObject **old_p)
{
	union py_cell old;
	const struct rmaext_call it = {
		.op = u->op,
		.type = w->it.type,
		.rank = rank,
		.offset = offset,
		.operand = operand,
		.compare = compare,
		.result = u->result == PY_NOTHING ? NULL : &old,
		.count = 1,
	};

	if (!rmx_update_direct(w->it.window, &it))
		return PY_DECLINED;
	py_count_turn();
	if (u->result == PY_NOTHING)
		return PY_DONE;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? PY_DONE : PY_FAILED;
}

/* The usual update by message: one element, behind others of a loop. */
static bool update_join(struct py_window *w, const struct py_update *u,
			const void *operand, int64_t rank, uint64_t offset)
{
	const int type = w->it.type;

	return u->result == PY_NOTHING && u->op != RMAEXT_NO_OP &&
	       rmx_update_valid(u->op, type) &&
	       py_target_allows(w, rank, offset, 1,
				rmx_update_access(u->op, false)) &&
	       !rmx_update_is_local(w->it.window, rank) &&
	       rmx_update_aligned(rmx_target_of(w->it.window, rank), offset,
				  type) &&
	       py_join(w, &(struct rmaext_call){
				  .kind = RMAEXT_UPDATE,
				  .op = u->op,
				  .type = type,
				  .rank = rank,
				  .offset = offset,
				  .operand = operand,
				  .count = 1,
			  });
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
static enum py_outcome transfer_fetch(struct py_window *w,
				      struct py_transfer *r, PyArrayObject *old,
				      bool scalar, PyObject **old_p)
{
	enum py_outcome done;

	if (!old)
		return PY_FAILED;
	r->buffer[1] = (PyObject *)old;
	r->it.result = PyArray_DATA(old);
	done = transfer_update(w, r);
	if (done != PY_DONE) {
		Py_DECREF(old);
		return done;
	}
	/* PyArray_Return() takes the reference */
	*old_p = scalar ? PyArray_Return(old) : (PyObject *)old;
	return *old_p ? PY_DONE : PY_FAILED;
}

enum py_outcome py_update(struct py_window *w, const struct py_update *u,
			  PyObject *value, int64_t rank, int64_t index,
			  PyObject **old_p)
{
	const bool fetch = u->result != PY_NOTHING;
	struct py_transfer r = {
		.it = {.kind = RMAEXT_UPDATE,
		       .op = u->op,
		       .type = w->it.type,
		       .rank = rank},
		.name = u->call,
		.buffer = {Py_None, Py_None},
	};
	enum py_outcome done = PY_DECLINED;
	PyArrayObject *array;
	struct py_origin o;

	if (!py_is_open(w) || w->it.type < 0 ||
	    !py_to_bytes(w, index, &r.it.offset) ||
	    !py_origin_take(w, value, NPY_MAX_INTP, &o))
		return PY_DECLINED;
	array = o.copy ? o.copy : (PyArrayObject *)value;
	if (o.data == &o.cell) {
		if (u->result != PY_ARRAY && py_rank_is_direct(w, rank))
			return update_cell(w, u, &o.cell, NULL, rank,
					   r.it.offset, old_p);
		array = NULL;
	}
	r.it.count = o.bytes / w->it.unit;
	if (u->result == PY_SCALAR && array && PyArray_NDIM(array))
		goto out;
	if (r.it.count == 1 && !py_rank_is_direct(w, rank) &&
	    update_join(w, u, o.data, rank, r.it.offset)) {
		done = PY_DONE;
		goto out;
	}
	if (!py_target_allows(w, rank, r.it.offset, r.it.count,
			      rmx_update_access(u->op, fetch)))
		goto out;
	if (!array) { /* C may use it for long */
		array = o.copy = py_new_array(w, 0, NULL);
		if (!array)
			return PY_FAILED;
		memcpy(PyArray_DATA(array), &o.cell, w->it.unit);
	}
	r.buffer[0] = (PyObject *)array;
	r.it.operand = PyArray_DATA(array);
	done = fetch ? transfer_fetch(w, &r,
				      py_new_array(w, PyArray_NDIM(array),
						   PyArray_DIMS(array)),
				      u->result != PY_ARRAY, old_p)
		     : transfer_update(w, &r);
out:
	Py_XDECREF(o.copy);
	return done;
}

enum py_outcome py_swap(struct py_window *w, PyObject *compare, PyObject *value,
			int64_t rank, int64_t index, PyObject **old_p)
{
	static const struct py_update u = {
		.call = "compare_and_swap",
		.op = RMAEXT_CSWAP,
		.result = PY_SCALAR,
	};
	struct py_transfer r = {
		.it = {.kind = RMAEXT_UPDATE,
		       .op = u.op,
		       .type = w->it.type,
		       .rank = rank,
		       .count = 1},
		.name = u.call,
		.buffer = {NULL, Py_None},
	};
	union py_cell expected, swap;
	PyArrayObject *both; /* C may use them for long */
	enum py_outcome done;

	if (!py_is_open(w) || w->it.type < 0 ||
	    !py_pack(w, compare, &expected) || !py_pack(w, value, &swap) ||
	    !py_to_bytes(w, index, &r.it.offset))
		return PY_DECLINED;
	if (py_rank_is_direct(w, rank))
		return update_cell(w, &u, &swap, &expected, rank, r.it.offset,
				   old_p);
	if (!py_target_allows(w, rank, r.it.offset, 1,
			      rmx_update_access(u.op, true)))
		return PY_DECLINED;
	both = py_new_array(w, 1, &(npy_intp){2});
	if (!both)
		return PY_FAILED;
	r.buffer[0] = (PyObject *)both;
	r.it.compare = PyArray_DATA(both);
	r.it.operand = PyArray_BYTES(both) + w->it.unit;
	memcpy(PyArray_DATA(both), &expected, w->it.unit);
	memcpy(PyArray_BYTES(both) + w->it.unit, &swap, w->it.unit);
	done = transfer_fetch(w, &r, py_new_array(w, 0, NULL), true, old_p);
	Py_DECREF(both);
	return done;
}

/* -- the methods */

static enum py_outcome update_try(void *self, struct py_call *c)
{
	struct py_update u = *(const struct py_update *)c->how;
	PyObject *key = py_key_of(c->got[4]);
	struct py_window *w = self;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index) ||
	    !py_to_op(c->got[3], &u.op))
		return PY_DECLINED;
	if (key)
		return index || w != self
			       ? PY_DECLINED
			       : py_update_part(w, u.op, rank, key, c->got[0]);
	return py_update(w, &u, c->got[0], rank, index, &c->result);
}

static const struct py_update accumulate = {
	.call = "accumulate",
	.result = PY_NOTHING,
};

PY_METHOD(window, accumulate, update_try, .how = &accumulate);

static const struct py_update get_accumulate = {
	.call = "get_accumulate",
	.result = PY_ARRAY,
};

PY_METHOD(window, get_accumulate, update_try, .how = &get_accumulate);

static const struct py_update fetch_op = {
	.call = "fetch_op",
	.result = PY_SCALAR,
};

PY_METHOD(window, fetch_op, update_try, .how = &fetch_op);

const struct py_update py_sum = {
	.call = "fetch_add",
	.op = RMAEXT_SUM,
	.result = PY_SCALAR_OR_ARRAY,
};

static enum py_outcome fixed_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index))
		return PY_DECLINED;
	return py_update(w, c->how, c->got[0], rank, index, &c->result);
}

PY_METHOD(window, fetch_add, fixed_try, .how = &py_sum);

static enum py_outcome compare_and_swap_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[2], c->got[3], &rank, &index))
		return PY_DECLINED;
	return py_swap(w, c->got[0], c->got[1], rank, index, &c->result);
}

PY_METHOD(window, compare_and_swap, compare_and_swap_try);

/* load: an update that only reads; store: one that only writes. */
static enum py_outcome load_try(void *self, struct py_call *c)
{
	static const struct py_update load = {
		.call = "load",
		.op = RMAEXT_NO_OP,
		.result = PY_SCALAR,
	};
	struct py_window *w = self;
	int64_t rank, index;
	PyObject *unread;

	if ((c->got[2] && c->got[2] != Py_None) ||
	    !py_find_place(&w, c->got[0], c->got[1], &rank, &index) ||
	    !py_is_open(w))
		return PY_DECLINED;
	unread = w->it.type == RMAEXT_BOOL ? Py_False : py_names.zero;
	return py_update(w, &load, unread, rank, index, &c->result);
}

PY_METHOD(window, load, load_try);

static enum py_outcome store_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	struct py_update store = {
		.call = "store",
		.op = RMAEXT_REPLACE,
		.result = PY_NOTHING,
	};
	PyObject *old = NULL;
	enum py_outcome done;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index) ||
	    !py_is_open(w))
		return PY_DECLINED;
	/* the previous values are the answer that it has been applied */
	if (!py_rank_is_direct(w, rank))
		store.result = PY_SCALAR_OR_ARRAY;
	done = py_update(w, &store, c->got[0], rank, index, &old);
	Py_XDECREF(old);
	return done;
}

PY_METHOD(window, store, store_try);
