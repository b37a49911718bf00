/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A transfer that may have to be waited for: it runs without the GIL, and
 * Python goes on with it if it is not complete by then.
 */
#include "python/cmethods.h"

static uint64_t transfer_count(const struct py_window *w,
			       const struct py_transfer *r)
{
	return r->it.kind == RMAEXT_UPDATE ? r->it.count
					   : r->it.count / w->it.unit;
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
	PyObject *it = Py_None, *buffers = NULL, *result;
	PyObject *type, *value, *trace;

	if (op) {
		buffers = PyTuple_Pack(PY_BUFFERS, r->buffer[0], r->buffer[1]);
		it = buffers ? py_owner_new(w->fabric, w->handle, buffers, op)
			     : NULL;
		Py_XDECREF(buffers);
	}
	if (!it) { /* there is no memory: they live for ever */
		for (int i = 0; i < PY_BUFFERS; i++)
			Py_INCREF(r->buffer[i]);
		return PY_FAILED;
	}
	result = PyObject_CallMethod((PyObject *)w, "_continue", "s(LLL)iO",
				     r->name, (long long)r->it.rank,
				     (long long)(r->it.offset / w->it.unit),
				     (long long)transfer_count(w, r), code, it);
	if (!result)
		rmaext_record_give_up();
	Py_XDECREF(result);
	if (op) { /* not with its last reference: a traceback may have one */
		PyErr_Fetch(&type, &value, &trace);
		py_owner_release((struct py_owner *)it);
		PyErr_Restore(type, value, trace);
		Py_DECREF(it);
	}
	return result ? PY_DONE : PY_FAILED;
}

enum py_outcome py_raise_code(struct py_window *w, const char *call,
			      int64_t rank, uint64_t offset, uint64_t len,
			      int code)
{
	const struct py_transfer r = {
		.name = call,
		.it = {.kind = RMAEXT_PUT,
		       .rank = rank,
		       .offset = offset,
		       .count = len},
	};

	return transfer_continue(w, &r, code, NULL);
}

bool py_join(struct py_window *w, const struct rmaext_call *single)
{
	struct rmaext_window *it = w->it.window;
	bool joined;

	if (rmx_single_bytes(single) > RMX_SINGLE_MOST ||
	    rmx_window_enter(it, "join"))
		return false;
	joined = rmx_coalesce_join(it, single);
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
	struct py_endpoint *e = py_endpoint_of(w);
	enum py_outcome done = PY_DONE;
	rmaext_op *op = NULL;
	int code = 0;

	if (e && transfer_count(w, r) * w->it.unit > RMX_COPY_MAX &&
	    !py_endpoint_announce(e, r->buffer, PY_BUFFERS))
		return PY_FAILED;
	for (int i = 0; i < PY_BUFFERS; i++)
		Py_INCREF(r->buffer[i]);
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_start(it, &r->it, &op);
	Py_END_ALLOW_THREADS
	if (code)
		done = transfer_continue(w, r, code, op);
	for (int i = 0; i < PY_BUFFERS; i++)
		Py_DECREF(r->buffer[i]);
	if (code)
		return done;
	/* some operations that were given up may have ended since */
	if (e && e->orphans)
		py_endpoint_reap(e, 4);
	return PY_DONE;
}
