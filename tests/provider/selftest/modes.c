/* SPDX-License-Identifier: BSD-3-Clause */
/* A case for each of the other modes. */
#define _GNU_SOURCE
#include "selftest.h"

/* -- addresses and keys --------------------------------------------------- */

void case_virt_addr(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window + 16, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, (uintptr_t)window + 16, 7);
	CHECK(window[16] == 0x5a && !window[15]);
	BAD("address", -FI_EACCES, put(8, NULL, 0, 7));
	BAD("address", -FI_EACCES, put(8, NULL, (uintptr_t)window + 15, 7));
	BAD("address", -FI_EACCES,
	    put(8, NULL, (uintptr_t)window + 16 + PAGE - 7, 7));
	end(mr);
	tear_down();
}

void case_prov_key(void)
{
	struct fid_mr *mr, *other;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	GOOD(reg(more, PAGE, REMOTE, 7, &other));
	CHECK(fi_mr_key(mr) != fi_mr_key(other));
	put_well(8, NULL, 0, fi_mr_key(mr));
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	end(mr);
	end(other);
	tear_down();
}

void case_raw(void) /* any DEMAND_KEY_SIZE */
{
	size_t size = strtoull(getenv("DEMAND_KEY_SIZE"), NULL, 10);
	static uint8_t raw[4096];
	struct fid_mr *mr;
	uint64_t base = 1, key;
	size_t len = size - 1;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	expect(fi_mr_raw_attr(mr, &base, raw, &len, 0), -FI_ETOOSMALL, "short");
	CHECK(len == size);
	GOOD(fi_mr_raw_attr(mr, &base, raw, &len, 0));
	CHECK(base == 0);
	BAD("raw_key", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	GOOD(fi_mr_map_raw(domain, base, raw, len, &key, 0));
	put_well(8, NULL, 0, key);
	if (size > 8) {
		raw[size - 1] ^= 1;
		BAD("raw_key", -FI_EKEYREJECTED,
		    fi_mr_map_raw(domain, base, raw, len, &base, 0));
	}
	BAD("raw_key", -FI_EKEYREJECTED,
	    fi_mr_map_raw(domain, base, raw, len + 1, &base, 0));
	end(mr);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, key));
	close_endpoint();
	BAD("leak", -FI_EBUSY, fi_close(&domain->fid));
	open_endpoint();
	GOOD(fi_mr_unmap_key(domain, key));
	BAD("raw_key", -FI_EKEYREJECTED, put(8, NULL, 0, key));
	BAD("raw_key", -FI_EINVAL, fi_mr_unmap_key(domain, key));
	tear_down();
}

/* -- pages ---------------------------------------------------------------- */

void case_allocated(void)
{
	char *pages = untouched(4 * PAGE, PROT_READ | PROT_WRITE);
	struct fid_mr *mr;

	set_up();
	BAD("allocated", -FI_EFAULT, reg(pages, 4 * PAGE, REMOTE, 7, &mr));
	for (int i = 0; i < 3; i++)
		pages[i * PAGE] = 1;
	BAD("allocated", -FI_EFAULT,
	    reg(pages + 8, 4 * PAGE - 8, REMOTE, 7, &mr));
	GOOD(reg(pages + 8, 3 * PAGE - 8, REMOTE, 7, &mr));
	end(mr);
	pages[3 * PAGE] = 1;
	GOOD(reg(pages, 4 * PAGE, REMOTE, 7, &mr));
	end(mr);
	tear_down();
}

void case_os_access(void)
{
	char *page = untouched(PAGE, PROT_READ);
	struct fid_mr *mr;

	CHECK(*(volatile char *)page == 0);
	set_up();
	BAD("os_access", -FI_EACCES, reg(page, PAGE, REMOTE, 7, &mr));
	GOOD(reg(page, PAGE, FI_REMOTE_READ, 7, &mr));
	end(mr);
	tear_down();
}

void case_refresh(void)
{
	char *pages = untouched(4 * PAGE, PROT_READ | PROT_WRITE);
	struct iovec second = {pages + PAGE + 8, 8};
	struct iovec outside = {pages + 4 * PAGE - 8, 16};
	struct fid_mr *mr;

	set_up();
	pages[0] = 1;
	GOOD(reg(pages + 8, 4 * PAGE - 8, REMOTE, 7, &mr));
	POST(put(PAGE - 8, NULL, 0, 7));
	done(contexts);
	BAD("refresh", -FI_EFAULT, put(PAGE - 7, NULL, 0, 7));
	pages[PAGE] = 1;
	BAD("refresh", -FI_EFAULT, get(8, NULL, PAGE, 7));
	GOOD(fi_mr_refresh(mr, &second, 1, 0));
	POST(get(8, NULL, PAGE, 7));
	done(contexts);
	BAD("address", -FI_EINVAL, fi_mr_refresh(mr, &outside, 1, 0));
	pages[2 * PAGE] = pages[3 * PAGE] = 1;
	BAD("refresh", -FI_EFAULT, get(8, NULL, 3 * PAGE, 7));
	GOOD(fi_mr_refresh(mr, NULL, 0, 0));
	POST(get(8, NULL, 3 * PAGE, 7));
	done(contexts);
	end(mr);
	tear_down();
}

