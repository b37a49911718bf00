# SPDX-License-Identifier: BSD-3-Clause
"""Windows between guard bytes, and NumPy references, for the MPI tests."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import launch
import numpy as np
import pytest

import rmaext

# what each update means, in NumPy
UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "replace": lambda old, new: new,
    "no_op": lambda old, new: old,
}

GUARD = 64
PATTERN = 0xA5
NOTHING: Any = np.empty(0, "i8")


class Guarded:
    """An array with GUARD bytes of PATTERN on either side.

    ``shift`` moves the array by so many bytes from its natural alignment.
    """

    def __init__(self, shape: Any, dtype: Any = float, shift: int = 0) -> None:
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        nbytes = count * dtype.itemsize
        self.low, self.high = GUARD + shift, GUARD + shift + nbytes
        make = rmaext.empty if launch.test_route() in ("direct", "mixed") else np.empty
        raw = make(nbytes + 3 * GUARD + shift, np.uint8)
        raw[:] = PATTERN
        start = -raw.ctypes.data % GUARD  # so that only shift misaligns
        self.raw = raw[start : start + nbytes + 2 * GUARD + shift]
        self.bytes = self.raw[self.low : self.high]
        self.bytes[:] = 0
        flat = np.frombuffer(self.raw, dtype, count, self.low)
        self.array = flat.reshape(shape)

    def check(self) -> None:
        assert (self.raw[: self.low] == PATTERN).all(), "written before"
        assert (self.raw[self.high :] == PATTERN).all(), "written behind"


@contextlib.contextmanager
def guarded(
    comm: Any, shape: Any, dtype: Any = float, fill: Any = 0, shift: int = 0, **how: Any
) -> Iterator[rmaext.Window]:
    """A window filled with ``fill``, whose guards are checked at the end."""
    mine = Guarded(shape, dtype, shift)
    mine.array[...] = fill
    with rmaext.Window(comm, mine.array, **how) as win:
        yield win
    mine.check()


def noise(dtype: Any, count: int, *seed: int) -> np.ndarray:
    """The same bytes on every rank for the same seed, all bit patterns."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    raw = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    return np.frombuffer(raw, dtype, count)


def same(got: Any, want: Any) -> bool:
    """Equal in type, shape and every bit (NaN and -0.0 too)."""
    got, want = np.asarray(got), np.asarray(want)
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def neighbour(comm: Any) -> int:
    return int((comm.rank + 1) % comm.size)


def left_of(comm: Any) -> int:
    return int((comm.rank - 1) % comm.size)


def rounds(few: int, many: int) -> Any:
    """Parametrise a test by its number of rounds; with many it is a stress test.

    Over the network a quarter of the few: its orders are tried by the worlds of tests/c.
    """
    if launch.test_route() in ("fabric", "mixed"):
        few = -(-few // 4)
    marks = [pytest.mark.stress, pytest.mark.timeout(300)]
    return pytest.mark.parametrize("rounds", [few, pytest.param(many, marks=marks)])


def sparse(combinations: Sequence[tuple[str, ...]]) -> list[Any]:
    """Mark combinations for `make test-matrix`, but for so few that each value occurs in one."""
    few, seen = set(), [set[str]() for _ in combinations[0]]
    for new in range(len(seen), 0, -1):  # first those of which all is new
        for values in combinations:
            pairs = list(zip(values, seen, strict=True))
            if sum(value not in column for value, column in pairs) >= new:
                few.add(values)
                for value, column in pairs:
                    column.add(value)
    return [
        pytest.param(*values, marks=[] if values in few else pytest.mark.matrix)
        for values in combinations
    ]


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run work(number) in so many threads; raise what the first that failed raised."""
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
