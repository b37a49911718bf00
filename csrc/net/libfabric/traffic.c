/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages, reads and writes by libfabric, and their completions. */
#include "net/libfabric/libfabric.h"

#include <string.h>

_Static_assert(sizeof(struct rmx_call) >= sizeof(struct fi_context2),
	       "the room that FI_CONTEXT2 asks for");

/* -- messages */

int rmx_fi_receive(struct rmaext_fabric *f, void *buf, size_t len, void *desc,
		   struct rmx_call *call)
{
	const struct rmx_endpoint *e = f->endpoint;

	if (e->tagged)
		return (int)fi_trecv(e->ep, buf, len, desc, FI_ADDR_UNSPEC, 0,
				     0, call);
	return (int)fi_recv(e->ep, buf, len, desc, FI_ADDR_UNSPEC, call);
}

int rmx_fi_send(struct rmaext_fabric *f, uint64_t peer, const struct iovec *iov,
		void **descs, size_t count, struct rmx_call *call)
{
	const struct rmx_endpoint *e = f->endpoint;
	const struct fi_msg message = {
		.msg_iov = iov,
		.desc = descs,
		.iov_count = count,
		.addr = peer,
		.context = call,
	};
	const struct fi_msg_tagged tagged = {
		.msg_iov = iov,
		.desc = descs,
		.iov_count = count,
		.addr = peer,
		.context = call,
	};

	if (e->tagged)
		return (int)fi_tsendmsg(e->ep, &tagged, FI_COMPLETION);
	return (int)fi_sendmsg(e->ep, &message, FI_COMPLETION);
}

int rmx_fi_inject(struct rmaext_fabric *f, uint64_t peer, const void *buf,
		  size_t len)
{
	const struct rmx_endpoint *e = f->endpoint;

	if (e->tagged)
		return (int)fi_tinject(e->ep, buf, len, peer, 0);
	return (int)fi_inject(e->ep, buf, len, peer);
}

void rmx_fi_cancel(struct rmaext_fabric *f, struct rmx_call *call)
{
	fi_cancel(&f->endpoint->ep->fid, call);
}

/* -- reads and writes */

static int rma_post(struct rmaext_fabric *f, bool write,
		    const struct rmx_remote *at, void *buf, size_t len,
		    void *desc, struct rmx_call *call)
{
	const struct rmx_endpoint *e = f->endpoint;
	const struct iovec iov = {.iov_base = buf, .iov_len = len};
	const struct fi_rma_iov remote = {
		.addr = at->place,
		.len = len,
		.key = at->key,
	};
	const struct fi_msg_rma msg = {
		.msg_iov = &iov,
		.desc = f->limits.registers ? &desc : NULL,
		.iov_count = 1,
		.addr = at->peer,
		.rma_iov = &remote,
		.rma_iov_count = 1,
		.context = call,
	};

	if (!write)
		return (int)fi_readmsg(e->ep, &msg, FI_COMPLETION);
	/* a completion must mean: in the target's memory */
	return (int)fi_writemsg(e->ep, &msg,
				FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

int rmx_fi_read(struct rmaext_fabric *f, const struct rmx_remote *from,
		void *buf, size_t len, void *desc, struct rmx_call *call)
{
	return rma_post(f, false, from, buf, len, desc, call);
}

int rmx_fi_write(struct rmaext_fabric *f, const struct rmx_remote *to,
		 void *buf, size_t len, void *desc, struct rmx_call *call)
{
	return rma_post(f, true, to, buf, len, desc, call);
}

int rmx_fi_put_copy(struct rmaext_fabric *f, const struct rmx_remote *to,
		    const void *buf, size_t len)
{
	const struct rmx_endpoint *e = f->endpoint;
	const struct iovec iov[] = {
		{.iov_base = (void *)buf, .iov_len = len / 2},
		{.iov_base = (char *)buf + len / 2, .iov_len = len - len / 2},
	};
	const struct fi_rma_iov remote = {
		.addr = to->place,
		.len = len,
		.key = to->key,
	};
	const struct fi_msg_rma msg = {
		.msg_iov = iov,
		.iov_count = 2,
		.addr = to->peer,
		.rma_iov = &remote,
		.rma_iov_count = 1,
	};

	if (e->two_pieces)
		return (int)fi_writemsg(e->ep, &msg, FI_INJECT);
	return (int)fi_inject_write(e->ep, buf, len, to->peer, to->place,
				    to->key);
}

/* -- completions */

/* Returns whether there was an error, of which *context_p is the call's. */
static bool cq_read_error(struct rmaext_fabric *f, void **context_p,
			  struct rmaext_error *record)
{
	struct fid_cq *cq = f->endpoint->cq;
	struct fi_cq_err_entry entry;
	char text[128];
	const char *words;

	memset(&entry, 0, sizeof(entry));
	if (fi_cq_readerr(cq, &entry, 0) < 0)
		return false;
	*context_p = entry.op_context;
	/* some providers leave err 0 when a connection is lost */
	record->code = entry.err ? -entry.err : -FI_EIO;
	record->prov_errno = entry.prov_errno;
	words = fi_cq_strerror(cq, entry.prov_errno, entry.err_data, text,
			       sizeof(text));
	memcpy(record->call, "fi_cq_readerr", sizeof("fi_cq_readerr"));
	strncpy(record->detail, f->lib->strerror(-record->code),
		sizeof(record->detail) - 1);
	if (words && *words) {
		size_t used = strlen(record->detail);

		strncat(record->detail,
			"; provider: ", sizeof(record->detail) - used - 1);
		used = strlen(record->detail);
		strncat(record->detail, words,
			sizeof(record->detail) - used - 1);
	}
	return true;
}

int rmx_fi_poll(struct rmaext_fabric *f, struct rmx_completion *done,
		struct rmaext_error *failure)
{
	struct fi_cq_msg_entry entries[RMX_POLL_MOST];
	const ssize_t n = fi_cq_read(f->endpoint->cq, entries, RMX_POLL_MOST);

	if (n == -FI_EAVAIL) {
		done->len = 0;
		return cq_read_error(f, &done->context, failure);
	}
	for (ssize_t i = 0; i < n; i++)
		done[i] = (struct rmx_completion){entries[i].op_context,
						  entries[i].len};
	return n > 0 ? (int)n : 0;
}

/* -FI_EAGAIN: something has come since the queue was read. */
bool rmx_fi_arm(struct rmaext_fabric *f)
{
	struct fid *fid = &f->endpoint->cq->fid;

	return !fi_trywait(f->endpoint->fabric, &fid, 1);
}
