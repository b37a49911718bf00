/* SPDX-License-Identifier: BSD-3-Clause */
/* Window's updates: their docstrings and arguments. */
#include "python/cmethods.h"

static PyArrayObject *array_of_cell(const struct py_window *w,
				    const union py_cell *cell)
{
	PyArrayObject *array = py_new_array(w, 0, NULL);

	if (array)
		memcpy(PyArray_DATA(array), cell, w->it.unit);
	return array;
}

static PyArrayObject *array_like(const struct py_window *w, PyArrayObject *it)
{
	return py_new_array(w, PyArray_NDIM(it), PyArray_DIMS(it));
}

/* The usual update: one element, on the direct route. */
static enum py_outcome update_cell(struct py_window *w,
				   const struct py_update *u,
				   const union py_cell *operand, int64_t rank,
				   uint64_t offset, PyObject **old_p)
{
	union py_cell old;
	const struct rmaext_call it = {
		.op = u->op,
		.type = w->it.type,
		.rank = rank,
		.offset = offset,
		.operand = operand,
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
		       .rank = rank,
		       .count = 1},
		.name = u->call,
		.buffer = {value, Py_None},
	};
	PyArrayObject *operand;
	enum py_outcome done;
	union py_cell cell;

	if (!py_is_open(w) || w->it.type < 0 ||
	    !py_to_bytes(w, index, &r.it.offset))
		return PY_DECLINED;
	if (py_is_plain(w, value)) {
		operand = (PyArrayObject *)Py_NewRef(value);
		r.it.count = (uint64_t)PyArray_SIZE(operand);
		if (u->result == PY_SCALAR && PyArray_NDIM(operand))
			goto odd;
		if (r.it.count == 1 && !py_rank_is_direct(w, rank) &&
		    update_join(w, u, PyArray_DATA(operand), rank,
				r.it.offset)) {
			Py_DECREF(operand);
			return PY_DONE;
		}
	} else if (!py_pack(w, value, &cell)) {
		operand = py_packed(w, value, NPY_MAX_INTP);
		if (!operand)
			return PY_DECLINED;
		r.it.count = (uint64_t)PyArray_SIZE(operand);
		if (u->result == PY_SCALAR && PyArray_NDIM(operand))
			goto odd;
	} else if (py_rank_is_direct(w, rank) && u->result != PY_ARRAY) {
		return update_cell(w, u, &cell, rank, r.it.offset, old_p);
	} else if (update_join(w, u, &cell, rank, r.it.offset)) {
		return PY_DONE;
	} else {
		operand = array_of_cell(w, &cell); /* C may use it for long */
		if (!operand)
			return PY_FAILED;
	}
	r.buffer[0] = (PyObject *)operand;
	r.it.operand = PyArray_DATA(operand);
	if (!py_target_allows(w, rank, r.it.offset, r.it.count,
			      rmx_update_access(u->op, fetch)))
		goto odd;
	done = fetch ? transfer_fetch(w, &r, array_like(w, operand),
				      u->result != PY_ARRAY, old_p)
		     : transfer_update(w, &r);
	Py_DECREF(operand);
	return done;
odd:
	Py_DECREF(operand);
	return PY_DECLINED;
}

/* One element, by message: the operands lie in one array, which C may keep. */
static enum py_outcome swap_far(struct py_window *w,
				const union py_cell *expected,
				const union py_cell *swap, int64_t rank,
				uint64_t offset, PyObject **old_p)
{
	const npy_intp two = 2;
	struct py_transfer r = {
		.it = {.kind = RMAEXT_UPDATE,
		       .op = RMAEXT_CSWAP,
		       .type = w->it.type,
		       .rank = rank,
		       .offset = offset,
		       .count = 1},
		.name = "compare_and_swap",
		.buffer = {NULL, Py_None},
	};
	PyArrayObject *operands;
	enum py_outcome done;

	if (!py_target_allows(w, rank, offset, 1,
			      rmx_update_access(r.it.op, true)))
		return PY_DECLINED;
	operands = py_new_array(w, 1, &two);
	if (!operands)
		return PY_FAILED;
	r.buffer[0] = (PyObject *)operands;
	r.it.compare = PyArray_DATA(operands);
	r.it.operand = PyArray_BYTES(operands) + w->it.unit;
	memcpy(PyArray_DATA(operands), expected, w->it.unit);
	memcpy(PyArray_BYTES(operands) + w->it.unit, swap, w->it.unit);
	done = transfer_fetch(w, &r, py_new_array(w, 0, NULL), true, old_p);
	Py_DECREF(operands);
	return done;
}

enum py_outcome py_swap(struct py_window *w, PyObject *compare, PyObject *value,
			int64_t rank, int64_t index, PyObject **old_p)
{
	union py_cell old, expected, swap;
	struct rmaext_call it = {
		.op = RMAEXT_CSWAP,
		.type = w->it.type,
		.rank = rank,
		.operand = &swap,
		.compare = &expected,
		.result = &old,
		.count = 1,
	};

	if (!py_is_open(w) || w->it.type < 0 ||
	    !py_pack(w, compare, &expected) || !py_pack(w, value, &swap) ||
	    !py_to_bytes(w, index, &it.offset))
		return PY_DECLINED;
	if (!py_rank_is_direct(w, rank))
		return swap_far(w, &expected, &swap, rank, it.offset, old_p);
	if (!rmx_update_direct(w->it.window, &it))
		return PY_DECLINED;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? PY_DONE : PY_FAILED;
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
