/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The type Layout: where the data of an element of one of MPI's datatypes lies,
 * for rmaext.compat.datatypes, which makes one of what MPI says of the type.
 */
#include "python/sides.h"

#include <stddef.h>
#include <structmember.h>

PyObject *py_layout_new(struct rmx_layout *it, int why)
{
	struct py_layout *layout;

	if (!it) {
		if (why == -FI_ENOMEM)
			return PyErr_NoMemory();
		PyErr_SetString(PyExc_OverflowError,
				"the datatype's bytes do not fit 63 bits");
		return NULL;
	}
	layout = PyObject_New(struct py_layout, &py_layout_type);
	if (!layout) {
		free(it);
		return NULL;
	}
	layout->it = it;
	layout->nbytes = (long long)it->bytes;
	layout->extent = it->extent;
	layout->grain = (long long)it->grain;
	layout->first = it->runs ? it->run->offset : 0;
	layout->number = (long long)(it->runs * rmx_layout_turns(it));
	layout->whole = rmx_layout_is_whole(it);
	return (PyObject *)layout;
}

static void layout_dealloc(struct py_layout *self)
{
	free(self->it);
	PyObject_Free(self);
}

/* A sequence of integers as an array; NULL: an exception is set. */
static PyArrayObject *longs_take(PyObject *of)
{
	return (PyArrayObject *)PyArray_FROMANY(of, NPY_INT64, 1, 1,
						NPY_ARRAY_CARRAY_RO);
}

static PyObject *layout_make(PyTypeObject *type, PyObject *args,
			     PyObject *names)
{
	struct rmx_basic basic = {.type = -1};
	unsigned long long unit = 0;
	PyObject *given, *made;
	PyArrayObject *runs;
	int gaps = 0, why = 0;

	(void)type;
	if (names) {
		PyErr_SetString(PyExc_TypeError, "Layout() takes no keywords");
		return NULL;
	}
	if (!PyArg_ParseTuple(args, "OiKp:Layout", &given, &basic.type, &unit,
			      &gaps))
		return NULL;
	basic.unit = unit;
	basic.gaps = gaps;
	runs = (PyArrayObject *)PyArray_FROMANY(given, NPY_INT64, 2, 2,
						NPY_ARRAY_CARRAY_RO);
	if (!runs)
		return NULL;
	if (PyArray_DIM(runs, 1) != 2)
		made = PyErr_Format(PyExc_ValueError,
				    "Layout() takes an offset and a length of "
				    "each run");
	else
		made = py_layout_new(
			rmx_layout_new(PyArray_DATA(runs),
				       (uint64_t)PyArray_DIM(runs, 0), basic,
				       (int64_t)unit, &why),
			why);
	Py_DECREF(runs);
	return made;
}

static PyObject *layout_repeat(struct py_layout *self, PyObject *args)
{
	long long count, step = self->it->extent;
	struct rmx_layout *made;
	int why = 0;

	if (!PyArg_ParseTuple(args, "L|L:repeat", &count, &step))
		return NULL;
	made = rmx_layout_loop(self->it, count, step, &why);
	return py_layout_new(made, why);
}

static PyObject *layout_blocks(struct py_layout *self, PyObject *args)
{
	PyArrayObject *counts, *places;
	PyObject *given, *where, *result = NULL;
	struct rmx_layout *made;
	int why = 0;

	if (!PyArg_ParseTuple(args, "OO:blocks", &given, &where))
		return NULL;
	counts = longs_take(given);
	places = counts ? longs_take(where) : NULL;
	if (places && PyArray_SIZE(counts) != PyArray_SIZE(places) &&
	    PyArray_SIZE(counts) != 1) {
		PyErr_SetString(PyExc_ValueError,
				"blocks() takes as many counts as places");
	} else if (places) {
		made = rmx_layout_blocks(
			self->it, (uint64_t)PyArray_SIZE(places),
			PyArray_DATA(counts), PyArray_SIZE(counts) == 1,
			PyArray_DATA(places), &why);
		result = py_layout_new(made, why);
	}
	Py_XDECREF(counts);
	Py_XDECREF(places);
	return result;
}

static PyObject *layout_resize(struct py_layout *self, PyObject *args)
{
	struct rmx_layout *made;
	long long extent, by = 0;
	int why = 0;

	if (!PyArg_ParseTuple(args, "L|L:resize", &extent, &by))
		return NULL;
	made = rmx_layout_shift(self->it, by, &why);
	if (made)
		made->extent = extent;
	return py_layout_new(made, why);
}

