/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that nobody expects end the process: wild ack | seg | done | data */
#include "rig.h"

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "ack";
	struct packet it = stranger_packet(0, 0);
	struct base ack = {
		.version = 3, .op_data = 2, .hdr_size = 16, .size = 16};
	struct end a;
	int fd;

	end_open(&a, "tcp;ofi_rxm");
	fd = stranger_connect(&a);
	stranger_hello(fd, &a, 1, 1);
	if (!strcmp(what, "ack")) {
		stranger_send(fd, &ack, sizeof(ack));
	} else {
		it.ctrl.type = *what == 's' ? 1 : what[1] == 'o' ? 3 : 7;
		it.ctrl.conn_id = it.ctrl.msg_id = UINT32_MAX / 2;
		stranger_send(fd, &it, sizeof(it));
	}
	printf("%s: sent\n", what);
	fflush(stdout);
	end_poll_for(&a, 1);
	printf("not shown: the process lives\n");
	return 1;
}
