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

/* The method's caller keeps alive what is copied. */
static enum py_outcome put_by_message(struct py_window *w, int64_t rank,
				      uint64_t offset, const void *from,
				      uint64_t len, int slot)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.notify = slot + 1,
		.rank = rank,
		.offset = offset,
		.operand = from,
		.count = len,
	};
	struct rmaext_window *it = w->it.window;
	int code;

	Py_BEGIN_ALLOW_THREADS
	code = rmx_window_enter(it, "put_notify");
	if (!code) {
		code = rmx_message_post(it, &call);
		rmx_window_leave(it);
	}
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
	enum py_outcome done;
	struct py_origin o;
	uint64_t offset;

	if (!py_is_open(w) || !py_to_bytes(w, index, &offset))
		return PY_DECLINED;
	if (PyList_CheckExact(origin) && !PyList_GET_SIZE(origin))
		return notified_bytes(w, &o.cell, 0, rank, offset, slot);
	if (!py_origin_take(w, origin, PY_GIL_BYTES, &o))
		return PY_DECLINED;
	done = notified_bytes(w, o.data, o.bytes, rank, offset, slot);
	Py_XDECREF(o.copy);
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

PY_METHOD(window, put_notify, put_notify_try);

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

PY_METHOD(window, rput_notify, rput_notify_try);

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

PY_METHOD(window, wait_notify, wait_notify_try);

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

PY_METHOD(window, test_notify, test_notify_try);
