/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The rules. A connection within this host is let in if a process of this user
 * has its other end; ranks are alike in that. One from another host is let in
 * if it is from the address of a rank, of a network that the user has named,
 * or, while a grant for the network lives and no network is named, from
 * anywhere.
 *
 * Ranks tell each other their addresses, and have added them, before any of
 * them connects.
 *
 * The tcp provider reads the request of a connection with calls that block,
 * with a lock held that all others need, and keeps a connection without a
 * request for ever. So a request that is there in part is none; and of
 * connections from other hosts that have sent nothing there are few, and not
 * for long.
 */
#define _GNU_SOURCE
#include "admission/admission.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define RMX_ADMISSIONS 16    /* endpoints of a process; it has two */
#define RMX_AT_ONCE 64	     /* connections refused before others have a turn */
#define RMX_REQUEST_BYTES 32 /* of the header of a request, which has more */
#define RMX_REQUEST_TIME ((int64_t)5 * 1000 * 1000 * 1000) /* ns */

static _Atomic(struct rmx_admission *) admissions[RMX_ADMISSIONS];
static _Thread_local struct rmx_admission *opening;

/* -- the rules of an endpoint */

int rmx_admission_init(struct rmx_admission *a,
		       const struct rmaext_fabric_options *options)
{
	const size_t count = options->network_count;
	struct rlimit files = {.rlim_cur = 0};

	pthread_mutex_init(&a->lock, NULL);
	a->diag = -1;
	a->everyone = options->everyone;
	a->one_host = options->one_host;
	a->has_secret = options->secret;
	if (options->secret)
		memcpy(a->secret, options->secret, sizeof(a->secret));
	getrlimit(RLIMIT_NOFILE, &files);
	a->waiting_most = files.rlim_cur / 8 < RMX_UNPROVEN
				  ? (unsigned int)files.rlim_cur / 8
				  : RMX_UNPROVEN;
	if (!count)
		return 0;
	a->networks = malloc(count * sizeof(*a->networks));
	if (!a->networks)
		return rmx_no_memory("the networks that are admitted");
	memcpy(a->networks, options->networks, count * sizeof(*a->networks));
	a->network_count = count;
	return 0;
}

void rmx_admission_begin(struct rmx_admission *a, bool sees)
{
	a->sees = sees;
	opening = a;
}

void rmx_admission_end(void)
{
	opening = NULL;
}

void rmx_admission_close(struct rmx_admission *a)
{
	for (int i = 0; i < RMX_ADMISSIONS; i++) {
		struct rmx_admission *mine = a;

		atomic_compare_exchange_strong(&admissions[i], &mine, NULL);
	}
	pthread_mutex_lock(&a->lock);
	if (a->diag >= 0)
		close(a->diag);
	a->diag = -1;
	free(a->own.of);
	free(a->ranks.of);
	free(a->peers.of);
	free(a->networks);
	memset(a->secret, 0, sizeof(a->secret));
	a->own = a->ranks = a->peers = (struct rmx_ips){.of = NULL};
	a->networks = NULL;
	a->network_count = 0;
	atomic_store(&a->listeners, 0);
	pthread_mutex_unlock(&a->lock);
}

bool rmx_admission_works(const struct rmx_admission *a)
{
	return !a->everyone && !a->anywhere && a->sees &&
	       atomic_load(&a->listeners) && a->diag >= 0;
}

bool rmx_admission_signs(const struct rmx_admission *a)
{
	return a->sees && atomic_load(&a->listeners);
}

int rmx_admission_add(struct rmx_admission *a, const void *addresses,
		      size_t len, size_t count)
{
	struct sockaddr_storage address;
	bool enough = true;
	struct rmx_ip ip;

	if (len > sizeof(address) || len < sizeof(struct sockaddr_in))
		return 0;
	pthread_mutex_lock(&a->lock);
	for (size_t i = 0; i < count && enough; i++) {
		memset(&address, 0, sizeof(address));
		memcpy(&address, (const char *)addresses + i * len, len);
		if (!rmx_ip_of((struct sockaddr *)&address, &ip))
			continue;
		enough = !a->has_secret || rmx_ips_add(&a->peers, &ip);
		ip = rmx_ip_without_port(ip);
		enough = enough && rmx_ips_add(&a->ranks, &ip);
	}
	pthread_mutex_unlock(&a->lock);
	return enough ? 0 : rmx_no_memory("the addresses that are admitted");
}

