/* SPDX-License-Identifier: BSD-3-Clause */
/* The type that rmaext.Window inherits from. */
#include "python/hot.h"

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
	"Local. Complete at the target after `flush`; corresponds to MPI_Put.");

static PyObject *window_put(struct hot_window *w, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {
		&hot_names.origin, &hot_names.rank, &hot_names.offset};
	PyObject *got[3] = {NULL};
	enum hot_outcome done = HOT_ODD;
	int64_t rank, index;

	if (hot_take(got, wanted, 3, args, n, keywords) && got[0] &&
	    hot_to_place(got[1], got[2], &rank, &index))
		done = hot_put(w, got[0], rank, index);
	if (done == HOT_ODD)
		return hot_decide(w, hot_names.put, args, n, keywords);
	return done == HOT_DONE ? Py_NewRef(Py_None) : NULL;
}

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
	"Local, blocking; corresponds to MPI_Get and MPI_Win_flush.");

static PyObject *window_get(struct hot_window *w, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {
		&hot_names.rank, &hot_names.offset, &hot_names.count,
		&hot_names.out};
	PyObject *got[4] = {NULL}, *out = NULL;
	int64_t rank, index, count = -1;
	enum hot_outcome done = HOT_ODD;

	if (!hot_take(got, wanted, 4, args, n, keywords) ||
	    !hot_to_place(got[0], got[1], &rank, &index))
		goto odd;
	if (got[2] && got[2] != Py_None && !hot_to_index(got[2], &count))
		goto odd;
	if (got[3] && got[3] != Py_None) {
		if (!hot_is_plain_result(w, got[3]) ||
		    (count >= 0 &&
		     count != PyArray_SIZE((PyArrayObject *)got[3])))
			goto odd;
		out = Py_NewRef(got[3]);
	} else {
		if ((count < 0 && !hot_rest(w, rank, index, &count)) ||
		    !hot_could_get(w, rank, index, count))
			goto odd;
		out = (PyObject *)hot_new_array(w, 1, &(npy_intp){count});
		if (!out)
			return NULL;
	}
	done = hot_get(w, (PyArrayObject *)out, rank, index);
	if (done == HOT_DONE)
		return out;
	Py_DECREF(out);
odd:
	return done == HOT_ODD ? hot_decide(w, hot_names.get, args, n, keywords)
			       : NULL;
}

PyDoc_STRVAR(
	fetch_add_doc,
	"fetch_add($self, /, value, rank, offset=0)\n--\n\n"
	"Add to elements of a rank's window, atomically each.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"value : scalar or array\n"
	"    Of the window's dtype.\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"NumPy scalar or numpy.ndarray\n"
	"    The previous values, in the shape of `value`.\n"
	"\n"
	"Raises\n"
	"------\n"
	"Unsupported\n"
	"    There is no sum of this dtype.\n"
	"AlignmentError\n"
	"    The place is not aligned as `accumulate` needs it.\n"
	"BoundsError, AccessError, TypeError, OverflowError\n"
	"    As `put`.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Fetch_and_op with MPI_SUM and\n"
	"MPI_Win_flush. It is `get_accumulate` of a sum; what `accumulate` "
	"says\n"
	"of updates holds here too.");

static PyObject *window_fetch_add(struct hot_window *w, PyObject *const *args,
				  Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {
		&hot_names.value, &hot_names.rank, &hot_names.offset};
	PyObject *got[3] = {NULL}, *old = NULL;
	enum hot_outcome done = HOT_ODD;
	int64_t rank, index;

	if (hot_take(got, wanted, 3, args, n, keywords) && got[0] &&
	    hot_to_place(got[1], got[2], &rank, &index))
		done = hot_update(w, &hot_fetch_add, got[0], rank, index, &old);
	if (done == HOT_ODD)
		return hot_decide(w, hot_names.fetch_add, args, n, keywords);
	return old;
}

PyDoc_STRVAR(
	compare_and_swap_doc,
	"compare_and_swap($self, /, compare, value, rank, offset=0)\n"
	"--\n\n"
	"Replace elements that equal `compare` by `value`, atomically each.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"compare, value : scalar or array\n"
	"    Of the window's dtype, in one shape. Floats are compared by "
	"their\n"
	"    bits: -0.0 is not 0.0, and a NaN equals itself. Padding does not\n"
	"    count.\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"NumPy scalar or numpy.ndarray\n"
	"    The previous values: those that equal `compare` were replaced.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Compare_and_swap and\n"
	"MPI_Win_flush. Raises what `fetch_add` raises, and ValueError for\n"
	"different shapes.");

static PyObject *window_compare_and_swap(struct hot_window *w,
					 PyObject *const *args, Py_ssize_t n,
					 PyObject *keywords)
{
	static PyObject *const *const wanted[] = {
		&hot_names.compare, &hot_names.value, &hot_names.rank,
		&hot_names.offset};
	PyObject *got[4] = {NULL}, *old = NULL;
	enum hot_outcome done = HOT_ODD;
	int64_t rank, index;

	if (hot_take(got, wanted, 4, args, n, keywords) && got[0] && got[1] &&
	    hot_to_place(got[2], got[3], &rank, &index))
		done = hot_swap(w, got[0], got[1], rank, index, &old);
	if (done == HOT_ODD)
		return hot_decide(w, hot_names.compare_and_swap, args, n,
				  keywords);
	return old;
}

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
	"Writing to a file has no time limit while the target lives.");

