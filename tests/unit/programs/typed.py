# SPDX-License-Identifier: BSD-3-Clause
"""What a type checker knows of rmaext: for mypy, see tests/unit/test_public.py; it is not run."""

from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from typing_extensions import assert_type

import rmaext
from rmaext.typing import Access, Comparison, Operation, Route

comm = MPI.COMM_WORLD

# the dtype of the window is that of its array
win = rmaext.Window(comm, np.zeros(4))
assert_type(win, rmaext.Window[np.float64])
assert_type(win.get(0), NDArray[np.float64])
assert_type(win.get(0, out=np.zeros(2)), NDArray[np.float64])
assert_type(win.local, NDArray[np.float64])
assert_type(win.peer_view(0), NDArray[np.float64])
assert_type(win.dtype, np.dtype[np.float64])
assert_type(win.get_accumulate(1.0, 0), NDArray[np.float64])
assert_type(win.get_many([0], [1]), NDArray[np.float64])
assert_type(win.get_notify(0), NDArray[np.float64])
assert_type(win.register(np.zeros(2)), rmaext.Buffer[np.float64])
assert_type(win.register(np.zeros(2)).get(0), NDArray[np.float64])
assert_type(win.prepare_get(np.zeros(2), 0), rmaext.Prepared[np.float64])
with win as same:
    assert_type(same, rmaext.Window[np.float64])
with rmaext.Window.shared(comm, 4, np.int32) as node:
    assert_type(node.whole, NDArray[np.int32])
with rmaext.Window.dynamic(comm, np.int32) as open_:
    assert_type(open_, rmaext.DynamicWindow[np.int32])
    assert_type(open_.attach(np.zeros(2, np.int32)), int)
with rmaext.RemoteWindow.attach(b"") as there, win.subwindow(0, 2) as part:
    assert_type(there, rmaext.RemoteWindow[Any])
    assert_type(part, rmaext.View[np.float64])

# views, and windows of other kinds
assert_type(win.subwindow(0, 2), rmaext.View[np.float64])
assert_type(win.dup("r"), rmaext.View[np.float64])
assert_type(win.subwindow(0, 2).get(0), NDArray[np.float64])
assert_type(win.field("x"), rmaext.FieldView[Any])
assert_type(win.view(np.uint8), rmaext.View[np.uint8])
assert_type(win.view("u8").local, NDArray[Any])
assert_type(rmaext.Window.allocate(comm, 4, np.int32), rmaext.Window[np.int32])
assert_type(rmaext.Window.allocate(comm, 4, np.dtype(np.int8)).local, NDArray[np.int8])
assert_type(rmaext.Window.allocate(comm, 4, "f8"), rmaext.Window[Any])
assert_type(rmaext.Window.shared(comm, 4, np.int32).whole, NDArray[np.int32])
assert_type(rmaext.Window.dynamic(comm, np.int32), rmaext.DynamicWindow[np.int32])
assert_type(rmaext.Window(comm, [np.zeros(1), np.zeros(2)]), rmaext.Window[np.float64])
assert_type(rmaext.RemoteWindow.attach(b"").get(0), NDArray[Any])
assert_type(rmaext.zeros(3, np.int64), NDArray[np.int64])

# what is returned
assert_type(win.lock(0), rmaext.LockGuard)
assert_type(win.rget(0), rmaext.Request)
assert_type(win.grant(0, 2), rmaext.Grant)
assert_type(win.memory, rmaext.Memory)
assert_type(win.fabric, rmaext.Fabric | None)
assert_type(win.at(0), rmaext.ElementUpdates)
assert_type(win.route(0), Route)


# annotations of a program's own
def halo(window: rmaext.Window[np.float32], op: Operation, rights: Access) -> NDArray[np.float32]:
    window.accumulate(1.0, 0, op=op)
    window.dup(rights)
    return window.get(0)


def until(window: rmaext.Window[Any], comparison: Comparison) -> None:
    window.wait_until(0, comparison, 1)


# what is wrong is an error here, before it is one in a job
bytes_ = np.zeros(2, np.int8)
rmaext.Window(comm, np.zeros(4), "rx")  # type: ignore[arg-type]
win.accumulate(1.0, 0, op="summ")  # type: ignore[arg-type]
win.get_accumulate(1.0, 0, op="summ")  # type: ignore[arg-type]
win.fetch_op(1.0, 0, op="summ")  # type: ignore[arg-type]
win.accumulate_many([0], [0], 1.0, op="summ")  # type: ignore[arg-type]
win.fetch_op_many([0], [0], 1.0, op="summ")  # type: ignore[arg-type]
win.raccumulate(1.0, 0, op="summ")  # type: ignore[arg-type]
win.rget_accumulate(1.0, 0, op="summ")  # type: ignore[arg-type]
win.rfetch_op(1.0, 0, op="summ")  # type: ignore[arg-type]
win.at(0).update(0, 1.0, op="summ")  # type: ignore[arg-type]
win.wait_until(0, "=>", 1)  # type: ignore[arg-type]
win.get(0, out=bytes_)  # type: ignore[arg-type]
win.register(bytes_)  # type: ignore[arg-type]
win.advise("soon")  # type: ignore[arg-type]
win.export(scope="world")  # type: ignore[arg-type]
rmaext.Window(comm, np.zeros(4), kind="gpu")  # type: ignore[arg-type]
halo(win, "sum", "r")  # type: ignore[arg-type]
