/* SPDX-License-Identifier: BSD-3-Clause */
/* Request, as it is made when it is done at once; rput and rget by memory. */
#include "python/cmethods.h"

#include <stddef.h>
#include <structmember.h>

/*
 * What a request has that was done at once. CPython reads members of this kind,
 * T_OBJECT_EX, as fast as slots.
 */
struct request {
	PyObject_HEAD PyObject *op; /* an Owner; or None */
	PyObject *error, *result;
	PyObject *state; /* 0: done; see rmaext/_ops/request.py */
};

enum py_outcome py_request_done(struct py_call *c)
{
	static PyTypeObject *kind; /* rmaext's, which derives from this one */
	struct request *r;

	if (!kind) {
		PyObject *module = PyImport_ImportModule("rmaext._ops.request");

		if (module)
			kind = (PyTypeObject *)PyObject_GetAttrString(
				module, "Request");
		Py_XDECREF(module);
	}
	r = kind ? (struct request *)kind->tp_alloc(kind, 0) : NULL;
	if (!r) {
		Py_CLEAR(c->result);
		return PY_FAILED;
	}
	r->op = Py_NewRef(Py_None);
	r->error = Py_NewRef(Py_None);
	r->state = Py_NewRef(py_names.zero);
	r->result = c->result ? c->result : Py_NewRef(Py_None);
	c->result = (PyObject *)r;
	return PY_DONE;
}

static int request_traverse(struct request *r, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(r));
	Py_VISIT(r->op);
	Py_VISIT(r->error);
	Py_VISIT(r->result);
	Py_VISIT(r->state);
	return 0;
}

static int request_clear(struct request *r)
{
	Py_CLEAR(r->op);
	Py_CLEAR(r->error);
	Py_CLEAR(r->result);
	Py_CLEAR(r->state);
	return 0;
}

static void request_dealloc(struct request *r)
{
	PyTypeObject *type = Py_TYPE(r);

	PyObject_GC_UnTrack(r);
	request_clear(r);
	type->tp_free(r);
	Py_DECREF(type);
}

static enum py_outcome try_wait(struct py_call *c)
{
	const struct request *r = c->self;

	if (r->state != py_names.zero || r->error != Py_None || !r->result ||
	    (c->got[0] && c->got[0] != Py_None))
		return PY_DECLINED;
	c->result = Py_NewRef(r->result);
	return PY_DONE;
}

static PY_METHOD(request, wait, try_wait);

static PyMethodDef request_methods[] = {PY_METHODS_request};

static PyMemberDef request_members[] = {
	{"_op", T_OBJECT_EX, offsetof(struct request, op), 0, NULL},
	{"_error", T_OBJECT_EX, offsetof(struct request, error), 0, NULL},
	{"_result", T_OBJECT_EX, offsetof(struct request, result), 0, NULL},
	{"_state", T_OBJECT_EX, offsetof(struct request, state), 0, NULL},
	{NULL, 0, 0, 0, NULL},
};

static PyType_Slot request_slots[] = {
	{Py_tp_members, request_members},
	{Py_tp_methods, request_methods},
	{Py_tp_traverse, (void *)request_traverse},
	{Py_tp_clear, (void *)request_clear},
	{Py_tp_dealloc, (void *)request_dealloc},
	{Py_tp_doc, (void *)PY_DOC_request},
	{0, NULL},
};

PyType_Spec py_request_spec = {
	.name = "rmaext._native.cmethods.Request",
	.basicsize = sizeof(struct request),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.slots = request_slots,
};

static enum py_outcome try_rput(struct py_call *c)
{
	enum py_outcome done = PY_DECLINED;

	if (py_is_open(c->w) && py_rank_is_direct(c->w, c->rank))
		done = c->key ? py_put_part(c) : py_try_put(c);
	return done == PY_DONE ? py_request_done(c) : done;
}

PY_METHOD(window, rput, try_rput);

static enum py_outcome try_rget(struct py_call *c)
{
	PyObject *out = c->got[3] == Py_None ? NULL : c->got[3];
	enum py_outcome done = PY_DECLINED;

	if (!py_is_open(c->w) || !py_rank_is_direct(c->w, c->rank))
		return PY_DECLINED;
	if (!c->key)
		done = py_try_get(c);
	else if (c->count < 0 && (!out || py_is_plain_result(c->w, out)))
		done = py_get_part(c, (PyArrayObject *)out);
	return done == PY_DONE ? py_request_done(c) : done;
}

PY_METHOD(window, rget, try_rget);
