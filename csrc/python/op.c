/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * put, get, updates and flush of a window. Those that are short and by memory
 * are done at once, with the GIL; others release it, and may have to be waited
 * for.
 */
#include "python/cmethods.h"

/* What is done with the GIL held, at most. */
#define KEEP_GIL ((uint64_t)64 << 10)	    /* bytes copied: 5 us */
#define KEEP_GIL_ATOMIC ((uint64_t)4 << 10) /* bytes updated: also 5 us */
#define KEEP_GIL_FLUSH 64		    /* ranks flushed */
#define TURNS 2048u /* operations between calls of MPI: about 0.1 ms */

static PyArrayObject *array_of_cell(const struct py_window *w,
				    const union py_cell *cell)
{
	PyArrayObject *array = py_new_array(w, 0, NULL);

	if (array)
		memcpy(PyArray_DATA(array), cell, w->it.unit);
	return array;
}

static PyArrayObject *array_like(const struct py_window *w, PyArrayObject *it)
{
	return py_new_array(w, PyArray_NDIM(it), PyArray_DIMS(it));
}

static bool target_is_direct(const struct py_window *w, int64_t rank)
{
	return rmx_target_of(w->it.window, rank)->route == RMAEXT_DIRECT;
}

/* The same of a number that may be no rank. */
static bool rank_is_direct(const struct py_window *w, int64_t rank)
{
	return rank < w->it.window->count && target_is_direct(w, rank);
}

static char *target_memory(const struct py_window *w, int64_t rank,
			   uint64_t offset)
{
	return rmx_target_of(w->it.window, rank)->map + offset;
}

static bool target_allows(const struct py_window *w, int64_t rank,
			  uint64_t offset, uint64_t count, int access)
{
	uint64_t len;

	return !__builtin_mul_overflow(count, w->it.unit, &len) &&
	       rmx_passes(w->it.window, rank, offset, len, access);
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
	const bool put = r->kind == RMX_PUT;
	const uint64_t len = r->count * w->it.unit;
	char *there;

	if (!target_allows(w, r->rank, r->offset, r->count,
			   put ? RMAEXT_WRITE : RMAEXT_READ))
		return PY_DECLINED;
	if (!target_is_direct(w, r->rank) || len > KEEP_GIL)
		return py_transfer_run(w, r);
	there = target_memory(w, r->rank, r->offset);
	rmx_copy(put ? there : r->result, put ? r->source : there, len);
	py_count_turn();
	return PY_DONE;
}

enum py_outcome py_put(struct py_window *w, PyObject *origin, int64_t rank,
		       int64_t index)
{
	struct py_transfer r = {
		.call = "put",
		.kind = RMX_PUT,
		.rank = rank,
		.buffer = {Py_None, Py_None},
	};
	union py_cell cell;

	if (!py_is_open(w) || !py_to_bytes(w, index, &r.offset))
		return PY_DECLINED;
	if (py_is_plain(w, origin)) {
		r.source = PyArray_DATA((PyArrayObject *)origin);
		r.count = (uint64_t)PyArray_SIZE((PyArrayObject *)origin);
		r.buffer[0] = origin;
	} else if (py_pack(w, origin, &cell)) {
		/* so short a put is a copy when rmaext_put() returns */
		r.source = cell.bytes;
		r.count = 1;
	} else {
		return PY_DECLINED;
	}
	return transfer_move(w, &r);
}

enum py_outcome py_get(struct py_window *w, PyArrayObject *out, int64_t rank,
		       int64_t index)
{
	struct py_transfer r = {
		.call = "get",
		.kind = RMX_GET,
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
		.kind = put ? RMX_PUT : RMX_GET,
		.rank = rank,
		.offset = offset,
		.count = len,
		.buffer = {owner ? owner : Py_None, Py_None},
		.source = data,
		.result = data,
	};

	if (!owner && !rank_is_direct(w, rank))
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
	       target_allows(w, rank, offset, (uint64_t)count, RMAEXT_READ);
}

/* The usual update: one element, on the direct route. */
static enum py_outcome update_cell(struct py_window *w,
				   const struct py_update *u,
				   const union py_cell *operand, int64_t rank,
				   uint64_t offset, PyObject **old_p)
{
	union py_cell old;
	const struct rmx_update it = {
		.op = u->op,
		.type = w->it.type,
		.operand = operand,
		.result = u->result == PY_NOTHING ? NULL : &old,
		.count = 1,
	};

	if (!rmx_update_direct(w->it.window, rank, offset, &it))
		return PY_DECLINED;
	py_count_turn();
	if (u->result == PY_NOTHING)
		return PY_DONE;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? PY_DONE : PY_FAILED;
}

