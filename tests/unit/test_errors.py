# SPDX-License-Identifier: BSD-3-Clause
"""Which exception each error code becomes, and what it carries."""

from __future__ import annotations

import copy
import errno
import json
import pickle
import traceback
from pathlib import Path

import numpy as np
import pytest

import rmaext
from rmaext import errors
from rmaext._native._lib import ffi, lib
from rmaext._runtime import failures

# class: its builtin, and the codes that become it
MAP = {
    rmaext.RmaError: (OSError, "EINVAL EMSGSIZE EAGAIN EPROTO E2BIG ENODEV"),
    rmaext.BoundsError: (IndexError, "ERANGE"),
    rmaext.AccessError: (PermissionError, "EACCES"),
    rmaext.AlignmentError: (ValueError, "EFAULT"),
    rmaext.ClosedError: (ValueError, "ESHUTDOWN"),
    rmaext.Unsupported: (NotImplementedError, "EOPNOTSUPP ENOSYS"),
    rmaext.RmaTimeout: (TimeoutError, "ETIMEDOUT"),
    rmaext.PeerLostError: (
        ConnectionError,
        "ENOTCONN ECONNREFUSED ECONNRESET ECONNABORTED EHOSTUNREACH EHOSTDOWN ENETUNREACH "
        "ENETDOWN EPIPE EIO ECANCELED",
    ),
    rmaext.NoProviderError: (LookupError, "ENODATA"),
    rmaext.NotLocalError: (ValueError, "EREMOTE"),
    rmaext.LibraryError: (LookupError, "ENOENT"),
    rmaext.KeyRecordError: (ValueError, ""),
    rmaext.AttachError: (ValueError, ""),
    rmaext.SyncError: (RuntimeError, ""),
    # those that fi_mr(3) documents; -FI_ENOSYS is Unsupported
    rmaext.NoKeyError: (ValueError, "FI_ENOKEY"),
    rmaext.KeyRejectedError: (ValueError, "EKEYREJECTED"),
    rmaext.FlagsError: (ValueError, "FI_EBADFLAGS"),
    rmaext.TooSmallError: (ValueError, "FI_ETOOSMALL"),
    rmaext.BusyError: (RuntimeError, "EBUSY"),
    rmaext.GrantError: (RuntimeError, ""),
    rmaext.CapacityError: (RuntimeError, ""),
    rmaext.AddressError: (ValueError, ""),
}
FI = {"FI_ETOOSMALL": 257, "FI_EBADFLAGS": 260, "FI_ENOKEY": 266}  # of libfabric itself
CODES = [(name, cls) for cls, (_, names) in MAP.items() for name in names.split()]
BUILTINS = [TypeError, ValueError, IndexError, OverflowError, MemoryError]


def number(name):
    return FI[name] if name in FI else getattr(errno, name)


def fail():
    """Leave a record of a failed call on the C side; returns its code."""
    return lib.rmaext_library_open(b"/no/such/libfabric.so", 0, ffi.new("rmaext_library **"))


def test_all_exceptions_are_public():
    assert {cls.__name__ for cls in MAP} == set(errors.__all__)
    assert all(getattr(rmaext, cls.__name__) is cls for cls in MAP)
    assert set(errors.__all__) < set(rmaext.__all__)


@pytest.mark.parametrize(("cls", "builtin"), [(cls, base) for cls, (base, _) in MAP.items()])
def test_classes(cls, builtin):
    assert issubclass(cls, builtin)
    assert issubclass(cls, rmaext.RmaError)
    assert issubclass(cls, OSError)
    assert cls.__doc__
    error = cls(errno.EINVAL, "words", call="get", rank=3, detail="more words")
    plain = cls(errno.EINVAL, "words")
    assert (plain.call, plain.rank, plain.detail) == ("", None, "words")
    for same in error, pickle.loads(pickle.dumps(error)), copy.deepcopy(error):
        assert type(same) is cls
        assert str(same) == same.strerror == "words"
        assert (same.errno, same.call, same.rank) == (errno.EINVAL, "get", 3)
        assert same.detail == "more words"
        assert same.args == error.args
        assert vars(same) == vars(error)
        assert "words" in repr(same)
    assert f"{cls.__name__}: words" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(("name", "cls"), CODES)
def test_codes(name, cls):
    code = fail()
    error = failures.from_c(-number(name), "put: window 1, rank 0, offset 5, length 2")
    assert type(error) is cls
    assert error.errno == number(name)
    assert error.call == "dlopen"
    assert error.rank is None
    assert "/no/such/libfabric.so" in error.detail
    assert str(error) == f"put: window 1, rank 0, offset 5, length 2: {error.detail}"
    assert code == -errno.ENOENT


@pytest.mark.parametrize(
    ("call", "name", "cls"),
    [
        ("put", "ERANGE", rmaext.BoundsError),
        ("fi_cq_readerr", "ERANGE", rmaext.RmaError),  # the provider's, not of our check
        ("fi_cq_readerr", "EACCES", rmaext.RmaError),
        ("post", "ENOENT", rmaext.RmaError),
        ("post", "ENOTCONN", rmaext.PeerLostError),
        ("fi_cq_readerr", "EIO", rmaext.PeerLostError),
        ("fi_cq_readerr", "ETIMEDOUT", rmaext.RmaTimeout),
        ("fi_domain", "EIO", rmaext.RmaError),  # no peer yet
        ("fi_getinfo", "ENODATA", rmaext.NoProviderError),
        ("process_vm_writev", "EFAULT", rmaext.RmaError),  # the kernel's
        ("process_vm_readv", "EFAULT", rmaext.RmaError),
        ("process_vm_readv", "ENOTCONN", rmaext.PeerLostError),
        ("mmap", "ENOENT", rmaext.RmaError),
        ("mmap", "EACCES", rmaext.RmaError),
    ],
)
def test_meaning_depends_on_the_call(call, name, cls):
    assert failures._class_of(getattr(errno, name), call) is cls


