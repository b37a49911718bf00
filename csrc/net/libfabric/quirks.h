/* SPDX-License-Identifier: BSD-3-Clause */
/* Everything that depends on a libfabric version or a provider's quirk. */
#ifndef RMAEXT_QUIRKS_H
#define RMAEXT_QUIRKS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

/*
 * The interface's version that we ask for, as the headers of 1.17 have it. To
 * ask for more breaks an extension built with 1.17 on libfabric 2.x.
 */
#define RMX_FI_VERSION FI_VERSION(1, 17)

/*
 * These flags are deprecated, but providers of 1.x still go by them. The
 * headers of 2.x warn of each use, which no option silences; the values are the
 * ABI's.
 */
#define RMX_MR_BASIC (1 << 0)
#define RMX_MR_SCALABLE (1 << 1)
#define RMX_LOCAL_MR ((uint64_t)1 << 55)
#define RMX_REG_MR ((uint64_t)1 << 59)
#if FI_MAJOR_VERSION < 2
_Static_assert(RMX_MR_BASIC == FI_MR_BASIC, "FI_MR_BASIC");
_Static_assert(RMX_MR_SCALABLE == FI_MR_SCALABLE, "FI_MR_SCALABLE");
_Static_assert(RMX_LOCAL_MR == FI_LOCAL_MR, "FI_LOCAL_MR");
_Static_assert(RMX_REG_MR == FI_REG_MR, "FI_REG_MR");
#endif

/*
 * FI_* settings for a copy of libfabric that nobody has initialised. A copy
 * that others may use, too, has the last ones only. With the first ones, rxm
 * has 8 receive buffers a connection (see rmx_rxm_over_tcp), which take 0.19 MB
 * with 1.17 and 0.35 MB with 2.5.1, where its default of 128 takes 2.2 and 4.3
 * MB (measured). A peer has at most 4 requests and 4 replies on their way.
 *
 * rxm of 1.17 loses one of FI_OFI_RXM_RX_SIZE places for receives whenever the
 * sender of a message of more than 16 KiB dies before it has been fetched.
 *
 * Native tcp sets 1,024 entries for messages to zero as the first one is
 * needed: with its default of 16 KiB for tagged messages in each, of which
 * rmaext has none, that is 16 MB and half of an endpoint's time.
 *
 * The registration cache of verbs (1.17) keeps what it has registered when that
 * memory is freed, at least beside MPI's hooks: peers then write to something
 * else than a new window at the same address (seen over soft-RoCE).
 */
static const char *const rmx_tuning[][2] = {
	{"FI_OFI_RXM_MSG_RX_SIZE", "8"}, {"FI_OFI_RXM_MSG_TX_SIZE", "128"},
	{"FI_OFI_RXM_RX_SIZE", "16384"}, {"FI_TCP_MAX_RX_SIZE", "512"},
	{"FI_MR_CACHE_MAX_COUNT", "0"},
};
#define RMX_TUNING_OF_RXM 3 /* first ones */

/*
 * Is the address of such an endpoint that of a listening TCP socket? These
 * providers do not say themselves that a peer refuses a connection.
 */
static inline bool rmx_listens_on_tcp(const char *provider)
{
	return !strcmp(provider, "tcp;ofi_rxm") || !strcmp(provider, "tcp") ||
	       !strcmp(provider, "net;ofi_rxm") || !strcmp(provider, "net");
}

/*
 * Does an injected write crash this process when the connection ends before it
 * has left? tcp reports it with a context of NULL, which rxm reads (1.17 to
 * 2.5.1). A write of two pieces is copied by rxm, into a buffer that is its
 * context.
 */
static inline bool rmx_forgets_injected(const char *provider)
{
	return !strcmp(provider, "tcp;ofi_rxm") ||
	       !strcmp(provider, "net;ofi_rxm");
}

