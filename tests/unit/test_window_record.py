# SPDX-License-Identifier: BSD-3-Clause
"""Records on the wire: whatever arrives is a record or a KeyRecordError, never anything else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rmaext
from rmaext._comm import agreement, window_record
from rmaext._comm.window_record import WindowRecord
from rmaext._runtime import failures

settings.register_profile("quick", deadline=None, derandomize=True, database=None)
settings.load_profile("quick")

U64 = 2**64
RECORDS = st.builds(
    WindowRecord,
    size=st.integers(0, 2**63 - 1),
    base=st.integers(0, 2**63 - 1),
    access=st.integers(1, 3),
    dtype=st.text(max_size=200).filter(lambda text: len(text.encode("utf-8", "replace")) < 1000),
    key=st.binary(max_size=300),
    address=st.integers(0, 2**63 - 1),
    shape=st.lists(st.integers(0, 2**63 - 1), max_size=32).map(tuple),
    block=st.tuples(st.integers(-1, 2**31), *[st.integers(0, 2**63 - 1)] * 3),
    parts=st.integers(0, 2**32 - 1),
    exported=st.just(b""),
).filter(lambda record: record.dtype.isprintable())
GOOD = WindowRecord(800, 4096, 3, "<f8", bytes(range(32)), 16, (10, 10), (5, 6, 7, 8), 2)
FRAME = agreement.encode(GOOD.pack())


ON_DEVICES = st.builds(
    lambda record, exported: record._replace(access=11, key=b"", exported=exported),
    RECORDS,
    st.just(b"") | st.binary(min_size=96, max_size=96),
)


@given(RECORDS | ON_DEVICES)
def test_round_trip(record):
    frame = agreement.encode(record.pack())
    assert agreement.decode(frame) == (False, record.pack())
    assert WindowRecord.unpack(agreement.decode(frame)[1]) == record


def test_what_no_device_exports():
    record = GOOD._replace(access=11, key=b"", exported=bytes(95))
    with pytest.raises(rmaext.KeyRecordError, match="map a device's memory"):
        WindowRecord.unpack(record.pack())


@pytest.mark.parametrize("size", [65_500, 65_536, 200_000])
def test_a_dtype_of_too_many_fields(size):
    """Also one whose length the record has no room for."""
    with pytest.raises(rmaext.KeyRecordError, match="too long"):
        agreement.encode(GOOD._replace(dtype="x" * size).pack())


@given(st.binary(max_size=5000), st.booleans())
def test_frame_round_trip(payload, failed):
    assert agreement.decode(agreement.encode(payload, failed)) == (failed, payload)


def test_largest_record():
    room = agreement.LIMIT - len(agreement.encode(b""))
    assert agreement.decode(agreement.encode(bytes(room))) == (False, bytes(room))
    with pytest.raises(rmaext.KeyRecordError, match="too long"):
        agreement.encode(bytes(room + 1))
    with pytest.raises(rmaext.KeyRecordError, match="bytes"):
        agreement.decode(agreement.encode(bytes(room)) + b"x")


@pytest.mark.parametrize("dtype", ["i1", "<f8", ">f8", "c16", "M8[ns]", "i4,f8", "V7", "U3"])
def test_text_of_a_dtype(dtype):
    """Two dtypes share it if and only if they are one layout."""
    dtype = np.dtype(dtype)
    others = map(np.dtype, ["u1", "<f4", "<c8", "M8[us]", "i4,f4", "V8", "U4", "i4,i8"])
    assert window_record.dtype_text(dtype) == window_record.dtype_text(
        np.dtype(dtype.descr if dtype.fields else dtype)
    )
    assert window_record.dtype_text(dtype) not in map(window_record.dtype_text, others)


def outcome(record):
    try:
        failed, payload = agreement.decode(record)
        return "decoded" if failed else WindowRecord.unpack(payload)
    except rmaext.KeyRecordError:
        return "refused"


@pytest.mark.parametrize("n", [0, 1, 15, len(FRAME) - 1, *range(16, len(FRAME), 9)])
def test_truncated(n):
    assert outcome(FRAME[:n]) == "refused"


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit(bit):
    """Only the pad byte of the frame, and the sender's own word that it failed, may differ."""
    for at in range(len(FRAME)):
        record = bytearray(FRAME)
        record[at] ^= 1 << bit
        result = outcome(bytes(record))
        assert result == "refused" or (at, bit, result) == (6, 0, "decoded") or at == 7, (at, bit)


def test_ten_thousand_mutations():
    """Of payloads with a right checksum, and of whole frames."""
    rng = np.random.default_rng(5)
    results = []
    for i in range(10_000):
        raw = bytearray(GOOD.pack() if i % 2 else FRAME)
        for _ in range(rng.integers(1, 5)):
            at = int(rng.integers(len(raw) + 1))
            match rng.integers(4):
                case 0:
                    del raw[at : at + int(rng.integers(1, 40))]
                case 1:
                    raw[at:at] = rng.bytes(int(rng.integers(1, 40)))
                case 2:
                    raw[at:] = rng.bytes(len(raw) - at)
                case _:
                    raw[at : at + 1] = rng.bytes(1)
        results.append(outcome(agreement.encode(bytes(raw)) if i % 2 else bytes(raw)))
    assert results.count("refused") > 6000
    for result in results:
        if isinstance(result, WindowRecord):
            assert result.size + result.base < U64
            assert result.access & 3
            assert result.access < 16


