/* SPDX-License-Identifier: BSD-3-Clause */
/* The module: its interned names, types and constants. */
#define PY_METHODS_MODULE
#include "python/sides.h"

struct py_names py_names;

static bool name_intern(PyObject **name_p, const char *text)
{
	*name_p = PyUnicode_InternFromString(text);
	return *name_p;
}

static bool names_intern_ops(void)
{
	static const char *const names[RMX_OPS] = {
#define PY_OP(name, number) [RMAEXT_##number] = #name,
		PY_DECLARED_OPS(PY_OP)
#undef PY_OP
	};

	for (int op = 0; op < RMX_OPS; op++)
		if (names[op] && !name_intern(&py_names.ops[op], names[op]))
			return false;
	return true;
}

static bool names_intern(void)
{
	static const struct {
		PyObject **name_p;
		const char *text;
	} names[] = {
#define PY_NAME(name) {&py_names.name, #name},
#define PY_METHOD_NAME(name) {&py_names.name, "_" #name},
		PY_NAMES(PY_NAME) PY_METHOD_NAMES(PY_METHOD_NAME)
#undef PY_NAME
#undef PY_METHOD_NAME
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!name_intern(names[i].name_p, names[i].text))
			return false;
	py_names.zero = PyLong_FromLong(0);
	return py_names.zero && names_intern_ops();
}

/*
 * May this thread call MPI? Not with the GIL held: MPI may run functions of the
 * program in any thread, and the call could wait for a thread that waits for
 * the GIL. `alone`: MPI allows one thread only, so Python must not have
 * another, except for threads of ours that never call MPI.
 */
static bool thread_may_call_mpi(bool alone)
{
	PyGILState_STATE state;
	PyThreadState *thread;
	int others = -1 - rmx_mpi_aside();

	if (PyGILState_Check())
		return false;
	if (!alone)
		return true;
	state = PyGILState_Ensure();
	thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
	for (; thread; thread = PyThreadState_Next(thread))
		others++;
	PyGILState_Release(state);
	return others <= 0;
}

static bool module_add_made(PyObject *module, const char *name,
			    PyType_Spec *spec)
{
	PyObject *type = PyType_FromSpec(spec);
	const bool added = type && !PyModule_AddObjectRef(module, name, type);

	Py_XDECREF(type);
	return added;
}

static int module_exec(PyObject *module)
{
	rmx_mpi_asks(thread_may_call_mpi);
	if (PyArray_ImportNumPyAPI() || !names_intern() || !py_find_ffi() ||
	    PyModule_AddType(module, &py_window_type) ||
	    PyModule_AddType(module, &py_buffer_type) ||
	    PyModule_AddType(module, &py_prepared_type) ||
	    PyModule_AddType(module, &py_owner_type) ||
	    PyModule_AddType(module, &py_endpoint_type) ||
	    PyModule_AddType(module, &py_win_type) ||
	    PyModule_AddType(module, &py_layout_type) ||
	    !module_add_made(module, "With", &py_with_spec) ||
	    !module_add_made(module, "Locks", &py_locks_spec) ||
	    !module_add_made(module, "Request", &py_request_spec) ||
	    PyModule_AddIntConstant(module, "PUT", RMAEXT_PUT) ||
	    PyModule_AddIntConstant(module, "GET", RMAEXT_GET) ||
	    PyModule_AddIntConstant(module, "FETCH_ADD", RMAEXT_UPDATE) ||
	    PyModule_AddIntConstant(module, "BUILD", RMX_BUILD))
		return -1;
	return 0;
}

static PyMethodDef functions[] = {PY_FUNCTIONS};

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, (void *)module_exec},
	{0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "rmaext._native.cmethods",
	.m_doc = "Operations without Python in between.",
	.m_methods = functions,
	.m_slots = slots,
};

PyMODINIT_FUNC PyInit_cmethods(void);

PyMODINIT_FUNC PyInit_cmethods(void)
{
	return PyModuleDef_Init(&definition);
}
