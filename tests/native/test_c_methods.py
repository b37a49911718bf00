# SPDX-License-Identifier: BSD-3-Clause
"""The C methods do what the Python methods do, and leak nothing."""

from __future__ import annotations

import gc
import os
import sys
import textwrap
import threading
import warnings
import weakref
from typing import Any

import launch
import numpy as np
import numpy.ma  # else by numpy.unique, the first time that a call waits
import pytest
from c_methods import SIZE, Child, frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from support.guarded import guarded, neighbour, noise, same

import rmaext
from rmaext._ops.many import ManyOperations

pytestmark = pytest.mark.pair

DTYPES = [*"?bBhHiIlLqQefdgFDG", "S5", "U3", "M8[s]", "m8[us]", ">i4", ">f8", "i4,f8"]


def arrays(dtype: Any) -> Any:
    def make(kind: str, count: int, other: Any, seed: int) -> Any:
        used = dtype if kind != "dtype" else other
        flat = noise(used, count, seed).copy()
        return {
            "flat": lambda: flat,
            "dtype": lambda: flat,
            "scalar": lambda: noise(used, 1, seed).copy().reshape(()),
            "numpy scalar": lambda: flat[0] if count else flat,
            "matrix": lambda: flat[: count // 2 * 2].reshape(2, -1),
            "strided": lambda: flat[::2],
            "fortran": lambda: np.asfortranarray(flat[: count // 2 * 2].reshape(2, -1)),
            "read-only": lambda: frozen(flat),
            "subclass": lambda: flat.view(Child),
            "memory of its own dtype": lambda: flat.view(np.dtype(used).newbyteorder("=")),
            "unaligned": lambda: np.frombuffer(b"\0" + flat.tobytes(), used, count, 1),
        }[kind]()

    kinds = ["flat", "dtype", "scalar", "numpy scalar", "matrix", "strided", "fortran"]
    kinds += ["read-only", "subclass", "memory of its own dtype", "unaligned"]
    return st.builds(
        make,
        st.sampled_from(kinds),
        st.integers(0, SIZE + 1),
        st.sampled_from(DTYPES),
        st.integers(0, 5),
    )


NUMBERS = [
    0,
    1,
    -1,
    127,
    128,
    255,
    256,
    2**31,
    2**24,
    -(2**24) - 1,
    -(2**53),
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**400,
]
NUMBERS += [True, 1.0, -0.0, 0.1, 1e39, -1e300, float("inf"), float("nan"), 1j, 3.5 + 1e300j]
NUMBERS += [None, "1", b"1", [1], np.bool_(True), np.int64(3), np.float32(2), np.float64(-2)]
RANKS = st.sampled_from(
    [0, 0, 0, 0, np.int32(0), 1, -1, -7, MPI.PROC_NULL, False, 0.0, None, 2**70]
)
OFFSETS = st.one_of(
    st.integers(-1, SIZE + 1),
    st.sampled_from([np.int8(2), np.uint64(3), True, 1.0, None, "2", 2**62, 2**63, 2**64]),
)
COUNTS = st.one_of(st.none(), st.integers(-1, SIZE + 1), st.sampled_from([2**62, 2**64, 1.0, "1"]))


def outcome(win: Any, method: str, start: Any, args: Any, keywords: Any) -> Any:
    """Result or exception, and what is in the window and in `out` afterwards."""
    win.local[...] = start
    out = keywords.get("out")
    keywords = dict(keywords)
    if isinstance(out, np.ndarray):
        keywords["out"] = out = out.copy(order="K") if out.flags.writeable else frozen(out.copy())
    try:
        got = getattr(win, method)(*args, **keywords)
    except Exception as exc:
        told: Any = (type(exc), str(exc), getattr(exc, "errno", None), getattr(exc, "rank", None))
    else:
        assert got is not win.local
        is_out = out is not None and got is out
        value = np.asarray(got)
        told = (type(got), value.dtype, value.shape, value.tobytes(), is_out)
    left = out.tobytes() if isinstance(out, np.ndarray) else None
    return told, win.local.tobytes(), left


def compare(win: Any, method: str, args: Any, keywords: Any) -> None:
    start = noise(win.dtype, SIZE, 99)
    with np.errstate(all="ignore"):
        fast = outcome(win, method, start, args, keywords)
        slow = outcome(win, "_" + method, start, args, keywords)
    assert fast == slow


MANY = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CHOICE = st.tuples(st.sampled_from(DTYPES), st.sampled_from(["rw", "rw", "rw", "r", "w"]))


def values(dtype: Any) -> Any:
    return st.one_of(arrays(dtype), st.sampled_from(NUMBERS))


@MANY
@given(data=st.data())
@pytest.mark.parametrize("method", ["put", "fetch_add"])
def test_put_and_fetch_add_equal_the_slow_ones(windows, method, data):
    choice = data.draw(CHOICE)
    args = [data.draw(values(choice[0])), data.draw(RANKS)]
    keywords = {}
    how = data.draw(st.sampled_from(["none", "third", "keyword", "all keywords", "wrong"]))
    if how == "third":
        args.append(data.draw(OFFSETS))
    elif how == "keyword":
        keywords["offset"] = data.draw(OFFSETS)
    elif how == "all keywords":
        name = "origin" if method == "put" else "value"
        keywords = {"offset": data.draw(OFFSETS), "rank": args[1], name: args[0]}
        args = []
    elif how == "wrong":
        bad: Any = [({"rank": 0}, 2), ({"offest": 1}, 2), ({}, 1), ({}, 0), ({"a": 1}, 2)]
        keywords, keep = data.draw(st.sampled_from(bad))
        args = args[:keep]
    compare(windows[choice], method, args, keywords)


def test_a_long_double_as_it_is(windows):
    """Its 6 bytes of padding, too, are those of the origin."""
    value = noise("g", 1, 3)[0]
    assert windows["g", "rw"].put(value, 0, 1) is None
    compare(windows["g", "rw"], "put", [value, 0], {})


@MANY
@given(data=st.data())
def test_get_equals_the_slow_one(windows, data):
    choice = data.draw(CHOICE)
    keywords: dict[str, Any] = {}
    args = [data.draw(RANKS), data.draw(OFFSETS)][: data.draw(st.integers(0, 2))]
    if len(args) < 1:
        keywords["rank"] = data.draw(RANKS)
    if data.draw(st.booleans()):
        keywords["count"] = data.draw(COUNTS)
    if data.draw(st.booleans()):
        keywords["out"] = data.draw(st.one_of(st.none(), arrays(choice[0]), st.just([0])))
    compare(windows[choice], "get", args, keywords)


@MANY
@given(data=st.data())
def test_compare_and_swap_equals_the_slow_one(windows, data):
    choice = data.draw(CHOICE)
    win = windows[choice]
    start = noise(win.dtype, SIZE, 99)
    offset = data.draw(OFFSETS)
    hit = start[data.draw(st.integers(0, SIZE - 1))]
    old = data.draw(st.one_of(st.just(hit), values(choice[0])))
    new = data.draw(values(choice[0]))
    compare(win, "compare_and_swap", [old, new, data.draw(RANKS), offset], {})


def indices(good: int) -> Any:
    """Ranks or offsets: numbers, and arrays that C takes as they are, or not."""

    def make(kind: str, count: int, bad: Any, seed: int) -> Any:
        flat = np.random.default_rng(seed).integers(0, good, count)
        if bad is not None and count:
            flat[(0, -1, count // 2)[seed % 3]] = bad
        return {
            "flat": lambda: flat,
            "int32": lambda: flat.astype("i4"),
            "longlong": lambda: flat.astype("q"),
            "swapped": lambda: flat.astype(">i8"),
            "list": lambda: flat.tolist(),
            "float": lambda: flat.astype(float),
            "none": lambda: flat.reshape(())[()] if count == 1 else flat,
            "scalar": lambda: flat[:1].reshape(()) if count else flat,
            "matrix": lambda: flat[: count // 2 * 2].reshape(2, -1),
            "strided": lambda: flat[::2],
            "read-only": lambda: frozen(flat),
            "subclass": lambda: flat.view(Child),
            "unaligned": lambda: np.frombuffer(b"\0" + flat.tobytes(), "i8", count, 1),
        }[kind]()

    kinds = ["flat"] * 6 + ["int32", "longlong", "swapped", "list", "float", "none", "scalar"]
    kinds += ["matrix", "strided", "read-only", "subclass", "unaligned"]
    bad = [None] * 6 + [-1, good, 2**62, -(2**63), 2**63 - 1, 2**40]
    # few counts, so that shapes often fit
    made = st.builds(
        make,
        st.sampled_from(kinds),
        st.sampled_from([4, 4, 4, 1, 0, 5, 9]),
        st.sampled_from(bad),
        st.integers(0, 5),
    )
    numbers = [0, 0, np.int8(0), good - 1, good, -1, True, 0.0, None, 2**70, np.timedelta64(0, "s")]
    return st.one_of(made, made, st.sampled_from(numbers))


@MANY
@given(data=st.data())
@pytest.mark.parametrize("method", ["put_many", "get_many", "fetch_add_many", "accumulate_many"])
def test_many_equal_the_slow_ones(windows, method, data):
    choice = data.draw(CHOICE)
    args = [data.draw(indices(1)), data.draw(indices(SIZE))]
    keywords = {}
    if method != "get_many":
        count = data.draw(st.sampled_from([4, 4, 4, 1, 5]))
        fitting = st.just(noise(choice[0], count, 5).copy())
        args.append(data.draw(st.one_of(fitting, values(choice[0]))))
    elif data.draw(st.booleans()):
        fitting = st.sampled_from([4, 4, 1, 5]).map(lambda n: np.zeros(n, choice[0]))
        keywords["out"] = data.draw(st.one_of(st.none(), fitting, arrays(choice[0])))
    how = data.draw(st.sampled_from(["none", "none", "none", "keywords", "wrong", "few"]))
    if how == "keywords":
        names = ["ranks", "offsets", "values"]
        keywords |= dict(zip(names[1:], args[1:], strict=False))
        args = args[:1]
    elif how == "wrong":
        keywords["value"] = 1
    elif how == "few":
        args = args[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(windows[choice], method, args, keywords)


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_plain_many_do_without_python(monkeypatch, windows, count):
    """With the GIL and without."""
    for name in ("put_many", "get_many", "fetch_add_many", "accumulate_many"):
        monkeypatch.delattr(ManyOperations, f"_{name}")
    win = windows["l", "rw"]
    win.local[:] = 0
    ranks, offsets, data = np.zeros(count, int), np.arange(count) % SIZE, np.arange(count)
    win.put_many(ranks, offsets, data)
    win.put_many(ranks=0, offsets=offsets, values=data)
    want = win.local[offsets].copy()
    assert set(data[-SIZE:]) <= set(want)
    assert same(win.get_many(ranks, offsets), want)
    assert win.get_many(0, offsets, data) is data
    assert same(data, want)
    assert same(win.fetch_add_many(ranks, offsets, 0), want)
    win.accumulate_many(0, 3, data)
    with pytest.raises(AttributeError, match="_put_many"):
        win.put_many(ranks, offsets - 1, data)


@pytest.mark.parametrize("name", ["put", "accumulate", "get_accumulate", "fetch_add", "put_notify"])
@pytest.mark.parametrize("key", [np.s_[::2, 1], np.s_[1:, ::-1], np.s_[1]], ids=str)
def test_origins_in_pieces_do_without_python(monkeypatch, windows, name, key):
    """They are packed in C: there it costs what the copy costs."""
    win = windows["f8", "rw"]
    origin = np.asfortranarray(np.arange(12.0).reshape(3, 4))[key]
    assert not origin.flags.c_contiguous
    if name == "put_notify":  # the first to a slot says from where
        win.put_notify([], 0)
        assert win.wait_notify(0, timeout=5) == 1
    win.local[:] = 1
    with monkeypatch.context() as only:
        only.setattr(rmaext.Window, f"_{name}", None)
        getattr(win, name)(origin, 0, 2)
    want = np.ones(SIZE)
    flat = np.ascontiguousarray(origin).reshape(-1)
    want[2 : 2 + flat.size] = flat + (0 if name.startswith("put") else 1)
    assert same(win.local, want)
    assert name != "put_notify" or win.wait_notify(0, timeout=5) == 1


@pytest.mark.parametrize("args", [(), (None,), (0,), (1,), (-1,), (MPI.PROC_NULL,), ("0",), (0, 0)])
def test_flush_equals_the_slow_one(windows, args):
    compare(windows["d", "rw"], "flush", args, {})


def test_the_name_in_errors_is_that_of_the_method(windows):
    win = windows["d", "rw"]
    many = ["put_many", "get_many", "fetch_add_many", "accumulate_many"]
    for name in ("put", "get", "fetch_add", "compare_and_swap", *many):
        with pytest.raises(TypeError, match=rf"Window\.{name}\(\) missing"):
            getattr(win, name)()
        assert "Local, blocking" in (doc := getattr(win, name).__doc__) or name == "put"
        assert "Parameters" in doc or name == "fetch_add_many"  # as fetch_op_many
    with pytest.raises(TypeError, match=r"Window\.flush\(\)"):
        win.flush(0, 1)


def test_a_call_without_a_window():
    bare = rmaext.Window.__new__(rmaext.Window)
    for call in (lambda: bare.put(1, 0), lambda: bare.get(0), bare.flush):
        with pytest.raises(AttributeError):  # it has not even a name
            call()
    with pytest.raises(ValueError, match="no window"):
        _ = bare.numba


def test_every_dtype_and_size(comm):
    """Short and long, aligned and not, by any route."""
    right = neighbour(comm)
    for dtype in "bhilD":
        for count in (0, 1, 2, 3, 16, 17, 70_000):
            with guarded(comm, count + 3, dtype) as win:
                win.fence()
                data = noise(dtype, count, comm.rank)
                win.put(data, right, 3)
                win.fence()
                left = noise(dtype, count, (comm.rank - 1) % comm.size)
                assert win.local[3:].tobytes() == left.tobytes()
                assert same(win.get(right, 3), data)
                out = np.empty(count, dtype)
                assert win.get(right, 3, out=out) is out
                assert same(out, data)
                win.fence()


def test_overlap(comm):
    """The origin may lie in the own window, where that is this process's to copy."""
    with guarded(comm, 100_000, "i8", 0) as win:
        if win.route(comm.rank) != "direct":
            pytest.skip("undefined there, as in MPI")
        win.local[:] = np.arange(100_000)
        win.fence()
        for count in (1, 7, 90_000):
            win.local[:] = np.arange(100_000)
            win.put(win.local[:count], comm.rank, 5)
            win.flush()
            assert win.local[5 : 5 + count].tolist() == list(range(count))
        win.fence()


# -- life --------------------------------------------------------------------------


def test_closed(comm):
    array = np.zeros(3)
    win = rmaext.Window.allocate(comm, SIZE)
    buffer = win.register(array)
    made = [
        win.prepare_put(array, 0),
        win.prepare_get(array, 0),
        win.prepare_fetch_add(1.0, 0),
        lambda: buffer.put(0),
        lambda: buffer.get(0),
        lambda: buffer.fetch_add(0),
        lambda: win.register(array),
        lambda: win.prepare_put(array, 0),
    ]
    for run in made:
        run()
    win.close()
    for run in made:
        with pytest.raises(rmaext.ClosedError):
            run()


def test_forked(comm):
    win = rmaext.Window.allocate(comm, SIZE, int)
    runs = [
        win.prepare_fetch_add(1, 0),
        lambda: win.put(1, 0),
        lambda: win.get(0),
        lambda: win.fetch_add(1, 0),
        lambda: win.compare_and_swap(0, 1, 0),
        lambda: win.flush(),
        lambda: win.put_many(0, 0, 1),
        lambda: win.get_many(0, np.arange(3)),
        win.register(np.zeros(1, int)).array.sum,  # lives on
    ]
    child = os.fork()
    if not child:
        refused = 0
        for run in runs:
            try:
                run()
            except rmaext.ClosedError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
    win.fence()
    assert win.local.sum() == 0
    win.close()


def allocated() -> int:
    """Blocks of memory in use, but for what Python's cache of attributes keeps.

    Its thousands of entries hold names, also those that C makes anew each time, such
    as NumPy for each dtype that it prints.
    """
    clear = getattr(sys, "_clear_internal_caches", None)  # since Python 3.13
    (clear or sys._clear_type_cache)()
    gc.collect()
    return sys.getallocatedblocks()


def test_nothing_leaks(comm):
    """Neither references nor memory, in success, refusal and conversion."""
    rank = neighbour(comm)
    with guarded(comm, SIZE, "l") as win:
        array, out, number = np.arange(4), np.zeros(4, int), 12345678
        ranks, large = np.full(4, rank), np.zeros(5000, int)
        kept = [win, array, out, number, win.dtype, win.local, None, "offset", ranks, large]
        kinds = [type(it).__name__ for it in kept]
        buffer = win.register(array)

        def refuse(call: Any) -> None:
            with pytest.raises((rmaext.RmaError, TypeError, OverflowError)):
                call()

        def work() -> None:
            win.put(array, rank, 3)
            win.put(number, rank)
            win.put(array[::2], rank=rank)
            win.get(rank, 1, 4, out)
            win.get(rank, 1, count=4)
            win.get(rank)
            win.fetch_add(array, rank, offset=1)
            win.fetch_add(number, rank)
            win.fetch_add(np.int64(1), np.int64(rank))
            win.compare_and_swap(1, number, rank)
            win.flush(rank)
            win.flush()
            win.prepare_put(array, rank)()
            win.prepare_get(out, rank)()
            win.prepare_fetch_add(array, rank)()
            buffer.put(rank, 1)
            buffer.fetch_add(rank)
            win.put_many(ranks, array, array)
            win.put_many(ranks, offsets=array, values=number)
            win.get_many(ranks, array)
            win.get_many(rank, array, out)
            win.fetch_add_many(ranks, array, number)
            win.fetch_add_many(rank, 1, number)
            win.accumulate_many(rank, array, array)
            win.register(out).get(rank)

        def odd() -> None:
            refuse(lambda: win.put(array, rank, SIZE))
            refuse(lambda: win.get(rank, SIZE, 4))
            refuse(lambda: win.fetch_add(1.5, rank))
            refuse(lambda: win.put(2**70, rank))
            refuse(lambda: win.flush(77))
            refuse(lambda: win.put_many(ranks, array + SIZE, array))
            refuse(lambda: win.fetch_add_many(ranks, array, 1.5))
            refuse(lambda: win.get_many(ranks, -array, out))

        def long() -> None:
            win.put_many(rank, large, large)
            win.get_many(rank, large)
            win.get_many(rank, large, large)  # the indices are copied

        turns = 500 if win.route(rank) == "direct" else 120  # some take a message each
        for action in (work, odd, long):
            for _ in range(100):
                action()
            blocks, counts = allocated(), [sys.getrefcount(it) for it in kept]
            for _ in range(turns if action is not long else 100):
                action()
            more = allocated() - blocks
            grown = [sys.getrefcount(it) - n for it, n in zip(kept, counts, strict=True)]
            said = f"{action.__name__}: {more} blocks; {[*zip(kinds, grown, strict=True)]}"
            assert max(map(abs, [*grown, more])) < 50, said
        win.fence()


def test_cycles_are_collected():
    class Holder(np.ndarray):
        win: Any

    win = rmaext.Window.allocate(MPI.COMM_SELF, SIZE)
    holder = np.zeros(3).view(Holder)
    holder.again = [win.register(holder), win.prepare_put(holder, 0)]
    win.close()
    gone = []
    weakref.finalize(win, gone.append, 1)
    win.holder = holder
    del win, holder
    gc.collect()
    assert gone == [1]


def test_threads(comm):
    """Long transfers, which drop the GIL, beside short ones; none is lost."""
    rank, turns = neighbour(comm), 300
    with guarded(comm, 50_000, "l", 0) as win:
        win.fence()
        data = np.arange(40_000)
        errors = []

        def work(number: int) -> None:
            try:
                for _ in range(turns):
                    win.fetch_add(1, rank, number)
                    win.fetch_add(1, rank, 9)
                    if not number:
                        win.put(data, rank, 10_000)
                        assert win.get(rank, 10_000).tolist() == data.tolist()
            except BaseException as exc:
                errors.append(exc)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        win.fence()
        assert win.local[:4].tolist() == [turns] * 4
        assert win.local[9] == 4 * turns
        win.fence()


def test_closing_while_others_use_it():
    """Each call ends well, or with ClosedError."""
    for _ in range(20):
        win = rmaext.Window.allocate(MPI.COMM_SELF, 100_000, int)
        data, put = np.arange(50_000), win.prepare_put(np.arange(50_000), 0)
        ended = []

        def work(win: Any = win, put: Any = put, ended: Any = ended, data: Any = data) -> None:
            try:
                while True:
                    put()
                    win.fetch_add(1, 0)
                    win.get(0, out=data)
                    win.flush()
            except rmaext.ClosedError:
                ended.append(True)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        win.close()
        for thread in threads:
            thread.join()
        assert len(ended) == 3


INTERRUPTED = """
    import signal, sys, time
    import numpy as np
    import rmaext
    from mpi4py import MPI
    from support.processes import ring_in_wait

    class Ring(Exception):
        pass

    def ring(*_):
        raise Ring

    comm = MPI.COMM_WORLD
    win = rmaext.Window.allocate(comm, 300_000, int)
    win.put(comm.rank, 1 - comm.rank)  # connects
    win.fence()
    comm.Barrier()  # nobody is in that fence, and serves, any more
    if comm.rank:
        while not comm.iprobe(source=0):  # absent: it answers nobody
            time.sleep(0.01)
        comm.recv(source=0)
    else:
        fabric, big = win._fabric, np.ones(200_000, int)
        references = sys.getrefcount(big)
        calls = [
            lambda: win.get(1, out=big),
            lambda: win.put(big, 1),
            lambda: win.fetch_add(1, 1),
            win.prepare_get(big, 1),
            lambda: win.flush(1),
        ]
        held = sys.getrefcount(big) - references
        for call in calls:
            ring_in_wait(ring, 0.3)
            try:
                call()
            except Ring:
                continue
            raise AssertionError(f"call {calls.index(call)} returned")
        # a message is given up at once: what is answered late finds no buffers
        assert fabric._orphans == 3, fabric._orphans
        assert not fabric._in_flight, fabric._in_flight
        assert sys.getrefcount(big) >= references + held + 3
        comm.send(0, 1)
    win.fence()
    if not comm.rank:
        # once they have ended the next operation lets go of their buffers
        deadline = time.monotonic() + 20
        while fabric._orphans:
            win.get(1, 0, 1)
            assert time.monotonic() < deadline, fabric._orphans
        assert sys.getrefcount(big) == references + held
    win.fence()
    comm.Barrier()
    if comm.rank:
        while not comm.iprobe(source=0):  # absent again
            time.sleep(0.01)
        comm.recv(source=0)
    else:  # with a handler that returns
        rings = []
        def ring_on(*_):
            if not rings:
                comm.send(0, 1)
            rings.append(1)
        signal.signal(signal.SIGALRM, ring_on)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.05)
        assert win.get(1, 1, 1)[0] == big[1]
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert rings
    win.close()
    print("well")
"""


def test_a_signal_while_an_operation_is_on_its_way(mpirun, tmp_path):
    """C keeps its buffers, and lets go of them when it is done."""
    program = tmp_path / "interrupted.py"
    program.write_text(textwrap.dedent(INTERRUPTED))
    env = {"RMAEXT_ROUTE": "fabric", "RMAEXT_PROGRESS": "0", "PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(2, str(program), env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("well") == 2


def test_the_words_of_another_thread_are_not_taken(windows):
    win = windows["d", "rw"]
    with pytest.raises(rmaext.BoundsError):
        win.put(1.0, 5)
    with pytest.raises(rmaext.PeerLostError) as caught:
        win.check(-107)
    assert "rank 5" not in str(caught.value)
    win.check(0)
