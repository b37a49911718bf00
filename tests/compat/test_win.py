# SPDX-License-Identifier: BSD-3-Clause
"""rmaext.compat.Win: windows of all kinds, and what they have beside operations."""

from __future__ import annotations

import array
import gc
import inspect
import pickle

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext.compat import WIN_NULL, Win, attributes, win

MpiWin = attributes.MpiWin
ONE = np.ones(1)


def raises(code, call, *args):
    with pytest.raises(MPI.Exception) as caught:
        call(*args)
    assert caught.value.Get_error_class() == code, caught.value.__cause__


def names(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


# -- the class -------------------------------------------------------------------------


def test_names():
    assert names(Win) == names(MpiWin)
    assert len(names(Win)) == 63


@pytest.mark.parametrize("name", sorted(names(MpiWin)))
def test_signatures(name):
    theirs = getattr(MpiWin, name)
    if not callable(theirs):
        assert isinstance(inspect.getattr_static(Win, name), property)
        setter = inspect.getattr_static(Win, name).fset
        assert (setter is not None) == (name in ("info", "name"))
        return

    def listed(function):
        parameters = list(inspect.signature(function).parameters.values())
        return [(p.name, p.kind, p.default) for p in parameters]

    ours = getattr(Win, name)
    if inspect.isfunction(ours) or inspect.ismethod(ours):
        assert listed(ours) == listed(theirs)
    else:  # C's
        texts = [
            key if p.default is p.empty else f"{key}={'SUM' if p.default is MPI.SUM else p.default}"
            for key, p in inspect.signature(theirs).parameters.items()
        ]
        assert ours.__text_signature__ == f"(${', '.join(['self', '/', *texts[1:]])})"


def test_null():
    assert Win() == WIN_NULL
    assert Win() is not WIN_NULL
    assert not WIN_NULL
    assert WIN_NULL.name == "MPI_WIN_NULL"
    assert WIN_NULL.handle == MPI.Win().handle
    WIN_NULL.free()
    with pytest.raises(TypeError):
        Win((1, 2, 3))


NULL_CALLS = {
    "Free": (),
    "Attach": (bytearray(8),),
    "Detach": (bytearray(8),),
    "Shared_query": (0,),
    "tomemory": (),
    "Set_info": (MPI.INFO_NULL,),
    "Get_info": (),
    "Get_group": (),
    "Get_attr": (MPI.WIN_BASE,),
    "Set_attr": (1, 1),
    "Delete_attr": (1,),
    "Put": (ONE, 0),
    "Get": (ONE, 0),
    "Accumulate": (ONE, 0),
    "Get_accumulate": (ONE, ONE, 0),
    "Fetch_and_op": (ONE, ONE, 0),
    "Compare_and_swap": (ONE, ONE, ONE, 0),
    "Rput": (ONE, 0),
    "Rget": (ONE, 0),
    "Raccumulate": (ONE, 0),
    "Rget_accumulate": (ONE, ONE, 0),
    "Fence": (),
    "Start": (MPI.GROUP_EMPTY,),
    "Complete": (),
    "Post": (MPI.GROUP_EMPTY,),
    "Wait": (),
    "Test": (),
    "Lock": (0,),
    "Unlock": (0,),
    "Lock_all": (),
    "Unlock_all": (),
    "Flush": (0,),
    "Flush_all": (),
    "Flush_local": (0,),
    "Flush_local_all": (),
    "Sync": (),
    "Get_errhandler": (),
    "Set_errhandler": (MPI.ERRORS_RETURN,),
    "Call_errhandler": (1,),
    "Set_name": ("name",),
}


@pytest.mark.parametrize("name", NULL_CALLS)
def test_null_refuses(name):
    freed = Win.Allocate(8)
    freed.Free()
    for null in (WIN_NULL, freed):
        raises(MPI.ERR_WIN, getattr(null, name), *NULL_CALLS[name])


def test_identity(comm):
    first, second = Win.Allocate(8, comm=comm), Win.Create(None, comm=comm)
    again = Win(first)
    assert first == again
    assert (first != again) is False
    assert first != second
    assert (first == second) is False
    assert first != WIN_NULL
    assert first != 1
    assert bool(again)
    for call in (lambda: hash(first), lambda: first < second):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="pickle"):
        pickle.dumps(first)
    assert pickle.loads(pickle.dumps(WIN_NULL)) is win.WIN_NULL
    assert pickle.loads(pickle.dumps(Win())) == WIN_NULL
    again.Free()
    raises(MPI.ERR_WIN, first.Fence)
    second.free()
    second.free()
    assert second == WIN_NULL


