/* SPDX-License-Identifier: BSD-3-Clause */
/* How much room there is, by files as the systems of others have them. */
#include "rig.h"
#include "shm/pages.h"

#include <ftw.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

static char tree[64];

static void write_file(const char *name, const char *text)
{
	char path[PATH_MAX];
	FILE *file;

	snprintf(path, sizeof(path), "%s%s", tree, name);
	for (char *at = path + strlen(tree) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		CHECK(!mkdir(path, 0700) || errno == EEXIST);
		*at = '/';
	}
	file = fopen(path, "we");
	CHECK(file);
	CHECK(fputs(text, file) >= 0);
	OK(fclose(file));
}

static void write_number(const char *dir, const char *name, uint64_t number)
{
	char path[PATH_MAX], text[32];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	snprintf(text, sizeof(text), "%llu\n", (unsigned long long)number);
	write_file(path, text);
}

static void tree_new(void)
{
	strcpy(tree, "/tmp/rmaext-room-XXXXXX");
	CHECK(mkdtemp(tree));
	write_file("/proc/meminfo", "MemTotal:       65806384 kB\n"
				    "MemFree:         1048576 kB\n"
				    "MemAvailable:   16777216 kB\n"
				    "SwapTotal:             0 kB\n"
				    "SwapFree:              0 kB\n");
}

static int one_gone(const char *path, const struct stat *status, int type,
		    struct FTW *at)
{
	(void)status;
	(void)type;
	(void)at;
	return remove(path);
}

static void tree_drop(void)
{
	OK(nftw(tree, one_gone, 16, FTW_DEPTH | FTW_PHYS));
}

#define SLURM "/system.slice/slurmstepd.scope/job_71/step_0/user/task_0"
#define V2_MOUNTS                                                         \
	"22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"  \
	"30 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 " \
	"cgroup2 rw,nsdelegate,memory_recursiveprot\n"
#define JOB "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_71"

/* Slurm, version 2: the limit is of the job, above the cgroup of the task. */
static void slurm(void)
{
	tree_new();
	write_file("/proc/self/cgroup", "0::" SLURM "\n");
	write_file("/proc/self/mountinfo", V2_MOUNTS);
	EQUAL(rmx_room(tree), 16 * GIB); /* no files of memory at all */
	write_file("/sys/fs/cgroup" SLURM "/memory.max", "max\n");
	write_number("/sys/fs/cgroup" SLURM, "memory.current", 5 * MIB);
	EQUAL(rmx_room(tree), 16 * GIB);
	write_number(JOB, "memory.max", 4 * GIB);
	write_number(JOB, "memory.current", 3 * GIB);
	EQUAL(rmx_room(tree), GIB);
	/* files that were read are no use of memory; shared memory is */
	write_file(JOB "/memory.stat", "anon 1073741824\n"
				       "file 2147483648\n"
				       "shmem 1073741824\n"
				       "inactive_anon 1073741824\n"
				       "active_anon 1073741824\n"
				       "inactive_file 536870912\n"
				       "active_file 268435456\n"
				       "slab_reclaimable 268435456\n");
	EQUAL(rmx_room(tree), 2 * GIB);
	/* the own limit may be the lower one */
	write_number("/sys/fs/cgroup" SLURM, "memory.max", 105 * MIB);
	EQUAL(rmx_room(tree), 100 * MIB);
	write_number("/sys/fs/cgroup" SLURM, "memory.current", 200 * MIB);
	EQUAL(rmx_room(tree), 0);
	tree_drop();
}

static void with_swap(void)
{
	tree_new();
	write_file("/proc/meminfo", "MemAvailable:   1048576 kB\n"
				    "SwapFree:       2097152 kB\n");
	EQUAL(rmx_room(tree), 3 * GIB);
	write_file("/proc/self/cgroup", "0::" SLURM "\n");
	write_file("/proc/self/mountinfo", V2_MOUNTS);
	write_number(JOB, "memory.max", GIB);
	write_number(JOB, "memory.current", GIB / 2);
	EQUAL(rmx_room(tree), 2 * GIB + GIB / 2);
	write_number(JOB, "memory.swap.max", GIB);
	write_number(JOB, "memory.swap.current", GIB / 4);
	EQUAL(rmx_room(tree), GIB / 2 + GIB * 3 / 4);
	write_number(JOB, "memory.swap.max", 0);
	EQUAL(rmx_room(tree), GIB / 2);
	tree_drop();
}

