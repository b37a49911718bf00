# SPDX-License-Identifier: BSD-3-Clause
"""Windows over mapped files, and how puts get to the file (csrc/shm/write_back.c)."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np

from .._memory.arrays import address
from .._memory.node import Arena
from .._native._lib import ffi, lib
from .._ops.core import Array
from .._runtime import lifetime, mpi_progress
from .._runtime.failures import check
from .._sync.waiting import Waits, block_words
from ..errors import RmaError, Unsupported

__all__ = ["File", "begin", "end", "persist"]

_STORED = int(lib.RMAEXT_STORED)
_NAP, _LONGEST_NAP = 1e-4, 1e-2  # seconds between looks at a rank elsewhere


class Storage(lifetime.OfProcess):
    """The thread of this process that writes back what peers have put into files."""

    def __init__(self) -> None:
        self._handle = ffi.new("rmaext_storage **")
        check(lib.rmaext_storage_open(Arena.own_handle(), self._handle))

    def add(self, block: Any, arrays: list[Array]) -> Any:
        """Serve those who ask in a control block; the arrays stay until `remove`."""
        pieces = [(address(array), array.nbytes) for array in arrays]
        file = ffi.new("rmaext_file **")
        listed = ffi.new("struct rmaext_piece[]", pieces)
        check(lib.rmaext_storage_add(self._handle[0], block, listed, len(pieces), file))
        return file[0]

    def remove(self, file: Any) -> None:
        """Serve them no more; waits for what is being written."""
        if self._handle[0]:
            lib.rmaext_storage_remove(self._handle[0], file)

    def close(self) -> None:
        """Write no more."""
        lib.rmaext_storage_close(self._handle)

    def _forget(self) -> None:
        """After the end, or in a forked child, which has no such thread."""
        super()._forget()
        self._handle = ffi.new("rmaext_storage **")


File = tuple[Storage, Any]  # the thread that writes, and what it knows of the memory


def begin(window: Waits[Any]) -> File | None:
    """Let peers ask for what they have put to be written, if this rank's memory is a file's."""
    if window._block is None or not _stores(window, window._group.rank):
        return None
    storage, block = Storage.own(), window._block.maps[window._group.rank]
    return storage, storage.add(block, _own_arrays(window))


def end(file: File | None) -> None:
    """No peer asks any more, and the control block is another window's soon."""
    if file is not None:
        storage, held = file
        storage.remove(held)


def persist(window: Waits[Any], rank: int | None) -> None:
    """Have what was flushed to a rank, or to all, written to their files."""
    root: Waits[Any] = window._root
    group = window._group
    ranks = range(group.size) if rank is None else [rank]
    ranks = [r for r in ranks if root._sizes[r]]
    without = [r for r in ranks if not _stores(root, r)]
    if without:
        text = f"flush: window {window._name}, rank {without[0]}: its memory is not mapped "
        text += "from a file, or privately: make the window over an np.memmap of mode 'r+' or 'w+'"
        raise Unsupported(errno.EOPNOTSUPP, text, call="flush", rank=without[0])
    tickets = {r: _ask(root, r) for r in ranks if r != group.rank}  # all at work at once
    if group.rank in ranks:
        for array in _own_arrays(root):
            code = lib.rmaext_storage_write(address(array), array.nbytes)
            _check_written(window, group.rank, code)
    for r, ticket in tickets.items():
        _check_written(window, r, _written(root, r, ticket))


def _stores(window: Waits[Any], rank: int) -> bool:
    return any(part._records[rank].access & _STORED for part in window._parts())


def _own_arrays(window: Waits[Any]) -> list[Array]:
    me = window._group.rank
    return [p._array for p in window._parts() if p._records[me].access & _STORED]


def _words(window: Waits[Any]) -> tuple[Any, int, int]:
    """Return the hidden window, where the words are in it, and where in the block."""
    block = window._block
    assert block is not None, "only hidden windows have none"
    places = ffi.new("struct rmaext_places *")
    lib.rmaext_block_places(window._group.size, places)
    place = int(places.storage)
    return block.window, block.base + place, place


def _ask(window: Waits[Any], rank: int) -> int:
    """Ask a rank to write; return the ticket that it counts up to when it has."""
    hidden, first, _ = _words(window)
    before = hidden.fetch_add(1, rank, first)
    hidden.flush(rank)  # rings its bell
    return int(np.asarray(before).reshape(-1)[0]) + 1


def _written(window: Waits[Any], rank: int, ticket: int) -> int:
    """Wait until what was asked for is done there; return 0, or the error."""
    hidden, first, place = _words(window)
    where = f"flush: window {window._name}, rank {rank}"
    if window._block is not None and window._block.maps[rank]:
        window._wait(where, block_words([(place + 1, ">=", ticket)]), rank=rank)
    nap = _NAP
    while True:
        _, done, failed, error = hidden.get(rank, first, 4).tolist()
        if done >= ticket:
            return int(error) if failed >= ticket else 0
        window._group.watch.check(rank, where)
        mpi_progress.nap(nap)
        nap = min(2 * nap, _LONGEST_NAP)


def _check_written(window: Waits[Any], rank: int, code: int) -> None:
    if code:
        text = f"flush: window {window._name}, rank {rank}: msync: {os.strerror(-code)}"
        raise RmaError(-code, text, call="msync", rank=rank)
