/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations in flight, and the queues that tell of their end. */
#define _GNU_SOURCE
#include "demand.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* -- operations ----------------------------------------------------------- */

struct dm_op *dm_op_begin(struct dm_endpoint *ep, void *context)
{
	struct dm_op *op = calloc(1, sizeof(*op));

	if (!op)
		return NULL;
	op->ep = ep;
	op->context = context;
	dm_lock();
	op->next = ep->pending;
	op->prev = &ep->pending;
	if (op->next)
		op->next->prev = &op->next;
	ep->pending = op;
	dm_unlock();
	return op;
}

/* The lock is held. */
static void release(struct dm_op *op)
{
	for (size_t i = 0; i < op->n_regions; i++)
		op->regions[i]->ops--;
	op->n_regions = 0;
	if (op->prev) {
		*op->prev = op->next;
		if (op->next)
			op->next->prev = op->prev;
	}
	op->prev = NULL;
}

void dm_op_drop(struct dm_op *op)
{
	dm_lock();
	release(op);
	dm_unlock();
	free(op);
}

struct dm_op *dm_op_of(struct dm_endpoint *ep, void *context)
{
	struct dm_op *op;

	dm_lock();
	for (op = ep->pending; op && op->context != context; op = op->next)
		;
	dm_unlock();
	return op;
}

/*
 * The endpoint is closed: its operations are over. Their completions may still
 * be read, so that the structs stay.
 */
void dm_op_forget_all(struct dm_endpoint *ep)
{
	dm_lock();
	while (ep->pending)
		release(ep->pending);
	dm_unlock();
}

/* It is over: the application's context. */
static void *done(void *context, bool good)
{
	struct dm_op *op = context;

	if (!op) /* an event that is no operation's end */
		return NULL;
	context = op->context;
	dm_lock();
	if (good && op->written)
		atomic_fetch_add(&op->written->writes, 1);
	release(op);
	dm_unlock();
	free(op);
	return context;
}

/* -- completion queues ---------------------------------------------------- */

/*
 * Completions go through `held`, where they wait until they are due. Those of
 * all formats begin alike, so that the largest has room for each.
 */
struct held {
	struct held *next;
	struct fi_cq_tagged_entry entry;
	fi_addr_t from;
	uint64_t due_ns;
	int err;
};

struct cq {
	struct fid_cq *fid;
	struct dm_domain *domain;
	struct fi_ops *fid_ops;
	struct fi_ops_cq *ops;
	size_t size; /* of an entry */
	size_t endpoints;
	struct held *held, **end;
	int epoll, timer;
	pthread_mutex_t lock;
};

static struct cq *cq_of(struct fid *fid)
{
	return dm_ops_owner(fid->ops);
}

void dm_cq_count(struct fid *fid, int change)
{
	struct cq *cq = cq_of(fid);

	dm_lock();
	cq->endpoints += (size_t)change;
	dm_unlock();
}

static int cq_close(struct fid *fid)
{
	struct cq *cq = cq_of(fid);
	void *copies[] = {fid->ops, cq->fid->ops};
	struct held *h;
	int ret;

	if (cq->endpoints) /* ofi_rxm would close its half of it */
		return dm_violated(DM_order, -FI_EBUSY,
				   "completion queue closed while in use");
	ret = dm_close_lower(cq->fid_ops, fid, "completion queue");
	if (ret)
		return ret;
	while ((h = cq->held)) {
		cq->held = h->next;
		free(h);
	}
	if (cq->epoll >= 0) {
		close(cq->epoll);
		close(cq->timer);
	}
	dm_domain_count(cq->domain, -1);
	dm_ops_free(copies[0]);
	dm_ops_free(copies[1]);
	pthread_mutex_destroy(&cq->lock);
	free(cq);
	return 0;
}

/* Take what the lower queue has. */
static ssize_t fetch(struct cq *cq)
{
	char buf[16 * sizeof(struct fi_cq_tagged_entry)];
	fi_addr_t from[16];
	ssize_t n = cq->ops->readfrom(cq->fid, buf, 16, from);

	for (ssize_t i = 0; i < n; i++) {
		struct held *h = calloc(1, sizeof(*h));

		if (!h)
			abort();
		memcpy(&h->entry, buf + (size_t)i * cq->size, cq->size);
		h->from = from[i];
		h->due_ns = dm_now_ns() + dm_demands()->delay_ns;
		h->err = -dm_called(DM_CALL_completion);
		*cq->end = h;
		cq->end = &h->next;
	}
	return n;
}

static struct held *pop(struct cq *cq)
{
	struct held *h = cq->held;

	cq->held = h->next;
	if (!cq->held)
		cq->end = &cq->held;
	return h;
}

