/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The fast tier: Window's operations, prepared operations and registered
 * buffers as hand-written types. A call through cffi and Python's checks take
 * 1 us, these 0.1.
 *
 * They only know the plain case: an open window, integers, an array of the
 * window's dtype in one piece, nothing that would be refused. In any other they
 * call the Python method of the same name with an underscore in front, which
 * has the checks, the conversions and the words of all errors.
 *
 * This file is linked into the same shared object as cffi's rmaext._lib, so
 * there is one copy of csrc/. While the GIL is held, no other thread closes the
 * window; hence what is short enough to keep it needs no gate.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <math.h>
#include <stddef.h>

#include "internal.h"

#define KEEP_GIL ((uint64_t)64 << 10)	    /* bytes: 5 us */
#define KEEP_GIL_ATOMIC ((uint64_t)4 << 10) /* also; each costs ten copies */
#define KEEP_GIL_FLUSH 64		    /* ranks to look at */

struct window {
	PyObject_HEAD struct rmx_typed it;
	PyArray_Descr *dtype;
	PyObject *handle;    /* cffi's, which frees it.window */
	PyObject *fabric;    /* or None */
	PyObject *in_flight; /* fabric's; NULL if there is none */
	PyObject *orphans;   /* likewise */
};

/* What came of an attempt. */
enum outcome {
	FAILED = -1, /* a Python exception is set */
	ODD = 0,     /* nothing was done: the Python method decides */
	DONE = 1,
};

enum { BUFFERS = 3 };

/* One transfer that may take its time. */
struct request {
	enum rmx_kind kind;
	int64_t rank;
	uint64_t offset, count; /* bytes, elements */
	/* what C may use until the end: result, operand, compare; or None */
	PyObject *buffer[BUFFERS];
	const char *source; /* of a put */
};

static const char *const calls[] = {
	[RMX_PUT] = "put",
	[RMX_GET] = "get",
	[RMX_FETCH_ADD] = "fetch_add",
	[RMX_CSWAP] = "compare_and_swap",
};

/* Interned: arguments are found by their names' addresses. */
static struct {
	PyObject *origin, *rank, *offset, *count, *out, *value, *compare;
	PyObject *put, *get, *fetch_add, *compare_and_swap, *flush;
	PyObject *release, *reap, *zero;
} names;

/* cffi's ffi.new and ffi.cast */
static PyObject *ffi_new, *ffi_cast;

/* -- arguments -- */

/*
 * Sort arguments into slots. False if there are too many, or unknown ones:
 * then the Python method says so.
 */
static bool take(PyObject **slots, PyObject *const *const *wanted, int most,
		 PyObject *const *args, Py_ssize_t n, PyObject *keywords)
{
	Py_ssize_t more = keywords ? PyTuple_GET_SIZE(keywords) : 0;

	if (n > most)
		return false;
	for (Py_ssize_t i = 0; i < n; i++)
		slots[i] = args[i];
	for (Py_ssize_t i = 0; i < more; i++) {
		PyObject *name = PyTuple_GET_ITEM(keywords, i);
		int at = (int)n;

		while (at < most && *wanted[at] != name)
			at++;
		if (at == most)
			return false;
		slots[at] = args[n + i];
	}
	return true;
}

/* A non-negative integer, Python's or NumPy's, that 64 bits hold. */
static bool to_index(PyObject *it, int64_t *index_p)
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

static bool to_place(PyObject *rank, PyObject *offset, int64_t *rank_p,
		     int64_t *index_p)
{
	*index_p = 0;
	return rank && to_index(rank, rank_p) &&
	       (!offset || to_index(offset, index_p));
}

static bool to_bytes(const struct window *w, int64_t index, uint64_t *offset_p)
{
	return !__builtin_mul_overflow((uint64_t)index, w->it.unit, offset_p);
}

/* Else there may be no C window, and no dtype. */
static bool is_open(const struct window *w)
{
	return !w->it.closed && w->it.window;
}

/* Of the window's dtype, in one piece. Subclasses may have ideas of their own.
 */
static bool is_plain(const struct window *w, PyObject *it)
{
	PyArrayObject *array = (PyArrayObject *)it;

	return PyArray_CheckExact(it) && PyArray_IS_C_CONTIGUOUS(array) &&
	       (PyArray_DESCR(array) == w->dtype ||
		PyArray_EquivTypes(PyArray_DESCR(array), w->dtype));
}