def test_handles(comm):
    first, second = (Win.Allocate(8, comm=comm) for _ in range(2))
    for there, back in (
        ("handle", Win.fromhandle),
        ("toint", Win.fromint),
        ("py2f", Win.f2py),
    ):

        def number(w, there=there):
            return w.handle if there == "handle" else getattr(w, there)()

        assert back(number(first)) == first
        assert back(number(second)) == second
        assert back(number(WIN_NULL)) == WIN_NULL
        raises(MPI.ERR_WIN, back, -77)
    old = first.handle
    first.Free()
    second.Free()
    raises(MPI.ERR_WIN, Win.fromhandle, old)


def test_subclass():
    class Mine(Win):
        def __new__(cls, win=None):
            return Win.__new__(cls, win)

    mine = Mine.Allocate(8)
    assert type(mine) is Mine
    assert Mine(mine) == mine
    mine.Free()


def test_dropped_windows_stay(comm):
    """As those of MPI, which knows nothing of Python's references."""
    handle = Win.Allocate(8, comm=comm).handle
    gc.collect()
    again = Win.fromhandle(handle)
    again.tomemory()[:] = bytes(8)
    again.Free()


# -- memory ----------------------------------------------------------------------------

MEMORY = {
    "bytearray": lambda: bytearray(24),
    "array": lambda: array.array("d", [0.0] * 3),
    "numpy": lambda: np.zeros((3, 2), "f4"),
    "memoryview": lambda: memoryview(bytearray(32))[4:28],
    "alloc_mem": lambda: MPI.Alloc_mem(24),
}


@pytest.mark.parametrize("kind", MEMORY)
def test_create(comm, kind):
    memory = MEMORY[kind]()
    memoryview(memory).cast("B")[:] = bytes(24)
    w = Win.Create(memory, 4, comm=comm)
    assert w.attrs == (MPI.Get_address(memory), 24, 4)
    assert w.flavor == MPI.WIN_FLAVOR_CREATE
    peer = (comm.rank + 1) % comm.size
    w.Fence()
    w.Put(np.full(2, comm.rank + 1, "i4"), peer, 3)
    w.Fence()
    expected = np.zeros(6, "i4")
    expected[3:5] = (comm.rank - 1) % comm.size + 1
    assert (np.frombuffer(memory, "i4") == expected).all()
    w.Free()
    if kind == "alloc_mem":
        MPI.Free_mem(memory)


@pytest.mark.parametrize("nothing", [None, MPI.BOTTOM, bytearray(0)])
def test_create_over_nothing(comm, nothing):
    w = Win.Create(nothing, comm=comm)
    assert w.attrs == (0, 0, 1)
    assert len(w.tomemory()) == 0
    w.Lock(0, MPI.LOCK_SHARED)
    raises(MPI.ERR_RMA_RANGE, w.Put, ONE, 0)
    w.Unlock(0)
    w.Free()


def test_sizes_and_units_may_differ(comm):
    """The target's unit counts."""
    w = Win.Allocate(64 + 8 * comm.rank, 1 << comm.rank % 3, comm=comm)
    np.frombuffer(w, "u1")[:] = 0
    assert w.attrs[1:] == (64 + 8 * comm.rank, 1 << comm.rank % 3)
    w.Fence()
    for rank in range(comm.size):
        w.Put(np.full(1, comm.rank + 1, "u1"), rank, 4 * comm.rank)
    w.Fence()
    expected = np.zeros(64 + 8 * comm.rank, "u1")
    for rank in range(comm.size):
        expected[4 * rank << comm.rank % 3] = rank + 1
    assert (np.frombuffer(w, "u1") == expected).all()
    w.Free()


def test_buffer(comm):
    w = Win.Allocate(40, 8, comm=comm)
    for view in (memoryview(w), w.tomemory()):
        assert (len(view), view.format, view.readonly) == (40, "B", False)
        assert MPI.Get_address(view) == w.Get_attr(MPI.WIN_BASE)
    np.frombuffer(w)[:] = range(5)
    assert memoryview(w).cast("d").tolist() == [0, 1, 2, 3, 4]
    w.Free()
    assert len(memoryview(w)) == 0


