/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The type that rmaext.compat.Win inherits from. It shows its memory by the
 * buffer protocol, and carries out plain operations to ranks that an open epoch
 * gives access to. In any other case it calls the Python method of the same
 * name with an underscore in front.
 */
#include "python/compat/compat.h"

struct win {
	PyObject_HEAD bool open; /* else it is MPI.WIN_NULL */
	bool shows;		 /* the window's memory, as a buffer */
	struct py_window *window;
	PyObject *units;   /* each rank's displacement unit */
	PyObject *access;  /* a set of the ranks that may be accessed */
	PyObject *passive; /* a set of those of them that are locked */
};

static PyObject *win_be(struct win *w, PyObject *args)
{
	PyObject *window, *units, *access, *passive;
	int shows;

	if (!PyArg_ParseTuple(args, "pO!OO!O!:_be", &shows, &py_window_type,
			      &window, &units, &PySet_Type, &access,
			      &PySet_Type, &passive))
		return NULL;
	if (w->window) {
		PyErr_SetString(PyExc_ValueError,
				"this Win stands for a window already");
		return NULL;
	}
	w->window = (struct py_window *)Py_NewRef(window);
	w->units = Py_NewRef(units);
	w->access = Py_NewRef(access);
	w->passive = Py_NewRef(passive);
	w->open = true;
	w->shows = shows;
	Py_RETURN_NONE;
}

/* The window stays: another thread may be inside a call with it. */
static PyObject *win_end(struct win *w, PyObject *args)
{
	(void)args;
	w->open = false;
	w->shows = false;
	Py_RETURN_NONE;
}

/*
 * The buffer is the array's: who has it keeps the memory, and not this object,
 * nor this object the memory, which goes when the window is freed.
 */
static int win_get_buffer(struct win *w, Py_buffer *view, int flags)
{
	PyObject *array;
	int ret;

	if (!w->shows)
		return PyBuffer_FillInfo(view, (PyObject *)w, NULL, 0, 0,
					 flags);
	array = PyObject_GetAttrString((PyObject *)w->window, "local");
	if (!array)
		return -1;
	ret = PyObject_GetBuffer(array, view, flags);
	Py_DECREF(array);
	return ret;
}

/* Is the rank in the set? */
static bool rank_is_in(const struct win *w, PyObject *set, PyObject *rank)
{
	/* objects of other types could equal a rank although they are none */
	return w->open && PyLong_CheckExact(rank) &&
	       PySet_Contains(set, rank) == 1;
}

static PyObject *rank_of(const struct py_call *c)
{
	return c->got[c->is->rank - 1];
}

/*
 * May an operation on the rank begin? If it is not known to, Python begins an
 * epoch where it is time for one, or raises an error.
 */
static enum py_outcome win_enter(const struct py_call *c)
{
	struct win *w = c->self;
	PyObject *entered, *rank = rank_of(c);

	if (rank_is_in(w, w->access, rank))
		return PY_DONE;
	if (!w->open || !PyLong_CheckExact(rank))
		return PY_DECLINED;
	entered = PyObject_CallMethod((PyObject *)w, "_enter", "sO",
				      c->is->name, rank);
	Py_XDECREF(entered);
	if (!entered)
		return PY_FAILED;
	return rank_is_in(w, w->access, rank) ? PY_DONE : PY_DECLINED;
}

/* Has Python raise MPI's exception in place of the one that is set. */
static PyObject *win_report(void *w)
{
	PyObject *error = py_exception_taken(), *result;

	result = PyObject_CallMethodOneArg(w, py_names.report, error);
	Py_DECREF(error);
	return result;
}

/*
 * What goes to the own rank is there when the call returns, as with any MPI.
 * Over the network it might come later than what other ranks send.
 */
static enum py_outcome win_reach_self(const struct py_call *c)
{
	const struct win *w = c->self;
	const struct rmaext_window *window = w->window->it.window;
	PyObject *result, *rank = rank_of(c);
	int64_t number;

	if (!py_to_index(rank, &number) || number != window->self ||
	    rmx_target_of(window, number)->route == RMAEXT_DIRECT)
		return PY_DONE;
	result = PyObject_CallMethod((PyObject *)w->window, "flush", "O", rank);
	Py_XDECREF(result);
	return result ? PY_DONE : PY_FAILED;
}

