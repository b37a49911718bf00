/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The C methods of rmaext.compat, MPI.Win's interface. What cmethods.h says of
 * the GIL and of references holds here too.
 */
#ifndef RMAEXT_COMPAT_H
#define RMAEXT_COMPAT_H

#include "python/sides.h"

/* types.c: a predefined datatype */
struct py_named {
	uint64_t handle;
	struct rmx_basic basic;
};
const struct py_named *py_find_named(PyObject *datatype);
/*
 * The Layout of any datatype, a new reference. It may run Python, and with that
 * a signal handler: NULL without an exception if there is none, else with it.
 */
PyObject *py_layout_of(PyObject *datatype);
/* The number of an MPI.Op; NULL is the sum. False: it is not known. */
bool py_mpi_op(PyObject *object, int *op_p);

/*
 * buffer.c: takes a buffer into a part, which is zeros at first, and drop ends
 * one whether or not it was taken; and a place at the target, which is a
 * displacement, or (displacement, count, type), by default of the same elements
 * as the origin's. False: Python does it, or knows what is wrong; unless an
 * exception is set.
 */
bool py_part_take(struct py_part *p, PyObject *it, bool write);
bool py_target_take(struct py_window *w, PyObject *units, PyObject *rank,
		    PyObject *target, const struct py_part *origin,
		    struct py_target *t);
void py_part_drop(struct py_part *p);

#endif
