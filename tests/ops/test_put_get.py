# SPDX-License-Identifier: BSD-3-Clause
"""put, get and flush against NumPy."""

from __future__ import annotations

import pathlib
import random

import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import PATTERN, guarded, neighbour, noise, same

from rmaext import BoundsError, Window


def plan(seed, ranks, limit):
    """Where origin o writes in target t: slots with gaps, on every rank alike.

    Returns a dtype, the window sizes and {(o, t): (offset, count)}; sizes
    from one byte to ``limit`` bytes, the last slot ends the window.
    """
    rng = random.Random(seed)
    dtype = np.dtype(rng.choice(["u1", "u1", "i2", "f4", "f8", "c16"]))
    sizes, slots = [], {}
    for target in range(ranks):
        offset = 0
        for origin in rng.sample(range(ranks), ranks):
            nbytes = int(2 ** rng.uniform(0, np.log2(limit)))
            count = max(nbytes // dtype.itemsize, 1)
            offset += rng.randrange(4)
            slots[origin, target] = offset, count
            offset += count
        sizes.append(offset)
    return dtype, sizes, slots


def every_rank_to_every_rank(comm, seed, limit):
    dtype, sizes, slots = plan(seed, comm.size, limit)
    want = [np.full(n * dtype.itemsize, PATTERN, "u1") for n in sizes]
    want = [raw.view(dtype) for raw in want]
    for (origin, target), (offset, count) in slots.items():
        data = noise(dtype, count, seed, origin, target)
        want[target][offset : offset + count] = data
    empty = np.full(sizes[comm.rank] * dtype.itemsize, PATTERN, "u1")
    with guarded(comm, sizes[comm.rank], dtype, empty.view(dtype)) as win:
        targets = list(range(comm.size))
        random.Random(comm.rank).shuffle(targets)
        for rank in targets:
            offset, count = slots[comm.rank, rank]
            data = noise(dtype, count, seed, comm.rank, rank)
            win.put(data, rank, offset)
            win.flush(rank)
            assert same(win.get(rank, offset, count), data)
        win.fence()
        assert same(win.local, want[comm.rank])
        for rank in targets:
            assert same(win.get(rank), want[rank])
            for offset, count in (slots[o, rank] for o in range(comm.size)):
                part = want[rank][offset : offset + count]
                assert same(win.get(rank, offset, count), part)
        win.fence()


@pytest.mark.parametrize("seed", range(12))
def test_every_rank_to_every_rank(comm, seed):
    every_rank_to_every_rank(comm, seed, 1 << 14)


def test_every_rank_to_every_rank_megabytes(comm):
    every_rank_to_every_rank(comm, 99, 1 << 22)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(100, 150))
def test_every_rank_to_every_rank_many(comm, seed):
    every_rank_to_every_rank(comm, seed, 1 << 24)


# Around inject sizes, pages, iov and rendezvous limits of the providers.
EDGES = sorted({2**n + d for n in (0, 3, 6, 7, 12, 14, 16, 18, 20) for d in (-1, 0, 1)})


def test_sizes_around_powers_of_two(comm):
    to, data = neighbour(comm), noise("u1", EDGES[-1] + 1, comm.rank)
    left = (comm.rank - 1) % comm.size
    with guarded(comm, EDGES[-1] + 1, "u1") as win:
        for size in EDGES:
            offset = win.size(to) - size
            win.put(data[:size], to, offset)
            win.flush(to)
            assert same(win.get(to, offset), data[:size])
            assert same(win.get(to, offset, size), data[:size])
            win.fence()
            mine = noise("u1", EDGES[-1] + 1, left)[:size]
            assert same(win.local[len(win.local) - size :], mine)
            win.fence()


def test_last_element(comm):
    with guarded(comm, 1000, "f8", -1) as win:
        for rank in range(comm.size):
            assert win.get(rank, 999).tolist() == [-1]
        win.fence()
        win.put(np.float64(comm.rank), neighbour(comm), 999)
        win.fence()
        assert win.local[-1] == (comm.rank - 1) % comm.size
        assert (win.local[:-1] == -1).all()
        win.fence()


