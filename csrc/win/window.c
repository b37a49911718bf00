/* SPDX-License-Identifier: BSD-3-Clause */
/* Windows, views of them, and the layout of their control blocks. */
#define _GNU_SOURCE
#include "win/window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t rmaext_block_bytes(int64_t count)
{
	const uint64_t n = (uint64_t)count;
	const uint64_t bytes = sizeof(struct rmx_control_block) +
			       n * sizeof(struct rmx_guard_line) +
			       3 * n * sizeof(uint64_t);

	return (bytes + RMX_LINE - 1) / RMX_LINE * RMX_LINE;
}

void rmaext_block_places(int64_t count, struct rmaext_places *places_p)
{
	const uint64_t n = (uint64_t)count, word = sizeof(uint64_t);
	const uint64_t after = sizeof(struct rmx_control_block) +
			       n * sizeof(struct rmx_guard_line);

	*places_p = (struct rmaext_places){
		.lock = offsetof(struct rmx_control_block, lock) / word,
		.storage = offsetof(struct rmx_control_block, storage) / word,
		.calls = offsetof(struct rmx_control_block, calls) / word,
		.wakeups = offsetof(struct rmx_control_block, wakeups) / word,
		.notify = offsetof(struct rmx_control_block, notify) / word,
		.slots = after / word,
		.posted = after / word + n,
		.completed = after / word + 2 * n,
	};
}

/* Returns the index of a rank's entry in a column, which may have only one. */
static size_t column_entry(const struct rmaext_targets *from,
			   unsigned int column, int64_t rank)
{
	return from->same & column ? 0 : (size_t)rank;
}

static struct rmx_row targets_row(const struct rmaext_targets *from,
				  int64_t rank)
{
	struct rmx_row row = {0};

	row.size = from->size[column_entry(from, RMAEXT_SAME_SIZE, rank)];
	row.access = from->access[column_entry(from, RMAEXT_SAME_ACCESS, rank)];
	row.align = from->align[column_entry(from, RMAEXT_SAME_ALIGN, rank)];
	if (from->base)
		row.base =
			from->base[column_entry(from, RMAEXT_SAME_BASE, rank)];
	if (from->key_len == sizeof(row.key))
		memcpy(&row.key,
		       from->keys + column_entry(from, RMAEXT_SAME_KEY, rank) *
					    sizeof(row.key),
		       sizeof(row.key));
	return row;
}

/* What cannot be mapped goes by messages. */
static void target_import(const struct rmaext_window *w, struct rmx_target *t,
			  const struct rmaext_targets *from, int64_t i)
{
	const void *exported = (const void *)(uintptr_t)from->address[i];

	t->import = NULL;
	if (w->members->here[i] == w->self)
		t->map = from->map[i];
	else if (rmx_import_open(from->library, exported, t->size, &t->import,
				 &t->map))
		t->route = RMAEXT_FABRIC;
}

void rmx_imports_drop(struct rmaext_window *w)
{
	const struct rmaext_members *m = w->members;

	for (int64_t i = 0; i < m->here_count; i++) {
		struct rmx_target *t = &w->targets[m->here[i]];

		if (t->route != RMAEXT_IPC)
			continue;
		if (w->root == w) /* whose views have the same */
			rmx_import_close(t->import);
		t->import = NULL;
		t->route = RMAEXT_FABRIC; /* if the window is opened again */
	}
}

/*
 * Where all ranks are alike, targets on other nodes are left for
 * rmx_target_fill().
 */
static void window_set_targets(struct rmaext_window *w,
			       const struct rmaext_targets *from)
{
	const struct rmaext_members *m = w->members;
	struct rmx_row row;

	if (!w->count)
		return;
	w->uneven = (from->same & RMAEXT_SAME) != RMAEXT_SAME;
	w->row = targets_row(from, 0);
	for (int64_t rank = 0; w->uneven && rank < w->count; rank++) {
		row = targets_row(from, rank);
		rmx_target_set(w, rank, &row);
	}
	for (int64_t i = 0; i < m->here_count; i++) {
		struct rmx_target *t = &w->targets[m->here[i]];

		row = targets_row(from, m->here[i]);
		rmx_target_set(w, m->here[i], &row);
		t->route = from->route[i];
		if (t->route == RMAEXT_DIRECT)
			t->map = from->map[i];
		else if (t->route == RMAEXT_CMA)
			t->address = from->address[i];
		else if (t->route == RMAEXT_IPC)
			target_import(w, t, from, i);
		if (m->here[i] == w->self)
			w->own = from->map ? from->map[i] : NULL;
	}
}

