/* SPDX-License-Identifier: BSD-3-Clause */
/* Asynchronous registration, faults, delays, two libfabrics. */
#define _GNU_SOURCE
#include "selftest.h"

#include <poll.h>
#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* -- asynchronous registration -------------------------------------------- */

static ssize_t event(struct fid_eq *eq, struct fid_mr *mr)
{
	struct fi_eq_entry entry;
	uint32_t what;
	ssize_t n = fi_eq_sread(eq, &what, &entry, sizeof(entry), 5000, 0);

	if (n > 0)
		CHECK(n == sizeof(entry) && what == FI_MR_COMPLETE &&
		      entry.fid == &mr->fid);
	return n > 0 ? 0 : n;
}

void case_async(void) /* DEMAND_FAULT=mr_complete:3:ENOMEM */
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_err_entry error = {0};
	struct fid_eq *eq, *late;
	struct fid_mr *mr, *other;
	ssize_t early;
	double start;
	uint32_t what;

	set_up();
	expect(reg(window, PAGE, REMOTE, 7, &mr), -FI_ENOEQ, "no EQ");
	GOOD(fi_eq_open(fabric, &attr, &eq, NULL));
	GOOD(fi_eq_open(fabric, &attr, &late, NULL));
	GOOD(fi_domain_bind(domain, &eq->fid, RMX_REG_MR));
	start = now();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	/* not yet, unless this process has been held up for as long as that */
	early = fi_eq_read(eq, &what, &error, sizeof(error), FI_PEEK);
	CHECK(early == -FI_EAGAIN || now() - start > 0.001);
	GOOD(event(eq, mr));
	CHECK(fi_mr_key(mr) == 7);
	put_well(8, NULL, 0, 7);
	GOOD(reg(more, PAGE, REMOTE, 8, &other));
	GOOD(event(eq, other));
	end(other);
	BAD("unbound", -FI_EINVAL,
	    fi_domain_bind(domain, &late->fid, RMX_REG_MR));
	GOOD(reg(more, PAGE, REMOTE, 8, &other));
	expect(event(eq, other), -FI_EAVAIL, "a fault");
	CHECK(fi_eq_readerr(eq, &error, 0) > 0);
	CHECK(error.err == FI_ENOMEM && error.fid == &other->fid);
	end(other);
	end(mr);
	BAD("order", -FI_EBUSY, fi_close(&eq->fid));
	GOOD(fi_close(&late->fid));
	close_endpoint();
	GOOD(fi_close(&domain->fid));
	GOOD(fi_close(&eq->fid));
	GOOD(fi_close(&fabric->fid));
	lib.freeinfo(info);
}

/* -- faults and delays ---------------------------------------------------- */

void case_faults(void) /* DEMAND_FAULT is set here */
{
	static const struct {
		const char *name;
		int code;
	} errors[] = {
		{"ENOKEY", FI_ENOKEY},
		{"ENOSYS", FI_ENOSYS},
		{"EKEYREJECTED", FI_EKEYREJECTED},
		{"EBADFLAGS", FI_EBADFLAGS},
		{"ETOOSMALL", FI_ETOOSMALL},
		{"EBUSY", FI_EBUSY},
		{"12", FI_ENOMEM},
	};
	struct fid_mr *mr;
	char text[64];

	set_up();
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		snprintf(text, sizeof(text), "read:1:EIO,regattr:%zu:%s",
			 2 * i + 2, errors[i].name);
		setenv("DEMAND_FAULT", text, 1);
		GOOD(reg(window, PAGE, REMOTE, 7, &mr));
		end(mr);
		expect(reg(window, PAGE, REMOTE, 7, &mr), -errors[i].code,
		       errors[i].name);
	}
	setenv("DEMAND_FAULT", "close_mr:*:EBUSY", 1);
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	expect(fi_close(&mr->fid), -FI_EBUSY, "close");
	expect(fi_close(&mr->fid), -FI_EBUSY, "close");
	unsetenv("DEMAND_FAULT");
	put_well(8, NULL, 0, 7);
	end(mr);
	tear_down();
}

void case_completion(void) /* DEMAND_FAULT=completion:2:EIO */
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	POST(put(8, NULL, 0, 7));
	done(contexts);
	POST(fi_write(ep, local, 8, NULL, self, 0, 7, contexts + 1));
	CHECK(failed(contexts + 1) == FI_EIO);
	POST(put(8, NULL, 0, 7));
	done(contexts);
	end(mr);
	tear_down();
}

/* Late, and whoever sleeps on the descriptor is woken. */
void case_delay(void) /* DEMAND_DELAY_US=50000 */
{
	struct fid *fids[1];
	struct fi_cq_msg_entry entry;
	struct fid_mr *mr;
	double start;
	int fd;

	set_up();
	GOOD(fi_control(&cq->fid, FI_GETWAIT, &fd));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	POST(put(8, NULL, 0, 7));
	start = now();
	fids[0] = &cq->fid;
	while (fi_cq_read(cq, &entry, 1) == -FI_EAGAIN) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		CHECK(now() - start < 5);
		if (!fi_trywait(fabric, fids, 1))
			CHECK(poll(&p, 1, 5000) == 1);
	}
	CHECK(now() - start > 0.045);
	end(mr);
	tear_down();
}

/* -- two libfabrics in a process ------------------------------------------ */

void case_two(void)
{
	struct fid_domain *first = domain;
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, 0, 7);
	end(mr);
	tear_down();
	load(other);
	set_up();
	CHECK(domain != first);
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, 0, 7);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 8));
	end(mr);
	tear_down();
}
