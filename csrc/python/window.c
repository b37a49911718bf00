/* SPDX-License-Identifier: BSD-3-Clause */
/* The type that rmaext.Window inherits from, and the table of its methods. */
#include "python/cmethods.h"

static PyObject *window_bind(struct py_window *w, PyObject *args)
{
	PyObject *handle, *type, *fabric;
	unsigned long long address, calls, name;
	PyArray_Descr *dtype;
	PyObject *meetings;
	int number = -1;

	if (!PyArg_ParseTuple(args, "OKO!OOOKK:_bind", &handle, &address,
			      &PyArrayDescr_Type, &dtype, &type, &fabric,
			      &meetings, &calls, &name))
		return NULL;
	if (type != Py_None) {
		number = (int)PyLong_AsLong(type);
		if (PyErr_Occurred())
			return NULL;
	}
	if (w->handle) {
		PyErr_SetString(PyExc_ValueError,
				"this Window is bound to a C window already");
		return NULL;
	}
	if (fabric != Py_None &&
	    !PyObject_TypeCheck(fabric, &py_endpoint_type)) {
		PyErr_SetString(PyExc_TypeError,
				"_bind() takes an Endpoint or None");
		return NULL;
	}
	w->it.window = (struct rmaext_window *)(uintptr_t)address;
	w->it.unit = (uint64_t)PyDataType_ELSIZE(dtype);
	w->it.type = number;
	w->dtype = (PyArray_Descr *)Py_NewRef((PyObject *)dtype);
	w->fabric = Py_NewRef(fabric);
	w->handle = Py_NewRef(handle);
	w->meetings = Py_NewRef(meetings);
	w->calls = (struct rmaext_meetings *)(uintptr_t)calls;
	w->name = name;
	Py_RETURN_NONE;
}

static PyObject *window_bind_arrays(struct py_window *w, PyObject *args)
{
	PyArrayObject *bounds;
	PyObject *arrays;

	if (!PyArg_ParseTuple(args, "O!O!:_bind_arrays", &PyTuple_Type, &arrays,
			      &PyArray_Type, &bounds))
		return NULL;
	for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(arrays); k++)
		if (!PyObject_TypeCheck(PyTuple_GET_ITEM(arrays, k),
					&py_window_type))
			return PyErr_Format(PyExc_TypeError,
					    "_bind_arrays() takes Windows");
	if (w->handle || w->arrays || !PyTuple_GET_SIZE(arrays) ||
	    PyArray_TYPE(bounds) != NPY_INT64 || !PyArray_ISCARRAY(bounds) ||
	    PyArray_NDIM(bounds) != 2 ||
	    PyArray_DIM(bounds, 1) != PyTuple_GET_SIZE(arrays) + 1)
		return PyErr_Format(
			PyExc_ValueError,
			"_bind_arrays() takes bounds for as many arrays, "
			"once");
	w->arrays = Py_NewRef(arrays);
	w->bounds = (PyArrayObject *)Py_NewRef((PyObject *)bounds);
	Py_RETURN_NONE;
}

static PyObject *window_get_closed(struct py_window *w, void *closure)
{
	(void)closure;
	return PyBool_FromLong(w->it.closed);
}

static int window_set_closed(struct py_window *w, PyObject *value,
			     void *closure)
{
	(void)closure;
	if (!value || !PyBool_Check(value)) {
		PyErr_SetString(PyExc_TypeError, "_closed must be a bool");
		return -1;
	}
	w->it.closed = value == Py_True;
	if (w->it.closed)
		py_numba_close(w);
	return 0;
}

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	struct py_window *w = (struct py_window *)type->tp_alloc(type, 0);

	(void)args;
	(void)keys;
	if (w)
		w->it.closed = 1; /* until _bind() and Python open it */
	return (PyObject *)w;
}

static int window_traverse(struct py_window *w, visitproc visit, void *arg)
{
	Py_VISIT(w->dtype);
	Py_VISIT(w->handle);
	Py_VISIT(w->fabric);
	Py_VISIT(w->meetings);
	Py_VISIT(w->arrays);
	Py_VISIT(w->bounds);
	return 0;
}

static int window_clear(struct py_window *w)
{
	py_numba_close(w);
	w->it.window = NULL;
	Py_CLEAR(w->dtype);
	Py_CLEAR(w->handle);
	Py_CLEAR(w->fabric);
	w->calls = NULL;
	Py_CLEAR(w->meetings);
	Py_CLEAR(w->arrays);
	Py_CLEAR(w->bounds);
	return 0;
}

static void window_dealloc(struct py_window *w)
{
	PyObject_GC_UnTrack(w);
	window_clear(w);
	Py_TYPE(w)->tp_free(w);
}

static PyMethodDef window_methods[] = {PY_METHODS_window};

static PyGetSetDef window_getters[] = {
	PY_GETTER(window, numba, py_numba),
	{"_closed", (getter)window_get_closed, (setter)window_set_closed, NULL,
	 NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject py_window_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Window",
	.tp_doc = PY_DOC_window,
	.tp_basicsize = sizeof(struct py_window),
	.tp_flags =
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_new = window_new,
	.tp_dealloc = (destructor)window_dealloc,
	.tp_traverse = (traverseproc)window_traverse,
	.tp_clear = (inquiry)window_clear,
	.tp_methods = window_methods,
	.tp_getset = window_getters,
	.tp_as_mapping = &py_index_methods,
};
