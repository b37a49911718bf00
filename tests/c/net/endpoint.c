/* SPDX-License-Identifier: BSD-3-Clause */
/* Libraries, candidates, and fabrics that open, do not open, and close. */
#include "rig.h"
#include "am/am.h"
#include "net/libfabric/libfabric.h"

static void bad_library(void)
{
	rmaext_library *lib = NULL;
	struct rmaext_error e;

	EQUAL(rmaext_library_open("/no/such/libfabric.so.1", 0, &lib),
	      -FI_ENOENT);
	rmaext_error_last(&e);
	EQUAL(e.code, -FI_ENOENT);
	CHECK(!strcmp(e.call, "dlopen") && strstr(e.detail, "/no/such/"));
	EQUAL(rmaext_library_open("/etc/passwd", 0, &lib), -FI_ENOENT);
	EQUAL(rmaext_library_open("libm.so.6", 0, &lib), -FI_ENOENT);
	rmaext_error_last(&e);
	CHECK(strstr(e.detail, "fi_getinfo"));
	EQUAL(lib, NULL);
	/* the same copy once more, and what it says of itself */
	OK(rmaext_library_open(library_path,
			       RMAEXT_LIBRARY_SHARED | RMAEXT_LIBRARY_THEIRS,
			       &lib));
	CHECK(rmaext_library_version(lib) >= (1u << 16 | 17));
	CHECK(*rmaext_strerror(lib, -FI_EAGAIN));
	CHECK(!strcmp(rmaext_strerror(lib, -FI_EINVAL),
		      rmaext_strerror(lib, FI_EINVAL)));
	rmaext_library_close(lib);
}

static void candidates(void)
{
	size_t needed = 0, len;
	char *all, *buf, *line, *rest;
	int local = 0;

	EQUAL(rmaext_candidates(library, provider, 0, NULL, &needed),
	      -FI_ETOOSMALL);
	CHECK(needed > 1);
	buf = malloc(needed);
	CHECK(buf);
	for (len = 1; len < needed; len += needed / 5 + 1) {
		size_t size = len;

		memset(buf, 0x7e, needed);
		EQUAL(rmaext_candidates(library, provider, 0, buf, &size),
		      -FI_ETOOSMALL);
		EQUAL(size, needed);
		EQUAL(buf[len], 0x7e);
	}
	len = needed;
	OK(rmaext_candidates(library, provider, 0, buf, &len));
	EQUAL(len, needed);
	EQUAL(strlen(buf), needed - 1);
	/* without a provider: at least these */
	len = 0;
	EQUAL(rmaext_candidates(library, NULL, 0, NULL, &len), -FI_ETOOSMALL);
	CHECK(len >= needed);
	all = malloc(len);
	CHECK(all);
	OK(rmaext_candidates(library, NULL, 0, all, &len));
	for (line = strtok_r(buf, "\n", &rest); line;
	     line = strtok_r(NULL, "\n", &rest)) {
		int tabs = 0;

		CHECK(strstr(all, line));
		for (const char *c = line; *c; c++)
			tabs += *c == '\t';
		EQUAL(tabs, 4);
		CHECK(!strncmp(line, provider, strlen(provider)));
		local |= strstr(line, "\tlo\t127.0.0.1\t8") != NULL;
	}
	CHECK(local);
	free(all);
	free(buf);

	len = 1;
	buf = malloc(1);
	OK(rmaext_candidates(library, "nonesuch", 0, buf, &len));
	EQUAL(len, 1);
	EQUAL(*buf, '\0');
	free(buf);
}

static void refused(struct rmaext_fabric_options options, const char *word)
{
	rmaext_fabric *f = NULL;
	struct rmaext_error e;

	options.progress = 1;
	EQUAL(rmaext_fabric_open(library, &options, &f), -FI_ENODATA);
	EQUAL(f, NULL);
	rmaext_error_last(&e);
	EQUAL(e.code, -FI_ENODATA);
	CHECK(!strcmp(e.call, "fi_getinfo"));
	CHECK(strstr(e.detail, word));
	CHECK(!strstr(e.detail, "Success"));
}

static void unknown(void)
{
	struct rmaext_fabric_options o = {.provider = "nonesuch"};
	rmaext_fabric *f;

	refused(o, "nonesuch");
	o.provider = "tcp;"; /* libfabric finds tcp;ofi_rxm, which is not it */
	refused(o, "tcp;");
	o.provider = provider;
	o.domain = "nonesuch0";
	refused(o, "nonesuch0");
	o.domain = NULL;
	o.address = "300.1.2.3";
	refused(o, "300.1.2.3");
	f = fabric_open(true, false);
	OK(rmaext_fabric_close(&f));
}

