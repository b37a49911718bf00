/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The buffers and targets of MPI.Win's operations, as mpi4py's callers write
 * them: a buffer, or a list of it with a count and a datatype. Python tells of
 * the predefined datatypes and operations, which are known here by the objects
 * of mpi4py that stand for them.
 */
#include "python/compat.h"

#define MOST_TYPES 128

/* A predefined type. */
struct named {
	PyObject *object;
	int number;    /* RMAEXT_INT8 and so on, or -1: no updates */
	uint64_t unit; /* bytes from one element to the next */
	bool gaps;     /* between elements, or in them */
};

static struct named named[MOST_TYPES];
static int named_count;

const char py_mpi_types_doc[] =
	PyDoc_STR("mpi_types(types, /)\n--\n\n"
		  "Tell of predefined types: a list of (Datatype, number of an "
		  "update's type or -1,\nextent, whether it has gaps).");

PyObject *py_mpi_types(PyObject *module, PyObject *list)
{
	(void)module;
	if (!PyList_Check(list) || PyList_GET_SIZE(list) > MOST_TYPES) {
		PyErr_Format(PyExc_ValueError,
			     "mpi_types() takes a list of at most %d types",
			     MOST_TYPES);
		return NULL;
	}
	named_count = 0;
	for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
		struct named *it = &named[i];
		unsigned long long unit;
		int gaps;

		if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "OiKp",
				      &it->object, &it->number, &unit, &gaps))
			return NULL;
		Py_INCREF(it->object);
		it->unit = unit;
		it->gaps = gaps;
		named_count++;
	}
	Py_RETURN_NONE;
}

static struct {
	PyObject *object;
	int number;
} ops[RMX_OPS];
static int ops_count;

const char py_mpi_ops_doc[] =
	PyDoc_STR("mpi_ops(ops, /)\n--\n\n"
		  "Tell of operations: a list of (Op, its number).");

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

static const struct named *named_find(PyObject *object)
{
	for (int i = 0; i < named_count; i++)
		if (named[i].object == object)
			return &named[i];
	return NULL;
}

static int type_number(int type_num)
{
	static const int numbers[] = {
		[NPY_BOOL] = RMAEXT_BOOL,
		[NPY_BYTE] = RMAEXT_INT8,
		[NPY_UBYTE] = RMAEXT_UINT8,
		[NPY_SHORT] = RMAEXT_INT16,
		[NPY_USHORT] = RMAEXT_UINT16,
		[NPY_INT] = RMAEXT_INT32,
		[NPY_UINT] = RMAEXT_UINT32,
		[NPY_LONG] = sizeof(long) == 8 ? RMAEXT_INT64 : RMAEXT_INT32,
		[NPY_ULONG] = sizeof(long) == 8 ? RMAEXT_UINT64 : RMAEXT_UINT32,
		[NPY_LONGLONG] = RMAEXT_INT64,
		[NPY_ULONGLONG] = RMAEXT_UINT64,
		[NPY_FLOAT] = RMAEXT_FLOAT,
		[NPY_DOUBLE] = RMAEXT_DOUBLE,
		[NPY_LONGDOUBLE] = RMAEXT_LONG_DOUBLE,
		[NPY_CFLOAT] = RMAEXT_FLOAT_COMPLEX,
		[NPY_CDOUBLE] = RMAEXT_DOUBLE_COMPLEX,
		[NPY_CLONGDOUBLE] = RMAEXT_LONG_DOUBLE_COMPLEX,
	};

	return type_num >= 0 && type_num < (int)(sizeof(numbers) / sizeof(int))
		       ? numbers[type_num]
		       : -1;
}

