# SPDX-License-Identifier: BSD-3-Clause
"""A dictionary over the memory of all ranks."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .._values import taken
from .items import Items, collect, local_entries
from .memory import COUNT, ROOM
from .table import Table

__all__ = ["Dict"]

Array = NDArray[Any]
_NO_DEFAULT: Any = object()


class Dict(Table):
    """A dictionary over the memory of all ranks, which every rank reads and changes by itself.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks hold the entries.
    key_dtype : data-type
        Integers, text of a fixed length ("U24": up to 24 characters, which take 4 bytes each),
        bytes ("S16") or a small struct, up to 256 bytes.
    value_dtype : data-type
        Any without Python objects; or `object`: pickled values of at most `max_bytes`.
    capacity : int
        Entries, of all ranks together.
    max_bytes : int, optional
        Of a pickled value; for `value_dtype=object` only.
    timeout : float, optional
        Seconds of waiting for other ranks; as for `Window`.

    Raises
    ------
    TypeError, ValueError, OverflowError, MemoryError
        On every rank, if any rank's arguments do not fit, or differ from the others'.
    SyncError
        On every rank, if the ranks are in different collective calls.

    Notes
    -----
    Making it is collective and blocking, and so are `len`, `items`, `clear` and `close`. All
    else is local, in MPI's sense: no other rank takes part, and it blocks until it is done.

    **Atomic.** Each operation on one key takes effect at one moment between its call and its
    return (it is linearizable), against those of all ranks and threads. A call on many keys is
    one operation for each key, and those on the same key take effect in the order of the
    batch; it is not atomic as a whole. `add` is atomic: no sum is lost, while others remove the
    entry too. Values longer than 8 bytes are never torn.

    **Threads and signals.** Threads of a rank may make any calls at once, but collective ones: they
    take turns, one call after another. A call within a signal handler that has interrupted one of
    the same table is BusyError. What a handler raises, as Ctrl-C does, ends a call that is done
    then or not done (of many keys: for each), and of which no other rank waits for anything. In
    a forked child all calls are ClosedError.

    **Waiting.** Readers, `add` and sets of keys that are there wait for nobody, but for a rank
    that is just removing that key or, if values are longer than 8 bytes, writing it. Making
    an entry waits for others that make or remove entries of its bucket; removing one waits
    until all ranks that were reading at that moment have finished their call. A wait of
    `timeout` seconds is RmaTimeout, and nothing was changed.

    **Full.** Room for all new keys is set aside before anything is changed: CapacityError says
    that there is none, and the table is as it was (but if other ranks remove and make entries
    at the same time, a batch may have been carried out in part). Keys are
    spread over the ranks by their hash, so there is some more room at each; that `capacity`
    entries do not fit has a chance of 1e-9.

    **Cost.** One entry of `capacity` takes 18 bytes and twice key and value, each rounded up to 8
    bytes; if both are more than 32 bytes, 13 bytes and 1.4 times these. To that a few at each rank.
    A call is, whatever the number of keys: for `get` and `add` of keys that are there, a read of
    64 bytes each and one of key and value, and for `add` and `set` an update; a new key takes
    some eight operations more; `pop` reads a word of every rank.

    **Lost ranks.** What a rank held that dies is lost: PeerLostError for those keys (`rank_of`
    says which rank has a key), while all others can be used. On its node they may still be
    found until its death is noticed. A call on many keys may then have
    been carried out for some. Locks of a dead rank are taken over; an entry that it was about to
    make, to remove, or (of more than 8 bytes) to set is removed. `len`, `items` and
    `clear` need all ranks, and raise PeerLostError from then on.

    Keys and values are taken as `rmaext.elements` does, keys with `exact`; also arrays of other
    dtypes whose elements would be. Keys are compared by their bytes: in structs 0.0 and -0.0
    differ, and NaN equals itself. NULs at the end of fixed bytes do not count, as in NumPy.
    Values of `value_dtype=object` are unpickled from what other ranks have written: the ranks
    must trust each other, as those of a job do.

    Examples
    --------
    >>> from rmaext.containers import Dict
    >>> with Dict(MPI.COMM_SELF, "i8", "f8", capacity=1000) as table:
    ...     table[7] = 1.5
    ...     table.add(7, 1.0)
    ...     table[7], table.get(8), 8 in table, len(table)
    np.float64(1.5)
    (np.float64(2.5), None, False, 1)
    """

    # -- one key -------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, _NO_DEFAULT)
        if value is _NO_DEFAULT:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set("set", self._one(key), value)

    def __delitem__(self, key: Any) -> None:
        self.pop(key)

    def __contains__(self, key: Any) -> bool:
        return self.get(key, _NO_DEFAULT) is not _NO_DEFAULT

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or the default.

        Parameters
        ----------
        key : scalar
            Of the key's dtype; a tuple for a struct.
        default : object, optional
            Returned as it is, if the key is not there.

        Returns
        -------
        NumPy scalar or object

        Raises
        ------
        TypeError, OverflowError, ValueError
            It is no key of this table.
        RmaTimeout, PeerLostError, ClosedError

        Notes
        -----
        Local, blocking. `table[key]` raises KeyError instead, and `key in table` tells
        whether it is there.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "S8", "i4", 100)
        >>> table[b"one"] = 1
        >>> table.get(b"one"), table.get(b"two", 0), b"two" in table
        (np.int32(1), 0, False)
        >>> table.close()
        """
        query = self._one(key)
        records, there = self._turn("get", self._slots.read, query)
        return self._values.of(records)[0] if there is None else default

    def setdefault(self, key: Any, value: Any) -> Any:
        """Return the value of a key; if it is not there, set it first.

        Parameters
        ----------
        key, value : scalar
            Of the table's dtypes.

        Returns
        -------
        NumPy scalar or object
            What is there now.

        Raises
        ------
        CapacityError
            There is no room; nothing was changed.
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `get`.

        Notes
        -----
        Local, blocking. Of several ranks that call it for a new key, one sets the value.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.setdefault(1, 10), table.setdefault(1, 20)
        (np.int64(10), np.int64(10))
        >>> table.close()
        """
        query = self._one(key)
        stored = self._values.read(value, ())
        record = self._values.records(query.words, stored)
        record = self._turn("setdefault", self._slots.read_or_insert, query, record)
        return self._values.of(record)[0]

    def pop(self, key: Any, default: Any = _NO_DEFAULT) -> Any:
        """Remove a key and return its value.

        Parameters
        ----------
        key : scalar
        default : object, optional
            Returned if the key is not there.

        Returns
        -------
        NumPy scalar or object
            The value, all that was added to it before included.

        Raises
        ------
        KeyError
            It is not there, and there is no default.
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `get`; after a timeout the entry is still there.

        Notes
        -----
        Local, blocking: it waits for ranks that are reading the table, see `Dict`. Of several
        ranks one gets the value. `del table[key]` is the same without the value. An object whose
        unpickling raises is removed all the same: `get` leaves it.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "f8", 100)
        >>> table[3] = 0.5
        >>> table.pop(3), table.pop(3, None)
        (np.float64(0.5), None)
        >>> table.close()
        """
        query = self._one(key)
        record = self._turn("pop", self._slots.remove, query)
        if record is not None:
            return self._values.of(record)[0]
        if default is _NO_DEFAULT:
            raise KeyError(key)
        return default

    def add(self, key: Any, value: Any) -> Any:
        """Add to the value of a key, which is made if it is not there.

        Parameters
        ----------
        key, value : scalar
            Of the table's dtypes.

        Returns
        -------
        NumPy scalar
            The value before; 0 if the key was not there.

        Raises
        ------
        Unsupported
            Values are no numbers of up to 8 bytes. Nothing was sent.
        CapacityError
            There is no room; nothing was changed.
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `get`.

        Notes
        -----
        Local, blocking; corresponds to MPI_Fetch_and_op with MPI_SUM.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.add(5, 2), table.add(5, 2), table[5]
        (np.int64(0), np.int64(2), np.int64(4))
        >>> table.close()
        """
        return self._add("add", self._one(key), value, ())[()]

    # -- many keys -----------------------------------------------------------------

    def get_many(self, keys: Any, default: Any = _NO_DEFAULT) -> Array:
        """Return the values of many keys.

        Parameters
        ----------
        keys : array_like
            Of the key's dtype, any shape.
        default : scalar or array_like, optional
            For keys that are not there: of the value's dtype, and broadcast to the keys' shape;
            in a table of objects one object for all.

        Returns
        -------
        numpy.ndarray
            A new array of the value's dtype, in the shape of the keys.

        Raises
        ------
        KeyError
            A key is not there, and there is no default.
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `get`.

        Notes
        -----
        Local, blocking: two reads of many elements, and as many more for keys that lie in
        another bucket than their own.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.set_many([1, 2], [10, 20])
        >>> table.get_many([2, 3, 1], default=-1)
        array([20, -1, 10])
        >>> table.close()
        """
        shape, query = self._many(keys)
        records, there = self._turn("get_many", self._slots.read, query)
        if there is None:
            return self._values.of(records).reshape(shape)
        missing = ~there
        if default is _NO_DEFAULT and missing.any():
            raise KeyError(self._keys.back(query.words[missing][:1])[0])
        if self._values.pickled:
            values = np.empty(len(there), object)
            values[there] = self._values.of(records[there])
        else:
            values = self._values.of(records)
        if self._values.pickled:
            for row in np.flatnonzero(missing):
                values[row] = default
        elif missing.any():
            limit = self._values.limit
            given = taken(default, values.dtype, "default", convert=True, limit=limit)
            given = np.broadcast_to(given, shape)
            values[missing] = given.reshape(-1)[missing]
        return values.reshape(shape)

    def set_many(self, keys: Any, values: Any) -> None:
        """Set the values of many keys; of several for one key the last stays.

        Parameters
        ----------
        keys, values : array_like
            Of the table's dtypes; the values broadcast to the shape of the keys. Objects: a list
            or an array with one for each key.

        Raises
        ------
        CapacityError
            There is no room for all; nothing was changed.
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `get`.

        Notes
        -----
        Local, blocking.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "f8", 100)
        >>> table.set_many(np.arange(3), 0.5)
        >>> table.get_many([0, 1, 2])
        array([0.5, 0.5, 0.5])
        >>> table.close()
        """
        shape, query = self._many(keys)
        self._set("set_many", query, values, shape)

    def add_many(self, keys: Any, values: Any) -> Array:
        """Add to the values of many keys, which are made where they are not there.

        Parameters
        ----------
        keys, values : array_like
            Of the table's dtypes; the values broadcast to the shape of the keys.

        Returns
        -------
        numpy.ndarray
            The values before, in the shape of the keys. A key that is there several times is
            added to as often, in the order of the batch.

        Raises
        ------
        Unsupported
            Values are no numbers of up to 8 bytes. Nothing was sent.
        CapacityError
            There is no room for all new keys; nothing was changed.
        TypeError, OverflowError, ValueError, RmaTimeout, PeerLostError, ClosedError
            As `get`.

        Notes
        -----
        Local, blocking.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.add_many([1, 1, 2], 5)
        array([0, 5, 0])
        >>> table.close()
        """
        shape, query = self._many(keys)
        return self._add("add_many", query, values, shape)

    def rank_of(self, keys: Any) -> Any:
        """Return which rank holds keys, there or not. Local, not blocking.

        Parameters
        ----------
        keys : array_like
            Of the key's dtype.

        Returns
        -------
        int or numpy.ndarray
            In the shape of the keys.

        Raises
        ------
        TypeError, OverflowError, ValueError
            They are no keys of this table.

        Examples
        --------
        >>> table = rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100)
        >>> table.rank_of([1, 2])
        array([0, 0])
        >>> table.close()
        """
        shape, query = self._many(keys)
        return query.ranks.reshape(shape)[()]

    # -- all of it -----------------------------------------------------------------

    def __iter__(self) -> NoReturn:
        """Refuse: entries come and go, and iterating would look like a local call."""
        text = "a Dict is not iterable: items() has all entries (collective), local_items() "
        raise TypeError(text + "those of this rank; len() is collective, too")

    def __bool__(self) -> NoReturn:
        """Refuse: `if table:` on one rank would wait for the others."""
        text = "whether a Dict is empty is a collective question: len(table) > 0 on all ranks; "
        raise TypeError(text + "or, for whether there is one, table is not None")

    def __len__(self) -> int:
        """Return the number of entries of all ranks. Collective, blocking."""
        return self._turn("len", self._len)

    def _len(self) -> int:
        memory = self._memory
        memory.together("len")
        memory.head.local[COUNT] = len(local_entries(memory, self._slots)[0])
        memory.together("len")
        total = int(memory.head.get_many(np.arange(memory.size), COUNT).sum())
        memory.together("len")
        return total

    def items(self) -> Items:
        """Return all entries of all ranks.

        Returns
        -------
        Items
            A sequence of pairs, of which `dict(...)` makes a dictionary; `key_array` and
            `value_array` are arrays. The same on all ranks, in no particular order.

        Raises
        ------
        PeerLostError
            A rank is lost: `local_items` still returns what is here.
        SyncError
            On every rank, if the ranks are in different collective calls.
        ClosedError

        Notes
        -----
        Collective, blocking: no rank's other calls are in it, so it is the table as it
        is between them. Each rank reads the memory of all, and holds all entries then.

        Examples
        --------
        >>> with rmaext.containers.Dict(MPI.COMM_SELF, "i8", "f8", 100) as table:
        ...     table[4] = 0.5
        ...     list(table.items()), table.items().value_array.sum()
        ([(np.int64(4), np.float64(0.5))], np.float64(0.5))
        """
        words, records = self._turn("items", self._items)
        return Items(self._keys.back(words), self._values.of(records))

    def _items(self) -> tuple[Array, Array]:
        self._memory.together("items")
        found = collect(self._memory)
        self._memory.together("items")
        return found

    def local_items(self) -> Items:
        """Return the entries that this rank holds.

        Returns
        -------
        Items
            As `items`.

        Raises
        ------
        RmaTimeout, ClosedError

        Notes
        -----
        Local. Entries that others make, set or remove meanwhile are in it or not; no value
        is torn.

        Examples
        --------
        >>> with rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100) as table:
        ...     table.set_many([1, 2], [10, 20])
        ...     sorted(table.local_items())
        [(np.int64(1), np.int64(10)), (np.int64(2), np.int64(20))]
        """
        words, records = self._turn("local_items", local_entries, self._memory, self._slots)
        return Items(self._keys.back(words), self._values.of(records))

    def clear(self) -> None:
        """Remove all entries.

        Raises
        ------
        PeerLostError, SyncError, ClosedError
            As `items`.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> with rmaext.containers.Dict(MPI.COMM_SELF, "i8", "i8", 100) as table:
        ...     table[1] = 1
        ...     table.clear()
        ...     len(table)
        0
        """
        self._turn("clear", self._clear)

    def _clear(self) -> None:
        self._memory.together("clear")
        self._memory.words.local[:] = 0
        self._memory.head.local[ROOM:] = 0
        self._slots.cleared()
        self._memory.together("clear")
