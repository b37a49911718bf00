# SPDX-License-Identifier: BSD-3-Clause
"""As much of CuPy as examples/gpu_*.py have use for, over the tests' libcuda.

What is computed is done when a call returns: there is one stream, which is waited for.
"""

from __future__ import annotations

import operator
from types import SimpleNamespace

import numpy as np
from device import device_array as driver


class ndarray:
    """Elements on a device; `place` has their geometry, and may not be looked into."""

    def __init__(self, place, owner):
        self.place, self.owner = place, owner
        self.shape, self.dtype, self.ndim = place.shape, place.dtype, place.ndim

    @property
    def __cuda_array_interface__(self):
        return {**self.place.__array_interface__, "stream": 1}

    def _seen(self):
        """Return the elements as NumPy finds them in the driver's own mapping."""
        driver.call("cuStreamSynchronize", 1)
        facts = self.place.__array_interface__
        at = driver.cuda.device_view(driver.ctypes.c_uint64(facts["data"][0]))
        held = SimpleNamespace(__array_interface__={**facts, "data": (at, False)})
        return np.asarray(held)

    def reshape(self, *shape):
        return ndarray(self.place.reshape(*shape), self.owner)

    def __getitem__(self, key):
        items = key if isinstance(key, tuple) else (key,)
        return ndarray(self.place[(*items, ...)], self.owner)

    def __setitem__(self, key, values):
        self._seen()[key] = values._seen() if isinstance(values, ndarray) else values

    def _with(self, other, do):
        return asarray(do(self._seen(), other._seen() if isinstance(other, ndarray) else other))

    def __add__(self, other):
        return self._with(other, operator.add)

    def __sub__(self, other):
        return self._with(other, operator.sub)

    def __mul__(self, other):
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    def __matmul__(self, other):
        return self._with(other, operator.matmul)

    def sum(self, axis):
        return asarray(self._seen().sum(axis=axis))

    @property
    def T(self):
        return ndarray(self.place.T, self.owner)


def asarray(it):
    """Return an array over what lies on a device, or a copy there of NumPy's."""
    if isinstance(it, np.ndarray):
        it = driver.Array.from_numpy(it)
    facts = {**it.__cuda_array_interface__, "version": 3}
    facts.pop("stream")
    return ndarray(np.asarray(SimpleNamespace(__array_interface__=facts)), it)


def asnumpy(it):
    return it._seen().copy()


def zeros(shape):
    driver.begin()
    return asarray(np.zeros(shape))


def _wait():
    driver.call("cuStreamSynchronize", 1)


cuda = SimpleNamespace(
    runtime=SimpleNamespace(getDevice=lambda: driver.get(driver.ctypes.c_int, "cuCtxGetDevice")),
    get_current_stream=lambda: SimpleNamespace(synchronize=_wait),
)
