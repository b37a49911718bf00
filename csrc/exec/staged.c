/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of a device is copied, and updated in a buffer of the host. */
#include "exec/staged.h"
#include "exec/guard.h"
#include "exec/update.h"
#include "memory/device.h"

#include <stdlib.h>

#define BUFFER ((size_t)256 << 10) /* bytes; no element is as long */

/* What one call uses. */
struct stage {
	struct rmaext_stream *stream;
	char *buffer; /* of an update */
};

static int stage_begin(const struct rmaext_window *w, bool update,
		       struct stage *s)
{
	/* the origin, which waits as long as its window says, gets an answer */
	s->stream = rmx_stream_take(w->device, w->timeout / 4, false);
	if (!s->stream)
		return -EREMOTEIO;
	if (!s->stream->it) { /* others are served meanwhile */
		rmx_stream_give(s->stream);
		return -EREMOTEIO; /* rmx_refusal() says why */
	}
	s->buffer = update ? malloc(BUFFER) : NULL;
	if (!update || s->buffer)
		return 0;
	rmx_stream_give(s->stream);
	return rmx_no_memory("an update of a device's memory");
}

/* Waits for what was begun; what ends too late has failed, for the origin. */
static int stage_wait(const struct stage *s, int ret)
{
	ret = rmx_stream_finish(s->stream, ret);
	return ret == -FI_ETIMEDOUT ? -EREMOTEIO : ret;
}

static void stage_end(struct stage *s)
{
	rmx_stream_give(s->stream);
	free(s->buffer);
}

/* Some of a row; the caller is in bulk. */
static int row_update(const struct stage *s, char *memory,
		      const struct rmaext_call *u)
{
	const uint64_t len = u->count * rmx_unit_of(u->type);
	int ret = rmx_stream_move(s->stream, RMX_OUT, memory, s->buffer, len);

	ret = stage_wait(s, ret);
	if (ret)
		return ret;
	rmx_update_in_bulk(s->buffer, u);
	if (u->op == RMAEXT_NO_OP)
		return 0;
	ret = rmx_stream_move(s->stream, RMX_IN, memory, s->buffer, len);
	return stage_wait(s, ret);
}

static const char *behind(const void *first, uint64_t bytes)
{
	return first ? (const char *)first + bytes : NULL;
}

int rmx_staged_row(struct rmaext_window *w, void *memory,
		   const struct rmaext_call *c, uint64_t *done, int64_t ns)
{
	const bool put = c->kind == RMAEXT_PUT, update = c->kind > RMAEXT_GET;
	const uint64_t unit = update ? rmx_unit_of(c->type) : 1;
	const uint64_t most = BUFFER / unit;
	struct rmaext_call part = *c;
	struct stage s;
	int ret = stage_begin(w, update, &s);

	if (ret)
		return ret;
	if (!update) {
		ret = rmx_stream_move(s.stream, put ? RMX_IN : RMX_OUT, memory,
				      rmx_host_end(put, c->operand, c->result),
				      c->count);
		ret = stage_wait(&s, ret);
	}
	for (; update && !ret && *done < c->count; *done += part.count) {
		const uint64_t left = c->count - *done, at = *done * unit;

		ret = rmx_bulk_enter(w, w->self, ns);
		if (ret)
			break;
		part.count = left < most ? left : most;
		part.operand = behind(c->operand, at);
		part.compare = behind(c->compare, at);
		part.result = (char *)(uintptr_t)behind(c->result, at);
		ret = row_update(&s, (char *)memory + at, &part);
		rmx_bulk_leave(w, w->self);
	}
	stage_end(&s);
	return ret;
}

/* How many of n cells does the buffer have room for, with all between them? */
static size_t span_find(void *const *cells, size_t n, size_t unit,
			uintptr_t *low_p, size_t *len_p)
{
	uintptr_t low = (uintptr_t)cells[0], high = low;
	size_t k = 1;

	for (; k < n; k++) {
		const uintptr_t at = (uintptr_t)cells[k];
		const uintptr_t first = at < low ? at : low;
		const uintptr_t last = at > high ? at : high;

		if (last - first > BUFFER - unit)
			break;
		low = first;
		high = last;
	}
	*low_p = low;
	*len_p = high - low + unit;
	return k;
}

/*
 * Updates the first of the cells; the caller is in bulk. What is between them
 * is read with them, and never written. Returns how many, or an error.
 */
static int64_t cells_update(const struct stage *s, int op, int type,
			    void *const *cells, size_t n, const char *values,
			    size_t step, char *results)
{
	const size_t unit = rmx_unit_of(type);
	void *copies[RMX_CELLS];
	uintptr_t low;
	size_t len;
	int ret;

	n = span_find(cells, n, unit, &low, &len);
	ret = rmx_stream_move(s->stream, RMX_OUT, (void *)low, s->buffer, len);
	ret = stage_wait(s, ret);
	if (ret)
		return ret;
	for (size_t k = 0; k < n; k++)
		copies[k] = s->buffer + ((uintptr_t)cells[k] - low);
	rmx_cells_in_bulk(op, type, copies, n, values, step, results);
	for (size_t k = 0; k < n && !ret && op != RMAEXT_NO_OP; k++)
		ret = rmx_stream_move(s->stream, RMX_IN, cells[k], copies[k],
				      unit);
	ret = stage_wait(s, ret);
	return ret ? ret : (int64_t)n;
}

int rmx_staged_cells(struct rmaext_window *w, int kind, int op, int type,
		     size_t unit, void *const *cells, size_t n,
		     const char *values, size_t step, char *results, int64_t ns)
{
	const bool update = kind == RMAEXT_UPDATE, put = kind == RMAEXT_PUT;
	struct stage s;
	int64_t some;
	int ret = stage_begin(w, update, &s);

	if (ret)
		return ret;
	for (size_t k = 0; k < n && !update && !ret; k++)
		ret = rmx_stream_move(
			s.stream, put ? RMX_IN : RMX_OUT, cells[k],
			rmx_host_end(put, values + k * step,
				     put ? NULL : results + k * unit),
			unit);
	ret = update ? rmx_bulk_enter(w, w->self, ns) : stage_wait(&s, ret);
	if (update && !ret) {
		for (size_t k = 0; k < n && !ret; k += (size_t)some) {
			some = cells_update(&s, op, type, cells + k, n - k,
					    values + k * step, step,
					    results ? results + k * unit
						    : NULL);
			ret = some < 0 ? (int)some : 0;
			some = some < 0 ? 0 : some;
		}
		rmx_bulk_leave(w, w->self);
	}
	stage_end(&s);
	return ret;
}
