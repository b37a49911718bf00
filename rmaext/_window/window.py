# SPDX-License-Identifier: BSD-3-Clause
"""Windows: memory that every rank of a communicator can put to and get from."""

from __future__ import annotations

import errno
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast, overload

import numpy as np
from mpi4py import MPI
from numpy.typing import DTypeLike, NDArray

from .._comm.columns import elements, one_of
from .._comm.control import Block, Controls
from .._comm.group import Group
from .._comm.region import Region
from .._fabric.fabric import Fabric
from .._fabric.registration import How, HowAllocated, Registration
from .._memory import arrays, node
from .._memory.devices import DeviceArray
from .._memory.pages import Wish
from .._native._lib import ffi, lib
from .._ops.arguments import told
from .._ops.core import Array
from .._ops.many_requests import ManyRequests
from .._ops.nonblocking import NonblockingOperations
from .._ops.transfers import TransferOperations
from .._record import writer
from .._runtime import lifetime
from .._runtime.config import timeout_seconds
from .._runtime.failures import from_code
from .._sync.notify import Notifications
from ..errors import AccessError, ClosedError, NotLocalError, Unsupported
from ..typing import Access, ArrayLibrary, HugePages, ScalarT
from . import storage
from .completion import Completion
from .constructors import RelatedWindows
from .memory import MemoryOperations
from .misnamed import Misnamed
from .statistics import Statistics

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Window"]

_PROC_NULL = int(MPI.PROC_NULL)
_NO_TOKEN = bytes(16)


