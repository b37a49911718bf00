/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Puts and gets between memory of MPI's derived datatypes, on the direct route.
 * rmaext.compat.types computes what a datatype is, and tells it once; the ones
 * that were used lately are known here, by the objects that stand for them.
 */
#include "python/compat.h"

#define KEEP_GIL ((uint64_t)16 << 10) /* bytes: 10 us, if in short runs */

enum { LOOPS = 8, KNOWN = 64 };

/* An element of a datatype: runs of bytes, repeated at each turn of loops. */
struct py_derived {
	PyObject *object;  /* a reference, so that its address stays its own */
	uint64_t bytes;	   /* of its data */
	int64_t extent;	   /* bytes to the next element */
	int64_t low, high; /* bytes from the element's place to its ends */
	int loops;	   /* the outermost first */
	int64_t turns[LOOPS], steps[LOOPS];
	Py_ssize_t runs;
	int64_t *offsets, *lengths;
};

static struct py_derived *known[KNOWN];

static struct py_derived **derived_slot(PyObject *object)
{
	return &known[((uintptr_t)object >> 4) % KNOWN];
}

const struct py_derived *py_find_derived(PyObject *object)
{
	struct py_derived *d = *derived_slot(object);

	return d && d->object == object ? d : NULL;
}

uint64_t py_derived_bytes(const struct py_derived *d)
{
	return d->bytes;
}

int64_t py_derived_extent(const struct py_derived *d)
{
	return d->extent;
}

static void derived_drop(struct py_derived *d)
{
	if (!d)
		return;
	Py_XDECREF(d->object);
	PyMem_Free(d->offsets);
	PyMem_Free(d->lengths);
	PyMem_Free(d);
}

static int64_t *longs_take(PyObject *bytes, Py_ssize_t count)
{
	int64_t *longs = NULL;

	if (PyBytes_GET_SIZE(bytes) != count * (Py_ssize_t)sizeof(*longs))
		PyErr_SetString(
			PyExc_ValueError,
			"mpi_derived() takes as many lengths as offsets");
	else
		longs = PyMem_Malloc(count ? (size_t)PyBytes_GET_SIZE(bytes)
					   : 1);
	if (longs)
		memcpy(longs, PyBytes_AS_STRING(bytes),
		       (size_t)PyBytes_GET_SIZE(bytes));
	return longs;
}

static bool derived_take_loops(struct py_derived *d, PyObject *loops)
{
	d->loops = (int)PyTuple_GET_SIZE(loops);
	for (int k = 0; k < d->loops; k++) {
		long long turns, step;

		if (!PyArg_ParseTuple(PyTuple_GET_ITEM(loops, k), "LL", &turns,
				      &step))
			return false;
		d->turns[k] = turns;
		d->steps[k] = step;
	}
	return true;
}

const char py_mpi_derived_doc[] = PyDoc_STR(
	"mpi_derived(datatype, extent, nbytes, span, loops, offsets, lengths, "
	"/)\n--\n\n"
	"Tell of a derived datatype: a `Layout`, with its runs as bytes of "
	"int64.");