static bool is_plain_result(const struct window *w, PyObject *it)
{
	return is_open(w) && is_plain(w, it) &&
	       PyArray_ISWRITEABLE((PyArrayObject *)it);
}

/* One element, with room for the largest. */
union cell {
	int8_t i1;
	int16_t i2;
	int32_t i4;
	int64_t i8;
	uint8_t u1;
	uint16_t u2;
	uint32_t u4;
	float f4;
	double f8;
	char bytes[16];
};

static bool pack_float(int type, double value, union cell *cell)
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

static bool pack_int(int type, PyObject *it, union cell *cell)
{
	int overflow;
	long long value = PyLong_AsLongLongAndOverflow(it, &overflow);

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
	return pack_float(type, (double)value, cell);
}

/* A number that fits the window's dtype, as one element of it. */
static bool pack(const struct window *w, PyObject *it, union cell *cell)
{
	/* a long double has padding, which would be that of our stack */
	if (w->it.type < 0 || w->it.type == RMAEXT_LONG_DOUBLE)
		return false;
	if (PyFloat_CheckExact(it))
		return pack_float(w->it.type, PyFloat_AS_DOUBLE(it), cell);
	if (PyLong_CheckExact(it))
		return pack_int(w->it.type, it, cell);
	if (Py_TYPE(it) != w->dtype->typeobj)
		return false;
	PyArray_ScalarAsCtype(it, cell);
	return true;
}

/* -- what may wait -- */

static PyArrayObject *new_array(const struct window *w, int ndim,
				const npy_intp *shape)
{
	Py_INCREF(w->dtype);
	return (PyArrayObject *)PyArray_NewFromDescr(
		&PyArray_Type, w->dtype, ndim, shape, NULL, NULL, 0, NULL);
}

static PyArrayObject *new_cell(const struct window *w, const union cell *cell)
{
	PyArrayObject *array = new_array(w, 0, NULL);

	if (array)
		memcpy(PyArray_DATA(array), cell, w->it.unit);
	return array;
}

static PyArrayObject *new_like(const struct window *w, PyArrayObject *it)
{
	return new_array(w, PyArray_NDIM(it), PyArray_DIMS(it));
}

static void *data_of(const struct request *r, int which)
{
	PyObject *it = r->buffer[which];

	return it == Py_None ? NULL : PyArray_DATA((PyArrayObject *)it);
}

/*
 * Enter an operation where Fabric.hold() does, with nothing in between at which
 * a signal handler could raise. NULL only if there is no memory left, and then
 * the buffers live for ever.
 */
static PyObject *keep(struct window *w, const struct request *r, rmaext_op *op)
{
	PyObject *pointer, *holder = NULL, *key = NULL, *entry = NULL;

	pointer = PyObject_CallFunction(ffi_cast, "sK", "rmaext_op *",
					(unsigned long long)(uintptr_t)op);
	if (pointer)
		holder = PyObject_CallFunction(ffi_new, "sO", "rmaext_op **",
					       pointer);
	if (holder)
		key = PyLong_FromVoidPtr(holder);
	if (key)
		entry = PyTuple_Pack(2 + BUFFERS, holder, w->handle,
				     r->buffer[0], r->buffer[1], r->buffer[2]);
	if (!entry || PyDict_SetItem(w->in_flight, key, entry)) {
		Py_CLEAR(holder);
		for (int i = 0; i < BUFFERS; i++)
			Py_INCREF(r->buffer[i]);
	}
	Py_XDECREF(entry);
	Py_XDECREF(key);
	Py_XDECREF(pointer);
	return holder;
}

static bool call_fabric(struct window *w, PyObject *name, PyObject *argument)
{
	PyObject *result =
		PyObject_CallMethodObjArgs(w->fabric, name, argument, NULL);

	Py_XDECREF(result);
	return result;
}

/*
 * Python waits on, or raises the error. The operation is released after that
 * in any case, also if a signal handler raises before Python's first line.
 */
