/* SPDX-License-Identifier: BSD-3-Clause */
/* Registered buffers and prepared operations. */
#include "python/hot.h"

#include <stddef.h>
#include <structmember.h>

/*
 * An array that Python has checked, and where to put it or get it from. What
 * may have changed since, the array's own shape and memory included, is looked
 * at in each call: that costs less than the lock that would forbid it.
 */
struct bound {
	PyObject_HEAD struct hot_window *window;
	PyObject *array;
	/* the rest is that of a prepared operation only */
	vectorcallfunc call;
	enum rmx_kind kind;
	PyObject *rank, *offset; /* for Python */
	int64_t number, index;	 /* the same for C; number -1: not plain */
};

static PyObject *bound_decide(struct bound *b, enum rmx_kind kind,
			      PyObject *rank, PyObject *offset)
{
	PyObject *w = (PyObject *)b->window;

	switch (kind) {
	case RMX_PUT:
		return PyObject_CallMethodObjArgs(w, hot_names.put, b->array,
						  rank, offset, NULL);
	case RMX_GET:
		return PyObject_CallMethodObjArgs(w, hot_names.get, rank,
						  offset, Py_None, b->array,
						  NULL);
	default:
		return PyObject_CallMethodObjArgs(w, hot_names.fetch_add,
						  b->array, rank, offset, NULL);
	}
}

/* rank and offset are what Python gets if number and index will not do. */
static PyObject *bound_run(struct bound *b, enum rmx_kind kind, PyObject *rank,
			   PyObject *offset, int64_t number, int64_t index)
{
	PyObject *result = NULL;
	enum hot_outcome done = HOT_ODD;

	switch (kind) {
	case RMX_PUT:
		done = hot_put(b->window, b->array, number, index);
		result = Py_None;
		break;
	case RMX_GET:
		if (hot_is_plain_result(b->window, b->array))
			done = hot_get(b->window, (PyArrayObject *)b->array,
				       number, index);
		result = b->array;
		break;
	default:
		done = hot_update(b->window, &hot_fetch_add, b->array, number,
				  index, &result);
		if (done == HOT_DONE)
			return result;
	}
	if (done == HOT_ODD)
		return bound_decide(b, kind, rank, offset);
	return done == HOT_DONE ? Py_NewRef(result) : NULL;
}

/* Only what does not change: it neither looks at memory nor asks anybody. */
static PyObject *bound_repr(struct bound *b)
{
	static const char *const names[] = {
		[RMX_PUT] = "put",
		[RMX_GET] = "get",
		[RMX_UPDATE] = "fetch_add",
	};
	PyObject *shape = PyObject_GetAttrString(b->array, "shape");
	PyObject *dtype = PyObject_GetAttrString(b->array, "dtype");
	PyObject *text = NULL;

	if (!shape || !dtype)
		goto out;
	if (b->call)
		text = PyUnicode_FromFormat(
			"<rmaext.Prepared %s of shape %S, %S, rank %S, offset "
			"%S, of %R>",
			names[b->kind], shape, dtype, b->rank, b->offset,
			(PyObject *)b->window);
	else
		text = PyUnicode_FromFormat(
			"<rmaext.Buffer of shape %S, %S, for %R>", shape, dtype,
			(PyObject *)b->window);
out:
	Py_XDECREF(shape);
	Py_XDECREF(dtype);
	return text;
}

static int bound_traverse(struct bound *b, visitproc visit, void *arg)
{
	Py_VISIT(b->window);
	Py_VISIT(b->array);
	Py_VISIT(b->rank);
	Py_VISIT(b->offset);
	return 0;
}

/* No tp_clear: the window and the array break any cycle, and calls need both */
static void bound_dealloc(struct bound *b)
{
	PyObject_GC_UnTrack(b);
	Py_XDECREF(b->window);
	Py_XDECREF(b->array);
	Py_XDECREF(b->rank);
	Py_XDECREF(b->offset);
	Py_TYPE(b)->tp_free(b);
}

static PyObject *prepared_call(PyObject *self, PyObject *const *args, size_t n,
			       PyObject *keywords)
{
	struct bound *b = (struct bound *)self;

	(void)args;
	if (PyVectorcall_NARGS(n) || (keywords && PyTuple_GET_SIZE(keywords))) {
		PyErr_SetString(PyExc_TypeError,
				"a prepared operation takes no arguments");
		return NULL;
	}
	return bound_run(b, b->kind, b->rank, b->offset, b->number, b->index);
}

