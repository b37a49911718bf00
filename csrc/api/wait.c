/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Waits until elements of memory have certain values, or for a request of MPI.
 * A waiter looks, spins, then sleeps. For memory it sleeps on the doorbell of
 * the process whose memory it is, see shm/doorbell.c.
 */
#define _GNU_SOURCE
#include "api/api.h"

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>

/*
 * ns between looks at memory that may change although nobody rings: by a put
 * before its flush, through a view, by the network.
 */
#define RMX_LOOK ((int64_t)1000 * 1000)
#define RMX_READER_SPINS 5 /* times as long as an origin spins */
#define RMX_READER_AWAKE ((int64_t)250 * 1000) /* ns, reading the queue */

/* One call's wait. */
struct watch {
	const struct rmaext_window *window;
	int64_t rank;
	struct rmaext_condition *conditions;
	uint64_t count;
	bool every;
	bool rung; /* whoever changes the memory rings */
};

/* -- conditions */

/* The rank's memory or control block, as mapped here; or NULL. */
static const char *condition_base(const struct rmaext_window *w, int64_t rank,
				  const struct rmaext_condition *c)
{
	const struct rmx_target *t;

	if (c->block)
		return (const char *)rmx_control_block_of(w, rank);
	if (rank == w->self)
		return w->device ? NULL : w->own;
	t = rmx_target_of(w, rank);
	return t->route == RMAEXT_DIRECT ? t->map : NULL;
}

/*
 * No intermediate value is a subnormal float: this thread may have told the CPU
 * to take those for 0.
 */
static float half_to_float(uint16_t bits)
{
	const uint32_t rest = bits & 0x7fffu;
	uint32_t wide = (rest << 13) + (112u << 23); /* the exponents differ */
	float value;

	if (rest >= 0x7c00) /* infinity, not a number */
		wide |= 0x7f800000;
	memcpy(&value, &wide, sizeof(value));
	if (rest < 0x400) /* zero, subnormal */
		value = (float)rest * 0x1p-24f;
	return bits >> 15 ? -value : value;
}

#define COMPARE(is, wanted)                      \
	do {                                     \
		switch (c->comparison) {         \
		case RMAEXT_EQ:                  \
			return (is) == (wanted); \
		case RMAEXT_NE:                  \
			return (is) != (wanted); \
		case RMAEXT_LT:                  \
			return (is) < (wanted);  \
		case RMAEXT_LE:                  \
			return (is) <= (wanted); \
		case RMAEXT_GT:                  \
			return (is) > (wanted);  \
		default:                         \
			return (is) >= (wanted); \
		}                                \
	} while (0)

#define LOOK(bits, type)                                                     \
	do {                                                                 \
		bits raw =                                                   \
			__atomic_load_n((const bits *)at, __ATOMIC_ACQUIRE); \
		type is, wanted;                                             \
                                                                             \
		memcpy(&c->seen, &raw, sizeof(raw));                         \
		memcpy(&is, &raw, sizeof(is));                               \
		memcpy(&wanted, &c->value, sizeof(wanted));                  \
		COMPARE(is, wanted);                                         \
	} while (0)

static bool condition_look(const void *at, struct rmaext_condition *c)
{
	uint16_t raw, wanted;

	switch (c->type) {
	case RMAEXT_INT8:
		LOOK(uint8_t, int8_t);
	case RMAEXT_UINT8:
	case RMAEXT_BOOL:
		LOOK(uint8_t, uint8_t);
	case RMAEXT_INT16:
		LOOK(uint16_t, int16_t);
	case RMAEXT_UINT16:
		LOOK(uint16_t, uint16_t);
	case RMAEXT_INT32:
		LOOK(uint32_t, int32_t);
	case RMAEXT_UINT32:
		LOOK(uint32_t, uint32_t);
	case RMAEXT_INT64:
		LOOK(uint64_t, int64_t);
	case RMAEXT_UINT64:
		LOOK(uint64_t, uint64_t);
	case RMAEXT_FLOAT:
		LOOK(uint32_t, float);
	case RMAEXT_DOUBLE:
		LOOK(uint64_t, double);
	}
	raw = __atomic_load_n((const uint16_t *)at, __ATOMIC_ACQUIRE);
	memcpy(&c->seen, &raw, sizeof(raw));
	memcpy(&wanted, &c->value, sizeof(wanted));
	COMPARE(half_to_float(raw), half_to_float(wanted));
}

