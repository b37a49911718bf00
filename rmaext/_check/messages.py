# SPDX-License-Identifier: BSD-3-Clause
"""The synchronisation of MPI: methods of mpi4py's communicators that order what ranks do."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mpi4py import MPI

from .clock import BUSY, clock
from .memory import Begun
from .world import hidden, ranks_of, world

__all__ = ["await_end", "follow"]

_EVERYONE = (
    "Barrier Allgather Allgatherv Alltoall Alltoallv Alltoallw Allreduce Reduce_scatter "
    "Reduce_scatter_block barrier allgather alltoall allreduce"
)
_FROM_ROOT = "Bcast Scatter Scatterv bcast scatter"
_TO_ROOT = "Gather Gatherv Reduce gather reduce"
_TO_NEIGHBOURS = (
    "Neighbor_allgather Neighbor_allgatherv Neighbor_alltoall Neighbor_alltoallv "
    "Neighbor_alltoallw neighbor_allgather neighbor_alltoall"
)
_BEGUN = "Ibarrier Iallgather Iallgatherv Ialltoall Ialltoallv Iallreduce"
_SENDS = "Send Bsend Ssend Rsend Isend Ibsend Issend Irsend send bsend ssend isend ibsend issend"
_RECEIVES = "Recv recv"
_EXCHANGES = "Sendrecv Sendrecv_replace sendrecv"
_STATUS = {"Recv": 3, "recv": 3, "Sendrecv": 7, "Sendrecv_replace": 5, "sendrecv": 6}
_PLACES = {  # of source and tag, among the arguments
    **{"Recv": (1, 2), "recv": (1, 2), "Irecv": (1, 2), "irecv": (1, 2), "Sendrecv": (4, 5)},
    **{"Sendrecv_replace": (3, 4), "sendrecv": (4, 5)},
}


class _Pending(NamedTuple):
    """A receive, a collective call or an operation of rmaext.compat that was begun."""

    request: Any
    comm: Any = None
    clocks: Any = None  # of a collective call: the request for them, and where they come
    begun: Begun | None = None


_pending: dict[int, _Pending] = {}


def _argument(name: str, at: int, args: Sequence[Any], keywords: dict[str, Any], usual: Any) -> Any:
    return keywords.get(name, args[at] if len(args) > at else usual)


def _root(name: str, args: Sequence[Any], keywords: dict[str, Any]) -> int:
    places = {"Bcast": 1, "bcast": 1, "scatter": 1, "gather": 1, "reduce": 2, "Reduce": 3}
    return int(_argument("root", places.get(name, 2), args, keywords, 0))


def _exchanged(comm: Any, name: str, args: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Pass the clocks on as a collective call that has returned may have done."""
    own = hidden(comm)
    if own is None:
        return
    everyone = own.allgather(clock().release())
    if name in _FROM_ROOT.split():
        clock().acquire(everyone[_root(name, args, keywords)])
    elif name in _TO_ROOT.split():
        if comm.rank == _root(name, args, keywords):
            clock().acquire(*everyone)
    elif name in _TO_NEIGHBOURS.split():
        clock().acquire(*(everyone[rank] for rank in comm.inedges if rank != MPI.PROC_NULL))
    elif "scan" in name.lower():
        clock().acquire(*everyone[: comm.rank + 1])
    else:
        clock().acquire(*everyone)


def _send_ahead(comm: Any, target: Any, tag: Any) -> None:
    if isinstance(target, int) and 0 <= target < _size(comm):
        rank = ranks_of(comm)[target]
        if rank != MPI.UNDEFINED:
            world().send(rank, int(tag))


def _size(comm: Any) -> int:
    return int(comm.remote_size if comm.Is_inter() else comm.size)


def _received(comm: Any, status: MPI.Status) -> None:
    source = status.Get_source()
    if 0 <= source < _size(comm):
        rank = ranks_of(comm)[source]
        if rank != MPI.UNDEFINED:
            world().receive(rank, status.Get_tag())


def _with_status(
    name: str, args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], MPI.Status]:
    """Return the arguments with a status, the caller's if there is one."""
    at = _STATUS[name]
    status = _argument("status", at, args, keywords, None) or MPI.Status()
    if len(args) > at:
        return [*args[:at], status, *args[at + 1 :]], keywords, status
    return list(args), {**keywords, "status": status}, status


def _ended(entry: _Pending | None, status: MPI.Status | None) -> None:
    """Take over what comes with the end of a request of MPI."""
    if entry is None:
        return
    _pending.pop(id(entry.request), None)
    if entry.begun is not None:
        entry.begun.waited = True
        entry.begun.end()
    elif entry.clocks is not None:
        request, data = entry.clocks
        request.Wait()
        clock().acquire(*data)
    elif status is not None:
        _received(entry.comm, status)


def await_end(request: Any, begun: Begun) -> None:
    """Learn of it when an operation of rmaext.compat is waited for."""
    _pending[id(request)] = _Pending(request, begun=begun)


# -- the methods -------------------------------------------------------------------------


