/* SPDX-License-Identifier: BSD-3-Clause */
/* put_notify, wait_notify and test_notify, where they do not wait for long. */
#include "python/hot.h"

#include "win/notify.h"

#define KEEP_GIL ((uint64_t)64 << 10) /* bytes that are copied with the GIL */
#define LOOKS 25		      /* at a counter with the GIL held: 1 us */

static bool slot_take(PyObject *it, int64_t *slot_p)
{
	*slot_p = 0;
	return !it || (hot_to_index(it, slot_p) && rmx_notify_slot(*slot_p));
}

const char hot_put_notify_doc[] = PyDoc_STR(
	"put_notify($self, /, origin, rank, offset=0, slot=0)\n--\n\n"
	"Write to a rank's window, then count one up in one of its slots.\n"
	"\n"
	"The target, once `wait_notify` or the like tells it of the count,\n"
	"finds the data in its memory. That is said of this call's data only:\n"
	"earlier puts are covered if they were flushed before.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"origin : array or scalar\n"
	"    As for `put`; an empty array only notifies.\n"
	"rank, offset : int\n"
	"    As for `put`.\n"
	"slot : int\n"
	"    0 to 255; each rank has so many counters in each window.\n"
	"\n"
	"Raises\n"
	"------\n"
	"BoundsError, AccessError, TypeError, OverflowError\n"
	"    Before anything is sent.\n"
	"RmaTimeout, PeerLostError\n"
	"    Here or in the next `flush`.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local; complete at the target after `flush`. Corresponds to\n"
	"gaspi_write_notify, shmem_put_signal, and in MPI to MPI_Put,\n"
	"MPI_Win_flush and a message.");

/* The method's caller keeps alive what is copied. */
static enum hot_outcome put_by_message(struct hot_window *w, int64_t rank,
				       uint64_t offset, const void *from,
				       uint64_t len, int slot)
{
	int code;

	Py_BEGIN_ALLOW_THREADS
	code = rmx_notify_post(w->it.window, rank, offset, from, len, slot);
	Py_END_ALLOW_THREADS
	return code ? HOT_ODD : HOT_DONE; /* errors come again */
}

static enum hot_outcome notified_put(struct hot_window *w, PyObject *origin,
				     int64_t rank, int64_t index, int64_t slot)
{
	const struct rmx_target *t;
	uint64_t offset, len;
	union hot_cell cell;
	const void *from;

	if (!hot_is_open(w) || !hot_to_bytes(w, index, &offset))
		return HOT_ODD;
	if (hot_is_plain(w, origin)) {
		from = PyArray_DATA((PyArrayObject *)origin);
		len = (uint64_t)PyArray_NBYTES((PyArrayObject *)origin);
	} else if (hot_pack(w, origin, &cell)) {
		from = cell.bytes;
		len = w->it.unit;
	} else {
		return HOT_ODD;
	}
	if (len > KEEP_GIL || !rmx_passes(w->it.window, rank, offset, len,
					  len ? RMAEXT_WRITE : 0))
		return HOT_ODD;
	t = rmx_target_of(w->it.window, rank);
	if (t->route == RMAEXT_FABRIC)
		return put_by_message(w, rank, offset, from, len, (int)slot);
	if (t->route != RMAEXT_DIRECT ||
	    !rmx_control_block_of(w->it.window, rank))
		return HOT_ODD;
	rmx_copy(t->map + offset, from, len);
	rmx_notify_add(w->it.window, rank, (int)slot, 1);
	return HOT_DONE;
}

PyObject *hot_put_notify(struct hot_window *w, PyObject *const *args,
			 Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {
		&hot_names.origin, &hot_names.rank, &hot_names.offset,
		&hot_names.slot};
	PyObject *got[4] = {NULL};
	enum hot_outcome done = HOT_ODD;
	int64_t rank, index, slot;

	if (hot_take(got, wanted, 4, args, n, keywords) && got[0] &&
	    hot_to_place(got[1], got[2], &rank, &index) &&
	    slot_take(got[3], &slot))
		done = notified_put(w, got[0], rank, index, slot);
	if (done == HOT_ODD)
		return hot_decide(w, hot_names.put_notify, args, n, keywords);
	return Py_NewRef(Py_None);
}

/* The control block of this rank, if the arguments are plain; else NULL. */
static struct rmx_control_block *own_control_block(struct hot_window *w,
						   PyObject *const *got,
						   int64_t *slot_p,
						   int64_t *count_p)
{
	*count_p = 1;
	if (!hot_is_open(w) || !slot_take(got[0], slot_p) || !got[0] ||
	    (got[1] && (!hot_to_index(got[1], count_p) || !*count_p)))
		return NULL;
	return rmx_control_block_of(w->it.window, w->it.window->self);
}