/* Has the user asked tcp, or net, to accept connections through io_uring? */
static inline bool rmx_accepts_in_kernel(void)
{
	static const char *const names[] = {"FI_TCP_IO_URING",
					    "FI_NET_IO_URING"};

	for (size_t i = 0; i < 2; i++) {
		const char *value = getenv(names[i]);

		if (value && strcmp(value, "0") && strcmp(value, "no") &&
		    strcmp(value, "false") && strcmp(value, "off"))
			return true;
	}
	return false;
}

/*
 * Settings that rxm reads while a domain and an endpoint over tcp open, whoever
 * has initialised the copy (1.17 to 2.5.1).
 *
 * Where 1.17 receives into the caller's buffer at once (dynamic buffers), a cut
 * message loses the place of its receive. And a message that is sent in
 * segments (SAR), of which some are missing, is lost with its receive (1.17),
 * or crashes the receiver, which takes a node of a list for something else
 * (rxm_close_conn of 2.5.1). The sender chooses: this is set at all endpoints.
 *
 * With a shared receive context a buffer is lost for good when the message that
 * it receives is cut short: rxm_handle_comp_error() frees it and nobody posts
 * another, so that the endpoint takes no message any more after as many deaths
 * of peers. Buffers of a connection of its own come and go with it.
 */
static const char *const rmx_rxm_over_tcp[][2] = {
	{"FI_OFI_RXM_ENABLE_DYN_RBUF", "0"},
	{"FI_OFI_RXM_SAR_LIMIT", "1"},
	{"FI_OFI_RXM_USE_SRX", "0"}, /* the last one, see below */
};

/*
 * A copy that MPI has loaded has 128 buffers a connection, and 4,096 in a
 * shared context: the endpoint of more processes than these shares them.
 */
#define RMX_UNSHARED_MOST 32

/*
 * Is it ofi_mrail, which sends over several rails? It marks every message as a
 * tagged one (1.9 to 2.5.1), so that none ever meets an fi_recv. It keeps
 * messages of more than 16 KiB and has the receiver fetch them from the source
 * address of its fi_recv, which is unspecified here, so that it crashes. It
 * lets two threads read its queues at once, which then swap messages. And it
 * cuts each read and write into one part a rail, of which none may be empty.
 */
static inline bool rmx_has_rails(const char *provider)
{
	return strstr(provider, "ofi_mrail");
}

/*
 * Does it run out of receive buffers? From 2.0 on ofi_rxm does not know
 * FI_DISCARD, by which ofi_mrail gives the buffer of a message back: after
 * 2,048 messages a rail takes no more.
 */
static inline bool rmx_runs_dry(const char *provider, uint32_t version)
{
	return rmx_has_rails(provider) && FI_MAJOR(version) >= 2;
}

/* Returns the bytes of a message at most; ofi_mrail's headers take a part. */
static inline size_t rmx_message_most(const struct fi_info *info)
{
	return rmx_has_rails(info->fabric_attr->prov_name)
		       ? (16 << 10) - 128
		       : info->ep_attr->max_msg_size;
}

/* ofi_mrail finds its rails in FI_OFI_MRAIL_ADDR and takes no source address.
 */
static inline bool rmx_takes_address(const char *provider)
{
	return !rmx_has_rails(provider);
}

/*
 * Returns the bytes that a read or write has at least: one a rail. Each rail
 * has 16 bytes of the key.
 */
static inline size_t rmx_least(const char *provider, size_t key_size)
{
	return rmx_has_rails(provider) ? key_size / 16 : 1;
}

/*
 * Returns how many pieces one registration takes. The software providers look
 * for an address in the first piece only (ofi_mr_map_verify, 1.5 to 2.5.1),
 * whatever they say.
 */
static inline size_t rmx_pieces(const struct fi_info *info)
{
	const char *provider = info->fabric_attr->prov_name;
	size_t limit = info->domain_attr->mr_iov_limit;

	if (!limit || !strcmp(provider, "sockets") ||
	    !strcmp(provider, "shm") || rmx_has_rails(provider))
		return 1;
	return limit;
}

#endif
