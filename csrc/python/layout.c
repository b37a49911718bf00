/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The type Layout: where the data of an element of one of MPI's datatypes lies,
 * for rmaext.compat.datatypes, which makes one of what MPI says of the type.
 */
#include "python/sides.h"

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
	if (layout)
		layout->it = it;
	else
		free(it);
	return (PyObject *)layout;
}

static void layout_dealloc(struct py_layout *self)
{
	free(self->it);
	PyObject_Free(self);
}

/* Reads a sequence of integers; *count_p is their number. */
static int64_t *longs_take(PyObject *of, Py_ssize_t *count_p)
{
	PyObject *items = PySequence_Tuple(of);
	int64_t *longs = NULL;

	if (!items)
		return NULL;
	*count_p = PyTuple_GET_SIZE(items);
	longs = PyMem_Malloc((size_t)*count_p * sizeof(*longs) + 1);
	if (!longs)
		PyErr_NoMemory();
	for (Py_ssize_t i = 0; longs && i < *count_p; i++) {
		longs[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(items, i));
		if (longs[i] == -1 && PyErr_Occurred()) {
			PyMem_Free(longs);
			longs = NULL;
		}
	}
	Py_DECREF(items);
	return longs;
}

static PyObject *layout_make(PyTypeObject *type, PyObject *args,
			     PyObject *names)
{
	PyObject *offsets, *lengths;
	struct rmx_basic basic = {.type = -1};
	unsigned long long unit = 0;
	struct rmx_run *runs = NULL;
	int64_t *at = NULL, *len = NULL;
	Py_ssize_t n, m;
	PyObject *made = NULL;
	int gaps = 0, why = 0;

	(void)type;
	if (names) {
		PyErr_SetString(PyExc_TypeError, "Layout() takes no keywords");
		return NULL;
	}
	if (!PyArg_ParseTuple(args, "OOiKp:Layout", &offsets, &lengths,
			      &basic.type, &unit, &gaps))
		return NULL;
	basic.unit = unit;
	basic.gaps = gaps;
	at = longs_take(offsets, &n);
	len = at ? longs_take(lengths, &m) : NULL;
	if (len && n != m)
		PyErr_SetString(PyExc_ValueError,
				"Layout() takes as many lengths as offsets");
	else if (len)
		runs = PyMem_Malloc((size_t)n * sizeof(*runs) + 1);
	if (runs) {
		for (Py_ssize_t i = 0; i < n; i++)
			runs[i] = (struct rmx_run){at[i], len[i]};
		made = py_layout_new(rmx_layout_new(runs, (uint64_t)n, basic,
						    (int64_t)unit, &why),
				     why);
	}
	PyMem_Free(at);
	PyMem_Free(len);
	PyMem_Free(runs);
	return made || PyErr_Occurred() ? made : PyErr_NoMemory();
}

static PyObject *layout_repeat(struct py_layout *self, PyObject *count)
{
	const long long n = PyLong_AsLongLong(count);
	struct rmx_layout *made;
	int why = 0;

	if (n == -1 && PyErr_Occurred())
		return NULL;
	made = rmx_layout_loop(self->it, n, self->it->extent, &why);
	return py_layout_new(made, why);
}

static PyObject *layout_loop(struct py_layout *self, PyObject *args)
{
	struct rmx_layout *made;
	long long count, step;
	int why = 0;

	if (!PyArg_ParseTuple(args, "LL:loop", &count, &step))
		return NULL;
	made = rmx_layout_loop(self->it, count, step, &why);
	return py_layout_new(made, why);
}

static PyObject *layout_blocks(struct py_layout *self, PyObject *args)
{
	PyObject *given, *where, *result = NULL;
	int64_t *counts, *places;
	struct rmx_layout *made;
	Py_ssize_t n, m = 0;
	int why = 0;

	if (!PyArg_ParseTuple(args, "OO:blocks", &given, &where))
		return NULL;
	counts = longs_take(given, &n);
	places = counts ? longs_take(where, &m) : NULL;
	if (places && n != m && n != 1) {
		PyErr_SetString(PyExc_ValueError,
				"blocks() takes as many counts as places");
	} else if (places) {
		made = rmx_layout_blocks(self->it, (uint64_t)m, counts, n == 1,
					 places, &why);
		result = py_layout_new(made, why);
	}
	PyMem_Free(counts);
	PyMem_Free(places);
	return result;
}