PyObject *py_mpi_derived(PyObject *module, PyObject *args)
{
	struct py_derived *d = PyMem_Calloc(1, sizeof(*d));
	PyObject *object, *loops, *offsets, *lengths;
	unsigned long long bytes;
	long long extent, low, high;

	(void)module;
	if (!d)
		return PyErr_NoMemory();
	if (!PyArg_ParseTuple(args, "OLK(LL)O!SS:mpi_derived", &object, &extent,
			      &bytes, &low, &high, &PyTuple_Type, &loops,
			      &offsets, &lengths))
		goto failed;
	if (PyTuple_GET_SIZE(loops) > LOOPS)
		goto done; /* too deep: Python does it */
	d->object = Py_NewRef(object);
	d->bytes = bytes;
	d->extent = extent;
	d->low = low;
	d->high = high;
	d->runs = PyBytes_GET_SIZE(offsets) / (Py_ssize_t)sizeof(int64_t);
	d->offsets = longs_take(offsets, d->runs);
	d->lengths = d->offsets ? longs_take(lengths, d->runs) : NULL;
	if (!d->lengths || !derived_take_loops(d, loops))
		goto failed;
	{
		struct py_derived **place = derived_slot(object), *old = *place;

		*place = d;
		d = old;
	}
done:
	derived_drop(d);
	Py_RETURN_NONE;
failed:
	derived_drop(d);
	return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

const char py_mpi_forget_doc[] =
	PyDoc_STR("mpi_forget()\n--\n\nForget all derived datatypes.");

PyObject *py_mpi_forget(PyObject *module, PyObject *ignored)
{
	(void)module;
	(void)ignored;
	for (int i = 0; i < KNOWN; i++) {
		struct py_derived *d = known[i];

		known[i] = NULL;
		derived_drop(d);
	}
	Py_RETURN_NONE;
}

/* -- from run to run */

struct walk {
	const struct py_derived *type; /* NULL: there is one run */
	char *element, *turn;	       /* where these begin */
	int64_t done[LOOPS];
	Py_ssize_t run;
	char *at; /* the rest of the run */
	uint64_t left;
};

static void walk_enter_run(struct walk *w)
{
	w->at = w->turn + w->type->offsets[w->run];
	w->left = (uint64_t)w->type->lengths[w->run];
}

static void walk_start(struct walk *w, const struct py_side *side, char *base)
{
	w->type = side->type;
	w->element = w->turn = base;
	w->run = 0;
	memset(w->done, 0, sizeof(w->done));
	if (w->type) {
		walk_enter_run(w);
	} else {
		w->at = base;
		w->left = side->bytes;
	}
}

/* Goes to the next run. After the last one `at` is not used any more. */
static void walk_on(struct walk *w)
{
	const struct py_derived *t = w->type;
	int k = t->loops - 1;

	if (++w->run == t->runs) {
		w->run = 0;
		for (; k >= 0; k--) {
			w->turn += t->steps[k];
			if (++w->done[k] < t->turns[k])
				break;
			w->turn -= t->steps[k] * t->turns[k];
			w->done[k] = 0;
		}
		if (k < 0)
			w->turn = w->element += t->extent;
	}
	walk_enter_run(w);
}

static void walk_copy(struct walk *to, struct walk *from, uint64_t bytes)
{
	for (;;) {
		const uint64_t n =
			to->left < from->left ? to->left : from->left;

		if (n == 8)
			memmove(to->at, from->at, 8);
		else
			memmove(to->at, from->at, n);
		bytes -= n;
		if (!bytes)
			return;
		to->at += n;
		from->at += n;
		to->left -= n;
		from->left -= n;
		if (!to->left)
			walk_on(to);
		if (!from->left)
			walk_on(from);
	}
}

/* The bytes that elements reach, from the first one's place. False: too many.
 */
static bool side_span(const struct py_side *side, int64_t *low_p,
		      int64_t *high_p)
{
	const struct py_derived *t = side->type;
	int64_t reach;

	*low_p = 0;
	*high_p = (int64_t)side->bytes;
	if (!t)
		return true;
	if (__builtin_mul_overflow(side->count - 1, t->extent, &reach))
		return false;
	*low_p = t->low;
	*high_p = t->high;
	return !__builtin_add_overflow(reach < 0 ? t->low : t->high, reach,
				       reach < 0 ? low_p : high_p);
}

enum py_outcome py_move_derived(struct py_window *w, bool put,
				const struct py_side *here, char *data,
				const struct py_side *there, int64_t rank,
				uint64_t offset)
{
	const struct rmaext_window *it = w->it.window;
	struct walk own, remote;
	int64_t low, high, first;

	if (!here->bytes || here->bytes != there->bytes ||
	    here->bytes > KEEP_GIL || rank >= it->count ||
	    rmx_target_of(it, rank)->route != RMAEXT_DIRECT ||
	    !side_span(there, &low, &high) ||
	    __builtin_add_overflow(offset, low, &first) || first < 0 ||
	    !rmx_passes(it, rank, (uint64_t)first, (uint64_t)(high - low),
			put ? RMAEXT_WRITE : RMAEXT_READ))
		return PY_DECLINED;
	walk_start(&own, here, data);
	walk_start(&remote, there, rmx_target_of(it, rank)->map + offset);
	walk_copy(put ? &remote : &own, put ? &own : &remote, here->bytes);
	rmx_count_direct(&it->tally, rank,
			 put ? RMAEXT_DID_PUT : RMAEXT_DID_GET, offset,
			 here->bytes, true);
	return PY_DONE;
}
