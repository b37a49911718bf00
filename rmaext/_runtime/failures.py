# SPDX-License-Identifier: BSD-3-Clause
"""How exceptions come about: the only map from libfabric's codes, and their way between ranks."""

from __future__ import annotations

import builtins
import contextlib
import copy
import errno
import operator
import os
from typing import Any, TypeVar

from .. import errors
from .._native._lib import ffi, lib
from ..errors import (
    AccessError,
    AlignmentError,
    BoundsError,
    BusyError,
    ClosedError,
    FlagsError,
    KeyRejectedError,
    LibraryError,
    NoKeyError,
    NoProviderError,
    NotLocalError,
    PeerLostError,
    RmaError,
    RmaTimeout,
    TooSmallError,
    Unsupported,
)
from .reports import site

__all__ = [
    "advised",
    "again",
    "check",
    "from_c",
    "from_code",
    "is_of_all",
    "not_for",
    "of_all",
    "pack",
    "unpack",
]

_E = TypeVar("_E", bound=BaseException)


def of_all(error: _E) -> _E:
    """Mark an error that all ranks raise in a collective call; return it."""
    error.__dict__["of_all_ranks"] = True
    return error


def is_of_all(error: BaseException) -> bool:
    """Return whether all ranks raise it."""
    return "of_all_ranks" in error.__dict__


_LOST = (
    errno.ENOTCONN,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.EPIPE,
    # what ofi_rxm reports for operations in flight when a connection is lost
    errno.EIO,
    errno.ECANCELED,
)


def _takes_text(cls: type[Exception]) -> bool:
    try:
        cls(0, "") if issubclass(cls, RmaError) else cls("")
    except TypeError:  # UnicodeDecodeError, ExceptionGroup
        return False
    return True


_CLASSES: dict[int, type[RmaError]] = {
    errno.ERANGE: BoundsError,
    errno.EACCES: AccessError,
    errno.EFAULT: AlignmentError,
    errno.ESHUTDOWN: ClosedError,
    errno.EOPNOTSUPP: Unsupported,
    errno.ENOSYS: Unsupported,
    errno.ETIMEDOUT: RmaTimeout,
    errno.ENODATA: NoProviderError,
    errno.ENOENT: LibraryError,
    errno.EREMOTE: NotLocalError,
    errno.EBUSY: BusyError,
    errno.EKEYREJECTED: KeyRejectedError,
    lib.RMAEXT_ENOKEY: NoKeyError,
    lib.RMAEXT_EBADFLAGS: FlagsError,
    lib.RMAEXT_ETOOSMALL: TooSmallError,
    **dict.fromkeys(_LOST, PeerLostError),
}

# The types that an exception may have on the other ranks: ours, and builtins that take a
# text. Any other becomes the nearest of these that it derives from. Not StopIteration, which
# would silently end loops there.
_NAMED: dict[str, type[Exception]] = {
    name: cls
    for name, cls in (vars(builtins) | vars(errors)).items()
    if isinstance(cls, type)
    and issubclass(cls, Exception)
    and not issubclass(cls, (StopIteration, StopAsyncIteration))
    and name == cls.__name__
    and name != "Exception"
    and _takes_text(cls)
}

# Codes that have this meaning only from our own checks; providers use them for other things.
_OURS = (errno.ERANGE, errno.EACCES, errno.EFAULT, errno.ENOENT, errno.ENODATA)


# Calls whose errors are those of operations on their way.
_IN_FLIGHT = (
    *("fi_cq_readerr", "ucp_put_nbx", "ucp_get_nbx", "ucp_am_send_nbx"),
    *("post", "process_vm_writev", "process_vm_readv", "mmap"),
)


def _class_of(number: int, call: str) -> type[RmaError]:
    in_flight = call in _IN_FLIGHT
    if in_flight and number in _OURS:
        return RmaError
    if number in _LOST and call.startswith(("fi_", "ucp_")) and not in_flight:
        return RmaError  # a call that fails at once: there was no connection to lose
    return _CLASSES.get(number, RmaError)


# What the error of a wait says of its cause, see _record/advice.py, which takes this place.
def advise(late: bool) -> str:
    """Return what is known of the cause: nothing, until there is a record."""
    return ""


