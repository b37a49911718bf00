# SPDX-License-Identifier: BSD-3-Clause
"""The tests' libcuda keeps what docs/contributing/device.md promises.

Each test is a process of its own: a context is what a process has one of.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

START = """
    import ctypes, os, sys, threading
    import numpy as np
    import array_of_device as d
    from array_of_device import Array, Stream, call, cuda, get
    def fails(number, function, *args):
        try:
            call(function, *args)
        except d.CudaError as error:
            assert error.number == number, error
        else:
            raise AssertionError(function)
"""


def run(program: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own."""
    path = str(Path(__file__).with_name("device_array.py"))
    load = (
        "import importlib.util as u, sys\n"
        f"s = u.spec_from_file_location('array_of_device', {path!r})\n"
        "m = sys.modules[s.name] = u.module_from_spec(s)\ns.loader.exec_module(m)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", load + textwrap.dedent(START) + textwrap.dedent(program)],
        env={**os.environ, **{name: str(value) for name, value in settings.items()}},
        capture_output=True,
        text=True,
        timeout=60,
    )


PROGRAMS = {
    "nothing works before cuInit": """
        fails(3, "cuDeviceGet", ctypes.byref(ctypes.c_int()), 0)
        call("cuInit", 0)
        fails(201, "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8)
    """,
    "a context is current in one thread": """
        d.begin()
        caught = []
        def other():
            try:
                get(ctypes.c_uint64, "cuMemAlloc_v2", 8)
            except d.CudaError as error:
                caught.append(error.number)
        thread = threading.Thread(target=other)
        thread.start(); thread.join()
        assert caught == [201], caught
    """,
    "a context that nobody retains any more is destroyed": """
        d.begin()
        a = Array(4, "i8")
        call("cuDevicePrimaryCtxRelease_v2", 0)
        flags, active = ctypes.c_uint(), ctypes.c_int(7)
        call("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        assert active.value == 0
        fails(709, "cuMemFree_v2", a.address)
        fails(201, "cuDevicePrimaryCtxRelease_v2", 0)
        d.begin()
        fails(1, "cuMemFree_v2", a.address)
    """,
    "what is queued on a stream is done in order, and late": """
        d.begin()
        stream, gate = Stream(), threading.Event()
        a = Array.from_numpy(np.arange(1000), stream)
        a.launch(lambda view: gate.wait(20) or os._exit(3))
        a.launch(lambda view: view.__imul__(2))
        a.launch(lambda view: view.__iadd__(1))
        assert cuda.cuStreamQuery(ctypes.c_void_p(stream.handle)) == 600
        gate.set()
        assert (a.to_numpy() == np.arange(1000) * 2 + 1).all()
        stream.close(); a.free()
    """,
    "an event orders two streams": """
        d.begin()
        one, two, gate = Stream(), Stream(), threading.Event()
        a = Array.from_numpy(np.zeros(8), one)
        a.launch(lambda view: gate.wait(20) or os._exit(3))
        a.launch(lambda view: view.fill(5))
        event = get(ctypes.c_void_p, "cuEventCreate", 2)
        assert cuda.cuEventQuery(ctypes.c_void_p(event)) == 0
        call("cuEventRecord", event, one.handle)
        call("cuStreamWaitEvent", two.handle, event, 0)
        seen = []
        two.launch(lambda view: seen.append(view.copy()), a)
        assert cuda.cuEventQuery(ctypes.c_void_p(event)) == 600 and not seen
        gate.set()
        call("cuEventSynchronize", event)
        two.synchronize()
        assert (seen[0] == 5).all()
    """,
    "the legacy stream waits for blocking streams, not for others": """
        d.begin()
        free, blocking, gate = Stream(), Stream(blocking=True), threading.Event()
        a = Array(8, "i8")
        for _ in range(2):  # the memory for two launches at a time
            a.launch(lambda view: None)
        a.stream.synchronize()
        free.launch(lambda: gate.wait(20) or os._exit(3))
        call("cuStreamSynchronize", 1)
        assert cuda.cuStreamQuery(ctypes.c_void_p(free.handle)) == 600
        held = threading.Event()
        blocking.launch(lambda: held.wait(20) or os._exit(3))
        assert cuda.cuStreamQuery(ctypes.c_void_p(1)) == 600
        Stream(1).launch(lambda view: view.fill(3), a)
        blocking.launch(lambda view: view.__iadd__(1), a)
        held.set()
        blocking.synchronize()
        gate.set()
        assert (a.to_numpy() == 4).all()
    """,
    "pinned memory is read late, pageable memory is not": """
        d.begin()
        stream, gate = Stream(), threading.Event()
        a, b = Array(4, "i8", stream), Array(4, "i8", stream)
        at = get(ctypes.c_void_p, "cuMemHostAlloc", 32, 0)
        pinned = np.frombuffer((ctypes.c_char * 32).from_address(at), "i8")
        pageable = np.ones(4, "i8")
        pinned[:] = 1
        a.launch(lambda view: gate.wait(20) or os._exit(3))
        call("cuMemcpyHtoDAsync_v2", a.address, at, 32, stream.handle)
        call("cuMemcpyHtoDAsync_v2", b.address, pageable.ctypes.data, 32, stream.handle)
        pinned[:] = pageable[:] = 2
        gate.set()
        assert (a.to_numpy() == 2).all() and (b.to_numpy() == 1).all()
        del pinned
        call("cuMemFreeHost", at)
    """,
    "memory is freed when the work on it is done": """
        d.begin()
        stream, order = Stream(), []
        a = Array(4, "i8", stream)
        gate = threading.Event()
        a.launch(lambda view: gate.wait(20) and order.append("kernel"))
        threading.Timer(0.05, gate.set).start()
        a.free()
        order.append("free")
        assert order == ["kernel", "free"], order
        fails(1, "cuMemFree_v2", a.address)
        fails(1, "cuMemcpyDtoH_v2", np.empty(4).ctypes.data, a.address, 32)
    """,
    "a copy beyond the end is refused": """
        d.begin()
        a, host = Array(4, "i8"), np.zeros(8)
        fails(1, "cuMemcpyDtoH_v2", host.ctypes.data, a.address, 33)
        fails(1, "cuMemcpyDtoH_v2", host.ctypes.data, host.ctypes.data, 8)
        fails(1, "cuMemcpyHtoD_v2", a.address, a.address, 8)
        fails(400, "cuStreamSynchronize", 12345)
    """,
    "what an address is": """
        d.begin()
        a, host = Array(4, "i8"), np.zeros(4)
        kind = get(ctypes.c_uint, "cuPointerGetAttribute", 2, a.address + 8)
        assert kind == 2
        assert get(ctypes.c_uint64, "cuPointerGetAttribute", 11, a.address + 8) == a.address
        fails(1, "cuPointerGetAttribute", ctypes.byref(ctypes.c_uint()), 2, host.ctypes.data)
        out = ctypes.c_uint(9)
        call("cuPointerGetAttributes", 1, ctypes.byref(ctypes.c_int(2)),
             ctypes.byref(ctypes.c_void_p(ctypes.addressof(out))), host.ctypes.data)
        assert out.value == 0
        at = get(ctypes.c_uint64, "cuMemAllocManaged", 64, 1)
        assert get(ctypes.c_bool, "cuPointerGetAttribute", 8, at)
        assert not get(ctypes.c_bool, "cuPointerGetAttribute", 8, a.address)
        ctypes.memset(at, 1, 64)
        call("cuMemHostRegister_v2", host.ctypes.data, host.nbytes, 0)
        fails(712, "cuMemHostRegister_v2", host.ctypes.data, host.nbytes, 0)
        assert get(ctypes.c_uint, "cuPointerGetAttribute", 2, host.ctypes.data) == 1
        call("cuMemHostUnregister", host.ctypes.data)
        fails(713, "cuMemHostUnregister", host.ctypes.data)
    """,
    "nothing works in a child": """
        d.begin()
        a = Array(4, "i8")
        child = os.fork()
        if not child:
            try:
                fails(3, "cuMemFree_v2", a.address)
                fails(3, "cuInit", 0)
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        a.free()
    """,
    "a host function must not call": """
        d.begin()
        stream, a = Stream(), Array(4, "i8")
        seen = []
        stream.launch(lambda view: seen.append(cuda.cuMemFree_v2(ctypes.c_uint64(a.address))), a)
        stream.synchronize()
        assert seen == [800], seen
    """,
    "DLPack lends an array and takes it back": """
        d.begin()
        stream = Stream()
        a = Array.from_numpy(np.arange(6.0).reshape(2, 3), stream)
        assert a.__dlpack_device__() == (2, 0)
        capsule = a.__dlpack__(stream=1)
        assert len(d._lent) == 1
        del capsule
        assert not d._lent
        assert a.__cuda_array_interface__["stream"] == stream.handle
    """,
    "an event of the context comes behind all of its streams": """
        d.begin()
        gate, context = threading.Event(), ctypes.c_void_p(get(ctypes.c_void_p, "cuCtxGetCurrent"))
        free, blocking = Stream(), Stream(blocking=True)
        a = Array.from_numpy(np.zeros(8), free)
        free.synchronize()
        event = get(ctypes.c_void_p, "cuEventCreate", 2)
        call("cuCtxRecordEvent", context, event)
        call("cuEventSynchronize", event)
        a.launch(lambda view: gate.wait(20) or os._exit(3))
        call("cuCtxRecordEvent", context, event)
        blocking.launch(lambda: None)
        assert cuda.cuEventQuery(ctypes.c_void_p(event)) == 600
        gate.set()
        call("cuEventSynchronize", event)
        fails(400, "cuCtxRecordEvent", context, 12345)
    """,
    "blocks are mapped, and copied once they have access": """
        d.begin()
        a = d.Expandable.from_numpy(np.arange(600_000))
        assert a.count == 4 and (a.to_numpy() == np.arange(600_000)).all()
        where = a.address
        assert get(ctypes.c_uint64, "cuPointerGetAttribute", 11, where) == a.base
        assert get(ctypes.c_uint64, "cuPointerGetAttribute", 12, where) == 5 * a.block
        start, size = ctypes.c_uint64(), ctypes.c_size_t()
        call("cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(size), where + 64)
        assert (start.value, size.value) == (a.base + a.block, a.block)
        assert get(ctypes.c_uint64, "cuPointerGetAttribute", 14, where) == 1
        assert not get(ctypes.c_bool, "cuPointerGetAttribute", 10, where)
        fails(1, "cuIpcGetMemHandle", ctypes.create_string_buffer(64), a.base)
        host, none = np.zeros(8), b"\\0" * 12
        fails(1, "cuMemcpyDtoH_v2", host.ctypes.data, a.base + 4 * a.block - 8, 16)
        call("cuMemSetAccess", a.base, a.block, d.struct.pack("iii", 1, 0, 0), 1)
        fails(1, "cuMemcpyDtoH_v2", host.ctypes.data, where, 8)
        fails(1, "cuMemSetAccess", a.base, a.block - 4096, none, 1)
        fails(1, "cuMemUnmap", a.base, 2 * a.block)
        fails(1, "cuMemAddressFree", a.base, 5 * a.block)
        a.free()
        fails(1, "cuMemcpyDtoH_v2", host.ctypes.data, where + 64, 8)
        assert cuda.device_blocks() == 0
    """,
    "descriptors of blocks": """
        d.begin()
        a, b = d.Expandable(10, "i8"), d.Unexported(10, "i8")
        fd, handles = ctypes.c_int(), []
        for of in a, b:
            handle = get(ctypes.c_uint64, "cuMemRetainAllocationHandle", of.address)
            handles.append(handle)
        fails(1, "cuMemExportToShareableHandle", ctypes.byref(fd), handles[1], 1, 0)
        call("cuMemExportToShareableHandle", ctypes.byref(fd), handles[0], 1, 0)
        again = get(ctypes.c_uint64, "cuMemImportFromShareableHandle", fd.value, 1)
        os.close(fd.value)
        base = get(ctypes.c_uint64, "cuMemAddressReserve", a.block, 0, 0, 0)
        call("cuMemMap", base, a.block, 0, again, 0)
        fails(1, "cuMemMap", base, a.block, 0, again, 0)
        call("cuMemSetAccess", base, a.block, d.struct.pack("iii", 1, 0, 3), 1)
        call("cuMemRelease", again)
        fails(1, "cuMemRelease", again)
        host = np.arange(8)
        call("cuMemcpyHtoD_v2", a.address, host.ctypes.data, 64)
        out = np.zeros(8, "i8")
        call("cuMemcpyDtoH_v2", out.ctypes.data, base + a.block - 64, 64)
        assert (out == host).all()
        pooled = d.Pooled(4, "i8")
        fails(1, "cuMemRetainAllocationHandle", ctypes.byref(ctypes.c_uint64()), pooled.address)
        assert get(ctypes.c_void_p, "cuPointerGetAttribute", 17, pooled.address)
        pooled.free()
        fails(1, "cuMemcpyDtoH_v2", out.ctypes.data, pooled.address, 8)
    """,
    "memory of another process": """
        handle = (ctypes.c_char * 64)
        class Handle(ctypes.Structure):
            _fields_ = (("bytes", ctypes.c_char * 64),)
        def raw(handle):
            return ctypes.string_at(ctypes.addressof(handle), 64)
        ready, gone = os.pipe(), os.pipe()
        child = os.fork()  # before CUDA is begun
        d.begin()
        if not child:
            try:
                theirs = Handle.from_buffer_copy(os.read(ready[0], 64))
                at = get(ctypes.c_uint64, "cuIpcOpenMemHandle_v2", theirs, ctypes.c_uint(1))
                again = get(ctypes.c_uint64, "cuIpcOpenMemHandle_v2", theirs, ctypes.c_uint(1))
                assert at == again
                fails(1, "cuMemFree_v2", at)
                os.write(gone[1], b"x")
                assert os.read(ready[0], 1) == b"y"  # the exporter has freed it
                out = np.empty(4, "i8")
                call("cuMemcpyDtoH_v2", out.ctypes.data, at, 32)
                assert (out == 7).all(), out
                call("cuIpcCloseMemHandle", at)
                call("cuIpcCloseMemHandle", at)
                fails(1, "cuIpcCloseMemHandle", at)
                fails(400, "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()),
                      theirs, ctypes.c_uint(1))
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        a = Array.from_numpy(np.full(4, 7))
        mine = Handle()
        call("cuIpcGetMemHandle", ctypes.byref(mine), a.address)
        fails(1, "cuIpcGetMemHandle", ctypes.byref(Handle()), a.address + 8)
        fails(201, "cuIpcOpenMemHandle_v2", ctypes.byref(ctypes.c_uint64()), mine, ctypes.c_uint(1))
        os.write(ready[1], raw(mine))
        os.close(gone[1])
        assert os.read(gone[0], 1) == b"x"
        a.free()
        os.write(ready[1], b"y")
        assert os.waitpid(child, 0)[1] == 0
    """,
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("program", list(PROGRAMS))
def test_it_demands_what_the_documents_say(program: str, seed: int) -> None:
    done = run(PROGRAMS[program], DEVICE_SEED=seed)
    assert done.returncode == 0, done.stderr


def test_memory_runs_out() -> None:
    done = run(
        """
        d.begin()
        a = Array(600, "i1")
        fails(2, "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 600)
        a.free()
        Array(600, "i1")
        """,
        DEVICE_MEMORY=1000,
    )
    assert done.returncode == 0, done.stderr


def test_a_call_fails_as_it_is_told() -> None:
    done = run(
        """
        d.begin()
        Array(1, "i8").free()
        fails(2, "cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8)
        a = Array(1, "i8")
        fails(700, "cuMemFree_v2", a.address)
        fails(700, "cuStreamSynchronize", 1)  # it has ended the context
        call("cuDevicePrimaryCtxRelease_v2", 0)
        d.begin()
        Array(1, "i8").free()
        """,
        DEVICE_FAIL="cuMemAlloc_v2:2:2,cuMemFree_v2:2:700",
    )
    assert done.returncode == 0, done.stderr


def test_cuinit_fails_as_it_is_told() -> None:
    done = run('fails(999, "cuInit", 0)', DEVICE_FAIL="cuInit:1:999")
    assert done.returncode == 0, done.stderr


def test_a_cpu_that_looks_there_crashes() -> None:
    done = run("""
        d.begin()
        ctypes.string_at(Array(4, "i8").address, 1)
    """)
    assert done.returncode == -signal.SIGSEGV, done
