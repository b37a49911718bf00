/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists the endpoints that could be opened here, each with its network. */
#define _GNU_SOURCE
#include "net/libfabric/libfabric.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>

static const void *sockaddr_ip(const struct sockaddr *sa, size_t *len)
{
	if (sa->sa_family == AF_INET) {
		*len = 4;
		return &((const struct sockaddr_in *)(const void *)sa)
				->sin_addr;
	}
	if (sa->sa_family == AF_INET6) {
		*len = 16;
		return &((const struct sockaddr_in6 *)(const void *)sa)
				->sin6_addr;
	}
	return NULL;
}

/* Returns the interface that has the address, and its prefix length. */
static const char *interface_find(const struct ifaddrs *all,
				  const struct sockaddr *sa, int *prefix)
{
	size_t len = 0, other;
	const void *ip = sockaddr_ip(sa, &len);

	for (; all; all = all->ifa_next) {
		const void *mine;

		if (!all->ifa_addr || !all->ifa_netmask ||
		    all->ifa_addr->sa_family != sa->sa_family)
			continue;
		mine = sockaddr_ip(all->ifa_addr, &other);
		if (!mine || memcmp(mine, ip, len))
			continue;
		mine = sockaddr_ip(all->ifa_netmask, &other);
		*prefix = 0;
		for (size_t i = 0; mine && i < len; i++)
			*prefix += __builtin_popcount(
				((const unsigned char *)mine)[i]);
		return all->ifa_name;
	}
	return NULL;
}

int rmaext_candidates(rmaext_library *lib, const char *provider, int mr_basic,
		      char *buf, size_t *len)
{
	struct fi_info *hints = rmx_hints(lib, provider, NULL, mr_basic);
	struct ifaddrs *interfaces = NULL;
	struct fi_info *infos = NULL;
	struct rmx_text text = {.buf = buf, .size = *len};

	if (!hints)
		return rmx_no_memory("the hints of fi_getinfo");
	if (getifaddrs(&interfaces))
		interfaces = NULL;
	if (rmx_getinfo(lib, NULL, 0, hints, &infos))
		infos = NULL; /* that there is none is an answer */
	for (struct fi_info *i = infos; i; i = i->next) {
		const struct sockaddr *sa = i->src_addr;
		const char *name = NULL;
		char ip[INET6_ADDRSTRLEN] = "";
		size_t ip_len;
		int prefix = 0;

		if (sa &&
		    (i->addr_format == FI_SOCKADDR ||
		     i->addr_format == FI_SOCKADDR_IN ||
		     i->addr_format == FI_SOCKADDR_IN6) &&
		    sockaddr_ip(sa, &ip_len)) {
			inet_ntop(sa->sa_family, sockaddr_ip(sa, &ip_len), ip,
				  sizeof(ip));
			name = interface_find(interfaces, sa, &prefix);
		}
		rmx_text_add(&text, "%s\t%s\t%s\t%s\t%d\n",
			     i->fabric_attr->prov_name, i->domain_attr->name,
			     name ? name : "", ip, prefix);
	}
	if (infos)
		lib->freeinfo(infos);
	lib->freeinfo(hints);
	if (interfaces)
		freeifaddrs(interfaces);
	return rmx_text_end(&text, "rmaext_candidates", len);
}
