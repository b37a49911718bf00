/* SPDX-License-Identifier: BSD-3-Clause */
/* Meetings of all ranks of a communicator, by memory or by the network. */
#include "api/api.h"

uint64_t rmaext_meetings_turn(struct rmaext_meetings *m, uint64_t thread)
{
	uint64_t has = 0;

	return __atomic_compare_exchange_n(&m->turn, &has, thread, false,
					   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
		       ? thread
		       : has;
}

int rmaext_meet(struct rmaext_meetings *m, uint64_t step, unsigned int value,
		int64_t slice)
{
	if (m->over) {
		m->over = 0;
		return 0;
	}
	if (!m->team && !m->far) {
		m->met = (struct rmaext_met){.worst = value};
		return 0;
	}
	if (m->team)
		return rmaext_node_barrier_meet(m->team, step, value, slice,
						&m->met);
	return rmaext_network_barrier_meet(m->far, step, value, slice, &m->met);
}
