/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses of the Internet, and sorted lists of them. */
#define _GNU_SOURCE
#include "admission/admission.h"

#include <netinet/in.h>
#include <stdlib.h>

bool rmx_ip_of(const struct sockaddr *sa, struct rmx_ip *ip_p)
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (sa->sa_family == AF_INET) {
		memcpy(ip_p->port,
		       &((const struct sockaddr_in *)(const void *)sa)
				->sin_port,
		       2);
		memcpy(ip_p->bytes, mapped, sizeof(mapped));
		memcpy(ip_p->bytes + sizeof(mapped),
		       &((const struct sockaddr_in *)(const void *)sa)
				->sin_addr,
		       4);
		return true;
	}
	if (sa->sa_family != AF_INET6)
		return false;
	memcpy(ip_p->port,
	       &((const struct sockaddr_in6 *)(const void *)sa)->sin6_port, 2);
	memcpy(ip_p->bytes,
	       &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
	return true;
}

struct rmx_ip rmx_ip_without_port(struct rmx_ip ip)
{
	memset(ip.port, 0, sizeof(ip.port));
	return ip;
}

bool rmx_ip_is_within(const struct rmx_ip *ip,
		      const struct rmaext_network *network)
{
	const unsigned int bytes = network->prefix / 8;
	const unsigned int mask = 0xff00U >> network->prefix % 8 & 0xff;

	return !memcmp(ip->bytes, network->address, bytes) &&
	       (!mask ||
		!((ip->bytes[bytes] ^ network->address[bytes]) & mask));
}

bool rmx_ip_is_loopback(const struct rmx_ip *ip)
{
	static const struct rmaext_network loopback[] = {
		{{[10] = 0xff, [11] = 0xff, [12] = 127}, 104},
		{{[15] = 1}, 128},
	};

	return rmx_ip_is_within(ip, &loopback[0]) ||
	       rmx_ip_is_within(ip, &loopback[1]);
}

/* Returns where the address is, or would be. */
static size_t ips_place(const struct rmx_ips *ips, const struct rmx_ip *ip)
{
	size_t low = 0, high = ips->count;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (memcmp(&ips->of[middle], ip, sizeof(*ip)) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

bool rmx_ips_have(const struct rmx_ips *ips, const struct rmx_ip *ip)
{
	const size_t at = ips_place(ips, ip);

	return at < ips->count && !memcmp(&ips->of[at], ip, sizeof(*ip));
}

bool rmx_ips_add(struct rmx_ips *ips, const struct rmx_ip *ip)
{
	const size_t at = ips_place(ips, ip);

	if (rmx_ips_have(ips, ip))
		return true;
	if (ips->count == ips->room) {
		const size_t room = ips->room ? 2 * ips->room : 16;
		struct rmx_ip *of = realloc(ips->of, room * sizeof(*of));

		if (!of)
			return false;
		ips->of = of;
		ips->room = room;
	}
	memmove(&ips->of[at + 1], &ips->of[at],
		(ips->count++ - at) * sizeof(*ips->of));
	ips->of[at] = *ip;
	return true;
}
