/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * put_notify, rput_notify, wait_notify and test_notify, where they do not wait
 * for long.
 */
#include "python/cmethods.h"

#include "win/notify.h"

static bool slot_take(PyObject *it, int64_t *slot_p)
{
	*slot_p = 0;
	return !it || (py_to_index(it, slot_p) && rmx_notify_slot(*slot_p));
}

const char py_put_notify_doc[] = PyDoc_STR(
	"put_notify($self, /, origin, rank, offset=0, slot=0, *, "
	"key=None)\n--\n\n"
	"Write to a rank's window, then count one up in one of its slots.\n"
	"\n"
	"The target, once `wait_notify` or the like tells it of the count,\n"
	"finds the data in its memory. That is said of this call's data only:\n"
	"earlier puts are covered if they were flushed before.\n"
	"\n"
	"Parameters\n"
	"----------\n"
	"origin : array_like\n"
	"    As for `put`; an empty array only notifies.\n"
	"rank, offset : int\n"
	"    As for `put`.\n"
	"slot : int\n"
	"    0 to 255; each rank has so many counters in each window.\n"
	"key : index, optional\n"
	"    In place of the offset: what `win[rank, key] = origin` takes, "
	"which\n"
	"    comes first. Over the network this waits until the data is "
	"there;\n"
	"    `rput_notify` does not.\n"
	"\n"
	"Raises\n"
	"------\n"
	"BoundsError, IndexError, AccessError, TypeError, ValueError, "
	"OverflowError\n"
	"    Before anything is sent.\n"
	"RmaTimeout, PeerLostError\n"
	"    Here or in the next `flush`.\n"
	"\n"
	"Notes\n"
	"-----\n"
	"Local; complete at the target after `flush`. Corresponds to\n"
	"gaspi_write_notify, shmem_put_signal, and in MPI to MPI_Put,\n"
	"MPI_Win_flush and a message.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.put_notify([1.0, 2.0], rank=0, offset=4, slot=7)\n"
	">>> win.wait_notify(7)  # the target does this\n"
	"1\n"
	">>> win.local[4:6]\n"
	"array([1., 2.])");

/* The method's caller keeps alive what is copied. */
static enum py_outcome put_by_message(struct py_window *w, int64_t rank,
				      uint64_t offset, const void *from,
				      uint64_t len, int slot)
{
	int code;

	Py_BEGIN_ALLOW_THREADS
	code = rmx_notify_post(w->it.window, rank, offset, from, len, slot);
	Py_END_ALLOW_THREADS
	return code ? PY_DECLINED : PY_DONE; /* errors come again */
}

static enum py_outcome notified_bytes(struct py_window *w, const void *from,
				      uint64_t len, int64_t rank,
				      uint64_t offset, int slot)
{
	struct rmaext_record_sent *sent;
	const struct rmx_target *t;

	if (len > PY_GIL_BYTES || !rmx_passes(w->it.window, rank, offset, len,
					      len ? RMAEXT_WRITE : 0))
		return PY_DECLINED;
	sent = rmx_sent(&w->it.window->tally, rank, slot);
	if (sent && !sent->site)
		return PY_DECLINED; /* Python says where the program is */
	t = rmx_target_of(w->it.window, rank);
	if (t->route == RMAEXT_FABRIC)
		return put_by_message(w, rank, offset, from, len, slot);
	if (t->route != RMAEXT_DIRECT ||
	    !rmx_control_block_of(w->it.window, rank))
		return PY_DECLINED;
	rmx_copy(t->map + offset, from, len);
	rmx_count_direct(&w->it.window->tally, rank, RMAEXT_DID_NOTIFY,
			 (uint64_t)slot, len, true);
	rmx_sent_count(sent, true);
	rmx_notify_add(w->it.window, rank, slot, 1);
	return PY_DONE;
}

static enum py_outcome notified_put(struct py_window *w, PyObject *origin,
				    int64_t rank, int64_t index, int slot)
{
	PyArrayObject *packed;
	enum py_outcome done;
	union py_cell cell;
	uint64_t offset;

	if (!py_is_open(w) || !py_to_bytes(w, index, &offset))
		return PY_DECLINED;
	if (PyList_CheckExact(origin) && !PyList_GET_SIZE(origin))
		return notified_bytes(w, cell.bytes, 0, rank, offset, slot);
	if (py_is_plain(w, origin))
		return notified_bytes(
			w, PyArray_DATA((PyArrayObject *)origin),
			(uint64_t)PyArray_NBYTES((PyArrayObject *)origin), rank,
			offset, slot);
	if (py_pack(w, origin, &cell))
		return notified_bytes(w, cell.bytes, w->it.unit, rank, offset,
				      slot);
	packed = py_packed(w, origin, PY_GIL_BYTES);
	if (!packed)
		return PY_DECLINED;
	done = notified_bytes(w, PyArray_DATA(packed),
			      (uint64_t)PyArray_NBYTES(packed), rank, offset,
			      slot);
	Py_DECREF(packed);
	return done;
}

