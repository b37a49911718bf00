/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The target carries out the items of a request. All of them are checked before
 * the first is carried out.
 */
#include "am/wakeups.h"
#include "dtype/gather.h"
#include "exec/staged.h"
#include "exec/update.h"
#include "win/notify.h"

#include <errno.h>
#include <string.h>

/* An item, whose header is a copy, and what is where in the message. */
struct item {
	struct rmx_item is;
	struct rmx_share share;
	const uint64_t *offsets;
	struct rmx_layout loops;
	/* the window's byte, and the first element's number in the loops */
	uint64_t first, start;
	const char *values;
	size_t len; /* bytes of all */
};

static bool item_is_row(const struct item *it)
{
	return it->is.form == RMX_ROW;
}

static bool item_notifies(const struct item *it)
{
	return it->is.flags & RMX_WITH_NOTIFY;
}

/* False: it has no such form, or there are not all of its bytes. */
static inline bool item_read(struct item *it, const char *data, size_t len)
{
	size_t places = 0, values;

	if (len < sizeof(it->is))
		return false;
	memcpy(&it->is, data, sizeof(it->is));
	data += sizeof(it->is);
	len -= sizeof(it->is);
	if (__builtin_mul_overflow(it->is.count, it->is.unit, &values) ||
	    (!item_is_row(it) &&
	     (it->is.count > RMX_MESSAGE || values > RMX_MESSAGE)))
		return false;
	switch (it->is.form) {
	case RMX_ROW:
		break;
	case RMX_ELEMENTS:
		it->offsets = (const void *)data;
		places = it->is.count * sizeof(*it->offsets);
		break;
	case RMX_LOOPS:
		if (!rmx_loops_unpack(&it->loops, data, len, &it->first,
				      &it->start))
			return false;
		places = rmx_loops_bytes(&it->loops);
		break;
	default:
		return false;
	}
	it->share =
		rmx_share_of(it->is.kind, it->is.op,
			     it->is.flags & RMX_WITH_FETCH, (uint64_t)values);
	it->values = data + places;
	if (places > len || (it->share.operands &&
			     values > (len - places) / it->share.operands))
		return false;
	it->len = sizeof(it->is) + places + values * it->share.operands;
	return true;
}

/* Where an element is that is not in a row. */
static inline uint64_t item_at(const struct item *it, uint64_t i)
{
	return it->is.form == RMX_ELEMENTS
		       ? it->offsets[i]
		       : it->first + rmx_part_at(&it->loops, it->start + i);
}

/* Any field may be wrong. */
static bool item_is_valid(const struct item *it)
{
	static const uint8_t zero[sizeof(it->is.zero)];
	const struct rmx_item *is = &it->is;
	const bool fetch = is->flags & RMX_WITH_FETCH;

	if (!rmx_cells_valid(is->kind, is->op, is->type, is->unit) ||
	    memcmp(is->zero, zero, sizeof(zero)) ||
	    (is->flags & ~(RMX_WITH_FETCH | RMX_WITH_NOTIFY)) ||
	    (item_is_row(it) ? item_notifies(it) && is->kind != RMAEXT_PUT
			     : item_notifies(it) || is->offset) ||
	    (!is->count && !(item_is_row(it) && is->kind == RMAEXT_PUT)))
		return false;
	if (is->kind == RMAEXT_UPDATE)
		/* of a row that does nothing only the window would limit the
		 * elements, which are gone through all the same */
		return fetch || (is->op != RMAEXT_CSWAP &&
				 !(is->op == RMAEXT_NO_OP && item_is_row(it)));
	return !is->op && !is->type && fetch == (is->kind == RMAEXT_GET) &&
	       (is->unit == 1 || !item_is_row(it));
}

/* Are they in the window, and aligned? */
static int item_check_places(const struct rmaext_window *w,
			     const struct item *it)
{
	const bool row = item_is_row(it);
	const uint64_t len = row ? it->share.values : it->is.unit;
	const uintptr_t own = (uintptr_t)w->own;
	uint64_t high = it->is.offset, low = row ? own + high : 0;

	for (uint64_t i = 0; !row && i < it->is.count; i++) {
		const uint64_t at = item_at(it, i);

		low |= own + at;
		high = at > high ? at : high;
		if (w->attached && !rmx_has(w, at, len))
			return -ERANGE;
	}
	if (!rmx_has(w, high, len))
		return -ERANGE;
	if (it->is.kind == RMAEXT_UPDATE &&
	    (low & (rmx_type_of(it->is.type).align - 1u)))
		return -FI_EFAULT;
	return 0;
}

static int item_check(const struct rmaext_window *w, const struct item *it)
{
	const struct rmx_target *t = rmx_target_of(w, w->self);
	const bool block = rmx_control_block_of(w, w->self);
	const int access = rmx_cells_access(it->is.kind, it->is.op,
					    it->is.flags & RMX_WITH_FETCH);

	if (!item_is_valid(it))
		return -FI_EINVAL;
	if (w->invites && item_notifies(it))
		return -FI_EACCES; /* a grant is of memory */
	if (item_notifies(it) ? it->is.slot >= RMAEXT_NOTIFY || !block
			      : it->is.slot)
		return -FI_EINVAL;
	if (!it->is.count)
		return 0; /* it only notifies */
	if (it->is.kind == RMAEXT_UPDATE && !block &&
	    (rmx_wide(it->is.type) || w->device))
		return -FI_EOPNOTSUPP; /* nothing guards it */
	if ((!w->own && !w->attached) || (t->access & access) != access)
		return -FI_EACCES;
	return item_check_places(w, it);
}

