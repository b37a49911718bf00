# SPDX-License-Identifier: BSD-3-Clause
"""What a value may become: the one rule by which all calls make elements of what they are given.

A scalar is taken if the element that is made of it equals it; only Python's floats and complex
numbers, which have no precision of their own to lose, are rounded as NumPy rounds them. Numbers
become elements of a wider kind, never of a narrower one. An array has its elements' dtype already:
it is taken as it is, or not at all. The table of it is docs/reference/values.md.
"""

from __future__ import annotations

import datetime
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .._runtime.reports import dtype_name
from .devices import of_cuda

__all__ = ["elements"]

Array = NDArray[Any]

_ARRAYS = (np.ndarray, np.generic)
_SCALARS = (int, float, complex)
_SEQUENCES = (list, tuple, range)
_TEXTS = (str, bytes)
_DATES = (datetime.date, datetime.datetime)

# Kinds of numbers, each of which is taken by itself and those behind it.
_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
_NUMBERS = {bool: 0, int: 1, float: 2, complex: 3}
_ERRORS = (OverflowError, TypeError, ValueError)
_MOST_NESTED = 64  # as NumPy has it


def elements(
    value: ArrayLike, dtype: DTypeLike, *, exact: bool = False, convert: bool = False
) -> Array:
    """Return what a call makes of a value: the elements that it would send.

    Parameters
    ----------
    value : array_like
        A scalar, a tuple for a record, an array, or lists of these.
    dtype : data-type
        Of the elements, as of a window.
    exact : bool, optional
        As for the keys of a `rmaext.containers.Dict`: Python's floats are not rounded either,
        and a bool is no number.
    convert : bool, optional
        Also take an array of another dtype if each of its elements would be taken as a scalar.

    Returns
    -------
    numpy.ndarray
        Of the dtype. The value itself, if it is such an array.

    Raises
    ------
    TypeError
        It is of another kind, has a mask, or is an array of another dtype.
    OverflowError
        A number is outside the range of the dtype.
    ValueError
        It would be cut or rounded, or has another shape.
    Unsupported
        It lies in the memory of a device that is not CUDA's.
    LibraryError, RmaError
        It lies in CUDA's, which fails: see `Window`.

    Notes
    -----
    Local. All calls of windows and containers that take values follow this rule.

    Examples
    --------
    >>> rmaext.elements((1, 0.5), "i4,f4")
    array((1, 0.5), dtype=[('f0', '<i4'), ('f1', '<f4')])
    >>> rmaext.elements(np.timedelta64(2, "m"), "m8[s]")
    array(120, dtype='timedelta64[s]')
    >>> rmaext.elements("abcd", "U3")
    Traceback (most recent call last):
        ...
    ValueError: 'abcd' has a length of 4: dtype U3 takes 3
    """
    return made_of(value, np.dtype(dtype), exact, convert)


def made_of(
    value: Any,
    dtype: np.dtype[Any],
    exact: bool = False,
    convert: bool = False,
    depth: int = 0,
    limit: float | None = None,
) -> Array:
    """Do what `elements` does; `limit`: seconds, for what lies on a device."""
    if isinstance(value, _ARRAYS):
        return _of_array(value, dtype, exact, convert)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        made = made_of(value, base, exact, convert, depth, limit)
        if made.shape != shape:
            raise ValueError(f"{value!r:.60} has shape {made.shape}, not {shape}")
        return made
    if isinstance(value, tuple) and dtype.names is not None:
        return _record(value, dtype, exact, depth, limit)
    if isinstance(value, _SEQUENCES):
        return _listed(value, dtype, exact, convert, depth, limit)
    if isinstance(value, _SCALARS):
        return _number(value, dtype, exact)
    if isinstance(value, _TEXTS):
        if isinstance(value, bytes) and dtype.kind in "iu" and dtype.itemsize == 1 and not exact:
            return np.frombuffer(value, dtype)  # a buffer of these
        return _text(value, dtype)
    if isinstance(value, (datetime.date, datetime.timedelta)):
        return _date(value, dtype)
    cuda = of_cuda(value)
    if cuda is not None:
        return _of_array(cuda.fetch(value, limit), dtype, exact, convert)
    array = np.asarray(value)
    if array.dtype.kind == "O":
        if not hasattr(type(value), "__dlpack__"):
            raise _no_value(value, dtype)
        array = np.from_dlpack(value)
    return _of_array(array, dtype, exact, convert)


# -- words ---------------------------------------------------------------------------


