# SPDX-License-Identifier: BSD-3-Clause
"""Which threads of rank 1 call MPI while they wait in rmaext.

mpiexec -n 2 env LD_AUDIT=audit.so AUDIT_FILE=... python mpi_callers.py LEVEL CELL,CELL,...

The auditor (mpi_audit.c) counts all calls, with the thread and whether it holds the GIL.
Rank 0 keeps rank 1 waiting in each cell: for a moment, and where rank 1 is to call MPI until
the auditor has seen it do so, as a busy machine may let it begin late.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time

import mpi4py

LEVEL, CELLS = sys.argv[1], sys.argv[2].split(",")
mpi4py.rc.thread_level = LEVEL

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

import rmaext  # noqa: E402

PROBES = (0, 6)  # MPI_Iprobe, MPI_Improbe: what a wait in C uses to move MPI
MOVES = (0, 1, 2, 3, 6)  # and the tests of requests that a collective call waits for
MOMENT = 0.2  # seconds
LIMIT = 5.0  # seconds; after them rank 0 lets rank 1 go, whose cell then fails
world = MPI.COMM_WORLD
rank = world.rank
table = np.memmap(os.environ["AUDIT_FILE"], "i8", "r").reshape(-1, 8)
me = threading.get_native_id()

peer = world.sendrecv(os.getpid(), 1 - rank, source=1 - rank)

win = rmaext.Window.allocate(world, 8)
ticket = world.bcast(win.export() if rank == 0 else None)


def calls(functions=PROBES, column=6, **where):
    """Return the calls of a process so far, by thread; `where`: gil, pid (this one's)."""
    found = {}
    for row in table[table[:, 0] == 2].tolist():
        state = {"pid": row[2], "gil": row[4]}
        wanted = {"pid": os.getpid()} | where
        if row[1] in functions and all(state[key] == value for key, value in wanted.items()):
            found[row[3]] = found.get(row[3], 0) + row[column]
    return found


def keep_waiting(functions):
    """Rank 0: let a moment pass, and then wait until rank 1 has called one of `functions`."""
    before = sum(calls(functions, pid=peer).values())
    end = time.monotonic() + LIMIT
    time.sleep(MOMENT)
    while functions and time.monotonic() < end:
        if sum(calls(functions, pid=peer).values()) > before:
            break
        time.sleep(0.01)


def during(function, functions=PROBES):
    """Return the calls of these functions while `function()` runs, by thread."""
    before = calls(functions)
    function()
    return {
        thread: number - before.get(thread, 0)
        for thread, number in calls(functions).items()
        if number > before.get(thread, 0)
    }


def notified(until=()):
    if rank:
        win.wait_notify(1)
    else:
        keep_waiting(until)
        win.put_notify(np.ones(1), 1, 0, 1)
        win.flush()


def locked(until=()):
    if rank == 0:
        win.lock(0, exclusive=True)
    world.Barrier()
    if rank == 0:
        keep_waiting(until)
        win.unlock(0)
    else:
        with win.lock(0, exclusive=True):
            pass


def fenced(until=()):
    if rank == 0:
        keep_waiting(until)
    win.fence()


def in_thread(wait, meanwhile, until):
    """Let a second thread of rank 1 wait; return its number, and the probes."""
    if rank == 0:
        wait(until)
        meanwhile()
        return 0, {}
    number = []

    def work():
        number.append(threading.get_native_id())
        wait()

    def do():
        thread = threading.Thread(target=work)
        thread.start()
        meanwhile()
        thread.join()

    probes = during(do)
    return number[0], probes


def compute():
    if rank:
        end = time.monotonic() + MOMENT / 2
        while time.monotonic() < end:
            np.linalg.norm(np.ones(1000))


def receive():
    """Rank 1 sits in MPI."""
    if rank:
        world.Recv(np.empty(1), 0)
    else:
        world.Send(np.ones(1), 1)


# -- cells: each returns what is wrong, on rank 1 ------------------------------------------


def wait_in_main(wait):
    def cell():
        probes = during(lambda: wait(MOVES), MOVES)
        if rank and not probes.get(me):
            return "the thread that waits does not call MPI"
        others = {thread: n for thread, n in probes.items() if thread != me}
        if rank and others and LEVEL != "multiple":
            return f"other threads call MPI: {others}"
        return ""

    return cell


def second_thread(wait, meanwhile):
    def cell():
        thread, probes = in_thread(wait, meanwhile, PROBES if LEVEL == "multiple" else ())
        if rank == 0:
            return ""
        if LEVEL == "multiple":
            return "" if probes.get(thread) else "the thread that waits does not call MPI"
        probes.pop(me, 0)
        return f"threads other than the main thread call MPI: {probes}" if probes else ""

    return cell


def main_waits_beside_another():
    """The other thread may be about to call MPI; at funneled it may not."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    probes = during(lambda: notified(PROBES if LEVEL != "serialized" else ()))
    done.set()
    thread.join()
    if rank == 0:
        return ""
    if LEVEL == "serialized":
        return f"calls MPI beside another thread: {probes}" if probes else ""
    return "" if probes.get(me) else "the main thread does not call MPI"


def alone_again():
    """Once the other thread has ended, the main thread moves MPI again."""
    probes = during(lambda: notified(PROBES))
    return "" if rank == 0 or probes.get(me) else "the main thread does not call MPI any more"


def never_with_the_gil():
    """In no cell before, nor in this one."""
    notified()
    fenced()
    locked()
    if rank == 0:
        return ""
    if not calls():
        return "no call at all"
    held = calls(gil=1)
    return f"MPI was called with the GIL held: {held}" if held else ""


def never_two_at_once():
    """Below THREAD_MULTIPLE no call of MPI may overlap another."""
    if rank == 0 or LEVEL == "multiple":
        return ""
    together = sum(calls(range(11), column=7).values())
    return f"{together} calls of MPI beside another thread's" if together else ""


def forked():
    """A child of fork() is no rank."""
    wrong = ""
    if rank:
        child = os.fork()
        if not child:
            for call in (
                lambda: win.wait_notify(1, timeout=0.1),
                lambda: win.get(0),
                win.fence,
                lambda: rmaext.RemoteWindow.attach(ticket).get(0, 0, 1),
                lambda: rmaext.Window.allocate(MPI.COMM_SELF, 1),
            ):
                with contextlib.suppress(rmaext.RmaError):
                    call()
            os._exit(0)
        os.waitpid(child, 0)
        made = calls(range(11), pid=child)
        wrong = f"the child calls MPI: {made}" if made else ""
    return wrong


def left_waiting():
    """A thread that still waits when the program ends; the test looks at the file then."""
    if rank:

        def wait():
            with contextlib.suppress(rmaext.RmaError):
                win.wait_notify(5)

        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.1)
    return ""


TABLE = {
    "main thread in wait_notify": wait_in_main(notified),
    "main thread in lock": wait_in_main(locked),
    "main thread in fence": wait_in_main(fenced),
    "second thread in wait_notify": second_thread(notified, compute),
    "second thread beside MPI": second_thread(notified, receive),
    "main thread beside a second": main_waits_beside_another,
    "main thread alone again": alone_again,
    "GIL": never_with_the_gil,
    "two at once": never_two_at_once,
    "fork": forked,
    "left waiting": left_waiting,
}

for one in CELLS:
    faulthandler.dump_traceback_later(15, exit=True)
    world.Barrier()
    words = TABLE[one]()
    world.Barrier()
    if rank:
        os.write(1, f"cell {one}: {words or 'ok'}\n".encode())
if "left waiting" not in CELLS:
    win.close()