static void repeat(void)
{
	int fds = 0, threads = 0;

	for (int i = 0; i < 12; i++) {
		rmaext_fabric *f = fabric_open(i % 2, false);
		struct rmaext_fabric_info info;
		struct rmaext_stats stats;
		char name[256];
		size_t len = 0;

		rmaext_fabric_describe(f, &info);
		CHECK(!strcmp(info.provider, provider));
		CHECK(info.domain[0] && info.key_size == 8 && info.wait_fd);
		CHECK(strstr(info.address, "127.0.0.1"));
		EQUAL(rmaext_fabric_address(f, name, &len), -FI_ETOOSMALL);
		CHECK(len && len <= sizeof(name));
		OK(rmaext_fabric_address(f, name, &len));
		rmaext_fabric_progress(f, 1000000);
		rmaext_fabric_leave(f);
		rmaext_fabric_stats(f, &stats);
		EQUAL(stats.posted, 0);
		OK(rmaext_fabric_close(&f));
		EQUAL(f, NULL);
		OK(rmaext_fabric_close(&f));
		if (i == 3) {
			fds = entries_of("/proc/self/fd");
			threads = entries_of("/proc/self/task");
		}
	}
	EQUAL(entries_of("/proc/self/fd"), fds);
	/* one that was joined may be seen for a moment longer */
	for (int64_t end = now() + 10 * SECOND;
	     entries_of("/proc/self/task") > threads; nap(1e-3))
		CHECK(now() < end);
}

static void handler(int n)
{
	(void)n;
}

static unsigned long long blocked(const char *task)
{
	char path[300], line[200];
	unsigned long long mask = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/status", task);
	file = fopen(path, "r");
	CHECK(file);
	while (fgets(line, sizeof(line), file))
		sscanf(line, "SigBlk: %llx", &mask);
	fclose(file);
	return mask;
}

/* Signals and the environment are the application's. */
static void leaves_alone(void)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
	struct sigaction act = {.sa_handler = handler}, is;
	sigset_t before = {0}, after = {0};
	rmaext_library *lib;
	rmaext_fabric *f;
	struct dirent *d;
	DIR *tasks;
	int others = 0;

	for (size_t i = 0; i < COUNT(numbers); i++)
		sigaction(numbers[i], &act, NULL);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	setenv("FI_OFI_RXM_MSG_TX_SIZE", "256", 1);
	OK(rmaext_library_open(library_path, 0, &lib));
	rmaext_library_close(library);
	library = lib;
	f = fabric_open(true, false);
	for (size_t i = 0; i < COUNT(numbers); i++) {
		sigaction(numbers[i], NULL, &is);
		CHECK(is.sa_handler == handler);
	}
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	CHECK(!memcmp(&before, &after, sizeof(before)));
	CHECK(!getenv("FI_OFI_RXM_MSG_RX_SIZE"));
	CHECK(!getenv("FI_OFI_RXM_USE_SRX"));
	CHECK(!getenv("FI_PROVIDER_PATH"));
	CHECK(!strcmp(getenv("FI_OFI_RXM_MSG_TX_SIZE"), "256"));
	/* SIGINT must go to no thread but this */
	nap(0.05);
	tasks = opendir("/proc/self/task");
	CHECK(tasks);
	while ((d = readdir(tasks)))
		if (d->d_name[0] != '.' && atoi(d->d_name) != getpid())
			others += !!(blocked(d->d_name) & 1u << (SIGINT - 1));
	closedir(tasks);
	CHECK(others >= 1);
	OK(rmaext_fabric_close(&f));
}

/* What another thread asks for meanwhile stays; what a provider takes does not.
 */
static void handlers_of_others(void)
{
	struct sigaction act = {.sa_handler = handler}, is;
	struct rmx_signals *held = rmx_signals_hold();

	CHECK(held);
	OK(sigaction(SIGTERM, &act, NULL));
	act.sa_handler = SIG_IGN;
	OK(sigaction(SIGHUP, &act, NULL));
	memcpy(&act.sa_handler, &library->getinfo, sizeof(act.sa_handler));
	OK(sigaction(SIGINT, &act, NULL));
	rmx_signals_give_back(held, RMX_ADDRESS(library->getinfo));
	OK(sigaction(SIGTERM, NULL, &is));
	CHECK(is.sa_handler == handler);
	OK(sigaction(SIGHUP, NULL, &is));
	CHECK(is.sa_handler == SIG_IGN);
	OK(sigaction(SIGINT, NULL, &is));
	CHECK(is.sa_handler == SIG_DFL);
}

static atomic_bool held, inside;

static void hold(struct rmaext_fabric *f)
{
	(void)f;
	atomic_store(&inside, true);
	while (atomic_load(&held))
		nap(0.01);
}

/* Closing is bounded, though the progress thread does not come back. */
static void held_for_ever(void)
{
	rmaext_fabric *f = fabric_open(false, false), *left = f;
	struct rmx_hooks hooks = *f->hooks;
	int64_t begun;

	close(f->progress.wake_fd);
	hooks.before_read = hold;
	f->hooks = &hooks;
	atomic_store(&held, true);
	OK(rmx_progress_start(f, 1, 20000));
	while (!atomic_load(&inside))
		nap(0.01);
	begun = rmx_now();
	EQUAL(rmaext_fabric_close(&f), RMAEXT_PENDING);
	EQUAL(f, NULL);
	CHECK(rmx_now() - begun < (int64_t)8 * 1000 * 1000 * 1000);
	EQUAL(rmx_fabric_enter(left, "test"), -FI_ESHUTDOWN);
	atomic_store(&held, false);
	EQUAL(pthread_join(left->progress.thread, NULL), 0);
}

const struct test tests[] = {
	{"bad_library", bad_library, NULL, NULL},
	{"candidates", candidates, NULL, NULL},
	{"unknown", unknown, NULL, NULL},
	{"repeat", repeat, NULL, NULL},
	{"leaves_alone", leaves_alone, NULL, NULL},
	{"handlers_of_others", handlers_of_others, NULL, NULL},
	{"held_for_ever", held_for_ever, NULL, NULL},
	{0},
};
