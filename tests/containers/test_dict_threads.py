# SPDX-License-Identifier: BSD-3-Clause
"""What threads and forked children may do with a `Dict`, as its docstring says."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rmaext
from rmaext.containers import Dict

THREADS, KEYS = 8, 40


def test_eight_threads_of_each_rank(world):
    """No sum is lost or counted twice, and no value torn, whatever calls they make at once."""
    wide = np.dtype([("a", "i8"), ("b", "i8")])
    with Dict(world, "i8", "i8", 200) as sums, Dict(world, "i8", wide, 200) as pairs:

        def work(number):
            rng, total = np.random.default_rng(THREADS * world.rank + number), 0
            for turn in range(12):
                key = int(rng.integers(KEYS))
                total += key + 2 + 3
                sums.add(key, key)
                sums.add_many([key, KEYS + turn, KEYS], [2, 2, 1])
                sums.setdefault(key, 1000)
                total -= int(sums.pop(key, 0))
                pairs[key] = (number, number)
                got = pairs.get_many([key, key + 1], default=(1, 1))
                assert (got["a"] == got["b"]).all()
                pairs.pop(key, None)
                assert all(value["a"] == value["b"] for _, value in pairs.local_items())
            return total

        with ThreadPoolExecutor(THREADS) as pool:
            total = sum(pool.map(work, range(THREADS)))
        world.Barrier()
        items = sums.items()
        assert items.value_array.sum() % 1000 == world.allreduce(total) % 1000
        assert len(set(items.key_array.tolist())) == len(items)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_calls(world):
    """The child has ClosedError at once, whatever the thread was at."""
    with Dict(world, "i8", "i8", 200) as table:
        ends = threading.Event()

        def work():
            key = world.rank
            while not ends.is_set():
                table.add(key, 1)
                table.pop(key, None)

        thread = threading.Thread(target=work)
        thread.start()
        statuses = []
        for _ in range(5):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    signal.alarm(20)  # it is not to hang
                    table.get(1)
                except rmaext.ClosedError:
                    status = 0
                finally:
                    os._exit(status)
            statuses.append(os.waitpid(pid, 0)[1])
        ends.set()
        thread.join()
        world.Barrier()
        assert statuses == [0] * 5
