/* SPDX-License-Identifier: BSD-3-Clause */
/* put, get, the atomics and flush: at once by memory, or to be waited for. */
#include "python/hot.h"

#define KEEP_GIL ((uint64_t)64 << 10)	    /* bytes: 5 us */
#define KEEP_GIL_ATOMIC ((uint64_t)4 << 10) /* also; each costs ten copies */
#define KEEP_GIL_FLUSH 64		    /* ranks to look at */
#define TURNS 2048u			    /* operations: 0.1 ms or so */

enum { BUFFERS = 2 };

/* One transfer that may take its time. */
struct request {
	const char *call;
	enum rmx_kind kind;
	int op; /* of an update */
	int64_t rank;
	uint64_t offset, count;	   /* bytes, elements */
	PyObject *buffer[BUFFERS]; /* that C may use until the end; or None */
	const void *source;	   /* of a put, operand of an update */
	void *result;
};

/* cffi's ffi.new and ffi.cast */
static PyObject *ffi_new, *ffi_cast;

bool hot_find_ffi(void)
{
	PyObject *module = PyImport_ImportModule("rmaext._native._lib"),
		 *ffi = NULL;

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

/* -- what may wait -- */

static PyArrayObject *new_cell(const struct hot_window *w,
			       const union hot_cell *cell)
{
	PyArrayObject *array = hot_new_array(w, 0, NULL);

	if (array)
		memcpy(PyArray_DATA(array), cell, w->it.unit);
	return array;
}

static PyArrayObject *new_like(const struct hot_window *w, PyArrayObject *it)
{
	return hot_new_array(w, PyArray_NDIM(it), PyArray_DIMS(it));
}

/*
 * Enter an operation where Endpoint.hold() does, with nothing in between at
 * which a signal handler could raise. NULL only if there is no memory left, and
 * then the buffers live for ever. Without a fabric it only waits for a guard,
 * and the caller has the buffers.
 */
static PyObject *keep(struct hot_window *w, const struct request *r,
		      rmaext_op *op)
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
				     r->buffer[0], r->buffer[1]);
	if (!entry ||
	    (w->in_flight && PyDict_SetItem(w->in_flight, key, entry))) {
		Py_CLEAR(holder);
		for (int i = 0; i < BUFFERS; i++)
			Py_INCREF(r->buffer[i]);
	}
	Py_XDECREF(entry);
	Py_XDECREF(key);
	Py_XDECREF(pointer);
	return holder;
}

static bool call_fabric(struct hot_window *w, PyObject *name,
			PyObject *argument)
{
	PyObject *result =
		PyObject_CallMethodObjArgs(w->fabric, name, argument, NULL);

	Py_XDECREF(result);
	return result;
}

static bool release(struct hot_window *w, PyObject *holder, rmaext_op *op)
{
	return w->in_flight ? call_fabric(w, hot_names.release, holder)
			    : !rmaext_op_release(&op);
}

/*
 * Python waits on, or raises the error. The operation is released after that
 * in any case, also if a signal handler raises before Python's first line.
 */
static enum hot_outcome go_on(struct hot_window *w, const struct request *r,
			      int code, rmaext_op *op)
{
	PyObject *holder, *result, *type, *value, *trace;

	holder = op ? keep(w, r, op) : Py_NewRef(Py_None);
	if (!holder)
		return HOT_FAILED;
	result = PyObject_CallMethod((PyObject *)w, "_continue", "s(LLL)iO",
				     r->call, (long long)r->rank,
				     (long long)(r->offset / w->it.unit),
				     (long long)r->count, code, holder);
	Py_XDECREF(result);
	PyErr_Fetch(&type, &value, &trace);
	if (op && !release(w, holder, op)) {
		Py_XDECREF(type); /* Ctrl-C: the later exception counts */
		Py_XDECREF(value);
		Py_XDECREF(trace);
		result = NULL;
	} else {
		PyErr_Restore(type, value, trace);
	}
	Py_DECREF(holder);
	return result ? HOT_DONE : HOT_FAILED;
}

