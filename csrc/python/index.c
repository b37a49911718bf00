/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * win[rank, key] with integers, slices, None and ...; what is by memory is done
 * here, for calls that are given such a key as well.
 */
#include "python/sides.h"

_Static_assert(sizeof(npy_intp) == sizeof(int64_t),
	       "NumPy takes a selection's shape as it is");

/* What a key means. */
struct selection {
	int64_t rank;
	uint64_t offset; /* bytes */
	int ndim;
	bool scalar; /* the key has integers only */
	int64_t shape[RMX_DIMS], steps[RMX_DIMS];
};

/* The window's dimensions at that rank; those from `axis` on are not taken yet.
 */
struct axes {
	int ndim, axis;
	int64_t shape[RMX_DIMS], steps[RMX_DIMS];
};

/*
 * Where the ranks' shapes differ, Python code says which it is: a thread may
 * have closed the window then. An exception is a signal handler's, and is left.
 */
static bool axes_make(struct py_window *w, int64_t rank, struct axes *axes)
{
	PyObject *shapes = PyObject_GetAttr((PyObject *)w, py_names.shapes);
	int64_t step = (int64_t)w->it.unit;
	PyObject *shape = NULL;
	bool known;

	if (shapes && rank < w->it.window->count) {
		if (PyTuple_CheckExact(shapes)) /* the shape of all ranks */
			shape = Py_NewRef(shapes);
		else if (PySequence_Check(shapes))
			shape = PySequence_GetItem(shapes, (Py_ssize_t)rank);
	}
	axes->axis = axes->ndim = 0;
	known = shape && py_is_open(w) && PyTuple_CheckExact(shape) &&
		PyTuple_GET_SIZE(shape) <= RMX_DIMS;
	if (known) {
		axes->ndim = (int)PyTuple_GET_SIZE(shape);
		for (int k = axes->ndim - 1; k >= 0; k--) {
			axes->shape[k] =
				PyLong_AsLongLong(PyTuple_GET_ITEM(shape, k));
			axes->steps[k] = step;
			/* it may overflow in a shape with a 0: Python does it
			 */
			if (__builtin_mul_overflow(step, axes->shape[k], &step))
				known = false;
		}
	}
	Py_XDECREF(shape);
	Py_XDECREF(shapes);
	return known;
}

static bool selection_add(struct selection *s, int64_t count, int64_t step)
{
	if (s->ndim == RMX_DIMS)
		return false;
	s->shape[s->ndim] = count;
	s->steps[s->ndim++] = step;
	return true;
}

/* A bound of a slice whose conversion runs no Python. */
static bool bound_is_plain(PyObject *it)
{
	return it == Py_None || PyLong_CheckExact(it);
}

static bool selection_take_slice(struct selection *s, struct axes *axes,
				 PyObject *it)
{
	const PySliceObject *slice = (PySliceObject *)it;
	const int k = axes->axis++;
	Py_ssize_t start, stop, step, count;

	if (!bound_is_plain(slice->start) || !bound_is_plain(slice->stop) ||
	    !bound_is_plain(slice->step))
		return false;
	if (PySlice_Unpack(it, &start, &stop, &step)) {
		PyErr_Clear();
		return false;
	}
	count = PySlice_AdjustIndices(axes->shape[k], &start, &stop, step);
	if (!count)
		return selection_add(s, 0, 0);
	s->offset += (uint64_t)(start * axes->steps[k]);
	/* the step of one element is never used, and could overflow */
	return selection_add(s, count, count > 1 ? step * axes->steps[k] : 0);
}

static bool selection_take_integer(struct selection *s, struct axes *axes,
				   PyObject *it)
{
	const int k = axes->axis++;
	int64_t index;
	int overflow;

	if (PyLong_CheckExact(it)) {
		index = PyLong_AsLongLongAndOverflow(it, &overflow);
		if (overflow)
			return false;
		index += index < 0 ? axes->shape[k] : 0;
	} else if (!py_to_index(it, &index)) {
		return false;
	}
	if (index < 0 || index >= axes->shape[k])
		return false;
	s->offset += (uint64_t)(index * axes->steps[k]);
	return true;
}

/*
 * Finds what a plain key means, behind its `first` items. False: Python does
 * it, or knows what is wrong.
 */
