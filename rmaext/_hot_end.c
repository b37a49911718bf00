/* SPDX-License-Identifier: BSD-3-Clause */
/* What must end although signal handlers raise. */
#include "_hot.h"

static PyObject *exception_taken(void)
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

/*
 * Python looks for signals after calls and at jumps back, also at those of an
 * `except`, where the next signal's exception would end what that was to do.
 * It does not here, between one try and the next.
 */
static PyObject *to_the_end(PyObject *module, PyObject *const *args,
			    Py_ssize_t n)
{
	PyObject *last = Py_NewRef(Py_None), *result, *both;

	(void)module;
	if (n < 2) {
		PyErr_SetString(PyExc_TypeError, "to_the_end: no function");
		Py_DECREF(last);
		return NULL;
	}
	while (!(result = PyObject_Vectorcall(args[1], args + 2, (size_t)n - 2,
					      NULL))) {
		if (PyErr_ExceptionMatches(args[0])) {
			Py_DECREF(last);
			return NULL;
		}
		Py_SETREF(last, exception_taken());
	}
	both = PyTuple_Pack(2, result, last);
	Py_DECREF(result);
	Py_DECREF(last);
	return both;
}

PyMethodDef hot_functions[] = {
	{"to_the_end", (PyCFunction)(void (*)(void))to_the_end, METH_FASTCALL,
	 PyDoc_STR("to_the_end($module, failures, function, /, "
		   "*arguments)\n--\n\n"
		   "Call a function until no signal handler raises in it.\n"
		   "\n"
		   "It must go on where it was. Returns its result, and the "
		   "last\n"
		   "such exception or None. `failures` are what it raises "
		   "itself:\n"
		   "after one of these it is not called again.")},
	{NULL, NULL, 0, NULL},
};
