/* SPDX-License-Identifier: BSD-3-Clause */
/* A remote length that wraps around passes the check of bounds: wrap [provider]
 */
#include "rig.h"

int main(int argc, char **argv)
{
	const char *provider = argc > 1 ? argv[1] : "tcp;ofi_rxm";
	static char memory[3 * 4096] __attribute__((aligned(4096)));
	static char source[8] = "outside";
	struct end a, b;
	struct fid_mr *mr;
	struct iovec iov = {source, 8};
	struct fi_rma_iov rma;
	struct fi_msg_rma msg = {.msg_iov = &iov,
				 .iov_count = 1,
				 .rma_iov = &rma,
				 .rma_iov_count = 1};
	double end = now() + 3;

	end_open(&a, provider);
	end_open(&b, provider);
	/* the region is the first page; the write goes to the third */
	rma.addr = end_register(&b, memory, 4096, FI_REMOTE_WRITE, &mr) + 8192;
	rma.key = fi_mr_key(mr);
	rma.len = -(uint64_t)8192;
	msg.addr = end_knows(&a, &b);
	while (fi_writemsg(a.ep, &msg, 0) == -FI_EAGAIN && now() < end) {
		end_poll(&a);
		end_poll(&b);
	}
	while (!memory[8192] && now() < end) {
		end_poll(&a);
		end_poll(&b);
	}
	printf("%s; above the region: \"%s\"\n",
	       a.failed ? "the origin was told" : "no error", memory + 8192);
	return !memory[8192];
}
