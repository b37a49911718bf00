/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The functions that MPI calls for the requests of rmaext.compat.requests. They
 * run without the GIL, and call neither Python nor MPI, which may hold a lock
 * of its own around them.
 */
#include "python/compat/compat.h"

#include <sched.h>

#define NAP 20000 /* ns */

/* The state of a request, whose address MPI has. */
struct state {
	int holders; /* 2: MPI, and the thread that ends the request */
	int code;    /* of the error that MPI's wait is to return */
	size_t nbytes;
	char status[]; /* of success, as MPI lays it out */
};

static void state_release(struct state *s)
{
	if (!__atomic_sub_fetch(&s->holders, 1, __ATOMIC_ACQ_REL))
		free(s);
}

static int grequest_query(void *state, void *status)
{
	const struct state *s = state;

	memcpy(status, s->status, s->nbytes);
	return s->code;
}

static int grequest_free(void *state)
{
	state_release(state);
	return 0;
}

static int grequest_cancel(void *state, int complete)
{
	(void)state;
	(void)complete;
	return 0;
}

/* MPICH calls this whenever it looks at the request, so in Wait all the time.
 */
static int grequest_poll(void *state, void *status)
{
	(void)state;
	(void)status;
	sched_yield();
	return 0;
}

/* MPICH's Waitall calls this again and again until the request is complete. */
static int grequest_wait(int count, void **states, double timeout, void *status)
{
	(void)count;
	(void)states;
	(void)timeout;
	(void)status;
	rmx_sleep(NAP);
	return 0;
}

PyObject *py_mpi_request_functions(PyObject *module, PyObject *args)
{
	(void)module;
	(void)args;
	return Py_BuildValue("(KKKKK)",
			     (unsigned long long)(uintptr_t)grequest_query,
			     (unsigned long long)(uintptr_t)grequest_free,
			     (unsigned long long)(uintptr_t)grequest_cancel,
			     (unsigned long long)(uintptr_t)grequest_poll,
			     (unsigned long long)(uintptr_t)grequest_wait);
}

PyObject *py_mpi_request_new(PyObject *module, PyObject *status)
{
	struct state *s;

	(void)module;
	if (!PyBytes_Check(status)) {
		PyErr_SetString(PyExc_TypeError,
				"mpi_request_new() takes a status as bytes");
		return NULL;
	}
	s = malloc(sizeof(*s) + (size_t)PyBytes_GET_SIZE(status));
	if (!s)
		return PyErr_NoMemory();
	s->holders = 2;
	s->code = 0;
	s->nbytes = (size_t)PyBytes_GET_SIZE(status);
	memcpy(s->status, PyBytes_AS_STRING(status), s->nbytes);
	return PyLong_FromVoidPtr(s);
}

PyObject *py_mpi_request_end(PyObject *module, PyObject *args)
{
	unsigned long long address;
	struct state *s;
	int code;

	(void)module;
	if (!PyArg_ParseTuple(args, "Ki:mpi_request_end", &address, &code))
		return NULL;
	s = (struct state *)(uintptr_t)address;
	s->code = code; /* MPI reads it after MPI_Grequest_complete only */
	state_release(s);
	Py_RETURN_NONE;
}