int rmx_items_check(const struct rmaext_window *w, const char *data, size_t len,
		    struct rmx_sum *sum_p)
{
	const struct rmx_request_header *q =
		(const struct rmx_request_header *)data;
	size_t at = sizeof(*q), end = at;
	struct rmx_sum sum = {0};
	struct item it;
	int ret;

	for (uint32_t i = 0; i < q->count; i++) {
		if (at > len || !item_read(&it, data + at, len - at))
			return -FI_EINVAL;
		ret = item_check(w, &it);
		if (ret)
			return ret;
		end = at + it.len;
		at = RMX_ALIGNED(end);
		sum.elements += item_is_row(&it) ? 1 : it.is.count;
		sum.bytes += it.share.values;
		if (!it.share.results)
			continue;
		if (it.share.values > RMX_MOST - RMX_ALIGNED(sum.results))
			return -FI_EINVAL;
		sum.results = RMX_ALIGNED(sum.results) + it.share.values;
	}
	*sum_p = sum;
	return q->count && end == len ? 0 : -FI_EINVAL;
}

static int row_apply(struct rmaext_window *w, const struct item *it,
		     char *results, uint64_t *done, int64_t ns)
{
	const uint64_t len = it->share.values;
	const bool swap = it->share.operands > 1;
	char *memory = rmx_own(w, it->is.offset);
	const struct rmaext_call call = {
		.kind = it->is.kind,
		.op = it->is.op,
		.type = it->is.type,
		.rank = w->self,
		.operand = it->values + (swap ? len : 0),
		.compare = swap ? it->values : NULL,
		.result = it->share.results ? results : NULL,
		.count = it->is.count,
	};

	if (w->device)
		return rmx_staged_row(w, memory, &call, done, ns);
	if (it->is.kind == RMAEXT_UPDATE)
		return rmx_update_apply(w, memory, &call, done, ns);
	if (it->is.kind == RMAEXT_GET)
		rmx_copy(results, memory, len);
	else
		rmx_copy(memory, it->values, len);
	return 0;
}

static int elements_apply(struct rmaext_window *w, const struct item *it,
			  char *results, uint64_t *done, int64_t ns)
{
	const size_t unit = it->is.unit, width = it->share.operands * unit;
	void *cells[RMX_CELLS];
	int ret = 0;

	for (uint64_t i = *done; !ret && i < it->is.count; i = *done) {
		const uint64_t left = it->is.count - i;
		const size_t n = left < RMX_CELLS ? left : RMX_CELLS;
		const char *values = it->values + i * width;
		char *to = results + i * unit;

		for (size_t k = 0; k < n; k++) {
			cells[k] = rmx_own(w, item_at(it, i + k));
			__builtin_prefetch(cells[k], 1);
		}
		if (w->device)
			ret = rmx_staged_cells(
				w, it->is.kind, it->is.op, it->is.type, unit,
				cells, n, values, width,
				it->share.results ? to : NULL, ns);
		else if (it->is.kind == RMAEXT_UPDATE)
			ret = rmx_update_cells(
				w, w->self, it->is.op, it->is.type, cells, n,
				values, width, it->share.results ? to : NULL,
				ns);
		else
			rmx_cells_move(it->is.kind, unit, cells, n, values,
				       unit, to);
		*done += ret ? 0 : n;
	}
	return ret;
}

/* Updates of the words of a lock are told to those who wait for it. */
static int item_apply(struct rmaext_window *w, const struct item *it,
		      char *results, uint64_t *done, int64_t ns)
{
	const bool update =
		atomic_load(&w->control_end) && it->is.kind == RMAEXT_UPDATE;
	const bool swap = item_is_row(it) && it->is.op == RMAEXT_CSWAP;
	struct rmx_lock_update lock = {.words = NULL};
	int ret;

	if (update && it->is.form == RMX_ELEMENTS && it->is.op == RMAEXT_SUM &&
	    it->is.unit == sizeof(int64_t))
		lock = rmx_lock_update_find(w, it->offsets, it->values,
					    (uint32_t)it->is.count);
	ret = item_is_row(it) ? row_apply(w, it, results, done, ns)
			      : elements_apply(w, it, results, done, ns);
	if (ret)
		return ret;
	if (item_notifies(it))
		rmx_notify_add(w, w->self, it->is.slot, 1);
	rmx_lock_update_tell(w, &lock);
	if (update && swap)
		rmx_lock_swap_tell(w, it->is.offset);
	return 0;
}

int rmx_items_apply(struct rmaext_window *w, const char *data, size_t len,
		    char *results, struct rmx_done *done, int64_t ns)
{
	const struct rmx_request_header *q =
		(const struct rmx_request_header *)data;
	size_t at = sizeof(*q);
	struct item it;
	int ret = 0;

	for (uint32_t i = 0; i < q->count && !ret; i++) {
		item_read(&it, data + at, len - at);
		at = RMX_ALIGNED(at + it.len);
		if (i >= done->items) {
			ret = item_apply(w, &it, results, &done->elements, ns);
			done->items += !ret;
			done->elements = ret ? done->elements : 0;
		}
		if (it.share.results)
			results += RMX_ALIGNED(it.share.values);
	}
	atomic_thread_fence(memory_order_seq_cst);
	return ret;
}
