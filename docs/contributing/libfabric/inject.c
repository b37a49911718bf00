/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection ends before an injected write has left. */
#include "rig.h"

int main(void)
{
	const size_t size = 64 << 20; /* more than the sockets take */
	char *memory = calloc(1, size), *source = calloc(1, size);
	struct end a, b;
	struct fid_mr *mr;
	fi_addr_t to;
	uint64_t addr;

	end_open(&a, "tcp;ofi_rxm");
	end_open(&b, "tcp;ofi_rxm");
	addr = end_register(&b, memory, size, FI_REMOTE_WRITE, &mr);
	to = end_knows(&a, &b);
	end_writes(&a, &b, to, source, 8, addr, fi_mr_key(mr));
	TRY(fi_write(a.ep, source, size, NULL, to, addr, fi_mr_key(mr), NULL));
	TRY(fi_inject_write(a.ep, source, 8, to, addr, fi_mr_key(mr)));
	TRY(fi_close(&b.ep->fid));
	end_poll_for(&a, 1);
	printf("not shown: %d operations failed\n", a.failed);
	return 1;
}
