/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Signals belong to Python. Libraries that libfabric loads take them: the
 * constructors of libpsm2 and libinfinipath (Debian's libfabric 1.17) install
 * handlers for SIGINT, SIGTERM and the signals of crashes, so that Ctrl-C
 * ended the process without a word; the shm provider takes some when it is
 * opened. So the handlers are noted before, and set back afterwards. Threads
 * that a provider starts inherit the mask of the thread that opens it, so that
 * no signal is delivered to them.
 */
#define _GNU_SOURCE
#include "base/common.h"

#include <link.h>
#include <signal.h>
#include <stdlib.h>

struct rmx_signals {
	sigset_t mask;
	struct sigaction actions[NSIG];
	bool known[NSIG];
};

/*
 * The signals that threads of ours block: all but those of crashes. A blocked
 * signal of a crash ends the process without faulthandler's words.
 */
static void mask_fill(sigset_t *mask_p)
{
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};

	sigfillset(mask_p);
	for (size_t i = 0; i < sizeof(crashes) / sizeof(*crashes); i++)
		sigdelset(mask_p, crashes[i]);
}

struct rmx_signals *rmx_signals_hold(void)
{
	struct rmx_signals *s = malloc(sizeof(*s));
	sigset_t all;

	if (!s)
		return NULL;
	mask_fill(&all);
	pthread_sigmask(SIG_SETMASK, &all, &s->mask);
	for (int n = 1; n < NSIG; n++)
		s->known[n] = !sigaction(n, NULL, &s->actions[n]);
	return s;
}

/* -- to whom a handler belongs */

struct search {
	uintptr_t inside, handler; /* addresses: in libfabric, of the handler */
	bool later;  /* libfabric was met: this object came with it, or later */
	bool theirs; /* the handler came with libfabric, or later */
};

static bool object_has(const struct dl_phdr_info *object, uintptr_t address)
{
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];

		if (part->p_type == PT_LOAD &&
		    address - (object->dlpi_addr + part->p_vaddr) <
			    part->p_memsz)
			return true;
	}
	return false;
}

/* dl_iterate_phdr() calls it for all objects, in the order of loading. */
static int object_search(struct dl_phdr_info *object, size_t size, void *arg)
{
	struct search *s = arg;

	(void)size;
	s->later = s->later || object_has(object, s->inside);
	if (!object_has(object, s->handler))
		return 0;
	s->theirs = s->later;
	return 1;
}

/*
 * Says whether the handler is libfabric's, or of a library that was loaded with
 * it. A handler that another thread has set meanwhile is none of these: it is
 * Python's, whose code was loaded before, or SIG_IGN.
 */
static bool handler_is_theirs(const struct sigaction *action,
			      const void *inside)
{
	struct search s = {.inside = (uintptr_t)inside};

	memcpy(&s.handler, &action->sa_sigaction, sizeof(s.handler));
	if (inside)
		dl_iterate_phdr(object_search, &s);
	return s.theirs;
}

void rmx_signals_give_back(struct rmx_signals *s, const void *inside)
{
	struct sigaction now;

	if (!s)
		return;
	for (int n = 1; n < NSIG; n++)
		if (s->known[n] && !sigaction(n, NULL, &now) &&
		    now.sa_sigaction != s->actions[n].sa_sigaction &&
		    handler_is_theirs(&now, inside))
			sigaction(n, &s->actions[n], NULL);
	pthread_sigmask(SIG_SETMASK, &s->mask, NULL);
	free(s);
}