static bool window_set_raw_keys(struct rmaext_window *w,
				const struct rmaext_targets *from)
{
	size_t bytes = from->key_len;

	w->raw_len = from->key_len;
	w->raw_same = from->same & RMAEXT_SAME_KEY;
	if (!w->raw_same)
		bytes *= (size_t)w->count;
	w->raw_keys = malloc(bytes ? bytes : 1);
	if (w->raw_keys && bytes)
		memcpy(w->raw_keys, from->keys, bytes);
	return w->raw_keys;
}

static void window_drop(struct rmaext_window *w)
{
	rmx_attached_free(w->attached);
	free(w->raw_keys);
	rmx_targets_free(w->targets, w->count);
	rmaext_blocks_release(w->blocks);
	rmaext_members_release(w->members);
	free(w);
}

int rmx_window_new(struct rmaext_fabric *f,
		   const struct rmaext_targets *targets, int64_t timeout,
		   struct rmaext_window **window_p)
{
	struct rmaext_window *w = calloc(1, sizeof(*w));

	if (!w)
		goto no_memory;
	w->root = w;
	w->fabric = f;
	w->timeout = timeout;
	w->spin = targets->spin_ns;
	w->members = rmx_members_hold(targets->members);
	w->blocks = rmx_blocks_hold(targets->blocks);
	w->block_at = targets->block_at;
	w->count = w->members->count;
	w->self = w->members->self;
	if (targets->token)
		memcpy(w->token, targets->token, sizeof(w->token));
	w->is_client = targets->secret;
	if (w->is_client)
		memcpy(w->secret, targets->secret, sizeof(w->secret));
	w->device = targets->device;
	w->targets = rmx_targets_new(w->count);
	if (targets->dynamic)
		w->attached = rmx_attached_new();
	if (!w->targets || (targets->dynamic && !w->attached))
		goto no_memory;
	if (f && f->limits.raw_keys && !window_set_raw_keys(w, targets))
		goto no_memory;
	window_set_targets(w, targets);
	pthread_mutex_init(&w->lock, NULL);
	*window_p = w;
	return 0;

no_memory:
	if (w)
		window_drop(w);
	return rmx_no_memory("a window");
}

void rmaext_window_rows(rmaext_window *w, struct rmaext_rows *rows_p)
{
	const struct rmx_target *t = w->targets;

	*rows_p = (struct rmaext_rows){0};
	if (w->uneven)
		*rows_p = (struct rmaext_rows){
			.size = &t->size,
			.access = (const uint8_t *)&t->access,
			.align = &t->align,
			.step = sizeof(*t),
		};
}

/* Returns a target as it is seen through a view, of `len` bytes there. */
static struct rmx_row view_row(const struct rmx_row *of,
			       const struct rmaext_view *view, uint64_t len)
{
	struct rmx_row row = *of; /* base and key stay: the root has them */

	row.size = len;
	row.access &= (uint8_t)(view->access | RMAEXT_DEVICE);
	if (len)
		row.align = (uint8_t)((row.align + view->first) % 64);
	return row;
}

static void view_set_target(struct rmaext_window *w, int64_t rank,
			    const struct rmaext_window *of,
			    const struct rmaext_view *view)
{
	const struct rmx_target *from = &of->targets[rank];
	const uint64_t len = view->size[view->same ? 0 : rank];
	struct rmx_target *t = &w->targets[rank];
	struct rmx_row row = rmx_target_row(of, rank);

	row = view_row(&row, view, len);
	rmx_target_set(w, rank, &row);
	if (rmx_filled(from)) /* else it is the fabric */
		t->route = from->route;
	if (t->route == RMAEXT_DIRECT || t->route == RMAEXT_IPC)
		t->map = from->map && len ? from->map + view->first : from->map;
	else if (t->route == RMAEXT_CMA)
		t->address = from->address + (len ? view->first : 0);
}

static int view_check(const struct rmaext_window *of,
		      const struct rmaext_view *view, int64_t rank)
{
	const uint64_t size = rmx_target_row(of, rank).size;
	const uint64_t len = view->size[view->same ? 0 : rank];

	if (!len || (view->first <= size && len <= size - view->first))
		return 0;
	return rmx_fail(-ERANGE, rank, "view",
			"the view ends after the %llu bytes of that rank",
			(unsigned long long)size);
}

/* Makes a view whose targets are not set yet. */
static struct rmaext_window *window_like(struct rmaext_window *of,
					 const struct rmaext_view *view)
{
	struct rmaext_window *w = calloc(1, sizeof(*w));

	if (w)
		w->targets = rmx_targets_new(of->count);
	if (!w || !w->targets) {
		free(w);
		rmx_no_memory("a view");
		return NULL;
	}
	w->root = of->root;
	w->first = of->first + view->first;
	w->stride = view->stride;
	w->fabric = of->fabric;
	w->timeout = view->timeout;
	w->spin = of->spin;
	w->count = of->count;
	w->self = of->self;
	w->members = rmx_members_hold(of->members);
	w->blocks = rmx_blocks_hold(of->blocks);
	w->block_at = of->block_at;
	w->tally = of->tally;
	w->device = of->device;
	w->own = of->own;
	if (w->own && view->size[view->same ? 0 : w->self])
		w->own += view->first;
	memcpy(w->token, of->token, sizeof(w->token));
	pthread_mutex_init(&w->lock, NULL);
	return w;
}

