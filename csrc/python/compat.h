/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The C methods of rmaext.compat, MPI.Win's interface. What cmethods.h says of
 * the GIL and of references holds here too.
 */
#ifndef RMAEXT_COMPAT_H
#define RMAEXT_COMPAT_H

#include "python/cmethods.h"

/*
 * compat_derived.c: MPI's derived datatypes, and so many elements of one (type
 * NULL: bytes in one piece). find returns NULL where the type is not known;
 * then Python does it. What find returns is valid until Python runs.
 */
struct py_derived;
struct py_side {
	const struct py_derived *type;
	int64_t count;
	uint64_t bytes; /* of all elements */
};

const struct py_derived *py_find_derived(PyObject *object);
uint64_t py_derived_bytes(const struct py_derived *type);
int64_t py_derived_extent(const struct py_derived *type);
enum py_outcome py_move_derived(struct py_window *w, bool put,
				const struct py_side *here, char *data,
				const struct py_side *there, int64_t rank,
				uint64_t offset);
/* functions of the module */
PyObject *py_mpi_derived(PyObject *module, PyObject *args);
PyObject *py_mpi_forget(PyObject *module, PyObject *ignored);
extern const char py_mpi_derived_doc[], py_mpi_forget_doc[];

/* compat_request.c: functions of the module, for generalized requests of MPI */
PyObject *py_mpi_request_functions(PyObject *module, PyObject *ignored);
PyObject *py_mpi_request_new(PyObject *module, PyObject *status);
PyObject *py_mpi_request_end(PyObject *module, PyObject *args);
extern const char py_mpi_request_functions_doc[], py_mpi_request_new_doc[],
	py_mpi_request_end_doc[];

/* A buffer that a caller gave: count elements of `unit` bytes each. */
struct py_part {
	char *data;
	uint64_t count, unit;
	int number;
	bool gaps;
	const struct py_derived *derived; /* of such elements; or NULL */
	PyObject *owner; /* keeps data alive; NULL: only `view` does */
	Py_buffer view;
};

/*
 * compat_buffer.c: takes a buffer, or one of the same elements as the origin's;
 * and the place at the target, where a derived type is on neither side, or on
 * any. False: Python does it, or knows what is wrong. Whether or not it was
 * taken, the caller drops each part, which is zeros before.
 */
bool py_part_take(struct py_part *p, PyObject *it, bool write);
bool py_part_take_like(struct py_part *p, PyObject *it, bool write,
		       const struct py_part *origin);
void py_part_drop(struct py_part *p);
bool py_target_take(struct py_window *w, PyObject *units, PyObject *rank,
		    PyObject *target, const struct py_part *p, int64_t *rank_p,
		    uint64_t *offset_p);
bool py_target_take_sides(struct py_window *w, PyObject *units, PyObject *rank,
			  PyObject *target, const struct py_part *p,
			  struct py_side *here, struct py_side *there,
			  int64_t *rank_p, uint64_t *offset_p);
/* The number of an MPI.Op; NULL is the sum. False: it is not known. */
bool py_mpi_op(PyObject *object, int *op_p);
/* functions of the module */
PyObject *py_mpi_types(PyObject *module, PyObject *list);
PyObject *py_mpi_ops(PyObject *module, PyObject *list);
extern const char py_mpi_types_doc[], py_mpi_ops_doc[];

/*
 * compat.c: operations of MPI.Win, in bytes of a window. units has each rank's
 * displacement unit. They do what is plain; put and get may release the GIL.
 */
extern PyMethodDef py_compat_methods[];
enum py_outcome py_mpi_move(struct py_window *w, PyObject *units,
			    PyObject *buffer, PyObject *rank, PyObject *target,
			    bool put);
/*
 * old: the buffer for what there was, or NULL. single: more or fewer elements
 * than one are left to Python.
 */
enum py_outcome py_mpi_update(struct py_window *w, PyObject *units,
			      PyObject *buffer, PyObject *old, PyObject *rank,
			      PyObject *target, int op, bool single);
enum py_outcome py_mpi_swap(struct py_window *w, PyObject *units,
			    PyObject *buffer, PyObject *wanted, PyObject *old,
			    PyObject *rank, PyObject *disp);

#endif
