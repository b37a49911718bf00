/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The receives that are posted for messages, and the landings that these come
 * in.
 *
 * Every receive has room for the longest message, in pages that come as they
 * are used: what is received next is not known before. A few keep them.
 *
 * No receive ever waits for a peer: a reply that the provider does not take is
 * queued and tried again, and a peer can have no more of them than it has
 * requests on their way.
 */
#define _GNU_SOURCE
#include "am/wire.h"

#include <sys/mman.h>

#define RMX_RECEIVES 4u		    /* posted at all times */
#define RMX_THIN ((size_t)64 << 10) /* bytes of a landing that stay */
#define RMX_FAT 8u		    /* landings that keep more */

/* One that was never used. NULL: no more, or no memory for it */
static struct rmx_landing *landing_new(struct rmaext_fabric *f)
{
	struct rmx_executor *ex = f->executor;
	struct rmx_landing *landing;
	void *data;

	if (ex->landed == RMX_LANDINGS)
		return NULL;
	data = mmap(NULL, RMX_LANDING, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (data == MAP_FAILED)
		return NULL;
	madvise(data, RMX_LANDING, MADV_NOHUGEPAGE);
	landing = &ex->landings[ex->landed];
	if (f->origins.demanded &&
	    rmx_region_local(f, data, RMX_LANDING, FI_RECV | FI_SEND,
			     &landing->region)) {
		munmap(data, RMX_LANDING);
		return NULL;
	}
	ex->landed++;
	landing->data = data;
	return landing;
}

static struct rmx_landing *landing_take(struct rmaext_fabric *f)
{
	struct rmx_landing *landing = landing_new(f);
	struct rmx_executor *ex = f->executor;

	if (landing || !ex->failed)
		return landing;
	landing = ex->failed;
	ex->failed = landing->next;
	if (!ex->failed)
		ex->failed_end = &ex->failed;
	return landing;
}

/* Nothing in it is needed any more. The pages of a region are not ours to give.
 */
static void landing_clear(struct rmx_executor *ex, struct rmx_landing *landing)
{
	const size_t end = landing->reply + landing->reply_len;

	if (!landing->region.mr && !landing->fat &&
	    (landing->len > RMX_THIN || end > RMX_THIN)) {
		landing->fat = true;
		ex->fat++;
	}
	if (landing->fat && ex->fat > RMX_FAT) {
		/* pages of 64 KiB at most; of larger ones, they stay */
		madvise(landing->data + RMX_THIN, RMX_LANDING - RMX_THIN,
			MADV_DONTNEED);
		landing->fat = false;
		ex->fat--;
	}
	landing->len = landing->reply = landing->reply_len = 0;
}

/*
 * A receive that failed may fail again: ofi_rxm fetches a long message by as
 * many reads as it was sent from pieces of memory, and when its sender dies
 * each of them is an error of the receive. Were the landing received into by
 * then, it would be once more, for two messages at a time. So it is the last
 * to be taken.
 */
void rmx_landing_fail(struct rmx_executor *ex, struct rmx_landing *landing)
{
	if (!landing->region.mr)
		madvise(landing->data, RMX_LANDING, MADV_DONTNEED);
	ex->fat -= landing->fat;
	landing->fat = false;
	landing->state = RMX_FREE;
	landing->next = NULL;
	*ex->failed_end = landing;
	ex->failed_end = &landing->next;
	ex->incoming--;
}

void rmx_landing_enqueue(struct rmx_executor *ex, struct rmx_landing *landing,
			 enum rmx_state state)
{
	landing->state = (uint8_t)state;
	landing->next = NULL;
	*ex->queue_end = landing;
	ex->queue_end = &landing->next;
	ex->queued++;
}

int rmx_landing_receive(struct rmaext_fabric *f, struct rmx_landing *landing)
{
	struct rmx_executor *ex = f->executor;
	int ret;

	if (ex->mute) { /* no more will come */
		landing->state = RMX_FREE;
		return 0;
	}
	landing_clear(ex, landing);
	landing->state = RMX_RECEIVING;
	ex->receiving++;
	ret = rmx_wire_receive(f, landing->data, RMX_LONGEST,
			       rmx_region_desc(&landing->region),
			       &landing->context);
	if (!ret)
		return 0;
	if (ret == -FI_EAGAIN) { /* as good as posted */
		rmx_landing_enqueue(ex, landing, RMX_RECEIVING);
		return 0;
	}
	ex->receiving--;
	rmx_landing_fail(ex, landing);
	return ret;
}

/*
 * Some receives are posted from the start, more when the replies to a peer that
 * is slow take them up. One that fails may have met a message of a peer that is
 * gone: of these there are not many.
 */
int rmx_receive_more(struct rmaext_fabric *f)
{
	const unsigned int most = 2 * RMX_CREDITS * (f->peer_count + 1);
	struct rmx_executor *ex = f->executor;
	struct rmx_landing *landing;
	unsigned int tries = most;
	int ret = 0;

	while (!ex->mute && tries-- && ex->receiving < RMX_RECEIVES &&
	       ex->incoming < most) {
		landing = landing_take(f);
		if (!landing)
			break;
		ex->incoming++;
		ret = rmx_landing_receive(f, landing);
	}
	return ex->receiving ? 0 : ret;
}
