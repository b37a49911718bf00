/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Breaks each rule that the demanding provider imposes, on purpose, by plain
 * libfabric calls, and sees that it is refused and counted; and that the same
 * done well is not. One process, RMA to itself.
 *
 *   selftest LIBFABRIC CASE [OTHER]     FI_PROVIDER_PATH names the provider
 *   selftest --list                     each case and what it provokes
 */
#define _GNU_SOURCE
#include "selftest.h"

const char *other;

static const struct {
	const char *name, *mode, *environment, *kinds;
	void (*run)(void);
} cases[] = {
	{"key", "none", "", "key", case_key},
	{"address", "none", "", "address", case_address},
	{"rights", "none", "", "rights", case_rights},
	{"argument", "none", "", "argument", case_argument},
	{"length", "none", "DEMAND_MAX_MSG=1000", "argument", case_length},
	{"pieces", "none", "DEMAND_IOV_LIMIT=3", "argument address",
	 case_pieces},
	{"auth_key", "none", "DEMAND_AUTH_KEY_SIZE=4", "argument",
	 case_auth_key},
	{"flags", "none", "", "flags", case_flags},
	{"requested_key", "none", "DEMAND_KEY_SIZE=2", "requested_key",
	 case_requested_key},
	{"leak", "none", "", "leak", case_leak},
	{"order", "none", "", "order", case_order},
	{"atomic", "none", "", "address key", case_atomic},
	{"offer", "verbs", "", "", case_offer},
	{"origin", "local", "", "origin", case_origin},
	{"desc", "local", "", "desc", case_desc},
	{"local_rights", "local", "", "rights", case_local_rights},
	{"busy", "local", "", "busy", case_busy},
	{"messages", "local", "", "", case_messages},
	{"virt_addr", "virt_addr", "", "address", case_virt_addr},
	{"prov_key", "prov_key", "", "key", case_prov_key},
	{"raw_1", "raw", "DEMAND_KEY_SIZE=1", "raw_key leak", case_raw},
	{"raw_32", "raw", "DEMAND_KEY_SIZE=32", "raw_key leak", case_raw},
	{"raw_4096", "raw", "DEMAND_KEY_SIZE=4096", "raw_key leak", case_raw},
	{"allocated", "allocated", "", "allocated", case_allocated},
	{"os_access", "allocated", "", "os_access", case_os_access},
	{"refresh", "mmu_notify", "", "refresh", case_refresh},
	{"unbound", "endpoint", "", "unbound disabled order", case_unbound},
	{"rma_event", "rma_event", "", "unbound", case_rma_event},
	{"hmem", "hmem", "", "hmem origin", case_hmem},
	{"collective", "collective", "", "collective", case_collective},
	{"pmem", "pmem", "", "flags", case_pmem},
	{"async", "async", "DEMAND_FAULT=mr_complete:3:ENOMEM",
	 "disabled unbound order", case_async},
	{"faults", "none", "", "", case_faults},
	{"completion", "none", "DEMAND_FAULT=completion:2:EIO", "",
	 case_completion},
	{"delay", "none", "DEMAND_DELAY_US=50000", "", case_delay},
	{"two", "none", "", "key", case_two},
};

int main(int argc, char **argv)
{
	size_t n = sizeof(cases) / sizeof(*cases), i = 0;

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (i = 0; i < n; i++)
			printf("%s: %s\n", cases[i].name, cases[i].kinds);
		return 0;
	}
	while (argc >= 3 && i < n && strcmp(cases[i].name, argv[2]))
		i++;
	if (argc < 3 || i == n) {
		fprintf(stderr, "selftest LIBFABRIC CASE [OTHER] | --list\n");
		return 2;
	}
	other = argv[3];
	setenv("DEMAND_MODE", cases[i].mode, 1);
	if (*cases[i].environment)
		putenv((char *)cases[i].environment);
	load(argv[1]);
	find();
	lib.freeinfo(info);
	find_counts();
	cases[i].run();
	return 0;
}
