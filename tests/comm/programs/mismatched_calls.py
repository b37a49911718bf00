# SPDX-License-Identifier: BSD-3-Clause
"""Collective calls of one communicator that do not match, and ranks that give up.

mpiexec -n 2 python mismatched_calls.py CELL,CELL,...

"X|Y" is a mismatch: rank 1 calls Y and the others X, "X|Y|Z" has a call for each rank.
"WHY>X" is a rank (the last) that gives up, and then a collective call X of the others.
Any other cell is a function below. The ranks tell each other what they have caught by
plain MPI, over a communicator that rmaext does not know; each cell has one of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import mpi4py

CELLS = sys.argv[1].split(",")
mpi4py.rc.thread_level = "multiple"

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402
from support.processes import ring_in_wait  # noqa: E402

import rmaext  # noqa: E402
from rmaext.compat import Win  # noqa: E402

WATCHDOG = 20  # seconds a cell; the first opens the endpoints, on cores that others have
LIMIT = 5.0  # seconds until each rank has its error
FILE = Path(__file__).name
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
last = size - 1
# Do the ranks meet in shared memory?
TEAM = "NODES" not in os.environ and os.environ.get("RMAEXT_ROUTE") != "fabric"
if "NODES" in os.environ:
    os.environ["RMAEXT_NODE"] = f"node {rank % int(os.environ['NODES'])}"

A = B = C = D = comm = None  # two windows, two of the drop-in, and their communicator


class Mine(Exception):
    """Raised by a program in its `with`."""


class Leaves:
    """A shape that ends the creation on one rank by what is no Exception."""

    def __index__(self):
        raise SystemExit("this rank leaves")


def floats(count=8):
    return np.zeros(count)


# Each call on a line of its own, which the error must name.
CALLS = {
    "fence A": lambda: A.fence(),
    "fence B": lambda: B.fence(),
    "close A": lambda: A.close(),
    "close B": lambda: B.close(),
    "Window": lambda: rmaext.Window(comm, floats()),
    "allocate": lambda: rmaext.Window.allocate(comm, 8),
    "list": lambda: rmaext.Window(comm, [floats(), floats(3)]),
    "dynamic": lambda: rmaext.Window.dynamic(comm),
    "shared": lambda: rmaext.Window.shared(comm, 8),
    "Fence C": lambda: C.Fence(),
    "Fence D": lambda: D.Fence(),
    "Free C": lambda: C.Free(),
    "Free D": lambda: D.Free(),
    "Create": lambda: Win.Create(floats(), 8, comm=comm),
    "Allocate": lambda: Win.Allocate(64, 8, comm=comm),
    "Create_dynamic": lambda: Win.Create_dynamic(comm=comm),
    "Allocate_shared": lambda: Win.Allocate_shared(64, 8, comm=comm),
}
WORDS = {"fence": "fence", "close": "close|free", "free": "close|free"}
CREATION = "creat|allocat|shared|dynamic|window"


def attempt(function):
    """Return what a call raises, or else what it returns, and the seconds it took."""
    start = time.monotonic()
    try:
        result = function()
    except rmaext.RmaError as exc:
        result = exc
    except MPI.Exception as exc:
        result = exc.__cause__ or exc
    except (ValueError, TypeError, AssertionError, RuntimeError) as exc:
        result = exc
    return result, time.monotonic() - start


def described(result):
    if isinstance(result, BaseException):
        return type(result).__name__, str(result)
    return "passed", ""


def everywhere(result, took):
    """Return what each rank has caught: (name, text), and the longest time."""
    told = world.allgather((described(result), took))
    return [what for what, _ in told], max(took for _, took in told)


def of_ranks(text):
    """Return what a message says of each rank: "ranks 0, 2: fence ...; rank 1: close ..."."""
    said = {}
    pieces = re.findall(r"\branks? ([\d, andto-]+): (.*?)(?=; ranks? \d|$)", text, re.DOTALL)
    for numbers, piece in pieces:
        for first, end in re.findall(r"(\d+)(?: to |-)?(\d+)?", numbers):
            for one in range(int(first), int(end or first) + 1):
                said[one] = piece
    return said


def names_call(piece, name):
    """Whether a message says which call it was, of which window, and where in this file."""
    call, _, which = name.partition(" ")
    window = {"A": A, "B": B}.get(which)
    wanted = [WORDS.get(call.lower(), CREATION)]
    if window is not None:
        number = re.search(r"Window (\d+)", repr(window))[1]
        wanted.append(rf"window {number}\b")
    lines = [line for _, _, line in CALLS[name].__code__.co_lines() if line]
    numbers = "|".join(str(line) for line in sorted(set(lines)))
    wanted.append(rf"{re.escape(FILE)}:({numbers})\b")
    return [want for want in wanted if not re.search(want, piece, re.IGNORECASE)]


def use(win):
    """Put, get and update on all ranks' memory; "" if it is as it should be."""
    mine = np.arange(4) + 10.0 * rank
    win.put(mine, (rank + 1) % size, 0)
    win.flush()
    win.fetch_add(1.0, 0, 5)
    world.Barrier()
    here = win.get(rank, 0, 4).tolist()
    there = win.get((rank + 1) % size, 0, 4).tolist()
    count = win.get(0, 5, 1)[0]
    world.Barrier()
    win.put(np.zeros(8), rank, 0)
    world.Barrier()
    if there != mine.tolist() or here != (np.arange(4) + 10.0 * ((rank - 1) % size)).tolist():
        return f"{win!r} holds {here}, and {there} there"
    return "" if count == size else f"{win!r} was counted up {count} times"


