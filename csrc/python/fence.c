/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Window's fence. If nothing is out of the ordinary, it is one flush and one
 * meeting, and C makes the collective call by itself: it holds the turn of
 * Python's Meetings (rmaext/_comm/meeting.py) meanwhile. In any other case
 * Python's _fence_on() goes on with the call where it is.
 */
#include "python/cmethods.h"

#define SLICE ((int64_t)20 * 1000 * 1000) /* ns; collective.SLICE */
#define LOW_BITS 0xffffff		  /* of numbers, in a step's word */

const char py_fence_doc[] = PyDoc_STR(
	"fence($self, /)\n--\n\n"
	"Flush to all ranks, and wait until all have done so.\n"
	"\n"
	"After it every rank sees, in its own memory too, what any rank put "
	"before.\n"
	"\n"
	"Raises\n"
	"------\n"
	"RmaTimeout, PeerLostError\n"
	"    As `flush`. If it fails on one rank, it raises the same error on "
	"all. If\n"
	"    a rank is lost, or a signal interrupts it, the window is closed "
	"on this\n"
	"    rank.\n"
	"SyncError\n"
	"    On all ranks, if they are in different collective calls; nothing "
	"else\n"
	"    has happened then. And if a rank has given up a call of this\n"
	"    communicator.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Collective, blocking; corresponds to MPI_Win_fence.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.put([1.0, 2.0], 0)\n"
	">>> win.fence()  # all ranks come here\n"
	">>> win.local[:3]\n"
	"array([1., 2., 0.])");

/* New references; `all` is the struct of the Python object `meetings`. */
struct call {
	PyObject *meetings, *turn;
	struct rmaext_meetings *all;
	uint64_t step;
};

static void call_forget(struct call *c)
{
	Py_CLEAR(c->meetings);
	Py_CLEAR(c->turn);
}

static bool attribute_is(PyObject *it, PyObject *name, PyObject *what)
{
	PyObject *value = PyObject_GetAttr(it, name);

	Py_XDECREF(value);
	return value == what;
}

static bool attribute_number(PyObject *it, PyObject *name, uint64_t *number_p)
{
	PyObject *value = PyObject_GetAttr(it, name);

	*number_p = value ? PyLong_AsUnsignedLongLong(value) : 0;
	Py_XDECREF(value);
	return value && !PyErr_Occurred();
}

static bool attribute_is_empty(PyObject *it, PyObject *name)
{
	PyObject *value = PyObject_GetAttr(it, name);
	const bool empty =
		value && PyUnicode_Check(value) && !PyUnicode_GET_LENGTH(value);

	Py_XDECREF(value);
	return empty;
}

/*
 * Looks whether C may begin the call. False: Python is to decide; an exception
 * may be set, which Python will meet again. All attributes are plain ones: no
 * line of Python runs here, and so no signal handler.
 */
static bool call_find(struct py_window *w, struct call *c)
{
	PyObject *group = PyObject_GetAttr((PyObject *)w, py_names._group);
	uint64_t address, window;

	if (group)
		c->meetings = PyObject_GetAttr(group, py_names.meetings);
	Py_XDECREF(group);
	if (!c->meetings ||
	    !attribute_number(c->meetings, py_names.address, &address) ||
	    !address ||
	    !attribute_number((PyObject *)w, py_names._name, &window))
		return false;
	c->turn = PyObject_GetAttr(c->meetings, py_names._turn);
	if (!c->turn || !PyDict_CheckExact(c->turn) ||
	    PyDict_GET_SIZE(c->turn) ||
	    !attribute_is(c->meetings, py_names._step, Py_None) ||
	    !attribute_is(c->meetings, py_names.out, Py_None) ||
	    !attribute_is_empty(c->meetings, py_names._ended))
		return false;
	c->all = (struct rmaext_meetings *)(uintptr_t)address;
	c->step = c->all->fence | (window & LOW_BITS) << 24 |
		  ((uint64_t)(c->all->number + 1) & LOW_BITS);
	return !c->all->over;
}

