# SPDX-License-Identifier: BSD-3-Clause
"""What containers know of devices: memory there, and arrays that are given or handed out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import Window
from .._memory.devices import Landing, landed, of_cuda
from .._memory.values import made_of

__all__ = [
    "Landing",
    "OnDevice",
    "checked",
    "copied",
    "device_of",
    "fill",
    "landed",
    "made_of",
    "neighbours",
    "of_cuda",
    "parts",
    "settled",
    "shaped",
    "split",
]


def checked(device: str) -> None:
    """Raise what `Window.allocate` does for a device. Local."""
    from .._memory import device_memory  # late: most programs have none

    device_memory.opened(device)


def copied(values: NDArray[Any], device: str, limit: float) -> Any:
    """Return an array of new memory of a device, with these values. Local, blocking."""
    from .._memory import device_memory

    return device_memory.copied(values, device, limit)


def settled(memory: Any, limit: float | None) -> Any:
    """Return where memory of a window lies on a device.

    All is done that is queued on the array's stream and on the default stream. Blocking; `limit`
    is the time limit of the container, or None, here and below.
    """
    from .._memory import cuda, device_memory

    place = device_memory.located(memory, limit)
    if place.nbytes:
        cuda.wait(place, limit)
    return place


def device_of(memory: Any, limit: float | None) -> bytes:
    """Return the name of the device that has it, alike in all processes; b"": none can map it."""
    from .._memory import cuda, device_memory

    return device_memory.device_name(cuda.device_array(memory, limit))


def neighbours(rank: int, nbytes: int, device: str, window: Window[Any]) -> Any:
    """Return the place of another rank's memory that a window has mapped, of one byte or more."""
    from .._memory import device_memory

    return device_memory.neighbours(rank, nbytes, device, window)


def shaped(place: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return an array for the program over the bytes of a place on a device."""
    from .._memory import device_memory

    return device_memory.over(place.view(dtype).reshape(shape))


def split(array: Any, ends: list[int], limit: float | None) -> list[Any]:
    """Return the parts of an array up to these rows, each of one dimension, to be filled."""
    if of_cuda(array) is None:
        return [part.reshape(-1) for part in np.split(array, ends)]
    from .._memory import device_memory

    place = device_memory.located(array, limit)
    flat = (part.reshape(-1) for part in np.split(place, ends))
    return [device_memory.DeviceMemory(part, place.number) for part in flat]


def fill(
    memory: Any,
    dtype: np.dtype[Any],
    write: Callable[[NDArray[Any]], None],
    limit: float | None,
) -> None:
    """Have elements written to the bytes of a window: where they lie, or copied to the device."""
    cuda = of_cuda(memory)
    if cuda is None:
        write(memory.view(dtype))
    elif math.prod(memory.shape):
        made = np.empty(memory.shape, np.uint8)
        write(made.view(dtype))
        cuda.fill(memory, made, limit)


def parts(
    memory: Any, dtype: np.dtype[Any], cut: Callable[[NDArray[Any]], Any], limit: float | None
) -> Any:
    """Return what `cut` makes of the bytes of a window, as elements that may not be written.

    On a device they are arrays for the program, which it can write to.
    """
    if of_cuda(memory) is None:
        array = memory.view(dtype)
        array.flags.writeable = False
        return cut(array)
    from .._memory.device_memory import located, over

    found: Any = cut(located(memory, limit).view(dtype))
    return list(map(over, found)) if isinstance(found, list) else over(found)


class OnDevice:
    """Parts of the own memory of a window: `memory[key]` is one, `part[...] = values` fills it."""

    def __init__(self, win: Window[Any]) -> None:
        self._win, self.dtype = win, win.dtype

    def __getitem__(self, key: Any) -> _Part:
        return _Part(self._win, key)


class _Part:
    def __init__(self, win: Window[Any], key: Any) -> None:
        self._win, self._rank = win, win.comm.rank
        self._key = (self._rank, *key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._win[self._key], dtype)  # always a copy

    def __setitem__(self, _: Any, values: Any) -> None:
        self._win[self._key] = np.asarray(values)
        self._win.flush(self._rank)
