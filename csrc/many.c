/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rmaext_many: operations on elements all over the window. Where every target
 * is direct, one loop does them. Else blocks of them are sorted by target, and
 * each target's part, a lane, is sent many to a message, to several at once.
 */
#include "batch.h"

#include <errno.h>
#include <stdlib.h>

#define RMX_PARTS 256 /* ranks */
#define RMX_FEW 1024  /* elements */

/* -- checks, before anything is done */

/* What an update needs of its target, or a message. */
static int check_route(const struct rmaext_batch *b, int64_t rank)
{
	const struct rmx_target *t = &b->window->targets[rank];
	const struct rmaext_fabric *f = b->fabric;

	if (rmx_updates(b) && (t->align & (b->unit - 1)))
		return rmx_fail(-FI_EFAULT, rank, rmx_many_name(b->kind),
				"the memory there is not aligned to %zu",
				b->unit);
	if (t->route == RMAEXT_DIRECT ||
	    (t->route == RMAEXT_CMA && !rmx_updates(b)))
		return 0;
	if (!f || !t->peer || (rmx_updates(b) && !f->cpu_atomics))
		return rmx_fail(-FI_EOPNOTSUPP, rank, rmx_many_name(b->kind),
				"no messages on this provider");
	return 0;
}

/* Says what is wrong with an element, if anything is. */
static int check_one(const struct rmaext_batch *b, int64_t rank,
		     uint64_t offset)
{
	const char *call = rmx_many_name(b->kind);
	int ret;

	if (offset >= b->limit)
		return rmx_fail(-ERANGE, rank, call,
				"offset %lld is not in the window",
				(long long)offset);
	ret = rmx_check(b->window, call, rank, offset * b->unit, b->unit,
			b->access);
	return ret ? ret : check_route(b, rank);
}

/* May a message go there, as far as one can tell at a glance? */
static bool reachable(const struct rmaext_batch *b, const struct rmx_target *t)
{
	return b->fabric && t->peer &&
	       (!rmx_updates(b) || b->fabric->cpu_atomics) &&
	       !atomic_load_explicit(&t->peer->gone, memory_order_relaxed);
}

/* Are all in order? If one may not be, it is looked for, and described. */
static int check_all(struct rmaext_batch *b, int64_t *bad_p)
{
	const unsigned int low = rmx_updates(b) ? (unsigned int)b->unit - 1 : 0;
	unsigned int routes = 0, align = 0;
	uint64_t i, at;
	int ret;

	for (i = 0; i < b->count; i++) {
		const struct rmx_target *t = rmx_place(
			b, rmx_rank_at(b, i), rmx_offset_at(b, i), &at);

		if (!t || (t->route != RMAEXT_DIRECT && !reachable(b, t)))
			break;
		routes |= 1u << t->route;
		align |= t->align;
	}
	b->routes = routes;
	if (i == b->count && !(align & low))
		return 0;
	for (i = 0; i < b->count; i++) {
		const int64_t rank = rmx_rank_at(b, i);

		ret = check_one(b, rank, rmx_offset_at(b, i));
		if (ret) {
			*bad_p = (int64_t)i;
			return ret;
		}
		b->routes |= 1u << b->window->targets[rank].route;
	}
	return 0;
}

/* -- by memory */

/* Any elements whose targets are direct. */
static int direct(const struct rmaext_batch *b, uint64_t start, uint64_t end)
{
	void *cells[RMX_CELLS];

	for (uint64_t i = start, n; i < end; i += n) {
		n = end - i < RMX_CELLS ? end - i : RMX_CELLS;
		for (uint64_t k = 0, at; k < n; k++) {
			const struct rmx_target *t =
				rmx_place(b, rmx_rank_at(b, i + k),
					  rmx_offset_at(b, i + k), &at);

			if (!t || t->route != RMAEXT_DIRECT)
				return rmx_changed(b);
			cells[k] = t->map + at;
		}
		rmx_cells_apply(b->kind, b->type, b->unit, cells, n,
				rmx_value_at(b, i), b->step,
				rmx_result_at(b, i));
	}
	return 0;
}

/* What a rank has that may be reached by memory: `count` elements at map. */
struct part {
	char *map;
	uint64_t count;
};

/*
 * Are these within the parts? If so, where. The copies are for the compiler,
 * which cannot know that `cells` is not part of the batch.
 */
