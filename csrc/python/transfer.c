/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A transfer that may have to be waited for: it runs without the GIL, and
 * Python goes on with it if it is not complete by then.
 */
#include "python/cmethods.h"

/* ffi.new() and ffi.cast() of cffi's module */
static PyObject *ffi_new, *ffi_cast;

bool py_find_ffi(void)
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

/*
 * Enters an operation in the dictionary in_flight, as Endpoint.hold() does,
 * with nothing in between at which a signal handler could raise. NULL: there is
 * no memory; then the buffers live for ever. Without a fabric an operation only
 * waits for a guard, and its caller keeps the buffers alive.
 */
static PyObject *transfer_keep(struct py_window *w, const struct py_transfer *r,
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
		entry = PyTuple_Pack(2 + PY_BUFFERS, holder, w->handle,
				     r->buffer[0], r->buffer[1]);
	if (!entry ||
	    (w->in_flight && PyDict_SetItem(w->in_flight, key, entry))) {
		Py_CLEAR(holder);
		for (int i = 0; i < PY_BUFFERS; i++)
			Py_INCREF(r->buffer[i]);
	}
	Py_XDECREF(entry);
	Py_XDECREF(key);
	Py_XDECREF(pointer);
	return holder;
}

static bool fabric_call(struct py_window *w, PyObject *name, PyObject *argument)
{
	PyObject *result =
		PyObject_CallMethodObjArgs(w->fabric, name, argument, NULL);

	Py_XDECREF(result);
	return result;
}

static bool holder_release(struct py_window *w, PyObject *holder, rmaext_op *op)
{
	return w->in_flight ? fabric_call(w, py_names.release, holder)
			    : !rmaext_op_release(&op);
}

/*
 * Has Python wait on, or raise the error. The operation is released afterwards
 * in any case, and the record says that the wait is over, also if a signal
 * handler raises before Python's first line.
 */
static enum py_outcome transfer_continue(struct py_window *w,
					 const struct py_transfer *r, int code,
					 rmaext_op *op)
{
	PyObject *holder, *result, *type, *value, *trace;

	holder = op ? transfer_keep(w, r, op) : Py_NewRef(Py_None);
	if (!holder)
		return PY_FAILED;
	result = PyObject_CallMethod((PyObject *)w, "_continue", "s(LLL)iO",
				     r->call, (long long)r->rank,
				     (long long)(r->offset / w->it.unit),
				     (long long)r->count, code, holder);
	if (!result)
		rmaext_record_give_up();
	Py_XDECREF(result);
	PyErr_Fetch(&type, &value, &trace);
	if (op && !holder_release(w, holder, op)) {
		/* Ctrl-C came meanwhile: the later exception counts */
		Py_XDECREF(type);
		Py_XDECREF(value);
		Py_XDECREF(trace);
		result = NULL;
	} else {
		PyErr_Restore(type, value, trace);
	}
	Py_DECREF(holder);
	return result ? PY_DONE : PY_FAILED;
}

enum py_outcome py_raise_code(struct py_window *w, const char *call,
			      int64_t rank, uint64_t offset, uint64_t len,
			      int code)
{
	const struct py_transfer r = {
		.call = call,
		.rank = rank,
		.offset = offset,
		.count = len / w->it.unit,
	};

	return transfer_continue(w, &r, code, NULL);
}

/* Announces long buffers to the registration cache, as Endpoint.hold() does. */
static bool transfer_announce(struct py_window *w, const struct py_transfer *r)
{
	if (!w->know || r->count * w->it.unit <= RMX_COPY_MAX)
		return true;
	for (int i = 0; i < PY_BUFFERS; i++) {
		PyObject *known = PyObject_CallOneArg(w->know, r->buffer[i]);

		if (!known)
			return false;
		Py_DECREF(known);
	}
	return true;
}

bool py_join(struct py_window *w, const struct rmx_single *single)
{
	struct rmaext_window *it = w->it.window;
	bool joined;

	if (single->unit > RMX_SINGLE_MOST || rmx_window_enter(it, "join"))
		return false;
	joined = rmx_series_join(it, single);
	rmx_window_leave(it);
	if (joined)
		py_count_turn();
	return joined;
}

/*
 * The caller has references to the buffers; one more each makes NumPy's
 * resize() in another thread refuse to move them.
 */
enum py_outcome py_transfer_run(struct py_window *w,
				const struct py_transfer *r)
{
	struct rmaext_window *it = w->it.window;
	const struct rmaext_call call = {
		.kind = r->kind,
		.op = r->op,
		.type = w->it.type,
		.rank = r->rank,
		.offset = r->offset,
		.operand = r->source,
		.compare = r->compare,
		.result = r->result,
		.count = r->kind == RMAEXT_UPDATE ? r->count
						  : r->count * w->it.unit,
	};
	enum py_outcome done = PY_DONE;
	rmaext_op *op = NULL;
	int code = 0;

	if (!transfer_announce(w, r))
		return PY_FAILED;
	for (int i = 0; i < PY_BUFFERS; i++)
		Py_INCREF(r->buffer[i]);
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_start(it, &call, &op);
	Py_END_ALLOW_THREADS
	if (code)
		done = transfer_continue(w, r, code, op);
	for (int i = 0; i < PY_BUFFERS; i++)
		Py_DECREF(r->buffer[i]);
	if (code)
		return done;
	/* some operations that were given up may have ended since */
	if (w->orphans && PyDict_GET_SIZE(w->orphans) &&
	    !fabric_call(w, py_names.reap, NULL))
		return PY_FAILED;
	return PY_DONE;
}
