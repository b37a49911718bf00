# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py's buffer and target specifications, as mpi4py itself reads them."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from rmaext.compat.buffers import Part, part_of, target_of

NUMBERS = np.arange(12, dtype=np.int32)
MATRIX = np.arange(12.0).reshape(3, 4)


def address(it: Any) -> int:
    return int(it.__array_interface__["data"][0])


class Dlpack:
    """A buffer that is known by DLPack only."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers = numbers

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numbers.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.numbers.__dlpack__(**keywords)


@pytest.mark.parametrize(
    ("given", "count", "shift", "datatype"),
    [
        (NUMBERS, 12, 0, MPI.INT),
        ([NUMBERS, MPI.INT], 12, 0, MPI.INT),
        ((NUMBERS, MPI.INT), 12, 0, MPI.INT),
        ([NUMBERS, "i"], 12, 0, MPI.INT),
        ([NUMBERS, "u1"], 48, 0, MPI.UINT8_T),
        ([NUMBERS, 5], 5, 0, MPI.INT),
        ([NUMBERS, np.int64(5)], 5, 0, MPI.INT),
        ([NUMBERS, (5, 3)], 5, 12, MPI.INT),
        ([NUMBERS, (None, 3)], 9, 12, MPI.INT),
        ([NUMBERS, None, 3, MPI.INT], 9, 12, MPI.INT),
        ([NUMBERS, 2, 3, MPI.SHORT], 2, 6, MPI.SHORT),
        ([NUMBERS, (2, 3), MPI.SHORT], 2, 6, MPI.SHORT),
        ([NUMBERS, 0, MPI.INT], 0, 0, MPI.INT),
        ([NUMBERS, MPI.TWOINT], 6, 0, MPI.TWOINT),
        (NUMBERS[2:4], 2, 8, MPI.INT),
        (Dlpack(NUMBERS), 12, 0, MPI.INT),
        ([Dlpack(NUMBERS), (2, 1), MPI.LONG], 2, 8, MPI.LONG),
        (memoryview(NUMBERS), 12, 0, MPI.INT),
        (memoryview(NUMBERS).cast("B"), 48, 0, MPI.BYTE),
    ],
)
def test_specification(given, count, shift, datatype):
    part = part_of(given)
    assert (part.count, part.datatype) == (count, datatype)
    assert part.address == address(NUMBERS) + shift
    assert part.data(part.layout()).nbytes == count * datatype.Get_size()


@pytest.mark.parametrize("code", "?bBhHiIlLqQfdgFDG")
def test_format(code):
    """The datatype that goes with a dtype, of arrays and scalars, and of array.array."""
    it = np.ones(3, code)
    want = MPI.BYTE if code == "B" else MPI._typedict[code]
    assert part_of(it).datatype == want
    assert part_of(it[0]).count == 1
    if code in array.typecodes:
        assert part_of(array.array(code, [1, 2])).datatype == want


def test_orders():
    """Fortran's order is one piece too; what is strided is none."""
    assert part_of(MATRIX.T).address == address(MATRIX)
    assert part_of(np.asfortranarray(MATRIX)).count == 12
    with pytest.raises((ValueError, BufferError)):
        part_of(MATRIX[:, 1])


def test_bytes_and_empty():
    part = part_of(b"abc")
    assert (part.count, part.datatype) == (3, MPI.BYTE)
    assert part.data(part.layout()).tobytes() == b"abc"
    for empty in (b"", bytearray(), np.empty(0), array.array("d")):
        part = part_of(empty)
        assert part.count == 0
        assert part.data(part.layout()).nbytes == 0


def test_bottom():
    """Absolute addresses; without a buffer there is no count."""
    where = MPI.Get_address(NUMBERS)
    datatype = MPI.INT.Create_hindexed([2, 1], [where + 8, where]).Commit()
    part = part_of([MPI.BOTTOM, 1, datatype])
    assert part.address == 0
    assert part.data(part.layout()).view("i4").tolist() == [2, 3, 0]
    assert part_of([MPI.BOTTOM, MPI.INT]).count == 0
    assert part_of([None, MPI.INT]).count == 0
    assert part_of([None, 0, MPI.INT]).count == 0
    datatype.Free()


