/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernel refuses copies to a process that lives, after the window was made:
 * it is not dumpable any more. What went by them goes as messages.
 */
#include "pair.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

enum { BIG = 300000, FEW = 20, NOTIFIED = 3 };

/* From now on nobody in this process may copy from or to others. */
static void refuse_copies(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0,
			 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {COUNT(filter), filter};

	OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

enum way { PUT, GET, SHORT, MANY, MANY_GET, RANGES, NOTIFY, WAYS };

static void ranges(rmaext_window *w, const struct rig *r, unsigned int seed)
{
	const int64_t ranks[2] = {0, 0}, offsets[2] = {100, 20000};
	const int64_t counts[2] = {5, 15000}; /* short and long */
	static unsigned char values[15005], results[15005];
	int ended = 0;
	struct rmaext_places_call call = {
		.kind = RMAEXT_PUT,
		.unit = 1,
		.ranks = ranks,
		.offsets = offsets,
		.counts = counts,
		.count = 2,
		.elements = sizeof(values),
		.values = values,
		.ended = &ended,
	};
	int64_t bad;

	fill(values, sizeof(values), seed);
	for (int put = 1; put >= 0; put--) {
		rmaext_op *it = NULL;
		int ret;

		call.kind = put ? RMAEXT_PUT : RMAEXT_GET;
		call.values = put ? values : NULL;
		call.results = put ? NULL : results;
		ret = rmaext_start_many(w, &call, &it, &bad);
		while (ret == RMAEXT_PENDING)
			ret = rmaext_op_wait(it, SECOND / 10);
		OK(ret);
		OK(rmaext_op_release(&it));
		OK(flush(w));
		CHECK(put || !memcmp(values, results, sizeof(values)));
	}
	CHECK(!memcmp(r->window_memory + 100, values, 5));
	CHECK(!memcmp(r->window_memory + 20000, values + 5, 15000));
}

static int notified(rmaext_window *w, const void *values, rmaext_op **op_p)
{
	const struct rmaext_call call = {
		.kind = RMAEXT_PUT,
		.offset = 64,
		.operand = values,
		.count = 100,
		.notify = 1 + NOTIFIED,
	};

	return rmaext_start(w, &call, op_p);
}

static void one_way(rmaext_window *w, const struct rig *r, enum way way,
		    unsigned int seed)
{
	static unsigned char values[BIG], results[BIG];
	int64_t offsets[FEW];
	rmaext_op *op = NULL;

	fill(values, sizeof(values), seed);
	switch (way) {
	case PUT:
	case GET:
		OK(put(w, 0, values, BIG));
		OK(flush(w));
		CHECK(!memcmp(r->window_memory, values, BIG));
		OK(get(w, 0, results, BIG));
		CHECK(!memcmp(results, values, BIG));
		break;
	case SHORT:
		OK(put(w, 7, values, 9));
		OK(flush(w));
		CHECK(!memcmp(r->window_memory + 7, values, 9));
		OK(get(w, 7, results, 9));
		CHECK(!memcmp(results, values, 9));
		break;
	case MANY:
	case MANY_GET:
		for (int i = 0; i < FEW; i++)
			offsets[i] = 3 * i + 1;
		OK(many(w, RMAEXT_PUT, 0, 8, FEW, offsets, values, NULL));
		OK(flush(w));
		OK(many(w, RMAEXT_GET, 0, 8, FEW, offsets, NULL, results));
		CHECK(!memcmp(results, values, FEW * 8));
		for (int i = 0; i < FEW; i++)
			CHECK(!memcmp(r->window_memory + 8 * offsets[i],
				      values + 8 * i, 8));
		break;
	case RANGES:
		ranges(w, r, seed);
		break;
	default:
		OK(finish(notified(w, values, &op), &op));
		OK(flush(w));
		CHECK(!memcmp(r->window_memory + 64, values, 100));
	}
}

/* Each way is the first to be refused, and all work after it. */
static void goes_on(void)
{
	struct rmaext_neighbour self = {.pid = getpid()};
	enum way first = WAYS;
	rmaext_window *w;
	struct pair p;
	pid_t pid = 0;
	int status;

	if (!has_copies())
		return;
	for (int i = 0; i < WAYS; i++) {
		pid = fork_child();
		if (!pid) {
			first = (enum way)i;
			break;
		}
		EQUAL(waitpid(pid, &status, 0), pid);
		EQUAL(status, 0);
	}
	if (pid)
		return;
	self.pid = getpid();
	pair_open(&p, (struct rig_options){.size = BIG});
	block_give(p.there, block_new());
	w = here(&p, (struct lie){.route = RMAEXT_CMA, .neighbour = &self});
	one_way(w, &p.r, first, 1);
	CHECK(!self.refuses);
	refuse_copies();
	one_way(w, &p.r, first, 2);
	CHECK(self.refuses);
	for (int i = 0; i < WAYS; i++)
		one_way(w, &p.r, (enum way)i, 3 + (unsigned int)i);
	drop_window(w);
	pair_close(&p);
	_exit(0);
}

const struct test tests[] = {
	{"goes_on", goes_on, NULL, NULL},
	{0},
};