/* As Endpoint.hold() does. */
static bool announce(struct hot_window *w, const struct request *r)
{
	if (!w->know || r->count * w->it.unit <= RMX_COPY_MAX)
		return true;
	for (int i = 0; i < BUFFERS; i++) {
		PyObject *known = PyObject_CallOneArg(w->know, r->buffer[i]);

		if (!known)
			return false;
		Py_DECREF(known);
	}
	return true;
}

/*
 * The caller has references to the buffers; one more each, and NumPy's resize()
 * in another thread refuses to move them.
 */
static enum hot_outcome run(struct hot_window *w, const struct request *r)
{
	struct rmaext_window *it = w->it.window;
	enum hot_outcome done = HOT_DONE;
	rmaext_op *op = NULL;
	int code = 0;

	if (!announce(w, r))
		return HOT_FAILED;
	for (int i = 0; i < BUFFERS; i++)
		Py_INCREF(r->buffer[i]);
	Py_BEGIN_ALLOW_THREADS
	switch (r->kind) {
	case RMX_PUT:
		code = rmaext_put(it, r->rank, r->offset, r->source,
				  r->count * w->it.unit, &op);
		break;
	case RMX_GET:
		code = rmaext_get(it, r->rank, r->offset, r->result,
				  r->count * w->it.unit, &op);
		break;
	default:
		code = rmaext_update(it, r->rank, r->offset, r->op, w->it.type,
				     r->source, NULL, r->result, r->count, &op);
		break;
	}
	Py_END_ALLOW_THREADS
	if (code)
		done = go_on(w, r, code, op);
	for (int i = 0; i < BUFFERS; i++)
		Py_DECREF(r->buffer[i]);
	if (code)
		return done;
	/* of operations that were given up, some may have ended since */
	if (w->orphans && PyDict_GET_SIZE(w->orphans) &&
	    !call_fabric(w, hot_names.reap, NULL))
		return HOT_FAILED;
	return HOT_DONE;
}

/* -- operations -- */

static bool is_direct(const struct hot_window *w, int64_t rank)
{
	return rmx_target_of(w->it.window, rank)->route == RMAEXT_DIRECT;
}

/* Is there such a rank, reached so? */
static bool is_direct_rank(const struct hot_window *w, int64_t rank)
{
	return rank < w->it.window->count && is_direct(w, rank);
}

static char *memory_of(const struct hot_window *w, int64_t rank,
		       uint64_t offset)
{
	return rmx_target_of(w->it.window, rank)->map + offset;
}

static bool allowed(const struct hot_window *w, int64_t rank, uint64_t offset,
		    uint64_t count, int access)
{
	uint64_t len;

	return !__builtin_mul_overflow(count, w->it.unit, &len) &&
	       rmx_passes(w->it.window, rank, offset, len, access);
}

void hot_count_turn(void)
{
	static unsigned int turns; /* guarded by the GIL */

	if (++turns % TURNS)
		return;
	Py_BEGIN_ALLOW_THREADS
	rmaext_mpi_glance();
	Py_END_ALLOW_THREADS
}

/* A put or get, which `r` describes. */
static enum hot_outcome move(struct hot_window *w, const struct request *r)
{
	const bool put = r->kind == RMX_PUT;
	const uint64_t len = r->count * w->it.unit;
	char *there;

	if (!allowed(w, r->rank, r->offset, r->count,
		     put ? RMAEXT_WRITE : RMAEXT_READ))
		return HOT_ODD;
	if (!is_direct(w, r->rank) || len > KEEP_GIL)
		return run(w, r);
	there = memory_of(w, r->rank, r->offset);
	rmx_copy(put ? there : r->result, put ? r->source : there, len);
	hot_count_turn();
	return HOT_DONE;
}

enum hot_outcome hot_put(struct hot_window *w, PyObject *origin, int64_t rank,
			 int64_t index)
{
	struct request r = {
		.call = "put",
		.kind = RMX_PUT,
		.rank = rank,
		.buffer = {Py_None, Py_None},
	};
	union hot_cell cell;

	if (!hot_is_open(w) || !hot_to_bytes(w, index, &r.offset))
		return HOT_ODD;
	if (hot_is_plain(w, origin)) {
		r.source = PyArray_DATA((PyArrayObject *)origin);
		r.count = (uint64_t)PyArray_SIZE((PyArrayObject *)origin);
		r.buffer[0] = origin;
	} else if (hot_pack(w, origin, &cell)) {
		/* C has a copy of so short a put when it returns */
		r.source = cell.bytes;
		r.count = 1;
	} else {
		return HOT_ODD;
	}
	return move(w, &r);
}