def test_dynamic(comm):
    w = Win.Create_dynamic(comm=comm)
    assert w.flavor == MPI.WIN_FLAVOR_DYNAMIC
    assert w.attrs == (0, 0, 1)
    assert len(w.Shared_query(comm.rank)[0]) == 0
    memory = np.zeros(4)
    w.Attach(memory)
    w.Attach(bytearray(0))
    places = comm.allgather(MPI.Get_address(memory))
    peer = (comm.rank + 1) % comm.size
    w.Fence()
    w.Put(np.full(2, comm.rank + 1.0), peer, places[peer] + 8)
    w.Fence()
    left = (comm.rank - 1) % comm.size + 1
    assert memory.tolist() == [0, left, left, 0]
    raises(MPI.ERR_RMA_ATTACH, w.Attach, memory)
    w.Fence()
    w.Detach(memory)
    raises(MPI.ERR_RMA_ATTACH, w.Detach, memory)
    comm.Barrier()
    w.Lock(peer)
    raises(MPI.ERR_RMA_RANGE, w.Get, np.zeros(1), peer, places[peer])
    w.Unlock(peer)
    w.Free()


def test_attach_to_other_windows():
    w = Win.Allocate(8)
    for call in (w.Attach, w.Detach):
        raises(MPI.ERR_RMA_FLAVOR, call, bytearray(8))
    w.Free()


def test_shared(comm):
    """Loads and stores in the memory of others, and operations."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    w = Win.Allocate_shared(8 * (1 + node.rank), 8, comm=node)
    assert w.flavor == MPI.WIN_FLAVOR_SHARED
    np.frombuffer(w)[:] = node.rank
    w.Fence()
    for rank in range(node.size):
        memory, unit = w.Shared_query(rank)
        assert (len(memory), unit) == (8 * (1 + rank), 8)
        assert (np.frombuffer(memory) == rank).all()
    assert len(w.Shared_query(MPI.PROC_NULL)[0]) == 8
    w.Fence()
    last = node.size - 1
    np.frombuffer(w.Shared_query(last)[0])[node.rank] = 10 + node.rank
    w.Fence()
    found = np.zeros(node.size)
    w.Get(found, last)
    w.Fence()
    assert found.tolist() == [10 + rank for rank in range(node.size)]
    raises(MPI.ERR_RANK, w.Shared_query, node.size)
    w.Free()
    node.Free()


def test_query_of_parts_without_memory(comm):
    """They are where their memory would lie, as in Open MPI: programs compute from that."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    last = node.size - 1
    for nbytes in ([0] * last + [16], [24] + [0] * last, [8 * (r % 2) for r in range(node.size)]):
        w = Win.Allocate_shared(nbytes[node.rank], 2, comm=node)
        parts = [w.Shared_query(rank) for rank in range(node.size)]
        assert [(len(part), unit) for part, unit in parts] == [(size, 2) for size in nbytes]
        places = [part.address for part, _ in parts]
        if any(nbytes):
            assert places[0]
            assert np.diff(places).tolist() == nbytes[:-1]
        assert w.Get_attr(MPI.WIN_BASE) == w.tomemory().address == places[node.rank]
        memory, _ = w.Shared_query(MPI.PROC_NULL)
        assert len(memory) == next(filter(None, nbytes), 0)
        node.Barrier()
        w.Free()
    node.Free()


HINTS = [
    {"alloc_shared_noncontig": "true"},
    {"mpi_minimum_memory_alignment": "16384"},
    {"alloc_shared_noncontig": "true", "mpi_minimum_memory_alignment": "16384"},
    {"alloc_shared_noncontig": "false", "mpi_minimum_memory_alignment": "twelve"},
]