static bool selection_make(struct py_window *w, int64_t rank, PyObject *key,
			   Py_ssize_t first, struct selection *s)
{
	const bool several = PyTuple_CheckExact(key);
	const Py_ssize_t n = several ? PyTuple_GET_SIZE(key) : 1;
	int whole = 0; /* at last, the dimensions that ... stands for */
	bool dots = false;
	struct axes axes;

#define ITEM(i) (several ? PyTuple_GET_ITEM(key, i) : key)
	if (!py_is_open(w) || !axes_make(w, rank, &axes))
		return false;
	s->rank = rank;
	s->offset = 0;
	s->ndim = 0;
	for (Py_ssize_t i = first; i < n; i++) {
		if (ITEM(i) == Py_Ellipsis && dots)
			return false;
		dots = dots || ITEM(i) == Py_Ellipsis;
		whole += ITEM(i) != Py_Ellipsis && ITEM(i) != Py_None;
	}
	whole = axes.ndim - whole;
	if (whole < 0)
		return false;
	for (Py_ssize_t i = first; i <= n; i++) {
		PyObject *it = i < n ? ITEM(i) : dots ? NULL : Py_Ellipsis;
		bool taken = true;

		if (!it)
			break;
		if (it == Py_None)
			taken = selection_add(s, 1, 0);
		else if (PySlice_Check(it))
			taken = selection_take_slice(s, &axes, it);
		else if (it != Py_Ellipsis)
			taken = selection_take_integer(s, &axes, it);
		for (int k = it == Py_Ellipsis ? whole : 0; k && taken; k--) {
			taken = selection_add(s, axes.shape[axes.axis],
					      axes.steps[axes.axis]);
			axes.axis++;
		}
		if (!taken)
			return false;
	}
#undef ITEM
	s->scalar = !s->ndim && !dots;
	return true;
}

/* The same of what stands in brackets, the rank first. */
static bool selection_make_in_brackets(struct py_window *w, PyObject *key,
				       struct selection *s)
{
	PyObject *first = key;
	int64_t rank;

	if (PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key))
		first = PyTuple_GET_ITEM(key, 0);
	return py_to_index(first, &rank) && selection_make(w, rank, key, 1, s);
}

/* The selection in the window; false: Python knows what is wrong with it. */
static bool selection_side(const struct py_window *w, const struct selection *s,
			   struct rmx_layout *l, struct rmx_side *there)
{
	const bool known =
		rmx_layout_part(l, w->it.unit, s->ndim, s->shape, s->steps);

	*there = (struct rmx_side){l, 1, l->bytes};
	return known;
}

/* Can a cell hold an element, so that a scalar is made of it? */
static bool window_has_numbers(const struct py_window *w)
{
	const int type = w->dtype->type_num;

	return (PyTypeNum_ISNUMBER(type) || PyTypeNum_ISBOOL(type)) &&
	       w->it.unit <= sizeof(union py_cell);
}

static bool selection_has_shape(const struct selection *s,
				PyArrayObject *values)
{
	return PyArray_NDIM(values) == s->ndim &&
	       PyArray_CompareLists(PyArray_DIMS(values), s->shape, s->ndim);
}

/*
 * Puts to or gets from a rank whose memory is mapped, with own memory in a row
 * or (own) in pieces. Python does what overlaps, and knows what is wrong.
 */
static enum py_outcome selection_move(struct py_window *w, bool put,
				      const struct selection *s,
				      const struct rmx_layout *own, char *data)
{
	struct rmx_side there, here = {own, 1, 0};
	struct rmx_layout l;

	if (!selection_side(w, s, &l, &there))
		return PY_DECLINED;
	here.bytes = l.bytes;
	if (rmx_sides_overlap(&there,
			      rmx_target_of(w->it.window, s->rank)->map +
				      s->offset,
			      &here, data))
		return PY_DECLINED;
	return py_move_sides(w, put, s->rank, l.bytes ? s->offset : 0, &there,
			     &here, data);
}

/*
 * Does what is not by memory, with an array of its shape. Python sees whether
 * that overlaps the own memory, which it is put to.
 */
