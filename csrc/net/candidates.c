/* SPDX-License-Identifier: BSD-3-Clause */
/* Which endpoints could be opened here, and on which network each would be. */
#define _GNU_SOURCE
#include "net/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const void *ip_of(const struct sockaddr *sa, size_t *len)
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

/* The interface that has the address, and its prefix length. */
static const char *interface_of(const struct ifaddrs *all,
				const struct sockaddr *sa, int *prefix)
{
	size_t len = 0, other;
	const void *ip = ip_of(sa, &len);

	for (; all; all = all->ifa_next) {
		const void *mine;

		if (!all->ifa_addr || !all->ifa_netmask ||
		    all->ifa_addr->sa_family != sa->sa_family)
			continue;
		mine = ip_of(all->ifa_addr, &other);
		if (!mine || memcmp(mine, ip, len))
			continue;
		mine = ip_of(all->ifa_netmask, &other);
		*prefix = 0;
		for (size_t i = 0; mine && i < len; i++)
			*prefix += __builtin_popcount(
				((const unsigned char *)mine)[i]);
		return all->ifa_name;
	}
	return NULL;
}

/* Appends like snprintf: *used grows by what was wanted, whether it fits. */
static void append(char *buf, size_t size, size_t *used, const char *format,
		   ...) RMX_PRINTF(4);

static void append(char *buf, size_t size, size_t *used, const char *format,
		   ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(*used < size ? buf + *used : NULL,
		      *used < size ? size - *used : 0, format, args);
	va_end(args);
	*used += n > 0 ? (size_t)n : 0;
}

int rmaext_candidates(rmaext_library *lib, const char *provider, int mr_basic,
		      char *buf, size_t *len)
{
	struct fi_info *hints = rmx_hints(lib, provider, NULL, mr_basic);
	struct ifaddrs *interfaces = NULL;
	struct fi_info *infos = NULL;
	size_t size = *len, used = 0;

	if (!hints)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "fi_dupinfo", "hints");
	if (getifaddrs(&interfaces))
		interfaces = NULL;
	if (rmx_getinfo(lib, NULL, 0, hints, &infos))
		infos = NULL; /* none is an answer, not an error */
	for (struct fi_info *i = infos; i; i = i->next) {
		const struct sockaddr *sa = i->src_addr;
		const char *name = NULL;
		char text[INET6_ADDRSTRLEN] = "";
		size_t ip_len;
		int prefix = 0;

		if (sa &&
		    (i->addr_format == FI_SOCKADDR ||
		     i->addr_format == FI_SOCKADDR_IN ||
		     i->addr_format == FI_SOCKADDR_IN6) &&
		    ip_of(sa, &ip_len)) {
			inet_ntop(sa->sa_family, ip_of(sa, &ip_len), text,
				  sizeof(text));
			name = interface_of(interfaces, sa, &prefix);
		}
		append(buf, size, &used, "%s\t%s\t%s\t%s\t%d\n",
		       i->fabric_attr->prov_name, i->domain_attr->name,
		       name ? name : "", text, prefix);
	}
	if (infos)
		lib->freeinfo(infos);
	lib->freeinfo(hints);
	if (interfaces)
		freeifaddrs(interfaces);
	*len = used + 1;
	if (used + 1 > size)
		return rmx_fail(-FI_ETOOSMALL, RMX_NO_RANK, "rmaext_candidates",
				"%zu bytes needed", used + 1);
	if (!used)
		buf[0] = '\0';
	return 0;
}