/* -- bind and enable ------------------------------------------------------ */

void case_unbound(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == FI_KEY_NOTAVAIL);
	BAD("unbound", -FI_EINVAL, fi_mr_enable(mr));
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	GOOD(fi_mr_bind(mr, &ep->fid, 0));
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	GOOD(fi_mr_enable(mr));
	CHECK(fi_mr_key(mr) == 7);
	put_well(8, NULL, 0, 7);
	BAD("unbound", -FI_EINVAL, fi_mr_enable(mr));
	BAD("unbound", -FI_EINVAL, fi_mr_bind(mr, &ep->fid, 0));
	BAD("order", -FI_EBUSY, fi_close(&ep->fid));
	end(mr);
	tear_down();
}

void case_rma_event(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fid_cntr *cntr;
	struct fid_mr *mr;

	set_up();
	GOOD(fi_cntr_open(domain, &attr, &cntr, NULL));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr)); /* without the flag */
	BAD("unbound", -FI_EINVAL, fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	end(mr);
	GOOD(reg_flags(window, PAGE, REMOTE, 7, FI_RMA_EVENT, &mr));
	BAD("disabled", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	BAD("unbound", -FI_EINVAL, fi_mr_enable(mr));
	BAD("argument", -FI_EINVAL, fi_mr_bind(mr, &cntr->fid, 0));
	GOOD(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	GOOD(fi_mr_enable(mr));
	for (int i = 0; i < 3; i++)
		put_well(8, NULL, 0, 7);
	CHECK(fi_cntr_read(cntr) == 3);
	BAD("order", -FI_EBUSY, fi_close(&cntr->fid));
	end(mr);
	CHECK(fi_cntr_read(cntr) == 3);
	GOOD(fi_close(&cntr->fid));
	tear_down();
}

/* -- memory kinds, collectives, persistent memory ------------------------- */

void case_hmem(void)
{
	struct iovec iov = {more, PAGE};
	struct fi_mr_attr attr = {.mr_iov = &iov,
				  .iov_count = 1,
				  .access = ALL,
				  .requested_key = 8,
				  .iface = FI_HMEM_CUDA};
	struct fid_mr *mr, *on_device;

	set_up();
	CHECK(info->caps & FI_HMEM);
	device(more, PAGE, FI_HMEM_CUDA);
	BAD("hmem", -FI_EINVAL,
	    fi_mr_reg(domain, window, 8, REMOTE, 0, 7, 0, &mr, NULL));
	BAD("hmem", -FI_EINVAL, reg(more, PAGE, REMOTE, 7, &mr));
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	GOOD(fi_mr_regattr(domain, &attr, 0, &on_device));
	put_well(8, NULL, 0, 7);
	BAD("origin", -FI_EINVAL,
	    fi_write(ep, more, 8, NULL, self, 0, 7, contexts));
	POST(fi_write(ep, more, 8, fi_mr_desc(on_device), self, 0, 7,
		      contexts));
	done(contexts);
	end(mr);
	end(on_device);
	tear_down();
}

void case_collective(void)
{
	struct fid_mr *mr;

	set_up();
	BAD("collective", -FI_EINVAL, reg(window, PAGE, REMOTE, 7, &mr));
	GOOD(reg(window, PAGE, REMOTE | FI_COLLECTIVE, 7, &mr));
	put_well(8, NULL, 0, 7);
	end(mr);
	tear_down();
}

static ssize_t commit(uint64_t key)
{
	struct iovec iov = {local, 8};
	struct fi_rma_iov rma = {.addr = 0, .len = 8, .key = key};
	struct fi_msg_rma msg = {.msg_iov = &iov,
				 .iov_count = 1,
				 .addr = self,
				 .rma_iov = &rma,
				 .rma_iov_count = 1,
				 .context = contexts};

	return fi_writemsg(ep, &msg, FI_COMPLETION | FI_COMMIT_COMPLETE);
}

void case_pmem(void)
{
	struct fid_mr *plain, *lasting;

	set_up();
	CHECK(info->caps & FI_RMA_PMEM);
	GOOD(reg(more, PAGE, REMOTE, 7, &plain));
	GOOD(reg_flags(window, PAGE, REMOTE, 8, FI_RMA_PMEM, &lasting));
	BAD("flags", -FI_EBADFLAGS, commit(7));
	POST(commit(8));
	done(contexts);
	end(plain);
	end(lasting);
	tear_down();
}
