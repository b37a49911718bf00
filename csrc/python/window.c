/* SPDX-License-Identifier: BSD-3-Clause */
/* The type that rmaext.Window inherits from: its operations on one place. */
#include "python/cmethods.h"

PyDoc_STRVAR(
	put_doc,
	"put($self, /, origin, rank, offset=0)\n--\n\n"
	"Write to a rank's window.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"origin : array_like\n"
	"    Of the window's dtype, any shape; its elements go to consecutive\n"
	"    positions in C order. It may be reused when the call returns.\n"
	"    Nothing is cast: an array of another dtype is a TypeError, and so "
	"is\n"
	"    what offers one (memoryview, array.array, `__array__`). Only\n"
	"    Python's numbers, alone or in lists, have no dtype: they are "
	"taken\n"
	"    if each fits the window's, as in an assignment to an array of "
	"it;\n"
	"    else TypeError or OverflowError. So it is with the values of all\n"
	"    calls.\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"\n"
	"Raises\n"
	"------\n"
	"BoundsError, AccessError, TypeError, OverflowError\n"
	"    Before anything is sent.\n"
	"RmaTimeout, PeerLostError\n"
	"    Here or in the next `flush`.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local. Complete at the target after `flush`; corresponds to MPI_Put.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.put([1.0, 2.0], rank=0, offset=4)\n"
	">>> win.flush()\n"
	">>> win.local[3:7]\n"
	"array([0., 1., 2., 0.])");

static enum py_outcome window_try_put(void *w, struct py_call *c)
{
	int64_t rank, index;

	if (!py_to_place(c->got[1], c->got[2], &rank, &index))
		return PY_DECLINED;
	return py_put(w, c->got[0], rank, index);
}

static PY_METHOD(window_put, window_try_put, .slow = &py_names.put,
		 .required = 2, .given = 3,
		 .names = {&py_names.origin, &py_names.rank, &py_names.offset});

PyDoc_STRVAR(
	get_doc,
	"get($self, /, rank, offset=0, count=None, out=None)\n--\n\n"
	"Read from a rank's window.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"count : int, optional\n"
	"    Elements; by default out.size, else the rest of the window.\n"
	"out : numpy.ndarray, optional\n"
	"    C-contiguous and writeable, of the window's dtype, of `count`\n"
	"    elements; by default a new 1-D array.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"numpy.ndarray\n"
	"    `out`, or the new array.\n"
	"\n"
	"Raises\n"
	"------\n"
	"BoundsError, AccessError, TypeError, ValueError\n"
	"    Before anything is sent.\n"
	"RmaTimeout, PeerLostError\n"
	"    Then `out` is undefined, and kept until no late answer can come.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Get and MPI_Win_flush.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.local[:] = np.arange(10)\n"
	">>> win.get(0, offset=2, count=3)\n"
	"array([2., 3., 4.])");

static enum py_outcome window_try_get(void *w, struct py_call *c)
{
	PyObject *wanted = c->got[2], *out = c->got[3];
	int64_t rank, index, count = -1;
	enum py_outcome done;

	if (!py_to_place(c->got[0], c->got[1], &rank, &index) ||
	    (wanted && wanted != Py_None && !py_to_index(wanted, &count)))
		return PY_DECLINED;
	if (out && out != Py_None) {
		if (!py_is_plain_result(w, out) ||
		    (count >= 0 && count != PyArray_SIZE((PyArrayObject *)out)))
			return PY_DECLINED;
		Py_INCREF(out);
	} else {
		if ((count < 0 && !py_rest(w, rank, index, &count)) ||
		    !py_could_get(w, rank, index, count))
			return PY_DECLINED;
		out = (PyObject *)py_new_array(w, 1, &(npy_intp){count});
		if (!out)
			return PY_FAILED;
	}
	done = py_get(w, (PyArrayObject *)out, rank, index);
	if (done == PY_DONE)
		c->result = out;
	else
		Py_DECREF(out);
	return done;
}

static PY_METHOD(window_get, window_try_get, .slow = &py_names.get,
		 .required = 1, .given = 4,
		 .names = {&py_names.rank, &py_names.offset, &py_names.count,
			   &py_names.out});

PyDoc_STRVAR(
	flush_doc,
	"flush($self, /, rank=None, *, persist=False)\n--\n\n"
	"Wait until every put to a rank, or to all, is applied there.\n"
	"\n"
	"After it the data is in the target's memory, and visible to any rank\n"
	"that is told so. (`get` and the atomics are complete when they "
	"return.)\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"rank : int, optional\n"
	"persist : bool, optional\n"
	"    Wait until it is in the file, too, that the memory is mapped "
	"from: of\n"
	"    windows over np.memmap. A thread of the target writes it "
	"there (msync),\n"
	"    whatever its program does. What the target itself and other "
	"ranks have\n"
	"    written before is written with it.\n"
	"\n"
	"Raises\n"
	"------\n"
	"RmaTimeout, PeerLostError\n"
	"    The fate of the operations in flight is unknown.\n"
	"Unsupported\n"
	"    persist, and that memory is not mapped from a file, or mapped "
	"privately\n"
	"    (mode \"c\").\n"
	"RmaError\n"
	"    persist, and the target's system could not write; errno says "
	"why.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Win_flush and MPI_Win_flush_all.\n"
	"Writing to a file has no time limit while the target lives.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.put(1.0, 0)\n"
	">>> win.flush(0)  # now rank 0 may be told of it\n"
	">>> win.local[0]\n"
	"np.float64(1.0)");

