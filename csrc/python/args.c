/* SPDX-License-Identifier: BSD-3-Clause */
/* Converts arguments of the methods, or leaves them to Python. */
#include "python/cmethods.h"

#include <math.h>

bool py_take_named(const struct py_signature *s, PyObject **slots,
		   PyObject *const *named, Py_ssize_t n, PyObject *keywords)
{
	const Py_ssize_t more = PyTuple_GET_SIZE(keywords);

	for (Py_ssize_t i = 0; i < more; i++) {
		PyObject *name = PyTuple_GET_ITEM(keywords, i);
		Py_ssize_t at = n;

		while (at < s->given && *s->names[at] != name)
			at++;
		if (at == s->given)
			return false;
		slots[at] = named[i];
	}
	while (n < s->required)
		if (!slots[n++])
			return false;
	return true;
}

bool py_to_index(PyObject *it, int64_t *index_p)
{
	int overflow = 0;

	if (PyLong_CheckExact(it)) {
		*index_p = PyLong_AsLongLongAndOverflow(it, &overflow);
	} else if (PyArray_IsScalar(it, Integer)) {
		it = PyNumber_Index(it);
		if (!it) {
			PyErr_Clear();
			return false;
		}
		*index_p = PyLong_AsLongLongAndOverflow(it, &overflow);
		Py_DECREF(it);
	} else {
		return false;
	}
	return !overflow && *index_p >= 0;
}

bool py_find_array(struct py_call *c)
{
	const struct py_window *w = c->w;
	const int64_t *bounds;
	Py_ssize_t low = 0, high = PyTuple_GET_SIZE(w->arrays);

	if (w->it.closed || c->rank >= PyArray_DIM(w->bounds, 0))
		return false;
	bounds = PyArray_GETPTR2(w->bounds, c->rank, 0);
	if (c->index >= bounds[high])
		return false;
	while (high - low > 1) { /* bounds[low] <= index < bounds[high] */
		const Py_ssize_t middle = (low + high) / 2;

		if (c->index >= bounds[middle])
			low = middle;
		else
			high = middle;
	}
	c->index -= bounds[low];
	c->w = (struct py_window *)PyTuple_GET_ITEM(w->arrays, low);
	return true;
}

/* Integers that are not larger are numbers of these types, none is rounded. */
#define MOST_IN_DOUBLE (1LL << 53)
#define MOST_IN_FLOAT (1LL << 24)

static bool cell_pack_float(int type, double value, union py_cell *cell)
{
	if (type == RMAEXT_DOUBLE) {
		cell->f8 = value;
		return true;
	}
	cell->f4 = (float)value;
	return type == RMAEXT_FLOAT && (isfinite(cell->f4) || !isfinite(value));
}

#define PACK(member, type)                    \
	do {                                  \
		cell->member = (type)value;   \
		return cell->member == value; \
	} while (0)

static bool cell_pack_int(int type, PyObject *it, union py_cell *cell)
{
	int overflow;
	long long value = PyLong_AsLongLongAndOverflow(it, &overflow), most;

	if (overflow)
		return false;
	switch (type) {
	case RMAEXT_INT8:
		PACK(i1, int8_t);
	case RMAEXT_UINT8:
		PACK(u1, uint8_t);
	case RMAEXT_INT16:
		PACK(i2, int16_t);
	case RMAEXT_UINT16:
		PACK(u2, uint16_t);
	case RMAEXT_INT32:
		PACK(i4, int32_t);
	case RMAEXT_UINT32:
		PACK(u4, uint32_t);
	case RMAEXT_INT64:
		PACK(i8, int64_t);
	case RMAEXT_UINT64:
		cell->i8 = value;
		return value >= 0;
	}
	most = type == RMAEXT_DOUBLE ? MOST_IN_DOUBLE : MOST_IN_FLOAT;
	if (value > most || value < -most)
		return false;
	return cell_pack_float(type, (double)value, cell);
}

/*
 * Names in the text of a program are interned, and compared by their addresses.
 * Python knows other strings, and objects of mpi4py.
 */
bool py_to_op(PyObject *it, int *op_p)
{
	*op_p = RMAEXT_SUM;
	if (!it || it == py_names.ops[RMAEXT_SUM])
		return true;
	for (*op_p = 0; *op_p < RMX_OPS; ++*op_p)
		if (it == py_names.ops[*op_p])
			return true;
	return false;
}

bool py_pack(const struct py_window *w, PyObject *it, union py_cell *cell)
{
	/*
	 * A long double has padding, which must not be bytes of our stack; and
	 * all dtypes of pairs have one scalar type.
	 */
	if (w->it.type < 0 || w->it.type == RMAEXT_LONG_DOUBLE ||
	    w->it.type >= RMAEXT_FLOAT_INT32)
		return false;
	if (PyFloat_CheckExact(it))
		return cell_pack_float(w->it.type, PyFloat_AS_DOUBLE(it), cell);
	if (PyLong_CheckExact(it))
		return cell_pack_int(w->it.type, it, cell);
	if (Py_TYPE(it) != w->dtype->typeobj)
		return false;
	PyArray_ScalarAsCtype(it, cell);
	return true;
}

bool py_origin_pack(const struct py_window *w, PyObject *it, npy_intp most,
		    struct py_origin *o)
{
	PyArrayObject *array = (PyArrayObject *)it;

	if (!PyArray_CheckExact(it) || PyArray_NBYTES(array) > most ||
	    !PyArray_EquivTypes(PyArray_DESCR(array), w->dtype))
		return false;
	o->copy = (PyArrayObject *)PyArray_NewCopy(array, NPY_CORDER);
	if (!o->copy) {
		PyErr_Clear();
		return false;
	}
	o->data = PyArray_DATA(o->copy);
	o->bytes = (uint64_t)PyArray_NBYTES(o->copy);
	return true;
}

PyArrayObject *py_new_array(const struct py_window *w, int ndim,
			    const npy_intp *shape)
{
	Py_INCREF(w->dtype);
	return (PyArrayObject *)PyArray_NewFromDescr(
		&PyArray_Type, w->dtype, ndim, shape, NULL, NULL, 0, NULL);
}

PyObject *py_decide(void *self, PyObject *name, PyObject *const *args,
		    Py_ssize_t n, PyObject *keywords)
{
	PyObject *method, *result;

	if (PyErr_Occurred()) /* a signal handler's, in what the attempt asked
			       */
		return NULL;
	method = PyObject_GetAttr(self, name);
	if (!method)
		return NULL;
	result = PyObject_Vectorcall(method, args, (size_t)n, keywords);
	if (!result) /* perhaps a signal handler's, before its first line */
		rmaext_record_give_up();
	Py_DECREF(method);
	return result;
}
