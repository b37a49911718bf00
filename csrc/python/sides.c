/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Operations by memory on elements of MPI's derived datatypes, or on many of a
 * predefined one. Short ones keep the GIL; others enter the window, and release
 * it.
 */
#include "python/sides.h"

#include "exec/guard.h"

/* Is it memory here, with the right, and not past the ends of the window? */
static bool side_is_near(const struct rmaext_window *w, int64_t rank,
			 uint64_t offset, const struct rmx_side *there,
			 int access)
{
	uint64_t first, len;

	return rank < w->count &&
	       rmx_target_of(w, rank)->route == RMAEXT_DIRECT &&
	       rmx_side_within(there, offset, &first, &len) &&
	       rmx_passes(w, rank, first, len, access);
}

/* Is it in few runs? */
static bool side_is_short(const struct rmx_side *side)
{
	const struct rmx_layout *l = side->layout;

	return !l || l->runs * rmx_layout_turns(l) * (uint64_t)side->count <=
			     PY_GIL_RUNS;
}

enum py_outcome py_move_sides(struct py_window *w, bool put, int64_t rank,
			      uint64_t offset, const struct rmx_side *there,
			      const struct rmx_side *own, char *data)
{
	struct rmaext_window *it = w->it.window;
	const uint64_t bytes = own->bytes;
	const bool brief = bytes <= PY_GIL_RUN_BYTES ||
			   (bytes <= PY_GIL_BYTES && side_is_short(there) &&
			    side_is_short(own));
	PyThreadState *thread = NULL;
	char *at;

	if (!side_is_near(it, rank, offset, there,
			  put ? RMAEXT_WRITE : RMAEXT_READ) ||
	    (!brief && rmx_window_enter(it, put ? "put" : "get")))
		return PY_DECLINED;
	at = rmx_target_of(it, rank)->map + offset;
	if (!brief)
		thread = PyEval_SaveThread();
	if (put)
		rmx_side_copy(there, at, own, data);
	else
		rmx_side_copy(own, data, there, at);
	if (!brief)
		PyEval_RestoreThread(thread);
	rmx_count_direct(&it->tally, rank,
			 put ? RMAEXT_DID_PUT : RMAEXT_DID_GET, offset, bytes,
			 true);
	if (!brief) /* whoever is inside counts */
		rmx_window_leave(it);
	py_count_turn();
	return PY_DONE;
}

/* -- updates */

static bool is_aligned(const struct rmaext_window *w, const struct py_target *t,
		       int type)
{
	const struct rmx_layout *l = t->part.side.layout;
	const uint64_t align = rmx_type_of(type).align;
	const int64_t first = l ? l->run->offset : 0;

	return rmx_update_aligned(rmx_target_of(w, t->rank),
				  t->offset + (uint64_t)first, type) &&
	       (!l || !(l->grain % align || (t->part.side.count > 1 &&
					     l->extent % (int64_t)align)));
}

/* The rows are done; whoever is inside the window, or has the GIL, says so. */
static void rows_count(const struct rmaext_window *w, const struct py_target *t,
		       const struct rmx_rows *rows)
{
	rmx_count_direct(&w->tally, t->rank,
			 rmx_counted_as(RMAEXT_UPDATE, rows->with_result),
			 t->offset, t->part.side.bytes, true);
}

/*
 * Goes on for a slice, without the GIL. waits: it has waited for the guard
 * before, and else this is no wait. Inside the window.
 */
static int rows_slice(struct rmaext_window *w, const struct py_target *t,
		      struct rmx_rows *rows, bool waits, int64_t *deadline)
{
	const uint64_t before = rows->left;
	int ret;

	Py_BEGIN_ALLOW_THREADS
	if (waits)
		rmx_now_in(RMAEXT_IN_GUARD, w->tally.id, t->rank, t->offset,
			   before);
	ret = rmx_update_rows(w, t->rank, rows, RMX_SLICE);
	if (ret == RMAEXT_PENDING) {
		if (rows->left != before)
			*deadline = 0;
		ret = rmx_guard_overdue(t->rank, w->timeout, deadline);
	}
	if (waits)
		rmx_now_out(w->tally.id, ret, true);
	Py_END_ALLOW_THREADS
	return ret;
}

/*
 * Goes on until all rows are done, and counts them then. Between two slices it
 * is outside the window, which may be closed meanwhile. Returns 0, an error
 * with a record, or RMAEXT_PENDING with an exception of a signal handler's.
 */
static int rows_finish(struct rmaext_window *w, const struct py_target *t,
		       struct rmx_rows *rows)
{
	int64_t deadline = 0;
	bool waits = false;
	int ret;

	for (;;) {
		ret = rmx_window_enter(w, "accumulate");
		if (ret)
			return ret;
		ret = rows_slice(w, t, rows, waits, &deadline);
		if (!ret)
			rows_count(w, t, rows);
		rmx_window_leave(w);
		if (ret != RMAEXT_PENDING)
			return ret;
		waits = true;
		if (PyErr_CheckSignals()) {
			rmaext_record_give_up();
			return ret;
		}
	}
}

enum py_outcome py_update_sides(struct py_window *w, int op,
				const struct py_part *origin,
				const struct py_part *result,
				const struct py_target *t)
{
	struct rmaext_window *it = w->it.window;
	const int type = origin->basic.type;
	const uint64_t bytes = origin->side.bytes;
	struct rmx_rows rows = {
		.op = op,
		.type = type,
		.left = bytes,
		.with_operand = op != RMAEXT_NO_OP,
		.with_result = result,
	};
	int ret;

	if (!bytes || origin->basic.gaps || !rmx_update_valid(op, type) ||
	    op == RMAEXT_CSWAP ||
	    !side_is_near(it, t->rank, t->offset, &t->part.side,
			  rmx_update_access(op, result)) ||
	    !rmx_update_is_local(it, t->rank) || !is_aligned(it, t, type) ||
	    (rmx_wide(type) && !rmx_control_block_of(it, t->rank)))
		return PY_DECLINED;
	rmx_walk_start(&rows.memory, &t->part.side,
		       rmx_target_of(it, t->rank)->map + t->offset);
	rmx_walk_start(&rows.operand, &origin->side, origin->data);
	if (result)
		rmx_walk_start(&rows.result, &result->side, result->data);
	ret = bytes <= PY_GIL_RUN_BYTES ? rmx_update_rows(it, t->rank, &rows, 0)
					: RMAEXT_PENDING;
	if (!ret)
		rows_count(it, t, &rows);
	if (ret == RMAEXT_PENDING)
		ret = rows_finish(it, t, &rows);
	if (ret == RMAEXT_PENDING)
		return PY_FAILED;
	py_count_turn();
	return ret ? py_raise_code(w, result ? "get_accumulate" : "accumulate",
				   t->rank, t->offset, bytes, ret)
		   : PY_DONE;
}
