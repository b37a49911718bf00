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
	return w->open && rank && PyLong_CheckExact(rank) &&
	       PySet_Contains(set, rank) == 1;
}

/*
 * May an operation on the rank begin? If it is not known to, Python begins an
 * epoch where it is time for one, or raises an error.
 */
static enum py_outcome win_enter(struct win *w, const char *call,
				 PyObject *rank)
{
	PyObject *entered;

	if (rank_is_in(w, w->access, rank))
		return PY_DONE;
	if (!w->open || !rank || !PyLong_CheckExact(rank))
		return PY_DECLINED;
	entered =
		PyObject_CallMethod((PyObject *)w, "_enter", "sO", call, rank);
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

/* What tells Put from Get, and Fetch_and_op from Get_accumulate. */
static const char is_put, is_single;

static enum py_outcome move_try(void *self, struct py_call *c)
{
	const bool put = c->how == &is_put;
	struct win *w = self;
	enum py_outcome done = win_enter(w, put ? "Put" : "Get", c->got[1]);

	if (done != PY_DONE)
		return done;
	done = py_mpi_move(w->window, w->units, c->got[0], c->got[1],
			   object_or_none(c->got[2]), put);
	return done == PY_DONE && put ? win_reach_self(w, c->got[1]) : done;
}

/* Defines a method of MPI.Win: an error is raised as MPI's. */
#define WIN_METHOD(name, ...) \
	static PY_METHOD(win, name, __VA_ARGS__, .failed = win_report)

WIN_METHOD(Put, move_try, .how = &is_put);

WIN_METHOD(Get, move_try);

static enum py_outcome accumulate_try(void *self, struct py_call *c)
{
	struct win *w = self;
	enum py_outcome done = win_enter(w, "Accumulate", c->got[1]);
	int op;

	if (done != PY_DONE)
		return done;
	if (!py_mpi_op(c->got[3], &op))
		return PY_DECLINED;
	done = py_mpi_update(w->window, w->units, c->got[0], NULL, NULL,
			     c->got[1], object_or_none(c->got[2]), op, false);
	return done == PY_DONE ? win_reach_self(w, c->got[1]) : done;
}

WIN_METHOD(Accumulate, accumulate_try);

/* single: of Fetch_and_op, which takes a displacement for a target */
static enum py_outcome fetch_try(void *self, struct py_call *c)
{
	const bool single = c->how == &is_single;
	struct win *w = self;
	const enum py_outcome entered = win_enter(
		w, single ? "Fetch_and_op" : "Get_accumulate", c->got[2]);
	int op;

	if (entered != PY_DONE)
		return entered;
	if ((single && c->got[3] && !PyLong_CheckExact(c->got[3])) ||
	    !py_mpi_op(c->got[4], &op))
		return PY_DECLINED;
	return py_mpi_update(w->window, w->units, c->got[0], NULL, c->got[1],
			     c->got[2], object_or_none(c->got[3]), op, single);
}

WIN_METHOD(Get_accumulate, fetch_try);

WIN_METHOD(Fetch_and_op, fetch_try, .how = &is_single);

static enum py_outcome swap_try(void *self, struct py_call *c)
{
	struct win *w = self;
	const enum py_outcome entered =
		win_enter(w, "Compare_and_swap", c->got[3]);

	if (entered != PY_DONE)
		return entered;
	if (c->got[4] && !PyLong_CheckExact(c->got[4]))
		return PY_DECLINED;
	return py_mpi_update(w->window, w->units, c->got[0], c->got[1],
			     c->got[2], c->got[3], object_or_none(c->got[4]),
			     RMAEXT_CSWAP, true);
}

WIN_METHOD(Compare_and_swap, swap_try);

/* What makes a request of MPI that is done; NULL: not told yet. */
static PyObject *make_done;

PyObject *py_mpi_done(PyObject *module, PyObject *make)
{
	(void)module;
	Py_XSETREF(make_done, Py_NewRef(make));
	Py_RETURN_NONE;
}

/* A call with a request, which is done at once, by memory. */
struct asking {
	enum py_outcome (*attempt)(void *self, struct py_call *c);
	const void *how; /* of the attempt */
	int rank;	 /* which argument that is */
};

static enum py_outcome asking_try(void *self, struct py_call *c)
{
	const struct asking *a = c->how;
	PyObject *rank = c->got[a->rank];
	struct py_call call = *c;
	struct win *w = self;
	enum py_outcome done;
	int64_t number;

	if (!make_done || !rank_is_in(w, w->passive, rank) ||
	    !py_to_index(rank, &number) ||
	    !py_rank_is_direct(w->window, number))
		return PY_DECLINED;
	call.how = a->how;
	done = a->attempt(self, &call);
	if (done != PY_DONE)
		return done;
	c->result = PyObject_CallNoArgs(make_done);
	return c->result ? PY_DONE : PY_FAILED;
}

static const struct asking asking_put = {move_try, &is_put, 1};
static const struct asking asking_get = {move_try, NULL, 1};
static const struct asking asking_accumulate = {accumulate_try, NULL, 1};
static const struct asking asking_get_accumulate = {fetch_try, NULL, 2};

WIN_METHOD(Rput, asking_try, .how = &asking_put);

WIN_METHOD(Rget, asking_try, .how = &asking_get);

WIN_METHOD(Raccumulate, asking_try, .how = &asking_accumulate);

WIN_METHOD(Rget_accumulate, asking_try, .how = &asking_get_accumulate);

static enum py_outcome flush_try(void *self, struct py_call *c)
{
	struct win *w = self;
	int64_t rank;

	if (!rank_is_in(w, w->passive, c->got[0]) ||
	    !py_to_index(c->got[0], &rank))
		return PY_DECLINED;
	return py_flush(w->window, rank);
}

WIN_METHOD(Flush, flush_try);

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
