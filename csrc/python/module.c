/* SPDX-License-Identifier: BSD-3-Clause */
/* The module: its interned names, types and constants. */
#define PY_METHODS_MODULE
#include "python/compat.h"

struct py_names py_names;

static bool name_intern(PyObject **name_p, const char *text)
{
	*name_p = PyUnicode_InternFromString(text);
	return *name_p;
}

static bool names_intern_ops(void)
{
	static const char *const names[RMX_OPS] = {
		[RMAEXT_MIN] = "min",	    [RMAEXT_MAX] = "max",
		[RMAEXT_SUM] = "sum",	    [RMAEXT_PROD] = "prod",
		[RMAEXT_LOR] = "lor",	    [RMAEXT_LAND] = "land",
		[RMAEXT_BOR] = "bor",	    [RMAEXT_BAND] = "band",
		[RMAEXT_LXOR] = "lxor",	    [RMAEXT_BXOR] = "bxor",
		[RMAEXT_NO_OP] = "no_op",   [RMAEXT_REPLACE] = "replace",
		[RMAEXT_MINLOC] = "minloc", [RMAEXT_MAXLOC] = "maxloc",
	};

	for (int op = 0; op < RMX_OPS; op++)
		if (names[op] && !name_intern(&py_names.ops[op], names[op]))
			return false;
	return true;
}

static bool names_intern(void)
{
	py_names.zero = PyLong_FromLong(0);
	return py_names.zero && names_intern_ops() &&
	       name_intern(&py_names.origin, "origin") &&
	       name_intern(&py_names.rank, "rank") &&
	       name_intern(&py_names.offset, "offset") &&
	       name_intern(&py_names.count, "count") &&
	       name_intern(&py_names.out, "out") &&
	       name_intern(&py_names.value, "value") &&
	       name_intern(&py_names.compare, "compare") &&
	       name_intern(&py_names.put, "_put") &&
	       name_intern(&py_names.get, "_get") &&
	       name_intern(&py_names.fetch_add, "_fetch_add") &&
	       name_intern(&py_names.compare_and_swap, "_compare_and_swap") &&
	       name_intern(&py_names.flush, "_flush") &&
	       name_intern(&py_names.ranks, "ranks") &&
	       name_intern(&py_names.offsets, "offsets") &&
	       name_intern(&py_names.values, "values") &&
	       name_intern(&py_names.op, "op") &&
	       name_intern(&py_names.accumulate, "_accumulate") &&
	       name_intern(&py_names.get_accumulate, "_get_accumulate") &&
	       name_intern(&py_names.fetch_op, "_fetch_op") &&
	       name_intern(&py_names.load, "_load") &&
	       name_intern(&py_names.store, "_store") &&
	       name_intern(&py_names.fetch_op_many, "_fetch_op_many") &&
	       name_intern(&py_names.put_many, "_put_many") &&
	       name_intern(&py_names.get_many, "_get_many") &&
	       name_intern(&py_names.fetch_add_many, "_fetch_add_many") &&
	       name_intern(&py_names.accumulate_many, "_accumulate_many") &&
	       name_intern(&py_names.slot, "slot") &&
	       name_intern(&py_names.timeout, "timeout") &&
	       name_intern(&py_names.put_notify, "_put_notify") &&
	       name_intern(&py_names.wait_notify, "_wait_notify") &&
	       name_intern(&py_names.test_notify, "_test_notify") &&
	       name_intern(&py_names.getitem, "_getitem") &&
	       name_intern(&py_names.setitem, "_setitem") &&
	       name_intern(&py_names.key, "key") &&
	       name_intern(&py_names.rput, "_rput") &&
	       name_intern(&py_names.rget, "_rget") &&
	       name_intern(&py_names.rput_notify, "_rput_notify") &&
	       name_intern(&py_names.drop, "_drop") &&
	       name_intern(&py_names.wait, "_wait") &&
	       name_intern(&py_names.shapes, "_shapes") &&
	       name_intern(&py_names.transfer, "_transfer") &&
	       name_intern(&py_names.target_rank, "target_rank") &&
	       name_intern(&py_names.target, "target") &&
	       name_intern(&py_names.target_disp, "target_disp") &&
	       name_intern(&py_names.result, "result") &&
	       name_intern(&py_names.report, "_report") &&
	       name_intern(&py_names.Put, "_Put") &&
	       name_intern(&py_names.Get, "_Get") &&
	       name_intern(&py_names.Accumulate, "_Accumulate") &&
	       name_intern(&py_names.Get_accumulate, "_Get_accumulate") &&
	       name_intern(&py_names.Fetch_and_op, "_Fetch_and_op") &&
	       name_intern(&py_names.Compare_and_swap, "_Compare_and_swap") &&
	       name_intern(&py_names.Flush, "_Flush") &&
	       name_intern(&py_names.Rput, "_Rput") &&
	       name_intern(&py_names.Rget, "_Rget") &&
	       name_intern(&py_names.Raccumulate, "_Raccumulate") &&
	       name_intern(&py_names.Rget_accumulate, "_Rget_accumulate") &&
	       name_intern(&py_names.acquire, "acquire") &&
	       name_intern(&py_names.release, "release") &&
	       name_intern(&py_names.reap, "reap") &&
	       name_intern(&py_names._fence, "_fence") &&
	       name_intern(&py_names._fence_on, "_fence_on") &&
	       name_intern(&py_names.abandon_fence, "abandon_fence") &&
	       name_intern(&py_names._unlock, "_unlock") &&
	       name_intern(&py_names._unlock_all, "_unlock_all") &&
	       name_intern(&py_names._release_anyway, "_release_anyway") &&
	       name_intern(&py_names._release_all_anyway,
			   "_release_all_anyway") &&
	       name_intern(&py_names._Unlock, "_Unlock") &&
	       name_intern(&py_names._Unlock_all, "_Unlock_all") &&
	       name_intern(&py_names._unlock_anyway, "_unlock_anyway") &&
	       name_intern(&py_names._unlock_all_anyway,
			   "_unlock_all_anyway") &&
	       name_intern(&py_names._enter, "_enter") &&
	       name_intern(&py_names._exit, "_exit") &&
	       name_intern(&py_names._forsake, "_forsake");
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
	    PyModule_AddFunctions(module, py_functions) ||
	    PyModule_AddType(module, &py_window_type) ||
	    PyModule_AddType(module, &py_buffer_type) ||
	    PyModule_AddType(module, &py_prepared_type) ||
	    PyModule_AddType(module, &py_win_type) ||
	    PyModule_AddType(module, &py_layout_type) ||
	    !module_add_made(module, "With", &py_with_spec) ||
	    !module_add_made(module, "Locks", &py_locks_spec) ||
	    !module_add_made(module, "Request", &py_request_spec) ||
	    PyModule_AddIntConstant(module, "PUT", RMX_PUT) ||
	    PyModule_AddIntConstant(module, "GET", RMX_GET) ||
	    PyModule_AddIntConstant(module, "FETCH_ADD", RMX_UPDATE) ||
	    PyModule_AddIntConstant(module, "BUILD", RMX_BUILD))
		return -1;
	return 0;
}

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, (void *)module_exec},
	{0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "rmaext._native.cmethods",
	.m_doc = "Operations without Python in between.",
	.m_methods = py_compat_methods,
	.m_slots = slots,
};

PyMODINIT_FUNC PyInit_cmethods(void);

PyMODINIT_FUNC PyInit_cmethods(void)
{
	return PyModuleDef_Init(&definition);
}
