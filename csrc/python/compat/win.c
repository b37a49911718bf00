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
static enum py_outcome win_enter(struct win *w, const struct py_call *c)
{
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

static PyObject *object_or_none(PyObject *it)
{
	return it ? it : Py_None;
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
static enum py_outcome win_reach_self(struct win *w, PyObject *rank)
{
	const struct rmaext_window *window = w->window->it.window;
	PyObject *result;
	int64_t number;

	if (!py_to_index(rank, &number) || number != window->self ||
	    rmx_target_of(window, number)->route == RMAEXT_DIRECT)
		return PY_DONE;
	result = PyObject_CallMethod((PyObject *)w->window, "flush", "O", rank);
	Py_XDECREF(result);
	return result ? PY_DONE : PY_FAILED;
}

static enum py_outcome try_move(void *self, struct py_call *c)
{
	const bool put = c->is->kind == RMAEXT_PUT;
	struct win *w = self;
	enum py_outcome done = win_enter(w, c);

	if (done != PY_DONE)
		return done;
	done = py_mpi_move(w->window, w->units, c->got[0], c->got[1],
			   object_or_none(c->got[2]), put);
	return done == PY_DONE && put ? win_reach_self(w, c->got[1]) : done;
}

/* Defines a method of MPI.Win: an error is raised as MPI's. */
#define WIN_METHOD(name, ...) \
	static PY_METHOD(win, name, __VA_ARGS__, .failed = win_report)

WIN_METHOD(Put, try_move, .kind = RMAEXT_PUT);

WIN_METHOD(Get, try_move, .kind = RMAEXT_GET);

static enum py_outcome try_accumulate(void *self, struct py_call *c)
{
	struct win *w = self;
	enum py_outcome done = win_enter(w, c);
	int op;

	if (done != PY_DONE)
		return done;
	if (!py_mpi_op(c->got[3], &op))
		return PY_DECLINED;
	done = py_mpi_update(w->window, w->units, c->got[0], NULL, NULL,
			     c->got[1], object_or_none(c->got[2]), op, false);
	return done == PY_DONE ? win_reach_self(w, c->got[1]) : done;
}

WIN_METHOD(Accumulate, try_accumulate);

/* single: of Fetch_and_op, which takes a displacement for a target */
static enum py_outcome try_fetch(void *self, struct py_call *c)
{
	const bool single = c->is->returns == PY_SCALAR;
	struct win *w = self;
	const enum py_outcome entered = win_enter(w, c);
	int op;

	if (entered != PY_DONE)
		return entered;
	if ((single && c->got[3] && !PyLong_CheckExact(c->got[3])) ||
	    !py_mpi_op(c->got[4], &op))
		return PY_DECLINED;
	return py_mpi_update(w->window, w->units, c->got[0], NULL, c->got[1],
			     c->got[2], object_or_none(c->got[3]), op, single);
}

WIN_METHOD(Get_accumulate, try_fetch);

WIN_METHOD(Fetch_and_op, try_fetch, .returns = PY_SCALAR);

static enum py_outcome try_swap(void *self, struct py_call *c)
{
	struct win *w = self;
	const enum py_outcome entered = win_enter(w, c);

	if (entered != PY_DONE)
		return entered;
	if (c->got[4] && !PyLong_CheckExact(c->got[4]))
		return PY_DECLINED;
	return py_mpi_update(w->window, w->units, c->got[0], c->got[1],
			     c->got[2], c->got[3], object_or_none(c->got[4]),
			     RMAEXT_CSWAP, true);
}

WIN_METHOD(Compare_and_swap, try_swap);

/* What makes a request of MPI that is done; NULL: not told yet. */
static PyObject *make_done;

PyObject *py_mpi_done(PyObject *module, PyObject *make)
{
	(void)module;
	Py_XSETREF(make_done, Py_NewRef(make));
	Py_RETURN_NONE;
}

/* A call with a request, which is done at once, by memory. */
static enum py_outcome try_asking(void *self, struct py_call *c)
{
	struct win *w = self;
	enum py_outcome done;
	int64_t number;

	if (!make_done || !rank_is_in(w, w->passive, rank_of(c)) ||
	    !py_to_index(rank_of(c), &number) ||
	    !py_rank_is_direct(w->window, number))
		return PY_DECLINED;
	done = c->is->at_once(self, c);
	if (done != PY_DONE)
		return done;
	c->result = PyObject_CallNoArgs(make_done);
	return c->result ? PY_DONE : PY_FAILED;
}

WIN_METHOD(Rput, try_asking, .at_once = try_move, .kind = RMAEXT_PUT);

WIN_METHOD(Rget, try_asking, .at_once = try_move, .kind = RMAEXT_GET);

WIN_METHOD(Raccumulate, try_asking, .at_once = try_accumulate);

WIN_METHOD(Rget_accumulate, try_asking, .at_once = try_fetch);

static enum py_outcome try_flush(void *self, struct py_call *c)
{
	struct win *w = self;
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