static bool is_due(const struct held *h)
{
	return h && h->due_ns <= dm_now_ns();
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buf, size_t count,
			   fi_addr_t *from)
{
	struct cq *cq = cq_of(&fid->fid);
	size_t n = 0;
	ssize_t ret;

	pthread_mutex_lock(&cq->lock);
	ret = fetch(cq);
	while (n < count && is_due(cq->held) && !cq->held->err) {
		struct held *h = pop(cq);

		h->entry.op_context = done(h->entry.op_context, true);
		memcpy((char *)buf + n * cq->size, &h->entry, cq->size);
		if (from)
			from[n] = h->from;
		n++;
		free(h);
	}
	if (n)
		ret = (ssize_t)n;
	else if (is_due(cq->held))
		ret = count ? -FI_EAVAIL : 0;
	else if (ret >= 0)
		ret = count ? -FI_EAGAIN : 0;
	pthread_mutex_unlock(&cq->lock);
	return ret;
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
	return cq_readfrom(fid, buf, count, NULL);
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *buf,
			  uint64_t flags)
{
	struct cq *cq = cq_of(&fid->fid);
	ssize_t ret;

	pthread_mutex_lock(&cq->lock);
	if (is_due(cq->held) && cq->held->err) {
		struct held *h = pop(cq);

		buf->op_context = done(h->entry.op_context, false);
		buf->flags = cq->size > sizeof(void *) ? h->entry.flags : 0;
		buf->len = buf->olen = 0;
		buf->buf = NULL;
		buf->data = buf->tag = 0;
		buf->err = h->err;
		buf->prov_errno = h->err;
		buf->err_data_size = 0;
		free(h);
		ret = 1;
	} else {
		ret = cq->ops->readerr(fid, buf, flags);
		if (ret > 0)
			buf->op_context = done(buf->op_context, false);
	}
	pthread_mutex_unlock(&cq->lock);
	return ret;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buf, size_t count,
			    fi_addr_t *from, const void *cond, int timeout)
{
	uint64_t start = dm_now_ns();
	ssize_t n;

	(void)cond;
	while ((n = cq_readfrom(fid, buf, count, from)) == -FI_EAGAIN) {
		if (timeout >= 0 &&
		    dm_now_ns() - start > (uint64_t)timeout * 1000000u)
			break;
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	return n;
}

static ssize_t cq_sread(struct fid_cq *fid, void *buf, size_t count,
			const void *cond, int timeout)
{
	return cq_sreadfrom(fid, buf, count, NULL, cond, timeout);
}

/*
 * Something is held: it is due, or the descriptor to sleep on, which then is
 * one for both the lower queue's and a timer, will say when it is.
 */
bool dm_cq_waiting(struct fid *fid)
{
	struct cq *cq = cq_of(fid);
	bool waiting;

	pthread_mutex_lock(&cq->lock);
	waiting = cq->held && (cq->timer < 0 || is_due(cq->held));
	if (cq->held && !waiting) {
		struct itimerspec when = {0};

		when.it_value.tv_sec = (time_t)(cq->held->due_ns / 1000000000u);
		when.it_value.tv_nsec = (long)(cq->held->due_ns % 1000000000u);
		timerfd_settime(cq->timer, TFD_TIMER_ABSTIME, &when, NULL);
	} else if (cq->timer >= 0) {
		timerfd_settime(cq->timer, 0, &(struct itimerspec){0}, NULL);
	}
	pthread_mutex_unlock(&cq->lock);
	return waiting;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	struct cq *cq = cq_of(fid);
	int ret = cq->fid_ops->control(fid, command, arg);
	struct epoll_event event = {.events = EPOLLIN};

	if (ret || command != FI_GETWAIT || !dm_demands()->delay_ns)
		return ret;
	if (cq->epoll < 0) {
		cq->epoll = epoll_create1(EPOLL_CLOEXEC);
		cq->timer = timerfd_create(CLOCK_MONOTONIC,
					   TFD_CLOEXEC | TFD_NONBLOCK);
		if (epoll_ctl(cq->epoll, EPOLL_CTL_ADD, *(int *)arg, &event) ||
		    epoll_ctl(cq->epoll, EPOLL_CTL_ADD, cq->timer, &event))
			return -FI_EOTHER;
	}
	*(int *)arg = cq->epoll;
	return 0;
}

int dm_cq_patch(struct dm_domain *domain, struct fid_cq *fid,
		const struct fi_cq_attr *attr)
{
	static const size_t sizes[] = {
		[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
		[FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
		[FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
		[FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry),
	};
	struct cq *cq = calloc(1, sizeof(*cq));

	if (!cq)
		abort();
	cq->fid = fid;
	cq->domain = domain;
	dm_domain_count(domain, 1);
	cq->size = sizes[attr->format];
	cq->end = &cq->held;
	cq->epoll = cq->timer = -1;
	pthread_mutex_init(&cq->lock, NULL);
	cq->fid_ops = fid->fid.ops;
	cq->ops = fid->ops;
	fid->fid.ops = dm_ops_copy(cq->fid_ops, cq);
	fid->fid.ops->close = cq_close;
	fid->fid.ops->control = cq_control;
	fid->ops = dm_ops_copy(cq->ops, cq);
	fid->ops->read = cq_read;
	fid->ops->readfrom = cq_readfrom;
	fid->ops->readerr = cq_readerr;
	fid->ops->sread = cq_sread;
	fid->ops->sreadfrom = cq_sreadfrom;
	return 0;
}