@pytest.mark.parametrize("hints", HINTS, ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_alignment(comm, shared, hints):
    """What rank r has of odd sizes takes updates of doubles, if a hint asks for that."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    info = MPI.Info.Create(hints)
    make = Win.Allocate_shared if shared else Win.Allocate
    w = make(40 if node.rank else 3, 8, info, node)
    info.Free()
    asked = hints.get("mpi_minimum_memory_alignment", "1")
    own = shared and hints.get("alloc_shared_noncontig") == "true"
    unit = max(int(asked) if asked.isdigit() else 1, 4096 if own else 1)
    network = any(w._window.route(rank) == "fabric" for rank in range(node.size))
    if shared and node.rank:
        unit = min(unit, 4096)  # others map it at whole pages
    if not (shared and network):  # else it is MPI's own memory
        first = not shared or own or not node.rank
        assert w.Get_attr(MPI.WIN_BASE) % (unit if first else 1) == 0
    if own or not shared:
        w.Fence()
        for rank in range(1, node.size):
            w.Accumulate(np.ones(5), rank)
        w.Fence()
        if node.rank:
            assert np.frombuffer(w).tolist() == [node.size] * 5
    elif node.rank > 0:
        parts = [w.Shared_query(rank)[0].address for rank in range(2)]
        assert parts[1] - parts[0] == 3
    node.Barrier()
    w.Free()
    node.Free()


def test_query_of_other_windows(comm):
    w = Win.Allocate(16, 2, comm=comm)
    np.frombuffer(w)[:] = comm.rank
    w.Fence()
    memory, unit = w.Shared_query(comm.rank)
    for rank in range(comm.size):
        memory, unit = w.Shared_query(rank)
        assert len(memory) in ((16,) if rank == comm.rank else (0, 16))  # 0: not mapped here
        if len(memory):
            assert unit == 2
            assert (np.frombuffer(memory) == rank).all()
    w.Fence()
    w.Free()


# what one rank gives; what it raises there, and the class of the error elsewhere
CREATIONS = {
    "size": (lambda c: Win.Allocate(-1, comm=c), MPI.Exception, MPI.ERR_SIZE),
    "unit": (lambda c: Win.Allocate(8, 0, comm=c), MPI.Exception, MPI.ERR_DISP),
    "type of size": (lambda c: Win.Allocate("8", comm=c), TypeError, MPI.ERR_ARG),
    "type of info": (lambda c: Win.Allocate(8, info={}, comm=c), TypeError, MPI.ERR_ARG),
    "memory": (lambda c: Win.Create(7, comm=c), TypeError, MPI.ERR_ARG),
    "read-only": (lambda c: Win.Create(b"12", comm=c), BufferError, MPI.ERR_ARG),
    "strided": (lambda c: Win.Create(np.zeros(8)[::2], comm=c), Exception, MPI.ERR_ARG),
}


@pytest.mark.parametrize("what", CREATIONS)
def test_creation_fails_everywhere(comm, what):
    call, kind, code = CREATIONS[what]
    if comm.rank == comm.size - 1:
        with pytest.raises(kind):
            call(comm)
    else:
        right = Win.Create if call.__code__.co_names[1] == "Create" else Win.Allocate
        raises(code, lambda: right(bytearray(8) if right == Win.Create else 8, comm=comm))
    w = Win.Allocate(8, comm=comm)  # all are in step
    w.Free()


def test_wrong_communicators():
    raises(MPI.ERR_COMM, lambda: Win.Allocate(8, comm=MPI.Intracomm()))
    for wrong in (None, 1, MPI.COMM_NULL):
        with pytest.raises(TypeError):
            Win.Allocate(8, comm=wrong)


def test_group_outlives_the_communicator(comm):
    copy = comm.Dup()
    w = Win.Allocate(8, comm=copy)
    copy.Free()
    group, own = w.group, comm.Get_group()
    assert MPI.Group.Compare(group, own) == MPI.IDENT
    assert (w.group_rank, w.group_size) == (comm.rank, comm.size)
    group.Free()
    own.Free()
    w.Get_group().Free()
    w.Fence()
    w.Free()


# -- attributes, hints, name ------------------------------------------------------------


def test_predefined_attributes():
    w = Win.Allocate(16, 4)
    assert w.Get_attr(MPI.WIN_BASE) == MPI.Get_address(w.tomemory())
    assert w.Get_attr(MPI.WIN_SIZE) == 16
    assert w.Get_attr(MPI.WIN_DISP_UNIT) == 4
    assert w.Get_attr(MPI.WIN_CREATE_FLAVOR) == w.flavor == MPI.WIN_FLAVOR_ALLOCATE
    assert w.Get_attr(MPI.WIN_MODEL) == w.model == MPI.WIN_UNIFIED
    raises(MPI.ERR_KEYVAL, w.Get_attr, MPI.KEYVAL_INVALID)
    w.Free()


def test_attributes():
    deleted = []
    keys = [
        Win.Create_keyval(delete_fn=lambda *args: deleted.append(args), nopython=nopython)
        for nopython in (False, True)
    ]
    w = Win.Allocate(8)
    for key in keys:
        assert w.Get_attr(key) is None
        raises(MPI.ERR_OTHER, w.Delete_attr, key)
    something = object()
    w.Set_attr(keys[0], 1)
    w.Set_attr(keys[0], something)
    assert deleted == [(w, keys[0], 1)]
    assert w.Get_attr(keys[0]) is something
    with pytest.raises(TypeError):
        w.Set_attr(keys[1], something)
    w.Set_attr(keys[1], 77)
    w.Delete_attr(keys[0])
    assert deleted[1:] == [(w, keys[0], something)]
    w.Set_attr(keys[0], 2)
    del deleted[:]
    for key in keys:
        assert Win.Free_keyval(key) == MPI.KEYVAL_INVALID
        raises(MPI.ERR_KEYVAL, Win.Free_keyval, key)
        raises(MPI.ERR_KEYVAL, w.Set_attr, key, 1)
    seen = Win(w)
    w.Free()
    assert [args[1:] for args in deleted] == [(keys[0], 2), (keys[1], 77)]
    assert all(args[0] is w for args in deleted)
    assert seen


def test_attributes_that_refuse(capsys):
    def refuse(*_):
        raise MPI.Exception(MPI.ERR_PORT)

    key = Win.Create_keyval(delete_fn=refuse)
    w = Win.Allocate(8)
    w.Set_attr(key, 1)
    raises(MPI.ERR_PORT, w.Delete_attr, key)
    assert "refuse" in capsys.readouterr().err
    assert w.Get_attr(key) is None
    w.Set_attr(key, 1)
    raises(MPI.ERR_PORT, w.Free)
    assert w
    w.Free()


def test_hints():
    given = MPI.Info.Create({"no_locks": "true", "nobody knows": "this"})
    w = Win.Allocate(8, info=given)
    assert w.info["no_locks"] == "true"
    assert "nobody knows" not in w.info
    given["no_locks"] = "false"
    given["accumulate_ordering"] = "none"
    w.info = given
    assert w.info["no_locks"] == "false"
    assert w.info["accumulate_ordering"] == "none"
    w.Free()


def test_name():
    w = Win.Allocate(8)
    assert w.name == ""
    w.name = "a window"
    assert Win(w).Get_name() == "a window"
    with pytest.raises(TypeError):
        w.name = 7
    w.Free()


# -- errors ----------------------------------------------------------------------------


def test_errors_have_words():
    w = Win.Allocate(8)
    with pytest.raises(MPI.Exception) as caught:
        w.Put(ONE, 0)
    for text in (str(caught.value), caught.value.error_string, caught.value.Get_error_string()):
        assert "no epoch" in text
    w.Lock(0)
    with pytest.raises(MPI.Exception) as caught:
        w.Put(ONE, 0, 1)
    assert caught.value.Get_error_class() == MPI.ERR_RMA_RANGE
    assert caught.value.error_code == caught.value == MPI.ERR_RMA_RANGE
    assert "rank 0" in str(caught.value)
    assert isinstance(caught.value.__cause__, rmaext.BoundsError)
    w.Unlock(0)
    w.Free()


def test_fatal_errors_have_words(mpirun):
    code = """
        from mpi4py import MPI
        from rmaext.compat import Win
        w = Win.Allocate(8)
        w.Set_errhandler(MPI.ERRORS_ARE_FATAL)
        w.Lock(0)
        w.Put(b"1", 0, 1000)
    """
    done = mpirun(1, code)
    assert done.returncode
    assert "rank 0" in done.stderr


@pytest.mark.parametrize("handler", [MPI.ERRORS_RETURN, MPI.ERRORS_ARE_FATAL, MPI.ERRORS_ABORT])
def test_predefined_error_handlers(handler):
    w = Win.Allocate(8)
    assert w.Get_errhandler() == MPI.ERRORS_RETURN
    w.Set_errhandler(handler)
    found = w.Get_errhandler()
    assert found == handler
    found.Free()
    assert w.Get_errhandler() == handler
    w.Set_errhandler(MPI.ERRORS_RETURN)
    raises(MPI.ERR_ARG, w.Set_errhandler, MPI.ERRHANDLER_NULL)
    w.Free()


def test_own_error_handler():
    called = []
    handler = Win.Create_errhandler(lambda *args: called.append(args))
    first, second = Win.Allocate(8), Win.Allocate(8)
    for w in (first, second):
        w.Set_errhandler(handler)
    handler.Free()
    raises(MPI.ERR_RMA_SYNC, first.Put, ONE, 0)
    assert called == [(first, MPI.ERR_RMA_SYNC)]
    first.Call_errhandler(MPI.ERR_OTHER)
    assert called[1:] == [(first, MPI.ERR_OTHER)]
    found = first.Get_errhandler()
    first.Free()
    second.Set_errhandler(MPI.ERRORS_RETURN)
    second.Set_errhandler(found)
    found.Free()
    raises(MPI.ERR_RMA_SYNC, second.Unlock, 0)
    assert called[2:] == [(second, MPI.ERR_RMA_SYNC)]
    second.Set_errhandler(MPI.ERRORS_RETURN)
    raises(MPI.ERR_RMA_SYNC, second.Unlock, 0)
    assert len(called) == 3
    second.Free()


def test_handlers_of_mpi_itself():
    """Made before MPI.Win was replaced."""
    codes = []
    handler = MpiWin.Create_errhandler(lambda _, code: codes.append(code))
    w = Win.Allocate(8)
    w.Set_errhandler(handler)
    raises(MPI.ERR_RMA_SYNC, w.Put, ONE, 0)
    assert codes == [MPI.ERR_RMA_SYNC]
    w.Free()
    handler.Free()


@pytest.mark.parametrize("how", ["MPI.ERRORS_ARE_FATAL", "MPI.ERRORS_ABORT"])
def test_fatal_errors(mpirun, how):
    code = f"""
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        w = Win.Allocate(8, comm=MPI.COMM_WORLD)
        w.Set_errhandler({how})
        w.Put(np.ones(1), 0)
        print("went on")
    """
    done = mpirun(1, code)
    assert done.returncode
    assert "went on" not in done.stdout
    assert "abort" in done.stderr.lower()


@pytest.mark.parametrize(
    ("setting", "handler"),
    [("exception", "ERRORS_RETURN"), ("default", "ERRORS_ARE_FATAL"), ("abort", "ERRORS_ABORT")],
)
def test_the_default_is_that_of_mpi4py(run_python, setting, handler):
    code = f"""
        import mpi4py
        mpi4py.rc.errors = {setting!r}
        from mpi4py import MPI
        from rmaext.compat import Win
        w = Win.Allocate(8)
        assert w.Get_errhandler() == MPI.{handler}
        w.Free()
    """
    done = run_python(code)
    assert not done.returncode, done.stderr


# -- requests --------------------------------------------------------------------------

N = 300_000


@pytest.mark.parametrize("n", [1, N])
@pytest.mark.parametrize("call", ["Waitall", "Testall", "Waitany", "Wait", "wait", "Get_status"])
def test_requests(comm, n, call):
    """Together with ordinary ones."""
    peer, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    w = Win.Allocate(8 * 2 * n, 8, comm=comm)
    np.frombuffer(w)[:] = comm.rank
    w.Fence(MPI.MODE_NOSUCCEED)
    w.Lock_all()
    got, received = np.zeros(n), np.zeros(n)
    ones = np.full(n, comm.rank + 1.0)
    added = np.zeros(n)
    requests = [
        comm.Irecv(received, left),
        w.Rget(got, peer),
        comm.Isend(ones, peer),
        w.Rput(ones, peer, n),
        w.Rget(np.zeros(0), peer),
        w.Rget(np.zeros(1), MPI.PROC_NULL),
    ]
    if call == "Waitall":
        MPI.Request.Waitall(requests)
    elif call == "Testall":
        while not MPI.Request.Testall(requests):
            pass
    elif call == "Waitany":
        assert sorted(MPI.Request.Waitany(requests) for _ in requests) == [*range(len(requests))]
    else:
        for request in requests:
            if call == "Get_status":
                while not request.Get_status():
                    pass
                request.Wait()
            else:
                getattr(request, call)()
    assert (got == peer).all()
    assert (received == left + 1).all()
    w.Flush(peer)
    w.Raccumulate(ones, peer, n).Wait()
    w.Flush(peer)
    w.Rget_accumulate(ones, added, peer, n).Wait()
    assert (added == 2 * (comm.rank + 1)).all()
    w.Unlock_all()
    comm.Barrier()
    assert (np.frombuffer(w)[n:] == 3 * (left + 1)).all()
    comm.Barrier()
    w.Free()


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
@pytest.mark.parametrize("route", [None, "fabric"])
def test_requests_at_each_thread_level(mpirun, level, route):
    code = f"""
        import mpi4py
        mpi4py.rc.thread_level = {level!r}
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        comm = MPI.COMM_WORLD
        n = {N}
        w = Win.Allocate(8 * n, 8, comm=comm)
        np.frombuffer(w)[:] = comm.rank
        w.Fence(MPI.MODE_NOSUCCEED)
        got = np.zeros((4, n))
        w.Lock_all()
        MPI.Request.Waitall([w.Rget(part, 1 - comm.rank) for part in got])
        assert (got == 1 - comm.rank).all()
        w.Unlock_all()
        w.Free()
    """
    done = mpirun(2, code, env={"RMAEXT_ROUTE": route})
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("route", [None, "fabric"])
def test_waitall_of_requests_of_which_some_were_finished(mpirun, route):
    """MPICH ends the process if one is null, and a generalized request is not complete."""
    code = """
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        Request, comm = MPI.Request, MPI.COMM_WORLD
        n = 20_000
        part = n * (comm.rank + 1)
        windows = [Win.Allocate(8 * n * (comm.size + 1), 8, comm=comm) for _ in range(2)]
        for w in windows:
            np.frombuffer(w)[:] = 0
            w.Fence(MPI.MODE_NOSUCCEED)
            w.Lock_all()
        ones, peers = np.ones(n), range(comm.size)
        for turn in range(16):
            got = [np.zeros(n) for _ in range(2 * comm.size)]
            requests = [MPI.REQUEST_NULL]
            for w, into in zip(windows, (got[: comm.size], got[comm.size :])):
                requests += [w.Rput(ones, peer, part) for peer in peers]
                requests += [w.Rget(into[peer], peer) for peer in peers]
                requests += [w.Raccumulate(ones, peer) for peer in peers]
                requests += [w.Rget_accumulate(ones, np.zeros(n), peer) for peer in peers]
            requests.append(comm.Irecv(np.zeros(1), (comm.rank - 1) % comm.size))
            requests.append(comm.Isend(np.zeros(1), (comm.rank + 1) % comm.size))
            if turn % 4 == 1:
                Request.Testall(requests)
            elif turn % 4 == 2:
                Request.Waitany(requests)
            elif turn % 4 == 3:
                Request.Waitsome(requests)
            Request.Waitall(requests)
            assert all(request == MPI.REQUEST_NULL for request in requests)
        for w in windows:
            w.Unlock_all()
        comm.Barrier()
        for w in windows:
            assert (np.frombuffer(w)[:n] == 2 * 16 * comm.size).all()
            assert (np.frombuffer(w)[n:] == 1).all()
            w.Free()
    """
    done = mpirun(3, code, env={"RMAEXT_ROUTE": route}, timeout=60)
    assert not done.returncode, done.stderr


def test_requests_that_nobody_waits_for(mpirun):
    code = f"""
        import numpy as np
        from mpi4py import MPI
        from rmaext.compat import Win
        comm = MPI.COMM_WORLD
        w = Win.Allocate(8 * {N}, 8, comm=comm)
        w.Fence(MPI.MODE_NOSUCCEED)
        w.Lock_all()
        requests = [w.Rput(np.full({N}, 7.0), 1 - comm.rank) for _ in range(8)]
        requests.pop().Free()
        w.Unlock_all()
        comm.Barrier()
        assert (np.frombuffer(w) == 7).all()
        w.Free()
    """
    for route in (None, "fabric"):
        done = mpirun(2, code, env={"RMAEXT_ROUTE": route})
        assert not done.returncode, done.stderr
