/* SPDX-License-Identifier: BSD-3-Clause */
/* Peers end while a message of theirs comes in segments. */
#include "rig.h"

#include <signal.h>
#include <sys/prctl.h>

enum { SIZE = 100000 }; /* above 16 KiB and up to 128 KiB: in segments */

static void sends(int from)
{
	static char data[SIZE];
	char name[16];
	struct end e;
	fi_addr_t to;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	end_open(&e, "tcp;ofi_rxm");
	if (read(from, name, sizeof(name)) != sizeof(name) ||
	    fi_av_insert(e.av, name, 1, &to, 0, NULL) != 1)
		exit(2);
	for (;;) {
		fi_send(e.ep, data, sizeof(data), NULL, to, NULL);
		end_poll(&e);
	}
}

int main(void)
{
	enum { PEERS = 50 };
	static char data[SIZE];
	int words[PEERS][2];
	pid_t peers[PEERS];
	struct end a;

	for (int i = 0; i < PEERS; i++)
		if (pipe(words[i]) || !(peers[i] = fork()))
			sends(words[i][0]);
	end_open(&a, "tcp;ofi_rxm");
	for (int i = 0; i < PEERS; i++) {
		int before = a.done;

		if (write(words[i][1], &a.name, 16) != 16)
			return 2;
		for (double end = now() + 0.5; now() < end;) {
			fi_recv(a.ep, data, SIZE, NULL, FI_ADDR_UNSPEC, NULL);
			end_poll(&a);
			if (a.done > before + 10 + i)
				break;
		}
		kill(peers[i], SIGKILL);
		end_poll_for(&a, 0.02);
	}
	printf("not shown: %d messages, %d failed\n", a.done, a.failed);
	return 1;
}
