/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A fabric is opened and closed here. The rooms below make up its parts: the
 * endpoint of a transport and its memory registrations (net/), the contexts of
 * operations (xfer/), messages (am/).
 */
#include "api/api.h"

#include <stdlib.h>
#include <unistd.h>

static struct rmaext_fabric *fabric_new(const struct rmx_library *library)
{
	struct rmaext_fabric *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->transfers = calloc(1, sizeof(*f->transfers));
	f->am = calloc(1, sizeof(*f->am));
	if (!f->transfers || !f->am) {
		free(f->transfers);
		free(f->am);
		free(f);
		return NULL;
	}
	f->transport = library->transport;
	f->hooks = &rmx_am_hooks;
	f->progress.cq_fd = f->progress.wake_fd = -1;
	pthread_mutex_init(&f->lock, NULL);
	pthread_mutex_init(&f->meetings.lock, NULL);
	pthread_mutex_init(&f->transfers->backlog.lock, NULL);
	pthread_mutex_init(&f->cache.lock, NULL);
	pthread_mutex_init(&f->cache.bounce_lock, NULL);
	return f;
}

static int fabric_start(struct rmaext_fabric *f,
			const struct rmaext_fabric_options *options)
{
	const char *call = NULL;
	int ret = f->transport->open(f, options, RMX_LEAST);

	if (ret)
		return ret; /* there is an error record already */
	call = "rmx_cache_start";
	ret = rmx_cache_start(f, options, RMX_BOUNCE_BYTES);
	if (!ret) {
		call = "rmx_transfers_start";
		ret = rmx_transfers_start(f);
	}
	if (!ret) {
		call = "rmx_am_start";
		ret = rmx_am_start(f);
	}
	if (!ret) {
		call = "rmx_progress_start";
		ret = rmx_progress_start(f, options->progress,
					 options->spin_ns);
	}
	return ret ? rmx_fail(ret, RMX_NO_RANK, call, "provider %s: %s",
			      options->provider, rmx_words(f, ret))
		   : 0;
}

int rmaext_fabric_open(rmaext_library *lib,
		       const struct rmaext_fabric_options *options,
		       rmaext_fabric **fabric_p)
{
	/* whatever its transport, it begins so */
	const struct rmx_library *library = (const void *)lib;
	struct rmx_signals *signals;
	struct rmaext_fabric *f;
	int ret;

	/* the threads that start below inherit its mask */
	signals = rmx_signals_hold();
	if (!signals)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "malloc", "signals");
	f = fabric_new(library);
	if (!f) {
		rmx_signals_give_back(signals, NULL);
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "fabric");
	}
	f->lib = lib;
	f->doorbell = rmx_arena_doorbell(options->arena);
	ret = fabric_start(f, options);
	if (ret)
		rmaext_fabric_close(&f);
	else
		*fabric_p = f;
	rmx_signals_give_back(signals, library->code);
	return ret;
}

/*
 * Refuses new calls on the fabric and its windows, and waits for those inside.
 * False: some do not leave.
 */
static bool fabric_shut(struct rmaext_fabric *f)
{
	if (rmx_rundown_shut(&f->rundown))
		return false;
	for (struct rmaext_window *w = f->windows; w; w = w->next)
		if (rmx_rundown_shut(&w->rundown) ||
		    rmx_rundown_shut(&w->served))
			return false;
	return true;
}

/*
 * The struct of a closed fabric, with those of its peers and memories, stays
 * until the process ends: another thread may be about to call with a pointer to
 * it, and must find that it is closed. It stays reachable, so that it is no
 * leak. A process has two fabrics at most.
 */
static void fabric_bury(struct rmaext_fabric *f)
{
	static _Atomic(struct rmaext_fabric *) graves;

	f->next = atomic_load(&graves);
	while (!atomic_compare_exchange_weak(&graves, &f->next, f))
		;
}