enum hot_outcome hot_get(struct hot_window *w, PyArrayObject *out, int64_t rank,
			 int64_t index)
{
	struct request r = {
		.call = "get",
		.kind = RMX_GET,
		.rank = rank,
		.count = (uint64_t)PyArray_SIZE(out),
		.buffer = {(PyObject *)out, Py_None},
		.result = PyArray_DATA(out),
	};

	if (!hot_is_open(w) || !hot_to_bytes(w, index, &r.offset))
		return HOT_ODD;
	return move(w, &r);
}

/* Of a window of bytes. Without an owner that can be kept, by memory only. */
enum hot_outcome hot_move(struct hot_window *w, bool put, PyObject *owner,
			  void *data, uint64_t len, int64_t rank,
			  uint64_t offset)
{
	const struct request r = {
		.call = put ? "put" : "get",
		.kind = put ? RMX_PUT : RMX_GET,
		.rank = rank,
		.offset = offset,
		.count = len,
		.buffer = {owner ? owner : Py_None, Py_None},
		.source = data,
		.result = data,
	};

	if (!owner && !is_direct_rank(w, rank))
		return HOT_ODD;
	return move(w, &r);
}

/* Not given: the elements from index to the end. */
bool hot_rest(const struct hot_window *w, int64_t rank, int64_t index,
	      int64_t *count_p)
{
	if (!hot_is_open(w) || rank >= w->it.window->count)
		return false;
	*count_p = (int64_t)(rmx_target_of(w->it.window, rank)->size /
			     w->it.unit) -
		   index;
	return *count_p >= 0;
}

bool hot_could_get(const struct hot_window *w, int64_t rank, int64_t index,
		   int64_t count)
{
	uint64_t offset;

	return hot_is_open(w) && hot_to_bytes(w, index, &offset) &&
	       allowed(w, rank, offset, (uint64_t)count, RMAEXT_READ);
}

/* The usual: one element, on the direct route. */
static enum hot_outcome update_cell(struct hot_window *w,
				    const struct hot_update *u,
				    const union hot_cell *operand, int64_t rank,
				    uint64_t offset, PyObject **old_p)
{
	union hot_cell old;
	const struct rmx_update it = {
		.op = u->op,
		.type = w->it.type,
		.operand = operand,
		.result = u->result == HOT_NOTHING ? NULL : &old,
		.count = 1,
	};

	if (!rmx_update_direct(w->it.window, rank, offset, &it))
		return HOT_ODD;
	hot_count_turn();
	if (u->result == HOT_NOTHING)
		return HOT_DONE;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? HOT_DONE : HOT_FAILED;
}

static enum hot_outcome update_array(struct hot_window *w, struct request *r)
{
	const struct rmx_update it = {
		.op = r->op,
		.type = w->it.type,
		.operand = r->source,
		.result = r->result,
		.count = r->count,
	};

	if (is_direct(w, r->rank) && r->count * w->it.unit <= KEEP_GIL_ATOMIC)
		return rmx_update_direct(w->it.window, r->rank, r->offset, &it)
			       ? HOT_DONE
			       : HOT_ODD;
	if (!rmx_update_valid(r->op, w->it.type))
		return HOT_ODD;
	return run(w, r);
}

static enum hot_outcome fetch_array(struct hot_window *w, struct request *r,
				    PyArrayObject *like, bool scalar,
				    PyObject **old_p)
{
	PyArrayObject *old = new_like(w, like);
	enum hot_outcome done;

	if (!old)
		return HOT_FAILED;
	r->buffer[1] = (PyObject *)old;
	r->result = PyArray_DATA(old);
	done = update_array(w, r);
	if (done != HOT_DONE) {
		Py_DECREF(old);
		return done;
	}
	/* which takes the reference */
	*old_p = scalar ? PyArray_Return(old) : (PyObject *)old;
	return *old_p ? HOT_DONE : HOT_FAILED;
}