static enum outcome go_on(struct window *w, const struct request *r, int code,
			  rmaext_op *op)
{
	PyObject *holder, *result, *type, *value, *trace;

	holder = op ? keep(w, r, op) : Py_NewRef(Py_None);
	if (!holder)
		return FAILED;
	result = PyObject_CallMethod((PyObject *)w, "_continue", "s(LLL)iO",
				     calls[r->kind], (long long)r->rank,
				     (long long)(r->offset / w->it.unit),
				     (long long)r->count, code, holder);
	Py_XDECREF(result);
	PyErr_Fetch(&type, &value, &trace);
	if (op && !call_fabric(w, names.release, holder)) {
		Py_XDECREF(type); /* Ctrl-C: the later exception counts */
		Py_XDECREF(value);
		Py_XDECREF(trace);
		result = NULL;
	} else {
		PyErr_Restore(type, value, trace);
	}
	Py_DECREF(holder);
	return result ? DONE : FAILED;
}

/* The caller has references to the buffers. */
static enum outcome run(struct window *w, const struct request *r)
{
	struct rmaext_window *it = w->it.window;
	const char *from = r->source;
	void *to = data_of(r, 0), *operand = data_of(r, 1);
	void *compare = data_of(r, 2);
	rmaext_op *op = NULL;
	int code = 0;

	Py_BEGIN_ALLOW_THREADS
	switch (r->kind) {
	case RMX_PUT:
		code = rmaext_put(it, r->rank, r->offset, from,
				  r->count * w->it.unit, &op);
		break;
	case RMX_GET:
		code = rmaext_get(it, r->rank, r->offset, to,
				  r->count * w->it.unit, &op);
		break;
	case RMX_FETCH_ADD:
		code = rmaext_fetch_add(it, r->rank, r->offset, w->it.type,
					operand, to, r->count, &op);
		break;
	case RMX_CSWAP:
		code = rmaext_compare_and_swap(it, r->rank, r->offset,
					       w->it.type, compare, operand, to,
					       r->count, &op);
		break;
	}
	Py_END_ALLOW_THREADS
	if (code)
		return go_on(w, r, code, op);
	/* of operations that were given up, some may have ended since */
	if (w->orphans && PyDict_GET_SIZE(w->orphans) &&
	    !call_fabric(w, names.reap, NULL))
		return FAILED;
	return DONE;
}

/* -- operations -- */

static bool is_direct(const struct window *w, int64_t rank)
{
	return w->it.window->targets[rank].route == RMAEXT_DIRECT;
}

static char *memory_of(const struct window *w, int64_t rank, uint64_t offset)
{
	return w->it.window->targets[rank].map + offset;
}

static bool allowed(const struct window *w, int64_t rank, uint64_t offset,
		    uint64_t count, int access)
{
	uint64_t len;

	return !__builtin_mul_overflow(count, w->it.unit, &len) &&
	       rmx_passes(w->it.window, rank, offset, len, access);
}

static enum outcome put_at(struct window *w, PyObject *origin, int64_t rank,
			   int64_t index)
{
	struct request r = {
		.kind = RMX_PUT,
		.rank = rank,
		.buffer = {Py_None, Py_None, Py_None},
	};
	union cell cell;

	if (!is_open(w) || !to_bytes(w, index, &r.offset))
		return ODD;
	if (is_plain(w, origin)) {
		r.source = PyArray_DATA((PyArrayObject *)origin);
		r.count = (uint64_t)PyArray_SIZE((PyArrayObject *)origin);
		r.buffer[0] = origin;
	} else if (pack(w, origin, &cell)) {
		/* C has a copy of so short a put when it returns */
		r.source = cell.bytes;
		r.count = 1;
	} else {
		return ODD;
	}
	if (!allowed(w, rank, r.offset, r.count, RMAEXT_WRITE))
		return ODD;
	if (!is_direct(w, rank) || r.count * w->it.unit > KEEP_GIL)
		return run(w, &r);
	rmx_copy(memory_of(w, rank, r.offset), r.source, r.count * w->it.unit);
	return DONE;
}

static enum outcome get_at(struct window *w, PyArrayObject *out, int64_t rank,
			   int64_t index)
{
	struct request r = {
		.kind = RMX_GET,
		.rank = rank,
		.count = (uint64_t)PyArray_SIZE(out),
		.buffer = {(PyObject *)out, Py_None, Py_None},
	};

	if (!is_open(w) || !to_bytes(w, index, &r.offset) ||
	    !allowed(w, rank, r.offset, r.count, RMAEXT_READ))
		return ODD;
	if (!is_direct(w, rank) || r.count * w->it.unit > KEEP_GIL)
		return run(w, &r);
	rmx_copy(PyArray_DATA(out), memory_of(w, rank, r.offset),
		 r.count * w->it.unit);
	return DONE;
}

