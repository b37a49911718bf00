/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The buffers and targets of MPI.Win's operations, as mpi4py's callers write
 * them: a buffer, or a list of it with a count and a datatype.
 */
#include "python/compat/compat.h"

static int type_number(int type_num)
{
	static const int numbers[] = {
		[NPY_BOOL] = RMAEXT_BOOL,
		[NPY_BYTE] = RMAEXT_INT8,
		[NPY_UBYTE] = RMAEXT_UINT8,
		[NPY_SHORT] = RMAEXT_INT16,
		[NPY_USHORT] = RMAEXT_UINT16,
		[NPY_INT] = RMAEXT_INT32,
		[NPY_UINT] = RMAEXT_UINT32,
		[NPY_LONG] = sizeof(long) == 8 ? RMAEXT_INT64 : RMAEXT_INT32,
		[NPY_ULONG] = sizeof(long) == 8 ? RMAEXT_UINT64 : RMAEXT_UINT32,
		[NPY_LONGLONG] = RMAEXT_INT64,
		[NPY_ULONGLONG] = RMAEXT_UINT64,
		[NPY_FLOAT] = RMAEXT_FLOAT,
		[NPY_DOUBLE] = RMAEXT_DOUBLE,
		[NPY_LONGDOUBLE] = RMAEXT_LONG_DOUBLE,
		[NPY_CFLOAT] = RMAEXT_FLOAT_COMPLEX,
		[NPY_CDOUBLE] = RMAEXT_DOUBLE_COMPLEX,
		[NPY_CLONGDOUBLE] = RMAEXT_LONG_DOUBLE_COMPLEX,
	};

	return type_num >= 0 && type_num < (int)(sizeof(numbers) / sizeof(int))
		       ? numbers[type_num]
		       : -1;
}

/* The type that a buffer's format of one letter means, or -1. */
static int format_number(const char *format)
{
	PyArray_Descr *dtype;
	int number;

	if (!format)
		return RMAEXT_UINT8;
	if (!*format || format[1] || !strchr("?bBhHiIlLqQfdg", *format))
		return -1;
	dtype = PyArray_DescrFromType(*format); /* NumPy has these letters */
	number = type_number(dtype->type_num);
	Py_DECREF(dtype);
	return number;
}

/* Takes the memory of an object; typed: with the type of its elements. */
static bool part_take_memory(struct py_part *p, PyObject *it, bool write,
			     bool typed)
{
	PyArrayObject *array = (PyArrayObject *)it;
	int flags = PyBUF_ANY_CONTIGUOUS;

	if (PyArray_CheckExact(it)) {
		if (!PyArray_ISONESEGMENT(array) ||
		    (write && !PyArray_ISWRITEABLE(array)))
			return false;
		p->data = PyArray_DATA(array);
		p->owner = Py_NewRef(it);
		p->count = (uint64_t)PyArray_NBYTES(array);
		if (!typed)
			return !PyDataType_REFCHK(PyArray_DESCR(array));
		p->basic.type = type_number(PyArray_TYPE(array));
		p->basic.unit = (uint64_t)PyArray_ITEMSIZE(array);
		p->count = (uint64_t)PyArray_SIZE(array);
		return p->basic.type >= 0 &&
		       PyArray_ISNBO(PyArray_DESCR(array)->byteorder);
	}
	if (!PyObject_CheckBuffer(it))
		return false;
	flags |= write ? PyBUF_WRITABLE : 0;
	flags |= typed ? PyBUF_FORMAT : 0;
	if (PyObject_GetBuffer(it, &p->view, flags)) {
		PyErr_Clear();
		return false;
	}
	if (!p->view.len) /* it may be MPI.IN_PLACE or its like */
		return false;
	p->data = p->view.buf;
	p->count = (uint64_t)p->view.len;
	if (!typed)
		return true;
	p->basic.type = format_number(p->view.format);
	p->basic.unit = (uint64_t)p->view.itemsize;
	if (p->basic.type < 0 || !p->basic.unit)
		return false;
	p->count /= p->basic.unit;
	return true;
}

/* Takes as many elements as are wanted, or as fill so many bytes. */
static bool part_take_count(struct py_part *p, PyObject *wanted, uint64_t bytes)
{
	const int64_t extent =
		p->layout ? p->layout->it->extent : (int64_t)p->basic.unit;
	int64_t count;

	if (!wanted) {
		if (extent <= 0 || bytes % (uint64_t)extent)
			return false;
		p->count = bytes / (uint64_t)extent;
		return true;
	}
	if (!py_to_index(wanted, &count))
		return false;
	p->count = (uint64_t)count;
	/* a derived type may well lead out of the buffer */
	return p->layout || p->count <= bytes / p->basic.unit;
}