/* Would a notification alone, to a rank of the window, be done by memory? */
static bool slot_is_here(const struct py_window *w, int64_t rank, int slot)
{
	const struct rmaext_record_sent *sent;

	if (!rmx_passes(w->it.window, rank, 0, 0, 0) ||
	    !py_target_is_direct(w, rank) ||
	    !rmx_control_block_of(w->it.window, rank))
		return false;
	sent = rmx_sent(&w->it.window->tally, rank, slot);
	return !sent || sent->site;
}

static enum py_outcome put_notify_try(void *self, struct py_call *c)
{
	PyObject *key = py_key_of(c->got[4]);
	struct py_window *w = self;
	int64_t rank, index, slot;
	enum py_outcome done;

	if (!py_to_place(c->got[1], c->got[2], &rank, &index) ||
	    !slot_take(c->got[3], &slot))
		return PY_DECLINED;
	if (!key)
		return notified_put(w, c->got[0], rank, index, (int)slot);
	if (index || !py_is_open(w) || !slot_is_here(w, rank, (int)slot))
		return PY_DECLINED;
	done = py_put_part(w, rank, key, c->got[0]);
	if (done != PY_DONE)
		return done;
	/* a turn of other threads may have closed it */
	return py_is_open(w) ? notified_bytes(w, key, 0, rank, 0, (int)slot)
			     : PY_DECLINED;
}

#define NOTIFIED                                                      \
	.required = 2, .given = 5, .named = 1,                        \
	.names = {&py_names.origin, &py_names.rank, &py_names.offset, \
		  &py_names.slot, &py_names.key}

PY_METHOD(py_put_notify, put_notify_try, .slow = &py_names.put_notify,
	  NOTIFIED);

const char py_rput_notify_doc[] =
	PyDoc_STR("rput_notify($self, /, origin, rank, offset=0, slot=0, *, "
		  "key=None)\n--\n\n"
		  "Begin a put that notifies: `put_notify` of any length, "
		  "without waiting.\n"
		  "\n"
		  "Parameters\n"
		  "----------\n"
		  "origin, rank, offset\n"
		  "    As for `put`. The origin may not be changed before the "
		  "request is done.\n"
		  "slot : int\n"
		  "    0 to 255, of the target.\n"
		  "key : index, optional\n"
		  "    In place of the offset: what `win[rank, key] = origin` "
		  "takes. The origin is then\n"
		  "    broadcast; one that lies in pieces is packed.\n"
		  "\n"
		  "Returns\n"
		  "-------\n"
		  "Request\n"
		  "    Done once the data is in the target's memory and the "
		  "slot has counted. Its result\n"
		  "    is None.\n"
		  "\n"
		  "Raises\n"
		  "------\n"
		  "BoundsError, IndexError, AccessError, TypeError, "
		  "ValueError, PeerLostError, ClosedError\n"
		  "    At once, if the operation can be refused; then nobody "
		  "is notified.\n"
		  "\n"
		  "Notes\n"
		  "-----\n"
		  "Local, not blocking; waits as `rput` does. The target, once "
		  "it is told of the count,\n"
		  "finds all of the data. What is reached by memory is done "
		  "when it returns. Over the\n"
		  "network it goes as messages, which the target's progress "
		  "thread carries out in their\n"
		  "order: an element costs 32 bytes more where it lies by "
		  "itself in the target's array,\n"
		  "long runs next to nothing. An empty origin only notifies. "
		  "Corresponds to\n"
		  "gaspi_write_list_notify, and shmem_put_signal_nbi.\n"
		  "\n"
		  "Examples\n"
		  "--------\n"
		  ">>> requests = [win.rput_notify(np.ones(2), 0, key=slice(4, "
		  "8, 2), slot=7)]\n"
		  ">>> win.wait_notify(7)  # the target does this\n"
		  "1\n"
		  ">>> win.local[3:8]\n"
		  "array([0., 1., 0., 1., 0.])\n"
		  ">>> requests[0].wait()");

static enum py_outcome rput_notify_try(void *w, struct py_call *c)
{
	enum py_outcome done;
	int64_t rank;