static inline bool locate(const struct rmaext_batch *b,
			  const struct part *parts, uint64_t start, uint64_t n,
			  void **cells)
{
	const uint64_t ranks = (uint64_t)b->window->count;
	const struct rmaext_batch it = {
		.unit = b->unit,
		.rank_mask = b->rank_mask,
		.offset_mask = b->offset_mask,
		.ranks = b->ranks,
		.offsets = b->offsets,
	};

	for (uint64_t k = 0; k < n; k++) {
		const uint64_t rank = (uint64_t)rmx_rank_at(&it, start + k);
		const uint64_t offset = rmx_offset_at(&it, start + k);

		if (rank >= ranks || offset >= parts[rank].count)
			return false;
		if (cells)
			cells[k] = parts[rank].map + offset * it.unit;
	}
	return true;
}

static void part_of(const struct rmaext_batch *b, const struct rmx_target *t,
		    struct part *part)
{
	const bool may = t->route == RMAEXT_DIRECT &&
			 (t->access & b->access) == b->access &&
			 !(rmx_updates(b) && (t->align & (b->unit - 1)));

	part->map = t->map;
	part->count = may ? t->size / b->unit : 0;
}

/*
 * The fast way: a window of few ranks, and none but direct ones are meant.
 * False: the slow way finds out why not. Few elements are located once. Of
 * many, all are checked first; a block of them is then located again piece by
 * piece, and done.
 */
static bool all_direct(const struct rmaext_batch *b, int *ret_p,
		       uint64_t *done_p)
{
	const uint64_t ranks = (uint64_t)b->window->count;
	const uint64_t end = b->count < RMX_BLOCK ? b->count : RMX_BLOCK;
	struct part parts[RMX_PARTS];
	void *cells[RMX_FEW];

	if (ranks > RMX_PARTS || ranks > b->count)
		return false;
	for (uint64_t r = 0; r < ranks; r++)
		part_of(b, &b->window->targets[r], &parts[r]);
	*ret_p = 0;
	if (b->count <= RMX_FEW) {
		if (!locate(b, parts, 0, b->count, cells))
			return false;
		rmx_cells_apply(b->kind, b->type, b->unit, cells, b->count,
				b->values, b->step, b->results);
		*done_p = b->count;
		return true;
	}
	if (!locate(b, parts, 0, b->count, NULL))
		return false;
	for (uint64_t i = 0, n; i < end; i += n) {
		n = end - i < RMX_CELLS ? end - i : RMX_CELLS;
		if (!locate(b, parts, i, n, cells)) {
			*ret_p = rmx_changed(b);
			break;
		}
		rmx_cells_apply(b->kind, b->type, b->unit, cells, n,
				rmx_value_at(b, i), b->step,
				rmx_result_at(b, i));
	}
	*done_p = end;
	return true;
}

/* The direct ones of a block that has others too. */
static int some_direct(struct rmaext_batch *b)
{
	int ret = 0;

	for (uint64_t i = b->start; i < b->end && !ret; i++) {
		const int64_t rank = rmx_rank_at(b, i);

		if ((uint64_t)rank >= (uint64_t)b->window->count)
			return rmx_changed(b);
		if (b->window->targets[rank].route == RMAEXT_DIRECT)
			ret = direct(b, i, i + 1);
	}
	return ret;
}

static int next_block(struct rmaext_batch *b)
{
	int ret;

	b->start = b->end;
	b->end = b->count - b->start < RMX_BLOCK ? b->count
						 : b->start + RMX_BLOCK;
	if (b->routes == RMX_ONLY_DIRECT)
		return direct(b, b->start, b->end);
	ret = rmx_lanes_make(b);
	if (ret)
		return ret;
	rmx_batch_step(b); /* on their way while the rest is done here */
	return b->routes & RMX_ONLY_DIRECT ? some_direct(b) : 0;
}

/* Goes on for a slice. */
static int run(struct rmaext_batch *b)
{
	int64_t until = rmx_now() + RMX_SLICE;
	struct rmaext_peer *peer;
	int ret = 0;

	for (;;) {
		ret = rmx_lanes_copy(b, until);
		if (ret)
			return ret;
		if (until > b->deadline)
			until = b->deadline;
		/* one that is gone is noticed at once, of several soon */
		peer = b->lane_count == 1 ? b->lanes->target->peer : NULL;
		if (b->lane_count &&
		    rmx_wait(b->fabric, peer, rmx_batch_step, b, until, 1))
			return rmx_batch_overdue(b);
		if (atomic_load(&b->error))
			return rmx_fail_record(&b->failure);
		b->deadline = rmx_now() + b->window->timeout;
		if (b->end == b->count)
			return 0;
		if (b->end && rmx_now() > until)
			return RMAEXT_PENDING;
		ret = next_block(b);
		if (ret)
			return ret;
	}
}