/* Not given: the elements from index to the end. */
static bool rest(const struct window *w, int64_t rank, int64_t index,
		 int64_t *count_p)
{
	if (!is_open(w) || rank >= w->it.window->count)
		return false;
	*count_p = (int64_t)(w->it.window->targets[rank].size / w->it.unit) -
		   index;
	return *count_p >= 0;
}

static bool could_get(const struct window *w, int64_t rank, int64_t index,
		      int64_t count)
{
	uint64_t offset;

	return is_open(w) && to_bytes(w, index, &offset) &&
	       allowed(w, rank, offset, (uint64_t)count, RMAEXT_READ);
}

/* The usual: one element, on the direct route. */
static enum outcome fetch_add_cell(struct window *w, const union cell *operand,
				   int64_t rank, uint64_t offset,
				   PyObject **old_p)
{
	union cell old;

	if (!rmx_fetch_add_direct(w->it.window, rank, offset, w->it.type,
				  operand, &old, 1))
		return ODD;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? DONE : FAILED;
}

static enum outcome fetch_add_array(struct window *w, struct request *r,
				    PyArrayObject *operand, PyObject **old_p)
{
	PyArrayObject *old = new_like(w, operand);
	enum outcome done = DONE;

	if (!old)
		return FAILED;
	r->buffer[0] = (PyObject *)old;
	r->buffer[1] = (PyObject *)operand;
	if (!is_direct(w, r->rank) || r->count * w->it.unit > KEEP_GIL_ATOMIC)
		done = run(w, r);
	else if (!rmx_fetch_add_direct(w->it.window, r->rank, r->offset,
				       w->it.type, PyArray_DATA(operand),
				       PyArray_DATA(old), r->count))
		done = ODD;
	if (done == DONE)
		*old_p = PyArray_Return(old); /* takes the reference */
	else
		Py_DECREF(old);
	return done;
}

static enum outcome fetch_add_at(struct window *w, PyObject *value,
				 int64_t rank, int64_t index, PyObject **old_p)
{
	struct request r = {
		.kind = RMX_FETCH_ADD,
		.rank = rank,
		.count = 1,
		.buffer = {Py_None, Py_None, Py_None},
	};
	PyArrayObject *operand;
	enum outcome done;
	union cell cell;
	bool plain;

	if (!is_open(w) || w->it.type < 0 || !to_bytes(w, index, &r.offset))
		return ODD;
	plain = is_plain(w, value);
	if (plain)
		r.count = (uint64_t)PyArray_SIZE((PyArrayObject *)value);
	else if (!pack(w, value, &cell))
		return ODD;
	if (!allowed(w, rank, r.offset, r.count, RMAEXT_READ | RMAEXT_WRITE))
		return ODD;
	if (plain)
		return fetch_add_array(w, &r, (PyArrayObject *)value, old_p);
	if (is_direct(w, rank))
		return fetch_add_cell(w, &cell, rank, r.offset, old_p);
	operand = new_cell(w, &cell); /* the network may use it for long */
	if (!operand)
		return FAILED;
	done = fetch_add_array(w, &r, operand, old_p);
	Py_DECREF(operand);
	return done;
}

/* Scalars only. */
static enum outcome swap_at(struct window *w, PyObject *compare,
			    PyObject *value, int64_t rank, int64_t index,
			    PyObject **old_p)
{
	union cell old, expected, swap;
	uint64_t offset;

	if (!is_open(w) || !pack(w, compare, &expected) ||
	    !pack(w, value, &swap) || !to_bytes(w, index, &offset) ||
	    !rmx_swap_direct(w->it.window, rank, offset, w->it.type, &expected,
			     &swap, &old))
		return ODD;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? DONE : FAILED;
}

static enum outcome flush_at(struct window *w, int64_t rank)
{
	struct rmaext_window *it = w->it.window;
	struct rmaext_wait wait = {0};
	PyObject *result;
	int code;

