/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opens a libfabric at run time. Linking would silently give MPI's copy (same
 * soname), whose environment has been read; a copy of our own also lets the
 * user choose the version. Symbol versions are those that the 1.17 headers'
 * structures belong to: libfabric keeps them in later releases.
 */
#define _GNU_SOURCE
#include "internal.h"
#include "compat.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * musl knows no versions: there the newest is had, which is that of the headers
 * of the same distribution.
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

static int take(struct rmaext_library *lib, const char *name,
		const char *version, void *function_p)
{
	void *symbol = rmx_symbol(lib->handle, name, version);

	if (!symbol)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlsym",
				"%s@%s is missing: not a libfabric >= 1.5?",
				name, version);
	/* a data pointer to a function pointer, which POSIX allows */
	memcpy(function_p, &symbol, sizeof(symbol));
	return 0;
}

int rmaext_library_open(const char *path, int shared, rmaext_library **lib_p)
{
	struct rmaext_library *lib = calloc(1, sizeof(*lib));
	struct rmx_signals *signals;
	const char *slash;
	int ret;

	if (!lib)
		return rmx_fail(-FI_ENOMEM, RMX_NO_RANK, "calloc", "library");
	pthread_mutex_init(&lib->lock, NULL);
	lib->tune = !shared;
	signals = rmx_signals_hold();
	lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	rmx_signals_give_back(signals);
	if (!lib->handle) {
		ret = rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen", "%s",
			       dlerror());
		goto free_lib;
	}
	if ((ret = take(lib, "fi_getinfo", "FABRIC_1.3", &lib->getinfo)) ||
	    (ret = take(lib, "fi_freeinfo", "FABRIC_1.3", &lib->freeinfo)) ||
	    (ret = take(lib, "fi_dupinfo", "FABRIC_1.3", &lib->dupinfo)) ||
	    (ret = take(lib, "fi_fabric", "FABRIC_1.1", &lib->fabric)) ||
	    (ret = take(lib, "fi_version", "FABRIC_1.0", &lib->version)) ||
	    (ret = take(lib, "fi_strerror", "FABRIC_1.0", &lib->strerror)))
		goto close_handle;
	slash = strrchr(path, '/');
	if (slash)
		snprintf(lib->plugins, sizeof(lib->plugins), "%.*s/libfabric",
			 (int)(slash - path), path);
	*lib_p = lib;
	return 0;

close_handle:
	dlclose(lib->handle);
free_lib:
	pthread_mutex_destroy(&lib->lock);
	free(lib);
	return ret;
}

uint32_t rmaext_library_version(const rmaext_library *lib)
{
	return lib->version();
}

/*
 * The handle stays open: providers start threads and register exit handlers
 * whose code must not be unmapped.
 */
void rmaext_library_close(rmaext_library *lib)
{
	pthread_mutex_destroy(&lib->lock);
	free(lib);
}

const char *rmaext_strerror(const rmaext_library *lib, int code)
{
	return lib->strerror(code < 0 ? -code : code);
}

/*
 * The providers read their environment in a copy's first fi_getinfo.
 *
 * FI_PROVIDER_PATH: by default 1.17 looks its plug-ins up by soname, gets those
 * that MPI's copy has loaded, and both free the same statics at exit (double
 * free, seen with both MPIs). A folder of its own, which need not exist, keeps
 * the copies apart.
 */
int rmx_getinfo(struct rmaext_library *lib, const char *node, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info_p)
{
	enum { N = sizeof(rmx_tuning) / sizeof(*rmx_tuning), PATH = N };
	bool ours[N + 1] = {false};
	struct rmx_signals *signals;
	int ret;

	pthread_mutex_lock(&lib->lock);
	for (int i = 0; lib->tune && i <= PATH; i++) {
		const char *name =
			i == PATH ? "FI_PROVIDER_PATH" : rmx_tuning[i][0];
		const char *value = i == PATH ? lib->plugins : rmx_tuning[i][1];

		if (*value && !getenv(name))
			ours[i] = !setenv(name, value, 0);
	}
	signals = rmx_signals_hold();
	ret = lib->getinfo(RMX_FI_VERSION, node, NULL, flags, hints, info_p);
	rmx_signals_give_back(signals);
	for (int i = 0; i <= PATH; i++)
		if (ours[i])
			unsetenv(i == PATH ? "FI_PROVIDER_PATH"
					   : rmx_tuning[i][0]);
	lib->tune = false;
	pthread_mutex_unlock(&lib->lock);
	return ret;
}