def _no_value(value: Any, dtype: np.dtype[Any]) -> TypeError:
    text = f"{type(value).__name__} {value!r:.60} is no value of dtype {dtype_name(dtype)}"
    if dtype.names is not None:
        text += f": give a tuple of {len(dtype.names)}"
    elif isinstance(value, _TEXTS):
        text += _text_hint("U" if isinstance(value, str) else "S", dtype)
    return TypeError(text)


def _text_hint(kind: str, dtype: np.dtype[Any]) -> str:
    if kind == "U" and dtype.kind == "S":
        return ", which is bytes: encode the text, or use a dtype of text, as 'U24'"
    if kind == "S" and dtype.kind == "U":
        return ", which is text: decode the bytes, or use a dtype of bytes, as 'S24'"
    return ""


def _outside(value: Any, dtype: np.dtype[Any]) -> OverflowError:
    return OverflowError(f"{value!r:.60} does not fit dtype {dtype_name(dtype)}")


def _rounded(value: Any, dtype: np.dtype[Any]) -> ValueError:
    text = f"{value!r:.60} would be rounded in dtype {dtype_name(dtype)}"
    return ValueError(f"{text}; round it yourself")


def _too_long(value: Any, length: int, dtype: np.dtype[Any]) -> ValueError:
    text = f"{value!r:.60} has a length of {length}"
    return ValueError(f"{text}: dtype {dtype_name(dtype)} takes {_most(dtype)}")


def _within(error: Exception, where: str) -> Exception:
    """Return an error of a part of a value that says which part."""
    kind = next(kind for kind in _ERRORS if isinstance(error, kind))
    return kind(f"{where}: {error}")


# -- scalars of Python ---------------------------------------------------------------


@cache
def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the integers that a dtype holds: all of those between the two."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return int(info.min), int(info.max)
    if dtype.kind == "m":  # the lowest one is NaT
        return 1 - 2**63, 2**63 - 1
    most = 2 ** (int(np.finfo(dtype).nmant) + 1)
    return -most, most


@cache
def _holds_doubles(dtype: np.dtype[Any]) -> bool:
    """Tell whether a number of Python's that may become one of a dtype needs no rounding."""
    return dtype.kind == "b" or (dtype.kind in "fc" and bool(np.finfo(dtype).nmant >= 52))


def _number(value: Any, dtype: np.dtype[Any], exact: bool) -> Array:
    """Return a number of Python's, if it fits."""
    kind = _NUMBERS.get(type(value), -1)
    if kind < 0:  # of a subclass
        kind = next(rank for one, rank in _NUMBERS.items() if isinstance(value, one))
    if dtype.kind == "m" and kind == 1:
        lowest, highest = _range(dtype)
        if not lowest <= value <= highest:
            raise _outside(value, dtype)
        return np.array(value, dtype)
    if kind > _KINDS.get(dtype.kind, -1) or (exact and not kind and dtype.kind != "b"):
        raise _no_value(value, dtype)
    if kind != 1 and _holds_doubles(dtype):
        return np.array(value, dtype)
    if kind == 1:
        lowest, highest = _range(dtype)
        if lowest <= value <= highest:
            return np.array(value, dtype)
        if dtype.kind in "iu":
            raise _outside(value, dtype)
    try:
        with np.errstate(over="ignore", under="ignore"):
            made = np.array(value, dtype)
    except OverflowError:  # an integer that no double holds
        raise _outside(value, dtype) from None
    _check_float(value, made, exact or kind == 1)
    return made


def _check_float(value: Any, made: Array, exact: bool) -> None:
    """Refuse a float that has become infinite or, if `exact`, another one."""
    for given, part in ((value.real, made.real[()]), (value.imag, made.imag[()])):
        if isinstance(given, int):
            if not np.isfinite(part):
                raise _outside(value, made.dtype)
            if int(part) != given:
                raise _rounded(value, made.dtype)
        elif np.isinf(part) and not np.isinf(given):
            raise _outside(value, made.dtype)
        elif exact and part.item() != given and given == given:
            raise _rounded(value, made.dtype)


