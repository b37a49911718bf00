/* SPDX-License-Identifier: BSD-3-Clause */
/* Windows are created and closed by their owner. */
#include "api/api.h"
#include "am/wakeups.h"
#include "exec/overlap.h"

int rmaext_window_create(rmaext_fabric *f, const struct rmaext_targets *targets,
			 int64_t timeout, rmaext_window **window_p)
{
	int ret = f ? rmx_fabric_enter(f, "rmaext_window_create") : 0;

	if (ret)
		return ret;
	ret = rmx_window_new(f, targets, timeout, window_p);
	if (!ret)
		rmx_overlap_begin(*window_p);
	if (!ret && f)
		rmx_serve_window(f, *window_p);
	if (f)
		rmx_fabric_leave(f);
	return ret;
}

void rmaext_window_open(rmaext_window *w)
{
	rmx_overlap_open(w);
}

void rmaext_window_controls(rmaext_window *w, uint64_t blocks)
{
	atomic_store(&w->control_end, blocks * rmaext_block_bytes(w->count));
}

void rmaext_lock_tell(rmaext_window *w, void *at, uint64_t block, int exclusive)
{
	const unsigned int changes =
		RMX_LOCK_TURN | (exclusive ? RMX_LOCK_LEFT : 0);

	if (!rmx_rundown_try(&w->rundown))
		return;
	rmx_wakeups_send(w, at, block, changes);
	rmx_rundown_leave(&w->rundown);
}

int rmaext_attach(rmaext_window *w, const void *addr, uint64_t len)
{
	int ret = rmx_attached_change(w, true, addr, len);

	if (!ret)
		rmx_overlap_attached(w, addr, len);
	return ret;
}

int rmaext_detach(rmaext_window *w, const void *addr, uint64_t len)
{
	return rmx_attached_change(w, false, addr, len);
}

/* Copies that no flush has waited for use no memory of the caller. */
static void copies_forget(rmaext_window *w)
{
	struct rmaext_fabric *f = w->fabric; /* closing it sets this to NULL */

	if (f && rmaext_window_pending(w) &&
	    !rmx_fabric_enter(f, "rmaext_window_shut")) {
		f->hooks->forget(w, -1);
		rmx_fabric_leave(f);
	}
}

int rmaext_window_shut(rmaext_window *w)
{
	int ret = rmx_rundown_shut(&w->rundown);

	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "rmaext_window_shut",
				"%d calls of other threads are in flight: wait "
				"for them, then close again",
				atomic_load(&w->rundown.users));
	copies_forget(w);
	rmx_imports_drop(w);
	return 0;
}

int rmaext_window_close(rmaext_window *w)
{
	struct rmaext_fabric *f = w->fabric;
	int ret = rmaext_window_shut(w);
	int64_t pending;

	if (w->root != w)
		return ret; /* a view has nothing else to close */
	rmx_overlap_end(w);
	/* no client comes for it any more, even if one is still served */
	if (!ret && f && w->invites &&
	    !atomic_exchange(&w->served.closed, true))
		rmx_admission_clients(&f->admission, -1);
	if (!ret)
		ret = rmx_rundown_shut(&w->served);
	if (!ret) /* who serves may have told waiters of a lock */
		copies_forget(w);
	pending = rmaext_window_pending(w);
	if (ret || pending)
		return rmx_fail(-FI_EBUSY, RMX_NO_RANK, "rmaext_window_close",
				"%lld transfers and %d calls are in flight: "
				"flush, then close again",
				(long long)pending,
				atomic_load(&w->rundown.users));
	if (f && !rmx_fabric_enter(f, "rmaext_window_close")) {
		rmx_key_unmap_all(w);
		rmx_serve_no_more(w);
		w->fabric = NULL;
		rmx_fabric_leave(f);
	} /* else rmaext_fabric_close() does that */
	rmx_record_close(&w->tally);
	return 0;
}

void rmaext_window_free(rmaext_window *w)
{
	/* of a view only the address of its root is used: it may be freed */
	const bool view = w->root != w;

	if ((w->fabric && !view) || w->rundown.users || w->served.users)
		return; /* still in use: a leak is better than corruption */
	rmx_overlap_end(w);
	rmx_window_free(w);
}
