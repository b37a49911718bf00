# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in, checked arrays out: window memory, origins, results."""

from __future__ import annotations

import errno
import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from ..errors import AccessError
from ..typing import Access
from .devices import check_reachable

__all__ = [
    "access_bits",
    "address",
    "check_origin",
    "check_result",
    "origin",
    "part_of",
    "window_array",
]

Array = NDArray[Any]

_ACCESS: dict[Access, int] = {"r": lib.RMAEXT_READ, "w": lib.RMAEXT_WRITE}
_ACCESS["rw"] = _ACCESS["r"] | _ACCESS["w"]


def access_bits(access: Access | None, writeable: bool) -> int:
    """Return the rights of origins; `access=None` is taken from the array."""
    if access is None:
        access = "rw" if writeable else "r"
    if not isinstance(access, str):
        raise TypeError(f"access={access!r}: must be a string or None")
    if access not in _ACCESS:
        raise ValueError(f"access={access!r}: must be 'r', 'w', 'rw' or None")
    if "w" in access and not writeable:
        raise AccessError(errno.EACCES, f"access={access!r} over a read-only array")
    return int(_ACCESS[access])


def access_name(bits: int) -> Access:
    """Return "r", "w" or "rw"."""
    return next(name for name, value in _ACCESS.items() if value == bits & _ACCESS["rw"])


def address(array: Array) -> Any:
    """Return the array's first byte as a C pointer; the caller keeps the array."""
    try:
        return ffi.from_buffer(array)  # 0.1 us; the other way takes 1 us
    except (TypeError, ValueError, BufferError):  # datetime64 exports no buffer
        return ffi.cast("char *", array.__array_interface__["data"][0])


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse elements that are pointers into one process."""
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype}: Python objects cannot be shared with other processes")
    if dtype.itemsize == 0:
        raise TypeError(f"dtype {dtype} has elements of no size")


def window_array(array: Any) -> Array:
    """Check the array that the caller offers as window memory."""
    if not isinstance(array, np.ndarray):
        check_reachable(array)
        raise _no_array(array)
    check_dtype(array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError("a window needs a C-contiguous array")
    return array


def _no_array(array: Any) -> Exception:
    """Return the error for what is no NumPy array, but for what lies on a device."""
    if hasattr(type(array), "__dlpack_device__"):
        name = f"{type(array).__module__}.{type(array).__qualname__}"
        return TypeError(f"a window needs a NumPy array: numpy.from_dlpack(...) of the {name}")
    return TypeError(f"a window needs a NumPy array, not {type(array).__name__}")


# isinstance is faster with a tuple than with a union made on each call
_ARRAYS = (np.ndarray, np.generic)
_SCALARS = (int, float, complex)

# What Python numbers a dtype kind takes.
_NUMBERS: dict[str, Any] = {
    "b": bool,
    "i": int,
    "u": int,
    "f": (int, float),
    "c": (int, float, complex),
}


@cache
def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _scalar(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a Python number as an array of no dimensions, if it fits."""
    kind = dtype.kind
    if not isinstance(value, _NUMBERS.get(kind, ())):
        raise TypeError(f"{type(value).__name__} {value!r} is no value for dtype {dtype}")
    if kind in "iu":
        lowest, highest = _range(dtype)
        if not lowest <= value <= highest:
            raise OverflowError(f"{value} does not fit dtype {dtype}")
        return np.array(value, dtype)
    with np.errstate(over="ignore"):
        array = np.array(value, dtype)
    if kind in "fc" and not np.isfinite(array):
        parts = (value.real, value.imag)
        if all(isinstance(part, int) or math.isfinite(part) for part in parts):
            raise OverflowError(f"{value} does not fit dtype {dtype}")
    return array


def _check_numbers(values: Any) -> None:
    """Refuse lists of anything but Python's numbers and such lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            _check_numbers(value)
        elif not isinstance(value, _SCALARS) or isinstance(value, np.generic):
            raise TypeError(f"a list with a {type(value).__name__}: no origin; use numpy.array")


def _listed(values: Any, dtype: np.dtype[Any]) -> Array:
    """Return lists of Python's numbers as an array, if each fits as `_scalar` has it."""
    array = np.asarray(values)
    if array.dtype == dtype:
        return np.asarray(array, order="C")
    _check_numbers(values)
    if not array.size:  # [] has no dtype of its own
        return np.empty(array.shape, dtype)
    if array.dtype.kind == "O":  # integers that no other dtype holds
        for item in array.flat:
            _scalar(item, dtype)
        return array.astype(dtype)
    # all are of one type by now
    for one in (array.min(), array.max()) if dtype.kind in "iu" else (array.flat[0],):
        _scalar(one.item(), dtype)
    with np.errstate(over="ignore"):
        made = array.astype(dtype)
    if dtype.kind in "fc" and (np.isfinite(array) & ~np.isfinite(made)).any():
        raise OverflowError(f"not all of the list fits dtype {dtype}")
    return made


