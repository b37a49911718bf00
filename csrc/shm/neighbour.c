/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Processes on the same node: whether a process is one, whether it lives,
 * mapping its memory, and copying by system call.
 *
 * A pid in a record proves nothing. In containers each rank can be pid 1, and
 * process_vm_writev() then writes into the caller and reports success. So a
 * route is used only after the 128 random bits of the peer's nonce were read
 * through it.
 */
#define _GNU_SOURCE
#include "shm/neighbour.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* One segment of a peer, mapped here for as long as this process lives. */
struct rmx_mapping {
	uint64_t inode, size;
	char *base;
	struct rmx_mapping *next;
};

#define REFUSED                                                             \
	": it is not dumpable any more, or has another user: make its "     \
	"windows before prctl(PR_SET_DUMPABLE) or setuid, or give the job " \
	"CAP_SYS_PTRACE"

/* The kernel does not allow it, or no such system call. */
static bool is_refusal(int code)
{
	return code == EPERM || code == EACCES || code == ENOSYS;
}

static int neighbour_map_segment(struct rmaext_neighbour *neighbour,
				 const struct rmaext_block *block,
				 char **base_p)
{
	struct rmx_segment_tail *tail;
	struct stat status;
	char path[64], *base;
	int fd, ret = 0;

	if (block->size < RMX_TAIL || block->size % rmx_page())
		return -EPROTO;
	snprintf(path, sizeof(path), "/proc/%d/fd/%lld", (int)neighbour->pid,
		 (long long)block->fd);
	/* stat comes first: opening some other file might have effects */
	if (stat(path, &status))
		return -errno;
	if (!S_ISREG(status.st_mode) || status.st_ino != block->inode ||
	    (uint64_t)status.st_size != block->size)
		return -ESTALE;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	ret = fcntl(fd, F_GET_SEALS);
	if (ret < 0 || !(ret & F_SEAL_SHRINK)) {
		close(fd);
		return -ESTALE;
	}
	base = mmap(NULL, block->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		    0);
	ret = base == MAP_FAILED ? -errno : 0;
	close(fd);
	if (ret)
		return ret;
	tail = (struct rmx_segment_tail *)(base + block->size - RMX_TAIL);
	if (memcmp(tail->nonce, neighbour->nonce, sizeof(neighbour->nonce))) {
		munmap(base, block->size);
		return -ESTALE;
	}
	madvise(base, block->size, MADV_HUGEPAGE);
	*base_p = base;
	return 0;
}

/* Maps a segment of the peer on first use; the caller holds neighbour->lock. */
static int neighbour_segment(struct rmaext_neighbour *neighbour,
			     const struct rmaext_block *block, char **base_p)
{
	struct rmx_mapping *m;
	char *base = NULL;
	int ret;

	for (m = neighbour->mappings; m; m = m->next)
		if (m->inode == block->inode) {
			if (m->size != block->size)
				return -EPROTO;
			*base_p = m->base;
			return 0;
		}
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	ret = neighbour_map_segment(neighbour, block, &base);
	if (ret) {
		free(m);
		return ret;
	}
	*m = (struct rmx_mapping){block->inode, block->size, base,
				  neighbour->mappings};
	neighbour->mappings = m;
	*base_p = base;
	return 0;
}

int rmaext_neighbour_map(rmaext_neighbour *neighbour,
			 const struct rmaext_block *block, uint64_t len,
			 void **addr_p)
{
	char *base = NULL;
	int ret = -EPROTO;

	if (block->size >= RMX_TAIL &&
	    block->offset <= block->size - RMX_TAIL &&
	    len <= block->size - RMX_TAIL - block->offset) {
		pthread_mutex_lock(&neighbour->lock);
		ret = neighbour_segment(neighbour, block, &base);
		pthread_mutex_unlock(&neighbour->lock);
	}
	if (ret)
		return rmx_fail(is_refusal(-ret) ? -EREMOTE : ret, RMX_NO_RANK,
				"mmap", "cannot map memory of process %d: %s%s",
				(int)neighbour->pid, strerror(-ret),
				is_refusal(-ret) ? REFUSED : "");
	*addr_p = base + block->offset;
	return 0;
}

/* Returns 0, the errno of a read that failed, or ESTALE for another nonce. */
static int neighbour_read_nonce(const struct rmaext_neighbour *neighbour)
{
	uint8_t seen[RMX_TOKEN] = {0};
	struct iovec local = {seen, sizeof(seen)};
	struct iovec remote = {(void *)(uintptr_t)neighbour->address,
			       sizeof(seen)};

	if (process_vm_readv(neighbour->pid, &local, 1, &remote, 1, 0) < 0)
		return errno;
	return memcmp(seen, neighbour->nonce, sizeof(seen)) ? ESTALE : 0;
}

/* Both directions are tried: a filter of system calls may refuse only one. */
static bool neighbour_can_copy(const struct rmaext_neighbour *neighbour)
{
	struct iovec none = {NULL, 0};

	return !neighbour_read_nonce(neighbour) &&
	       process_vm_writev(neighbour->pid, &none, 1, &none, 1, 0) == 0;
}

