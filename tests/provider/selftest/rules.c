/* SPDX-License-Identifier: BSD-3-Clause */
/* What holds in every mode, and FI_MR_LOCAL. */
#define _GNU_SOURCE
#include "selftest.h"

/* -- cases: without demands ----------------------------------------------- */

void case_key(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	CHECK(fi_mr_key(mr) == 7);
	put_well(100, NULL, 0, 7);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 8));
	BAD("key", -FI_EKEYREJECTED, get(8, NULL, 0, 8));
	end(mr);
	BAD("key", -FI_EKEYREJECTED, put(8, NULL, 0, 7));
	CHECK(calls("write") >= 3 && calls("regattr") == 1);
	tear_down();
}

void case_address(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(8, NULL, PAGE - 8, 7);
	BAD("address", -FI_EACCES, put(8, NULL, PAGE - 7, 7));
	BAD("address", -FI_EACCES, get(8, NULL, PAGE, 7));
	BAD("address", -FI_EACCES, put(8, NULL, (uintptr_t)window, 7));
	BAD("address", -FI_EACCES,
	    fi_inject_write(ep, local, 8, self, PAGE, 7));
	end(mr);
	tear_down();
}

void case_length(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	put_well(1000, NULL, 0, 7);
	BAD("argument", -FI_EMSGSIZE, put(1001, NULL, 0, 7));
	BAD("argument", -FI_EMSGSIZE, get(1001, NULL, 0, 7));
	end(mr);
	tear_down();
}

void case_rights(void)
{
	struct fid_mr *readable, *writable;
	uint64_t one = 1;

	set_up();
	GOOD(reg(window, PAGE, FI_REMOTE_READ, 7, &readable));
	GOOD(reg(more, PAGE, FI_REMOTE_WRITE, 8, &writable));
	BAD("rights", -FI_EACCES, put(8, NULL, 0, 7));
	BAD("rights", -FI_EACCES, get(8, NULL, 0, 8));
	BAD("rights", -FI_EACCES,
	    fi_fetch_atomic(ep, &one, 1, NULL, local, NULL, self, 0, 8,
			    FI_UINT64, FI_SUM, contexts));
	POST(put(8, NULL, 0, 8));
	done(contexts);
	POST(get(8, NULL, 0, 7));
	done(contexts);
	end(readable);
	end(writable);
	tear_down();
}

void case_argument(void)
{
	struct iovec two[2] = {{window, 8}, {more, 8}};
	struct fid_mr *mr;

	set_up();
	BAD("argument", -FI_EINVAL, reg(window, 0, REMOTE, 7, &mr));
	BAD("argument", -FI_EINVAL, reg(window, 8, 0, 7, &mr));
	BAD("argument", -FI_EINVAL, reg(window, 8, 1ULL << 60, 7, &mr));
	BAD("argument", -FI_EINVAL,
	    fi_mr_reg(domain, window, 8, REMOTE, 8, 7, 0, &mr, NULL));
	BAD("argument", -FI_EINVAL,
	    fi_mr_regv(domain, two, 2, REMOTE, 0, 7, 0, &mr, NULL));
	GOOD(fi_mr_regv(domain, two, 1, REMOTE, 0, 7, 0, &mr, NULL));
	end(mr);
	GOOD(fi_mr_reg(domain, window, 8, REMOTE, 0, 7, 0, &mr, NULL));
	end(mr);
	tear_down();
}

/* Several buffers in one region. */
void case_pieces(void) /* DEMAND_IOV_LIMIT=3 */
{
	struct iovec iov[4] = {{window, 100}, {more, 60}, {window + PAGE, 40}};
	struct fid_mr *mr;

	set_up();
	CHECK(info->domain_attr->mr_iov_limit == 3);
	BAD("argument", -FI_EINVAL,
	    fi_mr_regv(domain, iov, 4, REMOTE, 0, 7, 0, &mr, NULL));
	GOOD(fi_mr_regv(domain, iov, 3, REMOTE, 0, 7, 0, &mr, NULL));
	memset(local, 1, 180);
	POST(put(180, NULL, 10, 7));
	done(contexts);
	memset(local, 0, 180);
	POST(get(180, NULL, 10, 7));
	done(contexts);
	for (int i = 0; i < 180; i++)
		CHECK(local[i] == 1);
	CHECK(!window[9] && window[10] && window[99] && !window[100]);
	CHECK(more[0] && more[59] && !more[60]);
	CHECK(window[PAGE] && window[PAGE + 29] && !window[PAGE + 30]);
	BAD("address", -FI_EACCES, put(8, NULL, 193, 7));
	end(mr);
	tear_down();
}

