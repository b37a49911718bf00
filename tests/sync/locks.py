# SPDX-License-Identifier: BSD-3-Clause
"""What tests of locks and epochs share."""

from __future__ import annotations

import os
import signal
import threading
import time

from support.processes import waits


def until(condition, limit=20):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "never"
        time.sleep(0.001)


def interrupted(call):
    """Require that Ctrl-C ends call(); it comes once this thread, the main one, has waited."""
    over = threading.Event()

    def ring():
        while not waits(os.getpid()) and not over.wait(0.01):
            pass
        if not over.wait(0.1):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=ring)
    try:
        thread.start()
        call()
    except KeyboardInterrupt:
        return
    finally:
        over.set()
        thread.join()
    raise AssertionError("not interrupted")


def add_one(win, rank):
    """Not atomic."""
    value = win.get(rank, 0, 1)
    win.put(value + 1, rank, 0)
