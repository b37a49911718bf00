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

/* Takes the turn, if C may make the call. False: Python is to decide. */
static bool call_begin(const struct py_window *w)
{
	struct rmaext_meetings *all = w->calls;
	const uint64_t me = PyThread_get_thread_ident();

	return all && all->meets && !all->refused && !all->stepping &&
	       !all->over && !all->turn && rmaext_meetings_turn(all, me) == me;
}

static void call_end(const struct py_window *w)
{
	__atomic_store_n(&w->calls->turn, 0, __ATOMIC_RELEASE);
}

/* Gives the call up, with an exception set, which stays. */
static void call_abandon(struct py_window *w)
{
	PyObject *type, *value, *trace, *done;

	PyErr_Fetch(&type, &value, &trace);
	done = PyObject_CallMethodOneArg(w->meetings, py_names.abandon_fence,
					 (PyObject *)w);
	if (!done)
		PyErr_WriteUnraisable((PyObject *)w);
	Py_XDECREF(done);
	PyErr_Restore(type, value, trace);
}

/*
 * Hands the call over to Python after this rank has come to the meeting. Python
 * gives the turn back in the end. A signal handler may raise before it takes
 * the call, which then has no step yet.
 */
static PyObject *call_hand_over(struct py_window *w)
{
	PyObject *result = PyObject_CallMethodOneArg(
		(PyObject *)w, py_names.fence_on, Py_None);

	if (!result && w->calls->turn == PyThread_get_thread_ident() &&
	    !w->calls->stepping)
		call_abandon(w);
	return result;
}

static PyObject *flush_failed(struct py_window *w)
{
	PyObject *error, *result;

	if (!PyErr_ExceptionMatches(PyExc_Exception)) {
		call_abandon(w);
		return NULL;
	}
	error = py_exception_taken();
	call_end(w); /* it has not come: Python makes the call */
	result = PyObject_CallMethodOneArg((PyObject *)w, py_names.fence_on,
					   error);
	Py_DECREF(error);
	return result;
}

static PyObject *fence_meet(struct py_window *w)
{
	struct rmaext_meetings *all = w->calls;
	const uint64_t step = all->fence | (w->name & LOW_BITS) << 24 |
			      ((uint64_t)(all->number + 1) & LOW_BITS);
	int code;

	Py_BEGIN_ALLOW_THREADS
	code = rmaext_meet(all, step, 0, SLICE);
	Py_END_ALLOW_THREADS
	all->begun++;
	if (!code && !all->met.differ && !all->met.worst) {
		all->number++;
		call_end(w);
		Py_RETURN_NONE;
	}
	all->over = !code;
	return call_hand_over(w);
}

PyObject *py_window_fence(PyObject *self, PyObject *unused)
{
	struct py_window *w = (struct py_window *)self;

	(void)unused;
	if (!py_is_open(w) || !call_begin(w))
		return py_decide(self, py_names.fence, NULL, 0, NULL);
	switch (py_flush(w, -1)) {
	case PY_DONE:
		return fence_meet(w);
	case PY_FAILED:
		return flush_failed(w);
	case PY_DECLINED: /* it takes long: Python flushes on */
		break;
	}
	call_end(w);
	return py_decide(self, py_names.fence, NULL, 0, NULL);
}
