/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Python's methods in C: the operations of Window, prepared operations and
 * registered buffers as types of C. A call through cffi with Python's checks
 * takes 1 us, one of these 0.1.
 *
 * They know the plain case only: an open window, integers, an array of the
 * window's dtype in one piece, nothing that would be refused. In any other case
 * they do nothing and call the Python method of the same name with an
 * underscore in front, which has the checks, the conversions and the words of
 * all errors.
 *
 * These files are linked into the same shared object as cffi's
 * rmaext._native._lib, so there is one copy of csrc/.
 *
 * Every function is called with the GIL held and returns with it, unless it
 * says otherwise. While the GIL is held, no other thread closes the window:
 * what is short enough to keep the GIL need not enter the window. Arguments are
 * borrowed references; a returned PyObject is the caller's, and NULL means that
 * an exception is set.
 */
#ifndef RMAEXT_CMETHODS_H
#define RMAEXT_CMETHODS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* NumPy's functions: a table that the module fetches, and the others share. */
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL py_numpy
#ifndef PY_METHODS_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include "api/api.h"
#include "exec/update.h"
#include "python/gil.h"

#include "declared.h" /* rmaext/_native/declared.py makes it when we build */

struct py_window {
	PyObject_HEAD struct rmx_typed it;
	struct py_kept *kept; /* see numba.c; NULL: nobody asked for it */
	PyArray_Descr *dtype;
	PyObject *handle; /* cffi's, which frees it.window */
	PyObject *fabric; /* a struct py_endpoint, or None */
	/* of the communicator's collective calls, by Python, which keeps: */
	PyObject *meetings;
	struct rmaext_meetings *calls;
	uint64_t name; /* the window's number among them */
	/*
	 * Of a window over several arrays, which has no C window itself: their
	 * windows, a tuple, and at [r, k] the offset at which array k of rank r
	 * begins, where the last k is the end; else NULL.
	 */
	PyObject *arrays;
	PyArrayObject *bounds;
};

/* What came of an attempt to do it in C. */
enum py_outcome {
	PY_FAILED = -1,	 /* a Python exception is set */
	PY_DECLINED = 0, /* nothing was done: the Python method decides */
	PY_DONE = 1,
};

/* One element, with room for the largest. */
union py_cell {
	int8_t i1;
	int16_t i2;
	int32_t i4;
	int64_t i8;
	uint8_t u1;
	uint16_t u2;
	uint32_t u4;
	float f4;
	double f8;
	char bytes[RMX_MOST_UNIT];
};

/*
 * Names that C passes or compares: of attributes, besides those of arguments;
 * and of Python methods, which begin with an underscore, besides those that C's
 * own stand before.
 */
/* clang-format off */
#define PY_NAMES(X) \
	PY_DECLARED_NAMES(X) X(acquire) X(release) X(abandon_fence)
#define PY_METHOD_NAMES(X) \
	PY_DECLARED_METHODS(X) X(getitem) X(setitem) X(shapes) X(report) \
	X(fence_on) X(release_anyway) X(release_all_anyway) \
	X(unlock_anyway) X(unlock_all_anyway) X(enter) X(exit) X(forsake)
/* clang-format on */

/* module.c: interned strings, so that names are compared by their addresses. */
extern struct py_names {
#define PY_NAME(name) PyObject *name;
	PY_NAMES(PY_NAME)
	PY_METHOD_NAMES(PY_NAME)
#undef PY_NAME
	PyObject *ops[RMX_OPS]; /* by number; NULL: without a name */
	PyObject *zero;
} py_names;

/* If it is not, there may be no C window, and no dtype. */
static inline bool py_is_open(const struct py_window *w)
{
	return !w->it.closed && w->it.window;
}

/* Turns an element's index into bytes. False: 64 bits do not hold them. */
static inline bool py_to_bytes(const struct py_window *w, int64_t index,
			       uint64_t *offset_p)
{
	return !__builtin_mul_overflow((uint64_t)index, w->it.unit, offset_p);
}

