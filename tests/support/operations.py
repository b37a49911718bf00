# SPDX-License-Identifier: BSD-3-Clause
"""The operations of a window, and what each asks of its target: rows of tables of contracts.

A name is the one that errors begin with; what stands behind a space tells forms of a call apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rmaext


class Operation(NamedTuple):
    call: Callable[..., Any]  # (window, value, rank, offset): about as many elements as in value
    rights: str  # that the target must give
    atomic: bool  # wants aligned elements, of a dtype that has updates
    single: bool = False  # is about one element
    index: bool = False  # its offset is an index of NumPy's: -1 is the last element


def done(result: Any) -> Any:
    """Return what it returns in the end."""
    return result.wait() if isinstance(result, rmaext.Request) else result


def carry_out(it: Operation, win: rmaext.Window, value: Any, rank: int) -> None:
    """Do it at the beginning of a rank's memory, to the end."""
    done(it.call(win, value, rank, 0))
    win.flush(rank)


def some(value: Any) -> Any:
    """Return an array to read as many elements into."""
    value = np.asarray(value)
    return np.full(value.shape, 7, value.dtype)


def each(value: Any, offset: Any) -> Any:
    """Return one offset for one element, and as many offsets for an array."""
    return offset if np.ndim(value) == 0 else offset + np.arange(np.size(value))


def part(value: Any, offset: Any) -> Any:
    """Return the same as a key."""
    return offset if np.ndim(value) == 0 else slice(offset, offset + np.size(value))


def array(value: Any) -> Any:
    return np.atleast_1d(np.asarray(value))


def strided(value: Any) -> Any:
    return np.repeat(array(value), 2)[::2]


READS = {
    "get": lambda w, v, r, o: w.get(r, o, np.size(v)),
    "get out": lambda w, v, r, o: w.get(r, o, out=some(v)),
    "rget": lambda w, v, r, o: w.rget(r, o, np.size(v)),
    "get_many": lambda w, v, r, o: w.get_many(r, each(v, o)),
    "rget_many": lambda w, v, r, o: w.rget_many(r, each(v, o)),
    "get_ranges": lambda w, v, r, o: w.get_ranges(r, o, np.size(v)),
    "rget_ranges": lambda w, v, r, o: w.rget_ranges(r, o, np.size(v)),
    "get_notify": lambda w, v, r, o: w.get_notify(r, o, np.size(v)),
    "prepare_get": lambda w, v, r, o: w.prepare_get(some(v), r, o)(),
    "get buffer": lambda w, v, r, o: w.register(array(some(v))).get(r, o),
}
LOADS = {
    "load": lambda w, v, r, o: w.load(r, o, np.size(v)),
    "accumulate no_op": lambda w, v, r, o: w.accumulate(v, r, o, "no_op"),
    "get_accumulate no_op": lambda w, v, r, o: w.get_accumulate(v, r, o, "no_op"),
}
WRITES = {
    "put": lambda w, v, r, o: w.put(v, r, o),
    "put strided": lambda w, v, r, o: w.put(strided(v), r, o),
    "rput": lambda w, v, r, o: w.rput(v, r, o),
    "put_many": lambda w, v, r, o: w.put_many(r, each(v, o), v),
    "rput_many": lambda w, v, r, o: w.rput_many(r, each(v, o), v),
    "put_ranges": lambda w, v, r, o: w.put_ranges(r, o, np.size(v), v),
    "rput_ranges": lambda w, v, r, o: w.rput_ranges(r, o, np.size(v), v),
    "put_notify": lambda w, v, r, o: w.put_notify(v, r, o),
    "rput_notify": lambda w, v, r, o: w.rput_notify(v, r, o),
    "prepare_put": lambda w, v, r, o: w.prepare_put(np.asarray(v), r, o)(),
    "put buffer": lambda w, v, r, o: w.register(array(v)).put(r, o),
}
UPDATES = {
    "accumulate": lambda w, v, r, o: w.accumulate(v, r, o),
    "raccumulate": lambda w, v, r, o: w.raccumulate(v, r, o),
    "accumulate_many": lambda w, v, r, o: w.accumulate_many(r, each(v, o), v),
    "raccumulate_many": lambda w, v, r, o: w.raccumulate_many(r, each(v, o), v),
    "store": lambda w, v, r, o: w.store(v, r, o),
}
FETCHES = {
    "get_accumulate": lambda w, v, r, o: w.get_accumulate(v, r, o),
    "fetch_add": lambda w, v, r, o: w.fetch_add(v, r, o),
    "compare_and_swap": lambda w, v, r, o: w.compare_and_swap(v, v, r, o),
    "fetch_add_many": lambda w, v, r, o: w.fetch_add_many(r, each(v, o), v),
    "fetch_op_many": lambda w, v, r, o: w.fetch_op_many(r, each(v, o), v),
    "compare_and_swap_many": lambda w, v, r, o: w.compare_and_swap_many(r, each(v, o), v, v),
    "rget_accumulate": lambda w, v, r, o: w.rget_accumulate(v, r, o),
    "rcompare_and_swap": lambda w, v, r, o: w.rcompare_and_swap(v, v, r, o),
    "rfetch_op_many": lambda w, v, r, o: w.rfetch_op_many(r, each(v, o), v),
    "rcompare_and_swap_many": lambda w, v, r, o: w.rcompare_and_swap_many(r, each(v, o), v, v),
    "prepare_fetch_add": lambda w, v, r, o: w.prepare_fetch_add(v, r, o)(),
    "fetch_add buffer": lambda w, v, r, o: w.register(array(v)).fetch_add(r, o),
}
SINGLES = {
    "fetch_op": lambda w, v, r, o: w.fetch_op(v, r, o),
    "fetch_op replace": lambda w, v, r, o: w.fetch_op(v, r, o, "replace"),
    "rfetch_op": lambda w, v, r, o: w.rfetch_op(v, r, o),
}
SINGLE_LOADS = {
    "load one": lambda w, v, r, o: w.load(r, o),
    "fetch_op no_op": lambda w, v, r, o: w.fetch_op(v, r, o, "no_op"),
}
OPERATIONS = {
    **{name: Operation(call, "r", False) for name, call in READS.items()},
    **{name: Operation(call, "r", True) for name, call in LOADS.items()},
    **{name: Operation(call, "w", False) for name, call in WRITES.items()},
    **{name: Operation(call, "w", True) for name, call in UPDATES.items()},
    **{name: Operation(call, "rw", True) for name, call in FETCHES.items()},
    **{name: Operation(call, "rw", True, single=True) for name, call in SINGLES.items()},
    **{name: Operation(call, "r", True, single=True) for name, call in SINGLE_LOADS.items()},
}
KEYED = {
    "__getitem__": (lambda w, v, r, o: w[r, part(v, o)], "r", False),
    "__setitem__": (lambda w, v, r, o: w.__setitem__((r, part(v, o)), v), "w", False),
    "at add": (lambda w, v, r, o: w.at(r).add(part(v, o), v), "w", True),
    "at update": (lambda w, v, r, o: w.at(r).update(part(v, o), v, "max"), "w", True),
    "accumulate key": (lambda w, v, r, o: w.accumulate(v, r, key=part(v, o)), "w", True),
    "rput key": (lambda w, v, r, o: w.rput(v, r, key=part(v, o)), "w", False),
    "rget key": (lambda w, v, r, o: w.rget(r, key=part(v, o)), "r", False),
    "rput_notify key": (lambda w, v, r, o: w.rput_notify(v, r, key=part(v, o)), "w", False),
}
INDEXED = {name: Operation(*row, index=True) for name, row in KEYED.items()}

