/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A loop of single updates or puts. The first ones to an idle peer go at once,
 * each by itself. While these are on their way, more of the same kind to the
 * same target are coalesced into one operation in the line: it is counted,
 * sent, answered and given up as one. It grows as long as it is the last in the
 * line and open. It is sent when the requests before it are answered, so each
 * message has what has come in a round trip. It is closed, so that it goes as
 * soon as credits allow, when it fills a message, when another operation joins
 * the line, and by a flush.
 *
 * Puts are coalesced only where a provider's writes cost the CPUs as much as
 * messages, see f->limits.tcp.
 */
#include "am/coalesce.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_FIRST 16u /* elements, at first */

static size_t single_bytes(size_t unit)
{
	return sizeof(uint64_t) + unit;
}

/* The most elements that are coalesced. */
static uint32_t coalesced_most(size_t unit)
{
	return (uint32_t)((RMX_MESSAGE - RMX_HEADERS) / single_bytes(unit));
}

static bool coalesced_takes(const struct rmx_op *op,
			    const struct rmaext_window *root,
			    const struct rmaext_call *it)
{
	return op && op->window == root && op->rank == it->rank &&
	       op->kind == it->kind && op->unit == rmx_single_bytes(it) &&
	       op->op == it->op && op->type == it->type &&
	       op->site == rmx_event_site();
}

/* There is room, and the line has counted the value. */
static void coalesced_append(struct rmx_op *op, uint64_t offset,
			     const void *value)
{
	struct rmx_places *s = op->places;
	char *at = (char *)(s + 1) + s->count++ * single_bytes(op->unit);

	memcpy(at, &offset, sizeof(offset));
	memcpy(at + sizeof(offset), value, op->unit);
}

static void coalesced_count(const struct rmaext_window *root,
			    const struct rmaext_call *it)
{
	rmx_count(&root->tally, it->rank, rmx_counted_as(it->kind, false),
		  RMAEXT_MESSAGE, 1, rmx_single_bytes(it));
}

static void coalesced_grow_by(struct rmx_line *line, struct rmx_op *op,
			      const struct rmaext_window *w,
			      const struct rmaext_call *it)
{
	coalesced_append(op, w->first + it->offset, it->operand);
	op->len += op->unit;
	line->queued += op->unit;
}

bool rmx_coalesce_join(struct rmaext_window *w, const struct rmaext_call *it)
{
	struct rmaext_window *root = w->root;
	struct rmaext_peer *peer = rmx_target_of(root, it->rank)->member->peer;
	struct rmx_line *line = peer ? peer->line : NULL;
	struct rmx_op *op;
	bool joins;

	if (!line || !atomic_load_explicit(&line->open, memory_order_relaxed))
		return false;
	if (pthread_mutex_trylock(&root->fabric->am->lock))
		return false;
	op = atomic_load(&line->open);
	joins = coalesced_takes(op, root, it) && line->queued < RMX_QUEUED &&
		op->places->count < op->places->room;
	if (joins)
		coalesced_grow_by(line, op, w, it);
	pthread_mutex_unlock(&root->fabric->am->lock);
	if (joins)
		coalesced_count(root, it);
	return joins;
}

/* Makes room for one more. False: it is full, or there is no memory. */
static bool coalesced_make_room(struct rmx_op *op)
{
	const size_t each = single_bytes(op->unit);
	const uint32_t most = coalesced_most(op->unit);
	struct rmx_places *s = op->places;
	uint32_t room = s ? 2 * s->room : ROOM_FIRST;
	const uint64_t count = s ? s->count : 0;

	if (s && s->count < s->room)
		return true;
	if (room > most)
		room = most;
	if (s && s->room == room)
		return false;
	s = realloc(s, sizeof(*s) + room * each);
	if (!s)
		return false;
	*s = (struct rmx_places){
		.count = count,
		.room = room,
		.unit = op->unit,
		.width = op->unit,
		.offsets = (char *)(s + 1),
		.scale = 1,
		.values = (char *)(s + 1) + sizeof(uint64_t),
		.offset_step = each,
		.value_step = each,
	};
	op->places = s;
	return true;
}

