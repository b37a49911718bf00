/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of targets that operations are checked against. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t rmaext_block_bytes(int64_t count)
{
	const uint64_t n = (uint64_t)count;
	const uint64_t bytes = sizeof(struct rmx_block) +
			       n * sizeof(struct rmx_guard_line) +
			       3 * n * sizeof(uint64_t);

	return (bytes + RMX_LINE - 1) / RMX_LINE * RMX_LINE;
}

void rmaext_block_places(int64_t count, struct rmaext_places *places_p)
{
	const uint64_t n = (uint64_t)count, word = sizeof(uint64_t);
	const uint64_t after =
		sizeof(struct rmx_block) + n * sizeof(struct rmx_guard_line);

	*places_p = (struct rmaext_places){
		.lock = offsetof(struct rmx_block, lock) / word,
		.notify = offsetof(struct rmx_block, notify) / word,
		.slots = after / word,
		.posted = after / word + n,
		.completed = after / word + 2 * n,
	};
}

static void set_target(struct rmaext_window *w, int64_t rank,
		       const struct rmaext_targets *from)
{
	struct rmx_target *t = &w->targets[rank];

	t->peer = from->peer ? from->peer[rank] : NULL;
	t->near = from->near ? from->near[rank] : NULL;
	t->map = from->map ? from->map[rank] : NULL;
	t->address = from->address ? from->address[rank] : 0;
	t->control = from->control ? from->control[rank] : NULL;
	if (t->near && t->near->control)
		t->bell = &t->near->control->bell;
	else if (rank == w->self)
		t->bell = rmx_arena_bell(from->arena);
	t->size = from->size[rank];
	t->base = from->base ? from->base[rank] : 0;
	t->access = from->access[rank];
	t->align = from->align[rank];
	t->route = from->route[rank];
	if (!w->raw_keys && from->key_len == sizeof(t->key))
		memcpy(&t->key, from->keys + (size_t)rank * sizeof(t->key),
		       sizeof(t->key));
}

static int window_create(struct rmaext_fabric *f,
			 const struct rmaext_targets *targets, int64_t timeout,
			 struct rmaext_window **window_p)
{
	struct rmaext_window *w = calloc(1, sizeof(*w));
	bool raw = f && (f->mr_mode & FI_MR_RAW);

	if (!w)
		goto no_memory;
	w->root = w;
	w->fabric = f;
	w->timeout = timeout;
	w->spin = targets->spin_ns;
	w->count = targets->count;
	w->self = targets->self;
	if (targets->token)
		memcpy(w->token, targets->token, sizeof(w->token));
	w->targets = calloc((size_t)w->count, sizeof(*w->targets));
	if (targets->dynamic)
		w->attached = rmx_attached_new();
	if (!w->targets || (targets->dynamic && !w->attached))
		goto no_memory;
	if (raw) {
		size_t bytes = (size_t)w->count * targets->key_len;

		w->raw_len = targets->key_len;
		w->raw_keys = malloc(bytes ? bytes : 1);
		if (!w->raw_keys)
			goto no_memory;
		if (bytes)
			memcpy(w->raw_keys, targets->keys, bytes);
	}
	for (int64_t rank = 0; rank < w->count; rank++)
		set_target(w, rank, targets);
	pthread_mutex_init(&w->lock, NULL);
	if (f) {
		pthread_mutex_lock(&f->lock);
		w->next = f->windows;
		w->prev = &f->windows;
		if (w->next)
			w->next->prev = &w->next;
		f->windows = w;
		pthread_mutex_unlock(&f->lock);
	}
	*window_p = w;
	return 0;

no_memory:
	if (w) {
		rmx_attached_free(w->attached);
		free(w->targets);
	}
	free(w);
	return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "window");
}

int rmaext_window_create(rmaext_fabric *f, const struct rmaext_targets *targets,
			 int64_t timeout, rmaext_window **window_p)
{
	int ret = f ? rmx_fabric_enter(f, "rmaext_window_create") : 0;

	if (ret)
		return ret;
	ret = window_create(f, targets, timeout, window_p);
	if (f)
		rmx_fabric_leave(f);
	return ret;
}