def _other_dtype(given: np.dtype[Any], dtype: np.dtype[Any]) -> TypeError:
    return TypeError(f"origin has dtype {given}, the window {dtype}; convert it with astype")


def _alike_array(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return what is no NumPy array, but could be one."""
    if isinstance(value, (list, tuple)):
        return _listed(value, dtype)
    check_reachable(value)
    array = np.asarray(value)
    if array.dtype.kind == "O" or isinstance(value, (str, bytes)):
        raise TypeError(f"{type(value).__name__} is no array and no number: no origin")
    if array.dtype != dtype:
        raise _other_dtype(array.dtype, dtype)
    return np.asarray(array, order="C")


def origin(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a contiguous array of the window's dtype: no silent casts.

    Parameters
    ----------
    value : array_like
        What is an array, or offers one (buffers, `__array__`), is of the window's dtype; a
        strided or Fortran-ordered one is packed. Python numbers, also in lists, are taken
        if they fit.
    """
    if isinstance(value, _ARRAYS):
        if value.dtype != dtype:
            raise _other_dtype(value.dtype, dtype)
        if isinstance(value, np.ndarray) and value.flags.c_contiguous:
            return value
        return np.asarray(value, order="C")
    if isinstance(value, _SCALARS):
        return _scalar(value, dtype)
    return _alike_array(value, dtype)


def check_origin(array: Any, dtype: np.dtype[Any], what: str = "array") -> Array:
    """Check an array that is used where it lies, now and later."""
    if not isinstance(array, np.ndarray):
        check_reachable(array)
        raise TypeError(f"{what} must be a NumPy array, not {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{what} has dtype {array.dtype}, the window {dtype}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} must be C-contiguous")
    return array


def check_result(out: Any, dtype: np.dtype[Any]) -> None:
    """Check the array that the caller offers for a result."""
    if not check_origin(out, dtype, "out").flags.writeable:
        raise ValueError("out is read-only")


def part_of(arguments: tuple[Any, ...], start: int, count: int, whole: int) -> list[Any]:
    """Return the arguments of a C operation for a part of its `whole` elements.

    Its pointers lead to elements, and its last argument is their number, or bytes;
    `start` is a byte.
    """
    *others, size = arguments
    part = [
        ffi.cast("char *", it) + start if isinstance(it, ffi.CData) and it else it for it in others
    ]
    return [*part, size // whole * count]


_KINDS = {
    "b1": lib.RMAEXT_BOOL,
    "i1": lib.RMAEXT_INT8,
    "u1": lib.RMAEXT_UINT8,
    "i2": lib.RMAEXT_INT16,
    "u2": lib.RMAEXT_UINT16,
    "i4": lib.RMAEXT_INT32,
    "u4": lib.RMAEXT_UINT32,
    "i8": lib.RMAEXT_INT64,
    "u8": lib.RMAEXT_UINT64,
    "f2": lib.RMAEXT_HALF,
    "f4": lib.RMAEXT_FLOAT,
    "f8": lib.RMAEXT_DOUBLE,
    "c8": lib.RMAEXT_FLOAT_COMPLEX,
    "c16": lib.RMAEXT_DOUBLE_COMPLEX,
    np.dtype(np.longdouble).str[1:]: lib.RMAEXT_LONG_DOUBLE,
    np.dtype(np.clongdouble).str[1:]: lib.RMAEXT_LONG_DOUBLE_COMPLEX,
}


_PAIRS = {  # a value and its index, laid out as C structs are
    np.dtype(f"{value},{index}", align=True): int(number)
    for value, index, number in (
        ("f4", "i4", lib.RMAEXT_FLOAT_INT32),
        ("f8", "i4", lib.RMAEXT_DOUBLE_INT32),
        ("i2", "i4", lib.RMAEXT_INT16_INT32),
        ("i4", "i4", lib.RMAEXT_INT32_INT32),
        ("i8", "i4", lib.RMAEXT_INT64_INT32),
        ("f8", "i8", lib.RMAEXT_DOUBLE_INT64),
        ("i8", "i8", lib.RMAEXT_INT64_INT64),
        ("g", "i4", lib.RMAEXT_LONG_DOUBLE_INT32),
    )
}


def atomic_dtypes() -> list[np.dtype[Any]]:
    """Return all that have atomic updates."""
    return [*map(np.dtype, _KINDS), *_PAIRS]


def atomic_type(dtype: np.dtype[Any]) -> int | None:
    """Return the C side's number of a dtype; None where no atomic can be."""
    if not dtype.isnative:
        return None
    if dtype.names is not None:
        return next((number for pair, number in _PAIRS.items() if _alike(dtype, pair)), None)
    return int(_KINDS[dtype.str[1:]]) if dtype.str[1:] in _KINDS else None


def _alike(dtype: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Tell whether two structured dtypes differ in names only."""
    return dtype.itemsize == other.itemsize and _fields(dtype) == _fields(other)


def _fields(dtype: np.dtype[Any]) -> list[tuple[np.dtype[Any], int]]:
    fields = dtype.fields
    return [] if fields is None else [fields[name][:2] for name in dtype.names or ()]
