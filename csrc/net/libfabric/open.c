/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opens a libfabric at run time. A linked extension would silently get MPI's
 * copy, which has the same soname and may have read its environment; a copy of
 * our own lets the user choose the version. The versions of the symbols are
 * those of the structures in the headers of 1.17; libfabric keeps them in later
 * releases.
 */
#define _GNU_SOURCE
#include "net/libfabric/libfabric.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int symbol_take(struct rmaext_library *lib, const char *name,
		       const char *version, void *function_p)
{
	void *symbol = rmx_symbol(lib->handle, name, version);

	if (!symbol)
		return rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlsym",
				"%s@%s is missing: this is not a libfabric >= "
				"1.5; set RMAEXT_LIBFABRIC to one",
				name, version);
	/* POSIX allows a pointer to data to become one to a function */
	memcpy(function_p, &symbol, sizeof(symbol));
	return 0;
}

int rmaext_library_open(const char *path, int flags, rmaext_library **lib_p)
{
	struct rmaext_library *lib = calloc(1, sizeof(*lib));
	struct rmx_signals *signals;
	const char *slash;
	int ret;

	if (!lib)
		return rmx_no_memory("an opened libfabric");
	pthread_mutex_init(&lib->lock, NULL);
	lib->shared = flags & RMAEXT_LIBRARY_SHARED;
	atomic_init(&lib->tune, !(flags & RMAEXT_LIBRARY_THEIRS));
	signals = rmx_signals_hold();
	lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	rmx_signals_give_back(
		signals, lib->handle ? dlsym(lib->handle, "fi_getinfo") : NULL);
	if (!lib->handle) {
		ret = rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen", "%s",
			       dlerror());
		goto free_lib;
	}
	if ((ret = symbol_take(lib, "fi_getinfo", "FABRIC_1.3",
			       &lib->getinfo)) ||
	    (ret = symbol_take(lib, "fi_freeinfo", "FABRIC_1.3",
			       &lib->freeinfo)) ||
	    (ret = symbol_take(lib, "fi_dupinfo", "FABRIC_1.3",
			       &lib->dupinfo)) ||
	    (ret = symbol_take(lib, "fi_fabric", "FABRIC_1.1", &lib->fabric)) ||
	    (ret = symbol_take(lib, "fi_version", "FABRIC_1.0",
			       &lib->version)) ||
	    (ret = symbol_take(lib, "fi_strerror", "FABRIC_1.0",
			       &lib->strerror)))
		goto close_handle;
	lib->head = (struct rmx_library){
		.transport = &rmx_libfabric,
		.code = RMX_ADDRESS(lib->getinfo),
	};
	slash = strrchr(path, '/');
	if (flags & RMAEXT_LIBRARY_BARE) /* there is nothing below a file */
		snprintf(lib->plugins, sizeof(lib->plugins), "%s/none", path);
	else if (slash && !lib->shared)
		snprintf(lib->plugins, sizeof(lib->plugins), "%.*s/libfabric",
			 (int)(slash - path), path);
	if (!realpath(path, lib->path))
		lib->path[0] = '\0';
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
 * The handle stays open: providers have started threads and registered exit
 * handlers, whose code must not be unmapped.
 */
void rmaext_library_close(rmaext_library *lib)
{
	pthread_mutex_destroy(&lib->lock);
	free(lib);
}
