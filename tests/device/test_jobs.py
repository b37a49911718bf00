# SPDX-License-Identifier: BSD-3-Clause
"""Ranks with and without a device that end, fork, or never begin with CUDA."""

from __future__ import annotations

import os
from pathlib import Path

import launch
import pytest
from support.jobs import PRELUDE

BEGIN = (
    PRELUDE
    + """
from device import device_array as cuda

def begin(values):
    cuda.begin()
    return cuda.Array.from_numpy(values)

def lost(call):
    "Wait until a call finds that its target is gone"
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            call()
        except rmaext.PeerLostError:
            return
        time.sleep(0.01)
    raise AssertionError("nobody is lost")
"""
)


def run(mpirun, size, code, begin=BEGIN, **how):
    env = {"PYTHONPATH": launch.PYTHONPATH, **how.pop("env", {})}
    done = mpirun(size, begin + code, env=env, **how)
    assert done.stdout.splitlines().count("end") == size - how.get("survive", False), (
        done.stdout + done.stderr
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("route", ["", "fabric"])
def test_the_owner_is_killed(mpirun, route):
    """Others learn of it, in their time; what they have among themselves goes on."""
    code = """
win = rmaext.Window(world, begin(np.full(1000, rank + 1.0)), timeout=5)
assert win.route(0) == ("fabric" if "fabric" in os.environ["RMAEXT_ROUTE"] else "ipc")
assert (win.get(0, 0, 1000) == 1).all()
world.Barrier()
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
lost(lambda: win.get(0, 0, 1000))
lost(lambda: win.put(np.ones(1000), 0))
lost(lambda: win.get_many([0], [3]))
lost(lambda: win.fetch_add(1.0, 0, 0))
win.put(7.0, 3 - rank, 5)
win.flush(3 - rank)
assert win.get(3 - rank, 5, 1) == [7]
win.accumulate(1.0, 3 - rank, 6)
win.put_notify([], 3 - rank, slot=1)
win.flush(3 - rank)
win.wait_notify(slot=1)
print("end", flush=True)
time.sleep(1)  # the other's flush may wait for this rank
os._exit(0)
"""
    run(mpirun, 3, code, env={"RMAEXT_ROUTE": route}, survive=True)


def test_a_rank_that_uses_no_cuda(mpirun):
    """It opens no driver and makes no context, and reaches the others by messages."""
    code = """
if rank:
    from device import device_array as cuda
    memory = begin(np.zeros(100))
else:
    memory = np.zeros(100)
with rmaext.Window(world, memory) as win:
    assert win.route(1) == ("ipc" if rank else "fabric")
    for to in range(size):
        win.put(rank + 1.0, to, rank)
    win.fence()
    for to in range(size):
        assert (win.get(to, 0, size) == np.arange(1.0, size + 1)).all()
    assert (os.environ["RMAEXT_CUDA"] in open("/proc/self/maps").read()) == (rank > 0)
    win.fence()
print("end", flush=True)
"""
    # the tests' arrays open it when they are imported
    run(mpirun, 3, code, BEGIN.replace("from device import device_array as cuda\n", ""))


def test_a_driver_that_is_loaded_and_never_used(mpirun):
    """Nor is CUDA begun there; and one that has begun without a context gets none."""
    code = """
memory = np.zeros(10) if rank else begin(np.zeros(10))
if rank == 2:
    cuda.call("cuInit", 0)
with rmaext.Window(world, memory) as win:
    assert win.route(0) == ("fabric" if rank else "ipc")
    assert win.get(0, 0, 1) == [0]
    if rank == 2:
        import ctypes
        flags, active = ctypes.c_uint(), ctypes.c_int()
        cuda.call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        assert not active.value
    elif rank == 1:
        try:
            cuda.get(cuda.ctypes.c_int, "cuDeviceGetCount")
            raise AssertionError("CUDA has begun")
        except cuda.CudaError as error:
            assert error.number == 3
    win.fence()
print("end", flush=True)
"""
    run(mpirun, 3, code)


def test_the_log_says_why_a_route_is_not_ipc(mpirun):
    code = """
import logging
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
if rank == 0:
    os.environ["DEVICE_FAIL"] = "cuIpcOpenMemHandle_v2:1:205,cuIpcOpenMemHandle_v2:1:205"
rmaext.Window(world, begin(np.zeros(10))).close()
logging.disable()
print("end", flush=True)
"""
    log = run(mpirun, 2, code)
    why = "route to rank 1 is fabric, not ipc: it cannot be mapped: "
    assert log.count(why) == 1, log
    assert "route to rank 0 is fabric" not in log


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Pooled", "a pool (cudaMallocAsync) has made that memory"),
        ("Unexported", "without a descriptor (requestedHandleTypes)"),
        ("Expandable", "3 blocks of cuMemCreate, each of which takes a descriptor"),
    ],
)
def test_the_log_says_why_nobody_maps_memory(mpirun, kind, words):
    """Of a pool, of blocks without descriptors, and of too many of them."""
    code = f"""
import logging, resource
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
cuda.begin()
memory = cuda.{kind}.from_numpy(np.full(300_000, rank + 1.0))
rmaext.Window(world, begin(np.zeros(3))).close()  # opens what it needs
most = resource.getrlimit(resource.RLIMIT_NOFILE)
if {kind == "Expandable"}:
    resource.setrlimit(resource.RLIMIT_NOFILE, (5, most[1]))
win = rmaext.Window(world, memory)
resource.setrlimit(resource.RLIMIT_NOFILE, most)
assert win.route(peer) == "fabric"
assert (win.get(peer) == peer + 1).all()
win.close()
logging.disable()
print("end", flush=True)
"""
    log = run(mpirun, 2, code)
    assert log.count(words) == 2, log