static PyObject *window_flush(struct hot_window *w, PyObject *const *args,
			      Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&hot_names.rank};
	PyObject *got[1] = {NULL};
	enum hot_outcome done = HOT_ODD;
	int64_t rank = -1;

	if (hot_take(got, wanted, 1, args, n, keywords) &&
	    (!got[0] || got[0] == Py_None || hot_to_index(got[0], &rank)))
		done = hot_flush(w, rank);
	if (done == HOT_ODD)
		return hot_decide(w, hot_names.flush, args, n, keywords);
	return done == HOT_DONE ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(bind_doc,
	     "_bind($self, handle, address, dtype, atomic_type, fabric, /)\n"
	     "--\n\n"
	     "Take over the C window at an address, which `handle` keeps.");

static PyObject *window_bind(struct hot_window *w, PyObject *args)
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
		PyErr_SetString(PyExc_ValueError, "bound already");
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

static PyObject *window_get_closed(struct hot_window *w, void *closure)
{
	(void)closure;
	return PyBool_FromLong(w->it.closed);
}

static int window_set_closed(struct hot_window *w, PyObject *value,
			     void *closure)
{
	(void)closure;
	if (!value || !PyBool_Check(value)) {
		PyErr_SetString(PyExc_TypeError, "_closed is a bool");
		return -1;
	}
	w->it.closed = value == Py_True;
	if (w->it.closed)
		hot_numba_close(w);
	return 0;
}

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	struct hot_window *w = (struct hot_window *)type->tp_alloc(type, 0);

	(void)args;
	(void)keys;
	if (w)
		w->it.closed = 1; /* until it is whole */
	return (PyObject *)w;
}

static int window_traverse(struct hot_window *w, visitproc visit, void *arg)
{
	Py_VISIT(w->dtype);
	Py_VISIT(w->handle);
	Py_VISIT(w->fabric);
	Py_VISIT(w->in_flight);
	Py_VISIT(w->orphans);
	Py_VISIT(w->know);
	return 0;
}

static int window_clear(struct hot_window *w)
{
	hot_numba_close(w);
	w->it.window = NULL;
	Py_CLEAR(w->dtype);
	Py_CLEAR(w->handle);
	Py_CLEAR(w->fabric);
	Py_CLEAR(w->in_flight);
	Py_CLEAR(w->orphans);
	Py_CLEAR(w->know);
	return 0;
}

static void window_dealloc(struct hot_window *w)
{
	PyObject_GC_UnTrack(w);
	window_clear(w);
	Py_TYPE(w)->tp_free(w);
}

static PyMethodDef window_methods[] = {
	HOT_FAST(window, put, put_doc),
	HOT_FAST(window, get, get_doc),
	HOT_FAST(window, fetch_add, fetch_add_doc),
	HOT_FAST(window, compare_and_swap, compare_and_swap_doc),
	HOT_FAST(hot, accumulate, hot_accumulate_doc),
	HOT_FAST(hot, get_accumulate, hot_get_accumulate_doc),
	HOT_FAST(hot, fetch_op, hot_fetch_op_doc),
	HOT_FAST(window, flush, flush_doc),
	HOT_FAST(hot, put_many, hot_put_many_doc),
	HOT_FAST(hot, get_many, hot_get_many_doc),
	HOT_FAST(hot, fetch_add_many, hot_fetch_add_many_doc),
	HOT_FAST(hot, accumulate_many, hot_accumulate_many_doc),
	HOT_FAST(hot, fetch_op_many, hot_fetch_op_many_doc),
	HOT_FAST(hot, put_notify, hot_put_notify_doc),
	HOT_FAST(hot, wait_notify, hot_wait_notify_doc),
	HOT_FAST(hot, test_notify, hot_test_notify_doc),
	{"_bind", (PyCFunction)window_bind, METH_VARARGS, bind_doc},
	{"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
	 "Window[numpy.float64]: for annotations, as numpy.ndarray has it."},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef window_getters[] = {
	{"numba", (getter)hot_numba, NULL,
	 "The window as an integer, for the functions of `rmaext.jit`. Once "
	 "the\n"
	 "window is closed, or gone, they return the code of ClosedError.",
	 NULL},
	{"_closed", (getter)window_get_closed, (setter)window_set_closed, NULL,
	 NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject hot_window_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext._native.hot.Window",
	.tp_doc = "The operations of rmaext.Window.",
	.tp_basicsize = sizeof(struct hot_window),
	.tp_flags =
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_new = window_new,
	.tp_dealloc = (destructor)window_dealloc,
	.tp_traverse = (traverseproc)window_traverse,
	.tp_clear = (inquiry)window_clear,
	.tp_methods = window_methods,
	.tp_getset = window_getters,
	.tp_as_mapping = &hot_index_methods,
};