static size_t condition_unit(int type)
{
	const bool known = type <= RMAEXT_DOUBLE || type == RMAEXT_BOOL ||
			   type == RMAEXT_HALF;

	return known ? rmx_unit_of(type) : 0;
}

static bool watch_holds(const struct watch *w)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < w->count; i++) {
		struct rmaext_condition *c = &w->conditions[i];

		c->holds = condition_look(
			condition_base(w->window, w->rank, c) + c->offset, c);
		n += c->holds;
	}
	return w->every ? n == w->count : n;
}

static enum rmx_step watch_step(void *arg)
{
	return watch_holds(arg) ? RMX_DONE : RMX_SLEEP;
}

static int condition_check(const struct rmaext_window *w, int64_t rank,
			   const struct rmaext_condition *c)
{
	const struct rmx_target *t = rmx_target_of(w, rank);
	const size_t unit = condition_unit(c->type);
	const uint64_t size = c->block ? rmaext_block_bytes(w->count) : t->size;
	const char *base;

	if (!unit || c->comparison > RMAEXT_GE)
		return rmx_fail(-FI_EINVAL, rank, "wait",
				"there is no wait for type %d and comparison "
				"%d: it takes integers, bool and real floats "
				"up to 8 bytes",
				(int)c->type, (int)c->comparison);
	if (unit > size || c->offset > size - unit)
		return rmx_fail(-ERANGE, rank, "wait",
				"byte %llu is outside the %llu bytes there",
				(unsigned long long)c->offset,
				(unsigned long long)size);
	base = condition_base(w, rank, c);
	if (!base)
		return rmx_fail(-EREMOTE, rank, "wait",
				"that memory cannot be mapped here: wait for a "
				"notification, or get and compare");
	if (((uintptr_t)base + c->offset) % unit)
		return rmx_fail(-FI_EFAULT, rank, "wait",
				"byte %llu is not aligned to the element's %zu "
				"bytes",
				(unsigned long long)c->offset, unit);
	return 0;
}

/* -- waiting */

/* The doorbell's futex is shared between processes, unlike those of clock.c. */
static bool watch_sleep(void *arg, int64_t ns)
{
	const struct watch *w = arg;
	struct rmx_doorbell *doorbell =
		w->window->members->of[w->rank].doorbell;
	struct rmx_doorbell silent = {0};
	struct timespec t = {.tv_nsec = (long)ns}; /* less than a second */
	unsigned int rings;

	if (!doorbell)
		doorbell = &silent;
	rings = atomic_load(&doorbell->rings);
	atomic_store(&doorbell->listening, 1);
	atomic_thread_fence(memory_order_seq_cst);
	if (watch_holds(w))
		return true; /* `listening` stays: one ring too many */
	if (atomic_load(&w->window->root->rundown.closed))
		return false;
	return !syscall(SYS_futex, &doorbell->rings, FUTEX_WAIT, rings, &t,
			NULL, 0) ||
	       errno != EINTR;
}

/* Looks, and serves the network, for so long that an answer may come. */
static bool watch_awake(struct watch *w, int64_t until)
{
	struct rmaext_fabric *f = w->window->fabric;
	const int64_t end = rmx_now() + RMX_READER_AWAKE;

	return !rmx_wait(f, NULL, watch_step, w, end < until ? end : until,
			 RMX_READER_SPINS);
}

/* Without a progress thread, the waiter reads the completion queue. */
static int watch_sleep_as_reader(struct watch *w, int64_t until)
{
	int64_t now = rmx_now();

	while (now < until) {
		const int64_t end =
			now + RMX_LOOK < until ? now + RMX_LOOK : until;

		if (!rmx_wait(w->window->fabric, NULL, watch_step, w, end, 0))
			return 0;
		/* woken early: by a signal, or for another waiter */
		now = rmx_now();
		if (now < end)
			break;
	}
	return RMAEXT_PENDING;
}