def test_a_notification_whose_counts_are_not_mapped(mpirun):
    """The memory is, and the notification goes by message, behind the data."""
    code = """
from rmaext._memory import node
if rank == 0:  # as where memfd_create is forbidden
    node.empty = lambda shape, dtype=float, **_: np.zeros(shape, dtype)
win = rmaext.Window(world, begin(np.zeros(50_000)), timeout=20)
assert win.route(0) == "ipc"
for turn in range(1, 6):
    if rank:
        win.put_notify(np.full(50_000, float(turn)), 0, slot=2)
        win.put_notify([], 0, slot=3)
        win.flush(0)
    else:
        win.wait_notify(slot=2)
        win.wait_notify(slot=3)
        assert (win.get(0) == turn).all()
    win.fence()
if rank:  # a wait that a device makes long, too
    cuda.cuda.device_hang(2)
    threading.Timer(0.5, cuda.cuda.device_hang, [0]).start()
    win.put_notify(np.full(7, 9.0), 0, 3, slot=4)
    win.flush(0)
else:
    win.wait_notify(slot=4)
    assert (win.get(0, 3, 7) == 9).all()
win.fence()
sent = {row["route"] for row in win.stats if row["kind"] == "notify" and row["target"] == 0}
assert sent == ({"message"} if rank else set()), list(win.stats)
win.close()
print("end", flush=True)
"""
    run(mpirun, 2, code)


def test_without_progress_threads(mpirun):
    """Puts and gets end though nobody serves."""
    code = """
win = rmaext.Window(world, begin(np.full(1000, rank + 1.0)))
world.Barrier()
if rank == 1:
    assert (win.get(0, 0, 1000) == 1).all()
    win[0, 100:200:3] = 5.0
    win.flush()
    assert (win[0, 100:200:3] == 5).all()
    world.send(None, 0)
else:
    while not world.Iprobe(1):
        time.sleep(0.01)
    world.recv(source=1)
win.close()
print("end", flush=True)
"""
    run(mpirun, 2, code, env={"RMAEXT_PROGRESS": "0"})


def test_a_child_of_a_fork(mpirun):
    """It has no windows, and its end leaves the mappings of the parent."""
    code = """
win = rmaext.Window(world, begin(np.full(10, rank + 1.0)))
child = os.fork()
if not child:
    try:
        win.get(peer, 0, 1)
    except (rmaext.ClosedError, rmaext.RmaError):
        del win
        gc.collect()
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert win.get(peer, 0, 1) == [peer + 1]
win.close()
print("end", flush=True)
"""
    run(mpirun, 2, code)


def test_a_device_that_hangs_at_its_owner(mpirun):
    """Operations by message fail in their time; windows of the host go on meanwhile."""
    code = """
win = rmaext.Window(world, begin(np.zeros(10)), timeout=4)
other = rmaext.Window(world, np.zeros(10), timeout=20)
if rank == 0:
    cuda.cuda.device_hang(1)
world.Barrier()
if rank:
    for call in (lambda: win.get(0, 0, 1), lambda: win.fetch_add(1.0, 0, 0)) * 2:
        try:
            call()
            raise AssertionError("it has come")
        except rmaext.RmaError as error:
            assert "the device that has the memory there" in str(error), error
    assert other.fetch_add(1.0, 0, 0) == 0
world.Barrier()
if rank == 0:
    cuda.cuda.device_hang(0)
    end = time.monotonic() + 20
    while True:
        try:
            assert win.get(0, 0, 1) in ([0.0], [1.0], [2.0])
            break
        except rmaext.RmaError:
            assert time.monotonic() < end
            time.sleep(0.01)
win.fence()
other.close()
win.close()
print("end", flush=True)
"""
    run(mpirun, 2, code, env={"RMAEXT_ROUTE": "fabric"})


def test_a_kernel_that_has_failed(mpirun):
    """It ends the context of its process, whose puts are errors; other processes go on."""
    code = """
win = rmaext.Window(world, begin(np.zeros(1000)), timeout=5)
world.Barrier()
if rank == 0:
    cuda.cuda.device_fail(b"cuStreamQuery:1:719")  # as a kernel's end tells
    for _ in range(3):
        try:
            win.put(np.ones(1000), 1)
            raise AssertionError("it was put")
        except rmaext.RmaError as error:
            assert "CUDA_ERROR_LAUNCH_FAILED" in str(error), error
world.Barrier()
if rank == 1:
    win.put(np.full(10, 5.0), 1, 3)
    win.put(np.full(10, 6.0), 0, 3)
    assert (win.get(0, 3, 10) == 6).all() and (win.get(1, 3, 10) == 5).all()
world.Barrier()
win.close()
print("end", flush=True)
"""
    run(mpirun, 2, code)


def test_a_driver_without_the_newer_call(mpirun, tmp_path):
    """It is found by cuDeviceGetUuid where there is no cuDeviceGetUuid_v2."""
    content = Path(os.environ["RMAEXT_CUDA"]).read_bytes()
    assert b"cuDeviceGetUuid_v2\0" in content
    older = tmp_path / "libcuda.so.1"
    older.write_bytes(content.replace(b"cuDeviceGetUuid_v2\0", b"cuDeviceGetUuid_x2\0"))
    code = """
assert not hasattr(cuda.cuda, "cuDeviceGetUuid_v2")
with rmaext.Window(world, begin(np.full(5, rank + 1.0))) as win:
    assert win.route(1 - rank) == "ipc"
    assert (win.get(1 - rank) == 2 - rank).all()
    win.fence()
print("end", flush=True)
"""
    run(mpirun, 2, code, env={"RMAEXT_CUDA": str(older)})
