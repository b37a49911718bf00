/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The latest events, in a ring. A thread draws a number, marks the entry as
 * being written, and fills it. A reader that finds the mark, or another number
 * than it looks for, does without that event. Two threads would write to one
 * entry only if the first were suspended while 65,536 others are added: then
 * the second does not find the mark as it should, and its event is dropped.
 */
#include "record/record.h"

static _Thread_local uint32_t site; /* of the public call it is in; or 0 */
static _Thread_local int64_t site_since;

void rmaext_record_at(uint32_t number)
{
	site = number;
	if (number)
		site_since = rmx_now();
}

uint32_t rmx_event_site(void)
{
	return site;
}

void rmx_event_add(const struct rmaext_record_event *event)
{
	struct rmaext_record_event e = *event;

	if (!rmx_record.header)
		return;
	e.site = site;
	e.thread = rmx_thread_index();
	rmx_event_write(&e);
}

void rmx_event_write(const struct rmaext_record_event *event)
{
	struct rmaext_record_event *e;
	uint64_t number, seq, was;

	if (!rmx_record.header)
		return;
	number = __atomic_fetch_add(&rmx_record.header->next, 1,
				    __ATOMIC_RELAXED);
	if (rmx_record.traced)
		rmx_trace_room(number);
	e = &rmx_record.events[number % RMAEXT_RECORD_EVENTS];
	seq = 2 * (number + 1);
	was = __atomic_load_n(&e->seq, __ATOMIC_RELAXED);
	if (was & 1 || was >= seq ||
	    !__atomic_compare_exchange_n(&e->seq, &was, seq - 1, false,
					 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
		__atomic_fetch_add(&rmx_record.header->lost, 1,
				   __ATOMIC_RELAXED);
		return;
	}
	__atomic_thread_fence(__ATOMIC_RELEASE);
	e->begin = event->begin;
	e->end = event->end;
	e->offset = event->offset;
	e->bytes = event->bytes;
	e->window = event->window;
	e->target = event->target;
	e->site = event->site;
	e->outcome = event->outcome;
	e->kind = event->kind;
	e->route = event->route;
	e->thread = event->thread;
	e->more = event->more;
	__atomic_store_n(&e->seq, seq, __ATOMIC_RELEASE);
}

void rmx_event_here(const struct rmx_tally *tally, int64_t rank,
		    unsigned int kind, int route, uint64_t offset,
		    uint64_t bytes)
{
	const int64_t now = rmx_now();

	rmx_event_add(&(struct rmaext_record_event){
		.begin = site ? site_since : now,
		.end = now,
		.offset = offset,
		.bytes = bytes,
		.window = tally->id,
		.target = rank == RMX_SEVERAL ? -1 : (int32_t)rank,
		.kind = (uint8_t)kind,
		.route = (uint8_t)route,
	});
}