/* What was not taken, because of an exception that came meanwhile, failed. */
static enum py_outcome outcome_of(enum py_outcome done)
{
	return done == PY_DECLINED && PyErr_Occurred() ? PY_FAILED : done;
}

/* Are there bytes between the elements that only a layout tells? */
static bool part_has_gaps(const struct py_part *p)
{
	return !p->layout && p->basic.gaps;
}

static enum py_outcome try_move(struct py_call *c)
{
	const bool put = c->is->kind == RMAEXT_PUT;
	struct win *w = c->self;
	enum py_outcome done = win_enter(c);
	struct py_target t = {0};
	struct py_part p = {0};

	if (done != PY_DONE)
		return done;
	done = PY_DECLINED;
	if (!py_part_take(&p, c->got[0], !put) ||
	    !py_target_take(w->window, w->units, rank_of(c), c->got[2], &p,
			    &t) ||
	    p.side.bytes != t.part.side.bytes || part_has_gaps(&p) ||
	    part_has_gaps(&t.part))
		; /* Python does it */
	else if (p.layout || t.part.layout)
		done = py_move_sides(w->window, put, t.rank, t.offset,
				     &t.part.side, &p.side, p.data);
	else
		done = py_move(w->window, put, p.owner, p.data, p.side.bytes,
			       t.rank, t.offset);
	py_part_drop(&p);
	py_part_drop(&t.part);
	done = outcome_of(done);
	return done == PY_DONE && put ? win_reach_self(c) : done;
}

/* Defines a method of MPI.Win: an error is raised as MPI's. */
#define WIN_METHOD(name, ...) \
	static PY_METHOD(win, name, __VA_ARGS__, .failed = win_report)

WIN_METHOD(Put, try_move, .kind = RMAEXT_PUT);

WIN_METHOD(Get, try_move, .kind = RMAEXT_GET);

/* Are these elements of the same type, which has updates? */
static bool parts_agree(const struct py_part *a, const struct py_part *b)
{
	return a->basic.type >= 0 && a->basic.type == b->basic.type &&
	       a->side.bytes == b->side.bytes;
}

static enum py_outcome part_update(struct py_window *w,
				   const struct py_part *origin,
				   const struct py_part *compare,
				   const struct py_part *result, int op,
				   const struct py_target *t)
{
	const struct rmaext_call it = {
		.op = op,
		.type = origin->basic.type,
		.rank = t->rank,
		.offset = t->offset,
		.operand = origin->data,
		.compare = compare ? compare->data : NULL,
		.result = result ? result->data : NULL,
		.count = origin->count,
	};

	if (!parts_agree(origin, &t->part) ||
	    (compare && !parts_agree(origin, compare)) ||
	    (result && !parts_agree(origin, result)))
		return PY_DECLINED;
	if (origin->layout || t->part.layout || (result && result->layout) ||
	    origin->side.bytes > PY_GIL_UPDATE_BYTES)
		return py_update_sides(w, op, origin, result, t);
	return rmx_update_direct(w->it.window, &it) ? PY_DONE : PY_DECLINED;
}

/* Is it one element of a predefined type? */
static bool part_is_single(const struct py_part *p)
{
	return p->count == 1 && !p->layout;
}

/*
 * old: the buffer for what there was, or NULL; wanted: that of what there is to
 * be, of RMAEXT_CSWAP, else NULL. A method that returns one element takes no
 * more, and a displacement for a target.
 */
static enum py_outcome win_update(struct py_call *c, PyObject *wanted,
				  PyObject *old, PyObject *target, int op)
{
	struct win *w = c->self;
	struct py_part origin = {0}, compare = {0}, result = {0};
	const bool single = c->is->returns == PY_SCALAR;
	struct py_target t = {0};
	enum py_outcome done;

	if (single && target && !PyLong_CheckExact(target))
		return PY_DECLINED;
	done = win_enter(c);
	if (done != PY_DONE)
		return done;
	done = PY_DECLINED;
	if (py_part_take(&origin, c->got[0], false) &&
	    (!single || part_is_single(&origin)) &&
	    (!wanted || (py_part_take(&compare, wanted, false) &&
			 part_is_single(&compare))) &&
	    (!old || py_part_take(&result, old, true)) &&
	    py_target_take(w->window, w->units, rank_of(c), target, &origin,
			   &t))
		done = part_update(w->window, &origin, wanted ? &compare : NULL,
				   old ? &result : NULL, op, &t);
	py_part_drop(&origin);
	py_part_drop(&compare);
	py_part_drop(&result);
	py_part_drop(&t.part);
	return outcome_of(done);
}