static enum py_outcome transfer_update(struct py_window *w,
				       struct py_transfer *r)
{
	const struct rmx_update it = {
		.op = r->op,
		.type = w->it.type,
		.operand = r->source,
		.result = r->result,
		.count = r->count,
	};

	if (target_is_direct(w, r->rank) &&
	    r->count * w->it.unit <= KEEP_GIL_ATOMIC)
		return rmx_update_direct(w->it.window, r->rank, r->offset, &it)
			       ? PY_DONE
			       : PY_DECLINED;
	if (!rmx_update_valid(r->op, w->it.type))
		return PY_DECLINED;
	return py_transfer_run(w, r);
}

static enum py_outcome transfer_fetch(struct py_window *w,
				      struct py_transfer *r,
				      PyArrayObject *like, bool scalar,
				      PyObject **old_p)
{
	PyArrayObject *old = array_like(w, like);
	enum py_outcome done;

	if (!old)
		return PY_FAILED;
	r->buffer[1] = (PyObject *)old;
	r->result = PyArray_DATA(old);
	done = transfer_update(w, r);
	if (done != PY_DONE) {
		Py_DECREF(old);
		return done;
	}
	/* PyArray_Return() takes the reference */
	*old_p = scalar ? PyArray_Return(old) : (PyObject *)old;
	return *old_p ? PY_DONE : PY_FAILED;
}

enum py_outcome py_update(struct py_window *w, const struct py_update *u,
			  PyObject *value, int64_t rank, int64_t index,
			  PyObject **old_p)
{
	const bool fetch = u->result != PY_NOTHING;
	struct py_transfer r = {
		.call = u->call,
		.kind = RMX_UPDATE,
		.op = u->op,
		.rank = rank,
		.count = 1,
		.buffer = {value, Py_None},
	};
	PyArrayObject *operand;
	enum py_outcome done;
	union py_cell cell;

	if (!py_is_open(w) || w->it.type < 0 ||
	    !py_to_bytes(w, index, &r.offset))
		return PY_DECLINED;
	if (py_is_plain(w, value)) {
		operand = (PyArrayObject *)Py_NewRef(value);
		r.count = (uint64_t)PyArray_SIZE(operand);
		if (u->result == PY_SCALAR && PyArray_NDIM(operand))
			goto odd;
	} else if (!py_pack(w, value, &cell)) {
		return PY_DECLINED;
	} else if (rank_is_direct(w, rank) && u->result != PY_ARRAY) {
		return update_cell(w, u, &cell, rank, r.offset, old_p);
	} else {
		operand = array_of_cell(w, &cell); /* C may use it for long */
		if (!operand)
			return PY_FAILED;
	}
	r.buffer[0] = (PyObject *)operand;
	r.source = PyArray_DATA(operand);
	if (!target_allows(w, rank, r.offset, r.count,
			   rmx_update_access(u->op, fetch)))
		goto odd;
	done = fetch ? transfer_fetch(w, &r, operand, u->result != PY_ARRAY,
				      old_p)
		     : transfer_update(w, &r);
	Py_DECREF(operand);
	return done;
odd:
	Py_DECREF(operand);
	return PY_DECLINED;
}

enum py_outcome py_swap(struct py_window *w, PyObject *compare, PyObject *value,
			int64_t rank, int64_t index, PyObject **old_p)
{
	union py_cell old, expected, swap;
	const struct rmx_update it = {
		.op = RMAEXT_CSWAP,
		.type = w->it.type,
		.operand = &swap,
		.compare = &expected,
		.result = &old,
		.count = 1,
	};
	uint64_t offset;

	if (!py_is_open(w) || !py_pack(w, compare, &expected) ||
	    !py_pack(w, value, &swap) || !py_to_bytes(w, index, &offset) ||
	    !rmx_update_direct(w->it.window, rank, offset, &it))
		return PY_DECLINED;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? PY_DONE : PY_FAILED;
}

enum py_outcome py_flush(struct py_window *w, int64_t rank)
{
	struct rmaext_window *it = w->it.window;
	struct rmaext_wait wait = {0};
	PyObject *result;
	int code;

	if (!py_is_open(w) || rank >= it->count)
		return PY_DECLINED;
	if ((rank >= 0 || !it->fabric || it->count <= KEEP_GIL_FLUSH) &&
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