# What takes a rank, too, and has no elements.
OF_A_RANK = {
    "flush": lambda w, r: w.flush(r),
    "flush_local": lambda w, r: w.flush_local(r),
    "lock": lambda w, r: (w.lock(r), w.unlock(r)),
    "lock shared": lambda w, r: (w.lock(r, exclusive=False), w.unlock(r)),
    "connect": lambda w, r: w.connect([r]),
    "post": lambda w, r: (w.post([r, w.comm.rank]), w.start([w.comm.rank]), w.complete(), w.wait()),
}
# What else a closed window refuses.
OTHERS = {
    "put nothing": lambda w: w.put(np.empty(0), 0),
    "put nobody": lambda w: w.put(1.0, -1),
    "fetch_op": lambda w: w.fetch_op(1.0, 0, op="replace"),
    "flush": lambda w: w.flush(),
    "flush rank": lambda w: w.flush(0),
    "flush_local": lambda w: w.flush_local(),
    "flush_local rank": lambda w: w.flush_local(0),
    "flush all": lambda w: w.flush_all(),
    "flush_local all": lambda w: w.flush_local_all(),
    "sync": lambda w: w.sync(),
    "fence": lambda w: w.fence(),
    "with": lambda w: w.__enter__(),
    "lock": lambda w: w.lock(0),
    "lock shared": lambda w: w.lock(0, exclusive=False),
    "unlock": lambda w: w.unlock(0),
    "lock_all": lambda w: w.lock_all(),
    "unlock_all": lambda w: w.unlock_all(),
    "start": lambda w: w.start([]),
    "complete": lambda w: w.complete(),
    "post": lambda w: w.post([]),
    "wait": lambda w: w.wait(),
    "wait not": lambda w: w.test(),
    "wait_notify": lambda w: w.wait_notify(0),
    "test_notify": lambda w: w.test_notify(0),
    "wait_any": lambda w: w.wait_any([0]),
    "wait_some": lambda w: w.wait_some([0]),
    "wait_all": lambda w: w.wait_all([0]),
    "wait_until": lambda w: w.wait_until(0, "==", 0.0),
    "notify_counts": lambda w: w.notify_counts(),
    "subwindow": lambda w: w.subwindow(0, 1),
    "dup": lambda w: w.dup(),
    "at": lambda w: w.at(0),
    "connect": lambda w: w.connect(),
}
