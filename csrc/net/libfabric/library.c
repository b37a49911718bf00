/* SPDX-License-Identifier: BSD-3-Clause */
/* An opened libfabric: its symbols, and its environment as it is asked. */
#define _GNU_SOURCE
#include "net/libfabric/libfabric.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * musl knows no versions of symbols. There the newest is taken, which is that
 * of the headers of the same distribution.
 */
void *rmx_symbol(void *handle, const char *name, const char *version)
{
#ifdef __GLIBC__
	return dlvsym(handle, name, version);
#else
	(void)version;
	return dlsym(handle, name);
#endif
}

const char *rmaext_strerror(const rmaext_library *lib, int code)
{
	return lib->strerror(code < 0 ? -code : code);
}

/* Does that folder, or its parent, have a libfabric other than this one? */
static bool folder_is_of_another(const struct rmaext_library *lib,
				 const char *folder, int length)
{
	static const char *const places[] = {"", "/.."};
	char path[4096], real[4096]; /* PATH_MAX */

	for (size_t i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%.*s%s/libfabric.so.1", length,
			 folder, places[i]);
		if (realpath(path, real))
			return strcmp(real, lib->path);
	}
	return false;
}

/*
 * mpi4py and the scripts of Intel MPI set FI_PROVIDER_PATH to the plug-ins of
 * Intel MPI's libfabric. Returns the part of the path that this copy may use,
 * which the caller frees, or NULL if it may use all.
 */
static char *path_without_others(const struct rmaext_library *lib,
				 const char *value)
{
	char *rest = calloc(1, strlen(value) + 2), *end = rest;

	if (!rest)
		return NULL;
	for (const char *at = value; *at; at += *at == ':') {
		size_t length = strcspn(at, ":");

		if (length && !folder_is_of_another(lib, at, (int)length))
			end += sprintf(end, "%.*s:", (int)length, at);
		at += length;
	}
	if (end > rest)
		end[-1] = '\0';
	if (strcmp(rest, value))
		return rest;
	free(rest);
	return NULL;
}

/*
 * Intel MPI's copy offers tcp;ofi_rxm to callers that name no provider, and to
 * no caller that names it. So it is asked once more without the name; callers
 * of rmx_getinfo() look at the names of what they get.
 */
static int getinfo_unnamed(struct rmaext_library *lib, const char *node,
			   uint64_t flags, const struct fi_info *hints,
			   struct fi_info **info_p)
{
	struct fi_info *any;
	int ret;

	if (!hints->fabric_attr->prov_name ||
	    !strchr(hints->fabric_attr->prov_name, ';'))
		return -FI_ENODATA;
	any = lib->dupinfo(hints);
	if (!any)
		return -FI_ENOMEM;
	free(any->fabric_attr->prov_name);
	any->fabric_attr->prov_name = NULL;
	ret = lib->getinfo(RMX_FI_VERSION, node, NULL, flags, any, info_p);
	lib->freeinfo(any);
	return ret;
}

void rmx_settings_hold(struct rmaext_library *lib,
		       const char *const (*settings)[2], size_t count,
		       bool *ours)
{
	pthread_mutex_lock(&lib->lock);
	for (size_t i = 0; i < count; i++)
		ours[i] = !getenv(settings[i][0]) &&
			  !setenv(settings[i][0], settings[i][1], 0);
}

void rmx_settings_give_back(struct rmaext_library *lib,
			    const char *const (*settings)[2], size_t count,
			    const bool *ours)
{
	for (size_t i = 0; i < count; i++)
		if (ours[i])
			unsetenv(settings[i][0]);
	pthread_mutex_unlock(&lib->lock);
}

/*
 * FI_PROVIDER_PATH: by default 1.17 finds its plug-ins by soname and gets those
 * that MPI's copy has loaded. Both copies then free the same statics at exit
 * (double free, seen with both MPIs). A folder of its own, which need not
 * exist, keeps the copies apart. Nor are plug-ins loaded that have no device
 * here: those for verbs and efa read /proc/kallsyms, 30 ms each. Returns what
 * the variable was, which the caller frees, or NULL; *ours_p says whether it
 * was changed.
 */
static char *plugins_set(const struct rmaext_library *lib, bool *ours_p)
{
	const char *value = lib->plugins, *users = getenv("FI_PROVIDER_PATH");
	char *rest = NULL, *before = NULL;

	*ours_p = false;
	if (users) { /* the user's stays, but for others' plug-ins */
		rest = path_without_others(lib, users);
		if (!rest || !(before = strdup(users))) {
			free(rest);
			return NULL;
		}
		if (*rest)
			value = rest;
	}
	if (*value)
		*ours_p = !setenv("FI_PROVIDER_PATH", value, 1);
	free(rest);
	return before;
}

/*
 * The providers read their environment in a copy's first fi_getinfo, so it is
 * set for that call, and then set back.
 */
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p)
{
	enum { N = sizeof(rmx_tuning) / sizeof(*rmx_tuning) };
	struct rmx_signals *signals;
	bool ours[N], plugins = false;
	char *before = NULL;
	const size_t first = lib->shared ? RMX_TUNING_OF_RXM : 0;
	const size_t count = atomic_exchange(&lib->tune, false) ? N - first : 0;
	int ret;

	rmx_settings_hold(lib, rmx_tuning + first, count, ours);
	if (count)
		before = plugins_set(lib, &plugins);
	signals = rmx_signals_hold();
	ret = lib->getinfo(RMX_FI_VERSION, node, NULL, flags, hints, info_p);
	if (ret == -FI_ENODATA)
		ret = getinfo_unnamed(lib, node, flags, hints, info_p);
	rmx_signals_give_back(signals, RMX_ADDRESS(lib->getinfo));
	if (plugins && before)
		setenv("FI_PROVIDER_PATH", before, 1);
	else if (plugins)
		unsetenv("FI_PROVIDER_PATH");
	free(before);
	rmx_settings_give_back(lib, rmx_tuning + first, count, ours);
	return ret;
}
