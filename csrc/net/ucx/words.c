/* SPDX-License-Identifier: BSD-3-Clause */
/* What UCX's numbers and names mean here. */
#include "net/ucx/ucx.h"

#include <stdio.h>

int rmx_ucx_code(ucs_status_t status)
{
	switch (status) {
	case UCS_OK:
	case UCS_INPROGRESS:
		return 0;
	case UCS_ERR_NO_RESOURCE:
	case UCS_ERR_BUSY:
		return -FI_EAGAIN;
	case UCS_ERR_NO_MEMORY:
		return -FI_ENOMEM;
	case UCS_ERR_INVALID_PARAM:
	case UCS_ERR_INVALID_ADDR:
		return -FI_EINVAL;
	case UCS_ERR_NOT_IMPLEMENTED:
	case UCS_ERR_UNSUPPORTED:
		return -FI_EOPNOTSUPP;
	case UCS_ERR_NO_DEVICE:
		return -FI_ENODATA;
	case UCS_ERR_UNREACHABLE:
		return -FI_EHOSTUNREACH;
	case UCS_ERR_REJECTED:
	case UCS_ERR_NOT_CONNECTED:
		return -FI_ENOTCONN;
	/*
	 * A refused access at the target, too; a limit of time of the device;
	 * what was on its way as the connection was closed: nobody else cancels
	 */
	case UCS_ERR_CANCELED:
	case UCS_ERR_CONNECTION_RESET:
	case UCS_ERR_ENDPOINT_TIMEOUT:
	case UCS_ERR_TIMED_OUT:
		return -FI_ECONNRESET;
	default:
		return -FI_EIO;
	}
}

/* Is the name in the list, up to its end or a comma? */
static bool list_has(const char *list, const char *name, size_t len)
{
	for (; *list; list += *list == ',') {
		const size_t n = strcspn(list, ",");

		if (n == len && !memcmp(list, name, len))
			return true;
		list += n;
	}
	return false;
}

bool rmx_ucx_transports(const char *wanted, char *buf, size_t size)
{
	/* ud only connects: what it calls RMA is software at the target */
	static const char *const names[] = {
		"rc",	    "rc_v", "rc_verbs", "rc_x", "rc_mlx5",
		"dc",	    "dc_x", "dc_mlx5",	"ud",	"ud_v",
		"ud_verbs", "ud_x", "ud_mlx5",
	};
	const bool all = !wanted || !*wanted || !strcmp(wanted, "all") ||
			 !strcmp(wanted, "ib");
	const bool without = wanted && *wanted == '^';
	const char *list = without ? wanted + 1 : wanted;
	bool rdma = false;
	size_t used = 0;

	/* those of them that there are: of the others UCX would complain */
	snprintf(buf, size, "%s", all ? "ib" : "");
	if (all)
		return true;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		const size_t len = strlen(names[i]);
		const bool plain =
			len == 2; /* rc, dc, ud: each with all of it */
		const bool takes =
			without ? plain && !list_has(list, names[i], len)
				: list_has(list, names[i], len);

		if (!takes || used + len + 2 > size)
			continue;
		used += (size_t)snprintf(buf + used, size - used, "%s%s",
					 used ? "," : "", names[i]);
		rdma = rdma || *names[i] != 'u';
	}
	return rdma;
}