void case_auth_key(void) /* DEMAND_AUTH_KEY_SIZE=4 */
{
	uint8_t auth_key[8] = "secret";
	struct iovec iov = {window, 8};
	struct fi_mr_attr attr = {.mr_iov = &iov,
				  .iov_count = 1,
				  .access = REMOTE,
				  .requested_key = 7,
				  .auth_key_size = 8,
				  .auth_key = auth_key};
	struct fid_mr *mr;

	set_up();
	CHECK(info->domain_attr->auth_key_size == 4);
	BAD("argument", -FI_EINVAL, fi_mr_regattr(domain, &attr, 0, &mr));
	attr.auth_key_size = 4;
	GOOD(fi_mr_regattr(domain, &attr, 0, &mr));
	CHECK(calls("auth_key") == 2);
	end(mr);
	tear_down();
}

void case_flags(void)
{
	struct fid_mr *mr;

	set_up();
	BAD("flags", -FI_EBADFLAGS,
	    reg_flags(window, 8, REMOTE, 7, 1ULL << 33, &mr));
	BAD("flags", -FI_EBADFLAGS,
	    reg_flags(window, 8, REMOTE, 7, FI_RMA_PMEM, &mr));
	tear_down();
}

void case_requested_key(void) /* DEMAND_KEY_SIZE=2 */
{
	struct fid_mr *mr, *again;

	set_up();
	CHECK(info->domain_attr->mr_key_size == 2);
	BAD("requested_key", -FI_EKEYREJECTED,
	    reg(window, 8, REMOTE, 0x10000, &mr));
	GOOD(reg(window, 8, REMOTE, 0xffff, &mr));
	expect(reg(more, 8, REMOTE, 0xffff, &again), -FI_ENOKEY, "twice");
	put_well(8, NULL, 0, 0xffff);
	end(mr);
	tear_down();
}

void case_leak(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, 8, REMOTE, 7, &mr));
	close_endpoint();
	BAD("leak", -FI_EBUSY, fi_close(&domain->fid));
	end(mr);
	close_domain();
}

void case_order(void)
{
	set_up();
	BAD("order", -FI_EBUSY, fi_close(&cq->fid));
	BAD("order", -FI_EBUSY, fi_close(&av->fid));
	BAD("order", -FI_EBUSY, fi_close(&domain->fid));
	tear_down();
}

void case_atomic(void)
{
	uint64_t *counter = (uint64_t *)window, one = 1, old = 0, want = 42;
	struct fid_mr *mr;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &mr));
	*counter = 41;
	POST(fi_fetch_atomic(ep, &one, 1, NULL, &old, NULL, self, 0, 7,
			     FI_UINT64, FI_SUM, contexts));
	done(contexts);
	CHECK(old == 41 && *counter == 42);
	POST(fi_compare_atomic(ep, &one, 1, NULL, &want, NULL, &old, NULL, self,
			       0, 7, FI_UINT64, FI_CSWAP, contexts));
	done(contexts);
	CHECK(old == 42 && *counter == 1);
	BAD("address", -FI_EACCES,
	    fi_atomic(ep, &one, 1, NULL, self, PAGE, 7, FI_UINT64, FI_SUM,
		      contexts));
	BAD("key", -FI_EKEYREJECTED,
	    fi_inject_atomic(ep, &one, 1, self, 0, 9, FI_UINT64, FI_SUM));
	end(mr);
	tear_down();
}

/* Nobody who does not obey is given it, and nobody who does not name it. */
void case_offer(void) /* verbs */
{
	struct fi_info *h = hints(EVERY_MODE & ~FI_MR_LOCAL), *found;

	set_up();
	tear_down();
	expect(lib.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &found),
	       -FI_ENODATA, "without FI_MR_LOCAL");
	h->domain_attr->mr_mode = EVERY_MODE;
	free(h->fabric_attr->prov_name);
	h->fabric_attr->prov_name = NULL;
	GOOD(lib.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &found));
	for (struct fi_info *i = found; i; i = i->next)
		CHECK(!strstr(i->fabric_attr->prov_name, "demand"));
	lib.freeinfo(found);
	lib.freeinfo(h);
}

/* -- local ---------------------------------------------------------------- */