/* Is that, without its port, this host's? The caller holds the lock. */
static bool admission_is_own(const struct rmx_admission *a,
			     const struct rmx_ip *ip)
{
	return rmx_ip_is_loopback(ip) || rmx_ips_have(&a->own, ip);
}

bool rmx_admission_is_here(struct rmx_admission *a,
			   const struct sockaddr *address)
{
	struct rmx_ip ip;
	bool here;

	if (!rmx_ip_of(address, &ip))
		return false;
	ip = rmx_ip_without_port(ip);
	pthread_mutex_lock(&a->lock);
	here = admission_is_own(a, &ip);
	pthread_mutex_unlock(&a->lock);
	return here;
}

void rmx_admission_clients(struct rmx_admission *a, int more)
{
	pthread_mutex_lock(&a->lock);
	a->clients += more;
	pthread_mutex_unlock(&a->lock);
}

/* -- what listens */

static bool own_addresses(struct rmx_ips *ips)
{
	struct ifaddrs *all = NULL;
	bool enough = true;
	struct rmx_ip ip;

	if (getifaddrs(&all))
		return false;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_addr && rmx_ip_of(i->ifa_addr, &ip)) {
			ip = rmx_ip_without_port(ip);
			enough = enough && rmx_ips_add(ips, &ip);
		}
	freeifaddrs(all);
	return enough;
}

static void admission_watch(struct rmx_admission *a, int fd)
{
	const unsigned int n = atomic_load(&a->listeners);
	struct sockaddr_storage address;
	socklen_t len = sizeof(address);
	struct rmx_ip ip;
	struct stat st;

	if (fstat(fd, &st) ||
	    getsockname(fd, (struct sockaddr *)&address, &len) ||
	    !rmx_ip_of((struct sockaddr *)&address, &ip))
		return;
	if (n == RMX_LISTENERS) {
		a->sees = false;
		return;
	}
	if (!n) {
		a->uid = st.st_uid;
		a->diag = rmx_owner_open(fd);
		a->sees = own_addresses(&a->own) && a->sees;
	}
	a->inodes[n] = st.st_ino;
	memcpy(a->ports[n], ip.port, sizeof(ip.port));
	atomic_store(&a->listeners, n + 1);
	if (n)
		return;
	for (int i = 0; i < RMX_ADMISSIONS; i++) {
		struct rmx_admission *none = NULL;

		if (atomic_compare_exchange_strong(&admissions[i], &none, a))
			return;
	}
	a->sees = false; /* there is no place for it */
}

/*
 * Signs what goes to a peer, or, where there is none, to and from all that
 * connect; within a host the owner of a socket says more.
 */
static int admission_sign(const struct rmx_admission *a, int fd,
			  const struct sockaddr *peer)
{
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);
	struct rmx_ip ip;

	if (!peer && getsockname(fd, (struct sockaddr *)&own, &len))
		return -1;
	if (!rmx_ip_of(peer ? peer : (struct sockaddr *)&own, &ip) ||
	    rmx_ip_is_loopback(&ip))
		return 0;
	return rmx_sign(fd, peer ? peer : (struct sockaddr *)&own, !peer,
			a->secret);
}

int rmx_admission_connect(int fd, const struct sockaddr *to, socklen_t len)
{
	struct rmx_ip ip;

	for (int i = 0; i < RMX_ADMISSIONS; i++) {
		struct rmx_admission *a = atomic_load(&admissions[i]);
		bool is_peer;

		if (!a || !a->has_secret || !rmx_ip_of(to, &ip))
			continue;
		pthread_mutex_lock(&a->lock);
		is_peer = rmx_ips_have(&a->peers, &ip);
		pthread_mutex_unlock(&a->lock);
		if (is_peer && admission_sign(a, fd, to))
			return -1;
	}
	return connect(fd, to, len);
}

