# SPDX-License-Identifier: BSD-3-Clause
"""What CUDA frees and unmaps only once the device has nothing to do: nobody here waits for that."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import launch
import numpy as np
import pytest
from mpi4py import MPI

import rmaext

pytestmark = pytest.mark.mpi


@pytest.fixture
def kernel(cuda):
    """A kernel of the program's own that goes on until the event is set; what it is to fill."""
    may_end, ended = threading.Event(), []
    array = cuda.Array.from_numpy(np.zeros(4), cuda.Stream())
    array.stream.synchronize()
    array.launch(lambda _: ended.append(may_end.wait(20)))

    def end():
        may_end.set()
        array.stream.synchronize()

    yield ended, end
    end()
    array.stream.close()


def launched(cuda, seconds):
    """A kernel of the program's own; what ends it."""
    may_end = threading.Event()
    array = cuda.Array.from_numpy(np.zeros(4), cuda.Stream())
    array.stream.synchronize()
    array.launch(lambda _: may_end.wait(seconds))

    def end():
        may_end.set()
        array.stream.close()

    return end


def test_garbage_amid_a_later_kernel(cuda, comm, kernel):
    """What the first kernel has kept is not freed while the second is at work: it would wait."""
    _, end = kernel
    win = rmaext.Window.allocate(comm, 1 << 20, "u1", device="cuda:0")
    origin = cuda.Array.from_numpy(np.ones(10), cuda.Stream())
    origin.stream.synchronize()
    with rmaext.Window(comm, np.zeros(10)) as target:
        win.close()
        del win
        end()
        freed = cuda.cuda.device_calls(b"cuMemFree") if cuda.SIMULATED else 0
        end_second = launched(cuda, 10)
        try:
            begun = time.monotonic()
            target.put(origin, comm.rank)
            assert time.monotonic() - begun < 5
            if cuda.SIMULATED:
                assert cuda.cuda.device_calls(b"cuMemFree") == freed
        finally:
            end_second()
        if cuda.SIMULATED:
            target.put(origin, comm.rank)
            assert cuda.cuda.device_calls(b"cuMemFree") == freed + 1
        assert (target.get(comm.rank) == 1).all()
        target.fence()


def test_a_window_amid_a_later_kernel(cuda, comm, kernel):
    """No mapping that the first kernel has kept is closed then."""
    _, end = kernel
    memory = cuda.Array.from_numpy(np.zeros(10))
    rmaext.Window(comm, memory).close()
    end()
    comm.Barrier()
    end_second = launched(cuda, 10)
    try:
        begun = time.monotonic()
        with rmaext.Window(comm, memory) as win:
            opened = time.monotonic() - begun
            win.fence()
    finally:
        end_second()
    assert comm.allreduce(opened, MPI.MAX) < 5


def test_garbage_amid_a_kernel(cuda, comm, kernel):
    """The collector goes on, and the memory is freed later."""
    ended, end = kernel
    win = rmaext.Window.allocate(comm, 1 << 20, "u1", device="cuda:0")
    ring = [win.local]
    ring.append(ring)
    gone = weakref.ref(win.local)
    win.close()
    if cuda.SIMULATED:
        freed = cuda.cuda.device_calls(b"cuMemFree")
    del ring, win
    gc.collect()
    assert gone() is None
    assert not ended
    end()
    if cuda.SIMULATED:
        assert cuda.cuda.device_calls(b"cuMemFree") == freed
        rmaext.Window.allocate(comm, 1, device="cuda:0").close()
        assert cuda.cuda.device_calls(b"cuMemFree") == freed + 2  # and its own


def test_a_close_amid_a_kernel(cuda, comm, kernel):
    """What others have mapped is let go of later."""
    ended, end = kernel
    memory = cuda.Array.from_numpy(np.zeros(10))
    comm.Barrier()
    before = cuda.cuda.device_opened() if cuda.SIMULATED else 0
    win = rmaext.Window(comm, memory)
    others = cuda.cuda.device_opened() - before if cuda.SIMULATED else 0
    win.close()
    assert not ended
    comm.Barrier()
    if cuda.SIMULATED:
        assert cuda.cuda.device_opened() - before == others
    end()
    if cuda.SIMULATED:
        rmaext.Window(comm, memory).close()  # it takes along what nobody uses any more
        assert comm.allreduce(cuda.cuda.device_opened() == before, MPI.LAND)


ENV = {"PYTHONPATH": launch.PYTHONPATH}


def ends(done):
    assert done.stdout == "end\n", done.stderr
    assert not done.returncode, done.stderr


@pytest.fixture
def end_hung(cuda, comm, run_python):
    """Run a program whose device hangs at its end, and see that it ends."""
    if not cuda.SIMULATED or comm.size > 1:
        pytest.skip("no GPU hangs when it is told to")
    return lambda *program, **env: ends(run_python(*program, env={**ENV, **env}))