static PyObject *layout_head(struct py_layout *self, PyObject *nbytes)
{
	const unsigned long long n = PyLong_AsUnsignedLongLong(nbytes);
	struct rmx_layout *made;
	int why = 0;

	if (PyErr_Occurred())
		return NULL;
	made = rmx_layout_head(self->it, n, &why);
	return py_layout_new(made, why);
}

/* -- what it says */

static PyObject *layout_copy(struct py_layout *self, PyObject *args)
{
	struct rmx_side side = {self->it, 1, self->it->bytes};
	struct rmx_side row = {NULL, 1, self->it->bytes};
	unsigned long long address;
	PyObject *piece;
	Py_buffer view;
	char *there;
	int pack;

	if (!PyArg_ParseTuple(args, "KOp:copy", &address, &piece, &pack) ||
	    PyObject_GetBuffer(piece, &view,
			       pack ? PyBUF_WRITABLE : PyBUF_SIMPLE))
		return NULL;
	if ((uint64_t)view.len != side.bytes) {
		PyBuffer_Release(&view);
		return PyErr_Format(PyExc_ValueError,
				    "copy() takes as many bytes as the layout "
				    "has");
	}
	there = (char *)(uintptr_t)address;
	if (side.bytes) {
		Py_BEGIN_ALLOW_THREADS
		if (pack)
			rmx_side_copy(&row, view.buf, &side, there);
		else
			rmx_side_copy(&side, there, &row, view.buf);
		Py_END_ALLOW_THREADS
	}
	PyBuffer_Release(&view);
	Py_RETURN_NONE;
}

/* Pairs of integers, as an array. */
static PyObject *pairs_new(uint64_t count, const void *pairs)
{
	const npy_intp shape[] = {(npy_intp)count, 2};
	PyObject *array = count > NPY_MAX_INTP / 16
				  ? PyErr_NoMemory()
				  : PyArray_SimpleNew(2, shape, NPY_INT64);

	if (array)
		memcpy(PyArray_DATA((PyArrayObject *)array), pairs, count * 16);
	return array;
}

_Static_assert(sizeof(struct rmx_run) == 16 && sizeof(struct rmx_turns) == 16,
	       "they are pairs of int64_t");

static PyObject *layout_runs(struct py_layout *self, PyObject *args)
{
	int why = 0;
	struct rmx_layout *flat = rmx_layout_flat(self->it, &why);
	PyObject *pairs;

	(void)args;
	if (!flat)
		return py_layout_new(NULL, why);
	pairs = pairs_new(flat->runs, flat->run);
	free(flat);
	return pairs;
}

static PyMethodDef layout_methods[] = {PY_METHODS_layout};

static PyObject *get_span(struct py_layout *self, void *closure)
{
	(void)closure;
	return Py_BuildValue("(LL)", (long long)self->it->low,
			     (long long)self->it->high);
}

static PyObject *get_basic(struct py_layout *self, void *closure)
{
	const struct rmx_basic *b = &self->it->basic;

	(void)closure;
	if (!b->unit)
		Py_RETURN_NONE;
	return Py_BuildValue("(iKO)", b->type, (unsigned long long)b->unit,
			     b->gaps ? Py_True : Py_False);
}

static PyObject *get_loops(struct py_layout *self, void *closure)
{
	const struct rmx_layout *l = self->it;
	struct rmx_turns loop[RMX_DIMS];
	PyObject *pairs;

	(void)closure;
	if (l->runs != 1)
		Py_RETURN_NONE;
	for (int k = 0; k < l->loops; k++) /* the outermost first */
		loop[k] = l->loop[l->loops - 1 - k];
	pairs = pairs_new((uint64_t)l->loops, loop);
	return pairs ? Py_BuildValue("(LN)", (long long)l->run->len, pairs)
		     : NULL;
}

#define MEMBER(name, type)                                        \
	{#name, type, offsetof(struct py_layout, name), READONLY, \
	 PY_DOC_layout_##name}

static PyMemberDef layout_members[] = {
	MEMBER(nbytes, T_LONGLONG), MEMBER(extent, T_LONGLONG),
	MEMBER(grain, T_LONGLONG),  MEMBER(first, T_LONGLONG),
	MEMBER(number, T_LONGLONG), MEMBER(whole, T_BOOL),
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef layout_getset[] = {
	PY_GETTER(layout, span, get_span),
	PY_GETTER(layout, basic, get_basic),
	PY_GETTER(layout, loops, get_loops),
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject py_layout_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Layout",
	.tp_doc = PY_DOC_layout,
	.tp_basicsize = sizeof(struct py_layout),
	.tp_flags = Py_TPFLAGS_DEFAULT,
	.tp_new = layout_make,
	.tp_dealloc = (destructor)layout_dealloc,
	.tp_methods = layout_methods,
	.tp_members = layout_members,
	.tp_getset = layout_getset,
};
