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
	const struct rmaext_call *c = &r->it;
	const bool put = c->kind == RMAEXT_PUT;
	char *there;

	if (!rmx_passes(w->it.window, c->rank, c->offset, c->count,
			put ? RMAEXT_WRITE : RMAEXT_READ))
		return PY_DECLINED;
	if (put && py_target_by_network(w, c->rank) && py_join(w, c))
		return PY_DONE;
	if (!py_target_is_direct(w, c->rank) || c->count > PY_GIL_BYTES)
		return py_transfer_run(w, r);
	there = target_memory(w, c->rank, c->offset);
	rmx_copy(put ? there : c->result, put ? c->operand : there, c->count);
	rmx_count_direct(&w->it.window->tally, c->rank,
			 put ? RMAEXT_DID_PUT : RMAEXT_DID_GET, c->offset,
			 c->count, true);
	py_count_turn();
	return PY_DONE;
}

enum py_outcome py_put(struct py_window *w, PyObject *origin, int64_t rank,
		       int64_t index)
{
	struct py_transfer r = {
		.it = {.kind = RMAEXT_PUT, .rank = rank},
		.name = "put",
		.buffer = {origin, Py_None},
	};
	enum py_outcome done;
	struct py_origin o;

	if (!py_is_open(w) || !py_to_bytes(w, index, &r.it.offset) ||
	    !py_origin_take(w, origin, NPY_MAX_INTP, &o))
		return PY_DECLINED;
	/* so short a put as a cell's is a copy when rmaext_start() returns */
	r.it.operand = o.data;
	r.it.count = o.bytes;
	if (!o.copy)
		return transfer_move(w, &r);
	r.buffer[0] = (PyObject *)o.copy;
	done = transfer_move(w, &r);
	Py_DECREF(o.copy);
	return done;
}

enum py_outcome py_get(struct py_window *w, PyArrayObject *out, int64_t rank,
		       int64_t index)
{
	struct py_transfer r = {
		.it = {.kind = RMAEXT_GET,
		       .rank = rank,
		       .result = PyArray_DATA(out),
		       .count = w->it.unit * (uint64_t)PyArray_SIZE(out)},
		.name = "get",
		.buffer = {(PyObject *)out, Py_None},
	};

	if (!py_is_open(w) || !py_to_bytes(w, index, &r.it.offset))
		return PY_DECLINED;
	return transfer_move(w, &r);
}

enum py_outcome py_move(struct py_window *w, bool put, PyObject *owner,
			void *data, uint64_t len, int64_t rank, uint64_t offset)
{
	const struct py_transfer r = {
		.it = {.kind = put ? RMAEXT_PUT : RMAEXT_GET,
		       .rank = rank,
		       .offset = offset,
		       .operand = data,
		       .result = data,
		       .count = len * w->it.unit},
		.name = put ? "put" : "get",
		.buffer = {owner ? owner : Py_None, Py_None},
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

static enum py_outcome try_put(void *self, struct py_call *c)
{
	struct py_window *w = self;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index))
		return PY_DECLINED;
	return py_put(w, c->got[0], rank, index);
}

PY_METHOD(window, put, try_put);

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

PY_METHOD(window, get, py_try_get);

static enum py_outcome try_flush(void *w, struct py_call *c)
{
	int64_t rank = -1;

	if (c->got[1]) /* persist */
		return PY_DECLINED;
	if (c->got[0] && c->got[0] != Py_None && !py_to_index(c->got[0], &rank))
		return PY_DECLINED;
	return py_flush(w, rank);
}

PY_METHOD(window, flush, try_flush);
