# SPDX-License-Identifier: BSD-3-Clause
"""The arrays of a window's own memory, which note what the program reads and writes in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._ops.index_key import Parser
from .clock import BUSY
from .memory import memory
from .spans import runs

__all__ = ["FollowedArray", "followed_array"]

_READING = (
    "all any argmax argmin argpartition argsort astype choose clip compress copy cumprod cumsum "
    "diagonal dot dump dumps flatten item max mean min nonzero prod ptp repeat round "
    "searchsorted std sum take tobytes tofile tolist trace tostring var __array__ __complex__ "
    "__contains__ __copy__ __deepcopy__ __float__ __format__ __index__ __int__ __bool__ __reduce__ "
    "__reduce_ex__ __repr__ __str__"
)
_WRITING = "fill partition put resize setfield sort"
# what only looks at the shape, or makes an array of the same memory
_VIEWS = {
    *(np.shape, np.ndim, np.size, np.reshape, np.transpose, np.squeeze, np.expand_dims, np.ravel),
    *(np.moveaxis, np.swapaxes, np.rollaxis, np.broadcast_to, np.atleast_1d, np.atleast_2d),
    *(np.split, np.array_split, np.hsplit, np.vsplit, np.dsplit, np.flip, np.flipud, np.fliplr),
    *(np.may_share_memory, np.shares_memory, np.result_type, np.empty_like, np.zeros_like),
    *(
        np.ones_like,
        np.full_like,
        np.iscomplexobj,
        np.isrealobj,
        np.real,
        np.imag,
        np.diag_indices_from,
    ),
}
_INTO = {np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis}


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, FollowedArray) else value


def _all_plain(value: Any) -> Any:
    """Return a structure of lists, tuples and dicts with ordinary arrays in it."""
    if type(value) in (list, tuple):
        return type(value)(map(_all_plain, value))
    if type(value) is dict:
        return {key: _all_plain(it) for key, it in value.items()}
    return _plain(value)


def _within(value: Any) -> Iterator[FollowedArray]:
    if isinstance(value, FollowedArray):
        yield value
    elif type(value) in (list, tuple):
        for it in value:
            yield from _within(it)
    elif type(value) is dict:
        yield from _within(list(value.values()))


class FollowedArray(np.ndarray[Any, Any]):
    """An array that notes the accesses to its elements, by their addresses."""

    def _note(self, writes: bool) -> None:
        if not BUSY.now:
            memory.touch(_plain(self), writes, "store" if writes else "load")

    def _note_part(self, key: Any, writes: bool) -> None:
        """Note the elements that a key means."""
        if BUSY.now:
            return
        items = key if isinstance(key, tuple) else (key,)
        array = _plain(self)
        if isinstance(key, str) or (isinstance(key, list) and key and isinstance(key[0], str)):
            return memory.touch(array[key], writes, "store" if writes else "load")
        if any(isinstance(it, (list, np.ndarray)) and np.ndim(it) for it in items):
            items = tuple(map(_plain, items))
            part = Parser(self.shape, list(self.strides), "load").parse(items)
            first = array.__array_interface__["data"][0]
            spans = runs(first + part.offsets(1), self.itemsize)
            return memory.touch_spans(spans, writes, "store" if writes else "load")
        if Ellipsis not in [it for it in items if not isinstance(it, np.ndarray)]:
            items = (*items, Ellipsis)
        memory.touch(array[items], writes, "store" if writes else "load")

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(_plain(key))
        if not isinstance(found, FollowedArray):
            self._note_part(key, False)
        elif not np.may_share_memory(_plain(found), _plain(self)):  # a copy
            self._note_part(key, False)
            return _plain(found)
        return found

    def __setitem__(self, key: Any, values: Any) -> None:
        for array in _within(values):
            array._note(False)
        super().__setitem__(_plain(key), _all_plain(values))
        self._note_part(key, True)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        out = keywords.get("out", ())
        into = [*out, *(inputs[:1] if method == "at" else ())]
        for array in _within(list(inputs)):
            array._note(False)
        keywords = _all_plain(keywords)
        result = getattr(ufunc, method)(*map(_plain, inputs), **keywords)
        for array in _within(into):
            array._note(True)
        if len(out) == 1 and out[0] is not None:
            return out[0]
        return out if out and all(it is not None for it in out) else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _VIEWS:
            return super().__array_function__(func, types, args, kwargs)
        kwargs = dict(kwargs)
        out = kwargs.get("out")
        into = [it for it in (out, args[0] if func in _INTO else None) if it is not None]
        read = [it for it in _within([list(args), kwargs]) if not any(it is one for one in into)]
        for array in read:
            array._note(False)
        result = func(*_all_plain(list(args)), **_all_plain(kwargs))
        for array in _within(into):
            array._note(True)
        return out if out is not None and not isinstance(out, tuple) else result


def _method(name: str, writes: bool) -> Callable[..., Any]:
    original = getattr(np.ndarray, name)

    def method(self: FollowedArray, *args: Any, **keywords: Any) -> Any:
        for array in _within([list(args), keywords]):
            array._note(array is keywords.get("out"))
        self._note(writes)
        return original(_plain(self), *_all_plain(list(args)), **_all_plain(keywords))

    method.__name__ = name
    return method


for _name in _READING.split():
    if hasattr(np.ndarray, _name):
        setattr(FollowedArray, _name, _method(_name, False))
for _name in _WRITING.split():
    setattr(FollowedArray, _name, _method(_name, True))


def followed_array(value: Any) -> Any:
    """Return an array, or a list of them, that notes what is done to it."""
    if isinstance(value, list):
        return [followed_array(it) for it in value]
    return value.view(FollowedArray) if type(value) is np.ndarray else value
