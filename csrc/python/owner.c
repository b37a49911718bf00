/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Owner: what C is asked to do and may not do at once, and the one owner of the
 * buffers that it uses. They live as long as C may touch them, whoever drops
 * this object and whenever: where the network still uses them, its endpoint
 * keeps it until it does not. Endpoint, of which rmaext's derives, has these.
 *
 * Whatever a signal handler raises between two steps of Python: what C has
 * returned is kept here, and each step may be called again. Threads may call
 * all of it at once, with the GIL, which C is without: it has one of them at a
 * time, and a release is left to that one.
 */
#include "python/cmethods.h"

#include <stddef.h>
#include <structmember.h>
#include <unistd.h>

/* ffi.cast() of cffi's module */
static PyObject *ffi_cast;

bool py_find_ffi(void)
{
	PyObject *module = PyImport_ImportModule("rmaext._native._lib"),
		 *ffi = NULL;

	if (module)
		ffi = PyObject_GetAttrString(module, "ffi");
	if (ffi)
		ffi_cast = PyObject_GetAttrString(ffi, "cast");
	Py_XDECREF(ffi);
	Py_XDECREF(module);
	return ffi_cast;
}

/* What a pointer of cffi's points to; NULL with an exception: it is none. */
static void *pointer_of(PyObject *it)
{
	PyObject *cast = PyObject_CallFunction(ffi_cast, "sO", "uintptr_t", it);
	PyObject *number = cast ? PyNumber_Long(cast) : NULL;
	void *pointer = number ? PyLong_AsVoidPtr(number) : NULL;

	if (!pointer && !PyErr_Occurred())
		PyErr_SetString(PyExc_ValueError, "a pointer is NULL");
	Py_XDECREF(number);
	Py_XDECREF(cast);
	return pointer;
}

/* -- those that are given up */

static void orphans_append(struct py_endpoint *e, struct py_owner *it)
{
	it->next = NULL;
	*(e->orphans ? &e->last->next : &e->orphans) = it;
	e->last = it;
	e->orphan_count++;
	e->orphan_bytes += it->bytes;
}

/* The first one, which the caller gets; or NULL. */
static struct py_owner *orphans_take(struct py_endpoint *e)
{
	struct py_owner *it = e->orphans;

	if (it) {
		e->orphans = it->next;
		e->orphan_count--;
		e->orphan_bytes -= it->bytes;
	}
	return it;
}

/* May C be told to let go of what it uses, and is it to be asked? */
static enum py_endpoint_state endpoint_state(const struct py_endpoint *e)
{
	if (!e)
		return PY_OPEN;
	/* a forked child has none of its threads, nor who had its locks */
	return e->pid == getpid() ? e->state : PY_CLOSED;
}

/*
 * C lets go of what was released; false: it still uses the buffers. Of a closed
 * endpoint there is nothing to let go of: all has ended with it.
 */
static bool owner_let_go(struct py_owner *it)
{
	const enum py_endpoint_state state = endpoint_state(it->endpoint);
	rmaext_op *op = it->left;

	if (!op || state == PY_CLOSED)
		return true;
	if (state == PY_STUCK)
		return false;
	Py_BEGIN_ALLOW_THREADS
	rmaext_op_release(&op);
	Py_END_ALLOW_THREADS
	it->left = op;
	return !op || endpoint_state(it->endpoint) == PY_CLOSED;
}

void py_endpoint_reap(struct py_endpoint *e, Py_ssize_t most)
{
	for (Py_ssize_t n = e->orphan_count; n > 0 && most > 0; n--, most--) {
		struct py_owner *it = orphans_take(e);

		if (!it)
			return;
		if (owner_let_go(it)) {
			Py_CLEAR(it->buffers); /* a traceback may have it */
			Py_DECREF(it);
		} else {
			orphans_append(e, it);
		}
	}
}

/* -- the owner */

