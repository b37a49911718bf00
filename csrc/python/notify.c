/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * put_notify, rput_notify, wait_notify and test_notify, where they do not wait
 * for long.
 */
#include "python/cmethods.h"

#include "win/notify.h"

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

static enum py_outcome notified_put(struct py_call *c)
{
	PyObject *origin = c->got[0];
	enum py_outcome done;
	struct py_origin o;
	uint64_t offset;

	if (!py_to_bytes(c->w, c->index, &offset))
		return PY_DECLINED;
	if (PyList_CheckExact(origin) && !PyList_GET_SIZE(origin))
		return notified_bytes(c->w, origin, 0, c->rank, offset,
				      (int)c->slot);
	if (!py_origin_take(c->w, origin, PY_GIL_BYTES, &o))
		return PY_DECLINED;
	done = notified_bytes(c->w, o.data, o.bytes, c->rank, offset,
			      (int)c->slot);
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

/* In a window of several arrays, which has slots of its own, Python does it. */
static enum py_outcome try_put_notify(struct py_call *c)
{
	struct py_window *w = c->self;
	enum py_outcome done;

	if (!py_is_open(w) || !rmx_notify_slot(c->slot))
		return PY_DECLINED;
	if (!c->key)
		return notified_put(c);
	if (!slot_is_here(w, c->rank, (int)c->slot))
		return PY_DECLINED;
	done = py_put_part(c);
	if (done != PY_DONE)
		return done;
	/* a turn of other threads may have closed it */
	return py_is_open(w)
		       ? notified_bytes(w, c->key, 0, c->rank, 0, (int)c->slot)
		       : PY_DECLINED;
}

PY_METHOD(window, put_notify, try_put_notify);

static enum py_outcome try_rput_notify(struct py_call *c)
{
	enum py_outcome done = PY_DECLINED;

	if (py_is_open(c->self) && py_rank_is_direct(c->self, c->rank))
		done = try_put_notify(c);
	return done == PY_DONE ? py_request_done(c) : done;
}

PY_METHOD(window, rput_notify, try_rput_notify);

/* The control block of this rank, if the arguments are plain; else NULL. */
static struct rmx_control_block *own_control_block(struct py_call *c)
{
	if (!py_is_open(c->w) || !rmx_notify_slot(c->slot))
		return NULL;
	if (!c->got[1])
		c->count = 1;
	return c->count < 1 ? NULL
			    : rmx_control_block_of(c->w->it.window,
						   c->w->it.window->self);
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
static enum py_outcome counts_taken(struct py_call *c, PyObject *result)
{
	if (result && !PyErr_CheckSignals()) {
		c->result = result;
		return PY_DONE;
	}
	Py_XDECREF(result);
	rmx_notify_add(c->w->it.window, c->w->it.window->self, (int)c->slot,
		       c->count);
	return PY_FAILED;
}

static enum py_outcome try_wait_notify(struct py_call *c)
{
	struct rmx_control_block *block = own_control_block(c);
	PyObject *limit = c->got[2];
	int64_t seen = 0;
	int code;

	if (!block || !timeout_is_plain(limit))
		return PY_DECLINED;
	for (int i = 0; i < PY_GIL_LOOKS; i++) {
		if (rmx_notify_take(block, (int)c->slot, c->count, &seen))
			return counts_taken(c, PyLong_FromLongLong(seen));
		rmx_relax();
	}
	if (limit && limit != Py_None)
		return PY_DECLINED;
	Py_BEGIN_ALLOW_THREADS
	code = rmaext_notify_wait(c->w->it.window, (int)c->slot, c->count,
				  RMX_SLICE, &seen);
	Py_END_ALLOW_THREADS
	if (code) /* an error comes again */
		return PY_DECLINED;
	return counts_taken(c, PyLong_FromLongLong(seen));
}

PY_METHOD(window, wait_notify, try_wait_notify);

static enum py_outcome try_test_notify(struct py_call *c)
{
	struct rmx_control_block *block = own_control_block(c);
	struct rmaext_fabric *fabric;
	int64_t seen;

	if (!block)
		return PY_DECLINED;
	if (rmx_notify_take(block, (int)c->slot, c->count, &seen))
		return counts_taken(c, Py_NewRef(Py_True));
	/* without a progress thread, Python serves the network */
	fabric = c->w->it.window->fabric;
	if (fabric && !fabric->progress.running)
		return PY_DECLINED;
	py_count_turn();
	c->result = Py_NewRef(Py_False);
	return PY_DONE;
}

PY_METHOD(window, test_notify, try_test_notify);