def begin(name):
    """Make the windows of a cell."""
    global A, B, C, D, comm
    comm = world.Dup()
    A, B = (rmaext.Window.allocate(comm, 8) for _ in range(2))
    C = D = None
    if re.search(r"\b[CD]\b", name):
        C, D = (Win.Allocate(64, 8, comm=comm) for _ in range(2))
        for win in C, D:
            win.Fence()
    for win in A, B:
        win.local[:] = 0
    world.Barrier()


def works_again():
    """All collective calls work, and end the windows; "" if so."""
    for win in A, B:
        if win.closed:
            return f"{win!r} is closed"
        wrong = use(win)
        if wrong:
            return wrong
        win.fence()
    with rmaext.Window.allocate(comm, 8) as new:
        new.local[:] = 0
        world.Barrier()
        wrong = use(new)
    for win in C, D:
        if win is not None:
            win.Fence()
            win.Free()
    B.close()
    A.close()
    return wrong


def settled(wrong):
    """The first that is wrong on any rank; "" if nothing is."""
    return next((f"rank {r}: {text}" for r, text in enumerate(world.allgather(wrong)) if text), "")


def mismatch(cell, may_pass=False):
    """The same SyncError on all ranks, and then all works again."""
    names = cell.split("|")
    mine = names[rank % len(names)]
    made, took = attempt(CALLS[mine])
    caught, longest = everywhere(made, took)
    if may_pass and all(name == "passed" for name, _ in caught):
        if hasattr(made, "close"):
            made.close()
        else:
            made.Free()
        return settled(works_again())
    if len(set(caught)) > 1:
        return f"not the same error: {caught}"
    if longest > LIMIT:
        return f"took {longest:.1f} s"
    if may_pass and caught[0][0] in ("TypeError", "ValueError"):  # what was given does not fit
        return settled(works_again())
    if caught[0][0] != "SyncError":
        return f"caught {caught}"
    said = of_ranks(caught[0][1])
    for other in range(size):
        missing = names_call(said.get(other, ""), names[other % len(names)])
        if missing:
            return f"nothing like {missing} of rank {other} in {caught[0][1]!r}"
    return settled(works_again())


# -- ranks that give up ------------------------------------------------------------------


