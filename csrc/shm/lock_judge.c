/* SPDX-License-Identifier: BSD-3-Clause */
/* What a waiter does about a lock that does not move; see ticket_lock.c. */
#include "shm/ticket_lock.h"

/*
 * Below 0 it is a dead rank's that had its turn: others had passed its ticket
 * before its message was looked at.
 */
static int slot_kind(const struct rmaext_lock_look *look, int64_t rank)
{
	if (look->slots[rank] < 0)
		return RMAEXT_SLOT_ACTIVE;
	return (int)(look->slots[rank] & RMAEXT_SLOT_KINDS);
}

/* Those alive do not account for all readers that a writer waits for. */
static bool readers_died(const struct rmaext_lock_look *look)
{
	int64_t readers = 0;

	for (int64_t r = 0; r < look->count; r++)
		if (!look->gone[r])
			readers += (look->slots[r] & RMAEXT_SLOT_READERS) /
				   RMAEXT_SLOT_READER;
	return readers < look->inside;
}

int rmaext_lock_judge(const struct rmaext_lock_look *look, int64_t *rank_p)
{
	const bool joins = look->ticket < 0;
	const bool ours = joins || look->ticket == look->turn;
	/* it has its turn, and waits for readers to leave */
	const bool readers = ours && !joins && look->inside < RMX_LOCK_WRITER;
	bool busy = false; /* one alive may have the ticket, not saying so */

	*rank_p = -1;
	for (int64_t r = 0; r < look->count; r++) {
		const int kind = slot_kind(look, r);

		if (kind == RMAEXT_SLOT_ACTIVE) {
			busy = busy || !look->gone[r];
		} else if (kind && !ours &&
			   look->slots[r] >> RMAEXT_SLOT_TICKET == look->turn) {
			if (kind != RMAEXT_SLOT_ABANDONED && !look->gone[r])
				return RMAEXT_LOCK_WAIT;
			*rank_p = r;
			return RMAEXT_LOCK_PASS;
		}
	}
	if (busy || (readers && (!look->exclusive || !readers_died(look))))
		return RMAEXT_LOCK_WAIT;
	for (int64_t r = 0; r < look->count; r++) {
		if (!look->gone[r] ||
		    (slot_kind(look, r) != RMAEXT_SLOT_ACTIVE &&
		     !(readers && look->slots[r] & RMAEXT_SLOT_READERS)))
			continue;
		*rank_p = r;
		return RMAEXT_LOCK_LOST;
	}
	return RMAEXT_LOCK_UNKNOWN;
}
