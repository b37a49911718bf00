/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * put, get and flush of a window. Those that are short and by memory are done
 * at once, with the GIL; others release it, and may have to be waited for.
 */
#include "python/cmethods.h"

#define TURNS 2048u /* operations between calls of MPI: about 0.1 ms */

static char *target_memory(const struct py_window *w, int64_t rank,
			   uint64_t offset)
{
	return rmx_target_of(w->it.window, rank)->map + offset;
}

void py_count_turn(void)
{
	static unsigned int turns; /* guarded by the GIL */

	if (++turns % TURNS)
		return;
	Py_BEGIN_ALLOW_THREADS
	rmaext_mpi_glance();
	Py_END_ALLOW_THREADS
}

/* Carries out a put or get, which `r` describes. */
static enum py_outcome transfer_move(struct py_window *w,
				     const struct py_transfer *r)
{
	const bool put = r->kind == RMAEXT_PUT;
	const uint64_t len = r->count * w->it.unit;
	char *there;

	if (!py_target_allows(w, r->rank, r->offset, r->count,
			      put ? RMAEXT_WRITE : RMAEXT_READ))
		return PY_DECLINED;
	if (put && py_target_by_network(w, r->rank) &&
	    py_join(w, &(struct rmx_single){
			       .kind = RMX_MESSAGE_PUT,
			       .rank = r->rank,
			       .offset = r->offset,
			       .unit = len,
			       .value = r->source,
		       }))
		return PY_DONE;
	if (!py_target_is_direct(w, r->rank) || len > PY_GIL_BYTES)
		return py_transfer_run(w, r);
	there = target_memory(w, r->rank, r->offset);
	rmx_copy(put ? there : r->result, put ? r->source : there, len);
	rmx_count_direct(&w->it.window->tally, r->rank,
			 put ? RMAEXT_DID_PUT : RMAEXT_DID_GET, r->offset, len,
			 true);
	py_count_turn();
	return PY_DONE;
}

enum py_outcome py_put(struct py_window *w, PyObject *origin, int64_t rank,
		       int64_t index)
{
	struct py_transfer r = {
		.call = "put",
		.kind = RMAEXT_PUT,
		.rank = rank,
		.buffer = {Py_None, Py_None},
	};
	PyArrayObject *packed = NULL;
	enum py_outcome done;
	union py_cell cell;

	if (!py_is_open(w) || !py_to_bytes(w, index, &r.offset))
		return PY_DECLINED;
	if (py_is_plain(w, origin)) {
		r.source = PyArray_DATA((PyArrayObject *)origin);
		r.count = (uint64_t)PyArray_SIZE((PyArrayObject *)origin);
		r.buffer[0] = origin;
	} else if (py_pack(w, origin, &cell)) {
		/* so short a put is a copy when rmaext_start() returns */
		r.source = cell.bytes;
		r.count = 1;
	} else {
		packed = py_packed(w, origin, NPY_MAX_INTP);
		if (!packed)
			return PY_DECLINED;
		r.source = PyArray_DATA(packed);
		r.count = (uint64_t)PyArray_SIZE(packed);
		r.buffer[0] = (PyObject *)packed;
	}
	done = transfer_move(w, &r);
	Py_XDECREF(packed);
	return done;
}

enum py_outcome py_get(struct py_window *w, PyArrayObject *out, int64_t rank,
		       int64_t index)
{
	struct py_transfer r = {
		.call = "get",
		.kind = RMAEXT_GET,
		.rank = rank,
		.count = (uint64_t)PyArray_SIZE(out),
		.buffer = {(PyObject *)out, Py_None},
		.result = PyArray_DATA(out),
	};

	if (!py_is_open(w) || !py_to_bytes(w, index, &r.offset))
		return PY_DECLINED;
	return transfer_move(w, &r);
}

enum py_outcome py_move(struct py_window *w, bool put, PyObject *owner,
			void *data, uint64_t len, int64_t rank, uint64_t offset)
{
	const struct py_transfer r = {
		.call = put ? "put" : "get",
		.kind = put ? RMAEXT_PUT : RMAEXT_GET,
		.rank = rank,
		.offset = offset,
		.count = len,
		.buffer = {owner ? owner : Py_None, Py_None},
		.source = data,
		.result = data,
	};

	if (!owner && !py_rank_is_direct(w, rank))
		return PY_DECLINED;
	return transfer_move(w, &r);
}