static enum py_outcome selection_run(struct py_window *w, int kind,
				     const struct selection *s,
				     PyArrayObject *array)
{
	const bool put = kind == RMAEXT_PUT;
	const struct rmaext_part part = {w->it.unit, s->ndim, s->shape,
					 s->steps, NULL};
	const struct py_transfer r = {
		.it = {.kind = kind,
		       .rank = s->rank,
		       .offset = PyArray_SIZE(array) ? s->offset : 0,
		       .operand = PyArray_DATA(array),
		       .result = PyArray_DATA(array),
		       .count = (uint64_t)PyArray_NBYTES(array),
		       .part = &part},
		.name = put ? "__setitem__" : "__getitem__",
		.buffer = {(PyObject *)array, Py_None},
	};
	enum py_outcome done;
	PyArrayObject *packed;

	if (put &&
	    (py_target_is_direct(w, s->rank) || s->rank == w->it.window->self))
		return PY_DECLINED;
	if (PyArray_IS_C_CONTIGUOUS(array))
		return py_transfer_run(w, &r);
	packed = (PyArrayObject *)PyArray_NewCopy(array, NPY_CORDER);
	if (!packed)
		return PY_FAILED;
	done = selection_run(w, kind, s, packed);
	Py_DECREF(packed);
	return done;
}

/*
 * Reads by memory: into `out`, which is plain, writeable and of the selection's
 * shape, or, if that is NULL, to what NumPy would return.
 */
static enum py_outcome selection_get(struct py_window *w,
				     const struct selection *s,
				     PyArrayObject *out, PyObject **result_p)
{
	const bool scalar = !out && s->scalar;
	union py_cell cell;
	enum py_outcome done;

	if (!py_rank_is_direct(w, s->rank))
		return PY_DECLINED;
	if (scalar && window_has_numbers(w)) {
		done = selection_move(w, false, s, NULL, cell.bytes);
		if (done == PY_DONE)
			*result_p = PyArray_Scalar(&cell, w->dtype, NULL);
		return done == PY_DONE && !*result_p ? PY_FAILED : done;
	}
	out = out ? (PyArrayObject *)Py_NewRef((PyObject *)out)
		  : py_new_array(w, s->ndim, s->shape);
	if (!out)
		return PY_FAILED;
	done = selection_move(w, false, s, NULL, PyArray_BYTES(out));
	if (done != PY_DONE) {
		Py_DECREF(out);
		return done;
	}
	*result_p = scalar ? PyArray_Return(out) : (PyObject *)out;
	return *result_p ? PY_DONE : PY_FAILED;
}

enum py_outcome py_get_part(struct py_call *c, PyArrayObject *out)
{
	struct selection s;

	if (!selection_make(c->w, c->rank, c->key, 0, &s) ||
	    (out && !selection_has_shape(&s, out)))
		return PY_DECLINED;
	return selection_get(c->w, &s, out, &c->result);
}

static PyObject *window_subscript(struct py_window *w, PyObject *key)
{
	PyObject *result = NULL;
	struct selection s;
	PyArrayObject *out;

	if (!selection_make_in_brackets(w, key, &s))
		return py_decide(w, py_names.getitem, &key, 1, NULL);
	if (selection_get(w, &s, NULL, &result) != PY_DECLINED)
		return result;
	if (!py_could_get(w, s.rank, 0, 0))
		return py_decide(w, py_names.getitem, &key, 1, NULL);
	out = py_new_array(w, s.ndim, s.shape);
	if (!out)
		return NULL;
	if (selection_run(w, RMAEXT_GET, &s, out) != PY_DONE) {
		Py_DECREF(out);
		return NULL;
	}
	py_count_turn();
	return s.scalar ? PyArray_Return(out) : (PyObject *)out;
}

/* Broadcasts values to the selection, as steps in their memory. */
static bool selection_broadcast(const struct selection *s,
				PyArrayObject *values, int64_t *locals)
{
	const int more = PyArray_NDIM(values) - s->ndim;

	for (int k = 0; k < more; k++)
		if (PyArray_DIM(values, k) != 1)
			return false;
	for (int k = 0; k < s->ndim; k++) {
		const int from = k + more;
		const npy_intp count = from < 0 ? 1 : PyArray_DIM(values, from);

		if (count != 1 && count != s->shape[k])
			return false;
		locals[k] = count == 1 ? 0 : PyArray_STRIDE(values, from);
	}
	return true;
}