static void fabric_close_regions(struct rmaext_fabric *f, int *ret_p)
{
	rmx_memories_close(f, ret_p);
	rmx_region_closed(f, rmx_am_deregister(f), ret_p);
	rmx_region_closed(f, rmx_transfers_deregister(f), ret_p);
	rmx_region_closed(f, rmx_cache_close(f), ret_p);
}

/*
 * A region may be busy as long as the endpoint that it is bound to is
 * open. ofi_rxm never deregisters the memory of a receive that failed, which
 * keeps its domain and fabric busy: then these stay until the process ends.
 */
static void fabric_close_endpoint(struct rmaext_fabric *f, int *ret_p)
{
	int ignored = 0;

	if (f->limits.bound) {
		rmx_am_cancel(f);
		fabric_close_regions(f, &ignored);
	}
	f->transport->close(f, ret_p);
	fabric_close_regions(f, ret_p);
	f->transport->end(f, f->am->failed, ret_p);
}

static bool fabric_is_sending(const struct rmaext_fabric *f)
{
	return rmx_am_sends(f) || rmx_op_reads(f);
}

/*
 * Keys are unmapped and memory is deregistered while the endpoint still exists:
 * it refuses what would be delivered there. Then the endpoint, AV, CQ, domain
 * and fabric close. Operations in flight end with the endpoint.
 *
 * A provider may crash if an endpoint closes amid the answer to a read (tcp of
 * 1.17 frees it twice). Then the endpoint stays, and the memory that it writes
 * to. All stays as it is if a thread does not come back from the provider.
 */
int rmaext_fabric_close(rmaext_fabric **fabric)
{
	const struct rmaext_error shut = {
		.code = -FI_ESHUTDOWN,
		.call = "rmaext_fabric_close",
		.detail = "the endpoint was closed",
	};
	struct rmaext_fabric *f = *fabric;
	int ret = 0, ignored = 0;
	bool stays;

	if (!f)
		return 0;
	if (!fabric_shut(f))
		return rmx_fail(-FI_EBUSY, RMX_NO_RANK, "rmaext_fabric_close",
				"another thread does not leave a call: end "
				"what it does, then close again");
	*fabric = NULL;
	if (!rmx_progress_stop(f)) {
		fabric_bury(f);
		return RMAEXT_PENDING;
	}
	rmx_progress_settle(f, fabric_is_sending);
	stays = rmx_op_reads(f);
	rmx_am_mute(f);
	for (struct rmaext_window *w = f->windows; w; w = w->next)
		rmx_key_unmap_all(w);
	rmx_memories_close(f, &ignored);
	if (!stays)
		fabric_close_endpoint(f, &ret);

	rmx_am_stop(f, stays);
	rmx_backlog_push(f, &shut);
	rmx_op_shut_all(f, &shut);
	if (!stays)
		rmx_cache_free(f);
	for (struct rmaext_window *w; (w = f->windows);) {
		rmx_serve_no_more(w);
		w->fabric = NULL;
	}
	for (struct rmaext_peer *p = f->peers; p; p = p->next) {
		if (p->pidfd >= 0)
			close(p->pidfd);
		p->pidfd = -1;
		rmx_probe_end(&p->probe);
	}
	fabric_bury(f);
	return stays ? RMAEXT_PENDING : ret;
}

void rmaext_fabric_stats(rmaext_fabric *f, struct rmaext_stats *stats_p)
{
	memset(stats_p, 0, sizeof(*stats_p));
	if (rmx_fabric_enter(f, "rmaext_fabric_stats"))
		return;
	stats_p->completed = stats_p->posted = f->completed;
	stats_p->posted += rmx_contexts_in_flight(f);
	stats_p->failed = f->failed;
	stats_p->thread_wakeups = f->wakeups;
	stats_p->registrations = f->regions_opened;
	stats_p->deregistrations = f->regions_closed;
	stats_p->hits = f->cache.hits;
	stats_p->misses = f->cache.misses;
	stats_p->evictions = f->cache.evictions;
	stats_p->bounced = f->cache.bounced;
	stats_p->admitted = f->admission.admitted;
	stats_p->refused = f->admission.refused;
	rmx_fabric_leave(f);
}