	if (!is_open(w) || rank >= it->count)
		return ODD;
	if ((rank >= 0 || !it->fabric || it->count <= KEEP_GIL_FLUSH) &&
	    rmx_flushed(it, rank))
		return DONE;
	wait.timeout = it->timeout;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_flush(it, rank, &wait);
	Py_END_ALLOW_THREADS
	if (!code)
		return DONE;
	if (code == RMAEXT_PENDING)
		return ODD;
	/* reported once: another flush would not see it */
	result = PyObject_CallMethod((PyObject *)w, "_flush_failed", "iL", code,
				     (long long)rank);
	Py_XDECREF(result);
	return FAILED;
}

/* -- Window -- */

/* Let the Python method decide. */
static PyObject *decide(struct window *w, PyObject *name, PyObject *const *args,
			Py_ssize_t n, PyObject *keywords)
{
	PyObject *method = PyObject_GetAttr((PyObject *)w, name), *result;

	if (!method)
		return NULL;
	result = PyObject_Vectorcall(method, args, (size_t)n, keywords);
	Py_DECREF(method);
	return result;
}

PyDoc_STRVAR(
	put_doc,
	"put($self, /, origin, rank, offset=0)\n--\n\n"
	"Write to a rank's window.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"origin : array or scalar\n"
	"    Of the window's dtype, any shape; its elements go to consecutive\n"
	"    positions in C order. It may be reused when the call returns.\n"
	"rank : int\n"
	"    Target; MPI.PROC_NULL is no operation.\n"
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

static PyObject *window_put(struct window *w, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&names.origin, &names.rank,
						  &names.offset};
	PyObject *got[3] = {NULL};
	enum outcome done = ODD;
	int64_t rank, index;

	if (take(got, wanted, 3, args, n, keywords) && got[0] &&
	    to_place(got[1], got[2], &rank, &index))
		done = put_at(w, got[0], rank, index);
	if (done == ODD)
		return decide(w, names.put, args, n, keywords);
	return done == DONE ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(
	get_doc,
	"get($self, /, rank, offset=0, count=None, out=None)\n--\n\n"
	"Read from a rank's window.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL nothing is read.\n"
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

static PyObject *window_get(struct window *w, PyObject *const *args,
			    Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&names.rank, &names.offset,
						  &names.count, &names.out};
	PyObject *got[4] = {NULL}, *out = NULL;
	int64_t rank, index, count = -1;
	enum outcome done = ODD;

	if (!take(got, wanted, 4, args, n, keywords) ||
	    !to_place(got[0], got[1], &rank, &index))
		goto odd;
	if (got[2] && got[2] != Py_None && !to_index(got[2], &count))
		goto odd;
	if (got[3] && got[3] != Py_None) {
		if (!is_plain_result(w, got[3]) ||
		    (count >= 0 &&
		     count != PyArray_SIZE((PyArrayObject *)got[3])))
			goto odd;
		out = Py_NewRef(got[3]);
	} else {
		if ((count < 0 && !rest(w, rank, index, &count)) ||
		    !could_get(w, rank, index, count))
			goto odd;
		out = (PyObject *)new_array(w, 1, &(npy_intp){count});
		if (!out)
			return NULL;
	}
	done = get_at(w, (PyArrayObject *)out, rank, index);
	if (done == DONE)
		return out;
	Py_DECREF(out);
odd:
	return done == ODD ? decide(w, names.get, args, n, keywords) : NULL;
}

PyDoc_STRVAR(
	fetch_add_doc,
	"fetch_add($self, /, value, rank, offset=0)\n--\n\n"
	"Add to elements of a rank's window, atomically each.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"value : scalar or array\n"
	"    Of the window's dtype: an integer or float, or complex64.\n"
	"rank : int\n"
	"    Target; MPI.PROC_NULL is no operation and returns None.\n"
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
	"    The provider has no such atomic on this dtype.\n"
	"AlignmentError\n"
	"    The target's memory is not aligned to the item size.\n"
	"BoundsError, AccessError, TypeError, OverflowError\n"
	"    As `put`.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Fetch_and_op with MPI_SUM and\n"
	"MPI_Win_flush. Integers wrap around.");

static PyObject *window_fetch_add(struct window *w, PyObject *const *args,
				  Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&names.value, &names.rank,
						  &names.offset};
	PyObject *got[3] = {NULL}, *old = NULL;
	enum outcome done = ODD;
	int64_t rank, index;

	if (take(got, wanted, 3, args, n, keywords) && got[0] &&
	    to_place(got[1], got[2], &rank, &index))
		done = fetch_add_at(w, got[0], rank, index, &old);
	if (done == ODD)
		return decide(w, names.fetch_add, args, n, keywords);
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
	"    bits: -0.0 is not 0.0, and a NaN equals itself.\n"
	"rank : int\n"
	"    Target; MPI.PROC_NULL is no operation and returns None.\n"
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

static PyObject *window_compare_and_swap(struct window *w,
					 PyObject *const *args, Py_ssize_t n,
					 PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&names.compare, &names.value,
						  &names.rank, &names.offset};
	PyObject *got[4] = {NULL}, *old = NULL;
	enum outcome done = ODD;
	int64_t rank, index;

	if (take(got, wanted, 4, args, n, keywords) && got[0] && got[1] &&
	    to_place(got[2], got[3], &rank, &index))
		done = swap_at(w, got[0], got[1], rank, index, &old);
	if (done == ODD)
		return decide(w, names.compare_and_swap, args, n, keywords);
	return old;
}