/*
 * Is it an array of the window's dtype, in one piece? One of a subclass, which
 * may do otherwise, is not plain.
 */
static inline bool py_is_plain(const struct py_window *w, PyObject *it)
{
	PyArrayObject *array = (PyArrayObject *)it;

	return PyArray_CheckExact(it) && PyArray_IS_C_CONTIGUOUS(array) &&
	       (PyArray_DESCR(array) == w->dtype ||
		PyArray_EquivTypes(PyArray_DESCR(array), w->dtype));
}

/* The same of an array that is to be written, of a window that may be closed.
 */
static inline bool py_is_plain_result(const struct py_window *w, PyObject *it)
{
	return py_is_open(w) && py_is_plain(w, it) &&
	       PyArray_ISWRITEABLE((PyArrayObject *)it);
}

static inline bool py_target_is_direct(const struct py_window *w, int64_t rank)
{
	return rmx_target_of(w->it.window, rank)->route == RMAEXT_DIRECT;
}

static inline bool py_target_by_network(const struct py_window *w, int64_t rank)
{
	return rmx_target_of(w->it.window, rank)->route == RMAEXT_FABRIC;
}

/* Is a number, which may be any, a rank of the window? */
static inline bool py_is_rank(const struct py_window *w, int64_t rank)
{
	return rank >= 0 && rank < w->it.window->count;
}

/* The same as py_target_is_direct() of a number that may be no rank. */
static inline bool py_rank_is_direct(const struct py_window *w, int64_t rank)
{
	return py_is_rank(w, rank) && py_target_is_direct(w, rank);
}

static inline bool py_target_allows(const struct py_window *w, int64_t rank,
				    uint64_t offset, uint64_t count, int access)
{
	uint64_t len;

	return !__builtin_mul_overflow(count, w->it.unit, &len) &&
	       rmx_passes(w->it.window, rank, offset, len, access);
}

struct py_signature;
#define PY_PARAMETERS 5

/* A call of a method: its arguments, what the method does, what it returns. */
struct py_call {
	const struct py_signature *is;
	void *self;
	PyObject *got[PY_PARAMETERS]; /* NULL: was not given */
	PyObject *result;	      /* NULL: None */
	/* what py_take_alike() has made of those that the method has: no others
	 * are set */
	struct py_window *w; /* that of the array which the place is in */
	int64_t rank, index;
	int64_t count, slot; /* -1: no count was given; 0: no slot */
	PyObject *key;	     /* of the whole window; NULL: there is a place */
	int op;
};

typedef enum py_outcome py_attempt(struct py_call *call);

/* A method: how it is called, as cmethods.pyi declares it, and what it does. */
struct py_signature {
	const char *name;
	/* with an exception set: what to return; or NULL, which raises it */
	PyObject *(*failed)(void *self);
	PyObject **slow;     /* the name of the Python method */
	int required, given; /* parameters: the first so many, and all */
	int named;	     /* the last so many are given by name only */
	/* which parameter, from 1 on, is that; 0: there is none */
	int rank, offset, count, op, slot, key;
	PyObject *const *names[PY_PARAMETERS];
	/* what tells methods apart that share an attempt */
	int kind; /* RMAEXT_PUT ... */
	int does; /* an update without `op` */
	enum { PY_NOTHING, PY_ARRAY, PY_SCALAR_OR_ARRAY, PY_SCALAR } returns;
	py_attempt *at_once; /* of a request: that without it */
};

/*
 * args.c: sorts arguments that were given by name into slots, behind the first
 * n ones. False: there are too few in all, or unknown ones.
 */
bool py_take_named(const struct py_signature *s, PyObject **slots,
		   PyObject *const *named, Py_ssize_t n, PyObject *keywords);
/*
 * The next four convert an argument. False: C does not know it, and no
 * exception is set.
 */
/* a non-negative integer, Python's or NumPy's, that 64 bits hold */
bool py_to_index(PyObject *it, int64_t *index_p);
/*
 * The place of a call in a window of several arrays: its window becomes that of
 * the array which has the element, and its index is counted there.
 */