	if (!py_is_open(w) || !py_to_index(c->got[1], &rank) ||
	    !py_rank_is_direct(w, rank))
		return PY_DECLINED;
	done = put_notify_try(w, c);
	return done == PY_DONE ? py_request_done(c) : done;
}

PY_METHOD(py_rput_notify, rput_notify_try, .slow = &py_names.rput_notify,
	  NOTIFIED);

/* The control block of this rank, if the arguments are plain; else NULL. */
static struct rmx_control_block *own_control_block(struct py_window *w,
						   PyObject *const *got,
						   int64_t *slot_p,
						   int64_t *count_p)
{
	*count_p = 1;
	if (!py_is_open(w) || !slot_take(got[0], slot_p) ||
	    (got[1] && (!py_to_index(got[1], count_p) || !*count_p)))
		return NULL;
	return rmx_control_block_of(w->it.window, w->it.window->self);
}

/* No limit, or one that Python would take, see config.seconds(). */
static bool timeout_is_plain(PyObject *it)
{
	int64_t whole;

	return !it || it == Py_None ||
	       (PyFloat_CheckExact(it) ? PyFloat_AS_DOUBLE(it) >= 0
				       : py_to_index(it, &whole));
}

/*
 * The call has taken counts off a slot and returns `result`. A signal that came
 * before is served here, and if its handler raises, the counts are given back:
 * after the call it could raise, and nobody would have the counts.
 */
static enum py_outcome counts_taken(struct py_window *w, struct py_call *c,
				    int64_t slot, int64_t count,
				    PyObject *result)
{
	if (result && !PyErr_CheckSignals()) {
		c->result = result;
		return PY_DONE;
	}
	Py_XDECREF(result);
	rmx_notify_add(w->it.window, w->it.window->self, (int)slot, count);
	return PY_FAILED;
}

const char py_wait_notify_doc[] = PyDoc_STR(
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
	"shmem_signal_wait_until.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.put_notify([], rank=0, slot=3)\n"
	">>> win.put_notify([], rank=0, slot=3)\n"
	">>> win.wait_notify(3, count=2)\n"
	"2");

static enum py_outcome wait_notify_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	PyObject *limit = c->got[2];
	struct rmx_control_block *block;
	int64_t slot, count, seen = 0;
	int code;

	block = own_control_block(w, c->got, &slot, &count);
	if (!block || !timeout_is_plain(limit))
		return PY_DECLINED;
	for (int i = 0; i < PY_GIL_LOOKS; i++) {
		if (rmx_notify_take(block, (int)slot, count, &seen))
			return counts_taken(w, c, slot, count,
					    PyLong_FromLongLong(seen));
		rmx_relax();
	}
	if (limit && limit != Py_None)
		return PY_DECLINED;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_notify_wait(w->it.window, (int)slot, count, RMX_SLICE,
				  &seen);
	Py_END_ALLOW_THREADS
	if (code) /* an error comes again */
		return PY_DECLINED;
	return counts_taken(w, c, slot, count, PyLong_FromLongLong(seen));
}

PY_METHOD(py_wait_notify, wait_notify_try, .slow = &py_names.wait_notify,
	  .required = 1, .given = 3,
	  .names = {&py_names.slot, &py_names.count, &py_names.timeout});

const char py_test_notify_doc[] = PyDoc_STR(
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
	"gaspi_notify_reset, and shmem_signal_fetch.\n"
	"\n"
	"Examples\n"
	"--------\n"
	">>> win.test_notify(3)\n"
	"False\n"
	">>> win.put_notify([], rank=0, slot=3)\n"
	">>> win.test_notify(3)\n"
	"True");

static enum py_outcome test_notify_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	struct rmx_control_block *block;
	struct rmaext_fabric *fabric;
	int64_t slot, count, seen;

	block = own_control_block(w, c->got, &slot, &count);
	if (!block)
		return PY_DECLINED;
	if (rmx_notify_take(block, (int)slot, count, &seen))
		return counts_taken(w, c, slot, count, Py_NewRef(Py_True));
	/* without a progress thread, Python serves the network */
	fabric = w->it.window->fabric;
	if (fabric && !fabric->progress.running)
		return PY_DECLINED;
	py_count_turn();
	c->result = Py_NewRef(Py_False);
	return PY_DONE;
}

PY_METHOD(py_test_notify, test_notify_try, .slow = &py_names.test_notify,
	  .required = 1, .given = 2,
	  .names = {&py_names.slot, &py_names.count});
