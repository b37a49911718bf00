/* SPDX-License-Identifier: BSD-3-Clause */
/* Processes on the same node. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sys/uio.h>

typedef ssize_t (*copy_fn)(pid_t, const struct iovec *, unsigned long,
			   const struct iovec *, unsigned long, unsigned long);

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

		if (n <= 0) {
			int code = n ? errno : EIO;

			return rmx_fail(code == ESRCH ? -FI_ENOTCONN : -code,
					rank, call, "process %d: %s",
					(int)t->near->pid,
					code == ESRCH ? "gone" : "refused");
		}
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
