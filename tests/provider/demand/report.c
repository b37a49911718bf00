/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Counts, violations and faults. $DEMAND_REPORT.PID gets a line of JSON for
 * each domain opened and closed and for each violation, at once, and one with
 * all counts when a domain closes and when the process exits.
 */
#define _GNU_SOURCE
#include "demand.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const call_names[] = {
#define X(name) #name,
	DM_CALLS(X)
#undef X
};

static const char *const violation_names[] = {
#define X(name) #name,
	DM_VIOLATIONS(X)
#undef X
};

static _Atomic uint64_t calls[DM_N_CALLS], violations[DM_N_VIOLATIONS];
static _Atomic size_t open_domains;

/* -- faults --------------------------------------------------------------- */

static const struct {
	const char *name;
	int value;
} errors[] = {
	{"EPERM", FI_EPERM},
	{"ENOENT", FI_ENOENT},
	{"EIO", FI_EIO},
	{"EAGAIN", FI_EAGAIN},
	{"ENOMEM", FI_ENOMEM},
	{"EACCES", FI_EACCES},
	{"EBUSY", FI_EBUSY},
	{"ENODEV", FI_ENODEV},
	{"EINVAL", FI_EINVAL},
	{"ENOSYS", FI_ENOSYS},
	{"EMSGSIZE", FI_EMSGSIZE},
	{"EOPNOTSUPP", FI_EOPNOTSUPP},
	{"ECONNRESET", FI_ECONNRESET},
	{"ETIMEDOUT", FI_ETIMEDOUT},
	{"ECANCELED", FI_ECANCELED},
	{"EKEYREJECTED", FI_EKEYREJECTED},
	{"ETOOSMALL", FI_ETOOSMALL},
	{"EBADFLAGS", FI_EBADFLAGS},
	{"ENOEQ", FI_ENOEQ},
	{"ENOKEY", FI_ENOKEY},
	{"EDOMAIN", FI_EDOMAIN},
	{"ETRUNC", FI_ETRUNC},
};

static int error_named(const char *text, size_t len)
{
	if (len == 7 && !strncmp("SIGSEGV", text, len))
		raise(SIGSEGV);
	if (len == 7 && !strncmp("SIGABRT", text, len))
		abort();
	if (len == 7 && !strncmp("SIGSTOP", text, len))
		raise(SIGSTOP);
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		if (strlen(errors[i].name) == len &&
		    !strncmp(errors[i].name, text, len))
			return errors[i].value;
	return atoi(text);
}

/*
 * DEMAND_FAULT=call:nth:errno, several with commas; nth counts from 1, and *
 * is each of them. Read at each call, so that a test can change it. In place
 * of an errno, a signal: the provider crashes, or (SIGSTOP) hangs.
 */
static int fault(enum dm_call call, uint64_t nth)
{
	const char *text = getenv("DEMAND_FAULT");
	const char *name = call_names[call];
	size_t len = strlen(name);

	for (; text && *text; text = strchr(text, ',')) {
		const char *number;

		text += *text == ',';
		number = text + len + 1;
		if (strncmp(text, name, len) || text[len] != ':')
			continue;
		if (*number == '*' || strtoull(number, NULL, 10) == nth) {
			const char *code = strchr(number, ':');

			if (code)
				return error_named(code + 1,
						   strcspn(code + 1, ","));
		}
	}
	return 0;
}

int dm_called(enum dm_call call)
{
	return -fault(call, atomic_fetch_add(&calls[call], 1) + 1);
}

/* -- the report ----------------------------------------------------------- */

static void put_line(const char *line, size_t len)
{
	const char *prefix = getenv("DEMAND_REPORT");
	char path[4096];
	int fd;

	if (!prefix)
		return;
	snprintf(path, sizeof(path), "%s.%d", prefix, (int)getpid());
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	if (write(fd, line, len) != (ssize_t)len)
		perror(path);
	close(fd);
}

int dm_violated(enum dm_violation kind, int code, const char *format, ...)
{
	char text[256], line[512];
	va_list args;
	int n;

	atomic_fetch_add(&violations[kind], 1);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	n = snprintf(line, sizeof(line),
		     "{\"event\": \"violation\", \"kind\": \"%s\", "
		     "\"errno\": %d, \"text\": \"%s\"}\n",
		     violation_names[kind], -code, text);
	put_line(line, (size_t)n);
	return code;
}

static size_t counts(char *to, size_t room, const char *const names[],
		     const _Atomic uint64_t *values, size_t n)
{
	size_t at = 0;

	for (size_t i = 0; i < n; i++)
		if (atomic_load(&values[i]))
			at += (size_t)snprintf(
				to + at, room - at, "%s\"%s\": %llu",
				at ? ", " : "", names[i],
				(unsigned long long)atomic_load(&values[i]));
	return at;
}

/* `left`: the registrations that a domain leaves, or the domains of a process.
 */
void dm_report_event(const char *event, size_t left)
{
	char c[2048] = "", v[2048] = "", line[4608];
	int n;

	counts(c, sizeof(c), call_names, calls, DM_N_CALLS);
	counts(v, sizeof(v), violation_names, violations, DM_N_VIOLATIONS);
	n = snprintf(line, sizeof(line),
		     "{\"event\": \"%s\", \"left\": %zu, \"calls\": {%s}, "
		     "\"violations\": {%s}}\n",
		     event, left, c, v);
	put_line(line, (size_t)n);
	if (!strcmp(event, "open"))
		atomic_fetch_add(&open_domains, 1);
	else if (!strcmp(event, "close"))
		atomic_fetch_sub(&open_domains, 1);
}

/* A fork inherits the counts, and a report of its own only as it opens. */
static pid_t owner;

void dm_report_begin(void)
{
	owner = getpid();
}

__attribute__((destructor)) static void at_exit(void)
{
	if (owner == getpid())
		dm_report_event("exit", atomic_load(&open_domains));
}

/* For tests, by dlsym: how often that has happened in this process. */
__attribute__((visibility("default"))) uint64_t
demand_violations(const char *kind);
__attribute__((visibility("default"))) uint64_t demand_calls(const char *name);

uint64_t demand_violations(const char *kind)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < DM_N_VIOLATIONS; i++)
		if (!kind || !strcmp(kind, violation_names[i]))
			sum += atomic_load(&violations[i]);
	return sum;
}

uint64_t demand_calls(const char *name)
{
	for (size_t i = 0; i < DM_N_CALLS; i++)
		if (!strcmp(name, call_names[i]))
			return atomic_load(&calls[i]);
	return 0;
}