bool py_find_array(struct py_call *c);
/* an operation by its name; NULL is the sum */
bool py_to_op(PyObject *it, int *op_p);
/* a number that fits the window's dtype, as one element of it */
bool py_pack(const struct py_window *w, PyObject *it, union py_cell *cell);
/* What a put or update takes, in one piece. */
struct py_origin {
	const void *data;
	uint64_t bytes;
	PyArrayObject *copy; /* which has the data; NULL: they were in one */
	union py_cell cell;
};
/*
 * Takes a copy, in one piece, of an array of the window's dtype that is not,
 * and has `most` bytes at most. False: it is no such array, or there is no
 * memory; no exception is set.
 */
bool py_origin_pack(const struct py_window *w, PyObject *it, npy_intp most,
		    struct py_origin *o);
/* Takes what is plain, a number, or the same. The copy is the caller's. */
static inline bool py_origin_take(const struct py_window *w, PyObject *it,
				  npy_intp most, struct py_origin *o)
{
	o->copy = NULL;
	if (py_is_plain(w, it)) {
		o->data = PyArray_DATA((PyArrayObject *)it);
		o->bytes = w->it.unit *
			   (uint64_t)PyArray_SIZE((PyArrayObject *)it);
		return true;
	}
	o->data = &o->cell;
	o->bytes = w->it.unit;
	return py_pack(w, it, &o->cell) || py_origin_pack(w, it, most, o);
}
/* A new array of the window's dtype; or NULL, with an exception. */
PyArrayObject *py_new_array(const struct py_window *w, int ndim,
			    const npy_intp *shape);
/* Calls the Python method `name`, which decides what C does not know. */
PyObject *py_decide(void *self, PyObject *name, PyObject *const *args,
		    Py_ssize_t n, PyObject *keywords);

/*
 * Sorts arguments into slots, which are NULL before. False: there are too few,
 * too many or unknown ones. This is inlined with each signature: as a function
 * it takes 17 instructions more, of about 380 of a put.
 */
__attribute__((always_inline)) static inline bool
py_take(const struct py_signature *s, PyObject **slots, PyObject *const *args,
	Py_ssize_t n, PyObject *keywords)
{
	if (n > s->given - s->named)
		return false;
	for (Py_ssize_t i = 0; i < n; i++)
		slots[i] = args[i];
	return keywords ? py_take_named(s, slots, args + n, n, keywords)
			: n >= s->required;
}

/* Takes what methods have in common. False: Python does. */
__attribute__((always_inline)) static inline bool
py_take_alike(const struct py_signature *s, struct py_call *c)
{
#define PY_GOT(what) (s->what ? c->got[s->what - 1] : NULL)
	PyObject *offset = PY_GOT(offset), *count = PY_GOT(count);

	if (s->offset || s->slot)
		c->w = c->self;
	if (!s->op)
		c->op = s->does;
	if (s->offset) {
		c->index = 0;
		if (!py_to_index(PY_GOT(rank), &c->rank) ||
		    (offset && !py_to_index(offset, &c->index)) ||
		    (c->w->arrays && !py_find_array(c)))
			return false;
	}
	if (s->key) {
		c->key = PY_GOT(key) == Py_None ? NULL : PY_GOT(key);
		if (c->key && (c->index || c->w != c->self))
			return false;
	}
	if (s->count) {
		c->count = -1;
		if (count && count != Py_None && !py_to_index(count, &c->count))
			return false;
	}
	if (s->slot) {
		c->slot = 0;
		if (PY_GOT(slot) && !py_to_index(PY_GOT(slot), &c->slot))
			return false;
	}
	return !s->op || py_to_op(PY_GOT(op), &c->op);
#undef PY_GOT
}

