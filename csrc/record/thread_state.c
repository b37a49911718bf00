/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What each thread is in now. A wait is continued over several calls of C, each
 * of which takes a slice. It stays the same wait, since the time at which it
 * began, while its kind, window, target and offset are the same.
 */
#define _GNU_SOURCE /* strnlen */
#include "record/record.h"

#define RECENT ((int64_t)200 * 1000 * 1000) /* ns */

static _Thread_local struct rmaext_record_thread last; /* the wait before, */
static _Thread_local int64_t last_end; /* and when it was over */
static _Thread_local bool is_again;    /* see rmaext_record_again() */

/* Waits of many steps, some of which are waits themselves. */
static bool entry_brackets(const struct rmaext_record_thread *t)
{
	return t->kind == RMAEXT_IN_MEETING || t->kind == RMAEXT_IN_LOCK ||
	       t->kind == RMAEXT_IN_EPOCH || t->kind == RMAEXT_IN_CONTAINER;
}

/* Operations of rmaext's own, which a wait makes between its slices. */
static bool entry_is_within(const struct rmaext_record_thread *t,
			    unsigned int kind, uint32_t window)
{
	return t->kind && t->window && !window && kind <= RMAEXT_DID_NOTIFY;
}

static int64_t entry_set(struct rmaext_record_thread *t, unsigned int kind,
			 uint32_t window, int64_t target, uint64_t offset,
			 uint64_t bytes)
{
	const int64_t now = rmx_now();

	if (t->kind == kind && t->window == window &&
	    t->target == (int32_t)target && t->offset == offset)
		return now;
	rmx_entry_begin(&t->seq);
	if (t->kind) { /* an exception has ended that wait */
		t->waited += now - t->since;
		t->waits++;
	}
	t->kind = kind;
	t->window = window;
	t->target = (int32_t)target;
	t->since = now;
	t->offset = offset;
	t->bytes = bytes;
	t->site[0] = t->text[0] = '\0';
	rmx_entry_end(&t->seq);
	return now;
}

static void entry_clear(struct rmaext_record_thread *t, int64_t now)
{
	memcpy(&last, t, offsetof(struct rmaext_record_thread, waited));
	last_end = now;
	rmx_entry_begin(&t->seq);
	t->waited += now - t->since;
	t->waits++;
	t->kind = 0;
	rmx_entry_end(&t->seq);
}

int64_t rmx_now_in(unsigned int kind, uint32_t window, int64_t target,
		   uint64_t offset, uint64_t bytes)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (!t || entry_brackets(t) || entry_is_within(t, kind, window))
		return rmx_now();
	return entry_set(t, kind, window, target, offset, bytes);
}

static void entry_out(struct rmaext_record_thread *t, int ret, bool event)
{
	const int64_t now = rmx_now();

	if (event)
		rmx_event_add(&(struct rmaext_record_event){
			.begin = t->since,
			.end = now,
			.offset = t->offset,
			.bytes = t->bytes,
			.window = t->window,
			.target = t->target,
			.outcome = ret,
			.kind = (uint8_t)t->kind,
		});
	entry_clear(t, now);
}

void rmx_now_out(uint32_t window, int ret, bool event)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (ret != RMAEXT_PENDING && t && t->kind && t->window == window &&
	    !entry_brackets(t))
		entry_out(t, ret, event);
}

/* -- locks and epochs */

void rmx_now_enter(unsigned int kind, uint32_t window, int64_t target,
		   uint64_t offset)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (t)
		entry_set(t, kind, window, target, offset, 0);
}

void rmx_now_leave(unsigned int kind, int ret)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (t && t->kind == kind)
		entry_out(t, ret, true);
}

/* -- meetings: of a node's ranks, by C; of others, by MPI and Python */

void rmx_now_meets(struct rmaext_record_comm *comm, uint64_t id, uint64_t step)
{
	struct rmaext_record_thread *t = rmx_thread_entry();
	int64_t now;

	if (!t)
		return;
	if (t->kind == RMAEXT_IN_MEETING && t->offset == step && t->bytes == id)
		return; /* the next slice */
	now = entry_set(t, RMAEXT_IN_MEETING, 0, -1, step, id);
	rmx_record_comes(comm, step, now);
}

void rmx_now_met(struct rmaext_record_comm *comm, int ret)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (ret == RMAEXT_PENDING || !t || t->kind != RMAEXT_IN_MEETING)
		return;
	rmx_record_goes(comm, rmx_now());
	entry_out(t, ret, true);
}

void rmaext_record_meets(uint64_t comm, uint64_t step)
{
	if (rmx_record.header)
		rmx_now_meets(rmx_record_comm_find(comm), comm, step);
}

void rmaext_record_met(int outcome)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (t && t->kind == RMAEXT_IN_MEETING)
		rmx_now_met(rmx_record_comm_find(t->bytes), outcome);
}

/* -- what Python adds */

static void text_set(char *to, size_t size, const char *from)
{
	const size_t len = from ? strnlen(from, size - 1) : 0;

	if (!from)
		return;
	memcpy(to, from, len);
	to[len] = '\0';
}

void rmaext_record_tell(const char *site, const char *text)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (!t || !t->kind || (t->kind == RMAEXT_IN_CONTAINER && t->text[0]))
		return;
	rmx_entry_begin(&t->seq);
	text_set(t->site, sizeof(t->site), site);
	text_set(t->text, sizeof(t->text), text);
	rmx_entry_end(&t->seq);
}

void rmaext_record_quit(void)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (t && t->kind && t->kind != RMAEXT_IN_CONTAINER)
		entry_out(t, -FI_EINTR, true);
}

void rmaext_record_give_up(void)
{
	struct rmaext_record_thread *t = rmx_thread_entry();

	if (t && t->kind && !entry_brackets(t))
		entry_out(t, -FI_EINTR, true);
}

int64_t rmaext_record_again(int again)
{
	struct rmaext_record_thread *t = rmx_thread_entry();
	const int64_t now = rmx_now();

	if (!t)
		return 0;
	if (again && t->kind)
		return now - t->since; /* it is in that wait still */
	if (again ? !last.kind || now - last_end > RECENT : !is_again)
		return 0; /* the error is of something else */
	is_again = again;
	rmx_entry_begin(&t->seq);
	t->kind = again ? last.kind : 0;
	t->window = last.window;
	t->target = last.target;
	t->since = last.since;
	t->offset = last.offset;
	t->bytes = last.bytes;
	rmx_entry_end(&t->seq);
	return now - last.since;
}