static PyObject *prepared_new(PyTypeObject *type, PyObject *args,
			      PyObject *keys)
{
	PyObject *window, *array, *rank, *offset;
	struct bound *b;
	int kind;

	(void)keys;
	if (!PyArg_ParseTuple(args, "iO!O!OO", &kind, &hot_window_type, &window,
			      &PyArray_Type, &array, &rank, &offset))
		return NULL;
	b = (struct bound *)type->tp_alloc(type, 0);
	if (!b)
		return NULL;
	b->window = (struct hot_window *)Py_NewRef(window);
	b->array = Py_NewRef(array);
	b->rank = Py_NewRef(rank);
	b->offset = Py_NewRef(offset);
	b->kind = (enum rmx_kind)kind;
	b->call = prepared_call;
	if (!hot_to_place(rank, offset, &b->number, &b->index))
		b->number = RMX_NO_RANK;
	return (PyObject *)b;
}

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	PyObject *window, *array;
	struct bound *b;

	(void)keys;
	if (!PyArg_ParseTuple(args, "O!O!", &hot_window_type, &window,
			      &PyArray_Type, &array))
		return NULL;
	b = (struct bound *)type->tp_alloc(type, 0);
	if (!b)
		return NULL;
	b->window = (struct hot_window *)Py_NewRef(window);
	b->array = Py_NewRef(array);
	return (PyObject *)b;
}

static PyObject *buffer_run(struct bound *b, enum rmx_kind kind,
			    PyObject *const *args, Py_ssize_t n,
			    PyObject *keywords)
{
	static const char *const names[] = {
		[RMX_PUT] = "put",
		[RMX_GET] = "get",
		[RMX_UPDATE] = "fetch_add",
	};
	static PyObject *const *const wanted[] = {&hot_names.rank,
						  &hot_names.offset};
	PyObject *got[2] = {NULL};
	int64_t rank, index;

	if (!hot_take(got, wanted, 2, args, n, keywords) || !got[0]) {
		PyErr_Format(PyExc_TypeError,
			     "%s() takes a rank, and perhaps an offset",
			     names[kind]);
		return NULL;
	}
	if (!hot_to_place(got[0], got[1], &rank, &index))
		rank = RMX_NO_RANK;
	return bound_run(b, kind, got[0], got[1] ? got[1] : hot_names.zero,
			 rank, index);
}

PyDoc_STRVAR(buffer_put_doc,
	     "put($self, /, rank, offset=0)\n--\n\n"
	     "Write the array to a rank's window, as `Window.put` does.");

static PyObject *buffer_put(struct bound *b, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	return buffer_run(b, RMX_PUT, args, n, keywords);
}

PyDoc_STRVAR(buffer_get_doc,
	     "get($self, /, rank, offset=0)\n--\n\n"
	     "Fill the array from a rank's window, as `Window.get` does, and "
	     "return it.");

static PyObject *buffer_get(struct bound *b, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	return buffer_run(b, RMX_GET, args, n, keywords);
}

PyDoc_STRVAR(buffer_fetch_add_doc,
	     "fetch_add($self, /, rank, offset=0)\n--\n\n"
	     "Add the array to a rank's window and return the previous values, "
	     "as\n`Window.fetch_add` does.");

static PyObject *buffer_fetch_add(struct bound *b, PyObject *const *args,
				  Py_ssize_t n, PyObject *keywords)
{
	return buffer_run(b, RMX_UPDATE, args, n, keywords);
}

static PyMethodDef buffer_methods[] = {
	HOT_FAST(buffer, put, buffer_put_doc),
	HOT_FAST(buffer, get, buffer_get_doc),
	HOT_FAST(buffer, fetch_add, buffer_fetch_add_doc),
	{"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
	 "Buffer[numpy.float64]: for annotations, as numpy.ndarray has it."},
	{NULL, NULL, 0, NULL},
};

static PyMethodDef prepared_methods[] = {
	{"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
	 "Prepared[numpy.float64]: for annotations, as numpy.ndarray has it."},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef bound_members[] = {
	{"window", T_OBJECT, offsetof(struct bound, window), READONLY, NULL},
	{"array", T_OBJECT, offsetof(struct bound, array), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject hot_buffer_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext.Buffer",
	.tp_doc = "An array that is put or got again and again, made by "
		  "`Window.register`.",
	.tp_basicsize = sizeof(struct bound),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = buffer_new,
	.tp_dealloc = (destructor)bound_dealloc,
	.tp_traverse = (traverseproc)bound_traverse,
	.tp_repr = (reprfunc)bound_repr,
	.tp_methods = buffer_methods,
	.tp_members = bound_members,
};

PyTypeObject hot_prepared_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext.Prepared",
	.tp_doc = "An operation with its arguments, made by "
		  "`Window.prepare_put` and its like:\na call carries it out.",
	.tp_basicsize = sizeof(struct bound),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
		    Py_TPFLAGS_HAVE_VECTORCALL,
	.tp_new = prepared_new,
	.tp_dealloc = (destructor)bound_dealloc,
	.tp_traverse = (traverseproc)bound_traverse,
	.tp_repr = (reprfunc)bound_repr,
	.tp_methods = prepared_methods,
	.tp_call = PyVectorcall_Call,
	.tp_vectorcall_offset = offsetof(struct bound, call),
	.tp_members = bound_members,
};
