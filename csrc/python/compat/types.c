/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * MPI's datatypes and operations. Python tells of the predefined ones, which
 * are known here by their handles: several objects of mpi4py may stand for
 * one. The layout of any other datatype is asked of Python once, and kept for
 * its object as long as that has the same handle, and until MPI says that the
 * datatype is freed, whose handle another may get.
 */
#include "python/compat/compat.h"

#define MOST_TYPES 128
#define KNOWN 256
#define KNOWN_RUNS 4096 /* of a layout, at most */

static struct py_named named[MOST_TYPES];
static int named_count;

/* Of mpi4py's Datatype: the type, and where an object has the handle. */
static PyTypeObject *datatype_type;
static size_t handle_at, handle_bytes;
static PyObject *make_layout;

static uint64_t handle_of(PyObject *datatype)
{
	uint64_t handle = 0;

	memcpy(&handle, (char *)datatype + handle_at, handle_bytes);
	return handle;
}

PyObject *py_mpi_types(PyObject *module, PyObject *args)
{
	PyObject *list, *type, *make;
	Py_ssize_t at, bytes;

	(void)module;
	if (!PyArg_ParseTuple(args, "O!O!nnO:mpi_types", &PyList_Type, &list,
			      &PyType_Type, &type, &at, &bytes, &make))
		return NULL;
	if (PyList_GET_SIZE(list) > MOST_TYPES || at <= 0 || bytes <= 0 ||
	    bytes > (Py_ssize_t)sizeof(uint64_t)) {
		PyErr_Format(PyExc_ValueError,
			     "mpi_types() takes a list of at most %d types, "
			     "and handles of at most %zu bytes",
			     MOST_TYPES, sizeof(uint64_t));
		return NULL;
	}
	handle_at = (size_t)at;
	handle_bytes = (size_t)bytes;
	named_count = 0;
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		struct py_named *it = &named[i];
		unsigned long long unit;
		PyObject *object;
		int gaps;

		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "O!iKp", type,
				      &object, &it->basic.type, &unit, &gaps))
			return NULL;
		it->handle = handle_of(object);
		it->basic.unit = unit;
		it->basic.gaps = gaps;
		named_count++;
	}
	datatype_type = (PyTypeObject *)Py_NewRef(type);
	make_layout = Py_NewRef(make);
	Py_RETURN_NONE;
}

static bool is_datatype(PyObject *object)
{
	return datatype_type && PyObject_TypeCheck(object, datatype_type);
}

const struct py_named *py_find_named(PyObject *object)
{
	uint64_t handle;

	if (!is_datatype(object))
		return NULL;
	handle = handle_of(object);
	for (int i = 0; i < named_count; i++)
		if (named[i].handle == handle)
			return &named[i];
	return NULL;
}

/* -- layouts */

struct known {
	PyObject *object; /* a reference, so that its address stays its own */
	PyObject *layout;
	uint64_t handle;
};

static struct known known[KNOWN];

static struct known *known_slot(PyObject *object)
{
	const uintptr_t bits = (uintptr_t)object >> 4;

	return &known[(bits ^ bits >> 8) % KNOWN];
}

PyObject *py_layout_of(PyObject *datatype)
{
	struct known *it = known_slot(datatype), old;
	PyObject *layout;
	uint64_t handle;

	if (!is_datatype(datatype))
		return NULL;
	handle = handle_of(datatype);
	if (it->object == datatype && it->handle == handle)
		return Py_NewRef(it->layout);
	layout = PyObject_CallOneArg(make_layout, datatype);
	if (!layout)
		return NULL;
	if (!PyObject_TypeCheck(layout, &py_layout_type)) {
		Py_DECREF(layout);
		return NULL;
	}
	if (((struct py_layout *)layout)->it->runs > KNOWN_RUNS)
		return layout; /* Python keeps it, as long as the datatype */
	old = *it;
	*it = (struct known){Py_NewRef(datatype), Py_NewRef(layout), handle};
	Py_XDECREF(old.object); /* these may run Python, which may come here */
	Py_XDECREF(old.layout);
	return layout;
}

PyObject *py_mpi_forget(PyObject *module, PyObject *args)
{
	PyObject *datatype, *keyval, *layout;
	uint64_t handle;

	(void)module;
	if (!PyArg_ParseTuple(args, "O!OO:mpi_forget", datatype_type, &datatype,
			      &keyval, &layout))
		return NULL;
	handle = handle_of(datatype);
	for (struct known *it = known; it < known + KNOWN; it++) {
		const struct known old = *it;

		if (!old.object || old.handle != handle)
			continue;
		*it = (struct known){0};
		Py_DECREF(old.object);
		Py_DECREF(old.layout);
	}
	Py_RETURN_NONE;
}

PyObject *py_mpi_layout(PyObject *module, PyObject *datatype)
{
	PyObject *layout = py_layout_of(datatype);

	(void)module;
	if (!layout && !PyErr_Occurred())
		PyErr_SetString(PyExc_ValueError,
				"no datatype, or one that was freed");
	return layout;
}

/* -- operations */

static struct {
	PyObject *object;
	int number;
} ops[RMX_OPS];
static int ops_count;

PyObject *py_mpi_ops(PyObject *module, PyObject *list)
{
	(void)module;
	if (!PyList_Check(list) || PyList_GET_SIZE(list) > RMX_OPS) {
		PyErr_Format(PyExc_ValueError,
			     "mpi_ops() takes a list of at most %d operations",
			     (int)RMX_OPS);
		return NULL;
	}
	ops_count = 0;
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "Oi",
				      &ops[i].object, &ops[i].number))
			return NULL;
		Py_INCREF(ops[i].object);
		ops_count++;
	}
	Py_RETURN_NONE;
}

bool py_mpi_op(PyObject *object, int *op_p)
{
	*op_p = RMAEXT_SUM;
	if (!object)
		return true;
	for (int i = 0; i < ops_count; i++) {
		*op_p = ops[i].number;
		if (ops[i].object == object)
			return true;
	}
	return false;
}
