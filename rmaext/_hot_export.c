/* SPDX-License-Identifier: BSD-3-Clause */
/* The type that rmaext.compat.Win inherits from: memory with a buffer. */
#include "_hot.h"

struct exporter {
	PyObject_HEAD void *base;
	Py_ssize_t size;
};

PyDoc_STRVAR(export_doc,
	     "_export($self, address, size, /)\n--\n\n"
	     "Let the buffer protocol show so many bytes at an address.");

static PyObject *exporter_export(struct exporter *e, PyObject *args)
{
	unsigned long long address;
	Py_ssize_t size;

	if (!PyArg_ParseTuple(args, "Kn:_export", &address, &size))
		return NULL;
	e->base = (void *)(uintptr_t)address;
	e->size = size;
	Py_RETURN_NONE;
}

static int exporter_get(struct exporter *e, Py_buffer *view, int flags)
{
	return PyBuffer_FillInfo(view, (PyObject *)e, e->base, e->size, 0,
				 flags);
}

static PyMethodDef exporter_methods[] = {
	{"_export", (PyCFunction)exporter_export, METH_VARARGS, export_doc},
	{NULL, NULL, 0, NULL},
};

static PyBufferProcs exporter_buffer = {
	.bf_getbuffer = (getbufferproc)exporter_get,
};

PyTypeObject hot_exporter_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext._hot.Exporter",
	.tp_doc = "Memory that the buffer protocol shows.",
	.tp_basicsize = sizeof(struct exporter),
	.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
	.tp_new = PyType_GenericNew,
	.tp_methods = exporter_methods,
	.tp_as_buffer = &exporter_buffer,
};
