# SPDX-License-Identifier: BSD-3-Clause
"""What C needs in order to move MPI while a thread waits (csrc/base/mpi_progress.c).

MPI's functions are handed over as addresses, taken from the library that mpi4py uses.
"""

from __future__ import annotations

import ctypes
import errno
import time
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from .._native._lib import ffi, lib
from ..errors import LibraryError
from . import locks
from .config import moves_mpi
from .failures import check

__all__ = [
    "acquire",
    "address_of",
    "begin",
    "end",
    "forked",
    "nap",
    "offer",
    "start_thread",
    "withdraw",
]

# of a message that nobody sends, on communicators of our own; every MPI has it
_TAG = 32767
_OFTEN = 100_000  # ns between calls, for each rank of a core
# Between the first ones of a rank that sleeps meanwhile, if it shares its core: a timer that
# ends before the system's next tick costs more than all the rest of a sleep.
_TICK = 5_000_000
_TURN = 1e-3  # seconds between looks at what only another thread can end
_LEVELS = {
    MPI.THREAD_SINGLE: lib.RMAEXT_MPI_FUNNELED,
    MPI.THREAD_FUNNELED: lib.RMAEXT_MPI_FUNNELED,
    MPI.THREAD_SERIALIZED: lib.RMAEXT_MPI_SERIALIZED,
    MPI.THREAD_MULTIPLE: lib.RMAEXT_MPI_MULTIPLE,
}

_lock = locks.lock()  # between the choice of a communicator and its end
_comms: dict[int, MPI.Comm] = {}  # of two ranks or more, which their owners will withdraw
_state = {"begun": False, "child": False, "crowding": 1.0}


def begin() -> None:
    """Hand MPI's functions over, once. Local; MPI is initialised."""
    if _state["begun"] or _state["child"] or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    what = [_address(f"MPI_{name}") for name in ("Iprobe", "Test", "Is_thread_main")]
    facts = (MPI._sizeof(MPI.Comm), MPI.ANY_SOURCE, _TAG, _LEVELS[MPI.Query_thread()])
    lib.rmaext_mpi_begin(ffi.new("struct rmaext_mpi *", [*what, *facts]))
    _state["begun"] = True
    with _lock:
        _choose()


def start_thread() -> None:
    """Start the thread that moves MPI, if the environment asks for it. Local."""
    if moves_mpi():
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            text = "RMAEXT_MPI_PROGRESS=1 needs MPI_THREAD_MULTIPLE (mpi4py.rc.thread_level)"
            raise ValueError(text)
        check(lib.rmaext_mpi_thread())


def _address(name: str) -> int:
    for place in (MPI.__file__, None):  # with what it is linked to; the whole process
        with suppress(OSError, AttributeError):
            function = getattr(ctypes.CDLL(place), name)
            return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
    text = f"mpi4py's MPI has no function {name} that can be found; please report how it was built"
    raise LibraryError(errno.ENOENT, text)


def _choose() -> None:
    """Let C use a communicator that is there: its own kind, else the program's."""
    comm: MPI.Comm = next(iter(_comms.values()), MPI.COMM_WORLD)
    lib.rmaext_mpi_use(MPI._handleof(comm))


def offer(comm: MPI.Comm, crowding: float) -> None:
    """Let C use a private communicator until it is withdrawn.

    `crowding`: ranks for each core. Those who wait wake up less often where they are many.
    """
    if comm.size < 2:  # MPICH serves those without its progress engine
        return
    with _lock:
        _comms[MPI._handleof(comm)] = comm
        if len(_comms) == 1:
            _choose()
    if crowding > _state["crowding"]:
        _state["crowding"] = crowding
        lib.rmaext_mpi_pace(int(_OFTEN * crowding), _TICK, 4 * _TICK)


def withdraw(comm: MPI.Comm) -> None:
    """Let C not use a communicator any more: afterwards no thread does."""
    with _lock:
        if _comms.pop(MPI._handleof(comm), None) is not None and _state["begun"]:
            _choose()


def nap(seconds: float) -> None:
    """Sleep for so long, or until a signal; MPI moves meanwhile."""
    lib.rmaext_mpi_nap(int(max(0.0, seconds) * 1e9))


def acquire(lock: Any, end: float | None) -> bool:
    """Acquire a lock of `threading`; False if it is not free at `end`, by time.monotonic()."""
    while not lock.acquire(timeout=_TURN if end is None else 0):
        left = _TURN if end is None else min(_TURN, end - time.monotonic())
        if left <= 0:
            return False
        lib.rmaext_mpi_glance()
        if end is not None and lock.acquire(timeout=left):
            break
    return True


def address_of(request: MPI.Request) -> Any:
    """Return where MPI's handle of a request lies, for C."""
    return ffi.cast("void *", MPI._addressof(request))


def end() -> None:
    """Before MPI is finalized: nobody calls it any more."""
    if _state["begun"]:
        lib.rmaext_mpi_end(0)


def forked() -> None:
    """In a forked child: MPI is its parent's."""
    lib.rmaext_mpi_end(1)
    _comms.clear()
    _state["begun"] = False
    _state["child"] = MPI.Is_initialized()
