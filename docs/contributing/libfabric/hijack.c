/* SPDX-License-Identifier: BSD-3-Clause */
/* A stranger claims a peer's port in the hello, and gets what is for the peer.
 */
#include "rig.h"

int main(void)
{
	static char target[64], source[64] = "for the peer only";
	struct {
		struct base base;
		uint64_t addr, len, key;
		char data[64];
	} got;
	struct end a, b;
	struct fid_mr *mr;
	fi_addr_t to_b;
	uint64_t addr;
	int fd;

	end_open(&a, "tcp;ofi_rxm");
	end_open(&b, "tcp;ofi_rxm");
	to_b = end_knows(&a, &b);
	addr = end_register(&b, target, sizeof(target), FI_REMOTE_WRITE, &mr);
	/* 1: a and b are connected, all is well */
	end_writes(&a, &b, to_b, source, 64, addr, fi_mr_key(mr));
	end_poll_for(&b, 0.1);
	printf("b has \"%s\"\n", target);
	/* 2: another process says that it is b */
	fd = stranger_connect(&a);
	stranger_hello(fd, &a, ntohs(b.name.sin_port), 1);
	end_poll_for(&a, 0.1);
	/* 3: a writes to b again */
	memset(target, 0, sizeof(target));
	while (fi_write(a.ep, source, 64, NULL, to_b, addr, fi_mr_key(mr),
			NULL))
		end_poll(&a);
	end_poll_for(&a, 0.1);
	end_poll_for(&b, 0.1);
	if (recv(fd, &got, sizeof(got), MSG_DONTWAIT) <= 0) {
		printf("not shown: the stranger got nothing\n");
		return 1;
	}
	printf("the stranger got \"%s\", and the key %" PRIx64
	       " (it is %" PRIx64 "); b has \"%s\"\n",
	       got.data, got.key, fi_mr_key(mr), target);
	return 0;
}