/* The type that a buffer's format of one letter means, or -1. */
static int format_number(const char *format)
{
	static const char letters[] = "?bBhHiIlLqQfdg";
	static const int types[] = {
		NPY_BOOL,   NPY_BYTE,	    NPY_UBYTE,	   NPY_SHORT,
		NPY_USHORT, NPY_INT,	    NPY_UINT,	   NPY_LONG,
		NPY_ULONG,  NPY_LONGLONG,   NPY_ULONGLONG, NPY_FLOAT,
		NPY_DOUBLE, NPY_LONGDOUBLE,
	};
	const char *found;

	if (!format)
		return RMAEXT_UINT8;
	found = *format && !format[1] ? strchr(letters, *format) : NULL;
	return found ? type_number(types[found - letters]) : -1;
}

/* Takes the memory of an object; typed: with the type of its elements. */
static bool part_take_memory(struct py_part *p, PyObject *it, bool write,
			     bool typed)
{
	PyArrayObject *array = (PyArrayObject *)it;
	int flags = PyBUF_ANY_CONTIGUOUS;

	if (PyArray_CheckExact(it)) {
		if (!PyArray_ISONESEGMENT(array) ||
		    (write && !PyArray_ISWRITEABLE(array)))
			return false;
		p->data = PyArray_DATA(array);
		p->owner = it;
		p->count = (uint64_t)PyArray_NBYTES(array);
		if (!typed)
			return !PyDataType_REFCHK(PyArray_DESCR(array));
		p->number = type_number(PyArray_TYPE(array));
		p->unit = (uint64_t)PyArray_ITEMSIZE(array);
		p->count = (uint64_t)PyArray_SIZE(array);
		return p->number >= 0 &&
		       PyArray_ISNBO(PyArray_DESCR(array)->byteorder);
	}
	if (!PyObject_CheckBuffer(it))
		return false;
	flags |= write ? PyBUF_WRITABLE : 0;
	flags |= typed ? PyBUF_FORMAT : 0;
	if (PyObject_GetBuffer(it, &p->view, flags)) {
		PyErr_Clear();
		return false;
	}
	p->data = p->view.buf;
	p->count = (uint64_t)p->view.len;
	if (!typed)
		return true;
	p->number = format_number(p->view.format);
	p->unit = (uint64_t)p->view.itemsize;
	if (p->number < 0 || !p->unit)
		return false;
	p->count /= p->unit;
	return true;
}

/* Takes as many elements as are wanted, or as fill so many bytes. */
static bool part_take_count(struct py_part *p, PyObject *wanted, uint64_t bytes)
{
	const int64_t extent =
		p->derived ? py_derived_extent(p->derived) : (int64_t)p->unit;
	int64_t count;

	if (!wanted) {
		if (extent <= 0 || bytes % (uint64_t)extent)
			return false;
		p->count = bytes / (uint64_t)extent;
		return true;
	}
	if (!py_to_index(wanted, &count))
		return false;
	p->count = (uint64_t)count;
	/* a derived type may well lead out of the buffer */
	return p->derived || p->count <= bytes / p->unit;
}

/* Takes buffer, [buffer, type] or [buffer, count, type]. */
bool py_part_take(struct py_part *p, PyObject *it, bool write)
{
	const struct named *type;
	PyObject **items;
	Py_ssize_t n;

	p->unit = 1;
	p->number = -1;
	if (!PyList_CheckExact(it) && !PyTuple_CheckExact(it))
		return part_take_memory(p, it, write, true);
	n = PySequence_Fast_GET_SIZE(it);
	items = PySequence_Fast_ITEMS(it);
	if (n != 2 && n != 3)
		return false;
	type = named_find(items[n - 1]);
	if (!type)
		p->derived = py_find_derived(items[n - 1]);
	if ((!type && !p->derived) ||
	    !part_take_memory(p, items[0], write, false))
		return false;
	if (type) {
		p->number = type->number;
		p->unit = type->unit;
		p->gaps = type->gaps;
	}
	return part_take_count(p, n == 3 ? items[1] : NULL, p->count);
}

void py_part_drop(struct py_part *p)
{
	if (p->view.obj)
		PyBuffer_Release(&p->view);
}