static int window_view(struct rmaext_window *of, const struct rmaext_view *view,
		       struct rmaext_window **view_p)
{
	const struct rmaext_members *m = of->members;
	/* all targets are set at once, unless ranks are alike in both */
	const bool all = of->uneven || !view->same;
	const int64_t n = all ? of->count : m->here_count;
	struct rmaext_window *w;
	int ret;

	for (int64_t i = 0; i < n; i++) {
		ret = view_check(of, view, all ? i : m->here[i]);
		if (ret)
			return ret;
	}
	w = window_like(of, view);
	if (!w)
		return -FI_ENOMEM;
	w->uneven = all;
	if (n)
		w->row = view_row(&of->row, view, view->size[0]);
	for (int64_t i = 0; i < n; i++)
		view_set_target(w, all ? i : m->here[i], of, view);
	*view_p = w;
	return 0;
}

int rmx_window_part(struct rmaext_window *of, const struct rmaext_grant *grant,
		    struct rmaext_window **part_p)
{
	const struct rmaext_view view = {
		.first = grant->first,
		.size = &grant->size,
		.same = 1,
		.access = grant->access,
		.timeout = of->timeout,
	};
	struct rmaext_window *w;
	int ret = rmx_window_enter(of, "grant");

	if (ret)
		return ret;
	rmx_target_of(of, of->self);
	ret = view_check(of, &view, of->self);
	w = ret ? NULL : window_like(of, &view);
	if (w) {
		w->root = w;
		w->first = 0;
		w->tally = (struct rmx_tally){0};
		memcpy(w->token, grant->token, RMX_TOKEN);
		view_set_target(w, w->self, of, &view);
		*part_p = w;
	} else if (!ret) {
		ret = -FI_ENOMEM;
	}
	rmx_window_leave(of);
	return ret;
}

int rmaext_window_view(rmaext_window *of, const struct rmaext_view *view,
		       rmaext_window **view_p)
{
	int ret = rmx_window_enter(of, "view");

	if (ret)
		return ret;
	ret = window_view(of, view, view_p);
	rmx_window_leave(of);
	return ret;
}

void rmaext_record_window(rmaext_window *w,
			  const struct rmaext_record_window *facts)
{
	rmx_record_window(&w->tally, facts);
}

uint32_t rmaext_record_id(const rmaext_window *w)
{
	return w->tally.id;
}

struct rmaext_record_counts *rmaext_record_counters(const rmaext_window *w,
						    int64_t *targets_p)
{
	*targets_p = w->tally.of ? w->tally.last + 2 : 0;
	return w->tally.of;
}

void rmaext_record_abandon(rmaext_window *w)
{
	rmx_record_abandon(&w->tally);
}

int rmaext_record_sends(rmaext_window *w, int64_t rank, int slot,
			const char *site)
{
	int ret = rmx_window_enter(w, "put_notify");

	if (ret)
		return 0; /* what comes next says so */
	ret = rmx_sent_from(&w->tally, rank, slot, site);
	rmx_window_leave(w);
	return ret;
}

void rmaext_record_waits(const rmaext_window *w, uint32_t kind, int64_t target,
			 uint64_t offset)
{
	rmx_now_enter(kind, w->tally.id, target, offset);
}

void rmaext_record_waited(uint32_t kind, int outcome)
{
	rmx_now_leave(kind, outcome);
}

int64_t rmaext_window_pending(rmaext_window *w)
{
	int64_t pending = 0;

	for (int64_t rank = 0; rank < w->count; rank++) {
		struct rmx_target *t = &w->targets[rank];

		pending += (int64_t)rmx_counted(atomic_load(&t->pending)) +
			   atomic_load(&t->gets);
	}
	return pending;
}

void rmaext_window_reopen(rmaext_window *w)
{
	/* a closed fabric has closed its windows for good */
	if (!w->fabric || !atomic_load(&w->fabric->rundown.closed))
		atomic_store(&w->rundown.closed, false);
}

int rmaext_window_route(const rmaext_window *w, int64_t rank)
{
	return w->targets[rank].route;
}

void rmx_window_free(struct rmaext_window *w)
{
	rmx_imports_drop(w);
	pthread_mutex_destroy(&w->lock);
	window_drop(w);
}