def _text(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a string, or bytes, if it is short enough; NULs at its end do not count."""
    if dtype.names is None and dtype.kind == "V" and isinstance(value, bytes):
        if len(value) != dtype.itemsize:
            raise _too_long(value, len(value), dtype)
        return np.array(np.void(value))
    if dtype.kind != ("U" if isinstance(value, str) else "S"):
        raise _no_value(value, dtype)
    text = value.rstrip("\0" if isinstance(value, str) else b"\0")
    if len(text) > _most(dtype):
        raise _too_long(value, len(text), dtype)
    return np.array(text, dtype)


def _most(dtype: np.dtype[Any]) -> int:
    """Return how long a text, or bytes, of a dtype may be."""
    return dtype.itemsize // (4 if dtype.kind == "U" else 1)


def _date(value: Any, dtype: np.dtype[Any]) -> Array:
    """Return a date, a time or a difference of Python's, in a unit that holds it."""
    given: Any
    if type(value) in _DATES and dtype.kind == "M":
        if getattr(value, "tzinfo", None) is not None:
            text = f"{value!r:.60} has a time zone, which dtype {dtype_name(dtype)} has not"
            raise TypeError(f"{text}: convert it to UTC and leave out tzinfo")
        given = np.datetime64(value)
    elif type(value) is datetime.timedelta and dtype.kind == "m":
        count = value // datetime.timedelta(microseconds=1)
        if abs(count) >= 2**63:  # NumPy would wrap it around
            raise _outside(value, dtype)
        given = np.timedelta64(count, "us")
    else:
        raise _no_value(value, dtype)
    return _converted(np.asarray(given), dtype, False)


def _record(
    value: tuple[Any, ...], dtype: np.dtype[Any], exact: bool, depth: int, limit: float | None
) -> Array:
    """Return a tuple as a record."""
    names = dtype.names or ()
    if len(value) != len(names):
        text = f"a tuple of {len(value)} for a record of {len(names)}"
        raise ValueError(f"{text}: dtype {dtype_name(dtype)}")
    made = np.zeros((), dtype)
    for name, part in zip(names, value, strict=True):
        try:
            made[name] = made_of(part, dtype[name], exact, False, depth, limit)
        except _ERRORS as exc:
            raise _within(exc, f"field {name!r}") from None
    return made


# -- lists ---------------------------------------------------------------------------


def _listed(
    values: Any,
    dtype: np.dtype[Any],
    exact: bool,
    convert: bool,
    depth: int,
    limit: float | None,
) -> Array:
    """Return a list of values, each by itself, so that none is cast to the dtype of another."""
    if depth == _MOST_NESTED:
        raise ValueError(f"lists within lists, {depth} deep and more")
    if dtype.kind in _KINDS and dtype.isnative and set(map(type, values)) == {dtype.type}:
        return np.array(values, dtype)
    made = _plain(values, dtype, exact)
    if made is not None:
        return made
    parts = []
    for number, value in enumerate(values):
        try:
            parts.append(made_of(value, dtype, exact, convert, depth + 1, limit))
        except _ERRORS as exc:
            raise _within(exc, f"item {number} of a list") from None
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        some = ", ".join(map(str, sorted(shapes)[:3]))
        raise ValueError(f"a list of parts of several shapes, {some}: an inhomogeneous array")
    made = np.zeros((len(parts), *(shapes.pop() if shapes else ())), dtype)
    for row, part in enumerate(parts):
        made[row] = part
    return made


def _plain(values: Any, dtype: np.dtype[Any], exact: bool) -> Array | None:
    """Return a list of numbers or texts of Python's that all fit for certain; else None."""
    types = set(map(type, values))
    if (dtype.kind == "U" and types == {str}) or (dtype.kind == "S" and types == {bytes}):
        return np.array(values, dtype) if max(map(len, values)) <= _most(dtype) else None
    kind = _KINDS.get(dtype.kind, -1)
    if not types or not all(_NUMBERS.get(one, 4) <= kind for one in types):
        return None
    if exact and not types <= {int}:
        return None
    if kind == 0:
        return np.array(values, dtype)
    if int in types:
        whole = values if len(types) == 1 else [one for one in values if type(one) is int]
        lowest, highest = _range(dtype)
        if min(whole) < lowest or max(whole) > highest:
            return None
    with np.errstate(over="ignore", under="ignore"):
        made = np.array(values, dtype)
    if kind == 1:
        return made
    bad = ~np.isfinite(made)  # given so, or too large
    return None if np.isfinite(np.asarray(values)[bad]).any() else made


# -- arrays, and scalars of NumPy's --------------------------------------------------


def _of_array(value: Any, dtype: np.dtype[Any], exact: bool, convert: bool) -> Array:
    """Return an array of the dtype as it is; what has no dimensions is converted like a number."""
    if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        text = "a masked array, whose mask would be lost: use filled(), or compressed()"
        raise TypeError(text)
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        if value.shape != shape:
            raise ValueError(f"an array of shape {value.shape}, not {shape}")
        return _of_array(value, base, exact, convert)
    if value.dtype == dtype:
        return value if isinstance(value, np.ndarray) else np.asarray(value)
    if value.ndim and not convert:
        names = dtype_name(value.dtype), dtype_name(dtype)
        text = "an array of dtype {} for elements of {}, and nothing is cast".format(*names)
        how = repr(names[1] if dtype.isnative else dtype.str) if dtype.names is None else "dtype"
        raise TypeError(f"{text}: convert it with astype({how})")
    if isinstance(value, bytes) and dtype.kind == "V":
        return _text(bytes(value), dtype)
    if not value.ndim and value.dtype.kind in "biu":
        return _number(value.item(), dtype, exact)
    return _converted(np.asarray(value), dtype, exact)


def _converted(array: Array, dtype: np.dtype[Any], exact: bool) -> Array:
    """Return an array of another dtype in this one, if each element equals what it was."""
    have = array.dtype
    if have == dtype:
        return array
    if have.names is not None or dtype.names is not None:
        return _records(array, dtype, exact)
    if not _may_become(have, dtype, exact):
        text = (
            f"{_some(array)} of dtype {dtype_name(have)} is no value of dtype {dtype_name(dtype)}"
        )
        raise TypeError(text + _text_hint(have.kind, dtype))
    with np.errstate(all="ignore"):
        made = array.astype(dtype)
        same = _equal(array, made)
    if not np.all(same):
        wrong = array[~same].flat[0]
        if dtype.kind in "SU":
            raise _too_long(wrong, len(wrong), dtype)
        lost = made[~same].flat[0]
        integral = dtype.kind in "iu" or (dtype.kind == "m" and have.kind in "iu")
        if integral or (dtype.kind in "fc" and np.isfinite(wrong) and not np.isfinite(lost)):
            raise _outside(wrong, dtype)
        raise _rounded(wrong, dtype)
    return made


def _some(array: Array) -> str:
    return repr(array[()]) if not array.ndim else "an array"


def _may_become(have: np.dtype[Any], dtype: np.dtype[Any], exact: bool) -> bool:
    """Tell whether some elements of one dtype are values of another."""
    if have.kind in _KINDS and dtype.kind in _KINDS:
        wider = _KINDS[have.kind] <= _KINDS[dtype.kind]
        return wider and not (exact and "b" in (have.kind, dtype.kind) and have.kind != dtype.kind)
    if dtype.kind == "m" and have.kind in "iu":
        return True
    if have.kind != dtype.kind:
        return False
    return have.kind in "SU" or (have.kind in "mM" and np.can_cast(have, dtype, "same_kind"))


def _equal(array: Array, made: Array) -> Any:
    """Tell which elements of an array have become what they were."""
    have, kind = array.dtype, made.dtype.kind
    if have.kind in "mM":
        return (made.astype(have) == array) | (np.isnat(made) & np.isnat(array))
    if kind == "m":
        return (made.view(np.int64) == array) & ~np.isnat(made)
    if have.kind in "iu" and kind in "fc":
        # compared as integers, which hold all that a float below the limit is
        part = made.real
        within = part < 2.0 ** (8 * have.itemsize - (have.kind == "i"))
        return within & (np.where(within, part, 0).astype(have) == array)
    if have.kind in "fc":
        pairs = [(array.real, made.real), (array.imag, made.imag)]
        return np.all([(a == b) | (np.isnan(a) & np.isnan(b)) for a, b in pairs], axis=0)
    return made == array


def _records(array: Array, dtype: np.dtype[Any], exact: bool) -> Array:
    """Return records with the same fields, field by field."""
    have = array.dtype
    if have.names is None or have.names != dtype.names:
        names = dtype_name(have), dtype_name(dtype)
        raise TypeError("{} of dtype {} is no value of dtype {}".format(_some(array), *names))
    made = np.zeros(array.shape, dtype)
    for name in dtype.names:
        if have[name].shape != dtype[name].shape:
            text = f"field {name!r}: shape {have[name].shape}, not {dtype[name].shape}"
            raise ValueError(text)
        try:
            made[name] = _converted(array[name], dtype[name].base, exact)
        except _ERRORS as exc:
            raise _within(exc, f"field {name!r}") from None
    return made
