/* SPDX-License-Identifier: BSD-3-Clause */
#include "admission/admission.h"

#include <linux/tcp.h>
#include <netinet/in.h>

int rmx_sign(int fd, const struct sockaddr *address, bool any,
	     const uint8_t *secret)
{
	const size_t len = address->sa_family == AF_INET
				   ? sizeof(struct sockaddr_in)
				   : sizeof(struct sockaddr_in6);
	struct tcp_md5sig sign = {
		.tcpm_flags = any ? TCP_MD5SIG_FLAG_PREFIX : 0,
		.tcpm_keylen = RMAEXT_SECRET,
	};

	memcpy(sign.tcpm_key, secret, RMAEXT_SECRET);
	if (any)
		sign.tcpm_addr.ss_family = address->sa_family;
	else
		memcpy(&sign.tcpm_addr, address, len);
	return setsockopt(fd, IPPROTO_TCP, any ? TCP_MD5SIG_EXT : TCP_MD5SIG,
			  &sign, sizeof(sign));
}
