# SPDX-License-Identifier: BSD-3-Clause
"""What an error of a call says: the call, its window, and how it is to be called."""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ..errors import BoundsError, RmaError

__all__ = ["begins", "behind", "integers", "named", "no_integer", "prepares", "told", "told_as"]

_Method = TypeVar("_Method", bound=Callable[..., Any])

_PLAIN = (TypeError, ValueError, OverflowError, IndexError)
_OURS = ("rmaext", "numpy")
_PREFIX = re.compile(r"^(\w+): (?=window )")
_NO_INTEGER = re.compile(r"must be (an integer|integers)\b|(as an integer|scalar index)$")


def no_integer(**arguments: Any) -> TypeError:
    """Return the error for the first of some arguments that is no integer, by its name."""
    for name, given in arguments.items():
        try:
            operator.index(given)
        except TypeError:
            if isinstance(given, (np.ndarray, list, tuple)) and np.ndim(given):
                what = f"not of shape {np.shape(given)}"
                if name == "offset":
                    what += ": it counts elements in C order; win[rank, 1, 2] takes an index"
            else:
                what = f"not {given!r:.40} ({type(given).__name__})"
            return TypeError(f"{name} must be an integer, {what}")
    return TypeError(f"{', '.join(arguments)} must be integers")


def integers(**arguments: Any) -> list[int]:
    """Return arguments as ints; TypeError, with the name, for the first that is no integer."""
    try:
        return list(map(operator.index, arguments.values()))
    except TypeError:
        raise no_integer(**arguments) from None


def told_as(name: str) -> Callable[[_Method], _Method]:
    """Let what a method raises name the call and the window.

    Such as come from a function of the program, a signal handler or an `__index__`, stay as
    they are.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def calling(self: Any, *args: Any, **keywords: Any) -> Any:
            try:
                return method(self, *args, **keywords)
            except (*_PLAIN, RmaError) as error:
                if error.__traceback__ is not None and _is_ours(error.__traceback__.tb_next):
                    _tell(error, name, getattr(self, "_window", self), method)
                raise

        return calling  # type: ignore[return-value]

    return decorate


def told(method: _Method) -> _Method:
    """As `told_as`, by the name of the method."""
    return told_as(method.__name__)(method)


_BEGINS = """\
Parameters
----------
{given}
    As for `{call}`; arrays may not be changed before the request is done, nor `out` be used.

Returns
-------
Request
    Done once all is applied at the target. Its result is what `{call}` returns.

Raises
------
RmaError, TypeError, ValueError
    At once, as `{call}` would.
PeerLostError, ClosedError
    At once, if the operation can be refused; else from the request.

Notes
-----
Local, not blocking; waits as `rput` does. What goes by memory is done when it returns.
{note}

"""


_PREPARES = """\
Parameters
----------
{given}
    As for `{call}`. An array must be C-contiguous and of the window's dtype: it is kept, not
    copied, and looked at anew in each call.

Returns
-------
Prepared
    Each call is a `{call}` with these arguments, and returns what that does.

Raises
------
RmaError, TypeError, ValueError
    At once, as far as they can be foreseen. A call raises what `{call}` does.

Notes
-----
Local. {note}

"""


def _completing(prefix: str, text: str, note: str) -> Callable[[_Method], _Method]:
    """Complete a docstring, which has what differs: the first sentence and the examples."""

    def decorate(method: _Method) -> _Method:
        code, doc = method.__code__, method.__doc__
        if doc:  # else Python was told to leave it out
            first, gap, examples = doc.partition("Examples\n")
            margin = "\n" + first.rpartition("\n")[2]
            given = ", ".join(code.co_varnames[1 : code.co_argcount])
            call = method.__name__.removeprefix(prefix)
            rest = text.format(given=given, call=call, note=note).replace("\n", margin)
            method.__doc__ = first + rest + gap + examples
        return told(method)

    return decorate


def begins(note: str = "") -> Callable[[_Method], _Method]:
    """As `told`, for a method that begins what the one without the r in front carries out."""
    return _completing("r", _BEGINS, note)


def prepares(note: str) -> Callable[[_Method], _Method]:
    """As `told`, for a method that prepares calls of another one."""
    return _completing("prepare_", _PREPARES, note)


def behind(method: _Method) -> _Method:
    """As `told`, for the method behind one of C: of the same name with an underscore in front."""
    name = named(method).__name__.lstrip("_")
    return told_as(f"__{name}__" if name.endswith("item") else name)(method)


def named(method: _Method) -> _Method:
    """Let messages of Python's own on the number of arguments name the method of C.

    By itself for methods that take counts off a slot: a signal handler may raise in whatever
    calls them in turn, and nobody would have the counts.
    """
    method.__qualname__ = "Window." + method.__name__.lstrip("_")
    return method


def _is_ours(trace: TracebackType | None) -> bool:
    """Tell whether all frames are this package's, or NumPy's."""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
            return False
        trace = trace.tb_next
    return True


def _tell(error: Exception, name: str, window: Any, method: Callable[..., Any]) -> None:
    """Put the call and the window in front of what an error says, each once."""
    if isinstance(error, RmaError):
        text = str(error)
        found = _PREFIX.match(text)
        if type(error) is BoundsError and not error.call and not found:  # of an argument by itself
            error.strerror, error.call = f"{name}: window {window._name}: {text}", name
            error.args = (error.errno, error.strerror)
        elif found and found[1] != name:  # a call that this one is made of
            error.strerror = name + text[found.end(1) :]
            error.args = (error.errno, error.strerror)
            error.call = name if error.call == found[1] else error.call
        return
    if type(error) not in _PLAIN or not error.args or not isinstance(error.args[0], str):
        return
    text = error.args[0]
    if text.startswith(f"{method.__qualname__}()"):  # Python's own, on their number
        return
    # what a call has said that this one is made of, and this one's name
    text = _PREFIX.sub("", text, 1).partition("; the call is ")[0].removeprefix(f"{name}: ")
    if not text.startswith("window "):
        text = f"window {getattr(window, '_name', '?')}: {text}"
    if isinstance(error, TypeError) and _NO_INTEGER.search(text) and not name.startswith("__"):
        text += f"; the call is {name}({_parameters(method)})"
    error.args = (f"{name}: {text}",)


def _parameters(method: Callable[..., Any]) -> str:
    """Return the parameters of a method as its documentation has them."""
    _, *parameters = inspect.signature(method).parameters.values()
    return ", ".join(str(it.replace(annotation=inspect.Parameter.empty)) for it in parameters)
