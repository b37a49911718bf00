/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file of the record. It is an anonymous file, sealed so that no reader is
 * killed by SIGBUS; its pages come on first touch. Tools find it among the
 * descriptors of the process, by its name there.
 */
#define _GNU_SOURCE
#include "record/record.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#define PAGE ((uint64_t)4096)

_Static_assert(sizeof(struct rmaext_record_header) <= PAGE, "has a page");
_Static_assert(sizeof(struct rmaext_record_event) == 64, "as files have it");

struct rmx_record rmx_record = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.fd = -1,
};

static uint64_t place_after(uint64_t *at, uint64_t bytes)
{
	const uint64_t place = *at;

	*at = (place + bytes + PAGE - 1) / PAGE * PAGE;
	return place;
}

/* Sets the places of the tables and returns the bytes of the file. */
static uint64_t header_lay_out(struct rmaext_record_header *h)
{
	uint64_t at = PAGE;

	h->threads = place_after(&at, RMAEXT_RECORD_THREADS *
					      sizeof(*rmx_record.threads));
	h->windows = place_after(&at, RMAEXT_RECORD_WINDOWS *
					      sizeof(*rmx_record.windows));
	h->comms = place_after(&at,
			       RMAEXT_RECORD_COMMS * sizeof(*rmx_record.comms));
	h->locks = place_after(&at,
			       RMAEXT_RECORD_LOCKS * sizeof(*rmx_record.locks));
	h->sent =
		place_after(&at, RMAEXT_RECORD_SENT * sizeof(*rmx_record.sent));
	h->sites = place_after(&at,
			       RMAEXT_RECORD_SITES * sizeof(*rmx_record.sites));
	h->events = place_after(&at, RMAEXT_RECORD_EVENTS *
					     sizeof(*rmx_record.events));
	h->counters = place_after(&at, RMX_COUNTERS);
	return at;
}

static int file_map(uint64_t bytes, int *fd_p, void **at_p)
{
	int fd = memfd_create("rmaext-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int ret = 0;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		ret = -errno;
	if (!ret) {
		*at_p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			     fd, 0);
		if (*at_p == MAP_FAILED)
			ret = -errno;
	}
	if (ret)
		close(fd);
	else
		*fd_p = fd;
	return ret;
}

/*
 * In a forked child. The pages become the child's own: what it may still write
 * is not its parent's record any more.
 */
static void record_forked(void)
{
	struct rmaext_record_header *h = rmx_record.header;

	if (!h)
		return;
	rmx_record.header = NULL;
	rmx_record.traced = false;
	pthread_mutex_init(&rmx_record.lock, NULL);
	mmap(h, h->bytes, PROT_READ | PROT_WRITE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	close(rmx_record.fd);
	rmx_record.fd = -1;
}

static void fork_watch(void)
{
	pthread_atfork(NULL, NULL, record_forked);
}

int rmaext_record_open(const struct rmaext_record_header *facts)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct rmaext_record_header h = *facts;
	char *base;
	void *at = NULL;
	int ret;

	h.layout = RMAEXT_RECORD_LAYOUT;
	h.header_bytes = sizeof(h);
	h.bytes = header_lay_out(&h);
	h.state = RMAEXT_RUNS;
	ret = file_map(h.bytes, &rmx_record.fd, &at);
	if (ret)
		return ret;
	base = at;
	rmx_record.threads = (void *)(base + h.threads);
	rmx_record.windows = (void *)(base + h.windows);
	rmx_record.comms = (void *)(base + h.comms);
	rmx_record.locks = (void *)(base + h.locks);
	rmx_record.sent = (void *)(base + h.sent);
	rmx_record.sites = (void *)(base + h.sites);
	rmx_record.events = (void *)(base + h.events);
	rmx_record.header = at;
	memcpy(at, &h, sizeof(h));
	/* last: a reader that finds it finds all of the header */
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(rmx_record.header->magic, "rmaextR", 8);
	pthread_once(&once, fork_watch);
	return 0;
}

struct rmaext_record_header *rmaext_record_own(void)
{
	return rmx_record.header;
}