int rmx_admission_listen(int fd, int backlog)
{
	int ret;

	if (!opening)
		return listen(fd, backlog);
	if (opening->has_secret && admission_sign(opening, fd, NULL))
		return -1;
	ret = listen(fd, backlog);
	if (!ret)
		admission_watch(opening, fd);
	return ret;
}

/* -- who comes */

static struct rmx_admission *admission_find(int listening)
{
	struct stat st = {.st_ino = 0};

	for (int i = 0; i < RMX_ADMISSIONS; i++) {
		struct rmx_admission *a = atomic_load(&admissions[i]);

		if (!a || (!st.st_ino && fstat(listening, &st)))
			continue;
		for (unsigned int k = atomic_load(&a->listeners); k--;)
			if (a->inodes[k] == st.st_ino)
				return a;
	}
	return NULL;
}

/* Has as much come as only a request for a connection can be? */
static bool request_is_there(int fd)
{
	struct tcp_info info = {.tcpi_state = 0};
	socklen_t len = sizeof(info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) ||
	       len < offsetof(struct tcp_info, tcpi_bytes_received) +
			       sizeof(info.tcpi_bytes_received) ||
	       info.tcpi_bytes_received > RMX_REQUEST_BYTES;
}

/*
 * Forgets the connections that have sent their request, or were closed, and
 * shuts those that had their time. The provider still has these open, and
 * closes them: it does so in the thread that is in accept() here, or when there
 * is no such call any more.
 */
static void waiting_review(struct rmx_admission *a, int64_t now)
{
	struct stat st;

	for (unsigned int i = a->waiting_count; i--;) {
		const struct rmx_waiting *w = &a->waiting[i];

		if (!fstat(w->fd, &st) && st.st_ino == w->inode &&
		    !request_is_there(w->fd)) {
			if (now - w->since < RMX_REQUEST_TIME)
				continue;
			shutdown(w->fd, SHUT_RDWR);
		}
		a->waiting[i] = a->waiting[--a->waiting_count];
	}
}

static bool waiting_add(struct rmx_admission *a, int fd)
{
	const int64_t now = rmx_now();
	struct stat st;

	waiting_review(a, now);
	if (a->waiting_count >= a->waiting_most || fstat(fd, &st))
		return false;
	a->waiting[a->waiting_count++] = (struct rmx_waiting){
		.fd = fd,
		.inode = st.st_ino,
		.since = now,
	};
	return true;
}

/* Does the address alone admit? */
static bool admission_knows(const struct rmx_admission *a,
			    const struct rmx_ip *ip)
{
	if (a->anywhere || rmx_ips_have(&a->ranks, ip) ||
	    (a->clients && !a->one_host && !a->network_count))
		return true;
	for (size_t i = 0; i < a->network_count; i++)
		if (rmx_ip_is_within(ip, &a->networks[i]))
			return true;
	return false;
}

static bool admission_welcomes(struct rmx_admission *a, int fd)
{
	struct sockaddr_storage here, there;
	socklen_t len = sizeof(here), other = sizeof(there);
	bool is_here, welcome = false;
	struct rmx_ip ip;

	if (a->everyone)
		return true;
	if (getsockname(fd, (struct sockaddr *)&here, &len) ||
	    getpeername(fd, (struct sockaddr *)&there, &other) ||
	    !rmx_ip_of((struct sockaddr *)&there, &ip))
		return false;
	ip = rmx_ip_without_port(ip);
	pthread_mutex_lock(&a->lock);
	is_here = admission_is_own(a, &ip);
	switch (rmx_owner_ask(a, (struct sockaddr *)&here,
			      (struct sockaddr *)&there)) {
	case RMX_OWNER_SAME:
		welcome = true;
		break;
	case RMX_OWNER_OTHER:
		break;
	case RMX_OWNER_AWAY: /* if here, it was closed */
		welcome = !is_here && admission_knows(a, &ip) &&
			  waiting_add(a, fd);
		break;
	case RMX_OWNER_UNKNOWN:
		welcome = is_here ||
			  (admission_knows(a, &ip) && waiting_add(a, fd));
		break;
	}
	pthread_mutex_unlock(&a->lock);
	return welcome;
}

