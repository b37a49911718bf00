/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Memory of this rank that belongs to a dynamic window for as long as it is
 * attached. Offsets in such a window are addresses. All operations of other
 * ranks come as messages, and the reader of the completion queue carries them
 * out with the lock held. So none of them touches memory that is detached.
 */
#include "win/window.h"

#include <errno.h>
#include <stdlib.h>

struct range {
	uintptr_t start, end;
};

struct rmx_attached {
	pthread_mutex_t lock;
	struct range *ranges; /* in the order of their addresses */
	size_t count, room;
};

struct rmx_attached *rmx_attached_new(void)
{
	struct rmx_attached *a = calloc(1, sizeof(*a));

	if (a)
		pthread_mutex_init(&a->lock, NULL);
	return a;
}

void rmx_attached_free(struct rmx_attached *a)
{
	if (!a)
		return;
	pthread_mutex_destroy(&a->lock);
	free(a->ranges);
	free(a);
}

void rmx_attached_lock(struct rmx_attached *a)
{
	if (a)
		pthread_mutex_lock(&a->lock);
}

void rmx_attached_unlock(struct rmx_attached *a)
{
	if (a)
		pthread_mutex_unlock(&a->lock);
}

/* Returns the number of ranges that begin at or before an address. */
static size_t attached_find(const struct rmx_attached *a, uintptr_t address)
{
	size_t low = 0, high = a->count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (a->ranges[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool rmx_attached_has(const struct rmx_attached *a, uint64_t address,
		      uint64_t len)
{
	size_t at = attached_find(a, (uintptr_t)address);
	uintptr_t end;

	if (!at || address > a->ranges[at - 1].end)
		return false;
	end = a->ranges[at - 1].end;
	while (len > end - address && at < a->count &&
	       a->ranges[at].start == end)
		end = a->ranges[at++].end; /* they lie side by side */
	return len <= end - address;
}

/* Is some of it attached? `at` is what attached_find() says of its start. */
static bool attached_meets(const struct rmx_attached *a, size_t at,
			   uintptr_t start, uintptr_t end)
{
	return (at && a->ranges[at - 1].end > start) ||
	       (at < a->count && a->ranges[at].start < end);
}

static int attached_insert(struct rmx_attached *a, uintptr_t start,
			   uintptr_t end)
{
	const size_t at = attached_find(a, start);
	struct range *ranges = a->ranges;

	if (attached_meets(a, at, start, end))
		return rmx_fail(-EEXIST, RMX_NO_RANK, "attach",
				"the memory overlaps memory that is attached");
	if (a->count == a->room) {
		const size_t room = a->room ? 2 * a->room : 16;

		ranges = realloc(ranges, room * sizeof(*ranges));
		if (!ranges)
			return rmx_no_memory("attached memory");
		a->ranges = ranges;
		a->room = room;
	}
	memmove(&ranges[at + 1], &ranges[at],
		(a->count - at) * sizeof(*ranges));
	ranges[at] = (struct range){start, end};
	a->count++;
	return 0;
}

static int attached_remove(struct rmx_attached *a, uintptr_t start,
			   uintptr_t end)
{
	const size_t at = attached_find(a, start);

	if (!at || a->ranges[at - 1].start != start ||
	    a->ranges[at - 1].end != end)
		return rmx_fail(-ENXIO, RMX_NO_RANK, "detach",
				"the memory is not attached, or as a part "
				"of a longer piece only");
	memmove(&a->ranges[at - 1], &a->ranges[at],
		(a->count - at) * sizeof(*a->ranges));
	a->count--;
	return 0;
}

bool rmx_attached_meets(struct rmx_attached *a, uintptr_t start, uintptr_t end)
{
	bool meets;

	rmx_attached_lock(a);
	meets = attached_meets(a, attached_find(a, start), start, end);
	rmx_attached_unlock(a);
	return meets;
}

int rmx_attached_change(struct rmaext_window *w, bool attach, const void *addr,
			uint64_t len)
{
	const uintptr_t start = (uintptr_t)addr;
	const char *call = attach ? "attach" : "detach";
	int ret = rmx_window_enter(w, call);

	if (ret)
		return ret;
	if (!w->attached || !len) {
		ret = rmx_fail(
			-FI_EINVAL, RMX_NO_RANK, call,
			"the window is not dynamic, or the memory has no "
			"bytes");
	} else {
		rmx_attached_lock(w->attached);
		ret = attach ? attached_insert(w->attached, start, start + len)
			     : attached_remove(w->attached, start, start + len);
		rmx_attached_unlock(w->attached);
	}
	rmx_window_leave(w);
	return ret;
}
