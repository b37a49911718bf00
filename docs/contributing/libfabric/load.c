/* SPDX-License-Identifier: BSD-3-Clause */
/* How long the constructors of what Debian's libfabric is linked with take. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>

int main(void)
{
	static const char *const names[] = {"libpsm_infinipath.so.1",
					    "libpsm2.so.2"};
	struct timespec from, to;

	for (int i = 0; i < 2; i++) {
		clock_gettime(CLOCK_MONOTONIC, &from);
		if (!dlopen(names[i], RTLD_NOW))
			printf("%s\n", dlerror());
		clock_gettime(CLOCK_MONOTONIC, &to);
		printf("%s: %.0f ms\n", names[i],
		       (to.tv_sec - from.tv_sec) * 1e3 +
			       (to.tv_nsec - from.tv_nsec) * 1e-6);
	}
	return 0;
}