void py_owner_release(struct py_owner *it)
{
	struct py_endpoint *e = it->endpoint;

	it->released = true;
	if (it->waiting || it->given_up)
		return;
	it->given_up = true; /* by this thread; others may run from here on */
	it->left = it->op;
	it->op = NULL;
	if (e)
		e->in_flight--;
	if (owner_let_go(it)) {
		Py_CLEAR(it->buffers);
	} else {
		Py_INCREF(it);
		if (e)
			orphans_append(e, it);
	}
	if (e && e->orphans)
		py_endpoint_reap(e, 4);
}

bool py_endpoint_announce(struct py_endpoint *e, PyObject *const *buffers,
			  Py_ssize_t n)
{
	for (Py_ssize_t i = 0; e->know && i < n; i++) {
		PyObject *known =
			PyArray_Check(buffers[i])
				? PyObject_CallOneArg(e->know, buffers[i])
				: Py_NewRef(Py_None);

		if (!known)
			return false;
		Py_DECREF(known);
	}
	return true;
}

static Py_ssize_t buffers_bytes(PyObject *buffers)
{
	Py_ssize_t bytes = 0;

	for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(buffers); i++) {
		PyObject *it = PyTuple_GET_ITEM(buffers, i);

		if (PyArray_Check(it))
			bytes += PyArray_NBYTES((PyArrayObject *)it);
	}
	return bytes;
}

PyObject *py_owner_new(PyObject *endpoint, PyObject *handle, PyObject *buffers,
		       rmaext_op *op)
{
	struct py_owner *it = PyObject_GC_New(struct py_owner, &py_owner_type);

	if (!it)
		return NULL;
	memset((char *)it + sizeof(PyObject), 0,
	       sizeof(*it) - sizeof(PyObject));
	it->op = op;
	it->begun = op;
	it->code = RMAEXT_PENDING;
	it->bad = -1;
	it->handle = Py_NewRef(handle);
	it->buffers = Py_NewRef(buffers);
	it->bytes = buffers_bytes(buffers);
	if (endpoint != Py_None) {
		it->endpoint = (struct py_endpoint *)Py_NewRef(endpoint);
		it->endpoint->in_flight++;
	}
	PyObject_GC_Track(it);
	return (PyObject *)it;
}

static PyObject *owner_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	PyObject *endpoint, *handle, *buffers, *it;
	int request = 0;

	(void)type;
	(void)keys;
	if (!PyArg_ParseTuple(args, "OOO!|p", &endpoint, &handle, &PyTuple_Type,
			      &buffers, &request))
		return NULL;
	if (endpoint != Py_None &&
	    !PyObject_TypeCheck(endpoint, &py_endpoint_type)) {
		PyErr_SetString(PyExc_TypeError,
				"Owner() takes an Endpoint or None");
		return NULL;
	}
	if (endpoint != Py_None &&
	    !py_endpoint_announce((struct py_endpoint *)endpoint,
				  &PyTuple_GET_ITEM(buffers, 0),
				  PyTuple_GET_SIZE(buffers)))
		return NULL;
	it = py_owner_new(endpoint, handle, buffers, NULL);
	if (it)
		((struct py_owner *)it)->request = request;
	return it;
}

/* -- what C does, without the GIL */

/* `what` is a struct of cffi's. */
typedef int begin_in_c(struct py_owner *it, rmaext_window *w, void *what,
		       rmaext_op **op_p);

static int begin_one(struct py_owner *it, rmaext_window *w, void *what,
		     rmaext_op **op_p)
{
	((struct rmaext_call *)what)->ended = it->request ? &it->ended : NULL;
	return rmaext_start(w, what, op_p);
}

static int begin_many(struct py_owner *it, rmaext_window *w, void *what,
		      rmaext_op **op_p)
{
	((struct rmaext_places_call *)what)->ended =
		it->request ? &it->ended : NULL;
	return rmaext_start_many(w, what, op_p, &it->bad);
}

/* While C is busy with it a release is left to the thread that has called C. */
static void owner_leave(struct py_owner *it, int code)
{
	it->code = code;
	it->waiting = false;
	if (it->released)
		py_owner_release(it);
}

