/* SPDX-License-Identifier: BSD-3-Clause */
/* Connections that say nothing stay for ever, and use up the descriptors. */
#include "rig.h"

#include <fcntl.h>
#include <sys/resource.h>

int main(void)
{
	struct rlimit limit = {256, 256};
	struct end a;
	int file, count = 0;

	end_open(&a, "tcp;ofi_rxm");
	if (!fork()) { /* a process of its own, for descriptors of its own */
		for (int i = 0; i < 400; i++)
			stranger_connect(&a);
		sleep(35);
		_exit(0);
	}
	setrlimit(RLIMIT_NOFILE, &limit);
	end_poll_for(&a, 30);
	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	file = open("/dev/null", O_RDONLY);
	printf("after 30 s %d descriptors of 256 are in use; open(): %s\n",
	       count, file < 0 ? strerror(errno) : "good");
	return file >= 0;
}
