/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Signals are Python's. Libraries that libfabric pulls in take them: the
 * constructors of libpsm2 and libinfinipath (Debian's libfabric 1.17) install
 * handlers for SIGINT, SIGTERM and the signals of crashes, so that Ctrl-C
 * ended the process without a word; the shm provider takes some when it is
 * opened. And threads that a provider starts shall inherit our mask.
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
 * What threads of ours block. Not the signals of crashes: one that is blocked
 * ends the process without faulthandler's words.
 */
static void fill(sigset_t *mask_p)
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
	fill(&all);
	pthread_sigmask(SIG_SETMASK, &all, &s->mask);
	for (int n = 1; n < NSIG; n++)
		s->known[n] = !sigaction(n, NULL, &s->actions[n]);
	return s;
}

/* -- whose is a handler? */

struct search {
	uintptr_t inside, handler;
	bool later; /* libfabric was met: what follows came with it, or later */
	bool theirs;
};

static bool has(const struct dl_phdr_info *object, uintptr_t address)
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

/* Objects come in the order in which they were loaded. */
static int look_into(struct dl_phdr_info *object, size_t size, void *arg)
{
	struct search *s = arg;

	(void)size;
	s->later = s->later || has(object, s->inside);
	if (!has(object, s->handler))
		return 0;
	s->theirs = s->later;
	return 1;
}

/*
 * Is it libfabric's, or of what libfabric has brought? Not what another thread
 * has asked for meanwhile: Python's, which came before, or to ignore it.
 */
static bool is_theirs(const struct sigaction *action, const void *inside)
{
	struct search s = {.inside = (uintptr_t)inside};

	memcpy(&s.handler, &action->sa_sigaction, sizeof(s.handler));
	if (inside)
		dl_iterate_phdr(look_into, &s);
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
		    is_theirs(&now, inside))
			sigaction(n, &s->actions[n], NULL);
	pthread_sigmask(SIG_SETMASK, &s->mask, NULL);
	free(s);
}
