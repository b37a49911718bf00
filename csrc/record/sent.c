/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which slots of which ranks this process has notified: how often, when last,
 * and from where first. A table without order, in which an entry lies at one of
 * a few places. It stays there until its window is closed: who is within the
 * window's rundown, or holds the GIL and has seen it open, counts without a
 * lock.
 */
#define _GNU_SOURCE /* strnlen */
#include "record/record.h"

#define PLACES 16 /* of a key */

_Static_assert(RMAEXT_RECORD_SENT == 1 << 13, "as rmx_sent_place() has it");

static int64_t taken; /* entries; under the lock */

/* Returns the entry with a key; or NULL, and a place for it, or NULL. */
static struct rmaext_record_sent *sent_find(uint64_t key,
					    struct rmaext_record_sent **room_p)
{
	const uint64_t first = rmx_sent_place(key);

	*room_p = NULL;
	for (uint64_t i = first; i < first + PLACES; i++) {
		struct rmaext_record_sent *s =
			&rmx_record.sent[i % RMAEXT_RECORD_SENT];
		const uint64_t found =
			__atomic_load_n(&s->key, __ATOMIC_ACQUIRE);

		if (found == key)
			return s;
		if (!found && !*room_p)
			*room_p = s;
	}
	return NULL;
}

struct rmaext_record_sent *rmx_sent_enter(uint64_t key)
{
	struct rmaext_record_sent *s, *room;

	if (!rmx_record.header)
		return NULL;
	s = sent_find(key, &room);
	if (s || !room)
		return s;
	pthread_mutex_lock(&rmx_record.lock);
	s = sent_find(key, &room); /* another thread may have made it */
	if (!s && room) {
		s = room;
		s->plain = s->shared = 0;
		s->last = 0;
		s->site = 0;
		taken++;
		__atomic_store_n(&s->key, key, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&rmx_record.lock);
	return s;
}

void rmx_sent_forget(const struct rmx_tally *tally)
{
	struct rmaext_record_sent *s = rmx_record.sent;

	pthread_mutex_lock(&rmx_record.lock);
	for (int i = 0; taken && i < RMAEXT_RECORD_SENT; i++, s++) {
		if (s->key >> 32 == tally->id) {
			__atomic_store_n(&s->key, 0, __ATOMIC_RELEASE);
			taken--;
		}
	}
	pthread_mutex_unlock(&rmx_record.lock);
}

/* Returns 1 + the index of a place of the program. */
static uint32_t site_enter(const char *at)
{
	const uint32_t last = RMAEXT_RECORD_SITES - 1;
	uint32_t i = at[0] ? 0 : last;

	while (i < last && rmx_record.sites[i].at[0] &&
	       strncmp(rmx_record.sites[i].at, at, sizeof(*rmx_record.sites)))
		i++;
	if (i < last && !rmx_record.sites[i].at[0])
		memcpy(rmx_record.sites[i].at, at,
		       strnlen(at, sizeof(*rmx_record.sites) - 1));
	return i + 1;
}

int rmx_sent_from(const struct rmx_tally *tally, int64_t rank, int slot,
		  const char *site)
{
	struct rmaext_record_sent *s = rmx_sent(tally, rank, slot);
	const bool untold = s && !__atomic_load_n(&s->site, __ATOMIC_RELAXED);

	if (untold && site) {
		pthread_mutex_lock(&rmx_record.lock);
		__atomic_store_n(&s->site, site_enter(site), __ATOMIC_RELEASE);
		pthread_mutex_unlock(&rmx_record.lock);
	}
	return untold;
}
