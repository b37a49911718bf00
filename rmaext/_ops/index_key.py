# SPDX-License-Identifier: BSD-3-Clause
"""What an index of NumPy's means: which bytes of an array of some shape."""

from __future__ import annotations

import errno
import math
import operator
from typing import Any

import numpy as np

from ..errors import BoundsError
from .core import Array, Shape
from .many import indices

__all__ = ["Parser", "Part"]


class Part:
    """The part of an array that a key means, in bytes.

    Attributes
    ----------
    first : int
        Where the slices begin.
    shape, steps : list of int
        Of the dimensions that slices and None make.
    indices : list of numpy.ndarray
        Index arrays, int64 and not negative; none for a view of NumPy's.
    grains : list of int
        What they count.
    picked : tuple of int
        The shape that they broadcast to.
    at : int
        How many dimensions of `shape` come before theirs.
    scalar : bool
        NumPy returns an element, not an array.
    """

    def __init__(self) -> None:
        self.first, self.at, self.scalar = 0, -1, False
        self.shape: list[int] = []
        self.steps: list[int] = []
        self.indices: list[Array] = []
        self.grains: list[int] = []
        self.picked: Shape = ()

    @property
    def result(self) -> Shape:
        """The shape of what NumPy returns."""
        if not self.indices:
            return tuple(self.shape)
        return (*self.shape[: self.at], *self.picked, *self.shape[self.at :])

    def offsets(self, unit: int) -> Array:
        """Return where each element is: int64, in the shape of NumPy's result."""
        scaled = [
            index if grain == unit else index * (grain // unit)
            for index, grain in zip(self.indices, self.grains, strict=True)
        ]
        total = sum(scaled[1:], scaled[0]) if scaled else np.zeros((), np.int64)
        if self.first:
            total = total + self.first // unit
        ndim, dims, at = len(self.picked), len(self.shape), max(self.at, 0)
        total = total.reshape(self.picked + (1,) * (dims - at))
        for k, (count, step) in enumerate(zip(self.shape, self.steps, strict=True)):
            ramp = np.arange(count, dtype=np.int64) * (step // unit)
            inner = dims - 1 - k + (ndim if k < at else 0)
            total = total + ramp.reshape((count,) + (1,) * inner)
        return np.asarray(total, order="C")

    def take_runs(self, unit: int) -> int:
        """Join the last dimensions to longer elements where these lie in one piece.

        Returns the bytes of an element, which divide all places.
        """
        run = unit
        while len(self.shape) > max(self.at, 0) and (
            self.shape[-1] == 1 or (self.shape[-1] and self.steps[-1] == run)
        ):
            run *= self.shape.pop()
            self.steps.pop()
        element = math.gcd(run, self.first, *self.grains, *self.steps)
        if element < run:
            self.shape.append(run // element)
            self.steps.append(element)
        return element


def _item(given: Any) -> Any:
    """Return a part of a key as None, Ellipsis, a slice, an int or an array."""
    if given is None or given is Ellipsis or isinstance(given, slice):
        return given
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return int(given)
    array = np.asarray(given)
    if array.dtype.kind == "b":
        return array
    if not array.size and not isinstance(given, np.ndarray | np.generic):
        return array.astype(np.int64)  # [] has no dtype of its own
    if array.dtype.kind in "iu":
        return array if array.ndim else int(array)
    try:
        return operator.index(given)
    except TypeError:
        text = "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean arrays"
        raise IndexError(f"{text} are indices, not {given!r}") from None


class Parser:
    """Understands keys as numpy.ndarray.__getitem__ does."""

    def __init__(self, shape: Shape, steps: list[int], where: str) -> None:
        self.shape = shape
        self.where = where
        self.steps = steps
        self.axis = 0
        self.part = Part()
        self.wrong: BoundsError | None = None

    def error(self, text: str) -> BoundsError:
        return BoundsError(errno.ERANGE, f"{self.where}: {text}")

    def parse(self, key: tuple[Any, ...]) -> Part:
        """Return what a key means."""
        items = [_item(given) for given in key]
        arrays = [it for it in items if isinstance(it, np.ndarray)]
        dots = sum(it is Ellipsis for it in items)
        used = sum(it is not None and it is not Ellipsis for it in items)
        used += sum(array.ndim - 1 for array in arrays if array.dtype.kind == "b")
        if dots > 1:
            raise IndexError("an index can only have a single ellipsis ('...')")
        whole = len(self.shape) - used
        if whole < 0:
            raise self.error(f"too many indices: {len(self.shape)} dimensions, {used} indices")
        self.part.scalar = not dots
        if not dots:
            items.append(Ellipsis)
        apart = False  # whether a slice or None stands between two index arrays
        for it in items:
            if isinstance(it, np.ndarray) or (arrays and isinstance(it, int)):
                if self.part.at < 0:
                    self.part.at = len(self.part.shape)
                elif apart:
                    self.part.at = 0
                self.pick(it)
                continue
            apart = apart or self.part.at >= 0
            if it is None:
                self.add(1, 0)
            elif it is Ellipsis:
                for k in range(self.axis, self.axis + whole):
                    self.add(self.shape[k], self.steps[k])
                self.axis += whole
            else:
                self.slice_or_integer(it)
        self.part.scalar = self.part.scalar and not self.part.shape and not arrays
        self.broadcast()
        return self.part

    def add(self, count: int, step: int) -> None:
        self.part.shape.append(count)
        self.part.steps.append(step)

    def slice_or_integer(self, it: slice | int) -> None:
        count, step = self.shape[self.axis], self.steps[self.axis]
        if isinstance(it, slice):
            places = range(count)[it]
            self.part.first += places.start * step if places else 0
            self.add(len(places), places.step * step if len(places) > 1 else 0)
        else:
            if not -count <= it < count:
                raise self.outside(it)
            self.part.first += (it + count if it < 0 else it) * step
        self.axis += 1

    def outside(self, index: int) -> BoundsError:
        text = f"index {index} is out of bounds for axis {self.axis}"
        return self.error(f"{text} with size {self.shape[self.axis]}")

    def pick(self, it: Array | int) -> None:
        """Take an index array, a mask, or an integer beside them."""
        if isinstance(it, int):
            it = np.array(it)
            if not -self.shape[self.axis] <= it < self.shape[self.axis]:
                raise self.outside(int(it))
        if it.dtype.kind != "b":
            self.choose(it)
        elif not it.ndim:  # a scalar True or False takes no dimension, and adds one
            self.part.indices.append(np.zeros(int(it), np.int64))
            self.part.grains.append(0)
        else:
            for k, count in enumerate(it.shape):
                if count != self.shape[self.axis + k]:
                    text = f"the mask has {count} elements along axis {self.axis + k}, the array"
                    raise self.error(f"{text} {self.shape[self.axis + k]}")
            for index in it.nonzero():
                self.choose(index)

    def choose(self, index: Array) -> None:
        count, step = self.shape[self.axis], self.steps[self.axis]
        if index.dtype != np.int64:
            index = indices("index", index)
        # seen as unsigned, a negative index is larger than any count
        if index.size and index.view(np.uint64).max() >= count:
            low, high = int(index.min()), int(index.max())
            if low < -count or high >= count:
                self.wrong = self.wrong or self.outside(low if low < -count else high)
            index = np.where(index < 0, index + count, index)
        self.part.indices.append(index)
        self.part.grains.append(step)
        self.axis += 1

    def broadcast(self) -> None:
        part = self.part
        if len(part.indices) == 1:
            part.picked = part.indices[0].shape
        elif part.indices:
            shapes = [index.shape for index in part.indices]
            try:
                part.picked = np.broadcast_shapes(*shapes)
            except ValueError:
                text = " ".join(map(str, shapes))
                raise IndexError(f"index arrays could not be broadcast together: {text}") from None
        # As in NumPy, an index array out of bounds is no error if the result is empty.
        if self.wrong and 0 not in part.picked:
            raise self.wrong
