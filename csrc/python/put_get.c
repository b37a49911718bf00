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

enum py_outcome py_try_put(struct py_call *c)
{
	struct py_window *w = c->w;
	struct py_transfer r = {
		.it = {.kind = RMAEXT_PUT, .rank = c->rank},
		.name = "put",
		.buffer = {c->got[0], Py_None},
	};
	enum py_outcome done;
	struct py_origin o;

	if (!py_is_open(w) || !py_to_bytes(w, c->index, &r.it.offset) ||
	    !py_origin_take(w, c->got[0], NPY_MAX_INTP, &o))
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

PY_METHOD(window, put, py_try_put);

/* Gets what is at the place into an array, which it takes. */
static enum py_outcome get_into(struct py_call *c, PyArrayObject *out)
{
	struct py_transfer r = {
		.it = {.kind = RMAEXT_GET,
		       .rank = c->rank,
		       .result = PyArray_DATA(out),
		       .count = c->w->it.unit * (uint64_t)PyArray_SIZE(out)},
		.name = "get",
		.buffer = {(PyObject *)out, Py_None},
	};
	enum py_outcome done = PY_DECLINED;

	if (py_is_open(c->w) && py_to_bytes(c->w, c->index, &r.it.offset))
		done = transfer_move(c->w, &r);
	if (done == PY_DONE)
		c->result = (PyObject *)out;
	else
		Py_DECREF(out);
	return done;
}

enum py_outcome py_try_get(struct py_call *c)
{
	PyArrayObject *out = (PyArrayObject *)c->got[3];
	const struct py_window *w = c->w;
	int64_t count = c->count;

	if (out && (PyObject *)out != Py_None) {
		if (!py_is_plain_result(w, (PyObject *)out) ||
		    (count >= 0 && count != PyArray_SIZE(out)))
			return PY_DECLINED;
		return get_into(c, (PyArrayObject *)Py_NewRef((PyObject *)out));
	}
	/* the rest of an array is not that of all */
	if (!py_is_open(w) || !py_is_rank(w, c->rank) ||
	    (count < 0 && w != c->self))
		return PY_DECLINED;
	if (count < 0)
		count = (int64_t)(rmx_target_of(w->it.window, c->rank)->size /
				  w->it.unit) -
			c->index;
	if (count < 0 || !py_could_get(w, c->rank, c->index, count))
		return PY_DECLINED;
	out = py_new_array(w, 1, &(npy_intp){count});
	return out ? get_into(c, out) : PY_FAILED;
}

PY_METHOD(window, get, py_try_get);

static enum py_outcome try_flush(struct py_call *c)
{
	int64_t rank = -1;

	if (c->got[1]) /* persist */
		return PY_DECLINED;
	if (c->got[0] && c->got[0] != Py_None && !py_to_index(c->got[0], &rank))
		return PY_DECLINED;
	return py_flush(c->self, rank);
}

PY_METHOD(window, flush, try_flush);