/* Closes it without a state that stays, as FIN_WAIT. */
static void connection_refuse(int fd)
{
	struct linger reset = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
}

int rmx_admission_accept(int fd, struct sockaddr *address, socklen_t *len)
{
	struct rmx_admission *a = admission_find(fd);
	const socklen_t room = len ? *len : 0;

	if (!a)
		return accept(fd, address, len);
	for (int i = 0; i < RMX_AT_ONCE; i++) {
		int got;

		if (len)
			*len = room;
		got = accept(fd, address, len);
		if (got < 0)
			return got;
		if (admission_welcomes(a, got)) {
			atomic_fetch_add(&a->admitted, 1);
			return got;
		}
		atomic_fetch_add(&a->refused, 1);
		connection_refuse(got);
	}
	errno = EAGAIN; /* the provider comes again */
	return -1;
}

/* Which endpoint of ours listens on a port, and reads requests? NULL: none. */
static const struct rmx_admission *admission_at(const void *port)
{
	for (int i = 0; i < RMX_ADMISSIONS; i++) {
		const struct rmx_admission *a = atomic_load(&admissions[i]);

		if (!a || !a->requests)
			continue;
		for (unsigned int k = atomic_load(&a->listeners); k--;)
			if (!memcmp(a->ports[k], port, sizeof(a->ports[k])))
				return a;
	}
	return NULL;
}

/* Is this a connection to such an endpoint? */
static const struct rmx_admission *connection_owner(int fd)
{
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);
	struct rmx_ip ip;

	return getsockname(fd, (struct sockaddr *)&own, &len) ||
			       !rmx_ip_of((struct sockaddr *)&own, &ip)
		       ? NULL
		       : admission_at(ip.port);
}

/*
 * What a request of native tcp says of its sender, and its answer repeats, but
 * for the process: there it is that of the one who answers.
 */
struct native_request {
	uint8_t version, features;
	uint8_t port[2]; /* where the sender of the request listens */
	uint32_t pid;
};

/*
 * When two ranks connect to each other at once, native tcp refuses the second
 * request if it comes from the process that it knows of the first connection.
 * But of one that it has accepted it knows its own process, and of one that is
 * not established yet that of an earlier connection, whose memory it uses again
 * (2.5.1). Then it closes the good connection, with what is on its way. So all
 * processes are told to be its own. `owner` has accepted the connection; NULL:
 * this is an answer.
 */
static void request_rename(const struct rmx_admission *owner,
			   struct native_request *request)
{
	if (!owner)
		owner = admission_at(request->port);
	if (owner && owner->native)
		request->pid = htonl((uint32_t)getpid());
}

/*
 * The tcp provider reads requests and their answers without flags, once it was
 * told of them, and a stream of messages with some. Either comes in one
 * segment. It gives up a connection where only a part is there, unless errno is
 * EAGAIN: then it waits for more, 1.17 also where recv() has set no errno,
 * and 2.5.1 without ever being told.
 */
ssize_t rmx_admission_recv(int fd, void *buf, size_t len, int flags)
{
	const struct rmx_admission *owner = flags ? NULL : connection_owner(fd);
	const ssize_t got = recv(fd, buf, len, owner ? MSG_DONTWAIT : flags);

	if (!flags && ((owner && got < 0 && errno == EAGAIN) ||
		       (got >= 0 && (size_t)got < len)))
		errno = ECONNRESET;
	if (!flags && got == sizeof(struct native_request) &&
	    len == sizeof(struct native_request))
		request_rename(owner, buf);
	return got;
}
