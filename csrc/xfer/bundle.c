/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Bundles: how an owner begins several requests, and waits for all of them, or
 * for the first failure. Each member has its own time limit: for how long its
 * target has answered nothing.
 */
#include "xfer/bundle.h"

#include <stdlib.h>

static const struct rmx_life bundle_life;

static struct rmx_bundle *bundle_of(struct rmaext_op *owned)
{
	return (struct rmx_bundle *)owned;
}

struct rmx_bundle *rmx_bundle_new(uint64_t members, int *ended)
{
	struct rmx_bundle *g = calloc(1, sizeof(*g) + members * sizeof(*g->of));

	if (!g)
		return NULL;
	g->siblings.ended = ended;
	g->owned.life = &bundle_life;
	atomic_store(&g->siblings.left, 1); /* the owner, while it begins */
	return g;
}

int rmx_bundle_begin(struct rmx_bundle *g, struct rmx_op *op)
{
	struct rmx_bundled *m = &g->of[g->count];
	struct rmaext_op *owned;
	int ret;

	op->siblings = &g->siblings;
	atomic_fetch_add(&g->siblings.left, 1);
	ret = rmx_begin(op, &m->ended, &owned);
	if (ret != RMAEXT_PENDING) {
		rmx_sibling_ended(&g->siblings);
		return ret;
	}
	m->op = rmx_op_of(owned);
	g->count++;
	return 0;
}

/* Goes past those that have ended well; returns the next, or NULL. */
static struct rmx_op *bundle_next(struct rmx_bundle *g)
{
	struct rmx_op *op;

	for (; g->at < g->count; g->at++) {
		op = g->of[g->at].op;
		if (!rmx_op_has_ended(op) || atomic_load(&op->error))
			return op;
	}
	return NULL;
}

static enum rmx_step bundle_step(void *arg)
{
	struct rmx_bundle *g = arg;
	struct rmx_op *op = bundle_next(g);

	return !op || atomic_load(&g->siblings.failed) ? RMX_DONE
						       : rmx_op_step(op);
}

/* The error of a member, or how they go on. */
static int bundle_look(struct rmx_bundle *g, int64_t now)
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

int rmx_bundle_wait(struct rmx_bundle *g, int64_t until)
{
	const int64_t now = rmx_now();
	struct rmx_op *op = bundle_next(g);

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
		      bundle_step, g, until, rmx_op_spins(op)) &&
	    !bundle_next(g))
		return 0;
	return bundle_look(g, now);
}

static void bundle_free(struct rmx_bundle *g)
{
	if (g && g->dispose)
		g->dispose(g->places);
	free(g);
}

void rmx_bundle_end(struct rmx_bundle *g)
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
	bundle_free(g);
}

/* -- its owner waits, and lets go of it */

static int bundle_wait(struct rmaext_op *owned, int64_t slice)
{
	struct rmx_bundle *g = bundle_of(owned);
	const int64_t until = rmx_now() + slice;
	int ret = 0;

	while (g->at < g->count && !ret) {
		const int64_t left = slice ? until - rmx_now() : 0;

		ret = rmx_op_wait(g->of[g->at].op, left > 0 ? left : 0);
		if (!ret)
			__atomic_store_n(&g->at, g->at + 1, __ATOMIC_RELAXED);
	}
	return ret;
}

static int64_t bundle_rank(const struct rmaext_op *owned)
{
	const struct rmx_bundle *g = (const struct rmx_bundle *)owned;
	/* another thread may wait for it */
	const uint64_t at = __atomic_load_n(&g->at, __ATOMIC_RELAXED);

	return at < g->count && g->of[at].op ? g->of[at].op->rank : RMX_NO_RANK;
}

static int bundle_release(struct rmaext_op *owned)
{
	struct rmx_bundle *g = bundle_of(owned);
	int ret = 0;

	for (uint64_t k = 0; k < g->count; k++) {
		if (g->of[k].op && rmx_op_release(g->of[k].op))
			ret = RMAEXT_PENDING;
		else
			g->of[k].op = NULL;
	}
	if (!ret)
		bundle_free(g);
	return ret;
}

static const struct rmx_life bundle_life = {
	.wait = bundle_wait,
	.release = bundle_release,
	.rank = bundle_rank,
};
