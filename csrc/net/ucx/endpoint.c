/* SPDX-License-Identifier: BSD-3-Clause */
/* Opens and closes a worker of UCP, adds its peers, and has its limits. */
#define _GNU_SOURCE
#include "net/ucx/ucx.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#define RMX_CLOSING                                              \
	((int64_t)200 * 1000 * 1000) /* ns that connections have \
				      */

static int failed(const struct rmaext_fabric *f, ucs_status_t status,
		  const char *call)
{
	return rmx_fail(rmx_ucx_code(status), RMX_NO_RANK, call, "UCX: %s",
			f->lib->ucp.status_string(status));
}

#define TRY(call, ...)                                         \
	do {                                                   \
		const ucs_status_t status = (__VA_ARGS__);     \
                                                               \
		if (status)                                    \
			return failed(f, status, "ucp_" call); \
	} while (0)

/* The kernel's RDMA devices, for an error. */
static void devices_list(char *buf, size_t size)
{
	DIR *folder = opendir("/sys/class/infiniband");
	struct rmx_text text = {.buf = buf, .size = size};
	const struct dirent *it;

	snprintf(buf, size, "none");
	while (folder && (it = readdir(folder)))
		if (*it->d_name != '.')
			rmx_text_add(&text, "%s%s", text.used ? ", " : "",
				     it->d_name);
	if (folder)
		closedir(folder);
}

/*
 * What must not be otherwise, whatever the environment says. With UCX's cache
 * of registrations an unmapped region stays registered: its key would still be
 * good, and a peer could write to memory that has been freed. And software that
 * emulates puts must not win over a device that does them.
 */
static int config_set(const struct rmaext_fabric *f, ucp_config_t *config,
		      const char *transports)
{
	const char *const settings[][2] = {
		{"RCACHE_ENABLE", "n"},
		{"PREFER_OFFLOAD", "y"},
		{"TLS", transports},
	};
	const int count = f->lib->any ? 2 : 3;

	for (int i = 0; i < count; i++) {
		const char *const *it = settings[i];
		const ucs_status_t status =
			f->lib->ucp.config_modify(config, it[0], it[1]);

		if (status)
			return rmx_fail(rmx_ucx_code(status), RMX_NO_RANK,
					"ucp_config_modify", "UCX: %s=%s: %s",
					it[0], it[1],
					f->lib->ucp.status_string(status));
	}
	return 0;
}

static int context_open(struct rmaext_fabric *f)
{
	const ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES |
			      UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		.features =
			UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
		.mt_workers_shared = 1, /* any thread registers memory */
	};
	const char *wanted = getenv("UCX_TLS");
	const struct rmx_ucp *ucp = &f->lib->ucp;
	char names[128], devices[96];
	ucp_config_t *config;
	ucs_status_t status;
	int ret;

	if (!rmx_ucx_transports(wanted, names, sizeof(names)) && !f->lib->any)
		return rmx_fail(-FI_ENODATA, RMX_NO_RANK, "rmaext_fabric_open",
				"UCX_TLS=%s leaves none of UCX's transports "
				"that do RDMA, rc and dc",
				wanted);
	TRY("config_read", ucp->config_read(NULL, NULL, &config));
	ret = config_set(f, config, names);
	if (ret) {
		ucp->config_release(config);
		return ret;
	}
	status = ucp->init_version(UCP_API_1_20, &params, config,
				   &f->endpoint->context);
	ucp->config_release(config);
	if (!status)
		return 0;
	f->endpoint->context = NULL;
	devices_list(devices, sizeof(devices));
	return rmx_fail(status == UCS_ERR_NO_DEVICE ? -FI_ENODATA
						    : rmx_ucx_code(status),
			RMX_NO_RANK, "ucp_init",
			"UCX: %s: it needs an RDMA device, by rc or dc; there "
			"are: %s. Unset RMAEXT_TRANSPORT, and libfabric does "
			"without",
			ucp->status_string(status), devices);
}

/*
 * UCP's address grows with devices and transports, some 70 bytes for each
 * device; those of ranks with fewer get zeros behind them, see limits.padded.
 */
static int address_get(struct rmaext_fabric *f)
{
	const struct rmx_ucp *ucp = &f->lib->ucp;
	struct rmx_endpoint *e = f->endpoint;
	ucp_address_t *address;
	size_t len;

	TRY("worker_get_address",
	    ucp->worker_get_address(e->worker, &address, &len));
	if (len <= RMX_NAME) {
		f->address_len = len;
		memcpy(f->address, address, len);
	}
	ucp->worker_release_address(e->worker, address);
	if (len <= RMX_NAME)
		return 0;
	return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, "ucp_worker_get_address",
			"an address of %zu bytes, and there is room for %d: "
			"let UCX_NET_DEVICES name fewer devices",
			len, RMX_NAME);
}