@given(st.binary(max_size=200))
def test_noise(noise):
    assert outcome(noise) == "refused"
    try:
        WindowRecord.unpack(noise)
    except rmaext.KeyRecordError:
        pass


# -- agreement -------------------------------------------------------------------


def rank_of(rank, others):
    """A gather over ranks of which one is this process."""

    def gather(record):
        return [*others[:rank], record, *others[rank:]]

    return gather


def test_agree_returns_everybody_s_payload():
    others = [agreement.succeeded(b"zero"), agreement.succeeded(b"two")]
    agreed = agreement.agree(rank_of(1, others), lambda: b"one")
    assert list(agreed) == [b"zero", b"one", b"two"]


def raise_(error):
    raise error


@pytest.mark.parametrize("cls", [TypeError, ValueError, OverflowError, MemoryError, KeyError])
def test_own_failure_is_sent_and_raised(cls):
    sent = []

    def gather(record):
        sent.append(record)
        return [agreement.succeeded(b""), record]

    with pytest.raises(cls, match=r"^\W?rank 1: .*words") as caught:
        agreement.agree(gather, lambda: raise_(cls("words")))
    assert isinstance(caught.value.__cause__, cls)
    assert agreement.decode(sent[0])[0]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_sent(interrupt):
    with pytest.raises(interrupt):
        agreement.agree(lambda record: pytest.fail("gathered"), lambda: raise_(interrupt()))


def test_same_error_on_all_ranks():
    """That of the lowest rank that failed, naming all; malformed records count."""
    errors_ = [None, TypeError("no array"), None, ValueError("other"), None]
    sent = [agreement.failed(e) if e else agreement.succeeded(b"fine") for e in errors_]
    sent.append(b"GET / HTTP/1.1")
    texts = set()
    for own in [*errors_, None]:
        with pytest.raises(TypeError) as caught:
            agreement.settle(sent, own)
        assert caught.value.__cause__ is own
        texts.add(str(caught.value))
    (text,) = texts
    assert text.startswith("ranks 1, 3, 5: no array (test_window_record.py:"), text


def test_malformed_record_names_its_rank():
    with pytest.raises(rmaext.KeyRecordError, match=r"^rank 1: malformed record"):
        agreement.settle([agreement.succeeded(b""), agreement.succeeded(b"")[:-1] + b"x"], None)
    with pytest.raises(rmaext.KeyRecordError, match=r"^ranks 0, .*, 15, \.\.\.: malformed"):
        agreement.settle([b""] * 40, None)


def test_record_too_long_is_an_error_everywhere():
    with pytest.raises(rmaext.KeyRecordError, match=r"rank 0: record of .* too long"):
        agreement.agree(rank_of(0, [agreement.succeeded(b"")]), lambda: bytes(agreement.LIMIT))


def test_words_of_any_length_fit():
    for text in "x" * 10**6, "\u20ac" * 10**6, "\0" * 10**6:
        with pytest.raises(ValueError, match="rank 0: "):
            agreement.agree(rank_of(0, []), lambda text=text: raise_(ValueError(text)))


def test_parse_all():
    assert agreement.parse_all(WindowRecord.unpack, [GOOD.pack()] * 3) == [GOOD] * 3
    with pytest.raises(rmaext.KeyRecordError, match=r"^ranks 0, 2: .*malformed"):
        agreement.parse_all(WindowRecord.unpack, [b"", GOOD.pack(), GOOD.pack()[:-1]])


# -- what a hostile rank sends as its error ----------------------------------------

CLASSES = failures._NAMED
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
HOSTILE = st.fixed_dictionaries(
    {
        "type": JSON
        | st.sampled_from([*CLASSES, "exit", "__import__", "SystemExit", "StopIteration"]),
        "errno": JSON | st.sampled_from([10**4000, -(2**63), 1.5, True]),
        "text": JSON | st.text(max_size=3000),
    },
    optional={"detail": JSON},
)


def settled(payload):
    """The error that a failed rank's payload becomes."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        agreement.settle([agreement.encode(payload, failed=True)], None)
    assert type(caught.value) in CLASSES.values(), repr(caught.value)
    assert str(caught.value.args[-1]).startswith("rank 0: ")
    assert repr(caught.value)
    assert str(caught.value)
    return caught.value


@given(HOSTILE)
def test_hostile_error(record):
    error = settled(json.dumps(record).encode())
    if isinstance(record["text"], str):
        name = record["type"]
        assert type(error) is CLASSES.get(name if isinstance(name, str) else "", rmaext.RmaError)
    else:
        assert type(error) is rmaext.KeyRecordError


@given(JSON)
def test_hostile_json(value):
    settled(json.dumps(value).encode())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b'{"type": "TypeError"}',
        b'{"text": null}',
        b"[" * 60_000,
        b'{"text": ' * 7_000,
        b'{"text": "x", "errno": ' + b"9" * 50_000 + b"}",
        b'{"text": "x", "errno": 1e999, "type": NaN}',
        b'{"text": "\\ud800"}',
        '{"text": "x"}'.encode("utf-16"),
    ],
    ids=range(12),
)
def test_hostile_payload(payload):
    settled(payload)