CUBE = np.arange(60, dtype="i4").reshape(3, 4, 5)
LAYOUTS = {
    "contiguous": CUBE,
    "every second": CUBE[:, :, ::2],
    "column": CUBE[:, :, 1],
    "backwards": CUBE[::-1, :, ::-1],
    "transposed": CUBE.T,
    "Fortran": np.asfortranarray(CUBE),
    "broadcast": np.broadcast_to(np.int32(7), (6, 4)),
    "read-only": np.frombuffer(CUBE.tobytes(), "i4"),
    "unaligned": np.frombuffer(b"x" + CUBE.tobytes(), "i4", 60, 1),
    "0-d": np.array(5, "i4"),
    "empty": CUBE[:0],
    "empty strided": CUBE[:, :0:2, ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_origins_of_any_layout_are_packed(comm, layout):
    origin = LAYOUTS[layout]
    want = np.full(70, -1, "i4")
    want[3 : 3 + origin.size] = origin.ravel()  # C order
    with guarded(comm, 70, "i4", -1) as win:
        win.put(origin, neighbour(comm), 3)
        win.fence()
        assert same(win.local, want)
        win.fence()


@pytest.mark.parametrize(
    ("dtype", "scalar"),
    [
        ("i4", 7),
        ("i4", np.int32(-7)),
        ("i8", -(2**63)),
        ("u8", 2**64 - 1),
        ("u1", 255),
        ("i1", -128),
        ("?", True),
        ("f8", 0.1),
        ("f8", 3),
        ("f4", float("inf")),
        ("f4", np.float32(0.1)),
        ("f8", float("nan")),
        ("c16", 1 + 2j),
        ("c8", 1.5),
    ],
    ids=repr,
)
def test_scalars_are_accepted(comm, dtype, scalar):
    with guarded(comm, 3, dtype) as win:
        win.put(scalar, neighbour(comm), 1)
        win.fence()
        assert same(win.local, np.array([0, scalar, 0], dtype))
        win.fence()


def test_forms_of_get(comm):
    with guarded(comm, (3, 4), "i8", np.arange(12).reshape(3, 4)) as win:
        rank = neighbour(comm)
        assert same(win.get(rank), np.arange(12))
        assert same(win.get(rank, 9), np.arange(9, 12))
        assert same(win.get(rank, 2, 3), np.arange(2, 5))
        assert same(win.get(rank, offset=11, count=1), np.array([11]))
        out = np.full(6, -1)
        view = out[1:5]
        assert np.shares_memory(win.get(rank, 7, out=view), out)
        assert out.tolist() == [-1, 7, 8, 9, 10, -1]
        grid = np.zeros((2, 3), "i8")
        assert win.get(rank, 1, 6, out=grid).shape == (2, 3)
        assert grid.tolist() == [[1, 2, 3], [4, 5, 6]]
        win.fence()


def test_get_returns_a_copy(comm):
    with guarded(comm, 4, "i4", 5) as win:
        for rank in range(comm.size):
            copy = win.get(rank)
            assert copy.flags.writeable
            assert copy.flags.owndata
            copy[:] = 0
        win.fence()
        assert win.local.tolist() == [5] * 4
        win.fence()


def test_nothing_at_all(comm):
    with guarded(comm, 4, "i4", 5) as win:
        for rank in range(comm.size):
            for offset in (0, 2, 4):
                win.put(np.empty(0, "i4"), rank, offset)
                assert same(win.get(rank, offset, 0), np.empty(0, "i4"))
                out = np.empty((3, 0), "i4")
                assert win.get(rank, offset, out=out) is out
        win.flush()
        win.fence()
        assert win.local.tolist() == [5] * 4


def test_proc_null_many(comm):
    """Elements that go to nobody are left out of calls on many."""
    right, nobody = (comm.rank + 1) % comm.size, MPI.PROC_NULL
    with guarded(comm, 4, "i4", 5, proc_null=True) as win:
        ranks = np.array([[right, nobody], [nobody, right]])
        offsets = [[0, 2**40], [-1, 3]]
        values = np.arange(1, 5, dtype="i4").reshape(2, 2)
        win.put_many(ranks, offsets, values)
        win.fence()
        assert win.local.tolist() == [1, 5, 5, 4]
        assert win.get_many(ranks, offsets).tolist() == [[1, 0], [0, 4]]
        out = np.full((2, 2), 7, "i4")
        assert win.get_many(ranks, offsets, out=out) is out
        assert out.tolist() == [[1, 7], [7, 4]]
        win.fence()
        win.accumulate_many(ranks, offsets, 10)
        win.fence()
        assert win.local.tolist() == [11, 5, 5, 14]
        win.fence()
        assert win.fetch_add_many(ranks, offsets, values).tolist() == [[11, 0], [0, 14]]
        win.fence()
        assert win.fetch_op_many([nobody, right], 0, 3, "max").tolist() == [0, 12]
        win.put_many(nobody, 99, 1)
        assert win.fetch_add_many(nobody, 99, 1) == 0
        assert win.get_many(nobody, 1).shape == ()
        assert win.get_many(nobody, [1, 99]).tolist() == [0, 0]
        win.fence()
        assert win.local.tolist() == [12, 5, 5, 18]
        win.fence()
        for call in win.put_many, win.accumulate_many, win.fetch_add_many:
            with pytest.raises(BoundsError):  # and nothing is sent
                call([nobody, right, right], [0, 0, 4], 1)
        with pytest.raises(BoundsError):
            win.get_many([nobody, comm.size], 0)
        with pytest.raises(ValueError, match="shape"):
            win.get_many([nobody, right], 0, out=np.zeros(3, "i4"))
        win.fence()
        assert win.local.tolist() == [12, 5, 5, 18]


@pytest.mark.parametrize(
    ("count", "rounds"), [(1, 400), (8, 400), (500, 200), (20000, 40), (1 << 18, 4)]
)
def test_origin_may_be_reused_at_once(comm, count, rounds):
    to = neighbour(comm)
    with guarded(comm, count * rounds, "i4", -1) as win:
        origin = np.empty(count, "i4")
        for i in range(rounds):
            origin[:] = i
            win.put(origin, to, i * count)
            origin[:] = -2
        win.fence()
        want = np.repeat(np.arange(rounds, dtype="i4"), count)
        assert same(win.local, want)
        win.fence()


def test_packed_and_scalar_origins_may_be_reused_too(comm):
    grid = np.zeros((6, 6), "i8")
    with guarded(comm, 900, "i8") as win:
        for i in range(100):
            grid[:, 2] = i
            win.put(grid[:, 2], neighbour(comm), 6 * i)
            win.put(i, neighbour(comm), 600 + i)
            grid[:] = -1
        win.fence()
        assert same(win.local[:600], np.repeat(np.arange(100), 6))
        assert same(win.local[600:700], np.arange(100))
        assert not win.local[700:].any()
        win.fence()


def test_later_put_wins_after_flush(comm):
    rank = neighbour(comm)
    with guarded(comm, 3000, "i4") as win:
        for i in range(1, 60):
            size = 3000 if i % 2 else 10
            win.put(np.full(size, i, "i4"), rank)
            win.flush(rank)
            assert (win.get(rank, 0, size) == i).all()
        win.fence()
        assert win.local[:10].tolist() == [59] * 10


def third_party(comm, rounds, count, pieces):
    """put, flush, send: the receiver must get the new data by itself.

    Many small puts are still on their way when the last of them returns.
    """
    token, part = np.zeros(1, "i8"), count // pieces
    with guarded(comm, count, "i8", -1) as win:
        for i in range(rounds):
            origin, target, third = ((i + k) % comm.size for k in range(3))
            if comm.rank == origin:
                data = np.full(count, i)
                for start in range(0, count, part):
                    win.put(data[start : start + part], target, start)
                win.flush(target)
                comm.Send(token, third)
                comm.Recv(token, third)
            if comm.rank == third:
                comm.Recv(token, origin)
                seen = win.get(target, count - part, part)  # sent last
                assert (seen == i).all(), f"round {i}: old data"
                assert (win.get(target) == i).all()
                comm.Send(token, origin)
        win.fence()


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(
    ("count", "pieces", "rounds"), [(1, 1, 200), (200, 200, 60), (6400, 64, 40), (60000, 2, 20)]
)
def test_third_party_sees_flushed_data(world, count, pieces, rounds):
    third_party(world, rounds, count, pieces)


@pytest.mark.stress
@pytest.mark.timeout(300)
@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(("count", "pieces"), [(1, 1), (64, 64)])
def test_third_party_sees_flushed_data_10000_rounds(world, count, pieces):
    third_party(world, 10_000, count, pieces)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("rank", ["one", "all"])
@pytest.mark.parametrize(("count", "pieces"), [(200, 200), (6400, 64)])
def test_target_sees_flushed_data_without_calling(world, rank, count, pieces):
    """The target looks at its own memory after a message; small puts are still on their way."""
    to, left, part = neighbour(world), (world.rank - 1) % world.size, count // pieces
    sent, token = np.zeros(1, "i8"), np.zeros(1, "i8")
    with guarded(world, count, "i8", -1) as win:
        for i in range(40):
            data = np.full(count, i)
            for start in range(0, count, part):
                win.put(data[start : start + part], to, start)
            win.flush(to if rank == "one" else None)
            world.Sendrecv(sent, to, recvbuf=token, source=left)
            assert (win.local[::-1] == i).all(), f"round {i}: old data"
            world.Barrier()
        win.fence()


def test_many_puts_in_flight(comm):
    """More than the queues of a provider hold, to all targets at once."""
    rounds = 1500
    with guarded(comm, (comm.size, rounds), "i4", -1) as win:
        data = np.arange(rounds, dtype="i4") * comm.size + comm.rank
        for i in range(rounds):
            rank = (comm.rank + i) % comm.size
            for target in {rank, comm.size - 1}:
                offset = comm.rank * rounds + i
                win.put(data[i : i + 1], target, offset)
        win.fence()
        for origin in range(comm.size):
            sent = np.arange(rounds, dtype="i4")
            want = sent * comm.size + origin
            if comm.rank != comm.size - 1:
                to_me = (origin + sent) % comm.size == comm.rank
                want[~to_me] = -1
            assert same(win.local[origin], want)
        win.fence()


def test_everyone_gets_from_one(comm):
    data = noise("f8", 50_000, 3)
    size = data.size if comm.rank == 0 else 0
    with guarded(comm, size, "f8", data[:size]) as win:
        win.fence()
        for i in range(20):
            assert same(win.get(0, 2500 * i, 2500), data[2500 * i :][:2500])
        assert same(win.get(0), data)
        win.fence()


def test_put_and_get_while_the_target_puts_and_gets(comm):
    """Both directions of every pair at the same time, large and small."""
    with guarded(comm, (comm.size, 20_000), "i4") as win:
        for i in range(1, 6):
            for rank in range(comm.size):
                win.put(np.full(20_000, i, "i4"), rank, 20_000 * comm.rank)
                win.put(np.int32(-i), rank, 20_000 * comm.rank)
                win.flush(rank)
                row = win.get(rank, 20_000 * comm.rank, 20_000)
                assert (row[1:] == i).all()
        win.fence()
        assert (win.local[:, 1:] == 5).all()
        win.fence()


@pytest.mark.matrix
@pytest.mark.timeout(500)
def test_own_rank_through_the_fabric(mpirun):
    """All tests of put, get and atomics where even the own rank is reached by the provider."""
    here = pathlib.Path(__file__).parent
    code = """
        import sys, pytest
        sys.exit(pytest.main(["-q", "-p", "no:cacheprovider",
                              "-m", "mpi and not stress", *sys.argv[1:]]))
    """
    for size in 1, 2:
        files = [
            str(here / f"test_{name}.py")
            for name in ("put_get", "atomic", "arguments", "argument_types")
        ]
        done = mpirun(size, code, *files, env={"RMAEXT_ROUTE": "fabric"}, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.mpi(min_size=1)
@pytest.mark.parametrize("shift", [-100_000, -1, 1, 100_000])
def test_long_copies_that_overlap(world, monkeypatch, shift):
    """A put and a get of 1 MiB within the window itself move it, as memmove() does."""
    monkeypatch.delenv("RMAEXT_ROUTE", raising=False)  # by network their order is nobody's
    comm = world.Dup()
    count, first = 1 << 17, max(shift, 0)
    with Window.allocate(comm, count + abs(shift), "i8") as win:
        for call in ("put", "get"):
            win.local[:] = np.arange(win.local.size)
            source = win.local[first : first + count]
            there = first - shift
            if call == "put":
                win.put(source, comm.rank, there)
                win.flush()
            else:
                win.get(comm.rank, first, out=win.local[there : there + count])
            moved = np.arange(win.local.size)
            moved[there : there + count] = np.arange(first, first + count)
            assert same(win.local, moved)
        win.fence()
    comm.Free()