/* -- peers */

static int peer_add(struct rmaext_fabric *f, const void *address, size_t len,
		    uint64_t *peer_p)
{
	struct rmx_endpoint *e = f->endpoint;
	/* a client may send any; UCP reads on to what its bytes say */
	struct rmx_ucx_peer *peer = calloc(1, sizeof(*peer) + RMX_NAME);
	int ret;

	if (!peer)
		return rmx_no_memory("a peer");
	peer->endpoint = e;
	memcpy(peer->address, address, len);
	pthread_mutex_lock(&e->lock);
	ret = rmx_ucx_connect(f, peer);
	if (!ret) {
		peer->next = e->peers;
		peer->prev = &e->peers;
		if (peer->next)
			peer->next->prev = &peer->next;
		e->peers = peer;
	}
	pthread_mutex_unlock(&e->lock);
	if (ret)
		free(peer);
	*peer_p = (uintptr_t)peer;
	return ret;
}

static void peer_remove(struct rmaext_fabric *f, uint64_t addr)
{
	struct rmx_ucx_peer *peer = (void *)(uintptr_t)addr;
	struct rmx_endpoint *e = f->endpoint;

	pthread_mutex_lock(&e->lock);
	rmx_ucx_disconnect(peer);
	rmx_ucx_settle(e); /* it is in none of the lists any more */
	*peer->prev = peer->next;
	if (peer->next)
		peer->next->prev = peer->prev;
	pthread_mutex_unlock(&e->lock);
	free(peer);
}

/* -- opening */

static int worker_open(struct rmaext_fabric *f)
{
	const ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SERIALIZED,
	};
	const ucp_am_handler_param_t handler = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
			      UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
			      UCP_AM_HANDLER_PARAM_FIELD_CB |
			      UCP_AM_HANDLER_PARAM_FIELD_ARG,
		.flags = UCP_AM_FLAG_WHOLE_MSG,
		.cb = rmx_ucx_arrived,
		.arg = f->endpoint,
	};
	const struct rmx_ucp *ucp = &f->lib->ucp;
	struct rmx_endpoint *e = f->endpoint;

	TRY("worker_create",
	    ucp->worker_create(e->context, &params, &e->worker));
	TRY("worker_set_am_recv_handler",
	    ucp->worker_set_am_recv_handler(e->worker, &handler));
	TRY("worker_get_efd",
	    ucp->worker_get_efd(e->worker, &f->progress.cq_fd));
	return address_get(f);
}

/* It is its own peer for a moment: is that by RDMA? */
static int endpoint_check(struct rmaext_fabric *f)
{
	uint64_t own;
	int ret = peer_add(f, f->address, f->address_len, &own);

	if (!ret)
		peer_remove(f, own);
	return ret;
}

static int endpoint_open(struct rmaext_fabric *f,
			 const struct rmaext_fabric_options *options,
			 size_t least_message)
{
	int ret;

	(void)least_message; /* they may have any length */
	if (options->secret)
		return rmx_fail(-FI_ENOSYS, RMX_NO_RANK, "rmaext_fabric_open",
				"UCX: what it sends cannot be signed: unset "
				"RMAEXT_TRANSPORT, or RMAEXT_SECRET");
	f->endpoint = calloc(1, sizeof(*f->endpoint));
	if (!f->endpoint)
		return rmx_no_memory("an endpoint");
	f->endpoint->ucp = &f->lib->ucp;
	pthread_mutex_init(&f->endpoint->lock, NULL);
	f->limits = (struct rmx_limits){
		.provider = "ucx",
		.message = (size_t)1 << 30,
		.chunk = (size_t)1 << 30,
		.least = 1,
		.copied = 1024,
		.pieces = 1,
		.region_pieces = 1,
		.keys = UINT64_MAX,
		.registers = true,
		.addressed = true,
		.padded = true,
		.raw_keys = true,
	};
	ret = rmx_admission_init(&f->admission, options);
	f->admission.anywhere = true; /* an address cannot be read */
	if (!ret)
		ret = context_open(f);
	if (!ret)
		ret = worker_open(f);
	return ret ? ret : endpoint_check(f);
}

/* -- closing */

static void close_over(void *request, ucs_status_t status, void *data)
{
	struct rmx_endpoint *e = data;

	(void)status;
	e->ucp->request_free(request);
	e->closing--;
}

