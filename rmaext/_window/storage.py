# SPDX-License-Identifier: BSD-3-Clause
"""Windows over mapped files, and how puts get to the file (csrc/shm/write_back.c)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .._memory.arrays import address
from .._memory.node import Arena
from .._native._lib import ffi, lib
from .._runtime import lifetime, locks, mpi_progress
from .._sync.waiting import block_words
from ..errors import RmaError, Unsupported, check

if TYPE_CHECKING:
    from .._comm.control import Block
    from .._comm.group import Group
    from .._comm.records import Column, Records

__all__ = ["StoredMemory"]

Array = NDArray[Any]

_STORED = int(lib.RMAEXT_STORED)
_NAP, _LONGEST_NAP = 1e-4, 1e-2  # seconds between looks at a rank elsewhere


class Storage:
    """The thread of this process that writes back what peers have put into files."""

    _own: ClassVar[Storage | None] = None
    _lock: ClassVar[Any] = locks.lock()

    def __init__(self) -> None:
        self._handle = ffi.new("rmaext_storage **")
        check(lib.rmaext_storage_open(Arena.own_handle(), self._handle))
        lifetime.on_exit(self._close)
        lifetime.on_end(self)

    @classmethod
    def own(cls) -> Storage:
        """Return this process's, made on first use, there until the process ends."""
        with cls._lock:
            if cls._own is None:
                made = cls()
                cls._own = cls._own or made  # a signal handler may have been faster
            return cls._own

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

    def _close(self) -> None:
        lib.rmaext_storage_close(self._handle)

    def forget(self) -> None:
        """After the end, or in a forked child, which has no such thread."""
        Storage._own = None
        self._handle = ffi.new("rmaext_storage **")


class StoredMemory:
    """How a window sees to it that what is put is in the file it is mapped from."""

    _file: Any = None  # with the storage thread

    _array: Array
    _block: Block | None
    _group: Group
    _name: int | str
    _records: Records
    _sizes: Column[int]

    if TYPE_CHECKING:
        # of Window
        def _parts(self) -> list[Any]: ...
        def _wait(self, where: str, conditions: Any, *, rank: int | None = None) -> None: ...

    def _stores(self, rank: int) -> bool:
        return any(part._records[rank].access & _STORED for part in self._parts())

    def _own_files(self) -> list[Array]:
        me = self._group.rank
        return [p._array for p in self._parts() if p._records[me].access & _STORED]

    def _begin_storage(self) -> None:
        """Let peers ask, if this rank's memory is a file's."""
        if self._block is not None and self._stores(self._group.rank):
            block = self._block.maps[self._group.rank]
            self._file = Storage.own(), Storage.own().add(block, self._own_files())

    def _end_storage(self) -> None:
        """No peer asks any more, and the block is somebody else's soon."""
        if self._file is not None:
            storage, file = self._file
            self._file = None
            storage.remove(file)

    def _persist(self, rank: int | None) -> None:
        """Have what was flushed to a rank, or to all, written to their files."""
        root = getattr(self, "_root", self)
        group = self._group
        ranks = range(group.size) if rank is None else [rank]
        ranks = [r for r in ranks if root._sizes[r]]
        without = [r for r in ranks if not root._stores(r)]
        if without:
            text = f"flush: window {self._name}, rank {without[0]}: its memory is not mapped "
            text += "from a file, or privately: nothing there can be made persistent"
            raise Unsupported(errno.EOPNOTSUPP, text, call="flush", rank=without[0])
        tickets = {r: root._ask(r) for r in ranks if r != group.rank}  # all at work at once
        if group.rank in ranks:
            for array in root._own_files():
                code = lib.rmaext_storage_write(address(array), array.nbytes)
                self._check_written(group.rank, code)
        for r, ticket in tickets.items():
            self._check_written(r, root._written(r, ticket))

    def _words(self) -> tuple[Any, int, int]:
        """Return the hidden window, where the words are in it, and where in the block."""
        block = self._block
        assert block is not None, "only hidden windows have none"
        places = ffi.new("struct rmaext_places *")
        lib.rmaext_block_places(self._group.size, places)
        place = int(places.storage)
        return block.window, block.base + place, place

    def _ask(self, rank: int) -> int:
        hidden, first, _ = self._words()
        before = hidden.fetch_add(1, rank, first)
        hidden.flush(rank)  # rings its bell
        return int(np.asarray(before).reshape(-1)[0]) + 1

    def _written(self, rank: int, ticket: int) -> int:
        """Wait until what was asked for is done there; return 0, or the error."""
        hidden, first, place = self._words()
        where = f"flush: window {self._name}, rank {rank}"
        if self._block is not None and self._block.maps[rank]:
            self._wait(where, block_words([(place + 1, ">=", ticket)]), rank=rank)
        nap = _NAP
        while True:
            _, done, failed, error = hidden.get(rank, first, 4).tolist()
            if done >= ticket:
                return int(error) if failed >= ticket else 0
            self._group.watch.check(rank, where)
            mpi_progress.nap(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def _check_written(self, rank: int, code: int) -> None:
        if code:
            text = f"flush: window {self._name}, rank {rank}: msync: {os.strerror(-code)}"
            raise RmaError(-code, text, call="msync", rank=rank)