static bool coalesced_begin(struct rmaext_window *w,
			    const struct rmaext_call *it)
{
	struct rmx_op *op;

	if (rmx_message_op(w, it, false, 0, &op))
		return false;
	op->unit = rmx_single_bytes(it);
	if (!coalesced_make_room(op)) {
		rmx_op_free(op);
		return false;
	}
	coalesced_append(op, op->offset, it->operand);
	op->buffered = true; /* nobody waits for it */
	rmx_op_note(op);
	rmx_line_join(op->target->member->peer, op);
	return true;
}

/*
 * After a flush, or with nothing on its way, as many as there are credits go by
 * themselves, since they may be all that comes; updates only if they go at
 * once. Such a put is a write, whose loss with its connection the provider
 * tells at once, where that of a message shows at the time limit.
 */
static bool single_goes_alone(const struct rmx_am *am, struct rmx_line *line,
			      const struct rmaext_call *it,
			      const rmx_pending *pending)
{
	if (!rmx_counted(atomic_load(pending)))
		atomic_store(&line->singles, 0);
	if (atomic_load(&line->singles) >= am->credits ||
	    (it->kind == RMAEXT_UPDATE &&
	     (line->queue || line->requests >= am->credits)))
		return false;
	atomic_fetch_add(&line->singles, 1);
	return true;
}

enum rmx_joined rmx_coalesce(struct rmaext_window *w,
			     const struct rmaext_call *it)
{
	struct rmaext_window *root = w->root;
	struct rmaext_fabric *f = root->fabric;
	struct rmaext_peer *peer = rmx_target_of(root, it->rank)->member->peer;
	struct rmx_op *op;
	struct rmx_line *line;
	enum rmx_joined joined = RMX_ALONE;
	bool stalled;

	/* what the target may accept in part is not coalesced */
	if (!peer || rmx_single_bytes(it) > RMX_SINGLE_MOST || root->attached ||
	    root->is_client || (it->kind == RMAEXT_PUT && !f->limits.tcp))
		return RMX_ALONE;
	line = peer->line;
	pthread_mutex_lock(&f->am->lock);
	op = atomic_load(&line->open);
	if (line->queued >= RMX_QUEUED) {
		joined = RMX_LINE_FULL;
	} else if (coalesced_takes(op, root, it) && coalesced_make_room(op)) {
		coalesced_grow_by(line, op, w, it);
		if (op->places->count == coalesced_most(op->unit))
			atomic_store(&line->open, NULL);
		joined = RMX_IN_LINE;
	} else if (!single_goes_alone(
			   f->am, line, it,
			   &rmx_target_of(root, it->rank)->pending) &&
		   coalesced_begin(w, it)) {
		joined = RMX_IN_LINE;
	}
	if (joined == RMX_IN_LINE)
		rmx_message_pump(f, peer);
	stalled = line->stalled;
	pthread_mutex_unlock(&f->am->lock);
	if (joined != RMX_IN_LINE)
		return joined;
	coalesced_count(root, it);
	if (stalled)
		rmx_progress_call(f);
	return joined;
}

void rmx_coalesced_push(struct rmaext_window *w, int64_t first, int64_t end)
{
	struct rmaext_fabric *f = w->fabric;

	for (int64_t k = first; k < end; k++) {
		struct rmaext_peer *peer = rmx_filled(&w->targets[k])
						   ? w->members->of[k].peer
						   : NULL;

		if (!peer)
			continue;
		atomic_store(&peer->line->singles, 0);
		if (!atomic_load(&peer->line->open))
			continue;
		pthread_mutex_lock(&f->am->lock);
		atomic_store(&peer->line->open, NULL);
		rmx_message_pump(f, peer);
		pthread_mutex_unlock(&f->am->lock);
	}
}
