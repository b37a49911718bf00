/* SPDX-License-Identifier: BSD-3-Clause */
/* Registered buffers and prepared operations. */
#include "python/cmethods.h"

#include <stddef.h>
#include <structmember.h>

static const char *const kind_names[] = {
	[RMAEXT_PUT] = "put",
	[RMAEXT_GET] = "get",
	[RMAEXT_UPDATE] = "fetch_add",
};

/*
 * An array that Python has checked, and the place to put it to or get it from.
 * The array's shape and memory may have changed since: each call looks at them
 * again, which costs less than a lock that would forbid the change.
 */
struct bound {
	PyObject_HEAD struct py_window *window;
	PyObject *array;
	/* a registered buffer has none of the following */
	vectorcallfunc call;
	int kind;
	PyObject *rank, *offset;
};

/* A call of the window's method, with the array. */
static PyObject *bound_run(struct bound *b, int kind, PyObject *rank,
			   PyObject *offset)
{
	PyObject *into[] = {rank, offset, Py_None, b->array};
	PyObject *from[] = {b->array, rank, offset};
	PyObject *w = (PyObject *)b->window;

	switch (kind) {
	case RMAEXT_PUT:
		return py_window_put(w, from, 3, NULL);
	case RMAEXT_GET:
		return py_window_get(w, into, 4, NULL);
	default:
		return py_window_fetch_add(w, from, 3, NULL);
	}
}

/* Shows only what does not change: it looks at no memory and asks nobody. */
static PyObject *bound_repr(struct bound *b)
{
	PyObject *shape = PyObject_GetAttrString(b->array, "shape");
	PyObject *dtype = PyObject_GetAttrString(b->array, "dtype");
	PyObject *text = NULL;

	if (!shape || !dtype)
		goto out;
	if (b->call)
		text = PyUnicode_FromFormat(
			"<rmaext.Prepared %s of shape %S, %S, rank %S, offset "
			"%S, of %R>",
			kind_names[b->kind], shape, dtype, b->rank, b->offset,
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
				"a prepared operation takes no arguments: they "
				"were given when it was prepared");
		return NULL;
	}
	return bound_run(b, b->kind, b->rank, b->offset);
}

static struct bound *bound_new(PyTypeObject *type, PyObject *window,
			       PyObject *array)
{
	struct bound *b = (struct bound *)type->tp_alloc(type, 0);

	if (b) {
		b->window = (struct py_window *)Py_NewRef(window);
		b->array = Py_NewRef(array);
	}
	return b;
}

static PyObject *prepared_new(PyTypeObject *type, PyObject *args,
			      PyObject *keys)
{
	PyObject *window, *array, *rank, *offset;
	struct bound *b;
	int kind;

	(void)keys;
	if (!PyArg_ParseTuple(args, "iO!O!OO", &kind, &py_window_type, &window,
			      &PyArray_Type, &array, &rank, &offset))
		return NULL;
	if (kind != RMAEXT_PUT && kind != RMAEXT_GET && kind != RMAEXT_UPDATE) {
		PyErr_Format(PyExc_ValueError,
			     "no operation %d: Window.prepare_put and its like "
			     "make these",
			     kind);
		return NULL;
	}
	b = bound_new(type, window, array);
	if (!b)
		return NULL;
	b->rank = Py_NewRef(rank);
	b->offset = Py_NewRef(offset);
	b->kind = kind;
	b->call = prepared_call;
	return (PyObject *)b;
}

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	PyObject *window, *array;

	(void)keys;
	if (!PyArg_ParseTuple(args, "O!O!", &py_window_type, &window,
			      &PyArray_Type, &array))
		return NULL;
	return (PyObject *)bound_new(type, window, array);
}

static PyObject *buffer_run(struct bound *b, int kind, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	static const struct py_signature signature = {
		.required = 1,
		.given = 2,
		.names = {&py_names.rank, &py_names.offset},
	};
	PyObject *got[2] = {NULL};

	if (!py_take(&signature, got, args, n, keywords)) {
		PyErr_Format(PyExc_TypeError,
			     "%s() takes a rank and, optionally, an offset",
			     kind_names[kind]);
		return NULL;
	}
	return bound_run(b, kind, got[0], got[1] ? got[1] : py_names.zero);
}

#define BUFFER_METHOD(name, kind)                                              \
	static PyObject *py_buffer_##name(struct bound *b,                     \
					  PyObject *const *args, Py_ssize_t n, \
					  PyObject *keywords)                  \
	{                                                                      \
		return buffer_run(b, kind, args, n, keywords);                 \
	}                                                                      \
	_Static_assert(1, "")

BUFFER_METHOD(put, RMAEXT_PUT);
BUFFER_METHOD(get, RMAEXT_GET);
BUFFER_METHOD(fetch_add, RMAEXT_UPDATE);

static PyMethodDef buffer_methods[] = {PY_METHODS_buffer};

static PyMethodDef prepared_methods[] = {PY_METHODS_prepared};

static PyMemberDef bound_members[] = {
	{"window", T_OBJECT, offsetof(struct bound, window), READONLY,
	 PY_DOC_buffer_window},
	{"array", T_OBJECT, offsetof(struct bound, array), READONLY,
	 PY_DOC_buffer_array},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject py_buffer_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext.Buffer",
	.tp_doc = PY_DOC_buffer,
	.tp_basicsize = sizeof(struct bound),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = buffer_new,
	.tp_dealloc = (destructor)bound_dealloc,
	.tp_traverse = (traverseproc)bound_traverse,
	.tp_repr = (reprfunc)bound_repr,
	.tp_methods = buffer_methods,
	.tp_members = bound_members,
};

PyTypeObject py_prepared_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext.Prepared",
	.tp_doc = PY_DOC_prepared,
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
