# SPDX-License-Identifier: BSD-3-Clause
"""Arrays on devices that are not reached are refused before anybody looks behind addresses."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext.compat import Win

pytestmark = pytest.mark.pair

ONE = np.ones(1, "i8")
NOWHERE = 0x10000  # reading there ends the process
INTERFACE = {"shape": (1,), "typestr": "<i8", "data": (NOWHERE, False), "version": 3}


class Property:
    """As arrays of CuPy and Numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return INTERFACE


class Attribute:
    """As objects that others wrap around them."""

    def __init__(self) -> None:
        self.__cuda_array_interface__ = INTERFACE


class Proxy:
    """As objects that hand everything on."""

    def __getattr__(self, name: str) -> Any:
        if name != "__cuda_array_interface__":
            raise AttributeError(name)
        return INTERFACE


class Tensor:
    """As arrays of other libraries; of PyTorch with both."""

    __cuda_array_interface__ = INTERFACE

    def __init__(self, device: int) -> None:
        self._device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("nobody shall ask for it")


ARRAYS = [Property(), Attribute(), Proxy(), Tensor(2), Tensor(10), Tensor(14), Tensor(99)]
IDS = ["property", "attribute", "proxy", "cuda", "rocr", "ze", "other"]
WORDS = "memory of a device .*copy it to the host"
NO_DRIVER = "driver library does not open.*RMAEXT_CUDA"
CUDA = ARRAYS[:4]
KEPT = ("register", "prepare_put")  # used where they lie: of the host only

DROPIN = {
    "Put": lambda w, it: w.Put(it, 0),
    "Put, specified": lambda w, it: w.Put([it, 1, MPI.INT64_T], 0),
    "Get": lambda w, it: w.Get(it, 0),
    "Rput": lambda w, it: w.Rput(it, 0),
    "Rget": lambda w, it: w.Rget([it, MPI.INT64_T], 0),
    "Accumulate": lambda w, it: w.Accumulate(it, 0),
    "Raccumulate": lambda w, it: w.Raccumulate(it, 0),
    "Get_accumulate": lambda w, it: w.Get_accumulate(ONE, it, 0),
    "Rget_accumulate": lambda w, it: w.Rget_accumulate(it, ONE, 0),
    "Fetch_and_op": lambda w, it: w.Fetch_and_op(it, ONE.copy(), 0),
    "Fetch_and_op, result": lambda w, it: w.Fetch_and_op(ONE, it, 0),
    "Compare_and_swap": lambda w, it: w.Compare_and_swap(ONE, it, ONE.copy(), 0),
}
NATIVE = {
    "put": lambda w, it: w.put(it, 0),
    "get": lambda w, it: w.get(0, out=it),
    "rput": lambda w, it: w.rput(it, 0),
    "rget": lambda w, it: w.rget(0, out=it),
    "accumulate": lambda w, it: w.accumulate(it, 0),
    "fetch_add": lambda w, it: w.fetch_add(it, 0),
    "compare_and_swap": lambda w, it: w.compare_and_swap(it, 1, 0),
    "put_many": lambda w, it: w.put_many([0], [0], it),
    "put_notify": lambda w, it: w.put_notify(it, 0),
    "index": lambda w, it: w.__setitem__((0, slice(None)), it),
    "at": lambda w, it: w.at(0).add([0], it),
    "prepare_put": lambda w, it: w.prepare_put(it, 0),
    "register": lambda w, it: w.register(it),
    "Window": lambda w, it: rmaext.Window(MPI.COMM_SELF, it),
}


@pytest.mark.mpi
@pytest.mark.parametrize("array", ARRAYS, ids=IDS)
def test_dropin(array, monkeypatch):
    monkeypatch.setenv("RMAEXT_CUDA", "/no/libcuda.so")
    words = NO_DRIVER if array in CUDA else WORDS
    w = Win.Allocate(64, 8)
    dynamic = Win.Create_dynamic()
    w.Lock(0)
    for name, call in DROPIN.items():
        with pytest.raises(MPI.Exception, match=words) as caught:
            call(w, array)
        assert caught.value.Get_error_class() == MPI.ERR_BUFFER, name
    w.Put(ONE, 0)
    w.Unlock(0)
    for call in dynamic.Attach, dynamic.Detach:
        with pytest.raises(MPI.Exception, match=WORDS):
            call(array)
    with pytest.raises(MPI.Exception, match=words):
        Win.Create(array)
    assert np.frombuffer(w, "i8")[0] == 1
    dynamic.Free()
    w.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("array", ARRAYS, ids=IDS)
@pytest.mark.parametrize("name", NATIVE)
def test_native(name, array, monkeypatch):
    monkeypatch.setenv("RMAEXT_CUDA", "/no/libcuda.so")
    error, words = rmaext.Unsupported, WORDS
    if array in CUDA and name not in KEPT:
        error, words = rmaext.LibraryError, NO_DRIVER
    with rmaext.Window(MPI.COMM_SELF, np.zeros(1, "i8")) as win:
        with pytest.raises(error, match=words):
            NATIVE[name](win, array)
        win.put(ONE, 0)
        assert win.get(0) == ONE


def test_arrays_of_the_host():
    """What DLPack says is the host's is taken as before, whatever else it has."""

    class Host(np.ndarray):
        __cuda_array_interface__ = INTERFACE

    w = Win.Allocate(64, 8)
    w.Lock(0)
    w.Put(ONE.view(Host), 0)
    w.Unlock(0)
    assert np.frombuffer(w, "i8")[0] == 1
    w.Free()


class Managed:
    """As CUDA's managed memory: of a device, and mapped here."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__array_interface__


@pytest.mark.mpi
def test_managed_memory():
    """Programs with such arrays run unchanged, as with MPI's windows."""
    w, got = Win.Allocate(16, 8), Managed(np.zeros(2, "i8"))
    w.Lock(0)
    w.Put(Managed(np.array([3, 4], "i8")), 0)
    w.Accumulate([Managed(ONE), MPI.INT64_T], 0)
    w.Get(got, 0)
    w.Unlock(0)
    w.Free()
    assert got._array.tolist() == [4, 4]


@pytest.mark.mpi
def test_partly_mapped_memory(monkeypatch):
    """What goes on behind the last readable page is not the host's."""
    monkeypatch.setenv("RMAEXT_CUDA", "/no/libcuda.so")
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = np.frombuffer(pages, "u1").ctypes.data
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    it = Managed(ONE)
    w = Win.Allocate(16, 8)
    w.Lock(0)
    for shift in -1, 0:
        it.__cuda_array_interface__ |= {"data": (start + mmap.PAGESIZE + shift * 8 + 1, False)}
        with pytest.raises(MPI.Exception, match=NO_DRIVER):
            w.Put(it, 0)
    w.Unlock(0)
    w.Free()
