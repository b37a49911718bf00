# SPDX-License-Identifier: BSD-3-Clause
"""What ranks tell each other of their parts when a window is made, and its form on the wire.

csrc/win/window_record.c reads the records of all ranks at once.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from .agreement import malformed

__all__ = ["WindowRecord", "dtype_text"]

# size, base, address, block, access, lengths of shape, dtype and key, parts, fresh
_HEAD = struct.Struct("<QQQqQQQBBHHIB")


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

    def pack(self) -> bytes:
        """Return the payload of a record."""
        dtype = self.dtype.encode()
        head = _HEAD.pack(
            *(self.size, self.base, self.address, *self.block),
            *(self.access, len(self.shape), len(dtype), len(self.key), self.parts, self.fresh),
        )
        shape = struct.pack(f"<{len(self.shape)}Q", *self.shape)
        return head + shape + dtype + self.key

    @classmethod
    def unpack(cls, payload: bytes) -> WindowRecord:
        """Decode a payload; KeyRecordError if malformed."""
        if len(payload) < _HEAD.size:
            malformed(f"window record of {len(payload)} bytes")
        fields = _HEAD.unpack_from(payload)
        size, base, address, *block, access, n_shape, n_dtype, n_key, parts, fresh = fields
        body = payload[_HEAD.size :]
        if len(body) != 8 * n_shape + n_dtype + n_key:
            malformed("lengths inside the window record do not match")
        if not access & 3 or access > 7 or fresh > 1:
            malformed("window record out of range")
        if size + base >= 1 << 64 or size + address >= 1 << 64:
            malformed("window record out of range")
        shape = struct.unpack_from(f"<{n_shape}Q", body)
        if max(shape, default=0) >= 1 << 63:
            malformed("shape of the window")
        try:
            dtype = body[8 * n_shape : 8 * n_shape + n_dtype].decode()
        except UnicodeDecodeError:
            malformed("dtype of the window")
        key = body[8 * n_shape + n_dtype :]
        return cls(size, base, access, dtype, key, address, shape, tuple(block), parts, bool(fresh))


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a text that two dtypes share if and only if they are the same layout."""
    return repr(dtype.descr) if dtype.fields else dtype.str
