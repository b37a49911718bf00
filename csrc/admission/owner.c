/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Asks the kernel who owns the other end of a TCP connection within this host:
 * sock_diag(7), the exact question for one socket, which needs no rights. The
 * kernel answers within the call that asks.
 *
 * A socket that its process has closed has no inode, and from some kernels the
 * uid 0: it counts as another's, whatever it may have sent before.
 */
#define _GNU_SOURCE
#include "admission/admission.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/stat.h>

#define TCP_IS_ESTABLISHED 1 /* of the kernel's enum, which libc also has */
#define TCP_IS_LISTENING 10

struct question {
	struct nlmsghdr header;
	struct inet_diag_req_v2 body;
};

union answer {
	struct nlmsghdr header;
	char bytes[1024];
};

static __be16 address_copy(const struct sockaddr *from, __be32 to[4])
{
	if (from->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)from;

		memcpy(to, &in->sin_addr, sizeof(in->sin_addr));
		return in->sin_port;
	}
	memcpy(to,
	       &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr,
	       16);
	return ((const struct sockaddr_in6 *)(const void *)from)->sin6_port;
}

/*
 * Returns 0 and the socket at `source` that is connected to `to`, or to any
 * that nobody is; -ENOENT if there is none; or the error of the question.
 */
static int owner_find(int diag, uint32_t number, const struct sockaddr *source,
		      const struct sockaddr *to, struct inet_diag_msg *found_p)
{
	struct question q = {
		.header = {.nlmsg_len = sizeof(q),
			   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			   .nlmsg_flags = NLM_F_REQUEST,
			   .nlmsg_seq = number},
		.body = {.sdiag_family = (uint8_t)source->sa_family,
			 .sdiag_protocol = IPPROTO_TCP,
			 .idiag_states = ~0U,
			 .id.idiag_cookie = {INET_DIAG_NOCOOKIE,
					     INET_DIAG_NOCOOKIE}},
	};
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK}, from;
	union answer a;

	q.body.id.idiag_sport = address_copy(source, q.body.id.idiag_src);
	if (to)
		q.body.id.idiag_dport = address_copy(to, q.body.id.idiag_dst);
	if (sendto(diag, &q, sizeof(q), MSG_DONTWAIT,
		   (struct sockaddr *)&kernel, sizeof(kernel)) != sizeof(q))
		return -errno;
	for (;;) {
		socklen_t len = sizeof(from);
		ssize_t got = recvfrom(diag, &a, sizeof(a), MSG_DONTWAIT,
				       (struct sockaddr *)&from, &len);

		if (got < 0)
			return -errno;
		if (got < (ssize_t)sizeof(a.header) || from.nl_pid ||
		    a.header.nlmsg_seq != number)
			continue; /* an answer that is late */
		if (a.header.nlmsg_type == NLMSG_ERROR &&
		    got >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
			return ((struct nlmsgerr *)NLMSG_DATA(&a.header))
				->error;
		if (a.header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
		    got < (ssize_t)NLMSG_LENGTH(sizeof(*found_p)))
			return -EPROTO;
		memcpy(found_p, NLMSG_DATA(&a.header), sizeof(*found_p));
		return 0;
	}
}

/*
 * In a user namespace all users that it does not know have one uid, which may
 * be this process's own: then the kernel's answer says nothing.
 */
static bool uid_is_ambiguous(uid_t uid)
{
	unsigned int unknown = 65534, first, outside, count = 0;
	FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");

	if (file) {
		if (fscanf(file, "%u", &unknown) != 1)
			unknown = 65534;
		fclose(file);
	}
	if (uid != unknown)
		return false;
	file = fopen("/proc/self/uid_map", "re");
	if (!file)
		return true;
	if (fscanf(file, "%u %u %u", &first, &outside, &count) != 3)
		count = 0;
	fclose(file);
	return count != 4294967295U;
}

int rmx_owner_open(int listening)
{
	struct sockaddr_storage address;
	struct inet_diag_msg found;
	socklen_t len = sizeof(address);
	struct stat st;
	int diag;

	if (fstat(listening, &st) || uid_is_ambiguous(st.st_uid) ||
	    getsockname(listening, (struct sockaddr *)&address, &len))
		return -1;
	diag = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
		      NETLINK_SOCK_DIAG);
	if (diag < 0)
		return -1;
	if (!owner_find(diag, 0, (struct sockaddr *)&address, NULL, &found) &&
	    found.idiag_inode == (uint32_t)st.st_ino &&
	    found.idiag_uid == st.st_uid &&
	    found.idiag_state == TCP_IS_LISTENING)
		return diag;
	close(diag);
	return -1;
}

enum rmx_owner rmx_owner_ask(struct rmx_admission *a,
			     const struct sockaddr *here,
			     const struct sockaddr *there)
{
	struct inet_diag_msg found;
	int ret;

	if (a->diag < 0)
		return RMX_OWNER_UNKNOWN;
	ret = owner_find(a->diag, ++a->asked, there, here, &found);
	/* the kernel also finds who listens on that port, for any address */
	if (ret == -ENOENT || (!ret && found.idiag_state == TCP_IS_LISTENING))
		return RMX_OWNER_AWAY;
	if (ret)
		return RMX_OWNER_OTHER; /* memory is short: it comes again */
	return found.idiag_state == TCP_IS_ESTABLISHED && found.idiag_inode &&
			       found.idiag_uid == a->uid
		       ? RMX_OWNER_SAME
		       : RMX_OWNER_OTHER;
}
