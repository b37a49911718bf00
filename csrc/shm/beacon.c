/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A beacon shows to the processes of a network namespace that its owner is
 * there. It is an abstract socket, and its name says which one: random bits, by
 * which it is found, and the number and the cookie that the kernel has given
 * the socket. Anybody can read the name, and take it once its owner has left.
 * But no other socket ever has that cookie, and the kernel tells (unix_diag)
 * whether there is a socket of that number and cookie.
 *
 * Where the kernel does not tell, the name alone counts, as no datagram socket
 * says whose it is (SO_PEERCRED), and a queue of connections that nobody takes
 * would be filled by strangers.
 */
#define _GNU_SOURCE
#include "shm/neighbour.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BEACON_PREFIX "rmaext-"
#define BEACON_RANDOM 32 /* digits; of the number 16, and of the cookie */
#define BEACON_DIGITS 64
#define BEACON_FEW 2 /* are asked for one by one */

static atomic_bool beacon_proven; /* the kernel has told of the own beacon */

static socklen_t beacon_address(const char *name, struct sockaddr_un *address)
{
	const char *prefix = BEACON_PREFIX;
	const size_t length = strlen(prefix);

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	/* an abstract name begins with a zero, and ends with its length */
	memcpy(address->sun_path + 1, prefix, length);
	memcpy(address->sun_path + 1 + length, name, BEACON_DIGITS);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length +
			   BEACON_DIGITS);
}

/* A question about one socket, or about all. */
struct question {
	struct nlmsghdr head;
	struct unix_diag_req about;
};

/* Returns a descriptor from which the answer can be read, or -errno. */
static int kernel_ask(struct question *ask)
{
	const struct timeval limit = {.tv_sec = 1};
	const int fd =
		socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	int ret;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	ask->head.nlmsg_len = sizeof(*ask);
	ask->head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
	ask->head.nlmsg_flags |= NLM_F_REQUEST;
	ask->about.sdiag_family = AF_UNIX;
	ask->about.udiag_states = UINT32_MAX;
	if (send(fd, ask, sizeof(*ask), 0) == sizeof(*ask))
		return fd;
	ret = -errno;
	close(fd);
	return ret;
}

/* Reads 16 digits. */
static uint64_t name_number(const char *digits)
{
	char text[17] = {0};

	memcpy(text, digits, 16);
	return strtoull(text, NULL, 16);
}

static uint32_t name_socket(const char *name)
{
	return (uint32_t)name_number(name + BEACON_RANDOM);
}

static uint64_t name_cookie(const char *name)
{
	return name_number(name + BEACON_RANDOM + 16);
}

/*
 * Asks the kernel for a socket. Returns 0 if it is there, -ENOENT if not, or
 * another error if the kernel does not say.
 */
static int beacon_find(const char *name)
{
	const uint64_t cookie = name_cookie(name);
	struct question ask = {
		.about = {.udiag_ino = name_socket(name),
			  .udiag_cookie = {(uint32_t)cookie,
					   (uint32_t)(cookie >> 32)}},
	};
	struct {
		struct nlmsghdr head;
		char rest[1024];
	} answer;
	struct nlmsgerr error;
	const int fd = kernel_ask(&ask);
	ssize_t n;

	if (fd < 0)
		return fd;
	n = recv(fd, &answer, sizeof(answer), 0);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return (int)n;
	if ((size_t)n < sizeof(answer.head))
		return -EPROTO;
	if (answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY)
		return 0;
	if (answer.head.nlmsg_type != NLMSG_ERROR ||
	    (size_t)n < sizeof(answer.head) + sizeof(error))
		return -EPROTO;
	memcpy(&error, answer.rest, sizeof(error));
	/* -ESTALE: that number is another socket's by now */
	return error.error == -ESTALE ? -ENOENT : error.error;
}

static bool beacon_is_there(const char *name)
{
	const int ret = beacon_find(name);

	if (!ret)
		atomic_store(&beacon_proven, true);
	/* a kernel without unix_diag knows no socket */
	return ret != -ENOENT || !atomic_load(&beacon_proven);
}

/* Returns 1 if the beacon of that name is there, else 0 or -errno. */
static int beacon_visible(const char *name)
{
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	socklen_t size;
	int ret;

	if (fd < 0)
		return -errno;
	size = beacon_address(name, &address);
	ret = connect(fd, (const struct sockaddr *)&address, size);
	close(fd);
	return !ret && beacon_is_there(name);
}