/* An item of a tuple or list; NULL: there is none. */
static PyObject *sequence_item(PyObject *of, int64_t at)
{
	if ((!PyTuple_CheckExact(of) && !PyList_CheckExact(of)) ||
	    at >= PySequence_Fast_GET_SIZE(of))
		return NULL;
	return PySequence_Fast_ITEMS(of)[at];
}

/* Takes a rank, and a displacement as bytes. */
static bool target_take_offset(struct py_window *w, PyObject *units,
			       PyObject *rank, PyObject *it, int64_t *rank_p,
			       uint64_t *offset_p)
{
	int64_t disp = 0, unit;
	PyObject *other;

	if (!py_is_open(w) || w->it.unit != 1 || !py_to_index(rank, rank_p) ||
	    (it != Py_None && !py_to_index(it, &disp)))
		return false;
	other = sequence_item(units, *rank_p);
	return other && py_to_index(other, &unit) &&
	       !__builtin_mul_overflow((uint64_t)disp, (uint64_t)unit,
				       offset_p);
}

/*
 * Takes the place at the target: a displacement, or (displacement, count, type)
 * of the same elements as the origin's.
 */
bool py_target_take(struct py_window *w, PyObject *units, PyObject *rank,
		    PyObject *target, const struct py_part *p, int64_t *rank_p,
		    uint64_t *offset_p)
{
	int64_t count;

	if (p->derived)
		return false;
	if (PyTuple_CheckExact(target) || PyList_CheckExact(target)) {
		const Py_ssize_t n = PySequence_Fast_GET_SIZE(target);

		if (n < 1 || n > 3)
			return false;
		if (n > 1 && (!py_to_index(sequence_item(target, 1), &count) ||
			      (uint64_t)count != p->count))
			return false;
		if (n > 2) {
			const struct named *type =
				named_find(sequence_item(target, 2));

			if (!type || type->number != p->number || p->number < 0)
				return false;
		}
		target = sequence_item(target, 0);
		if (target == Py_None) /* no number, once it is given */
			return false;
	}
	return target_take_offset(w, units, rank, target, rank_p, offset_p);
}

static bool side_make(struct py_side *side, const struct py_derived *type,
		      uint64_t unit, int64_t count)
{
	side->type = type;
	side->count = count;
	return !__builtin_mul_overflow((uint64_t)count,
				       type ? py_derived_bytes(type) : unit,
				       &side->bytes);
}

/* The same where origin or target, or both, are of a derived type. */
bool py_target_take_sides(struct py_window *w, PyObject *units, PyObject *rank,
			  PyObject *target, const struct py_part *p,
			  struct py_side *here, struct py_side *there,
			  int64_t *rank_p, uint64_t *offset_p)
{
	const struct py_derived *type = p->derived;
	int64_t count = (int64_t)p->count;
	uint64_t unit = p->unit;

	if (!side_make(here, type, unit, count))
		return false;
	if (PyTuple_CheckExact(target) || PyList_CheckExact(target)) {
		const Py_ssize_t n = PySequence_Fast_GET_SIZE(target);

		if (n < 1 || n > 3 ||
		    (n > 1 && !py_to_index(sequence_item(target, 1), &count)))
			return false;
		if (n > 2) {
			const struct named *other =
				named_find(sequence_item(target, 2));

			type = other ? NULL
				     : py_find_derived(
					       sequence_item(target, 2));
			if ((!other && !type) || (other && other->gaps))
				return false;
			unit = other ? other->unit : 1;
		}
		target = sequence_item(target, 0);
		if (target == Py_None) /* no number, once it is given */
			return false;
	}
	return side_make(there, type, unit, count) &&
	       target_take_offset(w, units, rank, target, rank_p, offset_p);
}

/* Takes a buffer of the same elements as the origin's. */
bool py_part_take_like(struct py_part *p, PyObject *it, bool write,
		       const struct py_part *origin)
{
	return py_part_take(p, it, write) && p->count == origin->count &&
	       p->number == origin->number;
}
