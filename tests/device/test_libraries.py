# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of CuPy and PyTorch, where one is installed and there is a GPU: `make test-gpu`."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import rmaext

pytestmark = pytest.mark.mpi


def of_cupy():
    cupy = pytest.importorskip("cupy")
    return SimpleNamespace(
        name="cupy",
        kind=cupy.ndarray,
        full=cupy.full,
        to_numpy=cupy.asnumpy,
        stream=lambda: cupy.cuda.Stream(non_blocking=True),
        use=lambda stream: stream,
    )


def of_torch():
    torch = pytest.importorskip("torch")
    return SimpleNamespace(
        name="torch",
        kind=torch.Tensor,
        full=lambda n, it: torch.full((n,), it, dtype=torch.float64, device="cuda:0"),
        to_numpy=lambda it: it.cpu().numpy(),
        stream=torch.cuda.Stream,
        use=torch.cuda.stream,
    )


@pytest.fixture(params=[of_cupy, of_torch], ids=["cupy", "torch"])
def arrays(request):
    from device import device_array

    if device_array.SIMULATED:
        pytest.skip("needs a GPU")
    return request.param()


def test_a_window_over_an_array(arrays, comm):
    memory = arrays.full(100, 0.0)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with rmaext.Window(comm, memory) as win:
        assert win.local is memory
        win.put(arrays.full(10, comm.rank + 1.0), right, 5)
        win.fence()
        assert (arrays.to_numpy(memory)[5:15] == left + 1).all()
        out = arrays.full(10, 0.0)
        assert win.get(right, 5, out=out) is out
        assert (arrays.to_numpy(out) == comm.rank + 1).all()
        win.fence()
        win.accumulate(out, 0, 50)
        win.fence()
        total = sum(range(1, comm.size + 1))
        assert comm.rank or (arrays.to_numpy(memory)[50:60] == total).all()


def test_a_kernel_in_flight(arrays, comm):
    """What its stream has to do for an origin comes before it is sent."""
    n = 1 << 22
    stream = arrays.stream()
    with rmaext.Window.allocate(comm, n) as win:
        for turn in range(5):
            with arrays.use(stream):
                it = arrays.full(n, 1.0)
                for _ in range(50):
                    it += turn
                win.put(it, comm.rank)
            win.flush()
            assert (win.local == 1.0 + 50 * turn).all()


def test_new_memory(arrays, comm):
    arrays.full(1, 0.0)  # makes the context
    with rmaext.Window.allocate(comm, 8, device="cuda:0") as win:
        mine = win.local_as(arrays.name)
        assert isinstance(mine, arrays.kind)
        mine += comm.rank + 1
        win.fence()
        right = (comm.rank + 1) % comm.size
        win.flush()
        assert (win.get(right, 0, 8) == np.full(8, right + 1.0)).all()