/*
 * Returns the name of the beacon that a socket is, if the kernel's answer says
 * so, or NULL.
 */
static const char *beacon_told(const struct nlmsghdr *answer)
{
	const struct unix_diag_msg *it = NLMSG_DATA(answer);
	const struct rtattr *a = (const struct rtattr *)(it + 1);
	int left = (int)NLMSG_PAYLOAD(answer, sizeof(*it));
	const size_t prefix = 1 + strlen(BEACON_PREFIX);
	const char *name;

	for (; left > 0 && RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (a->rta_type != UNIX_DIAG_NAME ||
		    RTA_PAYLOAD(a) != prefix + BEACON_DIGITS ||
		    memcmp(RTA_DATA(a), "\0" BEACON_PREFIX, prefix) != 0)
			continue;
		name = (const char *)RTA_DATA(a) + prefix;
		if (name_socket(name) == it->udiag_ino &&
		    name_cookie(name) == ((uint64_t)it->udiag_cookie[1] << 32 |
					  it->udiag_cookie[0]))
			return name;
	}
	return NULL;
}

static void beacons_mark(const char *told, const char *names, int64_t count,
			 int8_t *seen)
{
	for (int64_t i = 0; i < count; i++)
		if (!memcmp(told, names + i * BEACON_DIGITS, BEACON_DIGITS))
			seen[i] = 1;
}

/*
 * Marks those of the names that the kernel has among all its sockets. One that
 * is there may be missing, as others come and go meanwhile.
 */
static void beacons_find(const char *names, int64_t count, int8_t *seen)
{
	struct question ask = {
		.head = {.nlmsg_flags = NLM_F_DUMP},
		.about = {.udiag_show = UDIAG_SHOW_NAME},
	};
	_Alignas(struct nlmsghdr) char answers[32 << 10];
	const int fd = kernel_ask(&ask);
	const struct nlmsghdr *it;
	bool more = fd >= 0;
	const char *told;
	ssize_t n;

	while (more) {
		n = recv(fd, answers, sizeof(answers), 0);
		more = n > 0;
		for (it = (const struct nlmsghdr *)answers;
		     more && NLMSG_OK(it, n); it = NLMSG_NEXT(it, n)) {
			more = it->nlmsg_type == SOCK_DIAG_BY_FAMILY;
			told = more ? beacon_told(it) : NULL;
			if (told)
				beacons_mark(told, names, count, seen);
		}
	}
	if (fd >= 0)
		close(fd);
}

int rmaext_beacon_open(const uint8_t *random, char *name, int *fd_p)
{
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	struct stat status = {0};
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);
	int ret = fd < 0 ? -errno : 0;

	if (!ret && fstat(fd, &status))
		ret = -errno;
	/* before Linux 4.12 there is none: any will do, as sock_diag has it */
	if (!ret && getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size))
		cookie = UINT64_MAX;
	if (!ret) {
		for (int i = 0; i < RMX_TOKEN; i++)
			sprintf(name + 2 * i, "%02x", random[i]);
		sprintf(name + BEACON_RANDOM, "%016llx%016llx",
			(unsigned long long)status.st_ino,
			(unsigned long long)cookie);
		size = beacon_address(name, &address);
		if (bind(fd, (const struct sockaddr *)&address, size))
			ret = -errno;
	}
	if (ret && fd >= 0)
		close(fd);
	if (ret)
		return rmx_fail(ret, RMX_NO_RANK, "bind",
				"cannot make the socket by which the ranks of "
				"a host see each other: %s",
				strerror(-ret));
	beacon_is_there(name); /* does the kernel tell? */
	*fd_p = fd;
	return 0;
}

void rmaext_beacons_visible(const char *names, int64_t count, int8_t *seen)
{
	int ret;

	memset(seen, 0, (size_t)count);
	if (count > BEACON_FEW)
		beacons_find(names, count, seen);
	for (int64_t i = 0; i < count; i++) {
		ret = seen[i] ? 1 : beacon_visible(names + i * BEACON_DIGITS);
		seen[i] = ret < 0 ? -1 : (int8_t)ret;
	}
}
