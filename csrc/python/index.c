/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * win[rank, key] with integers, slices, None and ...; what is short and by
 * memory is done here, for calls that are given such a key as well.
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

static struct rmaext_part selection_part(const struct py_window *w,
					 const struct selection *s,
					 const int64_t *locals)
{
	return (struct rmaext_part){w->it.unit, s->ndim, s->shape, s->steps,
				    locals};
}

/* May it be done at once, with the GIL? Then *strides describes it. */
static bool selection_is_short(const struct py_window *w,
			       const struct selection *s, const int64_t *locals,
			       struct rmx_strides *strides, int access)
{
	const struct rmaext_part part = selection_part(w, s, locals);

	return s->rank < w->it.window->count &&
	       rmx_target_of(w->it.window, s->rank)->route == RMAEXT_DIRECT &&
	       rmx_strides_make(strides, &part) &&
	       strides->runs <= PY_GIL_RUNS &&
	       strides->run <=
		       PY_GIL_BYTES / (strides->runs ? strides->runs : 1) &&
	       !rmx_strides_check(strides, w->it.window, "", s->rank,
				  strides->runs ? s->offset : 0, access);
}

/* Can a cell hold an element, so that a scalar is made of it? */
static bool window_has_numbers(const struct py_window *w)
{
	const int type = w->dtype->type_num;

	return (PyTypeNum_ISNUMBER(type) || PyTypeNum_ISBOOL(type)) &&
	       w->it.unit <= sizeof(union py_cell);
}

static char *selection_memory(const struct py_window *w,
			      const struct selection *s)
{
	return rmx_target_of(w->it.window, s->rank)->map + s->offset;
}

static void selection_count(const struct py_window *w,
			    const struct selection *s,
			    const struct rmx_strides *strides,
			    unsigned int kind)
{
	rmx_count_direct(&w->it.window->tally, s->rank, kind, s->offset,
			 strides->run * strides->runs, true);
}

static bool selection_has_shape(const struct selection *s,
				PyArrayObject *values)
{
	return PyArray_NDIM(values) == s->ndim &&
	       PyArray_CompareLists(PyArray_DIMS(values), s->shape, s->ndim);
}

/*
 * Does what takes long, with an array of its shape that begins at `data`.
 * locals: its steps, where the route is direct. Python sees whether it overlaps
 * a window that it is put to, unless that is mapped.
 */
static enum py_outcome selection_run(struct py_window *w, int kind,
				     const struct selection *s,
				     PyArrayObject *array,
				     const int64_t *locals)
{
	const bool put = kind == RMAEXT_PUT,
		   direct = py_target_is_direct(w, s->rank);
	const struct rmaext_part part =
		selection_part(w, s, direct ? locals : NULL);
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
	struct rmx_strides strides;
	enum py_outcome done;
	PyArrayObject *packed;

	if (put && (direct ? !rmx_strides_make(&strides, &part) ||
				     rmx_strides_overlap(&strides,
							 selection_memory(w, s),
							 PyArray_BYTES(array))
			   : s->rank == w->it.window->self))
		return PY_DECLINED;
	if (direct || PyArray_IS_C_CONTIGUOUS(array))
		return py_transfer_run(w, &r);
	packed = (PyArrayObject *)PyArray_NewCopy(array, NPY_CORDER);
	if (!packed)
		return PY_FAILED;
	done = selection_run(w, kind, s, packed, NULL);
	Py_DECREF(packed);
	return done;
}

/*
 * Reads what is short: into `out`, which is plain, writeable and of the
 * selection's shape, or, if that is NULL, to what NumPy would return.
 */
static enum py_outcome selection_get(struct py_window *w,
				     const struct selection *s,
				     PyArrayObject *out, PyObject **result_p)
{
	struct rmx_strides strides;
	char *there;

	if (!selection_is_short(w, s, NULL, &strides, RMAEXT_READ))
		return PY_DECLINED;
	there = selection_memory(w, s);
	if (!out && s->scalar && window_has_numbers(w)) {
		union py_cell cell;

		rmx_copy(&cell, there, w->it.unit);
		*result_p = PyArray_Scalar(&cell, w->dtype, NULL);
	} else if (out) {
		if (rmx_strides_overlap(&strides, there, PyArray_BYTES(out)))
			return PY_DECLINED;
		rmx_strides_copy(&strides, false, there, PyArray_BYTES(out));
		*result_p = Py_NewRef((PyObject *)out);
	} else {
		out = py_new_array(w, s->ndim, s->shape);
		if (!out)
			return PY_FAILED;
		rmx_strides_copy(&strides, false, there, PyArray_BYTES(out));
		*result_p = s->scalar ? PyArray_Return(out) : (PyObject *)out;
	}
	selection_count(w, s, &strides, RMAEXT_DID_GET);
	py_count_turn();
	return *result_p ? PY_DONE : PY_FAILED;
}