static bool turn_take(const struct call *c)
{
	PyObject *me = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
	bool taken = me && !PyDict_SetItem(c->turn, py_names.thread, me);

	Py_XDECREF(me);
	return taken;
}

/* Gives the call up, with an exception set, which stays. */
static void call_desert(struct py_window *w, const struct call *c)
{
	PyObject *type, *value, *trace, *done;

	PyErr_Fetch(&type, &value, &trace);
	done = PyObject_CallMethodOneArg(c->meetings, py_names.desert,
					 (PyObject *)w);
	if (!done)
		PyErr_WriteUnraisable((PyObject *)w);
	Py_XDECREF(done);
	PyErr_Restore(type, value, trace);
}

/*
 * Has Python not taken the call that was handed to it? It has once Meetings has
 * a step. The exception that is set stays: it is put aside, since a look-up of
 * an attribute may lose it.
 */
static bool call_is_ours(const struct call *c)
{
	PyObject *type, *value, *trace;
	bool ours;

	PyErr_Fetch(&type, &value, &trace);
	ours = PyDict_GET_SIZE(c->turn) &&
	       attribute_is(c->meetings, py_names._step, Py_None);
	PyErr_Restore(type, value, trace);
	return ours;
}

/*
 * Hands the call over to Python after this rank has come to the meeting. Python
 * gives the turn back in the end. A signal handler may raise before it takes
 * the call.
 */
static PyObject *call_hand_over(struct py_window *w, const struct call *c)
{
	PyObject *result = PyObject_CallMethodOneArg(
		(PyObject *)w, py_names._fence_on, Py_None);

	if (!result && call_is_ours(c))
		call_desert(w, c);
	return result;
}

static PyObject *flush_failed(struct py_window *w, const struct call *c)
{
	PyObject *type, *value, *trace, *result;

	if (!PyErr_ExceptionMatches(PyExc_Exception)) {
		call_desert(w, c);
		return NULL;
	}
	PyErr_Fetch(&type, &value, &trace);
	PyErr_NormalizeException(&type, &value, &trace);
	if (trace)
		PyException_SetTraceback(value, trace);
	PyDict_Clear(c->turn); /* it has not come: Python makes the call */
	result = PyObject_CallMethodOneArg((PyObject *)w, py_names._fence_on,
					   value);
	Py_XDECREF(type);
	Py_XDECREF(value);
	Py_XDECREF(trace);
	return result;
}

static PyObject *fence_meet(struct py_window *w, const struct call *c)
{
	struct rmaext_meetings *all = c->all;
	int code;

	Py_BEGIN_ALLOW_THREADS
	code = rmaext_meet(all, c->step, 0, SLICE);
	Py_END_ALLOW_THREADS
	all->begun++;
	if (!code && !all->met.differ && !all->met.worst) {
		all->number++;
		PyDict_Clear(c->turn);
		Py_RETURN_NONE;
	}
	all->over = !code;
	return call_hand_over(w, c);
}

PyObject *py_fence(void *self, PyObject *unused)
{
	struct py_window *w = self;
	PyObject *result = NULL;
	struct call c = {0};

	(void)unused;
	if (!py_is_open(w) || !call_find(w, &c) || !turn_take(&c)) {
		PyErr_Clear();
		call_forget(&c);
		return py_decide(self, py_names._fence, NULL, 0, NULL);
	}
	switch (py_flush(w, -1)) {
	case PY_DONE:
		result = fence_meet(w, &c);
		break;
	case PY_DECLINED: /* it takes long: Python flushes on */
		PyDict_Clear(c.turn);
		result = py_decide(self, py_names._fence, NULL, 0, NULL);
		break;
	case PY_FAILED:
		result = flush_failed(w, &c);
		break;
	}
	call_forget(&c);
	return result;
}
