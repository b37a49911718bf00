# SPDX-License-Identifier: BSD-3-Clause
"""How a `Dict` is made and closed, and who may be inside it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from ..._runtime import locks
from ..._runtime.reports import dtype_name, waited
from ...errors import BusyError, ClosedError, RmaError, SyncError, Unsupported
from .._agreement import Opening, bracketed, common, exchange
from .._windows import Closing
from .changes import Changes
from .hashing import Query
from .memory import Memory, settings

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

__all__ = ["Table"]

Array = NDArray[Any]
_T = TypeVar("_T")
_COLLECTIVE = ("len", "items", "clear")


class Table(Closing):
    """What a `Dict` is, beside its operations."""

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        capacity: int,
        *,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self._whole = False
        self._lock = locks.lock()
        self._inside: object = None  # the call of this rank that is under way
        self._failed: object = None  # the last one with an error that all ranks learn of

        def tell() -> str:
            keys, values, count = settings(key_dtype, value_dtype, capacity, max_bytes)
            return f"{keys.dtype} -> {values.stored}, capacity {count}"

        told = exchange(comm, "Dict", tell, timeout)
        common(told, ValueError, "Dict: the ranks make different tables")
        keys, values, count = settings(key_dtype, value_dtype, capacity, max_bytes)
        memory = Memory(comm, keys, values, count, timeout)
        with Opening() as stack:
            memory.open(comm, stack)
            memory.gate.fence()
            stack.pop_all()
        self._memory, self._windows = memory, memory.windows()
        self._comm, self._keys, self._values, self._capacity = comm, keys, values, count
        self._slots = Changes(memory)
        self._whole = True

    def close(self) -> None:
        """Free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError
            As `Window.close`. After any other exception, as of Ctrl-C, call it again: the other
            ranks may wait in it.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.close()
        >>> table.closed
        True
        """
        if not self.closed:
            locks.within(self._lock, self._close, lambda: None)

    @property
    def closed(self) -> bool:
        """Whether operations raise ClosedError."""
        return not self._whole or self._windows[0].closed

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def capacity(self) -> int:
        """The entries that were asked for, of all ranks together."""
        return self._capacity

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """Of keys: without padding, the same on all ranks."""
        return self._keys.dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Of values, the same on all ranks."""
        return self._values.dtype

    def __repr__(self) -> str:
        what = (
            f"{self._keys.dtype} -> {self._values.dtype}" if hasattr(self, "_keys") else "not made"
        )
        state = (
            "closed" if self.closed else f"capacity {self._capacity} over {self._comm.size} ranks"
        )
        return f"<rmaext.containers.Dict {what}, {state}>"

    def __enter__(self) -> Self:
        self._turn("with", lambda: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            super().__exit__(kind, error, trace)

    # -- helpers -------------------------------------------------------------------

    def _turn(self, call: str, work: Callable[..., _T], *arguments: Any) -> _T:
        """Let one thread of this rank in at a time, and leave nothing half done.

        Whatever `work` raises, and wherever a signal handler does, `_settle` comes after it
        before the lock is free.
        """
        turn = object(), call, work, arguments
        try:
            result: _T = locks.within(self._lock, self._work, self._settle, *turn)
            return result
        finally:
            waited()

    def _work(self, turn: object, call: str, work: Callable[..., _T], arguments: Any) -> _T:
        if self.closed:
            raise ClosedError(errno.EBADF, f"Dict.{call}: the table is closed", call=call)
        if self._inside is not None:
            text = f"Dict.{call}: called from a signal handler within another call of the table"
            raise BusyError(errno.EBUSY, text, call=call)
        self._inside = turn
        self._memory.call = call
        try:
            result = work(*arguments)
        except RmaError:
            self._failed = turn
            raise
        self._inside = None
        return result

    def _settle(self, turn: object, call: str, *_: object) -> None:
        if self._inside is turn:
            self._slots.settle()
            if call in _COLLECTIVE and self._failed is not turn:
                # The gate is a window of its own: what is not collective goes on.
                text = f"Dict.{call} was ended by an exception, as of a signal handler"
                error = SyncError(errno.EINTR, text, call=call)
                self._memory.gate.__exit__(SyncError, error, None)
            self._inside = None

    def _many(self, keys: Any) -> tuple[tuple[int, ...], Query]:
        shape, words = self._keys.read(keys)
        return shape, self._keys.query(words, self._memory.size, self._memory.buckets)

    def _one(self, key: Any) -> Query:
        shape, query = self._many(key)
        if shape != ():
            raise TypeError(
                f"an array of shape {shape} is not one key: use get_many, set_many, ..."
            )
        return query

    def _set(self, call: str, query: Query, values: Any, shape: tuple[int, ...] = ()) -> None:
        stored = self._values.read(values, shape)
        self._turn(call, self._slots.change, query, stored, "replace")

    def _add(self, call: str, query: Query, values: Any, shape: tuple[int, ...]) -> Array:
        if not self._memory.sums:
            text = f"Dict.add: no sums of {dtype_name(self._values.dtype)}"
            text += ": numbers of up to 8 bytes have them"
            raise Unsupported(errno.EOPNOTSUPP, text, call="add")
        stored = self._values.read(values, shape)
        before = self._turn(call, self._slots.change, query, stored, "sum")
        assert before is not None
        return before.reshape(shape)
