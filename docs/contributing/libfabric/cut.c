/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that are cut short use up the receive buffers. */
#include "rig.h"

static int arrives(struct end *a, struct end *b)
{
	static char in[64], out[64];
	fi_addr_t to_a = end_knows(b, a);
	double end = now() + 3;
	int before = a->done;

	TRY(fi_recv(a->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
	while (fi_send(b->ep, out, sizeof(out), NULL, to_a, NULL) &&
	       now() < end) {
		end_poll(a);
		end_poll(b);
	}
	while (a->done == before && now() < end) {
		end_poll(a);
		end_poll(b);
	}
	return a->done > before;
}

int main(void)
{
	struct packet it = stranger_packet(0, 1024);
	struct end a, b;

	setenv("FI_OFI_RXM_MSG_RX_SIZE", "128", 0); /* default: 4096 */
	end_open(&a, "tcp;ofi_rxm");
	end_open(&b, "tcp;ofi_rxm");
	printf("before: %s\n", arrives(&a, &b) ? "arrives" : "is lost");
	for (int i = 1; i <= 130; i++) {
		int fd = stranger_connect(&a);

		stranger_hello(fd, &a, 1 + i % 1000, i);
		stranger_send(fd, &it,
			      sizeof(it)); /* 1,024 bytes are missing */
		end_poll_for(&a, 0.002);
		close(fd);
		end_poll_for(&a, 0.03);
	}
	if (arrives(&a, &b)) {
		printf("not shown: a message of another peer arrives\n");
		return 1;
	}
	printf("after 130 messages that were cut: nothing arrives any more\n");
	return 0;
}
