# SPDX-License-Identifier: BSD-3-Clause
"""The table of contracts (support/operations.py) over windows on a device.

What tests/ops/test_contracts.py asks of windows on the host, by its own tests; and that each
operation does there what it does on the host.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from ops import test_contracts as contracts
from support.guarded import GUARD, PATTERN
from support.operations import done

import rmaext
from rmaext import AccessError

pytestmark = [pytest.mark.mpi]
SIZE = contracts.SIZE
LONG = 40_000  # elements: more than is updated at once, and than a message has


class Part:
    """An array within bytes on a device, which is looked at as tests look at NumPy's.

    It has no DLPack, which knows neither records nor other byte orders.
    """

    __hash__ = None

    def __init__(self, raw, low, shape, dtype):
        self.raw, self.low, self.shape, self.dtype = raw, low, shape, np.dtype(dtype)

    def to_numpy(self):
        count = int(np.prod(self.shape))
        return np.frombuffer(self.raw.to_numpy(), self.dtype, count, self.low).reshape(self.shape)

    @property
    def __cuda_array_interface__(self):
        address, dtype = self.raw.address + self.low, self.dtype
        shape = tuple(np.atleast_1d(self.shape).tolist())
        here = {"shape": shape, "typestr": dtype.str, "descr": dtype.descr}
        return {**self.raw.__cuda_array_interface__, **here, "data": (address, False)}

    def __eq__(self, other):
        return self.to_numpy() == other

    def __getitem__(self, key):
        return self.to_numpy()[key]

    def any(self):
        return self.to_numpy().any()


@pytest.fixture
def guarded(cuda, monkeypatch):
    """As support.guarded.guarded, which it stands in for: windows on a device, between guards."""

    @contextlib.contextmanager
    def opened(comm, shape, dtype=float, fill=0, shift=0, **how):
        inner = np.full(shape, fill, dtype).tobytes()
        low = GUARD + shift
        raw = np.full(low + len(inner) + GUARD, PATTERN, np.uint8)
        raw[low : low + len(inner)] = np.frombuffer(inner, np.uint8)
        raw = cuda.Array.from_numpy(raw)
        with rmaext.Window(comm, Part(raw, low, shape, dtype), **how) as win:
            yield win
        seen = raw.to_numpy()
        assert (seen[:low] == PATTERN).all(), "written before"
        assert (seen[low + len(inner) :] == PATTERN).all(), "written behind"
        raw.free()

    monkeypatch.setattr(contracts, "guarded", opened)
    return opened


pytestmark.append(pytest.mark.usefixtures("guarded"))
test_ranks = contracts.test_ranks
test_offsets = contracts.test_offsets
test_indices = contracts.test_indices
test_one_of_many = contracts.test_one_of_many
test_bounds_are_those_of_the_target = contracts.test_bounds_are_those_of_the_target
test_types = contracts.test_types
test_values = contracts.test_values
test_alignment = contracts.test_alignment
test_alignment_is_that_of_the_target = contracts.test_alignment_is_that_of_the_target
test_dtypes_without_updates = contracts.test_dtypes_without_updates


@pytest.mark.parametrize("access", ["r", "w"])
def test_rights(comm, guarded, access):
    with guarded(comm, SIZE, fill=3, access=access) as win:
        for name, it in contracts.ALL.items():
            for value in contracts.lengths(name):
                if not set(it.rights) <= set(access):
                    contracts.refused(AccessError, name, win, value, comm.rank, 3)
        win.fence()
        assert (win.local == 3).all()
        win.fence()


def values(name, size, dtype, rank):
    """Return what an operation is given: one element, or so many."""
    made = (np.arange(size) % 100 + 10 * rank + 1).astype(dtype)
    return made[0] if size == 1 else made


@contracts.each_kind
@pytest.mark.parametrize("dtype", ["f8", "i2"])
def test_it_does_what_it_does_on_the_host(comm, guarded, names, dtype):
    """Results and memory are the same, of one element, some, and more than a message has."""
    peer = (comm.rank + 1) % comm.size
    start = (np.arange(LONG + 8) % 7).astype(dtype)
    with (
        rmaext.Window(comm, start.copy()) as host,
        guarded(comm, start.shape, dtype, start) as device,
    ):
        for name in names:
            it = contracts.ALL[name]
            # elements apart are copied one by one there, each after a delay
            most = 40 if contracts.several(name) or name in contracts.INDEXED else LONG
            for size in (1,) if it.single else (1, 5, most):
                value = values(name, size, dtype, comm.rank)
                got, wanted = (done(it.call(win, value, peer, 3)) for win in (device, host))
                assert (got is None) == (wanted is None), name
                assert wanted is None or np.array_equal(got, wanted), (name, size)
                assert np.shape(got) == np.shape(wanted)
                for win in (device, host):
                    win.fence()
                assert (device.local == host.local).all(), (name, size)
                assert (device.notify_counts() == host.notify_counts()).all()
                for win in (device, host):
                    win.fence()