/* Calls a method: by an attempt in C, or else by the Python method. */
__attribute__((always_inline)) static inline PyObject *
py_call(const struct py_signature *s, py_attempt *attempt, void *self,
	PyObject *const *args, Py_ssize_t n, PyObject *keywords)
{
	enum py_outcome done = PY_DECLINED;
	struct py_call call;

	call.is = s;
	call.self = self;
	call.result = NULL;
	memset(call.got, 0, (size_t)s->given * sizeof(*call.got));
	if (py_take(s, call.got, args, n, keywords) && py_take_alike(s, &call))
		done = attempt(&call);
	if (done == PY_DECLINED)
		return py_decide(self, *s->slow, args, n, keywords);
	if (done == PY_FAILED)
		return s->failed ? s->failed(self) : NULL;
	return call.result ? call.result : Py_NewRef(Py_None);
}

/*
 * Defines a method that cmethods.pyi declares by its attempt; the further
 * arguments initialise other fields of its signature. The assertion takes the
 * semicolon behind it.
 */
#define PY_METHOD(type, name, attempt, ...)                                   \
	PyObject *py_##type##_##name(PyObject *self, PyObject *const *args,   \
				     Py_ssize_t n, PyObject *keywords)        \
	{                                                                     \
		static const struct py_signature signature = {                \
			PY_SIGNATURE_##type##_##name, __VA_ARGS__};           \
                                                                              \
		return py_call(&signature, attempt, self, args, n, keywords); \
	}                                                                     \
	_Static_assert(1, "")

enum { PY_BUFFERS = 2 };

/* A put, get or update that may have to be waited for. */
struct py_transfer {
	struct rmaext_call it;
	const char *name;
	/* what C may use until the end; or None */
	PyObject *buffer[PY_BUFFERS];
};

/*
 * How an endpoint uses buffers: as C says; no more, as it is closed; or for
 * ever, as it could not be, or is about to be.
 */
enum py_endpoint_state { PY_OPEN, PY_CLOSED, PY_STUCK };

/* What an endpoint, of Python's class, has for C. */
struct py_endpoint {
	PyObject_HEAD enum py_endpoint_state state;
	pid_t pid;	/* of the process that has opened it */
	PyObject *know; /* to be called with buffers; or NULL */
	/* operations that C still uses, and nobody else; oldest first */
	struct py_owner *orphans, *last;
	Py_ssize_t orphan_count, orphan_bytes;
	Py_ssize_t in_flight; /* those that somebody has */
};

/* What C is about to do, or does: the one owner of its buffers. */
struct py_owner {
	PyObject_HEAD rmaext_op *op; /* NULL: not begun, over, or given up */
	rmaext_op *left; /* what was given up, until C lets go of it */
	struct py_endpoint *endpoint; /* NULL: it is by memory */
	PyObject *handle;	      /* the window's */
	PyObject *buffers;	      /* a tuple; NULL: C is done with them */
	struct py_owner *next;	      /* of the orphans */
	Py_ssize_t bytes;
	int64_t bad;
	bool waiting; /* a thread is in C with it */
	int code;     /* that C has returned last */
	int ended;    /* of a request, set by C */
	bool request, begun, released, given_up;
};

/*
 * owner.c: find_ffi is called once, when the module is loaded. new returns
 * NULL with an exception where there is no memory. release lets go of what it
 * has, now or when C is done with it; reap looks at so many that were let go
 * of.
 */
bool py_find_ffi(void);
PyObject *py_owner_new(PyObject *endpoint, PyObject *handle, PyObject *buffers,
		       rmaext_op *op);
void py_owner_release(struct py_owner *owner);
void py_endpoint_reap(struct py_endpoint *endpoint, Py_ssize_t most);
/* Announces buffers to the registration cache. False: an exception is set. */
bool py_endpoint_announce(struct py_endpoint *e, PyObject *const *buffers,
			  Py_ssize_t n);
static inline struct py_endpoint *py_endpoint_of(const struct py_window *w)
{
	return w->fabric == Py_None ? NULL : (struct py_endpoint *)w->fabric;
}

/*
 * transfer.c: carries out a transfer that was checked, without the GIL; if it
 * is not complete, it is Python's, which waits on or raises. The window's
 * memory of C must be open.
 */
enum py_outcome py_transfer_run(struct py_window *w,
				const struct py_transfer *r);
/* Raises the error of an operation on bytes, which has a record. */
enum py_outcome py_raise_code(struct py_window *w, const char *call,
			      int64_t rank, uint64_t offset, uint64_t len,
			      int code);

/*
 * transfer.c: adds a single, which was checked, to others that wait for the
 * same target. False: nothing was done.
 */
bool py_join(struct py_window *w, const struct rmaext_call *single);

/*
 * put_get.c: what Window's put and get do. An operation that takes long
 * releases the GIL, and keeps its buffers alive as long as C may use them.
 */
py_attempt py_try_put, py_try_get;
/*
 * Puts or gets len bytes of a window of bytes. owner keeps data alive; without
 * one, only what is by memory is done.
 */
enum py_outcome py_move(struct py_window *w, bool put, PyObject *owner,
			void *data, uint64_t len, int64_t rank,
			uint64_t offset);
/*
 * index.c: does what a call with a key asks for, if that is by memory. `out`,
 * if there is one, is plain and writeable; updates have no results, and take an
 * array of the key's shape.
 */
enum py_outcome py_put_part(struct py_call *c);
enum py_outcome py_get_part(struct py_call *c, PyArrayObject *out);
enum py_outcome py_update_part(struct py_call *c);
/* Would a get of so many elements be allowed? */
bool py_could_get(const struct py_window *w, int64_t rank, int64_t index,
		  int64_t count);
/* rank -1: all ranks */
enum py_outcome py_flush(struct py_window *w, int64_t rank);
/*
 * Counts an operation that ended without waiting. A program may poll with such
 * operations, for something that a message of MPI has to bring about: so every
 * now and then this calls MPI, without the GIL.
 */
void py_count_turn(void);

/*
 * Rows of the tables of methods, which declared.h has: PY_METHODS_window and so
 * on, and PY_FUNCTIONS.
 */
#define PY_ROW(type, name, function, flags)                   \
	{#name, (PyCFunction)(void (*)(void))function, flags, \
	 PY_DOC_##type##_##name},
#define PY_GENERIC(name)                                                 \
	{"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,      \
	 #name "[numpy.float64]: for annotations, as numpy.ndarray has " \
	       "it."},
#define PY_GETTER(type, name, function) \
	{#name, (getter)function, NULL, PY_DOC_##type##_##name, NULL}

/*
 * request.c: Request; those that end at once. In place of the result of a call
 * that is done comes a request that is done, with that result.
 */
extern PyType_Spec py_request_spec;
enum py_outcome py_request_done(struct py_call *c);

/* end.c: clears the current exception, and returns it with its traceback. */
PyObject *py_exception_taken(void);

/* index.c: win[rank, key] */
extern PyMappingMethods py_index_methods;

/*
 * numba.c: Window.numba; and its end, after which compiled functions find that
 * the window is closed.
 */
PyObject *py_numba(struct py_window *w, void *closure);
void py_numba_close(struct py_window *w);

/* The types: window.c, prepared.c, owner.c, with.c; and compat's. */
extern PyTypeObject py_window_type, py_buffer_type, py_prepared_type;
extern PyTypeObject py_owner_type, py_endpoint_type;
extern PyTypeObject py_win_type;
extern PyType_Spec py_with_spec, py_locks_spec;

/*
 * Calls a method of `self` and, if it raises, another one with the same
 * arguments, which undoes what may not stay; a second time if that raises, as a
 * signal handler may.
 */
PyObject *py_surely(PyObject *self, PyObject *name, PyObject *otherwise,
		    PyObject *const *args, Py_ssize_t n, PyObject *names);
/* Defines such a method. */
#define PY_SURELY(type, name, otherwise)                                   \
	static PyObject *py_##type##_##name(PyObject *self,                \
					    PyObject *const *args,         \
					    Py_ssize_t n, PyObject *names) \
	{                                                                  \
		return py_surely(self, py_names.name, py_names.otherwise,  \
				 args, n, names);                          \
	}                                                                  \
	_Static_assert(1, "")

#endif