PyDoc_STRVAR(
	flush_doc,
	"flush($self, /, rank=None)\n--\n\n"
	"Wait until every put to a rank, or to all, is applied there.\n"
	"\n"
	"After it the data is in the target's memory, and visible to any rank\n"
	"that is told so. (`get` and the atomics are complete when they "
	"return.)\n"
	"\n"
	"Raises\n"
	"------\n"
	"RmaTimeout, PeerLostError\n"
	"    The fate of the operations in flight is unknown.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Win_flush and MPI_Win_flush_all.");

static PyObject *window_flush(struct window *w, PyObject *const *args,
			      Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&names.rank};
	PyObject *got[1] = {NULL};
	enum outcome done = ODD;
	int64_t rank = -1;

	if (take(got, wanted, 1, args, n, keywords) &&
	    (!got[0] || got[0] == Py_None || to_index(got[0], &rank)))
		done = flush_at(w, rank);
	if (done == ODD)
		return decide(w, names.flush, args, n, keywords);
	return done == DONE ? Py_NewRef(Py_None) : NULL;
}

PyDoc_STRVAR(bind_doc,
	     "_bind($self, handle, address, dtype, atomic_type, fabric, /)\n"
	     "--\n\n"
	     "Take over the C window at an address, which `handle` keeps.");

static PyObject *window_bind(struct window *w, PyObject *args)
{
	PyObject *handle, *type, *fabric, *in_flight = NULL, *orphans = NULL;
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
		if (!in_flight || !orphans) {
			Py_XDECREF(in_flight);
			Py_XDECREF(orphans);
			return NULL;
		}
	}
	w->it.window = (struct rmaext_window *)(uintptr_t)address;
	w->it.unit = (uint64_t)PyDataType_ELSIZE(dtype);
	w->it.type = number;
	w->dtype = (PyArray_Descr *)Py_NewRef((PyObject *)dtype);
	w->fabric = Py_NewRef(fabric);
	w->handle = Py_NewRef(handle);
	w->in_flight = in_flight;
	w->orphans = orphans;
	Py_RETURN_NONE;
}

static PyObject *window_numba(struct window *w, void *closure)
{
	(void)closure;
	return PyLong_FromVoidPtr(&w->it);
}

static PyObject *window_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	struct window *w = (struct window *)type->tp_alloc(type, 0);

	(void)args;
	(void)keys;
	if (w)
		w->it.closed = 1; /* until it is whole */
	return (PyObject *)w;
}

static int window_traverse(struct window *w, visitproc visit, void *arg)
{
	Py_VISIT(w->dtype);
	Py_VISIT(w->handle);
	Py_VISIT(w->fabric);
	Py_VISIT(w->in_flight);
	Py_VISIT(w->orphans);
	return 0;
}

static int window_clear(struct window *w)
{
	w->it.window = NULL;
	Py_CLEAR(w->dtype);
	Py_CLEAR(w->handle);
	Py_CLEAR(w->fabric);
	Py_CLEAR(w->in_flight);
	Py_CLEAR(w->orphans);
	return 0;
}

static void window_dealloc(struct window *w)
{
	PyObject_GC_UnTrack(w);
	window_clear(w);
	Py_TYPE(w)->tp_free(w);
}