static enum py_outcome try_accumulate(struct py_call *c)
{
	enum py_outcome done = PY_DECLINED;
	int op;

	if (py_mpi_op(c->got[3], &op))
		done = win_update(c, NULL, NULL, c->got[2], op);
	return done == PY_DONE ? win_reach_self(c) : done;
}

WIN_METHOD(Accumulate, try_accumulate);

static enum py_outcome try_fetch(struct py_call *c)
{
	int op;

	return py_mpi_op(c->got[4], &op)
		       ? win_update(c, NULL, c->got[1], c->got[3], op)
		       : PY_DECLINED;
}

WIN_METHOD(Get_accumulate, try_fetch);

WIN_METHOD(Fetch_and_op, try_fetch, .returns = PY_SCALAR);

static enum py_outcome try_swap(struct py_call *c)
{
	return win_update(c, c->got[1], c->got[2], c->got[4], RMAEXT_CSWAP);
}

WIN_METHOD(Compare_and_swap, try_swap, .returns = PY_SCALAR);

/* What makes a request of MPI that is done; NULL: not told yet. */
static PyObject *make_done;

PyObject *py_mpi_done(PyObject *module, PyObject *make)
{
	(void)module;
	Py_XSETREF(make_done, Py_NewRef(make));
	Py_RETURN_NONE;
}

/* A call with a request, which is done at once, by memory. */
static enum py_outcome try_asking(struct py_call *c)
{
	struct win *w = c->self;
	enum py_outcome done;
	int64_t number;

	if (!make_done || !rank_is_in(w, w->passive, rank_of(c)) ||
	    !py_to_index(rank_of(c), &number) ||
	    !py_rank_is_direct(w->window, number))
		return PY_DECLINED;
	done = c->is->at_once(c);
	if (done != PY_DONE)
		return done;
	c->result = PyObject_CallNoArgs(make_done);
	return c->result ? PY_DONE : PY_FAILED;
}

WIN_METHOD(Rput, try_asking, .at_once = try_move, .kind = RMAEXT_PUT);

WIN_METHOD(Rget, try_asking, .at_once = try_move, .kind = RMAEXT_GET);

WIN_METHOD(Raccumulate, try_asking, .at_once = try_accumulate);

WIN_METHOD(Rget_accumulate, try_asking, .at_once = try_fetch);

static enum py_outcome try_flush(struct py_call *c)
{
	struct win *w = c->self;
	int64_t rank;

	if (!rank_is_in(w, w->passive, rank_of(c)) ||
	    !py_to_index(rank_of(c), &rank))
		return PY_DECLINED;
	return py_flush(w->window, rank);
}

WIN_METHOD(Flush, try_flush);

static int win_traverse(struct win *w, visitproc visit, void *arg)
{
	Py_VISIT(w->window);
	Py_VISIT(w->units);
	Py_VISIT(w->access);
	Py_VISIT(w->passive);
	return 0;
}

static int win_clear(struct win *w)
{
	w->open = w->shows = false;
	Py_CLEAR(w->window);
	Py_CLEAR(w->units);
	Py_CLEAR(w->access);
	Py_CLEAR(w->passive);
	return 0;
}

static void win_dealloc(struct win *w)
{
	PyObject_GC_UnTrack(w);
	win_clear(w);
	Py_TYPE(w)->tp_free(w);
}

PY_SURELY(win, Unlock, unlock_anyway);

PY_SURELY(win, Unlock_all, unlock_all_anyway);

static PyMethodDef win_methods[] = {PY_METHODS_win};

static PyBufferProcs win_buffer = {
	.bf_getbuffer = (getbufferproc)win_get_buffer,
};

PyTypeObject py_win_type = {
	PyVarObject_HEAD_INIT(NULL, 0).tp_name = "rmaext._native.cmethods.Win",
	.tp_doc = PY_DOC_win,
	.tp_basicsize = sizeof(struct win),
	.tp_flags =
		Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
	.tp_new = PyType_GenericNew,
	.tp_dealloc = (destructor)win_dealloc,
	.tp_traverse = (traverseproc)win_traverse,
	.tp_clear = (inquiry)win_clear,
	.tp_methods = win_methods,
	.tp_as_buffer = &win_buffer,
};