def _collective(name: str, original: Any, comm: Any, args: Any, keywords: Any) -> Any:
    result = original(comm, *args, **keywords)
    _exchanged(comm, name, args, keywords)
    return result


def _begun(name: str, original: Any, comm: Any, args: Any, keywords: Any) -> Any:
    import numpy as np

    request = original(comm, *args, **keywords)
    own = hidden(comm, make=False)  # to make one is blocking
    if own is not None:
        given = clock().release()
        data = np.empty((comm.size, given.size), np.int64)
        own_request = own.Iallgather([given, MPI.INT64_T], [data, MPI.INT64_T])
        _pending[id(request)] = _Pending(request, comm, (own_request, data))
    return request


def _send(name: str, original: Any, comm: Any, args: Any, keywords: Any) -> Any:
    target = _argument("dest", 1, args, keywords, MPI.PROC_NULL)
    _send_ahead(comm, target, _argument("tag", 2, args, keywords, 0))
    return original(comm, *args, **keywords)


def _receive(name: str, original: Any, comm: Any, args: Any, keywords: Any) -> Any:
    args, keywords, status = _with_status(name, args, keywords)
    result = original(comm, *args, **keywords)
    _received(comm, status)
    return result


def _exchange(name: str, original: Any, comm: Any, args: Any, keywords: Any) -> Any:
    target = _argument("dest", 1, args, keywords, MPI.PROC_NULL)
    _send_ahead(comm, target, _argument("sendtag", 2, args, keywords, 0))
    return _receive(name, original, comm, args, keywords)


def _begin_receive(name: str, original: Any, comm: Any, args: Any, keywords: Any) -> Any:
    request = original(comm, *args, **keywords)
    _pending[id(request)] = _Pending(request, comm)
    return request


def _one(name: str, original: Any, request: Any, args: Any, keywords: Any) -> Any:
    entry = _pending.get(id(request))
    status = _argument("status", 0, args, keywords, None) or MPI.Status()
    result = original(request, status)
    ended = result is not False and not (isinstance(result, tuple) and result[0] is False)
    if ended:
        _ended(entry, status)
    return result


def _several(name: str, original: Any, requests: Any, args: Any, keywords: Any) -> Any:
    """All, any or some of a list of requests; a static method."""
    requests = list(requests)
    entries = [_pending.get(id(request)) for request in requests]
    word = "status" if name.endswith("any") else "statuses"
    given = _argument(word, 0, args, keywords, None)
    if word == "status":
        given = given or MPI.Status()
        result = original(requests, given)
        at = result[0] if isinstance(result, tuple) else result
        flag = True
        if name.startswith(("Test", "test")):
            at, flag = result[0], result[1]
            if isinstance(at, bool):
                at, flag = result[1], result[0]
        if flag and 0 <= at < len(requests):
            _ended(entries[at], given)
        return result
    statuses: list[MPI.Status] = [] if given is None else given
    if given is None:
        statuses.extend(MPI.Status() for _ in requests)
    result = original(requests, statuses)
    if name.lower().endswith("some"):
        indices = result[0] if isinstance(result, tuple) else result
        for at, status in zip(indices or (), statuses, strict=False):
            _ended(entries[at], status)
    elif result is not False and not (isinstance(result, tuple) and result[0] is False):
        for entry, status in zip(entries, statuses, strict=False):
            _ended(entry, status)
    return result


def _wrapped(name: str, original: Any, handler: Callable[..., Any], ours: bool = False) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        inside = caller.startswith("rmaext.") and not caller.startswith("rmaext.containers")
        if BUSY.now or inside or MPI.Is_finalized():
            return original(self, *args, **keywords)
        BUSY.now = True
        try:
            return handler(name, original, self, args, keywords)
        finally:
            BUSY.now = False

    return method


def _replace(kind: type, names: str, handler: Callable[..., Any]) -> None:
    """Replace methods of an extension type, which takes no others by assignment."""
    members = gc.get_referents(kind.__dict__)[0]
    for name in names.split():
        member = members.get(name)
        if isinstance(member, staticmethod | classmethod):  # of a list of requests
            members[name] = staticmethod(_wrapped(name, getattr(kind, name), handler))
        elif member is not None:
            members[name] = _wrapped(name, member, handler)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def follow() -> None:
    """Follow mpi4py's calls from now on."""
    world()
    _replace(MPI.Comm, f"{_EVERYONE} {_FROM_ROOT} {_TO_ROOT}", _collective)
    _replace(MPI.Intracomm, "Scan Exscan scan exscan", _collective)
    _replace(MPI.Topocomm, _TO_NEIGHBOURS, _collective)
    _replace(MPI.Comm, _BEGUN, _begun)
    _replace(MPI.Comm, _SENDS, _send)
    _replace(MPI.Comm, _RECEIVES, _receive)
    _replace(MPI.Comm, _EXCHANGES, _exchange)
    _replace(MPI.Comm, "Irecv irecv", _begin_receive)
    _replace(MPI.Request, "Wait Test wait test", _one)
    several = "Waitall Testall Waitany Testany Waitsome Testsome"
    _replace(MPI.Request, f"{several} {several.lower()}", _several)
