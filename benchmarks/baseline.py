# SPDX-License-Identifier: BSD-3-Clause
"""What rmaext is measured against beside MPI: plain C loops, system calls, memcpy.

`build()` compiles the C; the ranks of a job then `load()` it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rmaext.bench.peers import pages

FOLDER = Path(__file__).resolve().parent.parent / "build" / "bench"

HEADER = """
void put(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *values, long n);
void get(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *out, long n);
void fetch_add(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *values,
               int64_t *out, long n);
void accumulate(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *values, long n);
int vm_write(int pid, void *local, uint64_t remote, size_t bytes, long n);
int vm_read(int pid, void *local, uint64_t remote, size_t bytes, long n);
"""

SOURCE = """
#include <sys/uio.h>

#define EACH for (long i = 0; i < n; i++)
#define WORD (&bases[ranks[i]][offsets[i]])

/* Relaxed atomics are plain loads and stores, which the compiler must not drop. */
void put(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *values, long n)
{
	EACH __atomic_store_n(WORD, values[i], __ATOMIC_RELAXED);
}

void get(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *out, long n)
{
	EACH out[i] = __atomic_load_n(WORD, __ATOMIC_RELAXED);
}

void fetch_add(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *values,
               int64_t *out, long n)
{
	EACH out[i] = __atomic_fetch_add(WORD, values[i], __ATOMIC_SEQ_CST);
}

void accumulate(int64_t **bases, int64_t *ranks, int64_t *offsets, int64_t *values, long n)
{
	EACH __atomic_fetch_add(WORD, values[i], __ATOMIC_SEQ_CST);
}

#define COPY(call)                                                            \\
	struct iovec here = {local, bytes}, there = {(void *)remote, bytes};   \\
	EACH if (call(pid, &here, 1, &there, 1, 0) != (ssize_t)bytes) return -1; \\
	return 0;

int vm_write(int pid, void *local, uint64_t remote, size_t bytes, long n)
{
	COPY(process_vm_writev)
}

int vm_read(int pid, void *local, uint64_t remote, size_t bytes, long n)
{
	COPY(process_vm_readv)
}
"""


def build() -> None:
    """Compile the C into build/bench, if this version of it is not there."""
    import cffi

    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = FOLDER / "source"
    if stamp.exists() and stamp.read_text() == HEADER + SOURCE:
        return
    builder = cffi.FFI()
    builder.cdef(HEADER)
    builder.set_source("_baseline", SOURCE, extra_compile_args=["-O2"])
    builder.compile(str(FOLDER))
    stamp.write_text(HEADER + SOURCE)


def load() -> tuple[Any, Any]:
    """Return ffi and lib of what `build` compiled."""
    sys.path.insert(0, str(FOLDER))
    module = importlib.import_module("_baseline")
    return module.ffi, module.lib


class Rival:
    """A contestant without a window; between its turns all ranks wait in a barrier."""

    name = ""

    def __init__(self, job: Any, count: int) -> None:
        self.comm = job.comm
        self.memory = pages(count)

    def enter(self) -> None:
        """Wait for all ranks."""
        self.comm.Barrier()

    leave = enter


class Copy(Rival):
    """numpy.copyto between two arrays of the origin."""

    name = "np.copyto"

    def put_flush(self, n: int, data: Any, rank: int, offset: int) -> None:
        """Copy there n times."""
        target, copyto = self.memory[offset : offset + data.size], np.copyto
        for _ in range(n):
            copyto(target, data)

    def get(self, n: int, out: Any, rank: int, offset: int) -> None:
        """Copy from there n times."""
        source, copyto = self.memory[offset : offset + out.size], np.copyto
        for _ in range(n):
            copyto(out, source)


class ProcessVm(Rival):
    """Bare system calls, in a C loop: process_vm_writev as put, process_vm_readv as get."""

    name = "bare process_vm"

    def __init__(self, job: Any, count: int) -> None:
        super().__init__(job, count)
        self._ffi, self._lib = load()
        self._places = self.comm.allgather((os.getpid(), self.memory.ctypes.data))

    def put_flush(self, n: int, data: Any, rank: int, offset: int) -> None:
        """Write n times."""
        self._run(self._lib.vm_write, n, data, rank, offset)

    def get(self, n: int, out: Any, rank: int, offset: int) -> None:
        """Read n times."""
        self._run(self._lib.vm_read, n, out, rank, offset)

    def _run(self, function: Any, n: int, data: Any, rank: int, offset: int) -> None:
        pid, start = self._places[rank]
        local = self._ffi.cast("void *", data.ctypes.data)
        if function(pid, local, start + 8 * offset, data.nbytes, n):
            raise RuntimeError("process_vm_writev/readv failed: see Yama's ptrace_scope")


class CLoop(Rival):
    """The operations of put_many & co. as C loops, on one array of the origin's own."""

    name = "C loop"

    def __init__(self, job: Any, count: int) -> None:
        super().__init__(job, count)
        self._ffi, self._lib = load()

    def many(self, call: str, ranks: Any, offsets: Any, values: Any, out: Any) -> Callable[[], Any]:
        """As rmaext.bench.peers.Side.many."""
        ffi, lib = self._ffi, self._lib
        base = ffi.cast("int64_t *", self.memory.ctypes.data)
        bases = ffi.new("int64_t *[]", [base] * self.comm.size)
        where = [ffi.cast("int64_t *", a.ctypes.data) for a in (ranks, offsets)]
        data, back = (ffi.cast("int64_t *", a.ctypes.data) for a in (values, out))
        arguments = {
            "put_many": (lib.put, bases, *where, data),
            "get_many": (lib.get, bases, *where, back),
            "fetch_add_many": (lib.fetch_add, bases, *where, data, back),
            "accumulate_many": (lib.accumulate, bases, *where, data),
        }
        function, *rest = arguments[call]

        def run() -> Any:
            function(*rest, len(offsets))
            return out

        return run