EXIT = """
    import atexit
    import numpy as np
    from mpi4py import MPI
    import rmaext
    from device import device_array as cuda
    cuda.begin()
    win = rmaext.Window.allocate(MPI.COMM_SELF, 100, device="cuda:0")
    kept = [win.local]
    win.close()
    atexit.register(kept.clear)
    array = cuda.Array.from_numpy(np.zeros(4), cuda.Stream())
    array.stream.synchronize()
    cuda.cuda.device_hang(1)
    array.launch(lambda _: None)
    print("end", flush=True)
"""


def test_the_end_of_a_process_while_the_device_hangs(end_hung):
    end_hung(EXIT)


LATE = """
    import os, sys, weakref
    import numpy as np
    import rmaext
    from device import device_array as cuda
    cuda.begin()
    array = cuda.Array.from_numpy(np.zeros(4), cuda.Stream())
    array.stream.synchronize()
    sys.told = weakref.ref(array, lambda _, write=os.write: write(1, b"freed"))
    os.environ["RMAEXT_TIMEOUT"] = "0.3"
    cuda.cuda.device_hang(1)
    array.launch(lambda _: None)
    try:
        rmaext.elements(array, "f8")
    except rmaext.RmaTimeout:
        print("end", flush=True)
    del array
"""


def test_an_array_whose_copy_goes_on_at_the_end(end_hung):
    """The end of the interpreter does not free it, in whatever state its library is then."""
    end_hung(LATE)


LEFT = """
    import os, sys, weakref
    import numpy as np
    from mpi4py import MPI
    import rmaext
    from device import device_array as cuda
    cuda.begin()
    win = rmaext.Window(MPI.COMM_WORLD, np.arange(4.0))
    array = cuda.Array.from_numpy(np.zeros(4), cuda.Stream())
    array.stream.synchronize()
    sys.told = weakref.ref(array, lambda _, write=os.write: write(1, b"freed"))
    request = win.rget(0, out=array)
    win.flush()
    cuda.cuda.device_hang(1)
    array.launch(lambda _: None)
    assert not request.test() and request._result.way is not None
    del array
    if sys.argv[1] == "closed":
        win.close()
    print("end", flush=True)
"""


@pytest.mark.parametrize("how", ["left", "closed"])
def test_a_request_that_is_copied_at_the_end(end_hung, how):
    """What the program has not dropped keeps its array from the end of the interpreter, too."""
    end_hung(LEFT, how, RMAEXT_ROUTE="fabric")


OLDER = """
    import threading, time
    import numpy as np
    from mpi4py import MPI
    import rmaext
    from rmaext._memory import cuda as of_cuda
    from device import device_array as cuda
    assert not hasattr(cuda.cuda, "cuCtxRecordEvent")
    cuda.begin()
    for blocking in True, False:
        kept = rmaext.Window.allocate(MPI.COMM_SELF, 100, "u1", device="cuda:0", timeout=0.5)
        local, ended, may_end = kept.local, [], threading.Event()
        if blocking:
            stream = cuda.Stream(blocking=True)
            array = cuda.Array.from_numpy(np.zeros(4), stream)
            array.launch(lambda _: ended.append(may_end.wait(20)))
        else:  # a copy of rmaext's own
            cuda.cuda.device_hang(2)
            try:
                kept.get(0, 0, 10)
                raise AssertionError("it has come")
            except rmaext.RmaError:
                pass
        kept.close()
        freed = cuda.cuda.device_calls(b"cuMemFree")
        del local, kept
        assert not ended and cuda.cuda.device_calls(b"cuMemFree") == freed
        may_end.set()
        cuda.cuda.device_hang(0)
        stream.synchronize()
        while cuda.cuda.device_calls(b"cuMemFree") == freed:
            rmaext.Window.allocate(MPI.COMM_SELF, 1, device="cuda:0").close()
    array = cuda.Array.from_numpy(np.zeros(4))
    with rmaext.Window.allocate(MPI.COMM_SELF, 100, "u1", device="cuda:0") as win:
        local = win.local
    del win
    freed = cuda.cuda.device_calls(b"cuMemFree")
    with of_cuda.Passage(array):
        begun = time.monotonic()
        del local
        assert time.monotonic() - begun < 0.9, "it waited for a stream of its own"
        assert cuda.cuda.device_calls(b"cuMemFree") == freed
    print("end")
"""


def test_a_driver_before_cuda_12_5(cuda, comm, run_python, tmp_path):
    """It tells of blocking streams, and rmaext knows its own."""
    if not cuda.SIMULATED or comm.size > 1:
        pytest.skip("there is one driver")
    content = Path(os.environ["RMAEXT_CUDA"]).read_bytes()
    assert b"cuCtxRecordEvent\0" in content
    older = tmp_path / "libcuda.so.1"
    older.write_bytes(content.replace(b"cuCtxRecordEvent\0", b"cuCtxRecordEvenx\0"))
    ends(run_python(OLDER, env={**ENV, "RMAEXT_CUDA": str(older)}))
