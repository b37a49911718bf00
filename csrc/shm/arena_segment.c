/* SPDX-License-Identifier: BSD-3-Clause */
/* The anonymous files that an arena's memory is cut from. */
#define _GNU_SOURCE
#include "shm/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

/*
 * The file is sealed: if it could shrink, a peer that uses it would be killed
 * by SIGBUS. Its pages are allocated on first touch, but huge pages at once,
 * while the caller can still be told that there are none.
 */
static int file_make(uint64_t size, bool huge, int *fd_p)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd, ret;

	fd = memfd_create("rmaext",
			  huge ? flags | MFD_HUGETLB | MFD_HUGE_2MB : flags);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) ||
	    (huge && fallocate(fd, 0, 0, (off_t)size)) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	*fd_p = fd;
	return 0;
}

/*
 * Peers tell segments apart by their inodes, but files of huge pages have inode
 * numbers of their own, which may be those of other segments.
 */
static bool inode_is_known(const struct rmaext_arena *a, uint64_t inode)
{
	const struct rmx_segment *s;

	for (s = a->segments; s; s = s->next)
		if (s->block.inode == inode)
			return true;
	for (s = a->placed; s; s = s->next)
		if (s->block.inode == inode)
			return true;
	return false;
}

int rmx_segment_make(struct rmaext_arena *a, uint64_t size, bool huge,
		     struct rmx_segment **segment_p)
{
	struct rmx_segment *s = calloc(1, sizeof(*s));
	int fd = -1, ret = s ? file_make(size, huge, &fd) : -ENOMEM;
	struct stat status = {0};

	if (!ret && fstat(fd, &status))
		ret = -errno;
	if (!ret && inode_is_known(a, status.st_ino)) {
		/* another file, while this one keeps the number taken */
		ret = rmx_segment_make(a, size, huge, segment_p);
		free(s);
		close(fd);
		return ret;
	}
	if (ret) {
		if (fd >= 0)
			close(fd);
		free(s);
		return ret;
	}
	s->block.fd = fd;
	s->block.inode = status.st_ino;
	s->block.size = size;
	s->huge = huge;
	*segment_p = s;
	return 0;
}
