/* SPDX-License-Identifier: BSD-3-Clause */
/* Everything that depends on a libfabric version or a provider's quirk. */
#ifndef RMAEXT_COMPAT_H
#define RMAEXT_COMPAT_H

#include <stdbool.h>
#include <string.h>

#include <rdma/fabric.h>

/* The headers' version; asking for more breaks on 2.x built with 1.17. */
#define RMX_FI_VERSION FI_VERSION(1, 17)

/*
 * fi_* settings for a copy of libfabric that nobody has initialised. rxm 2.x
 * takes 138 MB for the first endpoint and 1 MB a peer with its defaults,
 * 37 MB and 22 kB with these (measured).
 */
static const char *const rmx_tuning[][2] = {
	{"FI_OFI_RXM_MSG_RX_SIZE", "128"},
	{"FI_OFI_RXM_MSG_TX_SIZE", "128"},
};

/*
 * Do remote atomics run on the target's CPU, as __atomic operations, so that
 * they mix with the CPU atomics of the direct route? True of the software
 * providers (read in their sources), not of a NIC that does its own.
 */
static inline bool rmx_cpu_atomics(const char *provider)
{
	static const char *const software[] = {
		"ofi_rxm", "ofi_rxd", "shm", "sockets", "efa", "net", "tcp",
	};

	for (size_t i = 0; i < sizeof(software) / sizeof(*software); i++)
		if (strstr(provider, software[i]))
			return true;
	return false;
}

/*
 * ofi_rxd says that atomics are valid; in 1.17 they crash both sides, in 2.5.1
 * one of two crossing ones never completes (measured).
 */
static inline bool rmx_atomics_broken(const char *provider)
{
	return strstr(provider, "ofi_rxd") != NULL;
}

/*
 * Its address is that of a listening TCP socket, and it does not say itself
 * that a peer refuses a connection.
 */
static inline bool rmx_listens_on_tcp(const char *provider)
{
	return !strcmp(provider, "tcp;ofi_rxm") || !strcmp(provider, "tcp") ||
	       !strcmp(provider, "net;ofi_rxm") || !strcmp(provider, "net");
}

/*
 * ofi_mrail finds its rails in FI_OFI_MRAIL_ADDR and takes no source address.
 */
static inline bool rmx_takes_address(const char *provider)
{
	return !strstr(provider, "ofi_mrail");
}

#endif