/* Notifications are counted in the control block. Returns the time. */
static int64_t watch_record(const struct watch *w)
{
	const struct rmaext_condition *c = w->conditions;
	const uint64_t notify = offsetof(struct rmx_control_block, notify);
	const uint64_t slot = (c->offset - notify) / sizeof(int64_t);

	if (w->count && c->block && slot < RMAEXT_NOTIFY)
		return rmx_now_in(RMAEXT_IN_NOTIFY, w->window->tally.id,
				  w->rank, slot, c->value);
	return rmx_now_in(RMAEXT_IN_UNTIL, w->window->tally.id, w->rank,
			  w->count ? c->offset : 0, 0);
}

static int watch_wait(struct watch *w, int64_t slice)
{
	struct rmaext_fabric *f = w->window->fabric;
	struct rmx_await wait = {
		.look = watch_step,
		.sleep = watch_sleep,
		.arg = w,
		.spin = f ? 0 : w->window->spin,
		.nap = w->rung && w->window->members->of[w->rank].doorbell
			       ? RMX_SLICE
			       : RMX_LOOK,
	};
	int64_t until;

	if (watch_holds(w))
		return 0;
	if (slice <= 0) {
		rmaext_mpi_glance();
		return RMAEXT_PENDING;
	}
	until = watch_record(w) + (slice < RMX_SLICE ? slice : RMX_SLICE - 1);
	if (f && watch_awake(w, until))
		return 0;
	if (f && !f->progress.running)
		return watch_sleep_as_reader(w, until);
	if (f)
		rmx_progress_hand_over(f);
	return rmx_await(&wait, until, NULL);
}

int rmaext_wait_until(rmaext_window *window, int64_t rank,
		      struct rmaext_condition *conditions, uint64_t count,
		      int every, int64_t slice)
{
	struct watch w = {
		.window = window,
		.rank = rank,
		.conditions = conditions,
		.count = count,
		.every = every,
		.rung = true,
	};
	int ret = rmx_window_enter(window, "wait");

	if (ret)
		return ret;
	ret = rmx_check(window, "wait", rank, 0, 0, 0);
	for (uint64_t i = 0; !ret && i < count; i++) {
		ret = condition_check(window, rank, &conditions[i]);
		w.rung = w.rung && conditions[i].block;
	}
	if (!ret) {
		ret = watch_wait(&w, slice);
		rmx_now_out(window->tally.id, ret, true);
	}
	rmx_window_leave(window);
	return ret;
}

/* -- for a request of MPI */

static enum rmx_step mpi_request_step(void *arg)
{
	return atomic_load(&((struct rmx_pace *)arg)->done) ? RMX_DONE
							    : RMX_SLEEP;
}

static bool nap_sleep(void *arg, int64_t ns)
{
	(void)arg;
	return rmx_sleep(ns);
}

static enum rmx_step nap_step(void *arg)
{
	(void)arg;
	return RMX_SLEEP;
}

void rmaext_mpi_nap(int64_t ns)
{
	const struct rmx_await wait = {
		.look = nap_step,
		.sleep = nap_sleep,
		.nap = RMX_SLICE - 1,
	};

	rmx_await(&wait, rmx_now() + ns, NULL);
}

int rmaext_mpi_wait(void *request, rmaext_fabric *fabric, int64_t *quiet,
		    int64_t slice)
{
	const int64_t now = rmx_now();
	const int64_t until = now + (slice < RMX_SLICE ? slice : RMX_SLICE - 1);
	struct rmx_pace pace = {.request = request};
	struct rmx_await wait = {
		.look = mpi_request_step,
		.sleep = nap_sleep,
		.arg = &pace,
		.nap = RMX_SLICE,
	};
	int ret;

	rmx_now_in(RMAEXT_IN_MPI, 0, -2, 0, 0);
	rmx_pace_begin(&pace, now);
	if (*quiet)
		pace.quiet = *quiet;
	if (!fabric || rmx_fabric_enter(fabric, "wait")) {
		ret = rmx_await(&wait, until, &pace);
	} else {
		ret = rmx_wait_serving(fabric, mpi_request_step, &pace, until,
				       &pace);
		rmx_fabric_leave(fabric);
	}
	*quiet = pace.quiet;
	rmx_now_out(0, ret, true);
	return ret;
}
