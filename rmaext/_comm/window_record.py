# SPDX-License-Identifier: BSD-3-Clause
"""What ranks tell each other of their parts when a window is made.

Its form on the wire is struct rmaext_part_record of csrc/rmaext.h; csrc/win/window_record.c
reads those of all ranks at once.
"""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

import numpy as np

from .._native._lib import ffi, lib
from .._runtime.reports import dtype_name
from ..errors import KeyRecordError
from .agreement import LIMIT, malformed

__all__ = ["WindowRecord", "dtype_text", "dtype_words"]

_HEAD: int = ffi.sizeof("struct rmaext_part_record")


class WindowRecord(NamedTuple):
    """What the others must know about one rank's part of a window."""

    size: int  # bytes
    base: int  # address the provider wants added to offsets
    access: int
    dtype: str  # as np.dtype.descr, in text
    key: bytes
    address: int = 0  # in its process
    shape: tuple[int, ...] = ()
    block: tuple[int, int, int, int] = (-1, 0, 0, 0)  # of its arena; -1: elsewhere
    parts: int = 0  # arrays that the window has there, this being the first; 0: not a list
    fresh: bool = False  # the first of this communicator in that part of the arena
    exported: bytes = b""  # of a device's memory, which has no key: struct rmaext_export

    def pack(self) -> bytes:
        """Return the payload of a record."""
        dtype = self.dtype.encode()
        if len(dtype) > LIMIT - _HEAD:  # which is more than its length has room for
            text = f"dtype in {len(dtype)} bytes: too long for a window: let it have fewer fields"
            raise KeyRecordError(errno.EMSGSIZE, text)
        where = self.size, self.base, self.address, self.block
        key = self.key or self.exported
        lengths = len(dtype), len(key), len(self.shape)
        what = (*where, self.parts, *lengths, self.access, self.fresh)
        head = bytes(ffi.buffer(ffi.new("struct rmaext_part_record *", what)))
        return head + np.array(self.shape, np.uint64).tobytes() + dtype + key

    @classmethod
    def unpack(cls, payload: bytes) -> WindowRecord:
        """Decode a payload; KeyRecordError if malformed."""
        if len(payload) < _HEAD:
            malformed(f"window record of {len(payload)} bytes")
        it = ffi.from_buffer("struct rmaext_part_record *", payload)
        size, base, address = it.size, it.base, it.address
        text = _HEAD + 8 * it.dims
        if len(payload) != text + it.dtype_len + it.key_len:
            malformed("lengths inside the window record do not match")
        if not it.access & 3 or it.access > 15 or it.fresh > 1:
            malformed("window record out of range")
        if size + base >= 1 << 64 or size + address >= 1 << 64:
            malformed("window record out of range")
        shape = tuple(np.frombuffer(payload, np.uint64, it.dims, _HEAD).tolist())
        if max(shape, default=0) >= 1 << 63:
            malformed("shape of the window")
        dtype, key = payload[text : text + it.dtype_len], payload[text + it.dtype_len :]
        try:
            words = dtype.decode()
        except UnicodeDecodeError:
            malformed("dtype of the window")
        block = (it.block.fd, it.block.inode, it.block.size, it.block.offset)
        exported = b""
        if it.access & lib.RMAEXT_DEVICE:
            key, exported = b"", key
            if len(exported) not in (0, ffi.sizeof("struct rmaext_export")):
                malformed("how to map a device's memory")
        where = (key, address, shape, block, it.parts, it.fresh > 0, exported)
        return cls(size, base, it.access, words, *where)


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a text that two dtypes share if and only if they are the same layout."""
    return repr(dtype.descr) if dtype.fields else dtype.str


def dtype_words(text: str) -> str:
    """Return such a text of another rank as messages name a dtype; records as they are."""
    try:
        return dtype_name(np.dtype(text))
    except (TypeError, ValueError, SyntaxError):
        return text