/* No limit, or one that Python would take, see config.seconds(). */
static bool timeout_is_plain(PyObject *it)
{
	int64_t whole;

	return !it || it == Py_None ||
	       (PyFloat_CheckExact(it) ? PyFloat_AS_DOUBLE(it) >= 0
				       : hot_to_index(it, &whole));
}

/*
 * Returns the result of a call that has taken counts off a slot. A signal that
 * came before is served here, and if its handler raises, the counts are given
 * back: after the call it could raise, and nobody would have the counts.
 */
static PyObject *counts_taken(struct hot_window *w, int64_t slot, int64_t count,
			      PyObject *result)
{
	if (result && !PyErr_CheckSignals())
		return result;
	Py_XDECREF(result);
	rmx_notify_add(w->it.window, w->it.window->self, (int)slot, count);
	return NULL;
}

const char hot_wait_notify_doc[] = PyDoc_STR(
	"wait_notify($self, /, slot, count=1, timeout=None)\n--\n\n"
	"Wait until a slot of this rank has counted so many, and take them.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"slot : int\n"
	"    0 to 255.\n"
	"count : int\n"
	"    Taken off the counter, at once; the rest stays for later waits.\n"
	"timeout : float, optional\n"
	"    Seconds; by default there is no limit while the peers live.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"int\n"
	"    What the counter was before: at least `count`.\n"
	"\n"
	"Raises\n"
	"------\n"
	"RmaTimeout\n"
	"    Then nothing was taken.\n"
	"PeerLostError\n"
	"    A rank of the communicator is gone, whether or not it was to\n"
	"    notify. Each loss is reported once by a window's waits, so that "
	"the\n"
	"    others can go on; later ones end after the window's time limit.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, blocking; sleeps, and serves Ctrl-C. Several threads may wait\n"
	"for one slot: each count is taken by one. Corresponds to\n"
	"gaspi_notify_waitsome with gaspi_notify_reset, and\n"
	"shmem_signal_wait_until.");

PyObject *hot_wait_notify(struct hot_window *w, PyObject *const *args,
			  Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {
		&hot_names.slot, &hot_names.count, &hot_names.timeout};
	int64_t slot = 0, count, seen = 0;
	struct rmx_control_block *block = NULL;
	PyObject *got[3] = {NULL};
	int code = RMAEXT_PENDING;

	if (hot_take(got, wanted, 3, args, n, keywords))
		block = own_control_block(w, got, &slot, &count);
	if (!block || !timeout_is_plain(got[2]))
		goto odd;
	for (int i = 0; i < LOOKS; i++) {
		if (rmx_notify_take(block, (int)slot, count, &seen))
			return counts_taken(w, slot, count,
					    PyLong_FromLongLong(seen));
		rmx_relax();
	}
	if (got[2] && got[2] != Py_None)
		goto odd;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_notify_wait(w->it.window, (int)slot, count, RMX_SLICE,
				  &seen);
	Py_END_ALLOW_THREADS
	if (!code)
		return counts_taken(w, slot, count, PyLong_FromLongLong(seen));
odd: /* errors come again */
	return hot_decide(w, hot_names.wait_notify, args, n, keywords);
}

const char hot_test_notify_doc[] = PyDoc_STR(
	"test_notify($self, /, slot, count=1)\n--\n\n"
	"Take so many off a slot's counter of this rank, if it has them.\n"
	"\n"
	"Returns\n"
	"-------\n"
	"bool\n"
	"    Whether they were there.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local, not blocking; as `wait_notify` else. Corresponds to\n"
	"gaspi_notify_reset, and shmem_signal_fetch.");

PyObject *hot_test_notify(struct hot_window *w, PyObject *const *args,
			  Py_ssize_t n, PyObject *keywords)
{
	static PyObject *const *const wanted[] = {&hot_names.slot,
						  &hot_names.count};
	int64_t slot = 0, count, seen;
	struct rmx_control_block *block = NULL;
	PyObject *got[2] = {NULL};
	struct rmaext_fabric *fabric;

	if (hot_take(got, wanted, 2, args, n, keywords))
		block = own_control_block(w, got, &slot, &count);
	if (block && rmx_notify_take(block, (int)slot, count, &seen))
		return counts_taken(w, slot, count, Py_NewRef(Py_True));
	/* without a progress thread, Python serves the network */
	fabric = block ? w->it.window->fabric : NULL;
	if (!block || (fabric && !fabric->progress.running))
		return hot_decide(w, hot_names.test_notify, args, n, keywords);
	hot_count_turn();
	Py_RETURN_FALSE;
}
