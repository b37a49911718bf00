// SPDX-License-Identifier: BSD-3-Clause
/*
 * Who calls MPI: an auditor of the dynamic linker (LD_AUDIT, rtld-audit(7)).
 *
 * It sees each symbol as it is bound, also by dlsym on any handle, which an
 * LD_PRELOADed library does not, and puts a function of its own in front of
 * those of MPI below. Each call is counted in a file that all may map,
 * AUDIT_FILE: a row for each function, process, thread and state. The auditor
 * lives in a namespace of its own, with a C library of its own, so it uses
 * nothing but system calls.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FUNCTIONS(X)                                                         \
	X(MPI_Iprobe)                                                        \
	X(MPI_Test) X(MPI_Testall) X(MPI_Testany) X(MPI_Wait) X(MPI_Waitall) \
		X(MPI_Improbe) X(MPI_Barrier) X(MPI_Recv) X(MPI_Ssend)       \
			X(MPI_Finalize)

#define NAME(f) #f,
#define ENUM(f) N_##f,
static const char *const names[] = {FUNCTIONS(NAME)};
enum { FUNCTIONS(ENUM) NUMBER };

/* One line of the file; programs read it as eight int64. */
struct row {
	_Atomic int64_t used; /* 0: free; 1: being written; 2: in use */
	int64_t function;
	int64_t pid, tid;
	int64_t gil;   /* whether the caller held it */
	int64_t ended; /* whether MPI_Finalize had returned */
	_Atomic int64_t count;
	_Atomic int64_t together; /* calls beside one of another thread */
};

#define ROWS 4096

static struct row *rows;
static void *real[NUMBER];
static int (*gil_check)(void);
static struct link_map *objects[4096];
static _Atomic int count;
static _Atomic int inside, ended;

static void note(int function, int together)
{
	int64_t pid = syscall(SYS_getpid), tid = syscall(SYS_gettid);
	int64_t gil = gil_check ? gil_check() != 0 : -1;
	int64_t after = atomic_load(&ended);

	for (int i = 0; rows && i < ROWS; i++) {
		struct row *row = &rows[i];
		int64_t state = atomic_load(&row->used);

		if (!state) {
			if (!atomic_compare_exchange_strong(&row->used, &state,
							    1)) {
				i--;
				continue;
			}
			row->function = function;
			row->pid = pid;
			row->tid = tid;
			row->gil = gil;
			row->ended = after;
			atomic_store(&row->used, 2);
		}
		while (atomic_load(&row->used) == 1)
			;
		if (row->function == function && row->pid == pid &&
		    row->tid == tid && row->gil == gil && row->ended == after) {
			atomic_fetch_add(&row->count, 1);
			atomic_fetch_add(&row->together, together);
			return;
		}
	}
}

/* No function of these has more than six words of arguments, but for MPI_Recv.
 */
#define WRAPPER(f)                                                            \
	static long wrap_##f(long a, long b, long c, long d, long e, long g,  \
			     long h, long i)                                  \
	{                                                                     \
		long (*call)(long, long, long, long, long, long, long, long); \
		long ret;                                                     \
		int together = atomic_fetch_add(&inside, 1) > 0;              \
                                                                              \
		note(N_##f, together);                                        \
		call = (long (*)(long, long, long, long, long, long, long,    \
				 long))real[N_##f];                           \
		ret = call(a, b, c, d, e, g, h, i);                           \
		atomic_fetch_sub(&inside, 1);                                 \
		if (N_##f == N_MPI_Finalize)                                  \
			atomic_store(&ended, 1);                              \
		return ret;                                                   \
	}
FUNCTIONS(WRAPPER)

#define ADDRESS(f) (uintptr_t)wrap_##f,
static const uintptr_t wrappers[] = {FUNCTIONS(ADDRESS)};

static void find_gil_check(void)
{
	for (int i = 0; !gil_check && i < atomic_load(&count); i++)
		if (objects[i])
			gil_check = (int (*)(void))dlsym(objects[i],
							 "PyGILState_Check");
}

unsigned int la_version(unsigned int version)
{
	const char *path = getenv("AUDIT_FILE");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	(void)version;
	if (fd >= 0) {
		rows = mmap(NULL, ROWS * sizeof(*rows), PROT_READ | PROT_WRITE,
			    MAP_SHARED, fd, 0);
		close(fd);
		if (rows == MAP_FAILED)
			rows = NULL;
	}
	return LAV_CURRENT;
}

unsigned int la_objopen(struct link_map *map, Lmid_t lmid, uintptr_t *cookie)
{
	(void)cookie;
	if (lmid == LM_ID_BASE && count < 4096)
		objects[count++] = map;
	return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *sym, unsigned int index, uintptr_t *from,
		       uintptr_t *to, unsigned int *flags, const char *name)
{
	(void)index;
	(void)from;
	(void)to;
	(void)flags;
	if (strncmp(name, "MPI_", 4) && strncmp(name, "PMPI_", 5))
		return sym->st_value;
	if (name[0] == 'P')
		name++;
	for (int i = 0; i < NUMBER; i++) {
		if (strcmp(name, names[i]))
			continue;
		if (sym->st_value == wrappers[i])
			return sym->st_value;
		if (!gil_check)
			find_gil_check();
		real[i] = (void *)sym->st_value;
		return wrappers[i];
	}
	return sym->st_value;
}
