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
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* One segment of a peer, mapped here for as long as this process lives. */
struct rmx_mapping {
	uint64_t inode, size;
	char *base;
	struct rmx_mapping *next;
};

static int near_map_segment(struct rmaext_near *near,
			    const struct rmaext_block *block, char **base_p)
{
	struct rmx_segment_tail *tail;
	struct stat status;
	char path[64], *base;
	int fd, ret = 0;

	if (block->size < RMX_TAIL || block->size % rmx_page())
		return -EPROTO;
	snprintf(path, sizeof(path), "/proc/%d/fd/%lld", (int)near->pid,
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
	if (memcmp(tail->nonce, near->nonce, sizeof(near->nonce))) {
		munmap(base, block->size);
		return -ESTALE;
	}
	madvise(base, block->size, MADV_HUGEPAGE);
	*base_p = base;
	return 0;
}

/* Maps a segment of the peer on first use; the caller holds near->lock. */
static int near_segment(struct rmaext_near *near,
			const struct rmaext_block *block, char **base_p)
{
	struct rmx_mapping *m;
	char *base = NULL;
	int ret;

	for (m = near->mappings; m; m = m->next)
		if (m->inode == block->inode) {
			if (m->size != block->size)
				return -EPROTO;
			*base_p = m->base;
			return 0;
		}
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	ret = near_map_segment(near, block, &base);
	if (ret) {
		free(m);
		return ret;
	}
	*m = (struct rmx_mapping){block->inode, block->size, base,
				  near->mappings};
	near->mappings = m;
	*base_p = base;
	return 0;
}

int rmaext_near_map(rmaext_near *near, const struct rmaext_block *block,
		    uint64_t len, void **addr_p)
{
	char *base = NULL;
	int ret = -EPROTO;

	if (block->size >= RMX_TAIL &&
	    block->offset <= block->size - RMX_TAIL &&
	    len <= block->size - RMX_TAIL - block->offset) {
		pthread_mutex_lock(&near->lock);
		ret = near_segment(near, block, &base);
		pthread_mutex_unlock(&near->lock);
	}
	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "mmap",
				"cannot map memory of process %d: %s",
				(int)near->pid, strerror(-ret));
	*addr_p = base + block->offset;
	return 0;
}

/* Returns 0, the errno of a read that failed, or ESTALE for another nonce. */
static int near_read_nonce(const struct rmaext_near *near)
{
	uint8_t seen[RMX_TOKEN] = {0};
	struct iovec local = {seen, sizeof(seen)};
	struct iovec remote = {(void *)(uintptr_t)near->address, sizeof(seen)};

	if (process_vm_readv(near->pid, &local, 1, &remote, 1, 0) < 0)
		return errno;
	return memcmp(seen, near->nonce, sizeof(seen)) ? ESTALE : 0;
}

/* Both directions are tried: a filter of system calls may refuse only one. */
static bool near_can_copy(const struct rmaext_near *near)
{
	struct iovec none = {NULL, 0};

	return !near_read_nonce(near) &&
	       process_vm_writev(near->pid, &none, 1, &none, 1, 0) == 0;
}

/*
 * Has that process ended (ESRCH), or does it run another program by now, which
 * has something else at that address (ESTALE) or nothing (EFAULT)? A call that
 * fails for another reason says nothing: the kernel may not allow it any more,
 * as when the peer has asked not to be traced.
 */
static bool near_is_another(const struct rmaext_near *near)
{
	const int code = near_read_nonce(near);

	return code == ESRCH || code == ESTALE || code == EFAULT;
}

int rmaext_near_open(const struct rmaext_process *process, int pidfd,
		     rmaext_near **near_p)
{
	struct rmaext_near *near = calloc(1, sizeof(*near));
	char *base = NULL;

	if (!near)
		return rmx_no_memory("a process of this node");
	near->pid = (pid_t)process->pid;
	near->address = process->address;
	near->pidfd = pidfd;
	memcpy(near->nonce, process->nonce, sizeof(near->nonce));
	pthread_mutex_init(&near->lock, NULL);
	if (!near_segment(near, &process->first, &base)) {
		near->reach |= RMAEXT_CAN_MAP;
		near->tail =
			(struct rmx_segment_tail *)(base + process->first.size -
						    RMX_TAIL);
	}
	if (near_can_copy(near))
		near->reach |= RMAEXT_CAN_COPY;
	*near_p = near;
	return 0;
}

int rmaext_near_reach(const rmaext_near *near)
{
	return near->reach;
}

int rmaext_near_visible(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const size_t length = strlen(name);
	int fd, ret;

	if (length >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	/* an abstract name begins with a zero, and ends with its length */
	memcpy(address.sun_path + 1, name, length);
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	ret = !connect(fd, (const struct sockaddr *)&address,
		       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
				   length));
	close(fd);
	return ret;
}

bool rmx_near_gone(struct rmaext_near *near)
{
	struct pollfd fd = {.fd = near->pidfd, .events = POLLIN};

	if (near->tail && atomic_load(&near->tail->left))
		return true;
	/*
	 * The mark of tail->life is no proof: the thread that held it may have
	 * ended before its process. Nor are other events of the descriptor: the
	 * program may have closed it.
	 */
	if (!near->gone &&
	    ((poll(&fd, 1, 0) > 0 && fd.revents & POLLIN) ||
	     ((near->reach & RMAEXT_CAN_COPY) && near_is_another(near))))
		near->gone = true;
	return near->gone;
}

typedef ssize_t (*copy_fn)(pid_t, const struct iovec *, unsigned long,
			   const struct iovec *, unsigned long, unsigned long);

static int copy_refused(const struct rmaext_near *near, int64_t rank,
			const char *call, int code)
{
	return rmx_fail(code == ESRCH ? -FI_ENOTCONN : -code, rank, call,
			"cannot reach memory of process %d: %s", (int)near->pid,
			strerror(code));
}

/* A call copies 2 GiB at most, and may stop early at a signal. */
static int near_copy(copy_fn fn, const char *call, struct rmaext_near *near,
		     int64_t rank, uint64_t address, void *buf, uint64_t len)
{
	uint64_t done = 0;

	while (done < len) {
		struct iovec local = {(char *)buf + done, len - done};
		struct iovec remote = {(void *)(uintptr_t)(address + done),
				       len - done};
		ssize_t n = fn(near->pid, &local, 1, &remote, 1, 0);

		if (n <= 0)
			return copy_refused(near, rank, call, n ? errno : EIO);
		done += (uint64_t)n;
	}
	return 0;
}

int rmx_cma_write(struct rmaext_near *near, int64_t rank, uint64_t address,
		  const void *buf, uint64_t len)
{
	return near_copy(process_vm_writev, "process_vm_writev", near, rank,
			 address, (void *)(uintptr_t)buf, len);
}

int rmx_cma_read(struct rmaext_near *near, int64_t rank, uint64_t address,
		 void *buf, uint64_t len)
{
	return near_copy(process_vm_readv, "process_vm_readv", near, rank,
			 address, buf, len);
}

/* A call that stops early, at a signal or a bad address, is continued. */
int rmx_cma_pieces(struct rmaext_near *near, int64_t rank, bool write,
		   struct iovec *pieces, size_t n, void *buf, size_t len)
{
	const copy_fn fn = write ? process_vm_writev : process_vm_readv;
	struct iovec local = {buf, len};

	while (local.iov_len) {
		ssize_t done = fn(near->pid, &local, 1, pieces, n, 0);
		size_t left = done > 0 ? (size_t)done : 0;

		if (done <= 0)
			return copy_refused(near, rank,
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