def test_map_is_complete():
    """Every code in it is one of those above."""
    assert set(failures._CLASSES) == {
        number(name) for name, cls in CODES if cls is not rmaext.RmaError
    }


def test_no_memory_is_the_builtin():
    fail()
    error = failures.from_c(-errno.ENOMEM, "get")
    assert type(error) is MemoryError
    assert "get" in str(error)


def test_check():
    failures.check(0)
    with pytest.raises(rmaext.LibraryError, match=r"^dlopen: .*/no/such/libfabric\.so") as caught:
        failures.check(fail())
    assert caught.value.call == "dlopen"


def test_each_thread_has_its_own_record(run_python):
    code = """
        import mpi4py, threading
        mpi4py.rc.initialize = False  # only to be quicker
        from rmaext._runtime import failures
        from rmaext._native._lib import ffi, lib
        def fail(name, out):
            for _ in range(2000):
                code = lib.rmaext_library_open(name.encode(), 0, ffi.new("rmaext_library **"))
                error = failures.from_c(code)
                assert name in str(error), (name, str(error))
            out.append(name)
        out = []
        threads = [threading.Thread(target=fail, args=(f"/none/{i}", out)) for i in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(out) == 4
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cls", [*MAP, *BUILTINS])
def test_description_for_the_other_ranks(cls):
    """Of the same type there; an error that has no class here is an RmaError."""
    ours = issubclass(cls, OSError)
    error = cls(errno.EACCES, "words", call="fi_close") if ours else cls("words")
    there = failures.unpack(failures.pack(error), "rank 3: words")
    assert type(there) is cls
    assert str(there) == "rank 3: words"
    if isinstance(there, OSError):
        assert (there.errno, there.call) == (errno.EACCES, "fi_close")


class OwnBoundsError(rmaext.BoundsError):
    """As a user may derive one."""


class Bare(Exception):
    """Nothing that the other ranks know."""


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (ZeroDivisionError("words"), ZeroDivisionError),
        (FileNotFoundError(2, "words"), FileNotFoundError),
        (FileNotFoundError("words"), FileNotFoundError),
        (OSError(errno.EMFILE, "words"), OSError),
        (np.exceptions.AxisError("words"), ValueError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "words"), UnicodeError),
        (OwnBoundsError(errno.ERANGE, "words"), rmaext.BoundsError),
        (KeyboardInterrupt(), rmaext.RmaError),
        (SystemExit(1), rmaext.RmaError),
        (StopIteration("words"), rmaext.RmaError),
        (Bare("words"), rmaext.RmaError),
        (Exception("words"), rmaext.RmaError),
    ],
)
def test_description_of_any_other_error(error, cls):
    """It is there what it derives from, as far as the others know that."""
    record = failures.pack(error)
    there = failures.unpack(json.loads(json.dumps(record)), "rank 3: words")
    assert type(there) is cls
    assert str(there).endswith("rank 3: words")
    if isinstance(error, OSError):
        assert there.errno == error.errno
    assert ("words" in record["text"]) == ("words" in str(error))


def test_description_of_a_file():
    with pytest.raises(FileNotFoundError) as caught:
        Path("/no/such/file").read_text()
    record = failures.pack(caught.value)
    assert record["text"] == "No such file or directory: '/no/such/file'"
    there = failures.unpack(record, f"rank 3: {record['text']}")
    assert str(there) == f"[Errno 2] rank 3: {record['text']}"


def test_ranks_that_are_lost_are_known_everywhere():
    error = rmaext.PeerLostError(errno.ENOTCONN, "words", rank=1)
    error.ranks = (1, 4)
    for same in pickle.loads(pickle.dumps(error)), copy.copy(error):
        assert (same.ranks, same.rank) == ((1, 4), 1)
    there = failures.unpack(json.loads(json.dumps(failures.pack(error))), "text")
    assert (there.ranks, there.rank) == ((1, 4), 1)
    wild = {"type": "PeerLostError", "ranks": [1, "x", None, -1, 1 << 99], "rank": ["x"]}
    there = failures.unpack(wild, "text")
    assert (there.ranks, there.rank) == ((1,), None)
    assert failures.unpack({"type": "PeerLostError", "ranks": 7, "rank": 7}, "text").ranks == ()


class Bare2(rmaext.PeerLostError):
    """As a user may derive one."""

    def __init__(self):
        self.ranks = (np.int64(3), "x", object())


def test_whatever_a_user_made_of_it_can_be_sent():
    """Else one rank would leave before the others know."""
    there = failures.unpack(json.loads(json.dumps(failures.pack(Bare2()))), "text")
    assert (type(there), there.ranks, there.rank) == (rmaext.PeerLostError, (3,), None)
    error = rmaext.BoundsError(errno.ERANGE, "words", rank=np.int64(3))
    assert failures.unpack(json.loads(json.dumps(failures.pack(error))), "text").rank == 3


def test_who_has_no_words_is_told_by_its_name():
    for error in (MemoryError(), KeyboardInterrupt(), ValueError()):
        assert failures.pack(error)["text"] == type(error).__name__


class Odd(Exception):
    """As a user's __index__ or __array_interface__ may raise."""

    errno = object()

    def __str__(self):
        raise RuntimeError("no words")


def test_description_of_an_odd_error():
    record = failures.pack(Odd())
    assert type(failures.unpack(record, "text")) is rmaext.RmaError
    assert isinstance(record["text"], str)
    long = failures.pack(ValueError("\u20ac\ud800" * 100_000))
    assert len(long["text"]) <= 2000