static enum py_outcome window_try_flush(void *w, struct py_call *c)
{
	int64_t rank = -1;

	if (c->got[0] && c->got[0] != Py_None && !py_to_index(c->got[0], &rank))
		return PY_DECLINED;
	return py_flush(w, rank);
}

static PY_METHOD(window_flush, window_try_flush, .slow = &py_names.flush,
		 .given = 1, .names = {&py_names.rank});

PyDoc_STRVAR(bind_doc,
	     "_bind($self, handle, address, dtype, atomic_type, fabric, /)\n"
	     "--\n\n"
	     "Take over the C window at an address, which `handle` keeps.");

static PyObject *window_bind(struct py_window *w, PyObject *args)
{
	PyObject *handle, *type, *fabric, *in_flight = NULL, *orphans = NULL;
	PyObject *origins = NULL, *know = NULL;
	unsigned long long address;
	PyArray_Descr *dtype;
	int number = -1;

	if (!PyArg_ParseTuple(args, "OKO!OO:_bind", &handle, &address,
			      &PyArrayDescr_Type, &dtype, &type, &fabric))
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
	if (fabric != Py_None) {
		in_flight = PyObject_GetAttrString(fabric, "_in_flight");
		orphans = PyObject_GetAttrString(fabric, "_orphans");
		origins = PyObject_GetAttrString(fabric, "origins");
		if (origins && origins != Py_None)
			know = PyObject_GetAttrString(origins, "know");
		if (!in_flight || !orphans || !origins ||
		    (origins != Py_None && !know)) {
			Py_XDECREF(in_flight);
			Py_XDECREF(orphans);
			Py_XDECREF(origins);
			return NULL;
		}
		Py_DECREF(origins);
	}
	w->it.window = (struct rmaext_window *)(uintptr_t)address;
	w->it.unit = (uint64_t)PyDataType_ELSIZE(dtype);
	w->it.type = number;
	w->dtype = (PyArray_Descr *)Py_NewRef((PyObject *)dtype);
	w->fabric = Py_NewRef(fabric);
	w->handle = Py_NewRef(handle);
	w->in_flight = in_flight;
	w->orphans = orphans;
	w->know = know;
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
	Py_VISIT(w->in_flight);
	Py_VISIT(w->orphans);
	Py_VISIT(w->know);
	return 0;
}

static int window_clear(struct py_window *w)
{
	py_numba_close(w);
	w->it.window = NULL;
	Py_CLEAR(w->dtype);
	Py_CLEAR(w->handle);
	Py_CLEAR(w->fabric);
	Py_CLEAR(w->in_flight);
	Py_CLEAR(w->orphans);
	Py_CLEAR(w->know);
	return 0;
}

static void window_dealloc(struct py_window *w)
{
	PyObject_GC_UnTrack(w);
	window_clear(w);
	Py_TYPE(w)->tp_free(w);
}

static PyMethodDef window_methods[] = {
	PY_FASTCALL(window, put, put_doc),
	PY_FASTCALL(window, get, get_doc),
	PY_FASTCALL(py, fetch_add, py_fetch_add_doc),
	PY_FASTCALL(py, compare_and_swap, py_compare_and_swap_doc),
	PY_FASTCALL(py, accumulate, py_accumulate_doc),
	PY_FASTCALL(py, get_accumulate, py_get_accumulate_doc),
	PY_FASTCALL(py, fetch_op, py_fetch_op_doc),
	PY_FASTCALL(window, flush, flush_doc),
	PY_FASTCALL(py, put_many, py_put_many_doc),
	PY_FASTCALL(py, get_many, py_get_many_doc),
	PY_FASTCALL(py, fetch_add_many, py_fetch_add_many_doc),
	PY_FASTCALL(py, accumulate_many, py_accumulate_many_doc),
	PY_FASTCALL(py, fetch_op_many, py_fetch_op_many_doc),
	PY_FASTCALL(py, put_notify, py_put_notify_doc),
	PY_FASTCALL(py, wait_notify, py_wait_notify_doc),
	PY_FASTCALL(py, test_notify, py_test_notify_doc),
	{"_bind", (PyCFunction)window_bind, METH_VARARGS, bind_doc},
	{"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
	 "Window[numpy.float64]: for annotations, as numpy.ndarray has it."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef window_getters[] = {
	{"numba", (getter)py_numba, NULL,
	 "The window as an integer, for the functions of `rmaext.jit`. Once "
	 "the\n"
	 "window is closed, or gone, they return the code of ClosedError.",
	 NULL},
	{"_closed", (getter)window_get_closed, (setter)window_set_closed, NULL,
	 NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject py_window_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Window",
	.tp_doc = "The operations of rmaext.Window.",
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
