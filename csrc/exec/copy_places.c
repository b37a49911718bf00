/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Copies places by system calls, each of which takes many; short ones go by way
 * of a buffer, as own memory is told in one piece.
 */
#include "exec/copy_places.h"

#include <stdlib.h>

#define MOST_PIECES 1024u /* UIO_MAXIOV, the most that process_vm_* take */
#define BUFFER ((size_t)64 << 10) /* bytes of the buffer */

/*
 * The kernel takes 0.4 us for each piece that process_vm_* copy; a message
 * takes 40 us and more to the progress thread of the target and back, then 0.02
 * us each.
 */
#define MANY 256u
#define SHORT 64u /* bytes */

/*
 * Puts never go by messages: one that was given up could overwrite a later one
 * by this CPU.
 */
bool rmx_places_by_messages(const struct rmaext_window *w,
			    const struct rmx_target *t, uint64_t count,
			    uint64_t unit)
{
	return count >= MANY && unit <= SHORT && w->fabric && t->member->peer &&
	       atomic_load(&t->member->peer->serves);
}

bool rmx_place_is_inside(const struct rmaext_window *w, int64_t rank,
			 const struct rmx_piece *it)
{
	const struct rmx_target *t = rmx_target_of(w, rank);

	return it->offset >= w->first && it->offset - w->first <= t->size &&
	       it->len <= t->size - (it->offset - w->first);
}

int rmx_places_changed(int64_t rank, bool put)
{
	return rmx_fail(-FI_EINVAL, rank, put ? "put" : "get",
			"the arrays of ranks or offsets changed during the "
			"call");
}

/* Copies as many places as one system call takes. */
static int places_copy_some(const struct rmaext_window *w, int64_t rank,
			    bool put, struct rmx_places *p, char *buffer)
{
	const struct rmx_target *t = rmx_target_of(w, rank);
	const uint64_t base = rmx_target_of(w->root, rank)->address;
	struct rmx_piece it = rmx_place_at(p, p->next);
	const bool alone = it.len > BUFFER;
	struct iovec pieces[MOST_PIECES];
	uint64_t i = p->next;
	size_t n = 0, len = 0;
	char *local = buffer;
	int ret;

	if (alone)
		local = put ? (char *)(uintptr_t)it.value : it.result;
	do {
		if (!rmx_place_is_inside(w, rank, &it))
			return rmx_places_changed(rank, put);
		pieces[n++] = (struct iovec){
			(void *)(uintptr_t)(base + it.offset), it.len};
		if (put && !alone)
			memcpy(buffer + len, it.value, it.len);
		len += it.len;
		if (++i == p->count)
			break;
		it = rmx_place_at(p, i);
	} while (n < MOST_PIECES && len + it.len <= BUFFER);
	ret = rmx_cma_pieces(t->member->neighbour, rank, put, pieces, n, local,
			     len);
	if (ret)
		return ret;
	for (len = 0; !put && !alone && p->next < i; p->next++) {
		it = rmx_place_at(p, p->next);
		memcpy(it.result, buffer + len, it.len);
		len += it.len;
	}
	p->next = i;
	return 0;
}

int rmx_places_copy(const struct rmaext_window *w, int64_t rank, bool put,
		    struct rmx_places *p, int64_t until)
{
	char *buffer = malloc(BUFFER);
	int ret = 0;

	if (!buffer)
		return rmx_no_memory("a copy of places");
	while (p->next < p->count && !ret) {
		ret = places_copy_some(w, rank, put, p, buffer);
		if (!ret && p->next < p->count && rmx_now() > until)
			ret = RMAEXT_PENDING;
	}
	free(buffer);
	return ret;
}