enum py_outcome py_get_part(struct py_window *w, int64_t rank, PyObject *key,
			    PyArrayObject *out, PyObject **result_p)
{
	struct selection s;

	if (!selection_make(w, rank, key, 0, &s) ||
	    (out && !selection_has_shape(&s, out)))
		return PY_DECLINED;
	return selection_get(w, &s, out, result_p);
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
	if (selection_run(w, RMAEXT_GET, &s, out, NULL) != PY_DONE) {
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

/* Writes what is short; any: or an array of its shape. */
static enum py_outcome selection_put(struct py_window *w,
				     const struct selection *s, PyObject *value,
				     bool any)
{
	PyArrayObject *values = (PyArrayObject *)value;
	int64_t locals[RMX_DIMS] = {0};
	struct rmx_strides strides;
	union py_cell cell;
	char *from = cell.bytes;

	if (PyArray_CheckExact(value)) {
		if (!PyArray_EquivTypes(PyArray_DESCR(values), w->dtype) ||
		    !selection_broadcast(s, values, locals))
			return PY_DECLINED;
		from = PyArray_BYTES(values);
	} else if (!py_pack(w, value, &cell)) {
		return PY_DECLINED;
	}
	if (!selection_is_short(w, s, locals, &strides, RMAEXT_WRITE))
		return any && from != cell.bytes &&
				       s->rank < w->it.window->count &&
				       selection_has_shape(s, values)
			       ? selection_run(w, RMAEXT_PUT, s, values, locals)
			       : PY_DECLINED;
	if (rmx_strides_overlap(&strides, selection_memory(w, s), from))
		return PY_DECLINED;
	rmx_strides_copy(&strides, true, selection_memory(w, s), from);
	selection_count(w, s, &strides, RMAEXT_DID_PUT);
	py_count_turn();
	return PY_DONE;
}

enum py_outcome py_put_part(struct py_window *w, int64_t rank, PyObject *key,
			    PyObject *value)
{
	struct selection s;

	return selection_make(w, rank, key, 0, &s)
		       ? selection_put(w, &s, value, false)
		       : PY_DECLINED;
}

/* Room for a layout of one run. */
struct one_run {
	_Alignas(struct rmx_layout) char room[sizeof(struct rmx_layout) +
					      sizeof(struct rmx_run)];
};

/* The layout of a selection; NULL: it has too many loops, or no elements. */
static const struct rmx_layout *selection_layout(const struct py_window *w,
						 const struct selection *s,
						 struct one_run *to)
{
	const struct rmaext_part part = selection_part(w, s, NULL);
	struct rmx_layout *l = (struct rmx_layout *)to->room;
	struct rmx_strides strides;

	if (!rmx_strides_make(&strides, &part) || !strides.runs ||
	    strides.ndim > RMX_LAYOUT_LOOPS)
		return NULL;
	*l = (struct rmx_layout){
		.basic = {w->it.type, w->it.unit, false},
		.bytes = strides.run * strides.runs,
		.high = (int64_t)strides.run,
		.grain = w->it.unit, /* the shape's steps are whole elements */
		.loops = (int)strides.ndim,
		.runs = 1,
	};
	l->extent = (int64_t)l->bytes;
	l->run[0] = (struct rmx_run){0, (int64_t)strides.run};
	for (uint32_t k = 0; k < strides.ndim; k++) {
		const struct rmx_dim *dim = &strides.dim[k];
		const int64_t far = (int64_t)(dim->count - 1) * dim->step;

		l->loop[strides.ndim - 1 - k] =
			(struct rmx_turns){(int64_t)dim->count, dim->step};
		*(far < 0 ? &l->low : &l->high) += far;
	}
	return l;
}

enum py_outcome py_update_part(struct py_window *w, int op, int64_t rank,
			       PyObject *key, PyObject *value)
{
	PyArrayObject *values = (PyArrayObject *)value;
	struct py_target there = {.rank = rank};
	struct one_run room;
	struct selection s;
	struct py_part own = {0};

	if (w->it.type < 0 || w->it.type >= RMAEXT_FLOAT_INT32 ||
	    !py_is_plain(w, value) || !selection_make(w, rank, key, 0, &s) ||
	    !selection_has_shape(&s, values))
		return PY_DECLINED;
	there.part.side.layout = selection_layout(w, &s, &room);
	if (!there.part.side.layout)
		return PY_DECLINED;
	there.offset = s.offset;
	there.part.count = there.part.side.count = 1;
	there.part.side.bytes = there.part.side.layout->bytes;
	there.part.basic = there.part.side.layout->basic;
	own.data = PyArray_BYTES(values);
	own.basic = there.part.basic;
	own.count = (uint64_t)PyArray_SIZE(values);
	own.side.count = PyArray_SIZE(values);
	own.side.bytes = there.part.side.bytes;
	return py_update_sides(w, op, &own, NULL, &there);
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
