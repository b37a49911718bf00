/* SPDX-License-Identifier: BSD-3-Clause */
/* load and store: an update that only reads, and one that only writes. */
#include "python/cmethods.h"

const char py_load_doc[] = PyDoc_STR(
	"load($self, /, rank, offset=0, count=None)\n--\n\n"
	"Read elements of a rank's window, atomically each.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"count : int, optional\n"
	"    Elements; by default one, as a scalar.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"NumPy scalar or numpy.ndarray\n"
	"    The element; with `count` an array of so many.\n"
	"\n"
	"Raises\n"
	"------\n"
	"Unsupported\n"
	"    The dtype has no updates.\n"
	"AlignmentError\n"
	"    The place is not aligned as `accumulate` needs it.\n"
	"BoundsError, AccessError, TypeError, ValueError\n"
	"    Before anything is sent.\n"
	"RmaTimeout, PeerLostError\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking. It is `fetch_op` with 'no_op': an element is never\n"
	"seen half written by a `store` or another update, as a `get` may see\n"
	"it. Loads, stores and the updates that return values are "
	"sequentially\n"
	"consistent: all ranks see them in one order, in which each rank's "
	"own\n"
	"stand as its program has them. What a rank had flushed before it "
	"stored\n"
	"a value is there for who has loaded that. Corresponds to\n"
	"MPI_Fetch_and_op with MPI_NO_OP and MPI_Win_flush, and to\n"
	"shmem_atomic_fetch.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.store(3.0, rank=0, offset=4)\n"
	">>> win.load(0, 4)\n"
	"np.float64(3.0)\n"
	">>> win.load(0, 3, count=2)\n"
	"array([0., 3.])");

static enum py_outcome load_try(void *self, struct py_call *c)
{
	static const struct py_update load = {
		.call = "load",
		.op = RMAEXT_NO_OP,
		.result = PY_SCALAR,
	};
	struct py_window *w = self;
	int64_t rank, index;
	PyObject *unread;

	if ((c->got[2] && c->got[2] != Py_None) ||
	    !py_find_place(&w, c->got[0], c->got[1], &rank, &index) ||
	    !py_is_open(w))
		return PY_DECLINED;
	unread = w->it.type == RMAEXT_BOOL ? Py_False : py_names.zero;
	return py_update(w, &load, unread, rank, index, &c->result);
}

PY_METHOD(py_load, load_try, .slow = &py_names.load, .required = 1, .given = 3,
	  .names = {&py_names.rank, &py_names.offset, &py_names.count});

const char py_store_doc[] = PyDoc_STR(
	"store($self, /, value, rank, offset=0)\n--\n\n"
	"Write elements of a rank's window, atomically each.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"value : array_like\n"
	"    Of the window's dtype, any shape; its elements go to consecutive\n"
	"    ones of the target in C order.\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"\n"
	"Raises\n"
	"------\n"
	"What `load` raises, and OverflowError. After RmaTimeout and\n"
	"PeerLostError it may have been applied, or may be applied yet.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking: the value is in the target's memory when it "
	"returns,\n"
	"which `accumulate` with 'replace' leaves to a flush. `load` says how\n"
	"both are ordered. The window needs no right to be read. Corresponds\n"
	"to MPI_Accumulate with MPI_REPLACE and MPI_Win_flush, and to\n"
	"shmem_atomic_set and shmem_quiet.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.store([1.0, 2.0], rank=0, offset=4)\n"
	">>> win.local[3:7]\n"
	"array([0., 1., 2., 0.])");

static enum py_outcome store_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	struct py_update store = {
		.call = "store",
		.op = RMAEXT_REPLACE,
		.result = PY_NOTHING,
	};
	PyObject *old = NULL;
	enum py_outcome done;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index) ||
	    !py_is_open(w))
		return PY_DECLINED;
	/* the previous values are the answer that it has been applied */
	if (!py_rank_is_direct(w, rank))
		store.result = PY_SCALAR_OR_ARRAY;
	done = py_update(w, &store, c->got[0], rank, index, &old);
	Py_XDECREF(old);
	return done;
}

PY_METHOD(py_store, store_try, .slow = &py_names.store, .required = 2,
	  .given = 3,
	  .names = {&py_names.value, &py_names.rank, &py_names.offset});
