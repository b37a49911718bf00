# SPDX-License-Identifier: BSD-3-Clause
"""Store: against a plain list of all ranks' records, on every route."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import launch
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.guarded import in_threads, noise, rounds, same
from support.jobs import PRELUDE, clean, passes, start

import rmaext
from rmaext.containers import Prefetch, Store, TorchDataset

DTYPES = ["i1", "?", "u2", "f4", ">i4", "f8", "c16", "S5", "U3", "M8[s]"]
DTYPES += [[("a", "i4"), ("b", "f8")], [("x", "u1"), ("y", "f4", (2,))]]


def records(draw, dtype, count, shape):
    """So many records, whose shapes are what shape() returns."""
    made = []
    for _ in range(count):
        dims = shape()
        made.append(noise(dtype, int(np.prod(dims)), draw.getrandbits(30)).reshape(dims))
    return made


def everybody(draw, size):
    """What each rank of so many brings; and the shape of all records, None if they differ."""
    dtype = np.dtype(draw.choice(DTYPES))
    tail = tuple(draw.randint(0, 3) for _ in range(draw.randint(0, 2)))
    kind = draw.choice(["array", "equal", "lengths", "shapes"])
    most = draw.choice([3, 12])
    counts = [draw.choice([0, 1, draw.randint(0, most)]) for _ in range(size)]
    first = draw.randint(0, 4)
    shapes = {
        "array": lambda: tail,
        "equal": lambda: tail,
        "lengths": lambda: (draw.randint(0, 5), *tail),
        "shapes": lambda: (draw.randint(0, 3), draw.randint(0, 3), first),
    }
    brought = [records(draw, dtype, count, shapes[kind]) for count in counts]
    if kind == "array":
        brought = [np.array(some, dtype).reshape(len(some), *tail) for some in brought]
        if tail and draw.random() < 0.3:
            brought = [np.asfortranarray(some) for some in brought]
    return dtype, brought


def batches(draw, count):
    """Indices of each kind that there is, for so many records."""
    some = (
        [draw.randrange(-count, count) for _ in range(draw.choice([0, 1, 7, 40]))] if count else []
    )
    yield some
    yield tuple(some)
    yield np.array(some, np.int64)
    yield np.array(some, np.int16)[::-1]
    yield np.array([i % count for i in some], draw.choice(["u1", "u4", "u8", ">u2"]))
    yield np.array(some, object)
    yield [draw.random() < 0.5 for _ in range(count)] if count else np.zeros(0, bool)
    yield slice(
        draw.choice([None, 0, 1, -2]), draw.choice([None, 3, -1]), draw.choice([None, 2, -1])
    )
    yield range(0, count, 2)
    yield range(count - 1, -1, -1)


def model_of(indices, every):
    if isinstance(indices, slice):
        return every[indices]
    indices = list(indices)
    if indices and isinstance(indices[0], (bool, np.bool_)):
        return [record for record, wanted in zip(every, indices, strict=True) if wanted]
    return [every[int(i)] for i in indices]


def check(got, wanted, shape, dtype):
    """A batch is what a list of records says."""
    assert len(got) == len(wanted)
    if shape is not None:
        assert isinstance(got, np.ndarray)
        assert same(got, np.array(wanted, dtype).reshape(len(wanted), *shape))
    else:
        assert isinstance(got, list)
        assert all(same(a, b) for a, b in zip(got, wanted, strict=True))


def flattened(wanted, dtype):
    values = [record.reshape(-1) for record in wanted]
    starts = np.cumsum([0, *(value.size for value in values)])
    return np.concatenate([np.empty(0, dtype), *values], dtype=dtype), starts


def against_a_list(comm, draw):
    dtype, brought = everybody(draw, comm.size)
    every = [np.asarray(record, dtype) for some in brought for record in some]
    shapes = {record.shape for record in every}
    with Store(comm, brought[comm.rank]) as store:
        shape = store.shape
        if every:
            assert shape == (shapes.pop() if len(shapes) == 1 else None)
            assert store.dtype == dtype
        dtype = store.dtype  # of nothing at all it is float64
        assert len(store) == len(every)
        assert store.counts.tolist() == [len(some) for some in brought]
        assert len(store.local_indices) == len(brought[comm.rank])
        check(store.local, [every[i] for i in store.local_indices], shape, dtype)
        for i in range(-len(every), len(every), 1 + len(every) // 5):
            assert same(np.asarray(store[i], dtype), every[i])
        for indices in batches(draw, len(every)):
            wanted = model_of(indices, every)
            check(store.get(indices), wanted, shape, dtype)
            if not isinstance(indices, tuple):
                check(store[indices], wanted, shape, dtype)
            check(store.prefetch(indices).result(), wanted, shape, dtype)
            for flat in store.get(indices, flat=True), store.prefetch(indices, flat=True).result():
                for a, b in zip(flat, flattened(wanted, dtype), strict=True):
                    assert same(a, b)
            out = np.empty((len(wanted), *(shape or ())), dtype)
            if shape is not None:
                assert store.get(indices, out=out) is out
                check(out, wanted, shape, dtype)


@pytest.mark.timeout(120)
def test_against_a_list(comm):
    run = settings(
        max_examples={1: 15, 2: 40}.get(comm.size, 20),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(given(st.integers(0, 2**40))(lambda seed: against_a_list(comm, random.Random(seed))))
    run()


# -- a store of known records ------------------------------------------------------------


def several(comm, count=20, width=7):
    """So many records on each rank; the element j of record i is 100 i + j."""
    first = comm.rank * count
    return Store(comm, 100 * np.arange(first, first + count)[:, None] + np.arange(width))


def uneven(comm, count=20):
    """As many, of 0 to 4 elements."""
    first = comm.rank * count
    return Store(comm, [100 * i + np.arange(i % 5) for i in range(first, first + count)])


def right(batch, indices):
    return all(
        (record == 100 * i + np.arange(len(record))).all()
        for record, i in zip(batch, indices, strict=True)
    )


def test_samples_are_copied(comm):
    mine = np.full((3, 4), comm.rank)
    with Store(comm, mine) as store:
        mine[:] = -1
        assert (
            store.get(range(len(store)))[:, 0].tolist() == np.repeat(range(comm.size), 3).tolist()
        )
        batch = store.get([0, 0])
        batch[0] = -2
        assert batch[1].tolist() == [0] * 4
        assert store[0].tolist() == [0] * 4
        with pytest.raises(ValueError, match="read-only"):
            store.local[0] = 1


def test_it_is_a_sequence(comm):
    with several(comm) as store, uneven(comm) as other:
        for one in store, other:
            listed = list(one)
            assert len(listed) == len(one) == 20 * comm.size
            assert right(listed, range(len(one)))
            assert right(one[3:9], range(3, 9))
        assert isinstance(store[0], np.ndarray)
        scalars = Store(comm, [1.5, 2.5])
        assert type(scalars[-1]) is np.float64
        scalars.close()


def test_views_of_a_batch(comm):
    with uneven(comm) as store:
        batch = store.get([4, 3, 9])
        assert len({id(record.base) for record in batch}) == 1
        assert right(batch, [4, 3, 9])


OUTSIDE = [
    lambda n: [n],
    lambda n: [0, -n - 1],
    lambda n: range(n + 1),
    lambda n: range(n, -1, -1),
    lambda n: np.array([0, 2**63], np.uint64),
    lambda n: [0, 2**70],
    lambda n: [-(2**63)],
    lambda n: np.array([2**63 - 1]),
    lambda n: np.zeros(n + 1, bool),
    lambda n: np.zeros(n - 1, bool),
]


@pytest.mark.parametrize("make", [several, uneven], ids=lambda make: make.__name__)
def test_indices_out_of_range(comm, make):
    """IndexError, and nothing was read; the next batch is right."""
    with make(comm) as store:
        for outside in OUTSIDE:
            given = outside(len(store))
            out = np.full(40 * len(store), -1)
            for call in store.get, store.prefetch:
                with pytest.raises(rmaext.BoundsError, match="records"):
                    call(given, flat=True, out=out)
            assert (out == -1).all()
        for index in (len(store), -len(store) - 1, 2**70):
            with pytest.raises(IndexError, match=f"there are {len(store)} records"):
                store[index]
        assert right(store.get([-1, 0]), [len(store) - 1, 0])


WRONG = [
    ([1.0], TypeError, "integers"),
    (np.zeros(3), TypeError, "integers"),
    ("abc", ValueError, "dimensions"),
    (["a"], TypeError, "integers"),
    (5, ValueError, r"store\[i\]"),
    ([[1, 2], [3, 4]], ValueError, "ravel"),
    ([None], TypeError, "interpreted as an integer"),
    ([1, 1.5], TypeError, "integers"),
]


def test_wrong_indices(comm):
    """Of any kind of store; also where there are no records at all."""
    with several(comm) as store, Store(comm, []) as nothing:
        for given, error, text in WRONG:
            for call in store.get, store.prefetch, nothing.get:
                with pytest.raises(error, match=text):
                    call(given)
        for key in (None, ..., (0, 1), 1.5, "a"):
            with pytest.raises((TypeError, ValueError), match="ind"):
                store[key]


def test_out(comm):
    with several(comm) as store, uneven(comm) as other:
        out = np.empty((3, 7), np.int64)
        assert store.get([1, 2, 3], out=out) is out
        assert store.prefetch([3, 2, 1], out=out).result() is out
        assert right(out, [3, 2, 1])
        # of one dimension it may be longer, and what is behind stays
        memory = np.full(50, -1)
        values, starts = store.get([4, 2], flat=True, out=memory)
        assert np.shares_memory(values, memory)
        assert values.size == starts[-1] == 14
        assert (memory[14:] == -1).all()
        assert right(values.reshape(2, 7), [4, 2])
        batch = other.get([4, 2], out=memory)
        assert all(np.shares_memory(record, memory) for record in batch)
        assert right(batch, [4, 2])
        # memory that the indices lie in
        given = np.array([2, 1, 0, 5, 0, 0, 0])
        assert right([store.get(given[:1], flat=True, out=given)[0]], [2])
        wrong = [
            (np.empty((2, 7), np.int64), ValueError),
            (np.empty((4, 7), np.int64), ValueError),
            (np.empty(21, np.int64), ValueError),
            (np.empty((3, 7)), TypeError),
            (np.empty((3, 7), ">i8"), TypeError),
            (np.empty((3, 14), np.int64)[:, ::2], ValueError),
            (np.frombuffer(bytes(168), np.int64).reshape(3, 7), ValueError),
            ([1, 2, 3], TypeError),
        ]
        for memory, error in wrong:
            with pytest.raises(error, match="out"):
                store.get([1, 2, 3], out=memory)
        with pytest.raises(ValueError, match="or longer"):
            other.get([4], out=np.empty(3, np.int64))


# -- what ranks bring --------------------------------------------------------------------

BAD = [
    (lambda: None, TypeError, "not iterable"),
    (lambda: "text", TypeError, "sequence of arrays"),
    (lambda: np.array(1.0), TypeError, "dimension"),
    (lambda: [np.zeros(2), np.zeros(2, "f4")], TypeError, "dtypes"),
    (lambda: [np.zeros(2), np.zeros((2, 2))], ValueError, "dimensions"),
    (lambda: np.array([None, 1]), TypeError, "objects"),
    (lambda: [np.zeros(2), [1, [2]]], ValueError, "inhomogeneous"),
    (lambda: [np.ma.zeros(2)], TypeError, "mask"),
    (lambda: np.zeros(2, "V0"), TypeError, "no bytes"),
    (lambda: (1 // 0 for _ in range(3)), ZeroDivisionError, "by zero"),
    (lambda: np.zeros((2, 2), "f4"), TypeError, "float32"),
    (lambda: np.zeros(2), ValueError, "dimensions"),
]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("bad", "error", "text"), BAD)
def test_error_on_one_rank(world, bad, error, text):
    """It is the same on all, and names the rank; then they go on."""
    wrong = world.size - 1
    good = np.zeros((3, 2))
    with pytest.raises(error, match=text) as caught:
        Store(world, bad() if world.rank == wrong else good)
    assert f"rank {wrong}" in str(caught.value)
    assert len(set(world.allgather(str(caught.value)))) == 1
    with Store(world, good) as store:
        assert len(store) == 3 * world.size


@pytest.mark.mpi(min_size=2)
def test_bad_timeout_on_one_rank(world):
    with pytest.raises(ValueError, match="timeout"):
        Store(world, np.zeros(2), timeout=-1 if world.rank else 60)


@pytest.mark.mpi(min_size=2)
def test_ranks_without_records(world):
    """They need not know dtype nor shape, and read as others do."""
    for nothing in ([], np.zeros((0, 2), "f4"), np.zeros((0, 9), "f4"), np.zeros((0, 3, 4), "f4")):
        last = world.size - 1
        mine = np.full((3, 2), 5, "f4") if world.rank == last else nothing
        with Store(world, mine) as store:
            assert store.shape == (2,)
            assert same(store.get([2, 0]), np.full((2, 2), 5, "f4"))
            assert store.counts.tolist() == [0] * last + [3]
    with pytest.raises(TypeError, match="float32"):
        Store(world, np.zeros(3) if world.rank == last else np.zeros(0, "f4"))


def test_nothing_at_all(comm):
    with Store(comm, []) as store:
        assert len(store) == 0
        assert list(store) == store.get([]) == store.get(slice(None)) == store.local == []
        values, starts = store.get([], flat=True)
        assert values.size == 0
        assert starts.tolist() == [0]
        with pytest.raises(IndexError):
            store[0]
    with Store(comm, np.zeros((0, 3), "i2")) as store:
        assert same(store.get([]), np.zeros((0, 3), "i2"))


# -- prefetch ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [several, uneven], ids=lambda make: make.__name__)
def test_many_batches_are_open(comm, make):
    draw = random.Random(comm.rank)
    with make(comm) as store:
        asked = [[draw.randrange(len(store)) for _ in range(50)] for _ in range(64)]
        futures = [store.prefetch(indices) for indices in asked]
        for i in draw.sample(range(64), 64):
            assert right(futures[i].result(timeout=30), asked[i])
            assert futures[i].done()
        assert "done" in repr(futures[0])


def test_dropped(comm):
    with several(comm) as store:
        for i in range(200):
            store.prefetch([i % len(store)] * 20)
        kept = store.prefetch([1])
        gc.collect()
        assert right(store.get([2]), [2])
    assert right(kept.result(), [1])  # which close has completed


def test_indices_may_change(comm):
    with several(comm) as store:
        asked = np.arange(10)
        future = store.prefetch(asked)
        asked[:] = 0
        assert right(future.result(), range(10))


def test_in_a_coroutine(comm):
    draw = random.Random(comm.rank)

    async def epoch(store):
        asked = [[draw.randrange(len(store)) for _ in range(20)] for _ in range(30)]
        futures = [store.prefetch(indices) for indices in asked]
        return zip(await asyncio.gather(*map(wait, futures)), asked, strict=True)

    async def wait(future):
        return await future

    with uneven(comm) as store:
        assert all(right(batch, indices) for batch, indices in asyncio.run(epoch(store)))


def test_bad_time_limit(comm):
    with several(comm) as store:
        future = store.prefetch([0])
        with pytest.raises(ValueError, match="timeout"):
            future.result(timeout=-1)
        assert right(future.result(timeout=20), [0])


@rounds(100, 20_000)
def test_in_threads(comm, rounds):
    with several(comm) as store, uneven(comm) as other:

        def read(number):
            draw = random.Random(number)
            for _ in range(rounds):
                one = draw.choice([store, other])
                asked = [draw.randrange(len(one)) for _ in range(draw.choice([1, 10, 40]))]
                future = one.prefetch(asked)
                assert right(one.get(asked), asked)
                assert right(future.result(), asked)

        in_threads(4, read)


# -- the end -----------------------------------------------------------------------------


def test_closed(comm):
    store = several(comm)
    local, future = store.local, store.prefetch([1])
    assert "20" in repr(store) or comm.size > 1
    future.result()
    store.close()
    store.close()
    assert store.closed
    assert "closed" in repr(store)
    for call in store.get, store.prefetch:
        with pytest.raises(rmaext.ClosedError):
            call([0])
    with pytest.raises(rmaext.ClosedError):
        store[0]
    with pytest.raises(rmaext.ClosedError), store:
        pass
    assert right(local, range(20 * comm.rank, 20 * comm.rank + 20))
    assert right(future.result(), [1])


def test_it_is_not_pickled(comm):
    with several(comm) as store, pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(store)


def test_it_is_made_once(comm):
    with several(comm) as store, pytest.raises(RuntimeError, match="made before"):
        store.__init__(comm, [])


def test_one_that_is_not_closed(comm):
    store = several(comm)
    comm.Barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del store
        gc.collect()
    assert [type(one.message) for one in caught] == [ResourceWarning]


def test_types():
    assert Store[np.float64].__origin__ is Store
    with pytest.raises(TypeError):
        Prefetch()


FORKED = """
from rmaext.containers import Store
with Store(world, np.zeros((4, 2))) as store:
    pid = os.fork()
    if not pid:
        for call in (lambda: store.get([0]), lambda: store[0], lambda: store.prefetch([0])):
            refuses(call)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert store.get([-1]).tolist() == [[0.0, 0.0]]
