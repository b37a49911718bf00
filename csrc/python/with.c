/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What `with` calls: With, a base of the classes that have to do with others at
 * the end of a block.
 *
 * A signal handler may raise where a function of Python's begins. Raised at the
 * beginning of an __enter__ or __exit__ in Python, its exception would leave
 * the block, and nothing would be ended. These are functions of C: whatever
 * their Python parts raise, _forsake() is told.
 */
#include "python/cmethods.h"

/* Tell of the current exception, which goes on. A second signal may divide the
 * first attempt; what a third one does is told to nobody. */
static PyObject *with_forsake(PyObject *self)
{
	PyObject *type, *error, *trace, *done = NULL;

	PyErr_Fetch(&type, &error, &trace);
	PyErr_NormalizeException(&type, &error, &trace);
	if (trace)
		PyException_SetTraceback(error, trace);
	for (int tries = 0; !done && tries < 2; tries++) {
		PyErr_Clear();
		done = PyObject_CallMethodOneArg(self, py_names._forsake,
						 error);
	}
	if (!done)
		PyErr_WriteUnraisable(self);
	Py_XDECREF(done);
	PyErr_Restore(type, error, trace);
	return NULL;
}

static PyObject *with_enter(PyObject *self, PyObject *none)
{
	PyObject *entered = PyObject_CallMethodNoArgs(self, py_names._enter);

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
	left = PyObject_CallMethodObjArgs(self, py_names._exit, args[0],
					  args[1], args[2], NULL);
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
	{Py_tp_doc,
	 (void *)"Calls _enter() and _exit(); _forsake(error) if one raises."},
	{0, NULL},
};

/* Made when the module is: one that is static would have a __new__ of its own,
 * which is not that of the other bases. */
PyType_Spec py_with_spec = {
	.name = "rmaext._native.cmethods.With",
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.slots = with_slots,
};
