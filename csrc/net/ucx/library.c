/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Opens a UCX at run time. MPI has often loaded one, and a second one with the
 * same names would share half of its libraries; so the caller names MPI's where
 * there is one.
 */
#define _GNU_SOURCE
#include "net/ucx/ucx.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define RMX_UCX_OLDEST 20 /* 1.13 aborts as it connects over ud */

/* POSIX allows a pointer to data to become one to a function. */
static bool symbol_take(void *handle, const char *name, void *function_p)
{
	void *symbol = dlsym(handle, name);

	memcpy(function_p, &symbol, sizeof(symbol));
	return symbol;
}

/* Returns the name of a function that the library lacks, or NULL. */
static const char *functions_take(void *handle, struct rmx_ucp *ucp)
{
	if (!symbol_take(handle, "ucs_status_string", &ucp->status_string))
		return "ucs_status_string";
#define X(name)                                             \
	if (!symbol_take(handle, "ucp_" #name, &ucp->name)) \
		return "ucp_" #name;
	RMX_UCP_FUNCTIONS(X)
#undef X
	return NULL;
}

/*
 * Unless it is loaded: UCX takes the signals of crashes, and hooks the calls
 * that change the memory map, as it is loaded. It needs neither: what it uses
 * is registered by us.
 */
static void *library_load(const char *path)
{
	static const char *const settings[][2] = {
		{"UCX_HANDLE_ERRORS", "none"},
		{"UCX_DEBUG_SIGNO", "0"},
		{"UCX_MEM_EVENTS", "n"},
	};
	enum { N = sizeof(settings) / sizeof(*settings) };
	struct rmx_signals *signals = rmx_signals_hold();
	bool ours[N];
	void *handle;

	for (int i = 0; i < N; i++)
		ours[i] = !getenv(settings[i][0]) &&
			  !setenv(settings[i][0], settings[i][1], 0);
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	for (int i = 0; i < N; i++)
		if (ours[i])
			unsetenv(settings[i][0]);
	rmx_signals_give_back(signals,
			      handle ? dlsym(handle, "ucp_get_version") : NULL);
	return handle;
}

int rmaext_ucx_open(const char *path, int any, rmaext_library **lib_p)
{
	struct rmaext_library *lib = calloc(1, sizeof(*lib));
	unsigned int major, minor, release;
	const char *missing, *advice;
	void *handle;
	int ret;

	if (!lib)
		return rmx_no_memory("an opened UCX");
	/* beside one that MPI has loaded there can be no other */
	handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
	advice = handle ? "unset RMAEXT_TRANSPORT, or use an MPI with UCX 1.20"
			: "set RMAEXT_UCX to such a libucp.so.0, or unset "
			  "RMAEXT_TRANSPORT";
	if (handle)
		dlclose(handle);
	handle = library_load(path);
	if (!handle) {
		ret = rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlopen", "%s",
			       dlerror());
		goto free_lib;
	}
	missing = functions_take(handle, &lib->ucp);
	if (missing) {
		ret = rmx_fail(-FI_ENOENT, RMX_NO_RANK, "dlsym",
			       "%s is missing: this is not UCX 1.%d or later; "
			       "%s",
			       missing, RMX_UCX_OLDEST, advice);
		goto close_handle;
	}
	lib->ucp.get_version(&major, &minor, &release);
	if (major != 1 || minor < RMX_UCX_OLDEST) {
		ret = rmx_fail(-FI_ENOENT, RMX_NO_RANK, "ucp_get_version",
			       "this is UCX %u.%u.%u, and must be 1.%d or a "
			       "later 1.x: %s",
			       major, minor, release, RMX_UCX_OLDEST, advice);
		goto close_handle;
	}
	lib->head = (struct rmx_library){
		.transport = &rmx_ucx,
		.code = RMX_ADDRESS(lib->ucp.get_version),
	};
	lib->any = any;
	*lib_p = lib;
	return 0;

close_handle:
	dlclose(handle);
free_lib:
	free(lib);
	return ret;
}

void rmaext_ucx_version(const rmaext_library *lib, char version[16])
{
	unsigned int major, minor, release;

	lib->ucp.get_version(&major, &minor, &release);
	snprintf(version, 16, "%u.%u.%u", major % 100, minor % 1000,
		 release % 1000);
}
