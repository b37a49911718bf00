/* SPDX-License-Identifier: BSD-3-Clause */
/* put_many, get_many and the updates of many elements, where all is by memory.
 */
#include "python/cmethods.h"

enum { RANKS, OFFSETS, VALUES, RESULT, BUFFERS };

struct many {
	struct rmaext_places_call it;
	bool fresh;	      /* nobody sees the result if it fails */
	int64_t rank, offset; /* these three stand for all, if they are used */
	union py_cell value;
	PyArrayObject *shaped;	   /* the first array argument; or NULL */
	PyObject *buffer[BUFFERS]; /* arrays that C reads or writes; or NULL */
};

static bool many_fits(struct many *m, PyObject *it)
{
	PyArrayObject *array = (PyArrayObject *)it;

	if (!m->shaped)
		m->shaped = array;
	return PyArray_SAMESHAPE(m->shaped, array);
}

/* Takes ranks or offsets: a number, or an array that C can read as it is. */
static bool many_take_index(struct many *m, int which, PyObject *it,
			    int64_t *one, const int64_t **index_p)
{
	PyArrayObject *array = (PyArrayObject *)it;

	if (!it)
		return false;
	if (PyArray_CheckExact(it)) {
		*index_p = PyArray_DATA(array);
		m->buffer[which] = it;
		return PyArray_TYPE(array) == NPY_INT64 &&
		       PyArray_ISCARRAY_RO(array) && many_fits(m, it);
	}
	*index_p = one;
	m->it.ones |= which == RANKS ? RMAEXT_ONE_RANK : RMAEXT_ONE_OFFSET;
	return py_to_index(it, one);
}

static bool many_take_values(struct py_window *w, struct many *m, PyObject *it)
{
	if (!it)
		return false;
	if (py_is_plain(w, it)) {
		m->it.values = PyArray_DATA((PyArrayObject *)it);
		m->buffer[VALUES] = it;
		return many_fits(m, it);
	}
	m->it.values = &m->value;
	m->it.ones |= RMAEXT_ONE_VALUE;
	return py_pack(w, it, &m->value);
}

/* Do two arrays overlap, each of which is in one piece? */
static bool arrays_overlap(PyObject *a, PyObject *b)
{
	PyArrayObject *one = (PyArrayObject *)a, *two = (PyArrayObject *)b;

	return a && b &&
	       PyArray_BYTES(one) < PyArray_BYTES(two) + PyArray_NBYTES(two) &&
	       PyArray_BYTES(two) < PyArray_BYTES(one) + PyArray_NBYTES(one);
}

/* Writing the results must not change ranks and offsets. */
static bool many_take_result(struct py_window *w, struct many *m, PyObject *it)
{
	m->buffer[RESULT] = Py_NewRef(it);
	return py_is_plain_result(w, it) &&
	       (m->shaped ? many_fits(m, it)
			  : !PyArray_NDIM((PyArrayObject *)it)) &&
	       !arrays_overlap(it, m->buffer[RANKS]) &&
	       !arrays_overlap(it, m->buffer[OFFSETS]);
}

static bool many_new_result(struct py_window *w, struct many *m)
{
	m->buffer[RESULT] = (PyObject *)py_new_array(
		w, m->shaped ? PyArray_NDIM(m->shaped) : 0,
		m->shaped ? PyArray_DIMS(m->shaped) : NULL);
	return m->buffer[RESULT];
}

/* Keeps the window open and the buffers alive without the GIL. */
static bool many_run_without_gil(struct rmaext_window *w, struct many *m,
				 int *ret_p)
{
	bool done = false;

	for (int i = 0; i < BUFFERS; i++)
		Py_XINCREF(m->buffer[i]);
	Py_BEGIN_ALLOW_THREADS
	if (!rmx_window_enter(w, "many")) {
		done = rmx_many_direct(w, &m->it, m->fresh, ret_p);
		rmx_window_leave(w);
	}
	Py_END_ALLOW_THREADS
	for (int i = 0; i < BUFFERS; i++)
		Py_XDECREF(m->buffer[i]);
	return done;
}

static enum py_outcome many_run(struct py_call *c, struct many *m)
{
	struct py_window *w = c->self;
	const bool moves = m->it.kind != RMAEXT_UPDATE;
	PyObject *result;
	int ret = 0;
	bool done;

	if (m->it.count > (moves ? PY_GIL_PLACES : PY_GIL_UPDATE_PLACES))
		done = many_run_without_gil(w->it.window, m, &ret);
	else
		done = rmx_many_direct(w->it.window, &m->it, m->fresh, &ret);
	if (!done)
		return PY_DECLINED;
	if (!ret)
		return PY_DONE;
	result = PyObject_CallMethod((PyObject *)w, "_many_failed", "si",
				     c->is->name, ret);
	Py_XDECREF(result);
	return PY_FAILED;
}

/* got: ranks, offsets, values or out, op */
static enum py_outcome many_attempt(struct py_call *c, struct many *m)
{
	PyObject *third = c->got[2] == Py_None ? NULL : c->got[2];
	const bool gets = c->is->kind == RMAEXT_GET;
	struct py_window *w = c->self;

	if (!py_is_open(w) ||
	    !many_take_index(m, RANKS, c->got[0], &m->rank, &m->it.ranks) ||
	    !many_take_index(m, OFFSETS, c->got[1], &m->offset, &m->it.offsets))
		return PY_DECLINED;
	if (!gets && !many_take_values(w, m, third))
		return PY_DECLINED;
	if (gets && third) {
		if (!many_take_result(w, m, third))
			return PY_DECLINED;
	} else if (c->is->returns && !many_new_result(w, m)) {
		return PY_FAILED;
	}
	m->it.kind = c->is->kind;
	m->it.op = c->is->kind == RMAEXT_UPDATE ? c->op : 0;
	m->it.type = w->it.type;
	m->it.unit = w->it.unit;
	m->it.count = m->shaped ? (uint64_t)PyArray_SIZE(m->shaped) : 1;
	m->fresh = gets && !third;
	if (c->is->returns)
		m->it.results =
			PyArray_DATA((PyArrayObject *)m->buffer[RESULT]);
	return many_run(c, m);
}

static enum py_outcome try_many(struct py_call *c)
{
	struct many m = {.shaped = NULL};
	enum py_outcome done = many_attempt(c, &m);
	PyObject *result = m.buffer[RESULT];

	if (done != PY_DONE)
		Py_XDECREF(result);
	/* an update returns one value as a scalar, a get as an array */
	else if (result && c->is->returns != PY_ARRAY)
		c->result = PyArray_Return((PyArrayObject *)result);
	else
		c->result = result;
	return done == PY_DONE && result && !c->result ? PY_FAILED : done;
}

PY_METHOD(window, put_many, try_many, .kind = RMAEXT_PUT);

PY_METHOD(window, get_many, try_many, .kind = RMAEXT_GET, .returns = PY_ARRAY);

PY_METHOD(window, accumulate_many, try_many, .kind = RMAEXT_UPDATE);

PY_METHOD(window, fetch_op_many, try_many, .kind = RMAEXT_UPDATE,
	  .returns = PY_SCALAR_OR_ARRAY);

PY_METHOD(window, fetch_add_many, try_many, .kind = RMAEXT_UPDATE,
	  .does = RMAEXT_SUM, .returns = PY_SCALAR_OR_ARRAY);
