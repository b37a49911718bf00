# SPDX-License-Identifier: BSD-3-Clause
"""Records on the wire, and their agreed exchange.

Every rank sends a record in every exchange, one that failed sends its error,
so that a collective call fails on all ranks or on none. A record is a frame
around a payload; whatever arrives is checked in full before it is used.
"""

from __future__ import annotations

import errno
import json
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from .._runtime.failures import of_all, pack, unpack
from .._runtime.reports import numbers
from ..errors import KeyRecordError, RmaError

__all__ = ["agree", "decode", "encode", "settle"]

MAGIC = b"rmx1"
LIMIT = 1 << 16  # bytes of a record: more is an error, not an allocation
# magic, native byte order, pointer bytes, status, payload length, crc32
_FRAME = struct.Struct("<4sBBBxII")
_ORDER = 1 if sys.byteorder == "little" else 2
_POINTER = struct.calcsize("P")
_OK, _FAILED = 0, 1

Gather = Callable[[bytes], Sequence[bytes]]


def encode(payload: bytes, failed: bool = False) -> bytes:
    """Return the frame around a payload."""
    if len(payload) + _FRAME.size > LIMIT:
        raise KeyRecordError(errno.EMSGSIZE, f"record of {len(payload)} bytes is too long")
    status = _FAILED if failed else _OK
    head = (MAGIC, _ORDER, _POINTER, status, len(payload), zlib.crc32(payload))
    return _FRAME.pack(*head) + payload


def malformed(what: str) -> NoReturn:
    raise KeyRecordError(errno.EPROTO, f"malformed record: {what}")


def decode(record: bytes) -> tuple[bool, bytes]:
    """Return whether the sender failed, and its payload; KeyRecordError if malformed."""
    if not _FRAME.size <= len(record) <= LIMIT:
        malformed(f"{len(record)} bytes")
    magic, order, pointer, status, length, crc = _FRAME.unpack_from(record)
    payload = record[_FRAME.size :]
    if magic != MAGIC:
        malformed(f"begins with {magic!r}; do all ranks run the same version of rmaext?")
    if (order, pointer) != (_ORDER, _POINTER):
        malformed("from a machine of another byte order or word size")
    if status not in (_OK, _FAILED):
        malformed(f"status {status}")
    if length != len(payload) or crc != zlib.crc32(payload):
        malformed("length or checksum do not match")
    return status == _FAILED, payload


def blame(ranks: Sequence[int], error: type[Exception], text: str) -> Exception:
    """Return an error that names the ranks at fault, for all ranks to raise."""
    message = f"{numbers(ranks)}: {text}"
    if issubclass(error, RmaError):
        return of_all(error(errno.EINVAL, message))
    return of_all(error(message))


def succeeded(payload: bytes = b"") -> bytes:
    """Return the record of a rank that is well."""
    return encode(payload)


def failed(error: Exception) -> bytes:
    """Return the record of a rank that has failed."""
    return encode(json.dumps(pack(error)).encode(), failed=True)


def attempt(produce: Callable[[], bytes]) -> tuple[bytes, Exception | None]:
    """Run `produce`; return its record or its error's, and the error."""
    try:
        return succeeded(produce()), None
    except Exception as exc:
        return failed(exc), exc


class Payloads(Sequence[bytes]):
    """What is in records that are in order. There may be a million: each is cut out when asked."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, rank: Any) -> Any:
        return self._records[rank][_FRAME.size :]


def settle(records: Sequence[bytes], own: Exception | None) -> Sequence[bytes]:
    """Return all ranks' payloads, or raise the same error on all.

    It is that of the lowest rank that failed, in words that name all of them.
    """
    failures: dict[int, dict[str, Any]] = {}
    for rank, record in enumerate(records):
        try:
            bad, payload = decode(record)
            if bad:
                failures[rank] = error_record(payload)
        except KeyRecordError as exc:
            failures[rank] = pack(exc) | {"at": ""}  # found here, as by all others: no line of its
    if failures:
        first = failures[min(failures)]
        text = f"{numbers(sorted(failures))}: {first['text']}"
        if (at := first.get("at")) and isinstance(at, str):  # where the first was called
            text += f" ({at[:200]})"
        raise of_all(unpack(first, text)) from own
    return Payloads(records)


def agree(gather: Gather, produce: Callable[[], bytes]) -> Sequence[bytes]:
    """Run `produce` on every rank and return every rank's payload.

    Collective over `gather`. If it raises on some ranks, all raise.
    """
    record, own = attempt(produce)
    return settle(gather(record), own)


T = TypeVar("T")


def parse_all(parse: Callable[[bytes], T], payloads: Sequence[bytes]) -> list[T]:
    """Parse all ranks' payloads; KeyRecordError names the ranks that sent nonsense."""
    parsed: list[T] = []
    wrong: dict[int, KeyRecordError] = {}
    for rank, payload in enumerate(payloads):
        try:
            parsed.append(parse(payload))
        except KeyRecordError as exc:
            wrong[rank] = exc
    if wrong:
        raise blame(list(wrong), KeyRecordError, str(wrong[min(wrong)]))
    return parsed


def error_record(payload: bytes) -> dict[str, Any]:
    """Decode the payload of a rank that failed."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        malformed("no error in it")
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        malformed("no error in it")
    return fields
