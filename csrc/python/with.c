/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What `with` calls: With, a base of the classes that have to do with others at
 * the end of a block. And what releases locks: Locks, a base of windows.
 *
 * A signal handler may raise where a function of Python's begins. Raised at the
 * beginning of an __enter__ or __exit__ in Python, its exception would leave
 * the block, and nothing would be ended. These are functions of C: whatever
 * their Python parts raise, _forsake() is told.
 */
#include "python/cmethods.h"

/* Calls a method of `self` because of the current exception, which goes on:
 * with that, or with `args`. A second signal may divide the first attempt; of a
 * third one Python tells on stderr. */
static PyObject *because(PyObject *self, PyObject *name, PyObject *const *args,
			 Py_ssize_t n, PyObject *names)
{
	PyObject *error = py_exception_taken();
	PyObject *method = PyObject_GetAttr(self, name), *done = NULL;

	for (int tries = 0; method && !done && tries < 2; tries++) {
		PyErr_Clear();
		done = args ? PyObject_Vectorcall(method, args, (size_t)n,
						  names)
			    : PyObject_CallOneArg(method, error);
	}
	if (!done)
		PyErr_WriteUnraisable(self);
	Py_XDECREF(done);
	Py_XDECREF(method);
	/* as it was: its context too */
	PyErr_Restore(Py_NewRef(Py_TYPE(error)), error,
		      PyException_GetTraceback(error));
	return NULL;
}

static PyObject *with_forsake(PyObject *self)
{
	return because(self, py_names.forsake, NULL, 0, NULL);
}

PyObject *py_surely(PyObject *self, PyObject *name, PyObject *otherwise,
		    PyObject *const *args, Py_ssize_t n, PyObject *names)
{
	PyObject *method = PyObject_GetAttr(self, name), *result;

	if (!method)
		return NULL;
	result = PyObject_Vectorcall(method, args, (size_t)n, names);
	Py_DECREF(method);
	return result ? result : because(self, otherwise, args, n, names);
}

static PyObject *with_enter(PyObject *self, PyObject *none)
{
	PyObject *entered = PyObject_CallMethodNoArgs(self, py_names.enter);

	(void)none;
	return entered ? entered : with_forsake(self);
}

static PyObject *with_exit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
	PyObject *left;

	if (n != 3) {
		PyErr_SetString(PyExc_TypeError,
				"__exit__() takes three arguments");
		return NULL;
	}
	left = PyObject_CallMethodObjArgs(self, py_names.exit, args[0], args[1],
					  args[2], NULL);
	return left ? left : with_forsake(self);
}

static PyMethodDef with_methods[] = {
	{"__enter__", (PyCFunction)with_enter, METH_NOARGS, NULL},
	{"__exit__", (PyCFunction)(void (*)(void))with_exit, METH_FASTCALL,
	 NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot with_slots[] = {
	{Py_tp_methods, with_methods},
	{Py_tp_doc, (void *)PY_DOC_with},
	{0, NULL},
};

/* Made when the module is: one that is static would have a __new__ of its own,
 * which is not that of the other bases. */
PyType_Spec py_with_spec = {
	.name = "rmaext._native.cmethods.With",
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = with_slots,
};

PY_SURELY(locks, unlock, release_anyway);

PY_SURELY(locks, unlock_all, release_all_anyway);

static PyMethodDef locks_methods[] = {PY_METHODS_locks};

static PyType_Slot locks_slots[] = {
	{Py_tp_methods, locks_methods},
	{Py_tp_doc, (void *)PY_DOC_locks},
	{0, NULL},
};

PyType_Spec py_locks_spec = {
	.name = "rmaext._native.cmethods.Locks",
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = locks_slots,
};
