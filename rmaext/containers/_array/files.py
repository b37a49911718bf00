# SPDX-License-Identifier: BSD-3-Clause
"""An `Array` to files and back: .npy, .zarr, HDF5. No rank holds the whole.

A file is cut into pieces that are each one piece of the file, or one chunk, and a rank writes or
reads some that follow each other, whichever ranks hold the elements.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from .._agreement import common, exchange

if TYPE_CHECKING:
    from mpi4py import MPI

    from .array import Array

__all__ = ["header", "load", "save"]

_MOST = 16 << 20  # bytes of a piece
_NAME = "array"  # of a data set in HDF5
_KINDS = {".npy": "", ".zarr": "zarr", ".h5": "h5py", ".hdf5": "h5py"}
Shape = tuple[int, ...]


def _package(path: Any) -> Any:
    """Return the module that reads and writes a file; None if NumPy does."""
    suffix = os.path.splitext(os.fspath(path))[1]
    if suffix not in _KINDS:
        raise ValueError(f"{path}: the name must end in one of {', '.join(_KINDS)}")
    name = _KINDS[suffix]
    try:
        return importlib.import_module(name) if name else None
    except ImportError as exc:
        text = f"{path}: needs {name}, which cannot be imported: pip install {name}"
        raise ImportError(text, name=name) from exc


class _Npy:
    """A .npy file that there is, to be written to: not by mapping it, as a disk may be full."""

    def __init__(self, path: str) -> None:
        there: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="r")
        self._first, self._strides, self._dtype = there.offset, there.strides, there.dtype
        self._file = open(path, "r+b")  # noqa: SIM115 - until close

    def __setitem__(self, key: tuple[slice, ...], values: Any) -> None:
        starts = (it.start * step for it, step in zip(key, self._strides, strict=True))
        self._file.seek(self._first + sum(starts))
        # an element of NumPy has the machine's byte order, whatever the file's is
        values = np.ascontiguousarray(values, self._dtype).reshape(-1)
        self._file.write(values.view(np.uint8).data)

    def close(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


@contextmanager
def _opened(path: str, package: Any, write: bool) -> Iterator[Any]:
    """Open what there is: an object that has shape, dtype and patches, or takes patches."""
    if package is None and not write:
        yield np.lib.format.open_memmap(path, mode="r")  # np.load takes .npz and pickles, too
    elif package is None:
        file = _Npy(path)
        try:
            yield file
        finally:
            file.close()
    elif package.__name__ == "zarr":
        yield package.open_array(path, mode="r+" if write else "r")
    else:
        with package.File(path, "r+" if write else "r") as group:
            names = [_NAME] if _NAME in group else [*group]
            if len(names) != 1 or not hasattr(group[names[0]], "shape"):
                raise ValueError(f"{path}: no data set {_NAME!r}, and not one data set only")
            yield group[names[0]]


def _create(path: str, package: Any, shape: Shape, dtype: np.dtype[Any], chunks: Shape) -> None:
    if package is None:
        np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    elif package.__name__ == "zarr":
        package.open_array(path, mode="w", shape=shape, dtype=dtype, chunks=chunks)
    else:
        with package.File(path, "w") as group:
            group.create_dataset(_NAME, shape, dtype)


def _chunks(shape: Shape, most: int) -> Shape:
    """Return the shape of pieces of so many elements, which are each one piece in C order."""
    found: list[int] = []
    for n in reversed(shape):
        found.insert(0, max(1, min(n, most)))
        most //= max(n, 1)
    return tuple(found)


def _keys(shape: Shape, chunks: Shape, part: int, parts: int) -> list[tuple[slice, ...]]:
    """Return the slices of one of so many parts of all pieces."""
    along = [range(0, n, step) for n, step in zip(shape, chunks, strict=True)]
    count = math.prod(map(len, along))
    some = range(part * count // parts, (part + 1) * count // parts)
    starts = itertools.islice(itertools.product(*along), some.start, some.stop)
    return [
        tuple(slice(i, min(i + step, n)) for i, step, n in zip(first, chunks, shape, strict=True))
        for first in starts
    ]


def _most(field: Array) -> int:
    share = -(-field.size // field.comm.size)
    return max(1, min(_MOST // max(field.dtype.itemsize, 1), share))


def _each(field: Array, call: str, path: str, keys: list[Any], step: Callable[[Any], None]) -> None:
    """Take one step after another; rank 0 shows how far it is, on a terminal."""
    shows = field.comm.rank == 0 and sys.stderr is not None and sys.stderr.isatty()
    for i, key in enumerate(keys, 1):
        step(key)
        if shows:
            end = "\n" if i == len(keys) else ""
            print(
                f"\r{call} {path}: {100 * i // len(keys)} %", end=end, file=sys.stderr, flush=True
            )


def _agreed(comm: MPI.Comm, call: str, timeout: float | None, step: Callable[[], Any]) -> list[Any]:
    """Take a step on each rank; what one raises, all raise. Collective."""
    failed: list[Exception] = []
    result = None
    try:
        result = step()
    except Exception as exc:
        failed.append(exc)

    def tell() -> Any:
        for exc in failed:
            raise exc
        return result

    return exchange(comm, call, tell, timeout)


def save(field: Array, path: Any, timeout: float | None) -> None:
    """Write an array to a file. Collective, after a fence."""
    comm, call = field.comm, "Array.save"
    chunks = _chunks(field.shape, _most(field))
    part, package = "", None

    def create() -> str:
        nonlocal part, package
        package, part = _package(path), f"{os.fspath(path)}.part"
        if comm.rank == 0:
            _create(part, package, field.shape, field.dtype, chunks)
        return str(os.fspath(path))

    def write() -> None:
        alone = package is not None and package.__name__ == "h5py"
        share = (0, 1) if alone else (comm.rank, comm.size)
        if alone and comm.rank:
            return
        with _opened(part, package, True) as store:
            keys = _keys(field.shape, chunks, *share)
            _each(field, call, path, keys, lambda key: store.__setitem__(key, field[key]))

    def rename() -> None:
        if comm.rank == 0:
            if os.path.isdir(path):
                with _opened(os.fspath(path), package, False):  # an array, and nothing else
                    shutil.rmtree(path)
            os.replace(part, path)

    try:
        common(_agreed(comm, call, timeout, create), ValueError, f"{call}: the paths differ")
        _agreed(comm, call, timeout, write)
        _agreed(comm, call, timeout, rename)
    except Exception:
        if comm.rank == 0:
            with suppress(OSError):
                shutil.rmtree(part) if os.path.isdir(part) else os.unlink(part)
        raise


def header(comm: MPI.Comm, path: Any, timeout: float | None) -> tuple[Shape, np.dtype[Any]]:
    """Return shape and dtype of what a file holds. Collective; rank 0 looks."""

    def look() -> Any:
        package = _package(path)
        if comm.rank:
            return path, None
        with _opened(os.fspath(path), package, False) as store:
            return path, (tuple(map(int, store.shape)), np.dtype(store.dtype))

    told = _agreed(comm, "Array.load", timeout, look)
    common([str(it) for it, _ in told], ValueError, "Array.load: the paths differ")
    found: tuple[Shape, np.dtype[Any]] = told[0][1]
    return found


def load(field: Array, path: Any, timeout: float | None) -> None:
    """Fill an array with what a file holds. Collective."""
    comm, call = field.comm, "Array.load"

    def read() -> None:
        with _opened(os.fspath(path), _package(path), False) as store:
            if (tuple(store.shape), store.dtype) != (field.shape, field.dtype):
                raise ValueError(f"{path}: has changed while it was read")
            order = -1 if isinstance(store, np.ndarray) and not store.flags.c_contiguous else 1
            chunks = _chunks(field.shape[::order], _most(field))[::order]
            keys = _keys(field.shape, chunks, comm.rank, comm.size)
            _each(field, call, path, keys, lambda key: field.__setitem__(key, store[key]))
        field.flush()

    _agreed(comm, call, timeout, read)