#define DOCKER "/docker/5f3a1c"
#define V1_MOUNTS                                                         \
	"1030 1029 0:97 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n"    \
	"1031 1030 0:29 " DOCKER                                          \
	" /sys/fs/cgroup/systemd ro master:11 - cgroup cgroup rw,xattr\n" \
	"1036 1030 0:34 " DOCKER                                          \
	" /sys/fs/cgroup/memory ro,nosuid master:17 - cgroup cgroup "     \
	"rw,memory\n"                                                     \
	"1037 1030 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"

/* Docker, version 1, where the container sees its own part of the tree only. */
static void docker(void)
{
	static const char dir[] = "/sys/fs/cgroup/memory";

	tree_new();
	write_file("/proc/self/cgroup", "11:memory:" DOCKER "\n"
					"3:cpu,cpuacct:" DOCKER "\n"
					"0::" DOCKER "\n");
	write_file("/proc/self/mountinfo", V1_MOUNTS);
	write_number(dir, "memory.limit_in_bytes", 9223372036854771712u);
	write_number(dir, "memory.usage_in_bytes", GIB);
	EQUAL(rmx_room(tree), 16 * GIB);
	write_number(dir, "memory.limit_in_bytes", 2 * GIB);
	EQUAL(rmx_room(tree), GIB);
	write_file("/sys/fs/cgroup/memory/memory.stat",
		   "cache 536870912\n"
		   "inactive_file 1\n"
		   "total_inactive_file 268435456\n"
		   "total_active_file 268435456\n");
	EQUAL(rmx_room(tree), GIB + GIB / 2);
	write_number(dir, "memory.memsw.limit_in_bytes", 2 * GIB);
	write_number(dir, "memory.memsw.usage_in_bytes", GIB + GIB / 2);
	EQUAL(rmx_room(tree), GIB);
	/* a cgroup that was moved out of what the container sees */
	write_file("/proc/self/cgroup", "11:memory:/../other\n");
	EQUAL(rmx_room(tree), GIB);
	/* and one that lies below it */
	write_file("/proc/self/cgroup", "11:memory:" DOCKER "/inner\n");
	write_number("/sys/fs/cgroup/memory/inner", "memory.limit_in_bytes",
		     9 * MIB);
	write_number("/sys/fs/cgroup/memory/inner", "memory.usage_in_bytes",
		     MIB);
	EQUAL(rmx_room(tree), 8 * MIB);
	tree_drop();
}

/* Nothing, or nonsense, is no limit. */
static void nothing(void)
{
	tree_new();
	EQUAL(rmx_room(tree), 16 * GIB);
	write_file("/proc/self/cgroup", "0::\n:\nmemory\n7:memory\n");
	write_file("/proc/self/mountinfo",
		   "- cgroup2\n\n1 2 3 - cgroup2 a b\n");
	EQUAL(rmx_room(tree), 16 * GIB);
	tree_drop();
	EQUAL(rmx_room("/nowhere"), UINT64_MAX);
	CHECK(rmx_room("") > 0);
}

/* Pages that are there already need no room; what no machine has is refused. */
static void populate(void)
{
	const uint64_t len = 8 * MIB, huge = 3 * rmx_room("");
	char *it = mmap(NULL, len, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t there = 0;

	CHECK(it != MAP_FAILED);
	OK(rmaext_pages_populate(it + 100, len - 200, true));
	OK(rmaext_pages_resident(it, len, &there));
	EQUAL(there, len);
	OK(munmap(it, len));
	it = mmap(NULL, huge, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(it != MAP_FAILED);
	EQUAL(rmx_pages_populate(it, huge, true), -ENOSPC);
	EQUAL(rmaext_pages_populate(it, huge, true), -ENOMEM);
	OK(rmaext_pages_resident(it, len, &there));
	EQUAL(there, 0);
	OK(munmap(it, huge));
}

const struct test tests[] = {
	{"slurm", slurm, NULL, NULL},
	{"with_swap", with_swap, NULL, NULL},
	{"docker", docker, NULL, NULL},
	{"nothing", nothing, NULL, NULL},
	{"populate", populate, NULL, NULL},
	{0},
};
