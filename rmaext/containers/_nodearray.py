# SPDX-License-Identifier: BSD-3-Clause
"""An array of which each node has one copy, for all its ranks to read.

The memory is a file without a name (memfd), which the first rank of each node makes and fills, and
all map for reading. It is the kernel's: it goes when the last view of any rank has gone.

On a device it is memory of a window, which the first of the ranks that have it as theirs fills, and
the others have mapped for as long as the window is open: CUDA does not keep what its owner frees.
"""

from __future__ import annotations

import errno
import math
import mmap
import operator
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from mpi4py import MPI
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .. import ClosedError, Request, Window, empty
from .._comm.group import together
from .._runtime.copies import Unique
from .._runtime.reports import dtype_name
from ..typing import ScalarT
from ._agreement import Opening, bracketed, common, exchange
from ._device import checked, device_of, neighbours, of_cuda, settled, shaped, split

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self  # Python 3.11

__all__ = ["NodeArray"]

Array = NDArray[Any]
_NAME = "NodeArray"
_STEP = 1 << 22  # bytes; a signal, as a profiler's, makes some kernels begin such a step again


class NodeArray(Unique, Generic[ScalarT]):
    """An array that each node has once: filled by one rank, read by all, as ordinary memory.

    For what is too large for a copy a rank: tables of physics, embeddings, a graph, an index.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator, of one node or of several: the ranks of a node find each other.
    shape : int or tuple of int
        Of the array, the same on all ranks; () and dimensions of 0 are shapes, too.
    dtype : data-type, optional
        Of the array, the same on all ranks; as for `rmaext.Window.allocate`.
    fill : callable
        ``fill(array)`` is called on one rank of each node, the lowest, with the array, which is
        zeros then, to be filled in place. It has to put the same on each node.
    timeout : float, optional
        Of the windows that the creation needs: see `rmaext.Window`.
    device : str, optional
        "cuda:0", for one: this rank's array lies on that device, as of `rmaext.Window.allocate`;
        ranks may differ.

    Raises
    ------
    TypeError, ValueError, MemoryError, Unsupported, LibraryError, RmaError
        On every rank, if any rank's arguments do not fit, or they differ, but for `device`.
    Exception
        What `fill` raises on any node, on every rank; of a class that is not Python's own its
        nearest base, as `ValueError`, or `RmaError`.
    SyncError, PeerLostError
        On every rank, if the ranks are in different collective calls, or one is lost.

    Notes
    -----
    The constructor is collective and blocking: all wait for those that fill. All else is local.
    A node is those ranks that map each other's memory (`Window.route` is "direct"); where none
    does, each rank has its own copy.

    `array` is read-only on all ranks. It, and any view of it, stays as it is for as long as
    it is kept, also after `close`, and if other ranks are lost; its memory is free when no rank
    of the node has a view any more. Each rank may close, or drop it, when it likes.

    **Devices.** There is one copy for each device, by CUDA IPC, for the ranks of the node that name
    it and map each other's memory there; each other rank with a device has its own copy. `fill` is
    called on the lowest rank of each copy, with an array of CuPy or PyTorch if the program has
    imported one of them; what it queues on the array's stream or the default stream is waited for.
    Nothing keeps kernels from writing to `array`: do not. CUDA does not keep memory that its owner
    frees, so that, if any rank has a device, **close is collective and blocking on all ranks**, and
    no view on a device is used after it, or after the rank that has filled it was lost.

    **Ctrl-C**, or any exception of a signal handler, in the constructor is SyncError on the
    others; afterwards there is nothing to interrupt.

    **Threads.** Any may read at once.

    Memory: one copy a node, shared memory that counts once. All of it is there before `fill`,
    so that a lack is an error. Cost: of creation some collective calls; to read, nothing. It
    corresponds to MPI_Comm_split_type, MPI_Win_allocate_shared and MPI_Win_shared_query.

    Examples
    --------
    >>> from rmaext.containers import NodeArray
    >>> def load(array):
    ...     array[:] = np.arange(3) ** 2
    >>> with NodeArray(MPI.COMM_SELF, 3, fill=load) as table:
    ...     squares = table.array
    >>> squares
    array([0., 1., 4.])
    """

    _array: Any = None
    _window: Window[Any] | None = None  # that keeps the memory, if any rank has it on a device

    @bracketed
    def __init__(
        self,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        *,
        fill: Callable[[Array], object],
        timeout: float | None = None,
        device: str | None = None,
    ) -> None:
        def tell() -> tuple[tuple[int, ...], np.dtype[Any], bool]:
            if not callable(fill):
                raise TypeError(f"fill must be a function of the array, not {type(fill).__name__}")
            dims = shape if isinstance(shape, tuple | list) else (shape,)
            dims, kind = tuple(map(operator.index, dims)), np.dtype(dtype)
            if min(dims, default=0) < 0:
                raise ValueError(f"shape {dims} has a negative dimension")
            empty(0, kind)  # raises what a window would
            if math.prod(dims) * kind.itemsize >> 62:
                raise MemoryError(f"no machine has memory for shape {dims}: is it meant?")
            if device is not None:
                checked(device)
            return dims + kind.shape, kind.base, device is not None

        told = exchange(comm, _NAME, tell, timeout)
        common([dims for dims, _, _ in told], ValueError, "arguments differ", "shape {}".format)
        common([kind for _, kind, _ in told], TypeError, "dtypes differ", dtype_name)
        self._comm, (self._shape, self._dtype, _) = comm, told[0]
        self._nbytes = math.prod(self._shape) * self._dtype.itemsize
        some = any(there for _, _, there in told)
        how: dict[str, Any] = {} if device is None else {"device": str(device)}
        with Window.allocate(comm, int(some), np.uint8, timeout=timeout, **how) as probe:

            def where() -> bytes:
                return b"" if device is None else device_of(probe.local, timeout)

            names = exchange(comm, _NAME, where, timeout) if some else [b""] * comm.size
            way = "direct" if device is None else "ipc"
            same = (r for r in range(comm.rank) if names[r] == names[comm.rank])
            alone = device is not None and not (names[comm.rank] and self._nbytes)
            near = (r for r in same if not alone and probe.route(r) == way)
            self._first = first = next(near, comm.rank)
        if some and exchange(comm, _NAME, lambda: first, timeout)[first] != first:
            self._first = comm.rank  # that one has another's: not all map each other's memory
        own = self._first == comm.rank
        with Opening() as stack, _File() as file:
            place: Any = None
            window: Any = None
            if some:
                here, how = (self._nbytes, how) if own and device is not None else (0, {})
                window = Window.allocate(comm, here, np.uint8, "r", timeout, **how)
                stack.enter_context(window)

            def make() -> Any:
                nonlocal place
                if not own:
                    return None
                if device is None:
                    fill(self._view(file.make(self._nbytes)))
                    return os.getpid(), file.number
                place = settled(window.local, timeout)
                array = shaped(place, self._dtype, self._shape)
                fill(array)
                settled(array, timeout)
                return None

            def find() -> None:
                nonlocal place
                if device is None:
                    pid, number = made[self._first]
                    self._array = self._view(_mapped(pid, number, self._nbytes))
                    return
                if not own:
                    place = neighbours(self._first, self._nbytes, device, window)
                self._array = shaped(place, self._dtype, self._shape)

            made = exchange(comm, _NAME, _outside(make), timeout)
            exchange(comm, _NAME, find, timeout)  # and the file may be closed
            self._window = window
            stack.pop_all()

    def _view(self, memory: Any) -> Array:
        flat = np.frombuffer(memory, self._dtype, math.prod(self._shape))
        return flat.reshape(self._shape)

    @classmethod
    def assemble(
        cls,
        comm: MPI.Comm,
        rows: ArrayLike,
        *,
        timeout: float | None = None,
        device: str | None = None,
    ) -> NodeArray[Any]:
        """Make one of each rank's part: rank 0's rows, then rank 1's, and so on.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
        rows : array_like or array on a device
            This rank's, of one dimension or more. Ranks may have different numbers of rows, and
            none; all else of the shape, and the dtype, is the same on all ranks, but for an
            empty list, which says nothing of it.
        timeout, device
            As of the constructor.

        Returns
        -------
        NodeArray

        Raises
        ------
        TypeError, ValueError, MemoryError, SyncError, PeerLostError
            As the constructor.

        Notes
        -----
        Collective, blocking. One rank of each node reads the parts of all ranks into place: no
        rank has a second copy of the whole. It corresponds to MPI_Allgatherv.

        Examples
        --------
        >>> from rmaext.containers import NodeArray
        >>> with NodeArray.assemble(MPI.COMM_SELF, [[1, 2], [3, 4]]) as table:
        ...     table.array
        array([[1, 2],
               [3, 4]])
        """
        part = np.empty(0)

        def tell() -> tuple[int, tuple[int, ...] | None, np.dtype[Any] | None]:
            nonlocal part
            if isinstance(rows, np.ma.MaskedArray):
                raise TypeError("rows are a masked array, whose mask would be lost: use filled()")
            cuda = of_cuda(rows)
            given = np.asarray(rows) if cuda is None else cuda.fetch(rows, timeout)
            if not given.ndim:
                raise ValueError("rows are one number: give an array of at least one dimension")
            empty(0, given.dtype)
            if isinstance(rows, list) and not given.size:
                return 0, None, None
            part = np.ascontiguousarray(given)
            return len(part), part.shape[1:], part.dtype

        def make() -> NodeArray[Any]:
            told = exchange(comm, _NAME, tell, timeout)
            tails, kinds = [tail for _, tail, _ in told], [kind for _, _, kind in told]
            tail = common(tails, ValueError, "rows differ", "shape {}".format) or ()
            found = common(kinds, TypeError, "dtypes differ", dtype_name)
            kind = np.dtype(float) if found is None else found
            ends = np.cumsum([count for count, _, _ in told]).tolist()
            # who has no rows may not know their dtype
            with Window(comm, part if part.size else np.empty(0, kind), "r", timeout) as window:

                def fill(array: Any) -> None:
                    parts = enumerate(split(array, ends[:-1], timeout))
                    begun = [window.rget(rank, out=it) for rank, it in parts if math.prod(it.shape)]
                    Request.waitall(begun)

                shape = (ends[-1], *tail)
                return cls(comm, shape, kind, fill=fill, timeout=timeout, device=device)

        return together(comm, "NodeArray.assemble", make)

    # -- what it is ------------------------------------------------------------------

    @property
    def array(self) -> NDArray[ScalarT]:
        """The array: read-only, the same memory on all ranks of the node, or device. Local."""
        if self._array is None:
            raise ClosedError(errno.ESHUTDOWN, "the NodeArray is closed", call="array")
        array: NDArray[ScalarT] = self._array
        return array

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def filled_by(self) -> int:
        """The rank that has filled this node's copy."""
        return self._first

    @property
    def closed(self) -> bool:
        """Whether `array` raises ClosedError."""
        return self._array is None

    def __repr__(self) -> str:
        closed = ", closed" * self.closed
        what = f"shape {self._shape}, {self._dtype}, filled by rank {self._first}"
        return f"<rmaext.containers.NodeArray: {what}{closed}>"

    # -- the end -----------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the array. Twice is harmless.

        Notes
        -----
        Local, not blocking: it waits for nobody, and views stay. `with` does it at the end of its
        block, so does the end of the object. If any rank has its array on a device it is
        collective and blocking, as `rmaext.Window.close` with its errors; views there end with it.

        Examples
        --------
        >>> from rmaext.containers import NodeArray
        >>> table = NodeArray(MPI.COMM_SELF, 3, fill=lambda array: array.fill(1))
        >>> table.close()
        >>> table.closed
        True
        """
        self._array = None
        if self._window is not None:
            self._window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or self._window is None:
            self.close()
        else:
            self._array = None
            self._window.__exit__(kind, error, trace)


class _File:
    """A file without a name, open as long as others may have to find it."""

    number = -1

    def make(self, nbytes: int) -> mmap.mmap:
        """Make it of so many bytes, all of them there; return them mapped."""
        self.number = os.memfd_create("rmaext-node", os.MFD_CLOEXEC)
        try:
            for at in range(0, max(1, nbytes), _STEP):
                os.posix_fallocate(self.number, at, min(_STEP, max(1, nbytes) - at))
        except OSError as exc:
            if exc.errno is None:  # a signal handler's TimeoutError
                raise
            text = f"no shared memory of {nbytes} bytes on this node: {exc.strerror}"
            raise MemoryError(text) from exc
        memory = mmap.mmap(self.number, max(1, nbytes))
        with suppress(OSError, AttributeError):  # not in every kernel
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        if self.number >= 0:
            os.close(self.number)


def _mapped(pid: int, number: int, nbytes: int) -> mmap.mmap:
    """Map the file of a process, this one included, for reading."""
    # As rmaext's own segments are found, which all that are "direct" have mapped.
    with open(f"/proc/{pid}/fd/{number}", "rb", buffering=0) as file:
        return mmap.mmap(file.fileno(), max(1, nbytes), prot=mmap.PROT_READ)


def _outside(make: Callable[[], Any]) -> Callable[[], Any]:
    """Call a function now, and return one that returns or raises the same.

    So what a program does in `fill` is no part of a collective call.
    """
    try:
        result = make()
    except Exception as exc:
        error = exc

        def again() -> Any:
            raise error

        return again
    return lambda: result