void case_origin(void)
{
	struct iovec iov[2] = {{local, 8}, {more, 8}};
	struct fid_mr *target, *mr, *small;
	void *desc[2], *one[2];
	uint64_t word = 1;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &target));
	GOOD(reg(local, PAGE, ALL & ~REMOTE, 8, &mr));
	GOOD(reg(more, 8, ALL & ~REMOTE, 9, &small));
	desc[0] = one[0] = fi_mr_desc(mr);
	desc[1] = fi_mr_desc(small);
	one[1] = NULL;
	put_well(PAGE, desc[0], 0, 7);
	BAD("origin", -FI_EINVAL, put(8, NULL, 0, 7));
	BAD("origin", -FI_EINVAL, get(8, NULL, 0, 7));
	BAD("origin", -FI_EINVAL, put(8, desc[1], 0, 7));
	BAD("origin", -FI_EINVAL, put(PAGE + 1, desc[0], 0, 7));
	BAD("origin", -FI_EINVAL, fi_send(ep, local, 8, NULL, self, contexts));
	BAD("origin", -FI_EINVAL, fi_recv(ep, local, 8, NULL, self, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_tsend(ep, local, 8, NULL, self, 1, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_trecv(ep, local, 8, NULL, self, 1, 0, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_writev(ep, iov, one, 2, self, 0, 7, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_readv(ep, iov, one, 2, self, 0, 7, contexts));
	BAD("origin", -FI_EINVAL, fi_sendv(ep, iov, one, 2, self, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_fetch_atomic(ep, local, 1, desc[0], &word, NULL, self, 0, 7,
			    FI_UINT64, FI_SUM, contexts));
	BAD("origin", -FI_EINVAL,
	    fi_atomic(ep, &word, 1, NULL, self, 0, 7, FI_UINT64, FI_SUM,
		      contexts));
	POST(fi_writev(ep, iov, desc, 2, self, 0, 7, contexts));
	done(contexts);
	POST(fi_inject_write(ep, &word, 8, self, 0, 7));
	POST(fi_fetch_atomic(ep, local, 1, desc[0], local + 8, desc[0], self, 0,
			     7, FI_UINT64, FI_SUM, contexts));
	done(contexts);
	end(small);
	end(mr);
	end(target);
	tear_down();
}

void case_desc(void)
{
	struct fid_mr *target, *mr;
	void *desc;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &target));
	GOOD(reg(local, PAGE, ALL & ~REMOTE, 8, &mr));
	desc = fi_mr_desc(mr);
	BAD("desc", -FI_EINVAL, put(8, &desc, 0, 7));
	end(mr);
	BAD("desc", -FI_EINVAL, put(8, desc, 0, 7));
	end(target);
	tear_down();
}

void case_local_rights(void)
{
	struct fid_mr *target, *mr;
	void *desc;

	set_up();
	GOOD(reg(window, PAGE, REMOTE, 7, &target));
	GOOD(reg(local, PAGE, FI_WRITE, 8, &mr));
	desc = fi_mr_desc(mr);
	POST(put(8, desc, 0, 7));
	done(contexts);
	BAD("rights", -FI_EACCES, get(8, desc, 0, 7));
	BAD("rights", -FI_EACCES, fi_send(ep, local, 8, desc, self, contexts));
	BAD("rights", -FI_EACCES, fi_recv(ep, local, 8, desc, self, contexts));
	end(mr);
	end(target);
	tear_down();
}

void case_busy(void)
{
	struct fid_mr *mr;

	set_up();
	GOOD(reg(local, PAGE, FI_RECV, 8, &mr));
	GOOD(fi_recv(ep, local, 8, fi_mr_desc(mr), FI_ADDR_UNSPEC, contexts));
	BAD("busy", -FI_EBUSY, fi_close(&mr->fid));
	GOOD(fi_cancel(&ep->fid, contexts));
	CHECK(failed(contexts) == FI_ECANCELED);
	GOOD(fi_recv(ep, local, 8, fi_mr_desc(mr), FI_ADDR_UNSPEC, contexts));
	close_endpoint(); /* which ends it */
	end(mr);
	close_domain();
}

void case_messages(void)
{
	struct fid_mr *mr;
	void *desc;

	set_up();
	GOOD(reg(local, PAGE, FI_SEND | FI_RECV, 8, &mr));
	desc = fi_mr_desc(mr);
	GOOD(fi_recv(ep, local, 8, desc, FI_ADDR_UNSPEC, contexts));
	memcpy(local + 8, "12345678", 8);
	POST(fi_inject(ep, local + 8, 8, self));
	done(contexts);
	CHECK(!memcmp(local, "12345678", 8));
	GOOD(fi_trecv(ep, local, 8, desc, FI_ADDR_UNSPEC, 3, 0, contexts));
	memcpy(local + 8, "abcdefgh", 8);
	POST(fi_tinject(ep, local + 8, 8, self, 3));
	done(contexts);
	CHECK(!memcmp(local, "abcdefgh", 8));
	end(mr);
	tear_down();
}
