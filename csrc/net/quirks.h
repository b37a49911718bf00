/* SPDX-License-Identifier: BSD-3-Clause */
/* Everything that depends on a libfabric version or a provider's quirk. */
#ifndef RMAEXT_QUIRKS_H
#define RMAEXT_QUIRKS_H

#include <stdbool.h>
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
 * FI_* settings for a copy of libfabric that nobody has initialised. With its
 * defaults rxm 2.x takes 138 MB for the first endpoint and 1 MB a peer, with
 * these 37 MB and 22 kB (measured).
 *
 * The registration cache of verbs (1.17) keeps what it has registered when that
 * memory is freed, at least beside MPI's hooks: peers then write to something
 * else than a new window at the same address (seen over soft-RoCE).
 */
static const char *const rmx_tuning[][2] = {
	{"FI_OFI_RXM_MSG_RX_SIZE", "128"},
	{"FI_OFI_RXM_MSG_TX_SIZE", "128"},
	{"FI_MR_CACHE_MAX_COUNT", "0"},
};

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
