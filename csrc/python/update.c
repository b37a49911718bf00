/* SPDX-License-Identifier: BSD-3-Clause */
/* accumulate, get_accumulate and fetch_op: their arguments and docstrings. */
#include "python/hot.h"

const char hot_accumulate_doc[] = PyDoc_STR(
	"accumulate($self, /, origin, rank, offset=0, op='sum')\n--\n\n"
	"Combine elements of a rank's window with others, atomically each.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"origin : array or scalar\n"
	"    Of the window's dtype, any shape; its elements meet consecutive\n"
	"    ones of the target in C order. It may be reused when the call\n"
	"    returns.\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"op : str or mpi4py.MPI.Op\n"
	"    'sum', 'prod', 'min', 'max': numbers and bool, complex ones only\n"
	"    the first two; 'land', 'lor', 'lxor': the same and all complex, "
	"they\n"
	"    give 0 or 1; 'band', 'bor', 'bxor': integers and bool; "
	"'minloc',\n"
	"    'maxloc': pairs; 'replace', 'no_op': all of these.\n"
	"\n"
	"Raises\n"
	"------\n"
	"Unsupported\n"
	"    There is no such operation on this dtype.\n"
	"AlignmentError\n"
	"    The place is not aligned: to the item size up to 8 bytes, else "
	"as\n"
	"    C aligns the type.\n"
	"BoundsError, AccessError, TypeError, OverflowError, ValueError\n"
	"    Before anything is sent.\n"
	"RmaTimeout, PeerLostError\n"
	"    Here or in the next `flush`.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local. Complete at the target after `flush`; corresponds to\n"
	"MPI_Accumulate. Updates of one rank to one place are applied in "
	"their\n"
	"order. All updates of a window, of whatever size and route, and the\n"
	"target's own, are atomic against each other; not against `put`, nor\n"
	"against updates through another window over the same memory.\n"
	"\n"
	"Dtypes: bool, integers, float16, float32, float64, longdouble,\n"
	"complex64, complex128, in native byte order, and pairs: two fields,\n"
	"value and index, aligned as in C (numpy.dtype(..., align=True)).\n"
	"Results are those of NumPy's ufuncs: integers wrap around, the "
	"minimum\n"
	"of a NaN and a number is NaN, the sum of bools is their or. Of pairs\n"
	"with equal values 'minloc' and 'maxloc' take the smaller index; a\n"
	"comparison with NaN is false.");

/* got: value or origin, rank, offset, op */
static PyObject *update_call(struct hot_window *w, struct hot_update *u,
			     PyObject *const *const *wanted, PyObject *slow,
			     PyObject *const *args, Py_ssize_t n,
			     PyObject *keywords)
{
	PyObject *got[4] = {NULL}, *old = NULL;
	enum hot_outcome done = HOT_ODD;
	int64_t rank, index;

	if (hot_take(got, wanted, 4, args, n, keywords) && got[0] &&
	    hot_to_place(got[1], got[2], &rank, &index) &&
	    hot_to_op(got[3], &u->op))
		done = hot_update(w, u, got[0], rank, index, &old);
	if (done == HOT_ODD)
		return hot_decide(w, slow, args, n, keywords);
	return done == HOT_DONE && !old ? Py_NewRef(Py_None) : old;
}

static PyObject *const *const with_origin[] = {
	&hot_names.origin, &hot_names.rank, &hot_names.offset, &hot_names.op};
static PyObject *const *const with_value[] = {&hot_names.value, &hot_names.rank,
					      &hot_names.offset, &hot_names.op};

PyObject *hot_accumulate(struct hot_window *w, PyObject *const *args,
			 Py_ssize_t n, PyObject *keywords)
{
	struct hot_update u = {.call = "accumulate", .result = HOT_NOTHING};

	return update_call(w, &u, with_origin, hot_names.accumulate, args, n,
			   keywords);
}

const char hot_get_accumulate_doc[] = PyDoc_STR(
	"get_accumulate($self, /, origin, rank, offset=0, op='sum')\n--\n\n"
	"Combine elements as `accumulate`, and return what was there before.\n"
	"\n"
	"Parameters are those of `accumulate`. With op='no_op' the values of\n"
	"`origin` do not matter, and the window needs no right to be written.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"numpy.ndarray\n"
	"    The previous values, in the shape of `origin`.\n"
	"\n"
	"Raises\n"
	"------\n"
	"What `accumulate` raises. After RmaTimeout and PeerLostError it may\n"
	"have been applied, or may be applied yet.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Get_accumulate and "
	"MPI_Win_flush.\n"
	"It is atomic per element, not as a whole.");

PyObject *hot_get_accumulate(struct hot_window *w, PyObject *const *args,
			     Py_ssize_t n, PyObject *keywords)
{
	struct hot_update u = {.call = "get_accumulate", .result = HOT_ARRAY};

	return update_call(w, &u, with_origin, hot_names.get_accumulate, args,
			   n, keywords);
}

const char hot_fetch_op_doc[] = PyDoc_STR(
	"fetch_op($self, /, value, rank, offset=0, op='sum')\n--\n\n"
	"Combine one element as `accumulate`, and return what was there.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"value : scalar\n"
	"    Of the window's dtype, or an array of it without dimensions.\n"
	"rank, offset, op\n"
	"    As in `accumulate`. op='replace' swaps, 'no_op' reads.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"NumPy scalar\n"
	"    The previous value.\n"
	"\n"
	"Raises\n"
	"------\n"
	"What `get_accumulate` raises.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; corresponds to MPI_Fetch_and_op and MPI_Win_flush.");

PyObject *hot_fetch_op(struct hot_window *w, PyObject *const *args,
		       Py_ssize_t n, PyObject *keywords)
{
	struct hot_update u = {.call = "fetch_op", .result = HOT_SCALAR};

	return update_call(w, &u, with_value, hot_names.fetch_op, args, n,
			   keywords);
}
