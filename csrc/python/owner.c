/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Owner: of what C does not carry out at once, and the one owner of the buffers
 * that it uses. They live as long as C may touch them, whoever drops this
 * object and whenever: where the network still uses them, its endpoint keeps it
 * until it does not. Endpoint, of which rmaext's derives, has these.
 *
 * All of this is used with the GIL held, and C lets go of an operation without
 * it. Whoever waits for one keeps others from releasing it.
 */
#include "python/cmethods.h"

#include <stddef.h>
#include <structmember.h>

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

/* -- the owner */

static void owner_drop_buffers(struct py_owner *it)
{
	if (it->buffers && it->endpoint)
		it->endpoint->in_flight--;
	Py_CLEAR(it->buffers);
}

/*
 * C lets go of it; false: it still uses the buffers. Of a closed endpoint there
 * is nothing to let go of: all has ended with it.
 */
static bool owner_let_go(struct py_owner *it)
{
	rmaext_op *op = it->op;

	if (!op || (it->endpoint && it->endpoint->state == PY_CLOSED))
		return true;
	if (it->endpoint && it->endpoint->state == PY_STUCK)
		return false;
	it->op = NULL; /* another thread may run meanwhile */
	Py_BEGIN_ALLOW_THREADS
	rmaext_op_release(&op);
	Py_END_ALLOW_THREADS
	it->op = op;
	return !op;
}

void py_endpoint_reap(struct py_endpoint *e, Py_ssize_t most)
{
	if (e->state == PY_STUCK)
		return;
	for (Py_ssize_t n = e->orphan_count; n > 0 && most > 0; n--, most--) {
		struct py_owner *it = orphans_take(e);

		if (!it)
			return;
		if (owner_let_go(it))
			Py_DECREF(it);
		else
			orphans_append(e, it);
	}
}

void py_owner_release(struct py_owner *it)
{
	struct py_endpoint *e = it->endpoint;

	if (it->released)
		return;
	it->released = true;
	if (owner_let_go(it)) {
		owner_drop_buffers(it);
	} else {
		Py_INCREF(it);
		if (e) {
			e->in_flight--;
			orphans_append(e, it);
		}
	}
	if (e && e->orphans)
		py_endpoint_reap(e, 4);
}

