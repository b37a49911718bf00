# SPDX-License-Identifier: BSD-3-Clause
"""The examples that stand on containers: all ranks together do what one process does."""

from __future__ import annotations

import launch
import numpy as np
import pytest

EXAMPLES = ["samples", "multistart", "quadrature", "diffusion", "particles", "node_table"]
EXAMPLES += ["stencil3d", "matmul", "restart"]


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(launch.ROOT / "examples"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_they_are_short(name):
    """Who wants to know what a container is for reads one page."""
    text = (launch.ROOT / "examples" / f"{name}.py").read_text()
    assert "from rmaext.containers import" in text
    assert len(text.splitlines()) < 60


def test_samples(comm, monkeypatch):
    """All ranks together find what one process does, which has all samples."""
    import samples

    monkeypatch.setattr(samples, "EPOCHS", 1)
    for mix in True, False:
        found = samples.train(comm, mix)
        assert len(found) == 1 + samples.EPOCHS * samples.COUNT * comm.size // samples.BATCH
        assert np.allclose(found[-1], samples.serial(comm), rtol=1e-9) == mix
        assert len(set(comm.allgather(found[-1].tobytes()))) == 1


def test_multistart(comm, monkeypatch):
    """Each search goes its way, and no point is evaluated twice."""
    import multistart

    monkeypatch.setattr(multistart, "STARTS", multistart.STARTS[::4])
    paths, done = map(comm.allreduce, multistart.fit(comm))  # lists of all ranks
    asked = set()

    def alone(points):
        asked.update(points)
        return map(multistart.error, points)

    assert sorted(paths) == sorted(multistart.search(start, alone) for start in multistart.STARTS)
    assert sorted(done) == sorted(asked)


def test_quadrature(comm):
    """Each cell is added up once, and no other."""
    import quadrature

    cells = sorted(comm.allreduce(quadrature.integrate(comm)))
    assert cells == sorted(quadrature.serial())
    assert np.isclose(sum(amount for _, amount in cells), quadrature.LIGHT, rtol=1e-9, atol=0)


def test_diffusion(comm, monkeypatch):
    """All ranks have the same answer, and it is the direct one."""
    import diffusion

    monkeypatch.setattr(diffusion, "DECAY", 1.0)  # fewer sweeps
    found, sweeps = diffusion.solve(comm)
    assert sweeps > 0
    assert np.allclose(found, diffusion.direct(comm.size), rtol=0, atol=1e-9)
    assert len(set(comm.allgather(found.tobytes()))) == 1


def test_particles(comm):
    """Whoever moves a particle, it comes to the same place."""
    import particles

    mine = particles.walk(comm)
    assert ((mine["x"] * comm.size).astype(int) % comm.size == comm.rank).all()
    found = np.sort(np.concatenate(comm.allgather(mine)))
    assert np.array_equal(found, np.sort(particles.serial(comm)))


def test_node_table(comm):
    """All ranks draw what one process does, by the same distribution."""
    import node_table

    found = node_table.sample(comm)
    assert np.array_equal(found, node_table.serial(comm))
    x = np.linspace(0, 1, 1001)
    mean = (x * node_table.density(x)).sum() / node_table.density(x).sum()
    assert np.isclose(found.mean(), mean, rtol=0.02)


def test_stencil3d(comm):
    """Each cell is what one process computes, to the last bit."""
    import stencil3d

    cells, where = stencil3d.solve(comm)
    assert np.array_equal(cells, stencil3d.serial()[where])


def test_matmul(comm):
    """Each task is done once, and the product is numpy's."""
    import matmul

    block, where, mine = matmul.multiply(comm)
    a, b = matmul.matrices()
    assert np.array_equal(block, (a @ b)[where])
    assert sorted(comm.allreduce(mine)) == list(range(len(comm.allreduce(mine))))
    assert len(comm.allreduce(mine)) == (-(-matmul.N // matmul.BLOCK)) ** 3


def test_restart(comm, tmp_path):
    """What other ranks have saved goes on as if it had never stopped."""
    import restart

    cells, where = restart.simulate(comm, comm.bcast(tmp_path / "wave.npy"))
    assert np.array_equal(cells, restart.serial()[where])