def advised(text: str, late: bool = False) -> str:
    """Return the text of the error of a wait with the cause, as far as this rank knows it.

    `late`: a time limit is over, and the others may still be asked what they do.
    """
    why = advise(late)
    return f"{text}. {why[0].upper()}{why[1:]}" if why else text


def from_c(code: int, where: str = "") -> Exception:
    """Return the exception for a code that the C side has just returned.

    Parameters
    ----------
    code : int
        Negative error number.
    where : str
        What the caller was about: operation, window, rank, offset, length.
    """
    record = ffi.new("struct rmaext_error *")
    lib.rmaext_error_last(record)
    call = ffi.string(record.call).decode()
    detail = ffi.string(record.detail).decode(errors="replace")
    if code == -errno.ENOMEM:
        return MemoryError(f"{where or call}: {detail}")
    message = f"{where}: {detail}" if where else f"{call}: {detail}"
    if call.startswith(("fi_", "ucp_")) and where:
        message += f" ({call})"
    cls = _class_of(-code, call)
    if issubclass(cls, (RmaTimeout, PeerLostError)):
        message = advised(message, issubclass(cls, RmaTimeout))
    rank = record.rank if record.rank >= 0 else None
    return cls(-code, message, call=call, rank=rank, detail=detail)


def from_code(code: int, where: str) -> Exception:
    """As `from_c`, for a code that may be another thread's: then without the recorded detail."""
    record = ffi.new("struct rmaext_error *")
    lib.rmaext_error_last(record)
    if record.code == code:
        return from_c(code, where)
    return _class_of(-code, "")(-code, f"{where}: {os.strerror(-code)}")


def again(error: Exception) -> Exception:
    """Return an exception like one that was kept, to be raised: it has a traceback of its own.

    One object that is raised again and again would collect the frames of all who caught it,
    and keep alive what they used.
    """
    return copy.copy(error)


def check(code: int, where: str = "") -> None:
    """Raise if the C side returned an error."""
    if code:
        raise from_c(code, where)


def pack(exc: BaseException) -> dict[str, Any]:
    """Describe an exception, any exception, for the other ranks."""
    code, call = getattr(exc, "errno", None), getattr(exc, "call", "")
    names = (cls.__name__ for cls in type(exc).__mro__ if cls is _NAMED.get(cls.__name__))
    try:
        text = str(exc) or type(exc).__name__
        if isinstance(exc, OSError) and not isinstance(exc, RmaError) and exc.strerror:
            # str() has the number in front, which the exception there would add again
            text = ": ".join([exc.strerror, *(repr(f) for f in [exc.filename] if f is not None)])
    except Exception:
        text = "no words"
    record = {
        "type": next(names, "RmaError"),
        "errno": code if isinstance(code, int) else 0,
        "call": call[:100] if isinstance(call, str) else "",
        "text": text[:2000],
        "at": site(),
    }
    if isinstance(exc, RmaError):
        record["rank"] = _ranks([getattr(exc, "rank", None)])
    if isinstance(exc, PeerLostError):
        record["ranks"] = _ranks(exc.ranks)
    return record


def _ranks(values: Any) -> list[int]:
    """Return those of some values, of any kind, that can be ranks."""
    found = []
    for value in values if isinstance(values, (list, tuple)) else []:
        with contextlib.suppress(Exception):
            found.append(operator.index(value))
    return [rank for rank in found if 0 <= rank < 1 << 31]


def unpack(record: dict[str, Any], text: str) -> Exception:
    """Return the exception that another rank described, with other words."""
    name, code, call = (record.get(key) for key in ("type", "errno", "call"))
    number = code if isinstance(code, int) and 0 < code < 1 << 31 else 0
    cls = _NAMED.get(name, RmaError) if isinstance(name, str) else RmaError
    if not issubclass(cls, RmaError):
        return cls(number, text) if issubclass(cls, OSError) and number else cls(text)
    error = cls(number or errno.EIO, text, call=call if isinstance(call, str) else "")
    error.rank = next(iter(_ranks(record.get("rank"))), None)
    if isinstance(error, PeerLostError):
        error.ranks = tuple(_ranks(record.get("ranks")))
    return error


def not_for(window: Any, call: str) -> Unsupported:
    """Return the error of what a kind of window does not have."""
    text = f"{call}: window {window._name}: not for a {type(window).__name__}"
    return Unsupported(errno.EOPNOTSUPP, text, call=call)