static void batch_free(struct rmaext_batch *b)
{
	if (atomic_load(&b->unanswered))
		rmx_batch_give_up(b);
	free(b->pieces);
	free(b->lanes);
	free(b->lane_of);
	free(b->order);
	free(b);
}

/* To be continued, or with lanes: not on the stack. */
static struct rmaext_batch *batch_copy(const struct rmaext_batch *from)
{
	const bool lanes = from->routes != RMX_ONLY_DIRECT;
	const uint64_t n = from->count < RMX_BLOCK ? from->count : RMX_BLOCK;
	struct rmaext_batch *b = malloc(sizeof(*b));

	if (!b)
		return NULL;
	*b = *from;
	if (!lanes)
		return b;
	b->order = malloc(n * sizeof(*b->order));
	b->lane_of = malloc((size_t)b->window->count * sizeof(*b->lane_of));
	b->pieces = malloc(RMX_PIECES_BYTES);
	if (b->order && b->lane_of && b->pieces)
		return b;
	batch_free(b);
	return NULL;
}

static int start(struct rmaext_batch *on_stack, struct rmaext_many *many_p)
{
	struct rmaext_batch *b;
	int ret;

	if (all_direct(on_stack, &ret, &on_stack->end)) {
		if (ret || on_stack->end == on_stack->count)
			return ret;
		on_stack->routes = RMX_ONLY_DIRECT;
	} else {
		ret = check_all(on_stack, &many_p->bad);
		if (ret)
			return ret;
	}
	b = batch_copy(on_stack);
	if (!b)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "malloc", "batch");
	b->deadline = rmx_now() + b->window->timeout;
	ret = run(b);
	if (ret == RMAEXT_PENDING)
		many_p->batch = b;
	else
		batch_free(b);
	return ret;
}

int rmaext_many(rmaext_window *w, int kind, int type, uint64_t unit,
		uint64_t count, int ones, const int64_t *ranks,
		const int64_t *offsets, const void *values, void *results,
		struct rmaext_many *many_p)
{
	struct rmaext_batch b = {
		.window = w,
		.kind = kind,
		.type = kind == RMAEXT_PUT || kind == RMAEXT_GET ? 0 : type,
		.unit = unit,
		.count = count,
		.rank_mask = ones & RMAEXT_ONE_RANK ? 0 : UINT64_MAX,
		.offset_mask = ones & RMAEXT_ONE_OFFSET ? 0 : UINT64_MAX,
		.step = ones & RMAEXT_ONE_VALUE ? 0 : unit,
		.ranks = ranks,
		.offsets = offsets,
		.values = kind == RMAEXT_GET ? NULL : values,
		.results = results,
	};
	int ret;

	many_p->batch = NULL;
	many_p->bad = -1;
	if (kind < RMAEXT_PUT || kind > RMAEXT_ADD || !unit ||
	    unit > INT64_MAX || count > INT64_MAX ||
	    ((uintptr_t)ranks | (uintptr_t)offsets) % sizeof(*ranks))
		return rmx_fail(-FI_EINVAL, RMX_NO_RANK, "rmaext_many",
				"kind %d, elements of %llu bytes, or ranks or "
				"offsets out of line",
				kind, (unsigned long long)unit);
	if (!rmx_cells_valid(kind, type, unit))
		return rmx_fail(-FI_EOPNOTSUPP, RMX_NO_RANK,
				rmx_many_name(kind),
				"no such operation on this dtype");
	ret = rmx_window_enter(w, rmx_many_name(kind));
	if (ret)
		return ret;
	b.fabric = w->fabric;
	b.limit = INT64_MAX / unit;
	b.access = rmx_cells_access(kind);
	if (count)
		ret = start(&b, many_p);
	rmx_window_leave(w);
	return ret;
}

int rmaext_many_wait(struct rmaext_many *many)
{
	struct rmaext_batch *b = many->batch;
	int ret = rmx_window_enter(b->window, rmx_many_name(b->kind));

	if (ret)
		return ret;
	ret = run(b);
	rmx_window_leave(b->window);
	if (ret != RMAEXT_PENDING)
		rmaext_many_release(many);
	return ret;
}

void rmaext_many_release(struct rmaext_many *many)
{
	if (many->batch)
		batch_free(many->batch);
	many->batch = NULL;
}
