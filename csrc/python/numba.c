/* SPDX-License-Identifier: BSD-3-Clause */
/* Window.numba: the window as a number, for functions that numba compiled. */
#include "python/cmethods.h"

/*
 * What the number, an address, leads to. Nobody counts the copies that compiled
 * code has of it. So this stays for the life of the process, with the C window,
 * and a late call finds that the window is closed.
 */
struct py_kept {
	struct rmx_typed it;
	PyObject *handle;
	struct py_kept *next;
};

static struct py_kept *all_kept;

void py_numba_close(struct py_window *w)
{
	if (w->kept)
		__atomic_store_n(&w->kept->it.closed, 1, __ATOMIC_RELAXED);
}

PyObject *py_numba(struct py_window *w, void *closure)
{
	(void)closure;
	if (!w->handle) {
		PyErr_SetString(PyExc_ValueError,
				"there is no window yet: create one, then ask "
				"for its number");
		return NULL;
	}
	if (!w->kept) {
		w->kept = PyMem_RawMalloc(sizeof(*w->kept));
		if (!w->kept)
			return PyErr_NoMemory();
		w->kept->it = w->it;
		w->kept->handle = Py_NewRef(w->handle);
		w->kept->next = all_kept;
		all_kept = w->kept;
	}
	return PyLong_FromVoidPtr(&w->kept->it);
}
