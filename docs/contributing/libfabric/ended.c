/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection that ends without a request stays, if errno was EAGAIN. */
#include "rig.h"

#include <fcntl.h>

static int descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

int main(void)
{
	struct end a;
	int before, after;

	end_open(&a, "tcp;ofi_rxm");
	before = descriptors();
	if (!fork()) {
		for (int i = 0; i < 20; i++)
			stranger_connect(&a);
		sleep(1);
		_exit(0);
	}
	for (double end = now() + 3; now() < end; usleep(200)) {
		errno = EAGAIN; /* as calls of the provider leave it, too */
		end_poll(&a);
	}
	wait(NULL);
	after = descriptors();
	printf("%d descriptors before, %d after 20 connections have ended\n",
	       before, after);
	return after <= before;
}
