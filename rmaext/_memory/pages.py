# SPDX-License-Identifier: BSD-3-Clause
"""The pages of a piece of memory: what is asked for, what there is, whose file it is."""

from __future__ import annotations

import errno
import mmap
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._native._lib import ffi, lib
from .._runtime.failures import check, from_c
from .._runtime.files import text_of
from ..errors import AddressError, RmaError
from ..typing import HugePages

if TYPE_CHECKING:
    from .node import Arena

__all__ = ["HUGE_PAGE", "Wish", "advise", "facts", "is_a_file", "mapped_file", "resident"]

Array = NDArray[Any]

HUGE_PAGE = 2 << 20
_POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
_MAPPINGS = "/proc/self/smaps"


class Wish(NamedTuple):
    """How memory of the arena is to be had; by default as it comes.

    Attributes
    ----------
    hint : int or None
        Address near which it is to lie.
    fixed_address : int or None
        Address at which it is to lie, and nowhere else.
    lazy : bool
        Pages come on first touch.
    hugepages : bool or "require"
        Of huge pages: if there are any, or else not at all.
    """

    hint: int | None = None
    fixed_address: int | None = None
    lazy: bool = True
    hugepages: HugePages = False

    def checked(self) -> Wish:
        """Return it with plain numbers; TypeError or ValueError where it makes no sense."""
        plain = self.lazy is True and self.hugepages is False
        if plain and self.hint is None and self.fixed_address is None:
            return self
        hint, fixed = (
            _an_address("hint", self.hint),
            _an_address("fixed_address", self.fixed_address),
        )
        if hint is not None and fixed is not None:
            raise ValueError("hint and fixed_address: one of the two")
        if fixed == 0:
            raise ValueError("fixed_address=0 is no address")
        if fixed is not None and fixed % mmap.PAGESIZE:
            text = f"fixed_address={fixed:#x} is no multiple of the page size, {mmap.PAGESIZE}"
            raise ValueError(text)
        if not isinstance(self.lazy, bool):
            raise TypeError(f"lazy={self.lazy!r}: must be True or False")
        huge = self.hugepages
        if huge != "require" and not isinstance(huge, bool):
            raise TypeError(f"hugepages={huge!r}: must be True, False or 'require'")
        if huge == "require" and fixed is not None and fixed % HUGE_PAGE:
            text = f"fixed_address={fixed:#x} is no multiple of the huge page size, {HUGE_PAGE}"
            raise ValueError(text)
        return Wish(hint or None, fixed, self.lazy, huge)

    def obtain(self, arena: Arena, nbytes: int) -> Any:
        """Return a buffer of so many zero bytes; MemoryError, AddressError."""
        data = self._huge(arena, nbytes) if self.hugepages else None
        if data is not None:  # the pages of the pool are there
            return data
        wanted = self.fixed_address or self.hint
        data = self._at(arena, nbytes, 0) if wanted else arena.allocate(nbytes)
        if not self.lazy:
            code = lib.rmaext_pages_populate(ffi.from_buffer(data), nbytes, True)
            if code:
                del data  # at once: the error's traceback would keep it
                raise from_c(code)
        return data

    def refuse(self) -> None:
        """Raise if that is to be had from an arena only, and there is none."""
        if self.fixed_address is not None or self.hugepages == "require":
            text = "no memory that neighbours can map, so none at an address, or of huge pages"
            raise AddressError(errno.ENOMEM, text, call="allocate")

    def _huge(self, arena: Arena, nbytes: int) -> Any:
        try:
            return self._at(arena, nbytes, lib.RMAEXT_HUGE)
        except (AddressError, MemoryError) as exc:
            if self.hugepages == "require":
                text = f"{_huge_pages(nbytes)}: {exc}"
                raise MemoryError(text) from None
            return None

    def _at(self, arena: Arena, nbytes: int, how: int) -> Any:
        wanted = self.fixed_address or self.hint or 0
        if self.fixed_address is not None:
            how |= lib.RMAEXT_EXACTLY
        try:
            return arena.place(nbytes, wanted, how)
        except RmaError as exc:
            code = exc.errno or errno.EIO
            raise AddressError(code, f"allocate: {exc.detail}", call="allocate") from None


def _an_address(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be an address, an integer") from None
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name}={number:#x} is no address")
    return number


def _huge_pages(nbytes: int) -> str:
    try:
        free = int(text_of(_POOL))
    except (OSError, ValueError):
        return "no huge pages of 2 MiB on this system"
    wanted = nbytes // HUGE_PAGE + 1
    return f"{wanted} huge pages of 2 MiB wanted, {free} free (/proc/sys/vm/nr_hugepages)"


def advise(pointer: Any, nbytes: int, willneed: bool, write: bool) -> bool:
    """Tell the system what is about to happen to memory; whether it listened."""
    if not nbytes:
        return True
    taken = not lib.rmaext_pages_advise(pointer, nbytes, willneed)
    if willneed:
        taken = not lib.rmaext_pages_populate(pointer, nbytes, write)
    return taken


def resident(pointer: Any, nbytes: int) -> int:
    """Return how many bytes of the memory's pages are there."""
    if not nbytes:
        return 0
    there = ffi.new("uint64_t *")
    check(lib.rmaext_pages_resident(pointer, nbytes, there))
    return int(there[0])


def facts(address: int) -> dict[str, Any]:
    """Return what the system says of the mapping around an address, as far as it does.

    Returns
    -------
    dict
        "page_size" and "huge" in bytes, "file" and "shared".
    """
    found: dict[str, Any] = {"page_size": mmap.PAGESIZE, "huge": 0, "file": "", "shared": False}
    inside = False
    try:
        lines = text_of(_MAPPINGS, "replace").splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            if inside:
                break
            low, _, high = name.partition("-")
            inside = int(low, 16) <= address < int(high, 16)
            if inside:
                words = rest.split(None, 4)
                found["shared"] = words[0].endswith("s")
                found["file"] = words[4] if len(words) > 4 else ""
        elif inside and name == "KernelPageSize:":
            found["page_size"] = int(rest.split()[0]) << 10
        elif inside and name in ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"):
            found["huge"] += int(rest.split()[0]) << 10
    return found


def mapped_file(array: Array) -> mmap.mmap | None:
    """Return the map of a file that an array lies in, if it does: np.memmap, mmap."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(getattr(base, "_mmap", None), mmap.mmap):
            return base._mmap  # type: ignore[attr-defined, no-any-return]
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def is_a_file(array: Array) -> bool:
    """Tell whether an array lies in a file that is there when nobody has it mapped."""
    if not array.nbytes or mapped_file(array) is None:
        return False
    seen = facts(array.__array_interface__["data"][0])
    # one without a name (/dev/zero, too) is gone then
    named = seen["file"] and not seen["file"].endswith("(deleted)")
    return bool(seen["shared"] and named)