/*
 * Has that process ended (ESRCH), or does it run another program by now, which
 * has something else at that address (ESTALE) or nothing (EFAULT)? A call that
 * fails for another reason says nothing: the kernel may not allow it any more,
 * as when the peer has asked not to be traced.
 */
static bool neighbour_is_another(const struct rmaext_neighbour *neighbour)
{
	const int code = neighbour_read_nonce(neighbour);

	return code == ESRCH || code == ESTALE || code == EFAULT;
}

bool rmx_neighbour_copies(struct rmaext_neighbour *neighbour)
{
	if (!(neighbour->reach & RMAEXT_CAN_COPY))
		return false;
	if (is_refusal(neighbour_read_nonce(neighbour)))
		atomic_store(&neighbour->refuses, true);
	return !atomic_load(&neighbour->refuses);
}

int rmaext_neighbour_open(const struct rmaext_process *process, int pidfd,
			  rmaext_neighbour **neighbour_p)
{
	struct rmaext_neighbour *neighbour = calloc(1, sizeof(*neighbour));
	char *base = NULL;

	if (!neighbour)
		return rmx_no_memory("a process of this node");
	neighbour->pid = (pid_t)process->pid;
	neighbour->address = process->address;
	neighbour->pidfd = pidfd;
	memcpy(neighbour->nonce, process->nonce, sizeof(neighbour->nonce));
	pthread_mutex_init(&neighbour->lock, NULL);
	if (!neighbour_segment(neighbour, &process->first, &base)) {
		neighbour->reach |= RMAEXT_CAN_MAP;
		neighbour->tail =
			(struct rmx_segment_tail *)(base + process->first.size -
						    RMX_TAIL);
	}
	if (neighbour_can_copy(neighbour))
		neighbour->reach |= RMAEXT_CAN_COPY;
	*neighbour_p = neighbour;
	return 0;
}

int rmaext_neighbour_reach(const rmaext_neighbour *neighbour)
{
	return neighbour->reach;
}

int rmaext_neighbour_left(const rmaext_neighbour *neighbour)
{
	return neighbour->tail && atomic_load(&neighbour->tail->left);
}

bool rmx_neighbour_gone(struct rmaext_neighbour *neighbour)
{
	struct pollfd fd = {.fd = neighbour->pidfd, .events = POLLIN};

	if (neighbour->tail && atomic_load(&neighbour->tail->left))
		return true;
	/*
	 * The mark of tail->life is no proof: the thread that held it may have
	 * ended before its process. Nor are other events of the descriptor: the
	 * program may have closed it.
	 */
	if (!neighbour->gone && ((poll(&fd, 1, 0) > 0 && fd.revents & POLLIN) ||
				 ((neighbour->reach & RMAEXT_CAN_COPY) &&
				  neighbour_is_another(neighbour))))
		neighbour->gone = true;
	return neighbour->gone;
}

typedef ssize_t (*copy_fn)(pid_t, const struct iovec *, unsigned long,
			   const struct iovec *, unsigned long, unsigned long);

static int copy_failed(struct rmaext_neighbour *neighbour, int64_t rank,
		       const char *call, int code)
{
	if (is_refusal(code))
		atomic_store(&neighbour->refuses, true);
	return rmx_fail(code == ESRCH	   ? -FI_ENOTCONN
			: is_refusal(code) ? -EREMOTE
					   : -code,
			rank, call, "cannot reach memory of process %d: %s%s",
			(int)neighbour->pid, strerror(code),
			is_refusal(code) ? REFUSED : "");
}

/* A call copies 2 GiB at most, and may stop early at a signal. */
static int neighbour_copy(copy_fn fn, const char *call,
			  struct rmaext_neighbour *neighbour, int64_t rank,
			  uint64_t address, void *buf, uint64_t len)
{
	uint64_t done = 0;

	while (done < len) {
		struct iovec local = {(char *)buf + done, len - done};
		struct iovec remote = {(void *)(uintptr_t)(address + done),
				       len - done};
		ssize_t n = fn(neighbour->pid, &local, 1, &remote, 1, 0);

		if (n <= 0)
			return copy_failed(neighbour, rank, call,
					   n ? errno : EIO);
		done += (uint64_t)n;
	}
	return 0;
}

int rmx_cma_write(struct rmaext_neighbour *neighbour, int64_t rank,
		  uint64_t address, const void *buf, uint64_t len)
{
	return neighbour_copy(process_vm_writev, "process_vm_writev", neighbour,
			      rank, address, (void *)(uintptr_t)buf, len);
}

int rmx_cma_read(struct rmaext_neighbour *neighbour, int64_t rank,
		 uint64_t address, void *buf, uint64_t len)
{
	return neighbour_copy(process_vm_readv, "process_vm_readv", neighbour,
			      rank, address, buf, len);
}

/* A call that stops early, at a signal or a bad address, is continued. */
int rmx_cma_pieces(struct rmaext_neighbour *neighbour, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len)
{
	const copy_fn fn = write ? process_vm_writev : process_vm_readv;
	struct iovec local = {buf, len};

	while (local.iov_len) {
		ssize_t done = fn(neighbour->pid, &local, 1, pieces, n, 0);
		size_t left = done > 0 ? (size_t)done : 0;

		if (done <= 0)
			return copy_failed(neighbour, rank,
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
