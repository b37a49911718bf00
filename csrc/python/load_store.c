/* SPDX-License-Identifier: BSD-3-Clause */
/* load and store: an update that only reads, and one that only writes. */
#include "python/cmethods.h"

static enum py_outcome load_try(void *self, struct py_call *c)
{
	static const struct py_update load = {
		.call = "load",
		.op = RMAEXT_NO_OP,
		.result = PY_SCALAR,
	};
	struct py_window *w = self;
	int64_t rank, index;
	PyObject *unread;

	if ((c->got[2] && c->got[2] != Py_None) ||
	    !py_find_place(&w, c->got[0], c->got[1], &rank, &index) ||
	    !py_is_open(w))
		return PY_DECLINED;
	unread = w->it.type == RMAEXT_BOOL ? Py_False : py_names.zero;
	return py_update(w, &load, unread, rank, index, &c->result);
}

PY_METHOD(window, load, load_try);

static enum py_outcome store_try(void *self, struct py_call *c)
{
	struct py_window *w = self;
	struct py_update store = {
		.call = "store",
		.op = RMAEXT_REPLACE,
		.result = PY_NOTHING,
	};
	PyObject *old = NULL;
	enum py_outcome done;
	int64_t rank, index;

	if (!py_find_place(&w, c->got[1], c->got[2], &rank, &index) ||
	    !py_is_open(w))
		return PY_DECLINED;
	/* the previous values are the answer that it has been applied */
	if (!py_rank_is_direct(w, rank))
		store.result = PY_SCALAR_OR_ARRAY;
	done = py_update(w, &store, c->got[0], rank, index, &old);
	Py_XDECREF(old);
	return done;
}

PY_METHOD(window, store, store_try);
