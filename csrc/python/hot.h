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
 * These files are linked into the same shared object as cffi's
 * rmaext._native._lib, so there is one copy of csrc/. While the GIL is held, no
 * other thread closes the window; hence what is short enough to keep it needs
 * no gate.
 */
#ifndef RMAEXT_HOT_H
#define RMAEXT_HOT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* NumPy's functions: a table that the module fetches, and the others share. */
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL hot_numpy
#ifndef HOT_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include "api/api.h"

struct hot_window {
	PyObject_HEAD struct rmx_typed it;
	struct hot_kept *kept; /* for numba; NULL: never asked for */
	PyArray_Descr *dtype;
	PyObject *handle;    /* cffi's, which frees it.window */
	PyObject *fabric;    /* or None */
	PyObject *in_flight; /* fabric's; NULL if there is none */
	PyObject *orphans;   /* likewise */
	PyObject *know;	     /* what is to be told of buffers; or NULL */
};

/* What came of an attempt. */
enum hot_outcome {
	HOT_FAILED = -1, /* a Python exception is set */
	HOT_ODD = 0,	 /* nothing was done: the Python method decides */
	HOT_DONE = 1,
};

/* One element, with room for the largest. */
union hot_cell {
	int8_t i1;
	int16_t i2;
	int32_t i4;
	int64_t i8;
	uint8_t u1;
	uint16_t u2;
	uint32_t u4;
	float f4;
	double f8;
	char bytes[RMX_MOST_UNIT];
};

/* module.c: interned; arguments are found by their names' addresses. */
extern struct hot_names {
	PyObject *origin, *rank, *offset, *count, *out, *value, *compare;
	PyObject *ranks, *offsets, *values, *op;
	PyObject *put, *get, *fetch_add, *compare_and_swap, *flush;
	PyObject *accumulate, *get_accumulate, *fetch_op;
	PyObject *put_many, *get_many, *fetch_add_many, *accumulate_many;
	PyObject *fetch_op_many;
	PyObject *slot, *timeout, *put_notify, *wait_notify, *test_notify;
	PyObject *getitem, *setitem, *shapes, *transfer;
	PyObject *release, *reap, *zero;
	PyObject *target_rank, *target, *target_disp, *result, *report;
	PyObject *Put, *Get, *Accumulate, *Get_accumulate;
	PyObject *Fetch_and_op, *Compare_and_swap, *Flush;
	PyObject *ops[RMX_OPS]; /* NULL: has no name */
} hot_names;

/* Else there may be no C window, and no dtype. */
static inline bool hot_is_open(const struct hot_window *w)
{
	return !w->it.closed && w->it.window;
}

static inline bool hot_to_bytes(const struct hot_window *w, int64_t index,
				uint64_t *offset_p)
{
	return !__builtin_mul_overflow((uint64_t)index, w->it.unit, offset_p);
}

/* Of the window's dtype, in one piece. Subclasses may have their own ideas. */
static inline bool hot_is_plain(const struct hot_window *w, PyObject *it)
{
	PyArrayObject *array = (PyArrayObject *)it;

	return PyArray_CheckExact(it) && PyArray_IS_C_CONTIGUOUS(array) &&
	       (PyArray_DESCR(array) == w->dtype ||
		PyArray_EquivTypes(PyArray_DESCR(array), w->dtype));
}

static inline bool hot_is_plain_result(const struct hot_window *w, PyObject *it)
{
	return hot_is_open(w) && hot_is_plain(w, it) &&
	       PyArray_ISWRITEABLE((PyArrayObject *)it);
}

/* args.c */
bool hot_take(PyObject **slots, PyObject *const *const *wanted, int most,
	      PyObject *const *args, Py_ssize_t n, PyObject *keywords);
bool hot_to_index(PyObject *it, int64_t *index_p);
bool hot_to_place(PyObject *rank, PyObject *offset, int64_t *rank_p,
		  int64_t *index_p);
bool hot_to_op(PyObject *it, int *op_p);
bool hot_pack(const struct hot_window *w, PyObject *it, union hot_cell *cell);
PyArrayObject *hot_new_array(const struct hot_window *w, int ndim,
			     const npy_intp *shape);
PyObject *hot_decide(void *self, PyObject *name, PyObject *const *args,
		     Py_ssize_t n, PyObject *keywords);

/* op.c: ranks and elements, not negative, checked here */
bool hot_find_ffi(void);
enum hot_outcome hot_put(struct hot_window *w, PyObject *origin, int64_t rank,
			 int64_t index);
enum hot_outcome hot_get(struct hot_window *w, PyArrayObject *out, int64_t rank,
			 int64_t index);
enum hot_outcome hot_move(struct hot_window *w, bool put, PyObject *owner,
			  void *data, uint64_t len, int64_t rank,
			  uint64_t offset);
