# SPDX-License-Identifier: BSD-3-Clause
"""This process's record, which tools in other processes read (csrc/record/).

It is opened before the first window is made. RMAEXT_RECORD=0: there is none, and whatever
is called here does nothing.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

from mpi4py import MPI

from .._native._lib import ffi, lib
from .._runtime import lifetime
from .._runtime.config import records
from .._runtime.log import log
from .._runtime.reports import container, described, site
from . import jobname, layout, tracing

__all__ = ["begin", "check", "communicator", "network", "window"]

_state: dict[str, Any] = {"begun": False, "wrong": None}


def begin() -> None:
    """Open the record, once. Local; a client may be without MPI. Its error is for `check`."""
    world = MPI.COMM_WORLD if MPI.Is_initialized() and not MPI.Is_finalized() else None
    if _state["begun"]:
        if world and (own := lib.rmaext_record_own()):
            own.rank, own.size = world.rank, world.size
        return
    _state["begun"] = True
    try:
        _begin(world)
    except ValueError as exc:
        _state["wrong"] = exc


def check() -> None:
    """Raise ValueError if this process was told to keep a record or trace that it cannot keep."""
    if _state["wrong"] is not None:
        raise ValueError(str(_state["wrong"]))


def _begin(world: MPI.Comm | None) -> None:
    rank, size = (world.rank, world.size) if world else (0, 1)
    if not records():
        if os.environ.get("RMAEXT_TRACE") and rank == 0:
            log.warning("RMAEXT_TRACE is set, and RMAEXT_RECORD=0: without a record, no trace")
        return
    facts = ffi.new("struct rmaext_record_header *")
    facts.pid = os.getpid()
    facts.rank, facts.size = rank, size
    facts.monotonic, facts.realtime = time.monotonic_ns(), time.time_ns()
    _set(facts, "version", layout.version())
    _set(facts, "job", jobname.job(os.environ))
    _set(facts, "host", os.uname().nodename)
    _set(facts, "program", " ".join(sys.argv))
    code = lib.rmaext_record_open(facts)
    if code:
        tell = log.warning if tracing.wanted() else log.info
        tell("this process keeps no record, and no trace: %s", os.strerror(-code))
        return
    lifetime.on_exit(_end)
    lifetime.on_raised(_raised, first=True)  # what the group does with it may take a while
    tracing.begin(rank)


def _raised(error: BaseException) -> None:
    if own := lib.rmaext_record_own():
        _set(own, "raised", described(error))


def _end() -> None:
    lib.rmaext_record_leave(lib.RMAEXT_ENDED)
    try:
        tracing.end()
    except Exception as exc:  # what else the process does at its exit is more important
        log.warning("the end of the trace could not be written: %r", exc)


def _set(struct: Any, name: str, text: str) -> None:
    field = getattr(struct, name)
    data = text.encode(errors="backslashreplace")[: len(field) - 1]
    ffi.memmove(field, data, len(data))


@functools.lru_cache(256)
def _words(dtype: str, kind: str) -> dict[str, bytes]:
    """Return what the record says of all windows of a kind, cut to what there is room for."""
    facts = ffi.new("struct rmaext_record_window *")
    _set(facts, "dtype", dtype)
    _set(facts, "kind", kind)
    return {"dtype": ffi.string(facts.dtype), "kind": ffi.string(facts.kind)}


def window(made: Any) -> None:
    """Enter a window of which the C object was made."""
    if not lib.rmaext_record_own():
        return
    group, number, dtype = made._group, made._name, made._dtype
    if not isinstance(number, int):
        name = number.partition(",")[0]  # of an array of several, the window's
        number = int(name) if name.isdigit() else 0  # another job's has none
    nbytes = 0 if group.rank < 0 else made._array.nbytes  # of this process
    whose = container()
    kind = f"containers.{whose}" if whose else type(made).__name__
    where = getattr(made, "_where_it_lies", "")  # unknown of another job's
    facts = ffi.new(
        "struct rmaext_record_window *",
        {
            **{"comm": group.record_id, "number": max(number, 0), "hidden": number < 0},
            **{"ranks": group.size, "self": max(group.rank, 0)},
            **{"unit": dtype.itemsize, "bytes": nbytes},
            **_words(f"{dtype}{where}", kind),
        },
    )
    if number >= 0:
        _set(facts, "site", site())
    lib.rmaext_record_window(made._handle, facts)
    if tracing.on():
        tracing.name(
            window=int(lib.rmaext_record_id(made._handle)),
            comm=f"{group.record_id:x}",
            number=facts.number,
            hidden=facts.hidden,
            kind=kind,
            dtype=made._dtype.str + where,
            ranks=group.size,
            bytes=nbytes,
            unit=made._dtype.itemsize,
        )


def network(name: str) -> None:
    """Say by which network windows go from now on: "tcp eth0", "ucx mlx5_0"."""
    if own := lib.rmaext_record_own():
        ffi.memmove(own.network, bytes(len(own.network)), len(own.network))
        _set(own, "network", name)
        tracing.name(network=name)


def communicator(comm: MPI.Comm, number: int, here: int) -> None:
    """Enter a communicator, by a number that is the same on all ranks."""
    lib.rmaext_record_comm(number, comm.size, comm.rank, here)
    if tracing.on():
        ranks = range(min(comm.size, 4096))
        own, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
        # processes of another world, spawned or connected, have no rank in this one
        translated = [max(int(rank), -1) for rank in own.Translate_ranks([*ranks], world)]
        own.Free()
        world.Free()
        tracing.name(comm=f"{number:x}", size=comm.size, rank=comm.rank, world=translated)