static bool buffers_announce(struct py_endpoint *e, PyObject *buffers)
{
	for (Py_ssize_t i = 0; e->know && i < PyTuple_GET_SIZE(buffers); i++) {
		PyObject *it = PyTuple_GET_ITEM(buffers, i), *known;

		if (!PyArray_Check(it))
			continue;
		known = PyObject_CallOneArg(e->know, it);
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
	it->op = op;
	it->endpoint = NULL;
	it->handle = Py_NewRef(handle);
	it->buffers = Py_NewRef(buffers);
	it->slot = NULL;
	it->next = NULL;
	it->bytes = buffers_bytes(buffers);
	it->released = false;
	if (endpoint != Py_None) {
		it->endpoint = (struct py_endpoint *)Py_NewRef(endpoint);
		it->endpoint->in_flight++;
	}
	PyObject_GC_Track(it);
	return (PyObject *)it;
}

static PyObject *owner_new(PyTypeObject *type, PyObject *args, PyObject *keys)
{
	PyObject *endpoint, *handle, *buffers;

	(void)type;
	(void)keys;
	if (!PyArg_ParseTuple(args, "OOO!", &endpoint, &handle, &PyTuple_Type,
			      &buffers))
		return NULL;
	if (endpoint != Py_None &&
	    !PyObject_TypeCheck(endpoint, &py_endpoint_type)) {
		PyErr_SetString(PyExc_TypeError,
				"Owner() takes an Endpoint or None");
		return NULL;
	}
	if (endpoint != Py_None &&
	    !buffers_announce((struct py_endpoint *)endpoint, buffers))
		return NULL;
	return py_owner_new(endpoint, handle, buffers, NULL);
}

static PyObject *owner_get_slot(struct py_owner *it, void *closure)
{
	(void)closure;
	if (!it->slot)
		it->slot = PyObject_CallFunction(
			ffi_cast, "sK", "rmaext_op **",
			(unsigned long long)(uintptr_t)&it->op);
	return it->slot ? Py_NewRef(it->slot) : NULL;
}

static PyObject *owner_release(struct py_owner *it, PyObject *unused)
{
	(void)unused;
	py_owner_release(it);
	Py_RETURN_NONE;
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
	if (it->released && it->buffers && it->endpoint)
		it->endpoint->in_flight++; /* it was an orphan */
	owner_drop_buffers(it);
	Py_XDECREF(it->slot);
	Py_XDECREF(it->endpoint);
	Py_XDECREF(it->handle);
	PyObject_GC_Del(it);
}

PyDoc_STRVAR(owner_doc,
	     "Owner(endpoint, handle, buffers, /)\n--\n\n"
	     "What C is about to do, on the window of a handle, with the "
	     "objects in a tuple.\n\n"
	     "`slot` is where C puts its operation, a rmaext_op **. Whatever "
	     "is raised\nafter this: the buffers live until C is done with "
	     "them.");

static PyMethodDef owner_methods[] = {
	{"release", (PyCFunction)owner_release, METH_NOARGS,
	 PyDoc_STR("release($self, /)\n--\n\n"
		   "Let go of it and of its buffers, now or when C is done "
		   "with them. It may be called again.")},
	{NULL, NULL, 0, NULL},
};

static PyGetSetDef owner_attributes[] = {
	{"slot", (getter)owner_get_slot, NULL,
	 PyDoc_STR("Where C's operation is."), NULL},
	{NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject py_owner_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Owner",
	.tp_basicsize = sizeof(struct py_owner),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
	.tp_doc = owner_doc,
	.tp_new = owner_new,
	.tp_traverse = (traverseproc)owner_traverse,
	.tp_finalize = (destructor)owner_finalize,
	.tp_dealloc = (destructor)owner_dealloc,
	.tp_methods = owner_methods,
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
	Py_XSETREF(e->know, know == Py_None ? NULL : Py_NewRef(know));
	Py_RETURN_NONE;
}

static PyObject *endpoint_ended(struct py_endpoint *e, PyObject *stuck)
{
	struct py_owner *it;

	if (PyObject_IsTrue(stuck)) {
		e->state = PY_STUCK;
		Py_RETURN_NONE;
	}
	e->state = PY_CLOSED;
	while ((it = orphans_take(e)))
		Py_DECREF(it);
	Py_RETURN_NONE;
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

static PyMethodDef endpoint_methods[] = {
	{"_bind", (PyCFunction)endpoint_bind, METH_O,
	 PyDoc_STR("_bind($self, know, /)\n--\n\n"
		   "Call `know` with each array that C is about to use, unless "
		   "it is None.")},
	{"_ended", (PyCFunction)endpoint_ended, METH_O,
	 PyDoc_STR("_ended($self, stuck, /)\n--\n\n"
		   "C uses no buffers any more; or, if stuck, may use them for "
		   "ever.")},
	{"_reap", (PyCFunction)endpoint_reap, METH_O,
	 PyDoc_STR("_reap($self, most, /)\n--\n\n"
		   "Free the buffers of operations that were given up and have "
		   "ended since.\nOnly the first few are looked at.")},
	{NULL, NULL, 0, NULL},
};

static PyMemberDef endpoint_members[] = {
	{"_in_flight", T_PYSSIZET, offsetof(struct py_endpoint, in_flight),
	 READONLY, PyDoc_STR("Operations that somebody has.")},
	{"_orphans", T_PYSSIZET, offsetof(struct py_endpoint, orphan_count),
	 READONLY, PyDoc_STR("Those that nobody has, and C still uses.")},
	{"_orphan_bytes", T_PYSSIZET,
	 offsetof(struct py_endpoint, orphan_bytes), READONLY,
	 PyDoc_STR("The size of their buffers.")},
	{NULL, 0, 0, 0, NULL},
};

PyTypeObject py_endpoint_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name =
		"rmaext._native.cmethods.Endpoint",
	.tp_basicsize = sizeof(struct py_endpoint),
	.tp_flags =
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_doc = PyDoc_STR("What an endpoint keeps for C."),
	.tp_new = PyType_GenericNew,
	.tp_traverse = (traverseproc)endpoint_traverse,
	.tp_clear = (inquiry)endpoint_clear,
	.tp_dealloc = (destructor)endpoint_dealloc,
	.tp_methods = endpoint_methods,
	.tp_members = endpoint_members,
};
