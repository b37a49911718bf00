# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in, checked arrays out: window memory, origins, results."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._runtime.reports import dtype_name
from ..errors import AccessError
from ..typing import Access
from .devices import check_reachable, of_cuda
from .values import made_of

__all__ = [
    "access_bits",
    "address",
    "check_origin",
    "check_result",
    "only_itself",
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


def only_itself(given: Any, array: Array, name: str) -> None:
    """Let an attribute's `+=` come to its end, which assigns the array; refuse all else."""
    if given is array:
        return  # of a device, too
    if getattr(given, "__array_interface__", None) != getattr(array, "__array_interface__", ""):
        text = (
            f"{name} is the window's memory, and stays so: to fill it, `win.{name}[...] = values`"
        )
        raise AttributeError(text)


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
        raise TypeError(
            f"dtype {dtype_name(dtype)}: Python objects cannot be shared with other processes"
        )
    if dtype.itemsize == 0:
        raise TypeError(f"dtype {dtype_name(dtype)} has elements of no size")


def window_array(given: Any) -> Array:
    """Check the array that the caller offers as window memory; say where it lies on a device."""
    array: Array = given
    if not isinstance(given, np.ndarray):
        cuda = of_cuda(given)
        if cuda is None:
            raise _no_array(given)
        array = cuda.device_array(given)
    check_dtype(array.dtype)
    _check_mask(array)
    if not array.flags.c_contiguous:
        raise ValueError("a window needs a C-contiguous array: np.ascontiguousarray(...) of it")
    return array


def _check_mask(array: Array) -> None:
    """Refuse a masked array that is to be used where it lies, as `elements` refuses its values."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array, whose mask nobody would see: use its data, or filled()")


def _no_array(array: Any) -> Exception:
    """Return the error for what is no NumPy array, but for what lies on a device."""
    if hasattr(type(array), "__dlpack_device__"):
        name = f"{type(array).__module__}.{type(array).__qualname__}"
        return TypeError(f"a window needs a NumPy array: numpy.from_dlpack(...) of the {name}")
    return TypeError(f"a window needs a NumPy array, not {type(array).__name__}")


def origin(value: Any, dtype: np.dtype[Any], limit: float | None = None) -> Array:
    """Return a value as elements of the window's dtype, in one piece; see `values.elements`.

    What lies on a device is copied within the window's time limit.
    """
    return np.asarray(made_of(value, dtype, limit=limit), order="C")


def check_origin(array: Any, dtype: np.dtype[Any], what: str = "array") -> Array:
    """Check an array that is used where it lies, now and later."""
    if not isinstance(array, np.ndarray):
        check_reachable(array)
        raise TypeError(f"{what} must be a NumPy array, not {type(array).__name__}")
    if array.dtype != dtype:
        names = dtype_name(array.dtype), dtype_name(dtype)
        raise TypeError("{} has dtype {}, the window {}".format(what, *names))
    _check_mask(array)
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} must be C-contiguous: np.ascontiguousarray(...) is")
    return array


def check_result(out: Any, dtype: np.dtype[Any]) -> None:
    """Check the array that the caller offers for a result."""
    if not check_origin(out, dtype, "out").flags.writeable:
        raise ValueError("out is read-only")


_CALL = ffi.typeof("struct rmaext_call *")
_PART = ffi.typeof("struct rmaext_part *")
_LONGS = ffi.typeof("int64_t[]")


def call_of(
    kind: int,
    count: int,
    operand: NDArray[Any] | None = None,
    compare: NDArray[Any] | None = None,
    result: NDArray[Any] | None = None,
    op: int = 0,
    number: int = 0,
) -> Any:
    """Return a `struct rmaext_call`, without a place.

    `count` is bytes of a put or get, elements of C's type `number` of an update.
    """
    what = ffi.new(_CALL)
    what.kind, what.op, what.type, what.count = kind, op, number, count
    if operand is not None:
        what.operand = address(operand)
    if compare is not None:
        what.compare = address(compare)
    if result is not None:
        what.result = address(result)
    return what


def move_call(kind: int, array: NDArray[Any]) -> Any:
    """Return that of a put or get of an array."""
    if kind == lib.RMAEXT_PUT:
        return call_of(kind, array.nbytes, operand=array)
    return call_of(kind, array.nbytes, result=array)


def part_call(
    kind: int, unit: int, shape: Any, steps: Any, own: Any, data: Any
) -> tuple[Any, Any, Any]:
    """Return that of a put or get of a part of an array, and what it needs to stay valid.

    `own` are the steps in own memory; empty: it is in one piece.
    """
    what, part, n = ffi.new(_CALL), ffi.new(_PART), len(shape)
    numbers = ffi.new(_LONGS, [*shape, *steps, *own])
    part.unit, part.ndim, part.shape, part.steps = unit, n, numbers, numbers + n
    if own:
        part.locals = numbers + 2 * n
    what.kind, what.part = kind, part
    if kind == lib.RMAEXT_PUT:
        what.operand = data
    else:
        what.result = data
    return what, part, numbers


def part_of(what: Any, start: int, count: int, whole: int) -> Any:
    """Return what is to be done to `count` of the `whole` elements, from a byte on."""
    some = ffi.new(_CALL, what[0])
    for name in ("operand", "compare", "result"):
        if data := getattr(what, name):
            setattr(some, name, ffi.cast("char *", data) + start)
    some.count = what.count // whole * count
    return some


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
        ("f4", "i8", lib.RMAEXT_FLOAT_INT64),
        ("i4", "i8", lib.RMAEXT_INT32_INT64),
        ("u8", "i8", lib.RMAEXT_UINT64_INT64),
    )
}


def no_update(op: str, dtype: np.dtype[Any]) -> str:
    """Return the words for an operation that elements of a dtype do not have."""
    if op not in ("minloc", "maxloc"):
        return f"no {op} on dtype {dtype_name(dtype)}"
    names = ", ".join(
        ",".join(dtype[name].str[1:] for name in dtype.names or ()) for dtype in _PAIRS
    )
    text = f"no {op} on dtype {dtype_name(dtype)}: it is for pairs"
    return f"{text}, numpy.dtype('f8,i8', align=True) or {names}"


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