class Window(
    TransferOperations[ScalarT],
    NonblockingOperations[ScalarT],
    ManyRequests[ScalarT],
    Notifications[ScalarT],
    Completion[ScalarT],
    RelatedWindows[ScalarT],
    MemoryOperations[ScalarT],
    Statistics[ScalarT],
    Misnamed,
):
    """One-sided access to an array of every rank (MPI-4.1, chapter 12).

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks take part.
    array : numpy.ndarray or list of these
        This rank's memory: C-contiguous, any shape, any dtype without Python
        objects. Sizes may differ between ranks, zero included; the dtype, byte
        order included, may not. The window keeps the array alive. The elements
        of several arrays are counted one array after another; see `JoinedWindow`.
    access : {"r", "w", "rw"}, optional
        What origins may do; by default what the array allows.
    timeout : float, optional
        Seconds without progress after which an operation raises
        `RmaTimeout`; by default RMAEXT_TIMEOUT, or 60. Here and wherever there is a
        time limit: an integer or float, Python's or NumPy's, not negative and no bool;
        inf, and what is more than 1e9, is no limit.
    proc_null : bool, optional
        MPI.PROC_NULL is taken as a rank, as neighbours of a Cartesian communicator may
        be; see Notes. By default it is BoundsError, as any negative rank.
    **how
        key, auth_key, ordering, kind, device, persistent, counts_writes: see
        `rmaext.Registration`.

    Raises
    ------
    TypeError, ValueError, AccessError, NoKeyError, KeyRejectedError, Unsupported
        On every rank, if any rank's arguments do not fit; the message names
        the ranks at fault.
    SyncError
        On every rank, if the ranks are in different collective calls, or one has given up.

    Notes
    -----
    Collective, blocking; corresponds to MPI_Win_create. Offsets everywhere are
    elements of the dtype, counted in C order from the start of the array.

    Ranks of the same node map memory of `Window.allocate` and `rmaext.zeros`. Any other array
    they read and write by calls of the system, 1 or 2 us each, and update by messages, some 10.

    `win[rank, key]` reads and assigns what `key` means in the array of that
    rank, as NumPy has it: integers, slices, None, ..., index arrays and masks.
    Reading returns a new array, or an element; assigning takes what `put`
    takes, broadcasts it, and is complete at the target after `flush`. It
    corresponds to MPI_Get and MPI_Put with a derived datatype for the target.
    `win[rank, i] += 1` is a read and a write: `win.at(rank).add(i, 1)` is
    atomic. BoundsError and IndexError, TypeError, ValueError and AccessError are
    raised before anything is sent.

    MPI.PROC_NULL is -1 or -2 or another number, as the MPI has it: so a rank that is
    `rank - 1` at rank 0 by mistake would be an error with one MPI and silently nothing
    with another. Only with `proc_null=True` it is a rank, and then everywhere the one
    that has nothing: what writes, updates, locks, flushes or notifies does nothing; what
    returns values returns an array without elements, or `out` as it was; requests are
    done at once, with that result. Calls on many elements leave those out that are for
    it, whose results are 0, or as they were in `out`. `post` and `start` leave it out of
    their groups. Arguments are checked all the same, but for the offset. Views
    have it from their window. `size`, `route`, `peer_view` and compiled code
    (`rmaext.jit`) know no such rank.

    Threads: any number of them may call the methods of one window at once, collective
    ones apart: of these a communicator takes one at a time, and refuses another thread's by
    BusyError. A lock is held by the thread that took it; epochs (`post`, `start`) belong to
    the process. `flush` waits for what all threads have sent before it. Prepared operations,
    registered buffers and requests may be used by several threads, too; what an origin has
    while another thread changes it is what may be sent.

    Ranks, offsets, counts and slots are whatever has `__index__`: of Python, NumPy or
    others, but no floats.

    A window is used after its creation without any further call on the target:
    operations complete while the target computes or sleeps. Memory that is the
    target of concurrent puts is undefined where they overlap; `accumulate` and
    the other updates are atomic against each other, per element.

    Examples
    --------
    >>> with rmaext.Window(MPI.COMM_SELF, np.zeros(4)) as other:
    ...     other.put([1.0, 2.0], rank=0, offset=1)
    ...     other.fence()
    ...     other.local
    array([0., 1., 2., 0.])
    """

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        """Make one of the kind that the arguments are for."""
        if args or keywords:  # else one of our own makes it
            cls._check_kind()
        array = keywords.get("array", args[1] if len(args) > 1 else None)
        kind: type[Self] = cls
        if cls is Window and isinstance(array, (list, tuple)):
            kind = cls._joined()  # type: ignore[assignment]
        return super().__new__(kind)

    def __init__(
        self,
        comm: MPI.Comm,
        array: NDArray[ScalarT] | Sequence[NDArray[ScalarT]],
        access: Access | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        **how: Unpack[How],
    ) -> None:
        self._create(comm, lambda: arrays.window_array(array), access, timeout, how, proc_null)

    @overload
    @classmethod
    def allocate(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: type[ScalarT] | np.dtype[ScalarT],
        access: Access | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        hint: int | None = None,
        fixed_address: int | None = None,
        lazy: bool = True,
        hugepages: HugePages = False,
        **how: Unpack[HowAllocated],
    ) -> Window[ScalarT]: ...

    @overload
    @classmethod
    def allocate(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        access: Access | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        hint: int | None = None,
        fixed_address: int | None = None,
        lazy: bool = True,
        hugepages: HugePages = False,
        **how: Unpack[HowAllocated],
    ) -> Window[Any]: ...

    @classmethod
    def allocate(
        cls,
        comm: MPI.Comm,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = float,
        access: Access | None = None,
        timeout: float | None = None,
        *,
        proc_null: bool = False,
        hint: int | None = None,
        fixed_address: int | None = None,
        lazy: bool = True,
        hugepages: HugePages = False,
        **how: Unpack[HowAllocated],
    ) -> Window[Any]:
        """Return a window over new memory, filled with zeros.

        Parameters
        ----------
        comm, access, timeout, proc_null, how
            As for `Window`, but for `device`.
        shape, dtype
            As in numpy.zeros; the shape may differ between ranks.
        hint : int, optional
            Address near which this rank's memory is to lie.
        fixed_address : int, optional
            Address at which it is to lie exactly: a multiple of the page size, where
            nothing else is, up to the end of the last page. Ranks may differ.
        lazy : bool, optional
            Pages come on first touch, as far as the provider lets them. False: all
            are there from the start, or MemoryError is raised, if the machine or a
            memory cgroup of the job (Slurm, docker) has no room for them.
        hugepages : bool or "require", optional
            Huge pages from the system's pool, all there from the start and one more
            than the memory fills; if there are too few, ordinary memory, or with
            "require" MemoryError.
        device : str or int, optional
            "cuda:0", for one: the memory is on that device, in the context that CuPy or PyTorch
            have made there. Ranks may differ. A number is that of `Registration`.

        Raises
        ------
        TypeError, ValueError, MemoryError
            On every rank, if any rank's arguments do not fit.
        AddressError
            On every rank: what some rank wants at `fixed_address` cannot lie there.
        Unsupported, LibraryError, RmaError
            On every rank: a rank has no context on its device, no such device, or no CUDA; or the
            device has no memory left.

        Notes
        -----
        Collective, blocking; corresponds to MPI_Win_allocate, and ucp_mem_map with
        UCP_MEM_MAP_ALLOCATE (NONBLOCK: `lazy`, FIXED: `fixed_address`).
        Memory of a device is freed with the last array over it, once the window is closed.
        `win.memory.describe()` says what was granted. Memory that has an address or
        huge pages takes a file descriptor.

        Examples
        --------
        >>> with rmaext.Window.allocate(MPI.COMM_SELF, (2, 3), "i8") as other:
        ...     other[0, 1, 1:] = 7
        ...     other.local
        array([[0, 0, 0],
               [0, 7, 7]])
        """
        cls._check_kind()
        self = cls.__new__(cls)
        wish = Wish(hint, fixed_address, lazy, hugepages)
        device = how.get("device")
        if device is None or isinstance(device, str):
            how.pop("device", None)
        if isinstance(device, str):
            what = shape, dtype, device, wish
            make: Callable[[], Array] = functools.partial(_on_device, self, *what)
        else:
            self._wish = wish
            make = functools.partial(node.empty, shape, dtype, **wish._asdict())
        self._create(comm, make, access, timeout, cast("How", how), proc_null)
        return self

    # -- creation ----------------------------------------------------------------

    @classmethod
    def _check_kind(cls) -> None:
        if cls._made_by:
            raise TypeError(f"a {cls.__name__} is made by {cls._made_by}")

    def _create(
        self,
        comm: MPI.Comm,
        make: Callable[[], Array],
        access: Access | None,
        timeout: float | None,
        how: How | None = None,
        proc_null: bool = False,
    ) -> None:
        if hasattr(self, "_group"):
            raise RuntimeError("this window was made before; make another one")
        self._closed = True  # until it is whole
        self._null = _PROC_NULL if proc_null else None
        self._comm = comm
        self._group = group = Group.of(comm)
        self._region = region = self._new_region(group)

        def mine() -> tuple[Array, int]:
            self._timeout = group.timeout if timeout is None else timeout_seconds(timeout)
            array = make()
            if not isinstance(proc_null, bool):
                raise TypeError(f"proc_null={proc_null!r}: must be True or False")
            region.registration = Registration._of(how or {})
            return array, arrays.access_bits(access, array.flags.writeable)

        self._name = "not made"  # until all agree
        try:
            with group.collective(region.creation, group.windows + 1):
                if group.controls is None:
                    group.controls = Controls(group, _hidden_window)
                try:
                    region.exchange(mine)
                    self._block = block = group.controls.take()
                except Exception as exc:
                    # if all ranks have failed, no rank has a window with our key in it
                    if group.meetings.all_have(exc):
                        region.release()
                    raise
                # What fails from here on (no memory is left) fails on this rank only. The others
                # may write to its memory, so that stays registered.
                group.meetings.alone = True
                self._name = group.next_name()
                region.connect()
                far = region.fabric is not None  # else no message names it
                self._adopt(group.token(self._name) if far else _NO_TOKEN, block)
                lib.rmaext_window_open(self._handle)
                self._file = storage.begin(self)
                group.join()
                group.meetings.venue.windows[self._name] = block
                lifetime.on_end(self)
                group.meetings.alone = False
            self._closed = False
        except BaseException as exc:
            group.meetings.abandoned.abandon_window(self._name, exc)  # if the other ranks have it
            raise

    def _new_region(self, group: Group) -> Region:
        return Region(group)

    def _adopt(self, token: bytes, block: Block | None) -> None:
        """Make the C window over the region."""
        region = self._region
        self._fabric = region.fabric
        self._array = region.array
        self._records, self._routes, self._maps = region.records, region.routes, region.maps
        self._handle = region.window(self._timeout, token, block)
        self._dtype = self._array.dtype
        self._stride = self._dtype.itemsize
        self._sizes = elements(self._records.size, self._dtype.itemsize)
        self._atomic_type = arrays.atomic_type(self._dtype)
        writer.window(self)
        self._mark_slow()
        self._bind_plain()

    def _bind_plain(self) -> None:
        """Let the C methods carry operations out where they can."""
        self._shapes = one_of(self._records.shape)
        address = int(ffi.cast("uintptr_t", self._handle))
        meetings, name = self._group.meetings, self._name
        calls = (meetings.venue.address, name) if isinstance(name, int) else (0, 0)
        how = (self._dtype, self._atomic_type, self._fabric, meetings, *calls)
        self._bind(self._handle, address, *how)

    # -- what it is ----------------------------------------------------------------

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: NumPy would make an array of one Python object of it."""
        text = f"window {self._name} is no array: win.local is this rank's memory, and win[rank] a"
        raise TypeError(f"{text} copy of a rank's")

    @property
    def local(self) -> NDArray[ScalarT]:
        """The array of this rank. Local.

        `win.local[i] += 1` is an ordinary access: for an update that is atomic
        against the other ranks', use `win.fetch_add(1, rank, i)` on the own rank.

        A window that is closed keeps no memory: this is then the array for as long as the
        program itself holds it, and raises ClosedError after that. Of a shared window only rank
        0 has it then: the other ranks' arrays end with the window.
        """
        array, left = self._array, self._left
        if left is None:
            return self._device_array() if isinstance(array, DeviceArray) else array
        there = left()
        if there is None:
            text = f"local: window {self._name} is closed and keeps no memory: take the array, "
            text += "`array = win.local`, before"
            raise ClosedError(errno.ESHUTDOWN, text, call="local")
        return there

    @local.setter
    def local(self, array: NDArray[ScalarT]) -> None:
        arrays.only_itself(array, self.local, "local")

    @told
    def local_as(self, library: ArrayLibrary) -> Any:
        """Return this rank's memory on a device as an array of a library.

        Parameters
        ----------
        library : {"cupy", "torch", "numba"}

        Returns
        -------
        cupy.ndarray, torch.Tensor or numba.cuda.devicearray.DeviceNDArray
            Over the memory itself. It keeps memory of `Window.allocate`.

        Raises
        ------
        ValueError, ImportError
            There is no such library known, or it is not installed.
        Unsupported
            The memory is the host's: `win.local` is a NumPy array.
        ClosedError

        Notes
        -----
        Local. `cupy.asarray`, `torch.from_dlpack` or `numba.cuda.as_cuda_array` of `win.local`.

        Examples
        --------
        >>> win.local_as("torch")  # of a window on the host
        Traceback (most recent call last):
            ...
        rmaext.errors.Unsupported: ...
        """
        self._check_open("local_as")
        if not isinstance(self._array, DeviceArray):
            text = f"local_as: window {self._name}: its memory is the host's: win.local is a NumPy "
            text += "array, of which torch.from_numpy makes a tensor"
            raise Unsupported(errno.EOPNOTSUPP, text, call="local_as")
        from .._memory import device_memory

        return device_memory.array_of(self._device_array(), library)

    def _device_array(self) -> Any:
        """Return the array on a device that the window was made over."""
        it: Any = self._array
        return it.given

    @property
    def comm(self) -> MPI.Comm:
        """The communicator that was given."""
        return self._comm

    @property
    def dtype(self) -> np.dtype[ScalarT]:
        """Of the elements, the same on all ranks."""
        return self._dtype

    @property
    def fabric(self) -> Fabric | None:
        """The endpoint in use; None where all routes are direct."""
        return None if self._fabric is None else self._fabric.public

    @property
    def timeout(self) -> float:
        """Seconds without progress after which an operation raises RmaTimeout; 1e9 for no limit."""
        return self._timeout

    @property
    def closed(self) -> bool:
        """Whether operations raise ClosedError."""
        return self._closed

    @told
    def size(self, rank: int) -> int:
        """Return the number of elements on a rank. Local.

        Parameters
        ----------
        rank : int

        Returns
        -------
        int
            Elements, of all dimensions together.

        Raises
        ------
        BoundsError
            The window does not have that rank.

        Examples
        --------
        >>> win.size(0)
        10
        """
        return self._sizes[self._rank(rank, "size")]

    @told
    def peer_view(self, rank: int) -> NDArray[ScalarT]:
        """Return the memory of a rank of this node as an array, without a copy.

        Returns
        -------
        numpy.ndarray
            In that rank's shape; read-only where the window allows origins no
            writing. Let go of it before the window is closed: the memory may
            then become part of another array of that rank, which writing through
            the view would change.

        Raises
        ------
        NotLocalError
            The route to that rank is not "direct".
        AccessError
            The window allows origins no reading.

        Notes
        -----
        Local; corresponds to MPI_Win_shared_query. Accesses through it are
        ordinary loads and stores: no atomics, and no order but that which
        `fence` or other synchronisation gives.

        Examples
        --------
        >>> view = win.peer_view(0)
        >>> view[2] = 5  # an ordinary store
        >>> win.get(0, 0, 4)
        array([0., 0., 5., 0.])
        """
        self._check_open("peer_view")
        number = self._rank(rank, "peer_view")
        where = f"peer_view: window {self._name}, rank {number}"
        if self._routes[number] != lib.RMAEXT_DIRECT:
            text = f"{where}: its route is {self.route(number)}, not direct: use get, "
            text += "or memory of Window.allocate or rmaext.empty, for ranks of this node"
            raise NotLocalError(errno.EREMOTE, text, call="peer_view", rank=number)
        record = self._records[number]
        if not record.access & lib.RMAEXT_READ:
            text = f"{where}: the window there allows no reading: make it with access='rw'"
            raise AccessError(errno.EACCES, text, call="peer_view", rank=number)
        writeable = bool(record.access & lib.RMAEXT_WRITE)
        if number == self._group.rank:
            view = self._array.view()
        elif not self._maps[number]:
            view = np.empty(record.shape, self._dtype)
        else:
            # stays mapped until the process ends
            data = memoryview(ffi.buffer(ffi.cast("char *", self._maps[number]), record.size))
            data = data if writeable else data.toreadonly()  # which NumPy cannot undo
            view = np.frombuffer(data, self._dtype).reshape(record.shape)
        view.flags.writeable = writeable
        return view

    @told
    def connect(self, ranks: Iterable[int] | None = None) -> None:
        """Connect to ranks ahead of time, to all by default.

        The first operation on a rank that is reached by the fabric makes a
        connection, which takes 25 to 90 ms; this makes them all at once, for
        all windows of this process. Ranks that are reached by memory need none.

        Raises
        ------
        BoundsError, RmaTimeout, PeerLostError

        Notes
        -----
        Local, blocking.

        Examples
        --------
        >>> win.connect()  # to all ranks; none is reached by the fabric here
        """
        self._check_open("connect")
        numbers = range(len(self._sizes)) if ranks is None else map(operator.index, ranks)
        wanted = {self._rank(rank, "connect") for rank in numbers if rank != self._null}
        # updates on route cma go by the fabric, too
        far = [rank for rank in sorted(wanted) if self._routes[rank] != lib.RMAEXT_DIRECT]
        if far:
            self._group.network().connect(far)

    def check(self, code: int) -> None:
        """Raise what a code that a function of `rmaext.jit` returned stands for, unless 0.

        Parameters
        ----------
        code : int
            0, or negative.

        Raises
        ------
        RmaError
            Or a class of its, as the operation of the same name raises.

        Notes
        -----
        Local. In the thread that made the call: the details are kept there.

        Examples
        --------
        >>> win.check(0)
        """
        if code:
            raise from_code(code, f"window {self._name}")


def _on_device(window: Window[Any], *what: Any) -> Array:
    """Return new memory of a device, within the window's time limit; see device_memory.empty."""
    from .._memory import device_memory  # late: most programs have none

    return device_memory.empty(*what, window._timeout)  # type: ignore[call-arg]


def _hidden_window(region: Region, number: int) -> Window[Any]:
    """Return a window over control blocks. It has no control block; `Controls` closes it."""
    window: Window[Any] = Window.__new__(Window)
    window._group, window._region = region.group, region
    window._comm, window._name = region.group.comm, -1 - number
    window._timeout = timeout_seconds(None)
    window._adopt(region.group.token(number, b"control"), None)
    lifetime.on_end(window)
    window._closed = False
    return window