static PyObject *owner_begin(struct py_owner *it, begin_in_c *begin,
			     PyObject *call)
{
	void *what = pointer_of(call);
	rmaext_window *w;
	rmaext_op *op = NULL;
	int code;

	if (!what)
		return NULL;
	if (it->begun)
		return PyLong_FromLong(it->code);
	w = pointer_of(it->handle);
	if (!w)
		return NULL;
	if (it->released || endpoint_state(it->endpoint) == PY_CLOSED)
		return PyLong_FromLong(-FI_ESHUTDOWN);
	it->begun = true;
	it->waiting = true;
	Py_BEGIN_ALLOW_THREADS
	code = begin(it, w, what, &op);
	Py_END_ALLOW_THREADS
	it->op = op;
	owner_leave(it, code);
	return PyLong_FromLong(code);
}

static PyObject *owner_start(struct py_owner *it, PyObject *call)
{
	return owner_begin(it, begin_one, call);
}

static PyObject *owner_start_many(struct py_owner *it, PyObject *call)
{
	return owner_begin(it, begin_many, call);
}

/* A request that has ended, or is late, says so again; of others C does not. */
static PyObject *owner_wait(struct py_owner *it, PyObject *slice)
{
	const int64_t ns = PyLong_AsLongLong(slice);
	rmaext_op *op = it->op;
	int code = it->code;

	if (ns == -1 && PyErr_Occurred())
		return NULL;
	if (op && endpoint_state(it->endpoint) == PY_CLOSED)
		op = NULL;
	if (op && it->waiting)
		return PyLong_FromLong(RMAEXT_PENDING);
	if (!op || (code != RMAEXT_PENDING && !it->request))
		return PyLong_FromLong(code == RMAEXT_PENDING ? -FI_ESHUTDOWN
							      : code);
	it->waiting = true;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_op_wait(op, ns);
	Py_END_ALLOW_THREADS
	owner_leave(it, code);
	return PyLong_FromLong(code);
}

static PyObject *owner_cancel(struct py_owner *it, PyObject *unused)
{
	rmaext_op *op = it->op;
	int done = 0;

	(void)unused;
	if (!op || it->waiting)
		Py_RETURN_FALSE;
	it->waiting = true;
	Py_BEGIN_ALLOW_THREADS
	done = rmaext_op_cancel(op);
	Py_END_ALLOW_THREADS
	owner_leave(it, it->code);
	return PyBool_FromLong(done);
}

static PyObject *owner_release(struct py_owner *it, PyObject *unused)
{
	(void)unused;
	py_owner_release(it);
	Py_RETURN_NONE;
}

static PyObject *owner_get_rank(struct py_owner *it, void *closure)
{
	(void)closure;
	return PyLong_FromLongLong(it->op ? rmaext_op_rank(it->op) : -1);
}

static PyObject *owner_get_ended(struct py_owner *it, void *closure)
{
	(void)closure;
	return PyBool_FromLong(__atomic_load_n(&it->ended, __ATOMIC_ACQUIRE));
}

static PyObject *owner_get_goes_on(struct py_owner *it, void *closure)
{
	(void)closure;
	return PyBool_FromLong(it->op != NULL);
}

static int owner_traverse(struct py_owner *it, visitproc visit, void *arg)
{
	Py_VISIT(it->endpoint);
	Py_VISIT(it->handle);
	Py_VISIT(it->buffers);
	return 0;
}

/* Nobody has it any more; the endpoint may have it after this. */
static void owner_finalize(struct py_owner *it)
{
	PyObject *type, *value, *trace;

	PyErr_Fetch(&type, &value, &trace);
	py_owner_release(it);
	PyErr_Restore(type, value, trace);
}

/* No tp_clear: C may use the buffers; these, and windows, break any cycle. */
static void owner_dealloc(struct py_owner *it)
{
	if (PyObject_CallFinalizerFromDealloc((PyObject *)it))
		return;
	PyObject_GC_UnTrack(it);
	Py_XDECREF(it->buffers);
	Py_XDECREF(it->endpoint);
	Py_XDECREF(it->handle);
	PyObject_GC_Del(it);
}

static PyMethodDef owner_methods[] = {PY_METHODS_owner};

