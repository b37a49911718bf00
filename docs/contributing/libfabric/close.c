/* SPDX-License-Identifier: BSD-3-Clause */
/* An endpoint that could not be enabled is closed: a double free. */
#include "rig.h"

#include <sys/resource.h>

int main(void)
{
	struct end a;
	char line[256];
	FILE *status;
	long kib = 0;

	for (long more = 1; more < 200; more++) {
		struct rlimit limit;
		int ret;

		end_prepare(&a, "tcp;ofi_rxm");
		status = fopen("/proc/self/status", "r");
		while (fgets(line, sizeof(line), status))
			sscanf(line, "VmSize: %ld", &kib);
		fclose(status);
		getrlimit(RLIMIT_AS, &limit);
		limit.rlim_cur = (kib + more * 512) * 1024;
		setrlimit(RLIMIT_AS, &limit);
		ret = fi_enable(a.ep);
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_AS, &limit);
		printf("with %ld KiB more fi_enable: %s; fi_close: ",
		       more * 512, fi_strerror(-ret));
		fflush(stdout);
		printf("%s\n", fi_strerror(-fi_close(&a.ep->fid)));
		if (!ret)
			break;
	}
	printf("not shown: all were closed\n");
	return 1;
}