const struct hot_update hot_fetch_add = {
	.call = "fetch_add",
	.op = RMAEXT_SUM,
	.result = HOT_SCALAR_OR_ARRAY,
};

/* *old_p stays as it is if nothing is to be returned. */
enum hot_outcome hot_update(struct hot_window *w, const struct hot_update *u,
			    PyObject *value, int64_t rank, int64_t index,
			    PyObject **old_p)
{
	const bool fetch = u->result != HOT_NOTHING;
	struct request r = {
		.call = u->call,
		.kind = RMX_UPDATE,
		.op = u->op,
		.rank = rank,
		.count = 1,
		.buffer = {value, Py_None},
	};
	PyArrayObject *operand;
	enum hot_outcome done;
	union hot_cell cell;

	if (!hot_is_open(w) || w->it.type < 0 ||
	    !hot_to_bytes(w, index, &r.offset))
		return HOT_ODD;
	if (hot_is_plain(w, value)) {
		operand = (PyArrayObject *)Py_NewRef(value);
		r.count = (uint64_t)PyArray_SIZE(operand);
		if (u->result == HOT_SCALAR && PyArray_NDIM(operand))
			goto odd;
	} else if (!hot_pack(w, value, &cell)) {
		return HOT_ODD;
	} else if (is_direct_rank(w, rank) && u->result != HOT_ARRAY) {
		return update_cell(w, u, &cell, rank, r.offset, old_p);
	} else {
		operand = new_cell(w, &cell); /* may be in use for long */
		if (!operand)
			return HOT_FAILED;
	}
	r.buffer[0] = (PyObject *)operand;
	r.source = PyArray_DATA(operand);
	if (!allowed(w, rank, r.offset, r.count,
		     rmx_update_access(u->op, fetch)))
		goto odd;
	done = fetch ? fetch_array(w, &r, operand, u->result != HOT_ARRAY,
				   old_p)
		     : update_array(w, &r);
	Py_DECREF(operand);
	return done;
odd:
	Py_DECREF(operand);
	return HOT_ODD;
}

/* Scalars only. */
enum hot_outcome hot_swap(struct hot_window *w, PyObject *compare,
			  PyObject *value, int64_t rank, int64_t index,
			  PyObject **old_p)
{
	union hot_cell old, expected, swap;
	const struct rmx_update it = {
		.op = RMAEXT_CSWAP,
		.type = w->it.type,
		.operand = &swap,
		.compare = &expected,
		.result = &old,
		.count = 1,
	};
	uint64_t offset;

	if (!hot_is_open(w) || !hot_pack(w, compare, &expected) ||
	    !hot_pack(w, value, &swap) || !hot_to_bytes(w, index, &offset) ||
	    !rmx_update_direct(w->it.window, rank, offset, &it))
		return HOT_ODD;
	*old_p = PyArray_Scalar(&old, w->dtype, NULL);
	return *old_p ? HOT_DONE : HOT_FAILED;
}

enum hot_outcome hot_flush(struct hot_window *w, int64_t rank)
{
	struct rmaext_window *it = w->it.window;
	struct rmaext_wait wait = {0};
	PyObject *result;
	int code;

	if (!hot_is_open(w) || rank >= it->count)
		return HOT_ODD;
	if ((rank >= 0 || !it->fabric || it->count <= KEEP_GIL_FLUSH) &&
	    rmx_flushed(it, rank)) {
		hot_count_turn();
		return HOT_DONE;
	}
	wait.timeout = it->timeout;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_flush(it, rank, &wait);
	Py_END_ALLOW_THREADS
	if (!code)
		return HOT_DONE;
	if (code == RMAEXT_PENDING)
		return HOT_ODD;
	/* reported once: another flush would not see it */
	result = PyObject_CallMethod((PyObject *)w, "_flush_failed", "iL", code,
				     (long long)rank);
	Py_XDECREF(result);
	return HOT_FAILED;
}