/* The target as seen through a view of `len` bytes from `first` on. */
static void look(struct rmx_target *t, const struct rmx_target *from,
		 const struct rmaext_view *view, uint64_t len)
{
	*t = (struct rmx_target){
		.peer = from->peer,
		.near = from->near,
		.map = from->map,
		.address = from->address,
		.control = from->control,
		.bell = from->bell,
		.size = len,
		.access = from->access & (uint8_t)view->access,
		.align = from->align,
		.route = from->route,
	};
	if (!len)
		return;
	if (t->map)
		t->map += view->first;
	t->address += view->first;
	t->align = (uint8_t)((t->align + view->first) % 64);
}

static int window_view(struct rmaext_window *of, const struct rmaext_view *view,
		       struct rmaext_window **view_p)
{
	struct rmaext_window *w;

	for (int64_t rank = 0; rank < of->count; rank++) {
		const uint64_t size = of->targets[rank].size;

		if (view->size[rank] && (view->first > size ||
					 view->size[rank] > size - view->first))
			return rmx_fail(-ERANGE, rank, "view",
					"it ends after the %llu bytes there",
					(unsigned long long)size);
	}
	w = calloc(1, sizeof(*w));
	if (w)
		w->targets = calloc((size_t)of->count, sizeof(*w->targets));
	if (!w || !w->targets) {
		free(w);
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "view");
	}
	w->root = of->root;
	w->first = of->first + view->first;
	w->stride = view->stride;
	w->fabric = of->fabric;
	w->timeout = view->timeout;
	w->spin = of->spin;
	w->count = of->count;
	w->self = of->self;
	memcpy(w->token, of->token, sizeof(w->token));
	for (int64_t rank = 0; rank < w->count; rank++)
		look(&w->targets[rank], &of->targets[rank], view,
		     view->size[rank]);
	pthread_mutex_init(&w->lock, NULL);
	*view_p = w;
	return 0;
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

void rmx_window_unlink(struct rmaext_window *w)
{
	struct rmaext_fabric *f = w->fabric;

	pthread_mutex_lock(&f->lock);
	*w->prev = w->next;
	if (w->next)
		w->next->prev = w->prev;
	rmx_serve_no_more(f, w);
	pthread_mutex_unlock(&f->lock);
}

/* The caller owns the struct, close owns what it points to. */
int rmx_window_enter(struct rmaext_window *w, const char *call)
{
	int ret = rmx_gate_enter(&w->gate, call, "the window is closed");

	if (ret || w->root == w)
		return ret;
	ret = rmx_gate_enter(&w->root->gate, call, "the window is closed");
	if (ret)
		rmx_gate_leave(&w->gate);
	return ret;
}

void rmx_window_leave(struct rmaext_window *w)
{
	if (w->root != w)
		rmx_gate_leave(&w->root->gate);
	rmx_gate_leave(&w->gate);
}

int64_t rmaext_window_pending(rmaext_window *w)
{
	int64_t pending = 0;

	for (int64_t rank = 0; rank < w->count; rank++)
		pending += (uint32_t)atomic_load(&w->targets[rank].pending);
	return pending;
}

int rmaext_window_shut(rmaext_window *w)
{
	int ret = rmx_gate_shut(&w->gate);

	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "rmaext_window_shut",
				"%d calls in flight",
				atomic_load(&w->gate.users));
	/* a copy that no flush has waited for touches nothing of ours */
	if (w->fabric && rmaext_window_pending(w))
		rmx_message_forget(w, -1);
	return 0;
}

int rmaext_window_close(rmaext_window *w)
{
	struct rmaext_fabric *f = w->fabric;
	int ret = rmaext_window_shut(w);
	int64_t pending = rmaext_window_pending(w);

	if (w->root != w)
		return ret; /* all else is the root's */
	if (!ret)
		ret = rmx_gate_shut(&w->served);
	if (ret || pending)
		return rmx_fail(-FI_EBUSY, RMX_NO_RANK, "rmaext_window_close",
				"%lld transfers and %d calls in flight",
				(long long)pending,
				atomic_load(&w->gate.users));
	if (f && !rmx_fabric_enter(f, "rmaext_window_close")) {
		rmx_key_unmap_all(w);
		rmx_window_unlink(w);
		w->fabric = NULL;
		rmx_fabric_leave(f);
	} /* else closing the fabric does that */
	return 0;
}

void rmaext_window_free(rmaext_window *w)
{
	const bool view = w->root != w; /* which may be freed by now */

	if ((w->fabric && !view) || w->gate.users || w->served.users)
		return; /* still served: leak rather than corrupt */
	pthread_mutex_destroy(&w->lock);
	rmx_attached_free(w->attached);
	free(w->raw_keys);
	free(w->targets);
	free(w);
}