#define FAST(type, name, doc)                               \
	{#name, (PyCFunction)(void (*)(void))type##_##name, \
	 METH_FASTCALL | METH_KEYWORDS, doc}

static PyMethodDef window_methods[] = {
	FAST(window, put, put_doc),
	FAST(window, get, get_doc),
	FAST(window, fetch_add, fetch_add_doc),
	FAST(window, compare_and_swap, compare_and_swap_doc),
	FAST(window, flush, flush_doc),
	{"_bind", (PyCFunction)window_bind, METH_VARARGS, bind_doc},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef window_members[] = {
	{"_closed", T_BOOL, offsetof(struct window, it.closed), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef window_getters[] = {
	{"numba", (getter)window_numba, NULL,
	 "The window as an integer, for the functions of `rmaext.jit`. It is\n"
	 "valid as long as the window object lives.",
	 NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject window_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext._hot.Window",
	.tp_doc = "The operations of rmaext.Window.",
	.tp_basicsize = sizeof(struct window),
	.tp_flags =
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_new = window_new,
	.tp_dealloc = (destructor)window_dealloc,
	.tp_traverse = (traverseproc)window_traverse,
	.tp_clear = (inquiry)window_clear,
	.tp_methods = window_methods,
	.tp_members = window_members,
	.tp_getset = window_getters,
};

/* -- registered buffers and prepared operations -- */

/*
 * An array that Python has checked, and where to put it or get it from. What
 * may have changed since, the array's own shape and memory included, is looked
 * at in each call: that costs less than the lock that would forbid it.
 */
struct bound {
	PyObject_HEAD struct window *window;
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
		return PyObject_CallMethodObjArgs(w, names.put, b->array, rank,
						  offset, NULL);
	case RMX_GET:
		return PyObject_CallMethodObjArgs(w, names.get, rank, offset,
						  Py_None, b->array, NULL);
	default:
		return PyObject_CallMethodObjArgs(w, names.fetch_add, b->array,
						  rank, offset, NULL);
	}
}

/* rank and offset are what Python gets if number and index will not do. */
static PyObject *bound_run(struct bound *b, enum rmx_kind kind, PyObject *rank,
			   PyObject *offset, int64_t number, int64_t index)
{
	PyObject *result = NULL;
	enum outcome done = ODD;

	switch (kind) {
	case RMX_PUT:
		done = put_at(b->window, b->array, number, index);
		result = Py_None;
		break;
	case RMX_GET:
		if (is_plain_result(b->window, b->array))
			done = get_at(b->window, (PyArrayObject *)b->array,
				      number, index);
		result = b->array;
		break;
	default:
		done = fetch_add_at(b->window, b->array, number, index,
				    &result);
		if (done == DONE)
			return result;
	}
	if (done == ODD)
		return bound_decide(b, kind, rank, offset);
	return done == DONE ? Py_NewRef(result) : NULL;
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
	if (!PyArg_ParseTuple(args, "iO!O!OO", &kind, &window_type, &window,
			      &PyArray_Type, &array, &rank, &offset))
		return NULL;
	b = (struct bound *)type->tp_alloc(type, 0);
	if (!b)
		return NULL;
	b->window = (struct window *)Py_NewRef(window);
	b->array = Py_NewRef(array);
	b->rank = Py_NewRef(rank);
	b->offset = Py_NewRef(offset);
	b->kind = (enum rmx_kind)kind;
	b->call = prepared_call;
	if (!to_place(rank, offset, &b->number, &b->index))
		b->number = RMX_NO_RANK;
	return (PyObject *)b;
}

static PyObject *buffer_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	PyObject *window, *array;
	struct bound *b;

	(void)keys;
	if (!PyArg_ParseTuple(args, "O!O!", &window_type, &window,
			      &PyArray_Type, &array))
		return NULL;
	b = (struct bound *)type->tp_alloc(type, 0);
	if (!b)
		return NULL;
	b->window = (struct window *)Py_NewRef(window);
	b->array = Py_NewRef(array);
	return (PyObject *)b;
}

static PyObject *buffer_run(struct bound *b, enum rmx_kind kind,
			    PyObject *const *args, Py_ssize_t n,
			    PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&names.rank, &names.offset};
	PyObject *got[2] = {NULL};
	int64_t rank, index;

	if (!take(got, wanted, 2, args, n, keywords) || !got[0]) {
		PyErr_Format(PyExc_TypeError,
			     "%s() takes a rank, and perhaps an offset",
			     calls[kind]);
		return NULL;
	}
	if (!to_place(got[0], got[1], &rank, &index))
		rank = RMX_NO_RANK;
	return bound_run(b, kind, got[0], got[1] ? got[1] : names.zero, rank,
			 index);
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
	return buffer_run(b, RMX_FETCH_ADD, args, n, keywords);
}

static PyMethodDef buffer_methods[] = {
	FAST(buffer, put, buffer_put_doc),
	FAST(buffer, get, buffer_get_doc),
	FAST(buffer, fetch_add, buffer_fetch_add_doc),
	{NULL, NULL, 0, NULL},
};

static PyMemberDef bound_members[] = {
	{"window", T_OBJECT, offsetof(struct bound, window), READONLY, NULL},
	{"array", T_OBJECT, offsetof(struct bound, array), READONLY, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyTypeObject buffer_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext.Buffer",
	.tp_doc = "An array that is put or got again and again, made by "
		  "`Window.register`.",
	.tp_basicsize = sizeof(struct bound),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_new = buffer_new,
	.tp_dealloc = (destructor)bound_dealloc,
	.tp_traverse = (traverseproc)bound_traverse,
	.tp_methods = buffer_methods,
	.tp_members = bound_members,
};

static PyTypeObject prepared_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext.Prepared",
	.tp_doc = "An operation with its arguments, made by "
		  "`Window.prepare_put` and its like:\na call carries it out.",
	.tp_basicsize = sizeof(struct bound),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
		    Py_TPFLAGS_HAVE_VECTORCALL,
	.tp_new = prepared_new,
	.tp_dealloc = (destructor)bound_dealloc,
	.tp_traverse = (traverseproc)bound_traverse,
	.tp_call = PyVectorcall_Call,
	.tp_vectorcall_offset = offsetof(struct bound, call),
	.tp_members = bound_members,
};

/* -- module -- */

static bool intern(PyObject **name_p, const char *text)
{
	*name_p = PyUnicode_InternFromString(text);
	return *name_p;
}

static bool intern_all(void)
{
	names.zero = PyLong_FromLong(0);
	return names.zero && intern(&names.origin, "origin") &&
	       intern(&names.rank, "rank") && intern(&names.offset, "offset") &&
	       intern(&names.count, "count") && intern(&names.out, "out") &&
	       intern(&names.value, "value") &&
	       intern(&names.compare, "compare") &&
	       intern(&names.put, "_put") && intern(&names.get, "_get") &&
	       intern(&names.fetch_add, "_fetch_add") &&
	       intern(&names.compare_and_swap, "_compare_and_swap") &&
	       intern(&names.flush, "_flush") &&
	       intern(&names.release, "release") && intern(&names.reap, "reap");
}

static bool find_ffi(void)
{
	PyObject *module = PyImport_ImportModule("rmaext._lib"), *ffi = NULL;

	if (module)
		ffi = PyObject_GetAttrString(module, "ffi");
	if (ffi) {
		ffi_new = PyObject_GetAttrString(ffi, "new");
		ffi_cast = PyObject_GetAttrString(ffi, "cast");
	}
	Py_XDECREF(ffi);
	Py_XDECREF(module);
	return ffi_new && ffi_cast;
}

static int module_exec(PyObject *module)
{
	if (PyArray_ImportNumPyAPI() || !intern_all() || !find_ffi() ||
	    PyModule_AddType(module, &window_type) ||
	    PyModule_AddType(module, &buffer_type) ||
	    PyModule_AddType(module, &prepared_type) ||
	    PyModule_AddIntConstant(module, "PUT", RMX_PUT) ||
	    PyModule_AddIntConstant(module, "GET", RMX_GET) ||
	    PyModule_AddIntConstant(module, "FETCH_ADD", RMX_FETCH_ADD))
		return -1;
	return 0;
}

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, (void *)module_exec},
	{0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "rmaext._hot",
	.m_doc = "Operations without Python in between.",
	.m_slots = slots,
};

PyMODINIT_FUNC PyInit__hot(void);

PyMODINIT_FUNC PyInit__hot(void)
{
	return PyModuleDef_Init(&definition);
}
