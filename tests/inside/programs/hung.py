# SPDX-License-Identifier: BSD-3-Clause
"""A job that hangs: hung.py HOW FOLDER. Each rank that is about to hang says so in FOLDER.

A comment "# NAME" marks each line that tests/inside/test_why.py expects to be told.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import rmaext

how, folder = sys.argv[1], Path(sys.argv[2])
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
if how == "unrecorded" and rank == 1:
    os.environ["RMAEXT_RECORD"] = "0"
win = None if how == "first" else rmaext.Window.allocate(world, 100)
other = rmaext.Window.allocate(world.Dup(), 100) if how == "mismatch" else win
if win:
    win.fence()
world.Barrier()


def hangs():
    """Say that this rank is where it hangs, a moment from now."""
    (folder / str(rank)).write_text(f"{os.getpid()}")


def locks():
    with win.lock(rank):
        world.Barrier()
        hangs()
        win.lock((rank + 1) % size)  # second lock


def early():
    hangs()
    for i in range(10):
        if rank == 1 and i == 5:
            break
        win.fence()  # loop's fence
    time.sleep(1000)  # leaves early


def stops():
    hangs()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)  # stop
    win.fence()  # all's fence


def endless():
    hangs()
    total = 0
    while rank == 1:  # loop
        total += 1  # endless
    win.fence()  # others' fence


def mismatch():
    hangs()
    if rank == 1:
        other.fence()  # another fence
    win.fence()  # right fence


def notify():
    hangs()
    if rank == 1:
        win.wait_notify(3)  # notify
    win.fence()  # after notify


def slots():
    if rank == 0:
        win.put_notify(np.ones(1), 1, slot=2)  # wrong slot
    notify()


def rounds():
    """Rank 0 has sent twice, rank 2 once."""
    for _ in range(2):
        if rank != 1:
            win.put_notify(np.ones(1), 1, slot=3)  # right slot
        if rank == 2:
            break
    if rank == 2:
        win.rput_notify(np.ones(1), 1, slot=4).wait()  # request's slot
    world.Barrier()
    if rank == 1:
        win.wait_notify(3, count=3)
    hangs()
    if rank == 1:
        win.wait_notify(3)  # third
    win.fence()


def until():
    hangs()
    if rank == 1:
        win.wait_until(0, ">", 5)  # until
    win.fence()  # after until


def holder():
    if rank == 1:
        win.lock(0)
    world.Barrier()
    hangs()
    while rank == 1:
        time.sleep(0.01)  # holds
    with win.lock(0):  # wanted
        pass


def flush():
    pids = world.allgather(os.getpid())
    if rank == 1:
        hangs()
        os.kill(os.getpid(), signal.SIGSTOP)
    while Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    hangs()
    if rank == 0:
        win.put(np.ones(100), 1)
        win.flush()  # flush
    time.sleep(1000)


def gone():
    world.Barrier()
    hangs()
    if rank == 1:
        os._exit(0)
    time.sleep(1000)


def first(comm=world):
    hangs()
    if rank == 1:
        time.sleep(1000)  # no window
    rmaext.Window.allocate(comm, 8)  # first window


def again():
    first(world.Dup())


def unrecorded():
    hangs()
    if rank == 1:
        time.sleep(1000)
    win.fence()


def thread():
    def wait():
        if rank == 0:
            win.lock(1)
        world.Barrier()
        if rank == 1:
            win.lock(1)  # in a thread

    one = threading.Thread(target=wait, name="helper", daemon=True)
    one.start()
    hangs()
    time.sleep(1000)


def ends():
    hangs()
    if rank != 1:
        sys.exit()
    time.sleep(1000)  # goes on


def fine():
    hangs()
    while True:
        win.fence()
        time.sleep(0.01)


def containers():
    """Rank 1 has a bucket, a slot and a section of each table; rank 0 waits for it in threads."""
    from rmaext.containers import Dict, Published, TaskQueue  # no other job needs them

    wide = {
        "get": lambda table: table.get(there),
        "get_many": lambda table: table.get_many([there]),
        "set": lambda table: table.__setitem__(there, 1j),
        "set_many": lambda table: table.set_many([new], 1j),
        "setdefault": lambda table: table.setdefault(new, 1j),
        "pop": lambda table: table.pop(there),
        "local_items": lambda table: table.local_items(),
    }
    narrow = {
        "add": lambda table: table.add(new, 1),
        "add_many": lambda table: table.add_many([new], 1),
    }
    tables = {name: Dict(world, "i8", "c16" if name in wide else "i8", 3) for name in wide | narrow}
    queue, published = TaskQueue(world, "i8", 10), Published(world, (1,), "f8")
    one = tables["get"]
    there, new = [key for key in range(1000) if one.rank_of(key) == 0][:2]
    if rank == 1:
        for table in tables.values():
            table[there] = 1
            table._slots._lock(table._one(new))
            table._slots._lock(table._one(there))
            query = table._one(there)
            table._slots.hold(query, table._slots.find(query))
    world.Barrier()
    if rank == 0:
        waits = [lambda: published.read(1, newer_than=0)]
        waits += [lambda call=c, name=n: call(tables[name]) for n, c in (wide | narrow).items()]
        for wait in waits:
            threading.Thread(target=wait, daemon=True).start()
    hangs()
    if rank == 2:
        for _ in queue:  # queue's loop
            pass


def calls():
    """Rank 1 is stopped; rank 0 waits for it in each call that can, in a thread and window each.

    Names with a dot are of a container, which they are given instead of a window.
    """
    from rmaext.containers import (
        Array,
        Channel,
        Dict,
        MultiDict,
        NodeArray,
        Published,
        Store,
        TaskQueue,
        counter,
    )

    one, network = np.ones(1), win.route(1) != "direct"
    makes = {
        "Array": lambda comm: Array(comm, (6, 6), ghosts=1),  # in Array
        "Channel": lambda comm: Channel(comm, "i8", 3),  # in Channel
        "Dict": lambda comm: Dict(comm, "i8", "i8", 10),  # in Dict
        "MultiDict": lambda comm: MultiDict(comm, "i8", "i8", 10),  # in MultiDict
        "Published": lambda comm: Published(comm, 3),  # in Published
        "Store": lambda comm: Store(comm, np.zeros(2)),  # in Store
        "TaskQueue": lambda comm: TaskQueue(comm, "i8", 10),  # in TaskQueue
        "counter": lambda comm: counter(comm, 9),  # in counter
    }
    store = makes["Store"](world.Dup())

    def exchanging(field):
        with field.exchanging():  # in Array.exchanging
            pass

    def swap_many(w):
        w.compare_and_swap_many([1, 1], [0, 1], 0, 1)  # in compare_and_swap_many

    waits = {
        "lock": lambda w: w.lock(1),  # in lock
        "lock_all": lambda w: w.lock_all(),  # in lock_all
        "wait_notify": lambda w: w.wait_notify(1),  # in wait_notify
        "wait_any": lambda w: w.wait_any([1, 2]),  # in wait_any
        "wait_some": lambda w: w.wait_some([1, 2]),  # in wait_some
        "wait_all": lambda w: w.wait_all([1, 2]),  # in wait_all
        "wait_until": lambda w: w.wait_until(0, ">", 5),  # in wait_until
        "start": lambda w: w.start([1]),  # in start
        "wait": lambda w: w.wait(),  # in wait
        "fence": lambda w: w.fence(),  # in fence
        "View.fence": lambda w: w.subwindow(0, 2).fence(),  # in View.fence
        "close": lambda w: w.close(),  # in close
        "Window": lambda w: rmaext.Window(w.comm, np.zeros(3)),  # in Window
        "JoinedWindow": lambda w: rmaext.Window(w.comm, [one, one + 1]),  # in JoinedWindow
        "allocate": lambda w: rmaext.Window.allocate(w.comm, 3),  # in allocate
        "dynamic": lambda w: rmaext.Window.dynamic(w.comm),  # in dynamic
        **{name: lambda w, make=make: make(w.comm) for name, make in makes.items()},
        "NodeArray": lambda w: NodeArray(w.comm, 3, fill=id),  # in NodeArray
        "NodeArray.assemble": lambda w: NodeArray.assemble(w.comm, one),  # in NodeArray.assemble
        "Array.close": lambda a: a.close(),  # in Array.close
        "Array.copy_to": lambda a: a.copy_to(a),  # in Array.copy_to
        "Array.exchange": lambda a: a.exchange(),  # in Array.exchange
        "Array.exchanging": exchanging,
        "Array.fence": lambda a: a.fence(),  # in Array.fence
        "Array.like": lambda a: Array.like(a),  # in Array.like
        "Array.load": lambda a: Array.load(a.comm, folder / "some.npy"),  # in Array.load
        "Array.max": lambda a: a.max(),  # in Array.max
        "Array.mean": lambda a: a.mean(),  # in Array.mean
        "Array.min": lambda a: a.min(),  # in Array.min
        "Array.redistribute": lambda a: a.redistribute(grid=(0, 1)),  # in Array.redistribute
        "Array.save": lambda a: a.save(folder / "saved.npy"),  # in Array.save
        "Array.sum": lambda a: a.sum(),  # in Array.sum
        "Channel.close": lambda c: c.close(),  # in Channel.close
        "Channel.receive": lambda c: c.receive(),  # in Channel.receive
        "Channel.send": lambda c: c.send(np.arange(99), 1),  # in Channel.send
        "Dict.clear": lambda d: d.clear(),  # in Dict.clear
        "Dict.close": lambda d: d.close(),  # in Dict.close
        "Dict.items": lambda d: list(d.items()),  # in Dict.items
        "Dict.len": lambda d: len(d),  # in Dict.len
        "MultiDict.close": lambda d: d.close(),  # in MultiDict.close
        "Published.close": lambda p: p.close(),  # in Published.close
        "Store.close": lambda s: s.close(),  # in Store.close
        "TaskQueue.close": lambda q: q.close(),  # in TaskQueue.close
        "counter.close": lambda c: c.close(),  # in counter.close
    }
    by_network = {  # where there is no memory to do it by
        "flush": lambda w: w.flush(1),  # in flush
        "flush_all": lambda w: w.flush_all(),  # in flush_all
        "flush_local": lambda w: w.flush_local(1),  # in flush_local
        "flush_local_all": lambda w: w.flush_local_all(),  # in flush_local_all
        "unlock": lambda w: w.unlock(1),  # in unlock
        "unlock_all": lambda w: w.unlock_all(),  # in unlock_all
        "complete": lambda w: w.complete(),  # in complete
        "get": lambda w: w.get(1, 0, 1),  # in get
        "get_many": lambda w: w.get_many([1, 1], [0, 1]),  # in get_many
        "get_ranges": lambda w: w.get_ranges([1, 1], [0, 1], [1, 2]),  # in get_ranges
        "get_notify": lambda w: w.get_notify(1, 0, 1),  # in get_notify
        "index": lambda w: w[1, :2],  # in index
        "put_many": lambda w: w.put_many([1, 1], [0, 1], 1.0),  # in put_many
        "put_ranges": lambda w: w.put_ranges([1, 1], [0, 2], 1, np.ones(2)),  # in put_ranges
        "load": lambda w: w.load(1),  # in load
        "store": lambda w: w.store(1, 1),  # in store
        "fetch_add": lambda w: w.fetch_add(1, 1),  # in fetch_add
        "fetch_op": lambda w: w.fetch_op(1, 1, op="max"),  # in fetch_op
        "compare_and_swap": lambda w: w.compare_and_swap(0, 1, 1),  # in compare_and_swap
        "get_accumulate": lambda w: w.get_accumulate(one, 1),  # in get_accumulate
        "accumulate_many": lambda w: w.accumulate_many([1, 1], [0, 1], 1),  # in accumulate_many
        "fetch_add_many": lambda w: w.fetch_add_many([1, 1], [0, 1], 1),  # in fetch_add_many
        "fetch_op_many": lambda w: w.fetch_op_many([1, 1], [0, 1], 1),  # in fetch_op_many
        "compare_and_swap_many": swap_many,
        "ElementUpdates.add": lambda w: w.at(1).add([0, 0], 1),  # in ElementUpdates.add
        "ElementUpdates.update": lambda w: w.at(1).update([0], 1),  # in ElementUpdates.update
        "Buffer.get": lambda w: w.register(one.copy()).get(1),  # in Buffer.get
        "Buffer.fetch_add": lambda w: w.register(one).fetch_add(1),  # in Buffer.fetch_add
        "prepare_get": lambda w: w.prepare_get(one.copy(), 1)(),  # in prepare_get
        "FieldView.get": lambda w: w.view("f8,f8").field("f1").get(1),  # in FieldView.get
        "Request.wait": lambda w: w.rget(1, 0, 1).wait(),  # in Request.wait
        "Request.result": lambda w: w.rget(1, 0, 1).result(),  # in Request.result
        "Request.waitany": lambda w: rmaext.Request.waitany([w.rget(1)]),  # in Request.waitany
        "Request.waitall": lambda w: rmaext.Request.waitall([w.rget(1)]),  # in Request.waitall
        "Array.add": lambda a: a.add(np.s_[:], 1.0),  # in Array.add
        "Array.add_points": lambda a: a.add_points([[3, 0]], 1.0),  # in Array.add_points
        "Array.fetch_add": lambda a: a.fetch_add((3, 0), 1.0),  # in Array.fetch_add
        "Array.index": lambda a: a[:],  # in Array.index
        "Array.points": lambda a: a.points([[3, 0]]),  # in Array.points
        "Store.get": lambda s: s.get([2, 3]),  # in Store.get
        "Prefetch.result": lambda w: store.prefetch([2, 3]).result(),  # in Prefetch.result
    }
    by_memory = {"shared": lambda w: rmaext.Window.shared(w.comm, 3)}  # in shared
    waits |= by_network if network else by_memory
    before = {
        "unlock": lambda w: w.lock(1),
        "unlock_all": lambda w: w.lock_all(),
        "complete": lambda w: w.start([1]),
        "wait": lambda w: w.post([1]),
    }
    usual = lambda comm: rmaext.Window.allocate(comm, 4)  # noqa: E731
    given = {n: makes.get(n.partition(".")[0] * ("." in n), usual)(world.Dup()) for n in waits}
    pid, ready = world.bcast(os.getpid(), 1), threading.Barrier(1 + len(waits))

    def run(name):
        before.get(name, id)(given[name])
        ready.wait()
        ready.wait()
        if name.startswith(("flush", "unlock", "complete")):
            given[name].put(one, 1)
        waits[name](given[name])

    if rank == 1:
        given["lock"].lock(1)
        given["lock_all"].lock(1)
        if network:
            given["complete"].post([0])
    if rank == 0:
        np.save(folder / "some.npy", one)
    world.Barrier()
    if rank == 0:
        for name in waits:
            threading.Thread(target=run, args=(name,), daemon=True).start()
        ready.wait()
    world.Barrier()
    hangs()
    if rank == 1:
        os.kill(pid, signal.SIGSTOP)
    if rank == 0:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        ready.wait()


globals()[how]()
time.sleep(1000)
