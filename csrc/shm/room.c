/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * How much memory there is room for: what the machine has available, and what
 * the memory cgroups of this process leave, that of the job, of a container and
 * all above them. The kernel refuses no page of shared memory: it kills a
 * process, and often this one.
 */
#define _GNU_SOURCE
#include "shm/pages.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define ROOM_LIMITS ((uint64_t)1 << 60) /* a larger limit is none */

/* Where the files of one hierarchy are, and the cgroup there. */
struct hierarchy {
	bool unified; /* version 2 */
	char mount[PATH_MAX], root[PATH_MAX], path[PATH_MAX];
};

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t less(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* Reads dir/name as a number; "max", or no such file, is UINT64_MAX. */
static uint64_t number_of(const char *dir, const char *name)
{
	char path[2 * PATH_MAX];
	unsigned long long number;
	FILE *file;
	int n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "re");
	if (!file)
		return UINT64_MAX;
	n = fscanf(file, "%llu", &number);
	fclose(file);
	return n == 1 && number < ROOM_LIMITS ? number : UINT64_MAX;
}

/* Adds up what a file says of these names, a line each: "name number". */
static uint64_t sum_of(const char *dir, const char *name,
		       const char *const *wanted)
{
	char path[2 * PATH_MAX], line[256], word[128];
	unsigned long long number;
	uint64_t sum = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "re");
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		for (size_t i = 0; wanted[i]; i++)
			if (sscanf(line, "%127s %llu", word, &number) == 2 &&
			    !strcmp(word, wanted[i]))
				sum += number;
	fclose(file);
	return sum;
}

/* Pages of files are given back before anybody is killed. */
static uint64_t level_room(const char *dir, bool unified, uint64_t swap)
{
	static const char *const own[] = {"inactive_file", "active_file",
					  "slab_reclaimable", NULL};
	static const char *const total[] = {"total_inactive_file",
					    "total_active_file", NULL};
	const uint64_t cached =
		sum_of(dir, "memory.stat", unified ? own : total);
	const uint64_t limit = number_of(
		dir, unified ? "memory.max" : "memory.limit_in_bytes");
	const uint64_t used = number_of(dir, unified ? "memory.current"
						     : "memory.usage_in_bytes");
	const uint64_t limit_swap =
		number_of(dir, unified ? "memory.swap.max"
				       : "memory.memsw.limit_in_bytes");
	const uint64_t used_swap =
		number_of(dir, unified ? "memory.swap.current"
				       : "memory.memsw.usage_in_bytes");
	uint64_t room;

	if (limit == UINT64_MAX || used == UINT64_MAX)
		return UINT64_MAX;
	if (unified && limit_swap != UINT64_MAX)
		swap = least(swap, less(limit_swap, used_swap));
	room = less(limit, less(used, cached)) + swap;
	if (!unified && limit_swap != UINT64_MAX) /* of both together */
		room = least(room, less(limit_swap, less(used_swap, cached)));
	return room;
}

/* Of the cgroup and of all above it that can be seen here. */
static uint64_t hierarchy_room(const char *prefix, const struct hierarchy *h,
			       uint64_t swap)
{
	const size_t skip = strcmp(h->root, "/") ? strlen(h->root) : 0;
	const bool below = !strncmp(h->path, h->root, skip) &&
			   (!skip || !h->path[skip] || h->path[skip] == '/') &&
			   !strstr(h->path, "/..");
	char dir[3 * PATH_MAX];
	uint64_t room = UINT64_MAX;
	size_t top;
	char *end;

	/* a cgroup outside of what is mounted: its top is what there is */
	top = (size_t)snprintf(dir, sizeof(dir), "%s%s", prefix, h->mount);
	snprintf(dir + top, sizeof(dir) - top, "%s",
		 below ? h->path + skip : "");
	for (;;) {
		room = least(room, level_room(dir, h->unified, swap));
		end = strrchr(dir + top, '/');
		if (!end)
			return room;
		*end = '\0';
	}
}

/* "4:memory:/path"; "0::/path" is version 2. */
static bool path_find(const char *prefix, struct hierarchy *h)
{
	char *line = NULL, name[PATH_MAX], controllers[256];
	bool found = false;
	size_t size = 0;
	FILE *file;

	snprintf(name, sizeof(name), "%s/proc/self/cgroup", prefix);
	file = fopen(name, "re");
	if (!file)
		return false;
	while (!found && getline(&line, &size, file) > 0) {
		char *list = strchr(line, ':');
		char *path = list ? strchr(list + 1, ':') : NULL;

		if (!path)
			continue;
		path[strcspn(path, "\n")] = '\0';
		snprintf(controllers, sizeof(controllers), ",%.*s,",
			 (int)(path - list - 1), list + 1);
		found = h->unified ? !strncmp(line, "0::", 3)
				   : strstr(controllers, ",memory,") != NULL;
		if (found)
			snprintf(h->path, sizeof(h->path), "%s", path + 1);
	}
	free(line);
	fclose(file);
	return found;
}

/* One line of mountinfo: "id parent device root mount options... - type source
 * options". */
static bool mount_is(const char *line, struct hierarchy *h)
{
	const char *rest = strstr(line, " - ");
	char type[64], options[1024];

	if (!rest || sscanf(rest, " - %63s %*s %1023s", type, options) != 2 ||
	    sscanf(line, "%*s %*s %*s %4095s %4095s", h->root, h->mount) != 2)
		return false;
	if (h->unified)
		return !strcmp(type, "cgroup2");
	for (char *save, *word = strtok_r(options, ",", &save); word;
	     word = strtok_r(NULL, ",", &save))
		if (!strcmp(word, "memory"))
			return !strcmp(type, "cgroup");
	return false;
}

static bool mount_find(const char *prefix, struct hierarchy *h)
{
	char *line = NULL, name[PATH_MAX];
	bool found = false;
	size_t size = 0;
	FILE *file;

	snprintf(name, sizeof(name), "%s/proc/self/mountinfo", prefix);
	file = fopen(name, "re");
	if (!file)
		return false;
	while (!found && getline(&line, &size, file) > 0)
		found = mount_is(line, h);
	free(line);
	fclose(file);
	return found;
}

uint64_t rmx_room(const char *prefix)
{
	static const char *const available[] = {"MemAvailable:", NULL};
	static const char *const swap_free[] = {"SwapFree:", NULL};
	struct hierarchy *h = malloc(sizeof(*h));
	char proc[PATH_MAX];
	uint64_t room, swap;

	snprintf(proc, sizeof(proc), "%s/proc", prefix);
	swap = sum_of(proc, "meminfo", swap_free) << 10;
	room = sum_of(proc, "meminfo", available) << 10;
	room = room ? room + swap : UINT64_MAX; /* before Linux 3.14: unknown */
	for (int unified = 0; h && unified < 2; unified++) {
		h->unified = unified;
		if (path_find(prefix, h) && mount_find(prefix, h))
			room = least(room, hierarchy_room(prefix, h, swap));
	}
	free(h);
	return room;
}
