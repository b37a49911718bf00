# SPDX-License-Identifier: BSD-3-Clause
"""Which calls MPI allows in which epochs, and that they synchronise."""

from __future__ import annotations

import contextlib
import threading
import time

import launch
import numpy as np
import pytest
from mpi4py import MPI
from support.guarded import in_threads

import rmaext
from rmaext.compat import Win

SYNC = MPI.ERR_RMA_SYNC
ONE = np.ones(1)


@contextlib.contextmanager
def window(comm, n=8):
    win = Win.Allocate(8 * n, 8, comm=comm)
    np.frombuffer(win)[:] = 0
    win.Fence(MPI.MODE_NOSUCCEED)
    yield win
    comm.Barrier()
    win.Free()


def raises(code, call, *args):
    with pytest.raises(MPI.Exception) as caught:
        call(*args)
    assert caught.value.Get_error_class() == code, caught.value.__cause__


OPERATIONS = {
    "Put": lambda win, rank: win.Put(ONE, rank),
    "Get": lambda win, rank: win.Get(ONE.copy(), rank),
    "Accumulate": lambda win, rank: win.Accumulate(ONE, rank),
    "Get_accumulate": lambda win, rank: win.Get_accumulate(ONE, ONE.copy(), rank),
    "Fetch_and_op": lambda win, rank: win.Fetch_and_op(ONE, ONE.copy(), rank),
    "Compare_and_swap": lambda win, rank: win.Compare_and_swap(
        *np.zeros((2, 1), "i8"), np.zeros(1, "i8"), rank
    ),
}
WITH_REQUESTS = {
    "Rput": lambda win, rank: win.Rput(ONE, rank).Wait(),
    "Rget": lambda win, rank: win.Rget(ONE.copy(), rank).Wait(),
    "Raccumulate": lambda win, rank: win.Raccumulate(ONE, rank).Wait(),
    "Rget_accumulate": lambda win, rank: win.Rget_accumulate(ONE, ONE.copy(), rank).Wait(),
}
FLUSHES = {
    "Flush": lambda win, rank: win.Flush(rank),
    "Flush_local": lambda win, rank: win.Flush_local(rank),
    "Flush_all": lambda win, _: win.Flush_all(),
    "Flush_local_all": lambda win, _: win.Flush_local_all(),
}
PASSIVE = WITH_REQUESTS | FLUSHES


# -- where operations are allowed ------------------------------------------------------


@pytest.mark.pair
@pytest.mark.parametrize("call", [*OPERATIONS, *PASSIVE])
def test_outside_an_epoch(comm, call):
    with window(comm) as win:
        raises(SYNC, (OPERATIONS | PASSIVE)[call], win, 0)
        # also after epochs, of each kind
        win.Lock(0, MPI.LOCK_SHARED)
        win.Unlock(0)
        win.Lock_all()
        win.Unlock_all()
        win.Fence()
        win.Fence(MPI.MODE_NOSUCCEED)
        win.Post(win.group)
        win.Start(win.group)
        win.Complete()
        win.Wait()
        raises(SYNC, (OPERATIONS | PASSIVE)[call], win, 0)
        comm.Barrier()
        assert not np.frombuffer(win).any()


@pytest.mark.parametrize("call", [*OPERATIONS, *PASSIVE])
def test_in_an_epoch(comm, call):
    """Each epoch has operations, that of a lock requests and flushes too."""
    active = call in OPERATIONS
    use = (OPERATIONS | PASSIVE)[call]
    with window(comm) as win:
        win.Lock(0, MPI.LOCK_SHARED)
        use(win, 0)
        win.Unlock(0)
        win.Lock_all()
        use(win, 0)
        win.Unlock_all()
        for begin, end in (
            (win.Fence, win.Fence),
            (
                lambda: (win.Post(win.group), win.Start(win.group)),
                lambda: (win.Complete(), win.Wait()),
            ),
        ):
            begin()
            if active:
                use(win, 0)
            else:
                raises(SYNC, use, win, 0)
            end()


