/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Admission decides which TCP connections to an endpoint a provider gets to
 * see. Those of another user of this host, and those from an address that is no
 * rank's, are closed before the provider has read a byte of them.
 */
#ifndef RMAEXT_ADMISSION_H
#define RMAEXT_ADMISSION_H

#include <sys/socket.h>

#include "base/common.h"

#define RMX_LISTENERS 8	 /* sockets of one endpoint: one a rail */
#define RMX_UNPROVEN 128 /* connections whose request is not there */

/* An address of either family, an IPv4 address mapped to IPv6. */
struct rmx_ip {
	uint8_t bytes[16];
	uint8_t port[2]; /* in network order; 0: any */
};

/* Addresses in ascending order. */
struct rmx_ips {
	struct rmx_ip *of;
	size_t count, room;
};

/* A connection from another host that may not have sent its request. */
struct rmx_waiting {
	int fd;
	ino_t inode;
	int64_t since;
};

/* The rules of one endpoint. All zeros is one that listens nowhere yet. */
struct rmx_admission {
	pthread_mutex_t lock;  /* guards all that has no lock of its own */
	atomic_uint listeners; /* sockets that listen */
	ino_t inodes[RMX_LISTENERS];	 /* of these */
	uint8_t ports[RMX_LISTENERS][2]; /* as in rmx_ip */
	uid_t uid;			 /* their owner */
	bool sees;			 /* no connection is accepted past us */
	bool requests;	/* its connections begin with a request that it reads */
	bool native;	/* these are native tcp's */
	int diag;	/* asks the kernel who owns a socket; or -1 */
	uint32_t asked; /* number of the last question */
	bool everyone;	/* the user wants no check */
	bool one_host;	/* its clients are of this host */
	int clients;	/* grants that live */
	bool anywhere;	/* the addresses of ranks cannot be read */
	bool has_secret; /* with which segments are signed */
	uint8_t secret[RMAEXT_SECRET];
	struct rmx_ips own, ranks;
	struct rmx_ips peers; /* with their ports */
	struct rmaext_network *networks;
	size_t network_count;
	struct rmx_waiting waiting[RMX_UNPROVEN];
	unsigned int waiting_count, waiting_most;
	atomic_uint_fast64_t admitted, refused;
};

/* -- redirect.c */

/*
 * Has the calls of listen(), connect(), accept() and recv() that a libfabric
 * and its loaded plug-ins make come here; `inside` is the address of one of its
 * functions. Any thread may call it, again, too: calls of others than our
 * endpoints pass through. What has an unknown layout is left as it is. Returns
 * false if some object would listen through us and accept or connect by itself,
 * or this CPU is unknown.
 */
bool rmx_redirect(const void *inside);

/* What these calls come to. */
int rmx_admission_listen(int fd, int backlog);
int rmx_admission_connect(int fd, const struct sockaddr *to, socklen_t len);
int rmx_admission_accept(int fd, struct sockaddr *address, socklen_t *len);
ssize_t rmx_admission_recv(int fd, void *buf, size_t len, int flags);

/* -- owner.c: who owns the other end of a connection */

enum rmx_owner {
	RMX_OWNER_SAME,	   /* a process of this user has it open */
	RMX_OWNER_OTHER,   /* another's, or nobody's any more */
	RMX_OWNER_AWAY,	   /* no socket of this host */
	RMX_OWNER_UNKNOWN, /* the kernel does not tell */
};

/*
 * Opens what asks the kernel, in the network namespace of this thread, and
 * tries it with a listening socket of this process. Returns a descriptor, or -1
 * where the kernel does not tell owners.
 */
int rmx_owner_open(int listening);

/*
 * Asks for the owner of the socket at `there` that is connected to `here`; does
 * not block. The caller holds the lock of a.
 */
enum rmx_owner rmx_owner_ask(struct rmx_admission *a,
			     const struct sockaddr *here,
			     const struct sockaddr *there);

/* -- addresses.c */

/* Returns false if the address is none of the Internet. */
bool rmx_ip_of(const struct sockaddr *address, struct rmx_ip *ip_p);
struct rmx_ip rmx_ip_without_port(struct rmx_ip ip);
bool rmx_ip_is_within(const struct rmx_ip *ip,
		      const struct rmaext_network *network);
bool rmx_ip_is_loopback(const struct rmx_ip *ip);
bool rmx_ips_have(const struct rmx_ips *ips, const struct rmx_ip *ip);
/* Adds an address, once; false: memory is short. */
bool rmx_ips_add(struct rmx_ips *ips, const struct rmx_ip *ip);

/* -- admission.c */

/*
 * Prepares the rules of an endpoint, before it is opened: which networks are
 * admitted though no rank is there, and the secret that segments are signed
 * with. Returns 0, or -FI_ENOMEM or -FI_ENOSYS with a record.
 */
int rmx_admission_init(struct rmx_admission *a,
		       const struct rmaext_fabric_options *options);

/* -- signature.c: TCP-MD5, RFC 2385 */

/*
 * Has the kernel sign what a socket sends to an address, and drop what comes
 * from there without a signature; `any` stands for all addresses of its kind.
 * Returns 0, or -1 with errno.
 */
int rmx_sign(int fd, const struct sockaddr *address, bool any,
	     const uint8_t *secret);

/*
 * Between these two, sockets that this thread has listen, through a redirected
 * call, belong to an endpoint with these rules. `sees` says whether all
 * connections to them are accepted through a redirected call.
 */
void rmx_admission_begin(struct rmx_admission *a, bool sees);
void rmx_admission_end(void);

/* Ends the rules of an endpoint that is closed, or was never opened. */
void rmx_admission_close(struct rmx_admission *a);

/* Does it check the connections to an endpoint that is open? */
bool rmx_admission_works(const struct rmx_admission *a);

/* Does it sign what goes over the network, where a secret is given? */
bool rmx_admission_signs(const struct rmx_admission *a);

/*
 * Admits `count` addresses, of sockets and `len` bytes each, from now on; what
 * is no IP address is skipped. Returns 0, or -FI_ENOMEM with a record.
 */
int rmx_admission_add(struct rmx_admission *a, const void *addresses,
		      size_t len, size_t count);

/* Is that an address of this host's own? */
bool rmx_admission_is_here(struct rmx_admission *a,
			   const struct sockaddr *address);

/* Adds to the grants that there are, or takes from them. */
void rmx_admission_clients(struct rmx_admission *a, int more);

#endif