static bool writes_end(const struct rmx_endpoint *e)
{
	for (const struct rmx_ucx_peer *p = e->peers; p; p = p->next)
		if (p->flushing || p->written.first)
			return false;
	return true;
}

/*
 * What was put and sent gets there before its connection ends, if the peer is
 * there; one that is gone keeps nobody for long.
 */
static void connections_close(struct rmx_endpoint *e)
{
	const ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
				UCP_OP_ATTR_FIELD_USER_DATA,
		.cb.send = close_over,
		.user_data = e,
	};
	const int64_t end = rmx_now() + RMX_CLOSING;

	while (!writes_end(e) && rmx_now() < end) {
		e->ucp->worker_progress(e->worker);
		rmx_ucx_settle(e);
	}
	for (struct rmx_ucx_peer *p = e->peers; p; p = p->next) {
		ucp_ep_h ep = p->ep;
		ucs_status_ptr_t request;

		if (!ep || p->broken || p->flushing || p->written.first) {
			rmx_ucx_disconnect(p);
			continue;
		}
		p->ep = NULL;
		request = e->ucp->ep_close_nbx(ep, &param);
		e->closing += request && !UCS_PTR_IS_ERR(request);
	}
	while (e->closing && rmx_now() < end)
		e->ucp->worker_progress(e->worker);
}

static void endpoint_close(struct rmaext_fabric *f, int *ret_p)
{
	struct rmx_endpoint *e = f->endpoint;
	struct rmx_ucx_arrival *arrival;

	(void)ret_p; /* UCP's functions that close return nothing */
	if (!e || !e->worker)
		return;
	pthread_mutex_lock(&e->lock);
	connections_close(e);
	e->ucp->worker_destroy(e->worker);
	e->worker = NULL;
	f->progress.cq_fd = -1;
	while ((arrival = e->arrivals)) {
		e->arrivals = arrival->next;
		free(arrival);
	}
	pthread_mutex_unlock(&e->lock);
}

static void endpoint_end(struct rmaext_fabric *f, bool stays, int *ret_p)
{
	struct rmx_endpoint *e = f->endpoint;
	struct rmx_ucx_peer *peer;

	(void)stays, (void)ret_p;
	if (!e)
		return;
	if (e->context)
		e->ucp->cleanup(e->context);
	while ((peer = e->peers)) {
		e->peers = peer->next;
		free(peer);
	}
	rmx_admission_close(&f->admission);
	pthread_mutex_destroy(&e->lock);
	free(e);
	f->endpoint = NULL;
}

/* -- what it is */

static const char *words_of(const struct rmaext_fabric *f, int code)
{
	(void)f;
	return strerror(code < 0 ? -code : code);
}

static void endpoint_describe(const struct rmaext_fabric *f,
			      struct rmaext_fabric_info *info_p)
{
	struct rmx_endpoint *e = f->endpoint;

	pthread_mutex_lock(&e->lock);
	snprintf(info_p->domain, sizeof(info_p->domain), "%.63s", e->devices);
	pthread_mutex_unlock(&e->lock);
	snprintf(info_p->address, sizeof(info_p->address), "ucx://%016llx",
		 (unsigned long long)rmx_name(f->address, f->address_len));
	info_p->mr_mode = RMAEXT_MR_LOCAL | RMAEXT_MR_RAW |
			  RMAEXT_MR_VIRT_ADDR | RMAEXT_MR_ALLOCATED |
			  RMAEXT_MR_PROV_KEY;
	info_p->key_size = RMX_UCX_KEY;
	info_p->max_msg_size = f->limits.message;
}

const struct rmx_transport rmx_ucx = {
	.open = endpoint_open,
	.close = endpoint_close,
	.end = endpoint_end,
	.words = words_of,
	.describe = endpoint_describe,
	.add = peer_add,
	.remove = peer_remove,
	.receive = rmx_ucx_receive,
	.send = rmx_ucx_send,
	.inject = rmx_ucx_inject,
	.read = rmx_ucx_read,
	.write = rmx_ucx_write,
	.put_copy = rmx_ucx_put_copy,
	.poll = rmx_ucx_poll,
	.arm = rmx_ucx_arm,
	.lost = rmx_ucx_message_lost,
	.register_memory = rmx_ucx_register,
	.deregister = rmx_ucx_deregister,
	.deregister_call = "ucp_mem_unmap",
	.refresh = rmx_ucx_refresh,
	.key = rmx_ucx_key,
	.key_map = rmx_ucx_key_map,
	.key_unmap = rmx_ucx_key_unmap,
};