/* Takes a datatype: a predefined one, or its layout. */
static bool type_take(PyObject *it, struct rmx_basic *basic_p,
		      struct py_layout **layout_p)
{
	const struct py_named *type = py_find_named(it);

	if (type) {
		*basic_p = type->basic;
		return true;
	}
	Py_INCREF(it); /* Python, which may run, could drop it */
	*layout_p = (struct py_layout *)py_layout_of(it);
	Py_DECREF(it);
	if (!*layout_p)
		return false;
	*basic_p = (*layout_p)->it->basic;
	return true;
}

static bool part_make_side(struct py_part *p)
{
	const struct rmx_layout *l = p->layout ? p->layout->it : NULL;

	p->side.layout = l;
	p->side.count = (int64_t)p->count;
	return !__builtin_mul_overflow(p->count, l ? l->bytes : p->basic.unit,
				       &p->side.bytes) &&
	       p->side.bytes <= INT64_MAX;
}

/* An item of a tuple or list; NULL: there is none. */
static PyObject *sequence_item(PyObject *of, int64_t at)
{
	if ((!PyTuple_CheckExact(of) && !PyList_CheckExact(of)) ||
	    at >= PySequence_Fast_GET_SIZE(of))
		return NULL;
	return PySequence_Fast_ITEMS(of)[at];
}

/* Takes buffer, [buffer, type] or [buffer, count, type]. */
bool py_part_take(struct py_part *p, PyObject *it, bool write)
{
	Py_ssize_t n;

	p->basic = (struct rmx_basic){.type = -1, .unit = 1};
	if (!PyList_CheckExact(it) && !PyTuple_CheckExact(it))
		return part_take_memory(p, it, write, true) &&
		       part_make_side(p);
	n = PySequence_Fast_GET_SIZE(it);
	/* after the type's layout was asked for the list may be another */
	return (n == 2 || n == 3) &&
	       type_take(sequence_item(it, n - 1), &p->basic, &p->layout) &&
	       n == PySequence_Fast_GET_SIZE(it) &&
	       part_take_memory(p, sequence_item(it, 0), write, false) &&
	       part_take_count(p, n == 3 ? sequence_item(it, 1) : NULL,
			       p->count) &&
	       part_make_side(p);
}

void py_part_drop(struct py_part *p)
{
	if (p->view.obj)
		PyBuffer_Release(&p->view);
	Py_XDECREF(p->owner);
	Py_XDECREF(p->layout);
}

/* Takes a rank, and a displacement as bytes. */
static bool place_take(struct py_window *w, PyObject *units, PyObject *rank,
		       PyObject *it, struct py_target *t)
{
	int64_t disp = 0, unit;
	PyObject *other;

	if (!py_is_open(w) || w->it.unit != 1 || !py_to_index(rank, &t->rank) ||
	    (it != Py_None && !py_to_index(it, &disp)))
		return false;
	other = sequence_item(units, t->rank);
	return other && py_to_index(other, &unit) &&
	       !__builtin_mul_overflow((uint64_t)disp, (uint64_t)unit,
				       &t->offset);
}

bool py_target_take(struct py_window *w, PyObject *units, PyObject *rank,
		    PyObject *target, const struct py_part *origin,
		    struct py_target *t)
{
	int64_t count = (int64_t)origin->count;
	struct py_part *p = &t->part;
	Py_ssize_t n;

	target = target ? target : Py_None;
	p->basic = origin->basic;
	p->layout = (struct py_layout *)Py_XNewRef(origin->layout);
	if (PyTuple_CheckExact(target) || PyList_CheckExact(target)) {
		n = PySequence_Fast_GET_SIZE(target);
		if (n < 1 || n > 3 ||
		    (n > 1 && !py_to_index(sequence_item(target, 1), &count)))
			return false;
		if (n > 2) {
			Py_CLEAR(p->layout);
			if (!type_take(sequence_item(target, 2), &p->basic,
				       &p->layout))
				return false;
		}
		target = sequence_item(target, 0);
		/* None is no number, once it is given */
		if (!target || target == Py_None)
			return false;
	}
	p->count = (uint64_t)count;
	return part_make_side(p) && place_take(w, units, rank, target, t);
}
