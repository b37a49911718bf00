/* SPDX-License-Identifier: BSD-3-Clause */
/* Processes on the same node. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sys/uio.h>

typedef ssize_t (*copy_fn)(pid_t, const struct iovec *, unsigned long,
			   const struct iovec *, unsigned long, unsigned long);

static int refused(struct rmx_target *t, int64_t rank, const char *call,
		   int code)
{
	return rmx_fail(code == ESRCH ? -FI_ENOTCONN : -code, rank, call,
			"process %d: %s", (int)t->near->pid,
			code == ESRCH ? "gone" : "refused");
}

/* The kernel copies 2 GiB at most in one call, and may stop at a signal. */
static int copy(copy_fn fn, const char *call, struct rmx_target *t,
		int64_t rank, uint64_t offset, void *buf, uint64_t len)
{
	uint64_t done = 0;

	while (done < len) {
		struct iovec local = {(char *)buf + done, len - done};
		struct iovec remote = {
			(void *)(uintptr_t)(t->address + offset + done),
			len - done};
		ssize_t n = fn(t->near->pid, &local, 1, &remote, 1, 0);

		if (n <= 0)
			return refused(t, rank, call, n ? errno : EIO);
		done += (uint64_t)n;
	}
	return 0;
}

int rmx_cma_write(struct rmx_target *t, int64_t rank, uint64_t offset,
		  const void *buf, uint64_t len)
{
	return copy(process_vm_writev, "process_vm_writev", t, rank, offset,
		    (void *)(uintptr_t)buf, len);
}

int rmx_cma_read(struct rmx_target *t, int64_t rank, uint64_t offset, void *buf,
		 uint64_t len)
{
	return copy(process_vm_readv, "process_vm_readv", t, rank, offset, buf,
		    len);
}

/* A copy that was cut short, by a signal or a bad address, is continued. */
int rmx_cma_pieces(struct rmx_target *t, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len)
{
	const copy_fn fn = write ? process_vm_writev : process_vm_readv;
	struct iovec local = {buf, len};

	while (local.iov_len) {
		ssize_t done = fn(t->near->pid, &local, 1, pieces, n, 0);
		size_t left = done > 0 ? (size_t)done : 0;

		if (done <= 0)
			return refused(t, rank,
				       write ? "process_vm_writev"
					     : "process_vm_readv",
				       done ? errno : EIO);
		local.iov_base = (char *)local.iov_base + left;
		local.iov_len -= left;
		for (; left && left >= pieces->iov_len; pieces++, n--)
			left -= pieces->iov_len;
		if (left) {
			pieces->iov_base = (char *)pieces->iov_base + left;
			pieces->iov_len -= left;
		}
	}
	return 0;
}
