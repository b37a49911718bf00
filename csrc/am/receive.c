/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The receives that are posted for messages, and their buffers.
 *
 * Every buffer has room for the longest message, as nobody knows what comes
 * next. Its pages come as they are used; only a few buffers keep many of them.
 *
 * No receive ever waits for a peer: a reply that the provider does not take is
 * queued and tried again, and a peer can have no more of them than it has
 * requests on their way.
 */
#define _GNU_SOURCE
#include "am/am.h"

#include <sys/mman.h>

#define RMX_RECEIVES 4u		    /* posted at all times */
#define RMX_RECEIVES_MOST 512u	    /* over tcp */
#define RMX_THIN ((size_t)64 << 10) /* bytes of a buffer that stay */
#define RMX_FAT 32u		    /* buffers that keep more */

/* A buffer that was never used. NULL: there is none, or no memory for it. */
static struct rmx_receive_buffer *receive_buffer_new(struct rmaext_fabric *f)
{
	struct rmx_am *am = f->am;
	struct rmx_receive_buffer *message;
	void *data;

	if (am->receives_made == RMX_RECEIVE_BUFFERS)
		return NULL;
	data = mmap(NULL, RMX_RECEIVE_BYTES, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (data == MAP_FAILED)
		return NULL;
	madvise(data, RMX_RECEIVE_BYTES, MADV_NOHUGEPAGE);
	message = &am->receive_buffers[am->receives_made];
	if (f->limits.registers &&
	    rmx_region_local(f, data, RMX_RECEIVE_BYTES,
			     RMX_SOURCE | RMX_RESULT, &message->region)) {
		munmap(data, RMX_RECEIVE_BYTES);
		return NULL;
	}
	am->receives_made++;
	message->data = data;
	return message;
}

static struct rmx_receive_buffer *receive_buffer_take(struct rmaext_fabric *f)
{
	struct rmx_receive_buffer *message = receive_buffer_new(f);
	struct rmx_am *am = f->am;

	if (message || !am->failed)
		return message;
	message = am->failed;
	am->failed = message->next;
	if (!am->failed)
		am->failed_end = &am->failed;
	return message;
}

/*
 * Nothing in the buffer is needed any more. Pages that are registered cannot be
 * given back.
 */
static void receive_buffer_clear(struct rmx_am *am,
				 struct rmx_receive_buffer *message)
{
	const size_t end = message->reply + message->reply_len;

	if (!message->region.of_transport && !message->fat &&
	    (message->len > RMX_THIN || end > RMX_THIN)) {
		message->fat = true;
		am->fat++;
	}
	if (message->fat && am->fat > RMX_FAT) {
		/* pages of more than 64 KiB would stay */
		madvise(message->data + RMX_THIN, RMX_RECEIVE_BYTES - RMX_THIN,
			MADV_DONTNEED);
		message->fat = false;
		am->fat--;
	}
	message->len = message->reply = message->reply_len = 0;
}

/*
 * A receive that failed may fail again. ofi_rxm fetches a long message by one
 * read for each piece of memory that it was sent from, and when the sender
 * dies, each read is an error of the receive. A buffer that was posted anew by
 * then would be posted twice, for two messages at a time. So it is the last to
 * be used again.
 */
void rmx_receive_failed(struct rmx_am *am, struct rmx_receive_buffer *message)
{
	if (!message->region.of_transport)
		madvise(message->data, RMX_RECEIVE_BYTES, MADV_DONTNEED);
	am->fat -= message->fat;
	message->fat = false;
	message->state = RMX_FREE;
	message->next = NULL;
	*am->failed_end = message;
	am->failed_end = &message->next;
	am->incoming--;
}

void rmx_receive_enqueue(struct rmx_am *am, struct rmx_receive_buffer *message,
			 enum rmx_state state)
{
	message->state = (uint8_t)state;
	message->next = NULL;
	*am->queue_end = message;
	am->queue_end = &message->next;
	am->queued++;
}

int rmx_receive_post(struct rmaext_fabric *f,
		     struct rmx_receive_buffer *message)
{
	struct rmx_am *am = f->am;
	int ret;

	if (am->mute) { /* no more will come */
		message->state = RMX_FREE;
		return 0;
	}
	receive_buffer_clear(am, message);
	message->state = RMX_RECEIVING;
	am->receiving++;
	ret = f->transport->receive(f, message->data, RMX_LONGEST,
				    message->region.desc, &message->call);
	if (!ret)
		return 0;
	if (ret == -FI_EAGAIN) { /* it counts as posted */
		rmx_receive_enqueue(am, message, RMX_RECEIVING);
		return 0;
	}
	am->receiving--;
	rmx_receive_failed(am, message);
	return ret;
}

/* Returns the messages that may be on their way here, and replies to them. */
static unsigned int messages_most(const struct rmaext_fabric *f)
{
	return 2 * RMX_CREDITS * (rmx_peers_expected(f) + 1);
}

/*
 * Returns how many receives are to be posted. Over tcp there is one for each
 * message that may be on its way: if a message of more than 16 KiB came that
 * none is posted for, and its sender died, ofi_rxm would later fetch it by a
 * connection that it has freed (1.17 to 2.5.1).
 */
static unsigned int receives_wanted(const struct rmaext_fabric *f)
{
	const unsigned int all = messages_most(f);

	if (!f->limits.tcp)
		return RMX_RECEIVES;
	return all < RMX_RECEIVES_MOST ? all : RMX_RECEIVES_MOST;
}

/*
 * Some receives are posted from the start, more when replies to a slow peer
 * keep buffers. A receive that fails may have met a message of a peer that is
 * gone, so the next one is tried; there are not many such messages.
 */
int rmx_receive_more(struct rmaext_fabric *f)
{
	const unsigned int most = messages_most(f);
	struct rmx_am *am = f->am;
	struct rmx_receive_buffer *message;
	const unsigned int wanted = receives_wanted(f);
	unsigned int tries = most;
	int ret = 0;

	while (!am->mute && tries-- && am->receiving < wanted &&
	       am->incoming < most) {
		message = receive_buffer_take(f);
		if (!message)
			break;
		am->incoming++;
		ret = rmx_receive_post(f, message);
	}
	return am->receiving ? 0 : ret;
}

/*
 * If ofi_rxm cannot even begin to fetch a long message, as the sender is gone
 * by then, it reports an error that names its own buffer in place of the
 * receive (rxm_rndv_read, 1.17 to 2.5.1).
 */
void rmx_receive_lost(struct rmaext_fabric *f)
{
	f->am->receiving -= f->am->receiving > 0;
	f->am->incoming -= f->am->incoming > 0;
	rmx_receive_more(f);
}
