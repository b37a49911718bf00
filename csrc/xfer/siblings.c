/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Siblings: how an owner begins several requests, and waits for all of them, or
 * for the first failure. Each member has its own time limit: for how long its
 * target has answered nothing.
 */
#include "xfer/siblings.h"

#include <stdlib.h>

static const struct rmx_life siblings_life;

static struct rmx_siblings *siblings_of(struct rmaext_op *owned)
{
	return (struct rmx_siblings *)owned;
}

struct rmx_siblings *rmx_siblings_new(uint64_t members, int *ended)
{
	struct rmx_siblings *g =
		calloc(1, sizeof(*g) + members * sizeof(*g->of));

	if (!g)
		return NULL;
	g->ended = ended;
	g->owned.life = &siblings_life;
	atomic_store(&g->left, 1); /* the owner, while it begins */
	return g;
}

void rmx_siblings_begin(struct rmx_siblings *g, struct rmx_op *op)
{
	struct rmaext_op *owned;

	op->siblings = g;
	atomic_fetch_add(&g->left, 1);
	g->of[g->count++].op = op;
	rmx_op_run(op, &owned);
}

/* Goes past those that have ended well; returns the next, or NULL. */
static struct rmx_op *siblings_next(struct rmx_siblings *g)
{
	struct rmx_op *op;

	for (; g->at < g->count; g->at++) {
		op = g->of[g->at].op;
		if (!rmx_op_has_ended(op) || atomic_load(&op->error))
			return op;
	}
	return NULL;
}

static enum rmx_step siblings_step(void *arg)
{
	struct rmx_siblings *g = arg;
	struct rmx_op *op = siblings_next(g);

	return !op || atomic_load(&g->failed) ? RMX_DONE : rmx_op_step(op);
}

/* The error of a member, or how they go on. */
static int siblings_look(struct rmx_siblings *g, int64_t now)
{
	int ret = RMAEXT_PENDING;

	for (uint64_t k = g->at; k < g->count && ret == RMAEXT_PENDING; k++) {
		struct rmx_op *op = g->of[k].op;

		if (atomic_load(&op->error))
			ret = rmx_op_report(op);
		else if (!rmx_op_has_ended(op))
			ret = rmx_op_overdue(op, now);
	}
	return ret;
}

int rmx_siblings_wait(struct rmx_siblings *g, int64_t until)
{
	const int64_t now = rmx_now();
	struct rmx_op *op = siblings_next(g);

	if (!op)
		return 0;
	for (uint64_t k = g->at; k < g->count; k++)
		rmx_op_waits(g->of[k].op, now);
	if (until > op->deadline)
		until = op->deadline;
	/* a lone peer's loss is noticed at once, one of several soon */
	if (until > now &&
	    !rmx_wait(op->fabric,
		      g->at + 1 == g->count ? op->target->member->peer : NULL,
		      siblings_step, g, until, rmx_op_spins(op)) &&
	    !siblings_next(g))
		return 0;
	return siblings_look(g, now);
}

static void siblings_free(struct rmx_siblings *g)
{
	if (g && g->dispose)
		g->dispose(g->places);
	free(g);
}

void rmx_siblings_end(struct rmx_siblings *g)
{
	const struct rmaext_error given_up = {
		.code = -FI_ECANCELED,
		.call = "wait",
		.detail = "the call that waited for it has ended",
	};

	for (uint64_t k = 0; g && k < g->count; k++) {
		struct rmx_op *op = g->of[k].op;

		rmx_op_told(op);
		if (!rmx_op_has_ended(op)) {
			rmx_op_failed(op, &given_up);
			op->fabric->hooks->give_up(op);
		}
		rmx_op_dispose(op);
	}
	siblings_free(g);
}

/* -- its owner waits, and lets go of it */

static int siblings_wait(struct rmaext_op *owned, int64_t slice)
{
	struct rmx_siblings *g = siblings_of(owned);
	const int64_t until = rmx_now() + slice;
	int ret = 0;

	while (g->at < g->count && !ret) {
		const int64_t left = slice ? until - rmx_now() : 0;

		ret = rmaext_op_wait(&g->of[g->at].op->owned,
				     left > 0 ? left : 0);
		if (!ret)
			__atomic_store_n(&g->at, g->at + 1, __ATOMIC_RELAXED);
	}
	return ret;
}

static int64_t siblings_rank(const struct rmaext_op *owned)
{
	const struct rmx_siblings *g = (const struct rmx_siblings *)owned;
	/* another thread may wait for it */
	const uint64_t at = __atomic_load_n(&g->at, __ATOMIC_RELAXED);

	return at < g->count && g->of[at].op ? g->of[at].op->rank : RMX_NO_RANK;
}

static int siblings_release(struct rmaext_op *owned)
{
	struct rmx_siblings *g = siblings_of(owned);
	int ret = 0;

	for (uint64_t k = 0; k < g->count; k++) {
		struct rmx_op *op = g->of[k].op;

		if (op && op->owned.life->release(&op->owned))
			ret = RMAEXT_PENDING;
		else
			g->of[k].op = NULL;
	}
	if (!ret)
		siblings_free(g);
	return ret;
}

static const struct rmx_life siblings_life = {
	.wait = siblings_wait,
	.release = siblings_release,
	.rank = siblings_rank,
};
