/* SPDX-License-Identifier: BSD-3-Clause */
/* What a provider checks at the target of a write: checks PROVIDER [BYTES] */
#include "rig.h"

#include <sys/mman.h>

#define PAGE (1 << 20)

static size_t size = 8;

struct attempt {
	const char *what;
	uint64_t key, wraps;
	int page, access;
};

struct target { /* what the target tells the origin */
	char name[256];
	uint64_t addr, key;
};

static _Noreturn void serve(const char *provider, const struct attempt *it,
			    char *memory, int fd)
{
	struct target told;
	size_t len = sizeof(told.name);
	struct fid_mr *mr;
	struct end b;

	end_prepare(&b, provider);
	TRY(fi_enable(b.ep));
	told.addr = end_register(&b, memory, PAGE, it->access, &mr);
	told.key = fi_mr_key(mr);
	TRY(fi_getname(&b.ep->fid, told.name, &len));
	if (write(fd, &told, sizeof(told)) != sizeof(told))
		_exit(2);
	end_poll_for(&b, 2);
	_exit(0);
}

/* Returns whether the write got into memory of another process. */
static int written(const char *provider, const struct attempt *it)
{
	static char source[PAGE] = "written";
	char *memory = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct iovec iov = {source, size};
	struct fi_rma_iov rma = {.len = it->wraps ? -it->wraps : size};
	struct fi_msg_rma msg = {.msg_iov = &iov,
				 .iov_count = 1,
				 .rma_iov = &rma,
				 .rma_iov_count = 1};
	double end = now() + 2.5;
	struct target told;
	struct end a;
	int fds[2];

	TRY(pipe(fds));
	if (!fork())
		serve(provider, it, memory, fds[1]);
	close(fds[1]);
	if (read(fds[0], &told, sizeof(told)) != sizeof(told))
		_exit(2);
	end_prepare(&a, provider);
	TRY(fi_enable(a.ep));
	rma.addr = told.addr + it->page * PAGE;
	rma.key = told.key + it->key;
	if (fi_av_insert(a.av, told.name, 1, &msg.addr, 0, NULL) != 1)
		_exit(2);
	while (fi_writemsg(a.ep, &msg, 0) == -FI_EAGAIN && now() < end)
		end_poll(&a);
	while (!memory[it->page * PAGE] && now() < end)
		end_poll(&a);
	return memory[it->page * PAGE];
}

int main(int argc, char **argv)
{
	static const struct attempt attempts[] = {
		{"right", 0, 0, 0, FI_REMOTE_WRITE},
		{"wrong key", 12345, 0, 0, FI_REMOTE_WRITE},
		{"beyond the region", 0, 0, 2, FI_REMOTE_WRITE},
		{"region to read only", 0, 0, 0, FI_REMOTE_READ},
		{"length wraps", 0, 2 * PAGE, 2, FI_REMOTE_WRITE},
	};

	if (argc > 2)
		size = atoi(argv[2]);
	printf("libfabric %u.%u, %s, %zu bytes:", FI_MAJOR(fi_version()),
	       FI_MINOR(fi_version()), argv[1], size);
	for (size_t i = 0; i < sizeof(attempts) / sizeof(*attempts); i++) {
		fflush(stdout);
		if (!fork())
			_exit(written(argv[1], &attempts[i]) ? 7 : 0);
		int status;

		wait(&status);
		printf(" %s: %s;", attempts[i].what,
		       status == 7 << 8 ? "written"
		       : status == 0	? "no"
					: "crashed or failed");
	}
	printf("\n");
	return 0;
}