bool py_rest(const struct py_window *w, int64_t rank, int64_t index,
	     int64_t *count_p)
{
	if (!py_is_open(w) || rank >= w->it.window->count)
		return false;
	*count_p = (int64_t)(rmx_target_of(w->it.window, rank)->size /
			     w->it.unit) -
		   index;
	return *count_p >= 0;
}

bool py_could_get(const struct py_window *w, int64_t rank, int64_t index,
		  int64_t count)
{
	uint64_t offset;

	return py_is_open(w) && py_to_bytes(w, index, &offset) &&
	       py_target_allows(w, rank, offset, (uint64_t)count, RMAEXT_READ);
}

enum py_outcome py_flush(struct py_window *w, int64_t rank)
{
	struct rmaext_window *it = w->it.window;
	struct rmaext_wait wait = {0};
	PyObject *result;
	int code;

	if (!py_is_open(w) || rank >= it->count)
		return PY_DECLINED;
	if ((rank >= 0 || !it->fabric || it->count <= PY_GIL_RANKS) &&
	    rmx_flushed(it, rank)) {
		py_count_turn();
		return PY_DONE;
	}
	wait.timeout = it->timeout;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_flush(it, rank, &wait);
	Py_END_ALLOW_THREADS
	if (!code)
		return PY_DONE;
	if (code == RMAEXT_PENDING)
		return PY_DECLINED;
	/* an error is reported once: Python's flush would not see it again */
	result = PyObject_CallMethod((PyObject *)w, "_flush_failed", "iL", code,
				     (long long)rank);
	Py_XDECREF(result);
	return PY_FAILED;
}

/* -- the methods */

const char py_put_doc[] = PyDoc_STR(
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
	"    what offers one (memoryview, array.array, `__array__`). Scalars,\n"
	"    tuples for records, and lists of them are taken if each is an\n"
	"    element of the dtype: `rmaext.elements` has the rule, which the\n"
	"    values of all calls follow.\n"
	"rank : int\n"
	"    Target; for MPI.PROC_NULL see `Window`.\n"
	"offset : int\n"
	"    Element of the target's window to begin at.\n"
	"\n"
	"Raises\n"
	"------\n"
	"BoundsError, AccessError, TypeError, ValueError, OverflowError\n"
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

static enum py_outcome try_put(void *self, struct py_call *c)
{
	struct py_window *w = self;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index))
		return PY_DECLINED;
	return py_put(w, c->got[0], rank, index);
}

PY_METHOD(py_window_put, try_put, .slow = &py_names.put, .required = 2,
	  .given = 3,
	  .names = {&py_names.origin, &py_names.rank, &py_names.offset});

const char py_get_doc[] = PyDoc_STR(
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
	"    `out`, or the new array: flat, also if the window has several\n"
	"    dimensions. `win[rank]` is a rank's whole, in its shape.\n"
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

enum py_outcome py_try_get(void *self, struct py_call *c)
{
	PyObject *wanted = c->got[2], *out = c->got[3];
	int64_t rank, index, count = -1;
	struct py_window *w = self;
	enum py_outcome done;

	if (!py_find_place(&w, c->got[0], c->got[1], &rank, &index) ||
	    (wanted && wanted != Py_None && !py_to_index(wanted, &count)))
		return PY_DECLINED;
	if (out && out != Py_None) {
		if (!py_is_plain_result(w, out) ||
		    (count >= 0 && count != PyArray_SIZE((PyArrayObject *)out)))
			return PY_DECLINED;
		Py_INCREF(out);
	} else {
		/* the rest of an array is not that of all */
		if ((count < 0 &&
		     (w != self || !py_rest(w, rank, index, &count))) ||
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

PY_METHOD(py_window_get, py_try_get, .slow = &py_names.get, .required = 1,
	  .given = 4,
	  .names = {&py_names.rank, &py_names.offset, &py_names.count,
		    &py_names.out});

const char py_flush_doc[] = PyDoc_STR(
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

static enum py_outcome try_flush(void *w, struct py_call *c)
{
	int64_t rank = -1;

	if (c->got[0] && c->got[0] != Py_None && !py_to_index(c->got[0], &rank))
		return PY_DECLINED;
	return py_flush(w, rank);
}

PY_METHOD(py_window_flush, try_flush, .slow = &py_names.flush, .given = 1,
	  .names = {&py_names.rank});