def test_only_ranks_of_the_epoch(world):
    own = world.rank
    others = [rank for rank in range(world.size) if rank != own]
    with window(world) as win:
        alone = win.group.Incl([own])
        win.Post(alone)
        win.Start(alone)
        win.Put(ONE, own)
        for rank in others:
            raises(SYNC, win.Put, ONE, rank)
        win.Complete()
        win.Wait()
        win.Lock(own)
        for rank in others:
            raises(SYNC, win.Put, ONE, rank)
            raises(SYNC, win.Flush, rank)
        win.Unlock(own)


@pytest.mark.pair
@pytest.mark.parametrize("call", [*OPERATIONS, *WITH_REQUESTS])
def test_proc_null_needs_an_epoch_only(comm, call):
    with window(comm) as win:
        raises(SYNC, (OPERATIONS | WITH_REQUESTS)[call], win, MPI.PROC_NULL)
        win.Lock(0, MPI.LOCK_SHARED)
        (OPERATIONS | WITH_REQUESTS)[call](win, MPI.PROC_NULL)
        win.Unlock(0)


# -- the order of calls ----------------------------------------------------------------

# what was called before; what is refused then; what ends the epoch
ORDERS = {
    "nothing": (
        [],
        ["Complete", "Wait", "Test", "Unlock", "Unlock_all"],
        [],
    ),
    "fence": (["Fence", "Put"], ["Start", "Post", "Lock", "Lock_all"], ["Fence"]),
    "start": (["Start"], ["Start", "Fence", "Lock", "Lock_all", "Free"], ["Complete"]),
    "post": (["Post"], ["Post", "Fence", "Free"], ["Start", "Complete", "Wait"]),
    "lock": (["Lock"], ["Lock", "Lock_all", "Start", "Fence", "Unlock_all", "Free"], ["Unlock"]),
    "lock_all": (
        ["Lock_all"],
        ["Lock_all", "Lock", "Start", "Fence", "Unlock", "Free"],
        ["Unlock_all"],
    ),
    "lock unchecked": (["Lock_nocheck"], ["Lock", "Lock_all", "Free"], ["Unlock"]),
    "lock_all unchecked": (["Lock_all_nocheck"], ["Lock", "Lock_all", "Free"], ["Unlock_all"]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_order(order):
    """On one rank, so that nobody waits for another."""
    before, refused, after = ORDERS[order]
    with window(MPI.COMM_SELF) as win:
        group = win.group
        if order == "start":
            win.Post(group)
        calls = {
            "Fence": win.Fence,
            "Put": lambda: win.Put(ONE, 0),
            "Start": lambda: win.Start(group),
            "Complete": win.Complete,
            "Post": lambda: win.Post(group),
            "Wait": win.Wait,
            "Test": win.Test,
            "Lock": lambda: win.Lock(0),
            "Lock_nocheck": lambda: win.Lock(0, MPI.LOCK_SHARED, MPI.MODE_NOCHECK),
            "Lock_all": win.Lock_all,
            "Lock_all_nocheck": lambda: win.Lock_all(MPI.MODE_NOCHECK),
            "Unlock": lambda: win.Unlock(0),
            "Unlock_all": win.Unlock_all,
            "Free": win.Free,
        }
        for name in before:
            calls[name]()
        for name in refused:
            raises(SYNC, calls[name])
        for name in after:
            calls[name]()
        if order == "start":
            win.Wait()
        win.Lock(0)  # nothing is left open
        win.Unlock(0)


def test_a_fence_may_be_followed_by_anything(comm):
    with window(comm) as win:
        for begin, end in (
            (lambda: win.Lock(0, MPI.LOCK_SHARED), lambda: win.Unlock(0)),
            (win.Lock_all, win.Unlock_all),
            (
                lambda: win.Post(win.group),
                lambda: (win.Start(win.group), win.Complete(), win.Wait()),
            ),
        ):
            win.Fence()
            begin()
            end()
        win.Fence(MPI.MODE_NOPRECEDE | MPI.MODE_NOSTORE | MPI.MODE_NOPUT)


WRONG = {
    "rank": (MPI.ERR_RANK, lambda win: win.Lock(win.group_size)),
    "negative rank": (MPI.ERR_RANK, lambda win: win.Lock(-77)),
    "rank to unlock": (MPI.ERR_RANK, lambda win: win.Unlock(win.group_size)),
    "rank to flush": (MPI.ERR_RANK, lambda win: win.Flush(win.group_size)),
    "rank to put": (MPI.ERR_RANK, lambda win: win.Put(ONE, win.group_size)),
    "type of lock": (MPI.ERR_LOCKTYPE, lambda win: win.Lock(0, 77)),
    "assertion of Lock": (MPI.ERR_ASSERT, lambda win: win.Lock(0, assertion=MPI.MODE_NOPUT)),
    "assertion of Lock_all": (MPI.ERR_ASSERT, lambda win: win.Lock_all(MPI.MODE_NOPRECEDE)),
    "assertion of Fence": (MPI.ERR_ASSERT, lambda win: win.Fence(MPI.MODE_NOCHECK)),
    "assertion of Start": (MPI.ERR_ASSERT, lambda win: win.Start(win.group, MPI.MODE_NOSTORE)),
    "assertion of Post": (MPI.ERR_ASSERT, lambda win: win.Post(win.group, MPI.MODE_NOPRECEDE)),
    "null group": (MPI.ERR_GROUP, lambda win: win.Start(MPI.GROUP_NULL)),
    "null group to post": (MPI.ERR_GROUP, lambda win: win.Post(MPI.GROUP_NULL)),
}


@pytest.mark.pair
@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(comm, what):
    code, call = WRONG[what]
    with window(comm) as win:
        raises(code, call, win)
        win.Lock(0, MPI.LOCK_SHARED)  # there is no epoch of it
        win.Unlock(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda win: win.Lock(None),
        lambda win: win.Lock("0"),
        lambda win: win.Fence(None),
        lambda win: win.Start([0]),
        lambda win: win.Flush(None),
    ],
)
def test_wrong_types(call):
    with window(MPI.COMM_SELF) as win, pytest.raises(TypeError):
        call(win)


# -- that they synchronise -------------------------------------------------------------


def test_fence(comm):
    peer = (comm.rank + 1) % comm.size
    with window(comm) as win:
        for step in range(1, 20):
            win.Fence()
            win.Put(np.full(8, step + 100.0 * comm.rank), peer)
            win.Fence(MPI.MODE_NOSUCCEED if step % 2 else 0)
            left = (comm.rank - 1) % comm.size
            assert (np.frombuffer(win) == step + 100.0 * left).all()


def test_start_complete_post_wait(world):
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    with window(world) as win:
        targets, origins = win.group.Incl([right]), win.group.Incl([left])
        for step in range(1, 20):
            if step % 2:
                win.Post(origins)
                win.Start(targets)
            else:  # Start waits for nobody
                win.Start(targets)
                win.Post(origins)
            win.Put(np.full(8, step + 100.0 * world.rank), right)
            win.Complete()
            win.Wait()
            assert (np.frombuffer(win) == step + 100.0 * left).all()


def test_exclusive_locks_exclude(comm):
    rounds, last = 50, comm.size - 1
    with window(comm) as win:
        value = np.zeros(1)
        for _ in range(rounds):
            win.Lock(last)
            win.Get(value, last)
            win.Flush(last)
            win.Put(value + 1, last)
            win.Unlock(last)
        comm.Barrier()
        if comm.rank == last:
            assert np.frombuffer(win)[0] == rounds * comm.size


def test_several_targets_at_once(world):
    with window(world) as win:
        for rank in range(world.size):
            win.Lock(rank, MPI.LOCK_SHARED)
        for rank in range(world.size):
            win.Accumulate(ONE, rank)
        for rank in range(world.size):
            win.Unlock(rank)
        world.Barrier()
        assert np.frombuffer(win)[0] == world.size


def test_a_lock_belongs_to_the_process(comm):
    """Not to the thread that took it."""
    with window(comm) as win:
        in_threads(1, lambda _: win.Lock(comm.rank))
        win.Put(ONE, comm.rank)
        in_threads(1, lambda _: raises(SYNC, win.Lock, comm.rank))
        in_threads(1, lambda _: win.Unlock(comm.rank))
        in_threads(1, lambda _: win.Lock_all())
        win.Unlock_all()


def test_a_lock_waits_for_the_holder():
    """Held by another thread, as those of another rank would be."""
    comm = MPI.COMM_SELF
    with window(comm) as win:
        window_ = win._window
        window_.lock(0, exclusive=True)
        taken = threading.Event()

        def take():
            win.Lock(0)
            taken.set()
            win.Unlock(0)

        thread, own = threading.Thread(target=take), window_._holder
        window_._holder = lambda: 2 if threading.current_thread() is thread else own()
        thread.start()
        time.sleep(0.05)
        assert not taken.is_set()
        window_.unlock(0)
        thread.join(20)
        assert taken.is_set()


MAKERS = {
    "Allocate": lambda comm: Win.Allocate(64, 8, comm=comm),
    "Create": lambda comm: Win.Create(np.zeros(8), 8, comm=comm),
}
SHARED_LOCKS = {
    "Lock_all": (lambda win: win.Lock_all(), lambda win: win.Unlock_all()),
    "Lock": (lambda win: win.Lock(0, MPI.LOCK_SHARED), lambda win: win.Unlock(0)),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", SHARED_LOCKS)
def test_a_shared_lock_that_nothing_needs_yet_excludes_nobody(world, make, way):
    """A program begins with an exclusive lock of itself, while others call Lock_all."""
    lock, unlock = SHARED_LOCKS[way]
    win = MAKERS[make](world)
    win.Fence(MPI.MODE_NOSUCCEED)
    if world.rank:
        lock(win)
        win.Flush_all()
        win.Sync()
    world.Barrier()
    if not world.rank:
        win.Lock(0)
        np.frombuffer(win)[0] = 5
        win.Unlock(0)
    world.Barrier()
    if world.rank:
        value = np.zeros(1)
        win.Get(value, 0)
        assert value == [5]
        win.Flush(0)
        unlock(win)
    world.Barrier()
    win.Free()


class Other:
    """A window's locks, as another process has them."""

    def __init__(self, win):
        self._window = win._window

    def _as_other(self, call, *args, **keywords):
        own, self._window._holder = self._window._holder, lambda: 2
        try:
            return call(*args, **keywords)
        finally:
            self._window._holder = own

    def locks(self):
        """Tell whether it can lock rank 0 alone."""
        try:
            self._as_other(self._window.lock, 0, exclusive=True, timeout=0.01)
        except rmaext.RmaTimeout:
            return False
        self._as_other(self._window.unlock, 0)
        return True


@pytest.mark.parametrize("way", SHARED_LOCKS)
def test_from_its_first_operation_on_a_shared_lock_excludes(way):
    lock, unlock = SHARED_LOCKS[way]
    for use in (*OPERATIONS.values(), *WITH_REQUESTS.values(), FLUSHES["Flush"]):
        with window(MPI.COMM_SELF) as win:
            win._epochs._me = -1  # as if rank 0 were another
            lock(win)
            other = Other(win)
            assert other.locks()
            use(win, 0)
            assert not other.locks()
            unlock(win)
            assert other.locks()


def test_own_memory_is_locked_at_once(comm):
    """No operation need come: it is accessed without."""
    for lock, unlock in [
        (lambda win: win.Lock_all(), lambda win: win.Unlock_all()),
        (lambda win: win.Lock(comm.rank, MPI.LOCK_SHARED), lambda win: win.Unlock(comm.rank)),
    ]:
        with window(comm) as win:
            lock(win)
            assert win._epochs.passive == {comm.rank}
            unlock(win)
            comm.Barrier()


def test_all_of_a_shared_window_is_locked_at_once(comm):
    win = Win.Allocate_shared(64, 8, comm=comm)
    win.Lock_all()
    assert win._epochs.passive == {*range(comm.size)}
    win.Unlock_all()
    win.Free()


def test_threads_that_take_one_lock(world):
    """The first operations of several threads."""
    with window(world) as win:
        win.Lock_all()
        in_threads(4, lambda _: [win.Accumulate(ONE, rank) for rank in range(world.size)])
        win.Unlock_all()
        world.Barrier()
        assert np.frombuffer(win)[0] == 4 * world.size


def test_unchecked_locks_take_none(world):
    """Several ranks have the lock of one target at once."""
    with window(world) as win:
        win.Lock(0, MPI.LOCK_EXCLUSIVE, MPI.MODE_NOCHECK)
        world.Barrier()
        win.Accumulate(ONE, 0)
        win.Unlock(0)
        world.Barrier()
        if not world.rank:
            assert np.frombuffer(win)[0] == world.size


def test_wait_and_test(world):
    with window(world) as win:
        group = win.group
        win.Post(group)
        assert not win.Test()
        world.Barrier()
        win.Start(group)
        win.Complete()
        world.Barrier()
        assert win.Test()
        raises(SYNC, win.Test)
        win.Post(MPI.GROUP_EMPTY)
        win.Start(MPI.GROUP_EMPTY)
        win.Complete()
        assert win.Wait() is True


# -- in other processes ------------------------------------------------------------------

ROUTES = [None, "fabric"]


@pytest.mark.parametrize("route", ROUTES)
def test_nobody_waits_for_one_that_sleeps(mpirun, route):
    """Every operation and lock ends while the target sleeps outside of MPI."""
    code = """
        import time
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        comm = MPI.COMM_WORLD
        w = Win.Allocate(800, 8, comm=comm)
        mine = np.zeros(100)
        over = Win.Create(mine, 8, comm=comm)
        for win in (w, over):
            win.Fence(MPI.MODE_NOSUCCEED)
        one, got = np.ones(1), np.zeros(1)
        comm.Barrier()
        if comm.rank:
            time.sleep(4)
        else:
            time.sleep(0.1)
            start = time.monotonic()
            for win in (w, over):
                for kind in (MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE):
                    win.Lock(1, kind)
                    win.Put(one, 1)
                    win.Get(got, 1, 1)
                    win.Accumulate(one, 1, 2)
                    win.Flush(1)
                    win.Fetch_and_op(one, got, 1, 3)
                    win.Compare_and_swap(*np.zeros((2, 1), "i8"), np.zeros(1, "i8"), 1, 4)
                    win.Rget(got, 1).Wait()
                    win.Rput(one, 1).Wait()
                    win.Unlock(1)
                win.Lock_all()
                win.Put(one, 1)
                win.Unlock_all()
            assert time.monotonic() - start < 3, time.monotonic() - start
        comm.Barrier()
        w.Free()
        over.Free()
    """
    done = mpirun(2, code, env={"RMAEXT_ROUTE": route})
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("route", ROUTES)
def test_a_lost_target(mpirun, route):
    """MPI.Exception with the class for it, in all that would wait."""
    code = """
        import os, signal, time
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        comm = MPI.COMM_WORLD
        w = Win.Allocate(800, 8, comm=comm)
        w.Fence(MPI.MODE_NOSUCCEED)
        one = np.ones(1)
        w.Lock(1, MPI.LOCK_SHARED)
        w.Put(one, 1)
        w.Flush(1)
        comm.Barrier()
        if comm.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        # mpi4py gives a class that the MPI lacks the number of ERR_UNKNOWN
        has = MPI.ERR_PROC_FAILED not in (-1, MPI.ERR_UNKNOWN)
        lost = {MPI.ERR_OTHER, MPI.ERR_PROC_FAILED if has else MPI.ERR_OTHER}

        def fails(call):
            try:
                call()
            except MPI.Exception as exc:
                assert exc.Get_error_class() in lost, exc
                assert "rank 1" in str(exc), exc
                return True
            return False

        def use():
            w.Put(one, 1)
            w.Flush(1)
            w.Get(one, 1)
            w.Flush_local(1)

        def request():
            w.Rget(got, 1).Wait()
            w.Rget_accumulate(got, got, 1).Wait()

        got = np.zeros(100)
        end = time.monotonic() + 15
        while not fails(use):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert fails(request)
        fails(lambda: w.Unlock(1))
        w.Start(w.group)
        assert fails(lambda: w.Put(one, 1))
        os._exit(0)
    """
    done = mpirun(2, code, env={"RMAEXT_ROUTE": route}, survive=True)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("call", ["Wait", "Test", "Complete", "Start", "Post"])
def test_epochs_go_on_after_a_lost_rank(mpirun, route, call):
    """Each of them is over when the error has been raised."""
    code = """
        import os, signal, sys, time
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        from support.processes import wait_for_end
        comm, call = MPI.COMM_WORLD, sys.argv[1]
        pids = comm.allgather(os.getpid())
        w = Win.Allocate(64, 8, comm=comm)
        w.Fence(MPI.MODE_NOSUCCEED)
        own, peer = w.group.Incl([0]), w.group.Incl([1])
        if comm.rank and call == "Complete":
            w.Post(own)
        comm.Barrier()
        if comm.rank:
            comm.recv(source=0)
            os.kill(os.getpid(), signal.SIGKILL)
        if call in ("Wait", "Test"):
            w.Post(peer)
        if call == "Complete":
            w.Start(peer)
            w.Put(np.ones(1), 1)
        comm.send(None, 1)
        wait_for_end(pids[1])
        time.sleep(0.6)

        def fails(use):
            try:
                while not use():
                    pass
            except MPI.Exception as exc:
                assert exc.Get_error_class() in {MPI.ERR_PROC_FAILED, MPI.ERR_OTHER}, exc
                return
            raise AssertionError("no error")

        if call in ("Wait", "Test"):
            fails(getattr(w, call))
        elif call == "Complete":
            fails(w.Complete)
        elif call == "Start":
            w.Start(peer)
            fails(w.Complete)
        else:
            time.sleep(1)
            try:
                w.Post(peer)
            except MPI.Exception:
                pass
            fails(w.Wait)
        for _ in range(2):
            w.Post(own)
            w.Start(own)
            w.Put(np.ones(1), 0)
            w.Complete()
            w.Wait()
        w._epochs.may_free()
        os._exit(0)
    """
    env = {"RMAEXT_ROUTE": route, "PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(2, code, call, env=env, survive=True)
    assert not done.returncode, done.stderr


def test_complete_may_be_called_again_after_an_interrupt(monkeypatch):
    """The epoch goes on."""
    with window(MPI.COMM_SELF) as win:
        win.Post(win.group)
        win.Start(win.group)
        win.Put(ONE, 0)

        def interrupted(rank):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(type(win._window), "flush", lambda _, rank: interrupted(rank))
        with pytest.raises(KeyboardInterrupt):
            win.Complete()
        win.Put(ONE, 0)
        raises(SYNC, win.Start, win.group)
        win.Complete()
        win.Wait()
        win.Start(MPI.GROUP_EMPTY)
        win.Complete()


def test_windows_that_are_not_freed(mpirun):
    """Are of no account at the end, locked or not."""
    code = """
        import warnings
        warnings.simplefilter("error")
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        kept = Win.Allocate(8, comm=MPI.COMM_WORLD)
        Win.Create(bytearray(8), comm=MPI.COMM_WORLD)
        Win.Create_dynamic(comm=MPI.COMM_WORLD)
        kept.Lock(kept.group_rank)
        kept.Put(np.ones(1), kept.group_rank)
    """
    for end in ("", "MPI.Finalize()", "MPI.Finalize(); kept.free()"):
        done = mpirun(2, f"{code.rstrip()}\n        {end}\n")
        assert not done.returncode, done.stderr
        assert "rmaext" not in done.stderr