static PyMemberDef owner_members[] = {
	{"bad", T_LONGLONG, offsetof(struct py_owner, bad), READONLY,
	 PY_DOC_owner_bad},
	{"busy", T_BOOL, offsetof(struct py_owner, waiting), READONLY,
	 PY_DOC_owner_busy},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef owner_attributes[] = {
	PY_GETTER(owner, rank, owner_get_rank),
	PY_GETTER(owner, ended, owner_get_ended),
	PY_GETTER(owner, goes_on, owner_get_goes_on),
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject py_owner_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Owner",
	.tp_basicsize = sizeof(struct py_owner),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_doc = PY_DOC_owner,
	.tp_new = owner_new,
	.tp_traverse = (traverseproc)owner_traverse,
	.tp_finalize = (destructor)owner_finalize,
	.tp_dealloc = (destructor)owner_dealloc,
	.tp_methods = owner_methods,
	.tp_members = owner_members,
	.tp_getset = owner_attributes,
};

/* -- the endpoint */

static PyObject *endpoint_reap(struct py_endpoint *e, PyObject *most)
{
	const Py_ssize_t n = PyLong_AsSsize_t(most);

	if (n == -1 && PyErr_Occurred())
		return NULL;
	py_endpoint_reap(e, n);
	Py_RETURN_NONE;
}

static PyObject *endpoint_bind(struct py_endpoint *e, PyObject *know)
{
	e->pid = getpid();
	Py_XSETREF(e->know, know == Py_None ? NULL : Py_NewRef(know));
	Py_RETURN_NONE;
}

static PyObject *endpoint_close(struct py_endpoint *e, PyObject *unused)
{
	(void)unused;
	if (e->state == PY_OPEN)
		Py_INCREF(e);
	if (e->state != PY_CLOSED)
		e->state = PY_STUCK;
	Py_RETURN_NONE;
}

static PyObject *endpoint_closed(struct py_endpoint *e, PyObject *unused)
{
	struct py_owner *it;

	(void)unused;
	if (e->state == PY_STUCK)
		Py_DECREF(e);
	e->state = PY_CLOSED;
	while ((it = orphans_take(e)))
		Py_DECREF(it);
	Py_RETURN_NONE;
}

static PyObject *endpoint_get_stuck(struct py_endpoint *e, void *closure)
{
	(void)closure;
	return PyBool_FromLong(endpoint_state(e) == PY_STUCK);
}

/* Orphans are not visited: no cycle through them may be collected. */
static int endpoint_traverse(struct py_endpoint *e, visitproc visit, void *arg)
{
	Py_VISIT(e->know);
	return 0;
}

static int endpoint_clear(struct py_endpoint *e)
{
	Py_CLEAR(e->know);
	return 0;
}

static void endpoint_dealloc(struct py_endpoint *e)
{
	PyObject_GC_UnTrack(e);
	endpoint_clear(e);
	Py_TYPE(e)->tp_free(e);
}

static PyMethodDef endpoint_methods[] = {PY_METHODS_endpoint};

static PyMemberDef endpoint_members[] = {
	{"_in_flight", T_PYSSIZET, offsetof(struct py_endpoint, in_flight),
	 READONLY, PY_DOC_endpoint__in_flight},
	{"_orphans", T_PYSSIZET, offsetof(struct py_endpoint, orphan_count),
	 READONLY, PY_DOC_endpoint__orphans},
	{"_orphan_bytes", T_PYSSIZET,
	 offsetof(struct py_endpoint, orphan_bytes), READONLY,
	 PY_DOC_endpoint__orphan_bytes},
	{NULL, 0, 0, 0, NULL},
};

static PyGetSetDef endpoint_attributes[] = {
	PY_GETTER(endpoint, _stuck, endpoint_get_stuck),
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject py_endpoint_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Endpoint",
	.tp_basicsize = sizeof(struct py_endpoint),
	.tp_flags =
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_doc = PY_DOC_endpoint,
	.tp_new = PyType_GenericNew,
	.tp_traverse = (traverseproc)endpoint_traverse,
	.tp_clear = (inquiry)endpoint_clear,
	.tp_dealloc = (destructor)endpoint_dealloc,
	.tp_methods = endpoint_methods,
	.tp_members = endpoint_members,
	.tp_getset = endpoint_attributes,
};