print("end")
"""


@pytest.mark.parametrize("size", [0, 2])
def test_forked(size):
    clean(start(size, PRELUDE + FORKED), ends=size or 1)


LATE = """
from rmaext.containers import Store
from support.processes import stopped

pid = world.bcast(os.getpid(), 1)
with Store(world, np.full((3, 2), rank)) as store:
    store.get([-1])  # connected
    world.Barrier()
    if rank == 0:
        with stopped(pid):
            future = store.prefetch([0, -1])
            assert not future.done()
            assert "goes on" in repr(future)
            for timeout in (0, 0.2):
                refuses(lambda: future.result(timeout), rmaext.RmaTimeout)
            assert store.get([0]).tolist() == [[0, 0]]
        for _ in range(2):
            assert future.result().tolist() == [[0, 0], [1, 1]]
print("end")
"""


def test_late():
    """A batch that waits for a stopped rank goes on after a time limit."""
    env = {"RMAEXT_ROUTE": "fabric", "PYTHONPATH": launch.PYTHONPATH}
    clean(start(2, PRELUDE + LATE, env=env), ends=2)


@pytest.mark.parametrize("where", [(), ("nodes",)], ids=["node", "nodes"])
def test_killed(where):
    """Records of the killed rank are PeerLostError; the others are read as before."""
    program = "containers/programs/killed_store.py"
    passes(3, program, *where, oks=2, survive=True, timeout=50)


# -- PyTorch -----------------------------------------------------------------------------


def test_without_torch(comm, monkeypatch):
    for name in ("torch", "torch.utils", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with several(comm) as store, pytest.raises(ImportError, match="pip install torch"):
        TorchDataset(store)


def test_with_torch(world):
    torch = pytest.importorskip("torch")
    with several(world) as store, uneven(world) as other:
        data = TorchDataset(store)
        assert isinstance(data, torch.utils.data.Dataset)
        assert isinstance(data, TorchDataset)
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        seen = torch.cat(list(loader))
        assert sorted(seen[:, 0].tolist()) == [100 * i for i in range(len(store))]
        part = torch.utils.data.Subset(data, [3, 5])
        assert [right([item.numpy()], [i]) for item, i in zip(part, [3, 5], strict=True)] == [
            True
        ] * 2
        pairs = TorchDataset(store, other, transform=lambda pair: pair[0].sum() + pair[1].sum())
        assert pairs[2] == store[2].sum() + other[2].sum()
        with pytest.raises(ValueError, match="one length"):
            TorchDataset()
        with Store(world, np.zeros(3, [("a", "i4")])) as odd, pytest.raises(TypeError):
            TorchDataset(odd)


# -- many ranks --------------------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
@pytest.mark.scale
@pytest.mark.timeout(240)
@pytest.mark.parametrize("make", [several, uneven], ids=lambda make: make.__name__)
def test_of_many_ranks(world, make):
    draw = np.random.default_rng(world.rank)
    with make(world) as store:
        assert store.counts.tolist() == [20] * world.size
        futures = []
        for _ in range(10):
            asked = draw.integers(len(store), size=256)
            futures.append((asked, store.prefetch(asked)))
            assert right(store.get(asked), asked)
        for asked, future in futures:
            assert right(future.result(), asked)
    wrong = world.size // 2
    with pytest.raises(TypeError, match=f"rank {wrong}"):
        Store(world, None if world.rank == wrong else [1])


def test_eight_threads(comm):
    """Any read at once, and wait for what others have begun."""
    with several(comm) as store, ThreadPoolExecutor(8) as pool:

        def work(thread):
            dice, futures = np.random.default_rng(thread), []
            for _ in range(20):
                indices = dice.integers(0, len(store), 5)
                assert right(store.get(indices), indices)
                assert right([store[indices[0]]], indices[:1])
                futures.append((store.prefetch(indices), indices))
            return futures

        begun = list(pool.map(work, range(8)))
        for futures in pool.map(lambda thread: begun[thread - 1], range(8)):
            assert all(right(future.result(), indices) for future, indices in futures)
        comm.Barrier()