def interrupted(function):
    """Call it, and be interrupted by Ctrl-C once it waits for the others."""
    ring_in_wait(lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        function()
    except KeyboardInterrupt:
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise AssertionError("it was not interrupted")


def in_with():
    with A:
        raise Mine("boom")


def in_with_late():
    with A:
        time.sleep(0.3)
        raise Mine("boom")


def ctrl_c_in_with():
    with A:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        time.sleep(7)


def leaves():
    rmaext.Window.allocate(comm, Leaves())


# what the last rank does; whether the others wait meanwhile; what the error says of it
REASONS = {
    "exception": (in_with, True, "Mine|boom|exception"),
    "late exception": (in_with_late, False, "Mine|boom|exception"),
    "Ctrl-C in with": (ctrl_c_in_with, True, "KeyboardInterrupt|interrupt|Ctrl-C"),
    "leaves": (leaves, True, "SystemExit|leaves|creat|allocate"),
}
INTERRUPT = "KeyboardInterrupt|interrupt|Ctrl-C|signal|given up|gave up"


def try_close(win):
    """close() raises once, and has closed."""
    error, _ = attempt(win.close)
    again, _ = attempt(win.close)
    if not isinstance(error, rmaext.SyncError):
        return f"close: {error!r}"
    if not win.closed:
        return "close has not closed"
    return f"the second close: {again!r}" if isinstance(again, Exception) else ""


def given_up(cell):
    """All later collective calls raise it on all ranks; all else goes on."""
    why, _, following = cell.partition(">")
    reason = INTERRUPT
    if why in REASONS:
        do, first, reason = REASONS[why]
    else:
        do, first = (lambda: interrupted(CALLS[why])), True
    result, took = None, 0.0
    # rank 0 of three is in the same call, which the interrupted one has entered
    waiting = range(0 if why in REASONS or size < 3 else 1, last)
    if rank == last:
        with contextlib.suppress(Mine, KeyboardInterrupt, SystemExit):
            do()
        if first:
            for other in waiting:
                world.send(None, other)
    else:
        if first and rank in waiting:
            world.recv(source=last)
        result, took = attempt(CALLS[following])
    # the one that gave up calls nothing before all others have been told
    caught, longest = everywhere(result, took)
    names = {name for name, _ in caught[:-1]}
    # by MPI's collectives a call takes place for all once all have come, the one that
    # was interrupted in it included
    if names == {"passed"} and why == following and not TEAM:
        del caught[:-1]
    elif names != {"SyncError"}:
        return f"caught {caught[:-1]}"
    if longest > LIMIT:
        return f"took {longest:.1f} s"
    then = "allocate" if following == "close B" else "fence B"
    again, took = attempt(CALLS[then])
    caught += everywhere(again, took)[0]
    del caught[-size - 1]  # of the one that gave up, which had no error of ours
    for name, text in caught:
        if name != "SyncError":
            return f"then {then}: {caught}"
        if not re.search(rf"rank {last}\b.*(?:{reason})", text, re.DOTALL | re.IGNORECASE):
            return f"neither who nor why in {text!r}"
    more, _ = attempt(CALLS["allocate"])
    caught = everywhere(more, 0.0)[0]
    if any(name != "SyncError" for name, _ in caught):
        return f"then allocate: {caught}"
    if following != "close B":
        # all of one's own: no operation needs the communicator
        wrong = settled(use(B)) or settled(try_close(B))
        if wrong:
            return wrong
    return settled(on_a_duplicate())


def on_a_duplicate():
    dup = comm.Dup()
    with rmaext.Window.allocate(dup, 8) as win:
        win.local[:] = 0
        world.Barrier()
        wrong = use(win)
        win.fence()
    dup.Free()
    return wrong


def first_creation():
    """Ctrl-C in the first creation over a communicator; a duplicate of it can be used."""
    global comm
    comm = world.Dup()
    result, took = None, 0.0
    if rank == last:
        interrupted(CALLS["allocate"])
        for other in range(last):
            world.send(None, other)
    else:
        world.recv(source=last)
        result, took = attempt(CALLS["allocate"])
    caught, longest = everywhere(result, took)
    if any(name != "SyncError" for name, _ in caught[:-1]) or longest > LIMIT:
        return f"caught {caught[:-1]} after {longest:.1f} s"
    again, took = attempt(CALLS["allocate"])
    caught, longest = everywhere(again, took)
    if any(name != "SyncError" for name, _ in caught) or longest > LIMIT:
        return f"then {caught} after {longest:.1f} s"
    return settled(on_a_duplicate())


# -- communicators that know nothing of each other -------------------------------------------


def in_threads(*works):
    """Run them at once; return the first error's text."""
    wrong = []

    def run(work):
        try:
            work()
        except Exception as exc:
            wrong.append(repr(exc))

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong[0] if wrong else ""


def rounds(own, number, rng, between=lambda win, i: None):
    """Fences and creations over a communicator of one's own."""
    with rmaext.Window.allocate(own, 8) as win:
        for i in range(number):
            between(win, i)
            win.put(np.full(8, float(i)), (rank + 1) % size)
            win.fence()
            if not (win.local == i).all():
                raise AssertionError(f"{win.local} in round {i}")
            win.fence()
            if rng.random() < 0.2:
                time.sleep(rng.random() * 1e-3)
            if i % 10 == 0:
                rmaext.Window(own, np.zeros(3)).close()


def threads():
    """Three communicators in three threads, each at its own pace."""
    comms = [world.Dup() for _ in range(3)]
    rngs = [np.random.default_rng(10 * rank + i) for i in range(3)]
    pairs = zip(comms, rngs, strict=True)
    return settled(in_threads(*(lambda c=c, r=r: rounds(c, 60, r) for c, r in pairs)))


def threads_mismatch():
    """Mismatches over one of them are no matter of the other."""
    comms = [world.Dup() for _ in range(2)]
    rngs = [np.random.default_rng(10 * rank + i) for i in range(2)]
    found = []

    def between(win, i):
        if i % 10 == 5:
            try:
                if rank == last:
                    rmaext.Window(comms[0], np.zeros(3))
                else:
                    win.fence()
            except rmaext.SyncError:
                found.append(i)

    wrong = in_threads(
        lambda: rounds(comms[0], 60, rngs[0], between), lambda: rounds(comms[1], 60, rngs[1])
    )
    if not wrong and found != [5, 15, 25, 35, 45, 55]:
        wrong = f"SyncErrors in rounds {found}"
    return settled(wrong)


def other_communicator():
    """A communicator that was given up does not concern another."""
    global A, B, comm
    own = world.Dup()
    with rmaext.Window.allocate(own, 8) as win:
        win.local[:] = 0
        begin("")
        if rank == last:
            with contextlib.suppress(Mine):
                in_with()
        world.Barrier()
        win.fence()
        refused, _ = attempt(B.fence)
        wrong = "" if isinstance(refused, rmaext.SyncError) else f"fence: {refused!r}"
        wrong = settled(wrong) or settled(use(win))
    return wrong


def crossed():
    """A mismatch leaves the number of the step alike: ten in a row, of all kinds."""
    begin("")
    names = list(CALLS)[:8]
    rng = np.random.default_rng(5)
    for _ in range(10):
        pair = rng.choice(names, 2, replace=False).tolist()
        if set(pair) <= {"Window", "allocate", "list"}:
            continue
        made, took = attempt(CALLS[pair[rank == last]])
        caught, _ = everywhere(made, took)
        if any(name != "SyncError" for name, _ in caught):
            return f"{pair}: {caught}"
        A.fence()
    return settled(works_again())


OTHERS = {
    "first creation": first_creation,
    "threads": threads,
    "threads mismatch": threads_mismatch,
    "other communicator": other_communicator,
    "crossed": crossed,
}
# One call for the library, with other arguments: it may pass, on all ranks, or refuse those.
ALIKE = [{"Window", "allocate", "list"}, {"Create", "Allocate"}]


def run(cell):
    if cell in OTHERS:
        return OTHERS[cell]()
    begin(cell)
    if ">" in cell:
        return given_up(cell)
    return mismatch(cell, any(set(cell.split("|")) <= names for names in ALIKE))


for one in CELLS:
    faulthandler.dump_traceback_later(WATCHDOG, exit=True)
    start = time.monotonic()
    words = settled(run(one))
    if rank == 0:
        passed = f"ok, {time.monotonic() - start:.2f} s"
        os.write(1, f"cell {one}: {words.replace(chr(10), ' ') or passed}\n".encode())
    world.Barrier()
# windows of communicators that were given up are still open: the end must come all the same
faulthandler.dump_traceback_later(WATCHDOG, exit=True)
