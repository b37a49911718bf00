/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Calls that must end although signal handlers raise: to_the_end() goes on with
 * them, within() puts right what they have begun, apart() lets none in, and no
 * handler comes between locked() and its lock.
 */
#include "python/cmethods.h"

PyObject *py_exception_taken(void)
{
	PyObject *type, *value, *trace;

	PyErr_Fetch(&type, &value, &trace);
	PyErr_NormalizeException(&type, &value, &trace);
	if (trace)
		PyException_SetTraceback(value, trace);
	Py_XDECREF(type);
	Py_XDECREF(trace);
	return value;
}

/* A second call, in a thread of its own, and what came of it. */
struct second {
	PyObject *const *args; /* the function first */
	size_t n;
	PyObject *result, *error;
	PyThread_type_lock ended;
};

static void second_call(struct second *s)
{
	s->result = PyObject_Vectorcall(s->args[0], s->args + 1, s->n, NULL);
	if (!s->result)
		s->error = py_exception_taken();
}

static void second_run(void *argument)
{
	struct second *s = argument;
	PyGILState_STATE state = PyGILState_Ensure();

	second_call(s);
	PyGILState_Release(state);
	PyThread_release_lock(s->ended);
}

static bool is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
	return Py_IsFinalizing();
#else
	return _Py_IsFinalizing();
#endif
}

/* If no thread can be started, a signal handler may raise once more. */
static void second_make(struct second *s)
{
	s->ended = is_finalizing() ? NULL : PyThread_allocate_lock();
	if (s->ended) {
		PyThread_acquire_lock(s->ended, WAIT_LOCK);
		if (PyThread_start_new_thread(second_run, s) !=
		    PYTHREAD_INVALID_THREAD_ID) {
			Py_BEGIN_ALLOW_THREADS
			PyThread_acquire_lock(s->ended, WAIT_LOCK);
			Py_END_ALLOW_THREADS
		} else {
			second_call(s);
		}
		PyThread_release_lock(s->ended);
		PyThread_free_lock(s->ended);
	} else {
		second_call(s);
	}
}

/*
 * A signal handler's exception cannot be told from one of the function's own,
 * such as a MemoryError. But handlers run in the main thread only: in another
 * thread the function comes to its end, and what it raises there is its own.
 */
PyObject *py_to_the_end(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
	struct second s = {.args = args + 1, .n = (size_t)n - 2};
	PyObject *result, *first, *both;

	(void)module;
	if (n < 2) {
		PyErr_SetString(PyExc_TypeError,
				"to_the_end() takes exceptions and a function");
		return NULL;
	}
	result = PyObject_Vectorcall(args[1], args + 2, s.n, NULL);
	if (result) {
		both = PyTuple_Pack(2, result, Py_None);
		Py_DECREF(result);
		return both;
	}
	if (PyErr_ExceptionMatches(args[0]))
		return NULL;
	first = py_exception_taken();
	second_make(&s);
	both = s.result ? PyTuple_Pack(2, s.result, first) : NULL;
	if (s.error)
		PyErr_SetObject((PyObject *)Py_TYPE(s.error), s.error);
	Py_XDECREF(s.result);
	Py_XDECREF(s.error);
	Py_DECREF(first);
	return both;
}

/* The same from the start, for what cannot be begun again. */
PyObject *py_apart(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
	struct second s = {.args = args, .n = (size_t)n - 1};

	(void)module;
	if (n < 1) {
		PyErr_SetString(PyExc_TypeError, "apart() takes a function");
		return NULL;
	}
	second_make(&s);
	if (s.error)
		PyErr_SetObject((PyObject *)Py_TYPE(s.error), s.error);
	Py_XDECREF(s.error);
	return s.result;
}

static bool lock_acquire(PyObject *lock)
{
	PyObject *done = PyObject_CallMethodNoArgs(lock, py_names.acquire);

	Py_XDECREF(done);
	return done;
}

static void lock_release(PyObject *lock)
{
	PyObject *type, *value, *trace, *done;

	PyErr_Fetch(&type, &value, &trace);
	done = PyObject_CallMethodNoArgs(lock, py_names.release);
	if (!done) /* renewed: this is a child that the function has forked */
		PyErr_Clear();
	Py_XDECREF(done);
	PyErr_Restore(type, value, trace);
}

static bool lock_is_ours(PyObject *lock, bool *ours_p)
{
	PyObject *ours = PyObject_CallMethod(lock, "_is_owned", NULL);

	if (!ours)
		return false;
	*ours_p = ours == Py_True;
	Py_DECREF(ours);
	return true;
}

/*
 * In Python, a handler may raise between the end of a `with` block and the
 * release of its lock, or on the way into it; here there is no such place.
 */
PyObject *py_locked(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
	PyObject *result;
	bool ours;

	(void)module;
	if (n < 3) {
		PyErr_SetString(PyExc_TypeError,
				"locked() takes a lock and two functions");
		return NULL;
	}
	if (!lock_is_ours(args[0], &ours))
		return NULL;
	if (ours)
		return PyObject_CallNoArgs(args[1]);
	if (!lock_acquire(args[0]))
		return NULL;
	result = PyObject_Vectorcall(args[2], args + 3, (size_t)n - 3, NULL);
	lock_release(args[0]);
	return result;
}

/* Puts right what the function has begun that raised the current exception. */
static void call_settle(PyObject *const *end, size_t n)
{
	struct second s = {.args = end, .n = n};
	PyObject *first = py_exception_taken();

	second_make(&s);
	if (s.error) {
		PyErr_SetObject((PyObject *)Py_TYPE(s.error), s.error);
		PyErr_WriteUnraisable(end[0]);
	}
	Py_XDECREF(s.result);
	Py_XDECREF(s.error);
	PyErr_SetObject((PyObject *)Py_TYPE(first), first);
	Py_DECREF(first);
}

PyObject *py_within(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
	PyObject *result;

	(void)module;
	if (n < 3) {
		PyErr_SetString(PyExc_TypeError,
				"within() takes a lock and two functions");
		return NULL;
	}
	if (!lock_acquire(args[0]))
		return NULL;
	result = PyObject_Vectorcall(args[1], args + 3, (size_t)n - 3, NULL);
	if (!result)
		call_settle(args + 2, (size_t)n - 3);
	lock_release(args[0]);
	return result;
}
