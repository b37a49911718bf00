# SPDX-License-Identifier: BSD-3-Clause
"""A dictionary whose keys have several values each: for joins.

It is two of `Dict`: how many values a key has, and, by key and number, these. Who appends counts
first: the count before is the value's number, which nobody else has.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._agreement import Opening, bracketed, common, exchange
from .._windows import Closing
from .dict import Dict
from .hashing import Keys, Query
from .memory import settings

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MultiDict"]

Array = NDArray[Any]


class MultiDict(Closing):
    """A dictionary over all ranks in which a key may have any number of values.

    For joins of tables whose keys repeat: each rank appends its rows of one table, and finds all
    that match its rows of the other one, as `pandas.merge` does in one process.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks hold the values.
    key_dtype, value_dtype : data-type
        As for `Dict`; a key has up to 248 bytes.
    capacity : int
        Values, of all keys and ranks together.
    max_bytes : int, optional
        Of a pickled value; for `value_dtype=object` only.
    timeout : float, optional
        Seconds of waiting for other ranks; as for `rmaext.Window`.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        On every rank, if any rank's arguments do not fit, or differ from the others'.
    SyncError
        On every rank, if the ranks are in different collective calls.

    Notes
    -----
    Making it is collective and blocking, as is `close`; `append_many` and `get_many` are local.

    It stands on two of `Dict`, one with a count for each key, one with the values, by key and
    number: so the values of a key that has very many lie on all ranks. What `Dict` says of
    threads, signal handlers, waiting and lost ranks holds, and errors name it: PeerLostError for
    a key if its count or any of its values was on the rank that is lost. Values stay until `close`.

    Cost: per value 36 bytes, and twice the value and two times twice the key, each rounded up to 8
    bytes, with 8 more for the number. `append_many` and `get_many` are two calls of `Dict` each,
    however many keys there are.

    Examples
    --------
    >>> from rmaext.containers import MultiDict
    >>> with MultiDict(MPI.COMM_SELF, "i8", "f8", capacity=100) as table:
    ...     table.append_many([7, 5, 7], [0.1, 0.2, 0.3])
    ...     values, starts = table.get_many([5, 6, 7])
    >>> values, starts
    (array([0.2, 0.1, 0.3]), array([0, 1, 1, 3]))
    >>> np.repeat([5, 6, 7], np.diff(starts))  # the key of each value
    array([5, 7, 7])
    """

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
        def tell() -> tuple[np.dtype[Any], np.dtype[Any], int]:
            keys, _, _ = settings(key_dtype, value_dtype, capacity, max_bytes)
            numbered = np.dtype([("key", keys.dtype), ("number", np.int64)])
            _, values, count = settings(numbered, value_dtype, capacity, max_bytes)
            return numbered, values.stored, count

        told = exchange(comm, "MultiDict", tell, timeout)
        text = "{0[0]} -> {0[1]}, capacity {0[2]}".format
        common(told, ValueError, "MultiDict: the ranks make different tables", text)
        self._comm, self._keys = comm, Keys(key_dtype)
        (numbered, _, count), made = told[0], functools.partial(Dict, comm, timeout=timeout)
        with Opening() as stack:
            self._counts = stack.enter_context(made(key_dtype, np.int64, count))
            rows = made(numbered, value_dtype, count, max_bytes=max_bytes)
            self._rows = stack.enter_context(rows)
            stack.pop_all()
        self._keys.limit = self._counts._keys.limit
        self._windows: Any = (self._counts, self._rows)

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def capacity(self) -> int:
        """The values that were asked for, of all ranks together."""
        return self._rows.capacity

    @property
    def key_dtype(self) -> np.dtype[Any]:
        """Of keys: without padding, the same on all ranks."""
        return self._keys.dtype

    @property
    def value_dtype(self) -> np.dtype[Any]:
        """Of values, the same on all ranks."""
        return self._rows.value_dtype

    @property
    def closed(self) -> bool:
        """Whether calls raise ClosedError."""
        return self._rows.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"capacity {self.capacity}"
        what = f"{self.key_dtype} -> {self.value_dtype}, {state}"
        return f"<rmaext.containers.MultiDict {what} over {self._comm.size} ranks>"

    def append_many(self, keys: Any, values: Any) -> None:
        """Give keys one more value each.

        Parameters
        ----------
        keys, values : array_like
            Of the table's dtypes; the values broadcast to the shape of the keys. A key that is
            there several times gets as many values. Objects: a list with one for each key.

        Raises
        ------
        CapacityError
            There is no room for all; no value was appended.
        TypeError, OverflowError, ValueError
            Before anything is appended.
        RmaTimeout, PeerLostError, ClosedError
            As `Dict.set_many`: some of the values may be there.

        Notes
        -----
        Local, blocking. Who calls `get_many` after it has returned, and was told so, gets all of
        them; who calls it meanwhile gets some. After an exception of a signal handler some of
        the values, or all, are there, and no others.

        Examples
        --------
        >>> with rmaext.containers.MultiDict(MPI.COMM_SELF, "S8", "i8", 100) as table:
        ...     table.append_many([b"one", b"two", b"two"], [1, 2, 22])
        ...     table.get_many(b"two")
        (array([ 2, 22]), array([0, 2]))
        """
        shape, words = self._keys.read(keys)
        stored = self._rows._values.read(values, shape)  # raises before anything is counted
        flat = self._keys.back(words)
        query = self._query(flat, self._counts.add_many(flat, 1))
        self._rows._turn("set_many", self._rows._slots.change, query, stored, "replace")

    def get_many(self, keys: Any) -> tuple[Array, NDArray[np.int64]]:
        """Return all values of keys.

        Parameters
        ----------
        keys : array_like
            Of the key's dtype, any shape; those that are not there have no values.

        Returns
        -------
        values, starts : numpy.ndarray
            `values[starts[k]:starts[k + 1]]` are those of the k-th key, in the order in which they
            were appended; `starts` is int64, and has one element more than there are keys.

        Raises
        ------
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `Dict.get`.

        Notes
        -----
        Local, blocking. ``numpy.repeat(numpy.arange(keys.size), numpy.diff(starts))`` is which
        key each value is of: the pairs of a join.

        Examples
        --------
        >>> with rmaext.containers.MultiDict(MPI.COMM_SELF, "i8", "i8", 100) as table:
        ...     table.append_many([1, 2, 1], [10, 20, 30])
        ...     table.get_many([1, 3, 2, 1])
        (array([10, 30, 20, 10, 30]), array([0, 2, 2, 3, 5]))
        """
        flat = self._keys.back(self._keys.read(keys)[1])
        counts = self._counts.get_many(flat, 0)
        which = np.repeat(np.arange(counts.size), counts)
        numbers = np.arange(which.size) - np.repeat(counts.cumsum() - counts, counts)
        query = self._query(flat[which], numbers)
        records, there = self._rows._turn("get_many", self._rows._slots.read, query)
        if there is not None:  # some that were counted are not set yet, or never will be
            records, which = records[there], which[there]
        starts = np.zeros(counts.size + 1, np.int64)
        np.bincount(which, minlength=counts.size).cumsum(out=starts[1:])
        return self._rows._values.of(records), starts

    def _query(self, keys: Array, numbers: Array) -> Query:
        rows = np.empty(len(numbers), self._rows.key_dtype)
        rows["key"], rows["number"] = keys, numbers
        return self._rows._many(rows)[1]

    def close(self) -> None:
        """Free the memory. Twice is harmless.

        Raises
        ------
        PeerLostError, SyncError
            As `Dict.close`.

        Notes
        -----
        Collective, blocking. `with` does it at the end of its block.

        Examples
        --------
        >>> table = rmaext.containers.MultiDict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.close()
        >>> table.closed
        True
        """
        self._close()
