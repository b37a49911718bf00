# SPDX-License-Identifier: BSD-3-Clause
"""A container's wait that lasts is one wait, and one warning, in the container's words."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI

import rmaext
from rmaext._runtime import reports
from rmaext.containers import Dict, Published, TaskQueue


@pytest.fixture
def warnings(monkeypatch, caplog):
    """Return what is logged after waits of 0.3 s."""
    monkeypatch.setattr(reports, "WARN_AFTER", 0.3)
    return lambda: [one.getMessage() for one in caplog.records if "has waited" in one.getMessage()]


def test_dict(warnings):
    with Dict(MPI.COMM_SELF, "i8", "c16", 10, timeout=2.5) as table:
        table[1] = 1
        query = table._one(1)
        found = table._slots.find(query)
        table._slots.hold(query, found)
        with pytest.raises(rmaext.RmaTimeout):
            table.get(1)
        (warning,) = warnings()
        assert warning.startswith(
            "Dict.get, for those who change or remove a key at test_waits.py:"
        )
        assert "has waited 0.3 s for rank 0; `python -m rmaext why` shows who" in warning


def test_published(warnings):
    with Published(MPI.COMM_SELF, (1,), "f8") as published:
        published.publish(np.zeros(1))
        with pytest.raises(rmaext.RmaTimeout):
            published.read(0, newer_than=1, timeout=2.5)
        (warning,) = warnings()
        assert warning.startswith("Published.read at test_waits.py:")
        assert "has waited 0.3 s for rank 0; " in warning


def test_a_step_of_a_wait_that_is_held_up(warnings):
    """Its own limit is shorter than what is reported: the process did not run."""
    for limit, many in (0.01, 0), (5, 1):
        step = reports.Patience(limit)
        step.since -= 1
        step.look("wait_until", lambda: None)
        assert len(warnings()) == many


@pytest.mark.mpi(min_size=2)
def test_taskqueue(world, warnings):
    with TaskQueue(world, "i8", 10) as queue:
        if world.rank:
            time.sleep(1.5)
        assert not list(queue)
        if not world.rank:
            (warning,) = warnings()
            assert warning.startswith("TaskQueue loop at test_waits.py:")


@pytest.mark.mpi(min_size=2)
def test_a_fence_of_a_container_is_told_by_its_call(world, warnings):
    with Dict(world, "i8", "i8", 10) as table:
        if world.rank:
            time.sleep(1.5)
        assert not len(table)
        if not world.rank:
            (warning,) = warnings()
            assert warning.startswith("Dict.len, fence of window ")
