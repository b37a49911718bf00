/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection header promises data and sends none: fi_cq_read blocks. */
#include "rig.h"

int main(void)
{
	struct ctrl it = {.version = 3, .seg_size = htons(24), .data = 1};
	struct end a;
	double longest = 0;

	end_open(&a, "tcp;ofi_rxm");
	if (!fork()) {
		int fd = stranger_connect(&a);

		stranger_send(fd, &it, sizeof(it));
		sleep(3);
		_exit(0);
	}
	for (double end = now() + 4; now() < end; usleep(200)) {
		double begin = now();

		end_poll(&a);
		if (now() - begin > longest)
			longest = now() - begin;
	}
	wait(NULL);
	printf("longest fi_cq_read: %.1f s, while the stranger stayed for 3 "
	       "s\n",
	       longest);
	return longest < 1;
}
