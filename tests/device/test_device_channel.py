# SPDX-License-Identifier: BSD-3-Clause
"""Channel that takes arrays on devices, and hands out such."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

import rmaext
from rmaext._memory import cuda as reader
from rmaext.containers import Channel

pytestmark = pytest.mark.mpi
RECORD = [("x", "f4"), ("n", "i8")]


@pytest.mark.parametrize(
    "dtype", ["?", "u2", "f4", "c16", ">i4", "S5", "M8[s]", "g", RECORD], ids=str
)
def test_every_dtype(cuda, comm, dtype):
    """Ranks with even numbers have theirs on the device."""
    device = None if comm.rank % 2 else "cuda:0"
    right = (comm.rank + 1) % comm.size
    sent = np.arange(5).astype("i8").repeat(4).view("u1")[: 5 * np.dtype(dtype).itemsize]
    sent = (sent & 1 if dtype == "?" else sent).view(dtype)
    with Channel(comm, dtype, 10, device=device) as channel:
        channel.send(sent, right)
        source, found = channel.receive(timeout=60)
        assert source == (comm.rank - 1) % comm.size
        assert isinstance(found, np.ndarray) == (device is None)
        found = found if device is None else reader.fetch(found)
        assert found.dtype == sent.dtype
        assert found.tobytes() == sent.tobytes()
        assert channel.try_receive() is None


def test_a_ring_of_devices(cuda, comm):
    """What waits for kernels is sent behind them, in pieces, and comes whole and in order."""
    size, right = 5000, (comm.rank + 1) % comm.size
    stream = cuda.Stream()
    given = cuda.Array.from_numpy(np.zeros(size), stream)
    with Channel(comm, float, 700, device="cuda:0") as channel:
        for turn in range(3):
            given.launch(lambda values, turn=turn: values.__iadd__(turn + 1.0))
            channel.send(given, right)
        channel.done()
        found = np.concatenate([reader.fetch(records) for _, records in channel])
        assert (found == np.repeat([1.0, 3.0, 6.0], size)).all()
    stream.close()


def test_no_record_is_lost_where_the_device_has_no_room(cuda, comm, monkeypatch):
    """What could not be handed out is received by the next call."""
    from rmaext._memory import device_memory

    with Channel(comm, int, 10, device="cuda:0") as channel:
        channel.send([1, 2, 3], comm.rank)
        with monkeypatch.context() as patch:
            patch.setattr(device_memory.cuda, "fill", _fails)
            with pytest.raises(rmaext.RmaError, match="no room"):
                channel.receive(timeout=60)
        source, found = channel.receive(timeout=60)
        assert source == comm.rank
        assert reader.fetch(found).tolist() == [1, 2, 3]


def test_time_limits_reach_the_device(cuda, comm):
    """What came is received once it is at work again; RMAEXT_TIMEOUT is more."""
    if not cuda.SIMULATED:
        pytest.skip("no copy of a GPU hangs when it is told to")
    begun = time.monotonic()

    def tried():
        while True:  # it may be on its way when `send` returns
            got = channel.try_receive()
            if got is not None:
                return got

    with Channel(comm, int, 10, timeout=0.5, device="cuda:0") as channel:
        for receive in channel.receive, lambda: channel.receive(timeout=0.1), tried:
            channel.send([1, 2], comm.rank)
            cuda.cuda.device_hang(2)
            try:
                with pytest.raises(rmaext.RmaTimeout, match="has not ended in 0"):
                    receive()
            finally:
                cuda.cuda.device_hang(0)
            source, found = channel.receive(timeout=60)
            assert source == comm.rank
            assert reader.fetch(found).tolist() == [1, 2]
    assert time.monotonic() - begun < 20


def _fails(*_):
    raise rmaext.RmaError(12, "no room")


def test_what_was_received_stays(cuda, comm, monkeypatch):
    from device import little_cupy

    monkeypatch.setitem(sys.modules, "cupy", little_cupy)
    with Channel(comm, float, 10, device="cuda:0") as channel:
        channel.send(cuda.Array.from_numpy(np.ones(3)), comm.rank)
        _, found = channel.receive(timeout=60)
    assert type(found) is little_cupy.ndarray
    assert (reader.fetch(found) == 1).all()
