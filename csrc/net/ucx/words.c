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

static bool list_names(const char *list, const char *family, const char *rest)
{
	char name[16];

	snprintf(name, sizeof(name), "%s%s", family, rest);
	return list_has(list, name, strlen(name));
}

/* What is left of a family where the list is taken away; NULL: nothing. */
static const char *family_rest(const char *family, const char *list)
{
	const bool verbs = *family != 'd' && !list_names(list, family, "_v") &&
			   !list_names(list, family, "_verbs");
	const bool mlx5 = !list_names(list, family, "_x") &&
			  !list_names(list, family, "_mlx5");

	if (list_names(list, family, "") || list_names(list, "ib", "") ||
	    list_names(list, "all", ""))
		return NULL;
	if (mlx5 && (verbs || *family == 'd'))
		return "";
	return mlx5 ? "_x" : verbs ? "_v" : NULL;
}

bool rmx_ucx_transports(const char *wanted, char *buf, size_t size)
{
	/* ud only connects: what it calls RMA is software at the target */
	static const char *const families[] = {"rc", "dc", "ud"};
	static const char *const variants[] = {"", "_v", "_verbs", "_x",
					       "_mlx5"};
	const bool without = wanted && *wanted == '^';
	const char *list = without ? wanted + 1 : wanted;
	const bool all = !wanted || !*wanted ||
			 (!without && (list_names(list, "all", "") ||
				       list_names(list, "ib", "")));
	struct rmx_text text = {.buf = buf, .size = size};
	bool rdma = false;

	/* those of them that there are: of the others UCX would complain */
	snprintf(buf, size, "%s", all ? "ib" : "");
	if (all)
		return true;
	for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
		const char *family = families[i];
		const char *rest = family_rest(family, list);

		for (size_t k = 0; k < sizeof(variants) / sizeof(*variants);
		     k++) {
			const bool takes =
				without ? rest && !strcmp(rest, variants[k])
					: list_names(list, family, variants[k]);

			if (!takes)
				continue;
			rmx_text_add(&text, "%s%s%s", text.used ? "," : "",
				     family, variants[k]);
			rdma = rdma || *family != 'u';
		}
	}
	return rdma;
}