static PyObject *layout_shift(struct py_layout *self, PyObject *by)
{
	const long long n = PyLong_AsLongLong(by);
	struct rmx_layout *made;
	int why = 0;

	if (n == -1 && PyErr_Occurred())
		return NULL;
	made = rmx_layout_shift(self->it, n, &why);
	return py_layout_new(made, why);
}

static PyObject *layout_resize(struct py_layout *self, PyObject *extent)
{
	const long long n = PyLong_AsLongLong(extent);
	struct rmx_layout *made;
	int why = 0;

	if (n == -1 && PyErr_Occurred())
		return NULL;
	made = rmx_layout_shift(self->it, 0, &why);
	if (made)
		made->extent = n;
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

static PyObject *layout_join(PyObject *type, PyObject *list)
{
	PyObject *items = PySequence_Tuple(list);
	const struct rmx_layout **of = NULL;
	struct rmx_layout *made;
	PyObject *result = NULL;
	Py_ssize_t n, i = 0;
	int why = 0;

	(void)type;
	if (!items)
		return NULL;
	n = PyTuple_GET_SIZE(items);
	of = PyMem_Malloc((size_t)n * sizeof(*of) + 1);
	if (!of)
		PyErr_NoMemory();
	for (; of && i < n; i++) {
		PyObject *item = PyTuple_GET_ITEM(items, i);

		if (!PyObject_TypeCheck(item, &py_layout_type)) {
			PyErr_SetString(PyExc_TypeError,
					"join() takes Layouts");
			break;
		}
		of[i] = ((struct py_layout *)item)->it;
	}
	if (of && i == n) {
		made = rmx_layout_join(of, (uint64_t)n, &why);
		result = py_layout_new(made, why);
	}
	PyMem_Free(of);
	Py_DECREF(items);
	return result;
}

/* -- what it says */

static PyObject *layout_copy(struct py_layout *self, PyObject *args)
{
	struct rmx_side side = {self->it, 1, self->it->bytes};
	struct rmx_side row = {NULL, 1, self->it->bytes};
	struct rmx_walk there, here;
	unsigned long long address;
	PyObject *piece;
	Py_buffer view;
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
	if (side.bytes) {
		Py_BEGIN_ALLOW_THREADS
		rmx_walk_start(&there, &side, (char *)(uintptr_t)address);
		rmx_walk_start(&here, &row, view.buf);
		rmx_walk_copy(pack ? &here : &there, pack ? &there : &here,
			      side.bytes);
		Py_END_ALLOW_THREADS
	}
	PyBuffer_Release(&view);
	Py_RETURN_NONE;
}

static PyObject *bytes_new(uint64_t count, int64_t **longs_p)
{
	PyObject *bytes =
		count > PY_SSIZE_T_MAX / sizeof(int64_t)
			? PyErr_NoMemory()
			: PyBytes_FromStringAndSize(
				  NULL, (Py_ssize_t)(count * sizeof(int64_t)));

	if (bytes)
		*longs_p = (int64_t *)PyBytes_AS_STRING(bytes);
	return bytes;
}

static PyObject *layout_runs(struct py_layout *self, PyObject *args)
{
	int64_t *at, *len;
	int why = 0;
	struct rmx_layout *flat = rmx_layout_flat(self->it, &why);
	PyObject *offsets, *lengths = NULL, *both = NULL;

	(void)args;
	if (!flat)
		return py_layout_new(NULL, why);
	offsets = bytes_new(flat->runs, &at);
	if (offsets)
		lengths = bytes_new(flat->runs, &len);
	if (lengths) {
		for (uint64_t i = 0; i < flat->runs; i++) {
			at[i] = flat->run[i].offset;
			len[i] = flat->run[i].len;
		}
		both = PyTuple_Pack(2, offsets, lengths);
	}
	Py_XDECREF(offsets);
	Py_XDECREF(lengths);
	free(flat);
	return both;
}

static PyObject *layout_cells(struct py_layout *self, PyObject *args)
{
	unsigned long long unit;
	long long first, scale;
	struct rmx_layout *flat;
	PyObject *cells;
	int64_t *at;
	int why = 0;

	if (!PyArg_ParseTuple(args, "KLL:cells", &unit, &first, &scale))
		return NULL;
	flat = rmx_layout_flat(self->it, &why);
	if (!flat)
		return py_layout_new(NULL, why);
	for (uint64_t i = 0; unit && i < flat->runs; i++)
		if ((uint64_t)flat->run[i].len % unit)
			unit = 0;
	if (!unit || scale <= 0) {
		free(flat);
		return PyErr_Format(PyExc_ValueError,
				    "cells() takes a unit that divides all "
				    "lengths");
	}
	cells = bytes_new(flat->bytes / unit, &at);
	for (uint64_t i = 0; cells && i < flat->runs; i++) {
		const struct rmx_run *run = &flat->run[i];

		for (int64_t k = 0; k < run->len; k += (int64_t)unit)
			*at++ = (first + run->offset + k) / scale;
	}
	free(flat);
	return cells;
}

static PyMethodDef layout_methods[] = {
	PY_ROW(layout, repeat, layout_repeat, METH_O),
	PY_ROW(layout, loop, layout_loop, METH_VARARGS),
	PY_ROW(layout, blocks, layout_blocks, METH_VARARGS),
	PY_ROW(layout, shift, layout_shift, METH_O),
	PY_ROW(layout, resize, layout_resize, METH_O),
	PY_ROW(layout, head, layout_head, METH_O),
	PY_ROW(layout, join, layout_join, METH_O | METH_STATIC),
	PY_ROW(layout, copy, layout_copy, METH_VARARGS),
	PY_ROW(layout, runs, layout_runs, METH_NOARGS),
	PY_ROW(layout, cells, layout_cells, METH_VARARGS),
	{NULL, NULL, 0, NULL},
};

static PyObject *get_nbytes(struct py_layout *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLongLong(self->it->bytes);
}

static PyObject *get_extent(struct py_layout *self, void *closure)
{
	(void)closure;
	return PyLong_FromLongLong(self->it->extent);
}

static PyObject *get_grain(struct py_layout *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLongLong(self->it->grain);
}

static PyObject *get_first(struct py_layout *self, void *closure)
{
	(void)closure;
	return PyLong_FromLongLong(self->it->runs ? self->it->run->offset : 0);
}

static PyObject *get_span(struct py_layout *self, void *closure)
{
	(void)closure;
	return Py_BuildValue("(LL)", (long long)self->it->low,
			     (long long)self->it->high);
}

static PyObject *get_number(struct py_layout *self, void *closure)
{
	(void)closure;
	return PyLong_FromUnsignedLongLong(self->it->runs *
					   rmx_layout_turns(self->it));
}

static PyObject *get_whole(struct py_layout *self, void *closure)
{
	(void)closure;
	return PyBool_FromLong(rmx_layout_is_whole(self->it));
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
	PyObject *turns, *steps = NULL, *loops = NULL;
	int64_t *counts, *step;

	(void)closure;
	if (l->runs != 1)
		Py_RETURN_NONE;
	turns = bytes_new((uint64_t)l->loops, &counts);
	if (turns)
		steps = bytes_new((uint64_t)l->loops, &step);
	for (int k = 0; steps && k < l->loops; k++) {
		counts[k] = l->loop[k].count;
		step[k] = l->loop[k].step;
	}
	if (steps)
		loops = Py_BuildValue("(KOO)", (unsigned long long)l->run->len,
				      turns, steps);
	Py_XDECREF(turns);
	Py_XDECREF(steps);
	return loops;
}

static PyGetSetDef layout_getset[] = {
	PY_GETTER(layout, nbytes, get_nbytes),
	PY_GETTER(layout, extent, get_extent),
	PY_GETTER(layout, grain, get_grain),
	PY_GETTER(layout, first, get_first),
	PY_GETTER(layout, span, get_span),
	PY_GETTER(layout, number, get_number),
	PY_GETTER(layout, whole, get_whole),
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
	.tp_getset = layout_getset,
};