bool hot_rest(const struct hot_window *w, int64_t rank, int64_t index,
	      int64_t *count_p);
bool hot_could_get(const struct hot_window *w, int64_t rank, int64_t index,
		   int64_t count);
/* An update with what it is called, what it returns, and of how many. */
struct hot_update {
	const char *call;
	int op;
	enum { HOT_NOTHING, HOT_ARRAY, HOT_SCALAR_OR_ARRAY, HOT_SCALAR } result;
};

enum hot_outcome hot_update(struct hot_window *w, const struct hot_update *u,
			    PyObject *operand, int64_t rank, int64_t index,
			    PyObject **old_p);
extern const struct hot_update hot_fetch_add;
enum hot_outcome hot_swap(struct hot_window *w, PyObject *compare,
			  PyObject *value, int64_t rank, int64_t index,
			  PyObject **old_p);
enum hot_outcome hot_flush(struct hot_window *w, int64_t rank);
/*
 * An operation is over that could not wait. A program may poll with those, and
 * wait so for a message that MPI has to bring: now and then MPI is moved.
 */
void hot_count_turn(void);

#define HOT_FAST(type, name, doc)                           \
	{#name, (PyCFunction)(void (*)(void))type##_##name, \
	 METH_FASTCALL | METH_KEYWORDS, doc}

typedef PyObject *hot_method(struct hot_window *w, PyObject *const *args,
			     Py_ssize_t n, PyObject *keywords);

/* many.c */
hot_method hot_put_many, hot_get_many, hot_fetch_add_many, hot_accumulate_many;
hot_method hot_fetch_op_many;
extern const char hot_put_many_doc[], hot_get_many_doc[];
extern const char hot_fetch_add_many_doc[], hot_accumulate_many_doc[];
extern const char hot_fetch_op_many_doc[];

/* update.c */
hot_method hot_accumulate, hot_get_accumulate, hot_fetch_op;
extern const char hot_accumulate_doc[], hot_get_accumulate_doc[];
extern const char hot_fetch_op_doc[];

/* notify.c */
hot_method hot_put_notify, hot_wait_notify, hot_test_notify;
extern const char hot_put_notify_doc[], hot_wait_notify_doc[];
extern const char hot_test_notify_doc[];

/* end.c */
extern PyMethodDef hot_functions[];

/* index.c */
extern PyMappingMethods hot_index_methods;

/* numba.c */
PyObject *hot_numba(struct hot_window *w, void *closure);
void hot_numba_close(struct hot_window *w);

/* derived.c: datatypes, and elements of one; bytes in a row if NULL */
struct hot_derived;
struct hot_side {
	const struct hot_derived *type;
	int64_t count;
	uint64_t bytes; /* of all */
};

const struct hot_derived *hot_find_derived(PyObject *object);
uint64_t hot_derived_bytes(const struct hot_derived *type);
int64_t hot_derived_extent(const struct hot_derived *type);
enum hot_outcome hot_move_derived(struct hot_window *w, bool put,
				  const struct hot_side *here, char *data,
				  const struct hot_side *there, int64_t rank,
				  uint64_t offset);
PyObject *hot_mpi_derived(PyObject *module, PyObject *args);
PyObject *hot_mpi_forget(PyObject *module, PyObject *ignored);
extern const char hot_mpi_derived_doc[], hot_mpi_forget_doc[];

/* grequest.c */
PyObject *hot_mpi_request_functions(PyObject *module, PyObject *ignored);
PyObject *hot_mpi_request_new(PyObject *module, PyObject *status);
PyObject *hot_mpi_request_end(PyObject *module, PyObject *args);
extern const char hot_mpi_request_functions_doc[], hot_mpi_request_new_doc[],
	hot_mpi_request_end_doc[];

/* compat.c */
extern PyMethodDef hot_compat_methods[];
bool hot_mpi_op(PyObject *object, int *op_p); /* NULL: the sum */
enum hot_outcome hot_mpi_move(struct hot_window *w, PyObject *units,
			      PyObject *buffer, PyObject *rank,
			      PyObject *target, bool put);
/* old: NULL, or what is to hold what was there; single: refuse but one element
 */
enum hot_outcome hot_mpi_update(struct hot_window *w, PyObject *units,
				PyObject *buffer, PyObject *old, PyObject *rank,
				PyObject *target, int op, bool single);
enum hot_outcome hot_mpi_swap(struct hot_window *w, PyObject *units,
			      PyObject *buffer, PyObject *wanted, PyObject *old,
			      PyObject *rank, PyObject *disp);

/* window.c, prepared.c, win.c */
extern PyTypeObject hot_window_type, hot_buffer_type, hot_prepared_type;
extern PyTypeObject hot_win_type;

#endif