def test_window_memory_is_kept():
    """The data of one piece keeps the buffer; a copy need not."""
    data = np.arange(5, dtype="u1")
    part = part_of(data)
    view = part.data(part.layout())
    del part, data
    assert view.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (None, TypeError, "expecting buffer or list/tuple"),
        (5, TypeError, "expecting buffer or list/tuple"),
        ([], ValueError, "expecting 2 to 4 items"),
        ([NUMBERS], ValueError, "expecting 2 to 4 items"),
        ([NUMBERS, 1, 2, 3, 4], ValueError, "expecting 2 to 4 items"),
        ([NUMBERS, -1], ValueError, "negative count -1"),
        ([NUMBERS, (1, -1)], ValueError, "negative displacement -1"),
        ([NUMBERS, (1, 13)], ValueError, "displacement 13 out of bounds"),
        ([NUMBERS, 13], ValueError, "too small for requested count 13"),
        ([NUMBERS, (2, 11)], ValueError, "too small for requested count 2"),
        ([NUMBERS[:3], MPI.DOUBLE], ValueError, "not a multiple of datatype extent 8"),
        ([NUMBERS, "?!"], KeyError, "cannot map"),
        ([None, 1, MPI.INT], ValueError, "buffer is None but count is 1"),
        ([NUMBERS, 1.5], TypeError, "integer"),
        (np.zeros(2, "f4,i4"), KeyError, "cannot map"),
    ],
)
def test_refused(given, error, text):
    """What mpi4py refuses, in its words."""
    with pytest.raises(error, match=text.replace("(", r"\(")):
        part_of(given)


def test_read_only():
    fixed = np.arange(3)
    fixed.flags.writeable = False
    for it in (fixed, b"abc", [b"abc", MPI.BYTE]):
        part_of(it)
        with pytest.raises((BufferError, ValueError)):
            part_of(it, readonly=False)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([NUMBERS, MPI.DATATYPE_NULL], MPI.ERR_TYPE),
        (MPI.IN_PLACE, MPI.ERR_BUFFER),
        ([MPI.IN_PLACE, 1, MPI.INT], MPI.ERR_BUFFER),
        ([MPI.BUFFER_AUTOMATIC, 1, MPI.INT], MPI.ERR_BUFFER),
    ],
)
def test_refused_by_mpi(given, code):
    with pytest.raises(MPI.Exception) as caught:
        part_of(given)
    assert caught.value.Get_error_class() == code


def test_byte_order():
    with pytest.raises((BufferError, KeyError)):
        part_of(np.zeros(3, ">i4"))


ORIGIN = Part(None, 0, 3, MPI.INT)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (None, (0, 3, MPI.INT)),
        (7, (7, 3, MPI.INT)),
        (np.int32(7), (7, 3, MPI.INT)),
        ((), (0, 3, MPI.INT)),
        ([7], (7, 3, MPI.INT)),
        ((7, 2), (7, 2, MPI.INT)),
        ([7, 2, MPI.BYTE], (7, 2, MPI.BYTE)),
        ((7, 2, "d"), (7, 2, MPI.DOUBLE)),
    ],
)
def test_target(given, want):
    target = target_of(given, ORIGIN)
    assert (target.disp, target.count, target.datatype) == want


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ((1, 2, MPI.INT, 4), ValueError),
        ("abc", ValueError),
        (1.5, ValueError),
        ((1.5,), TypeError),
        ((0, 1, "?!"), KeyError),
    ],
)
def test_target_refused(given, error):
    with pytest.raises(error):
        target_of(given, ORIGIN)


@pytest.mark.parametrize(
    ("given", "code"),
    [(-1, MPI.ERR_DISP), ((0, -1), MPI.ERR_COUNT), ((0, 1, MPI.DATATYPE_NULL), MPI.ERR_TYPE)],
)
def test_target_refused_by_mpi(given, code):
    with pytest.raises(MPI.Exception) as caught:
        target_of(given, ORIGIN)
    assert caught.value.Get_error_class() == code