/* Writes by memory; any: or an array of its shape. */
static enum py_outcome selection_put(struct py_window *w,
				     const struct selection *s, PyObject *value,
				     bool any)
{
	static const int64_t zeros[RMX_DIMS];
	PyArrayObject *values = (PyArrayObject *)value;
	const bool array = PyArray_CheckExact(value);
	const int64_t *steps = zeros; /* NULL: it is as it is */
	int64_t locals[RMX_DIMS];
	enum py_outcome done = PY_DECLINED;
	struct rmx_layout own;
	union py_cell cell;

	if (!array) {
		if (!py_pack(w, value, &cell))
			return PY_DECLINED;
	} else if (!PyArray_EquivTypes(PyArray_DESCR(values), w->dtype)) {
		return PY_DECLINED;
	} else if (PyArray_IS_C_CONTIGUOUS(values) &&
		   selection_has_shape(s, values)) {
		steps = NULL;
	} else {
		if (!selection_broadcast(s, values, locals))
			return PY_DECLINED;
		steps = locals;
	}
	if (steps &&
	    !rmx_layout_part(&own, w->it.unit, s->ndim, s->shape, steps))
		return PY_DECLINED;
	Py_INCREF(value); /* NumPy's resize() in another thread refuses then */
	if (py_rank_is_direct(w, s->rank))
		done = selection_move(w, true, s, steps ? &own : NULL,
				      array ? PyArray_BYTES(values)
					    : cell.bytes);
	if (done == PY_DECLINED && any && array &&
	    s->rank < w->it.window->count && selection_has_shape(s, values))
		done = selection_run(w, RMAEXT_PUT, s, values);
	Py_DECREF(value);
	return done;
}

enum py_outcome py_put_part(struct py_call *c)
{
	struct selection s;

	return selection_make(c->w, c->rank, c->key, 0, &s)
		       ? selection_put(c->w, &s, c->got[0], false)
		       : PY_DECLINED;
}

enum py_outcome py_update_part(struct py_call *c)
{
	PyArrayObject *values = (PyArrayObject *)c->got[0];
	struct py_target there = {.rank = c->rank};
	struct py_window *w = c->w;
	struct py_part own = {0};
	struct rmx_layout l;
	struct selection s;

	if (!py_is_open(w) || w->it.type < 0 ||
	    w->it.type >= RMAEXT_FLOAT_INT32 || !py_is_plain(w, c->got[0]) ||
	    !selection_make(w, c->rank, c->key, 0, &s) ||
	    !selection_has_shape(&s, values) ||
	    !selection_side(w, &s, &l, &there.part.side))
		return PY_DECLINED;
	l.grain = w->it.unit; /* the shape's steps are whole elements */
	there.offset = s.offset;
	there.part.count = 1;
	there.part.basic = (struct rmx_basic){w->it.type, w->it.unit, false};
	own.data = PyArray_BYTES(values);
	own.basic = there.part.basic;
	own.count = (uint64_t)PyArray_SIZE(values);
	own.side.count = PyArray_SIZE(values);
	own.side.bytes = there.part.side.bytes;
	return py_update_sides(w, c->op, &own, NULL, &there);
}

static int window_ass_subscript(struct py_window *w, PyObject *key,
				PyObject *value)
{
	PyObject *args[] = {key, value}, *result;
	enum py_outcome done = PY_DECLINED;
	struct selection s;

	if (!value) {
		PyErr_SetString(PyExc_TypeError,
				"elements of a window cannot be deleted, only "
				"assigned");
		return -1;
	}
	if (selection_make_in_brackets(w, key, &s))
		done = selection_put(w, &s, value, true);
	if (done == PY_DECLINED) {
		result = py_decide(w, py_names.setitem, args, 2, NULL);
		Py_XDECREF(result);
		done = result ? PY_DONE : PY_FAILED;
	}
	return done == PY_DONE ? 0 : -1;
}

PyMappingMethods py_index_methods = {
	.mp_subscript = (binaryfunc)window_subscript,
	.mp_ass_subscript = (objobjargproc)window_ass_subscript,
};
