# SPDX-License-Identifier: BSD-3-Clause
"""`Array`: an array of N dimensions over all ranks, a block on each, read and written by any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from os import PathLike

from mpi4py import MPI

from ..._comm.group import together
from ..._runtime.reports import dtype_name
from .._agreement import agreed
from .._device import OnDevice
from . import files
from .ghosts import Ghosts
from .held import Splits, Widths
from .reductions import Reduced

__all__ = ["Array"]


class Array(Reduced):
    """An array over all ranks: each holds a block of it, and reads, writes and updates any part.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Intracommunicator whose ranks hold the blocks.
    shape : int or tuple of int
        Of the whole. Any number of axes, and of elements, none included.
    dtype : data-type, optional
        What windows take: all without Python objects, records too.
    grid : int or tuple of int, optional
        How many blocks there are along each axis; 0 is to be chosen. By default as
        MPI_Dims_create chooses, more blocks along longer axes. The product may be less than
        the number of ranks: the last ones have no block then.
    splits : sequence of (sequence of int or None), optional
        For each axis where it is cut, as for numpy.split; None is to be cut evenly. By default
        the lengths of blocks along an axis differ by one at most, as of numpy.array_split.
    ghosts : int or tuple of int, optional
        How many cells of its neighbours each block is surrounded by, along each axis.
    periodic : bool or tuple of bool, optional
        Whether an axis has no ends: its last elements are neighbours of the first.
    timeout : float, optional
        Seconds without progress after which a call raises `RmaTimeout`; by default
        RMAEXT_TIMEOUT, or 60.
    device : str, optional
        "cuda:0", for one: this rank's block lies on that device; ranks may differ. `local` and
        `padded` are arrays of CuPy or PyTorch then, as of `Window.allocate`.

    Raises
    ------
    TypeError, ValueError, MemoryError
        On every rank, if any rank's arguments do not fit, or differ; the message names the ranks.
    SyncError, PeerLostError, RmaTimeout
        The ranks are in different collective calls, or one is lost.

    Notes
    -----
    Collective, blocking. The elements are zero. Rank r has the block of the grid that
    `numpy.unravel_index(r, grid)` says. It corresponds to NGA_Create of Global Arrays, and to an
    MPI window with a subarray datatype for each target.

    **Patches.** `field[key]` reads and `field[key] = values` writes what the key means in the whole
    array: integers, slices with any step, ... and None, not index arrays, for which there are
    `points` and `add_points`. Any rank may, at any time, and nobody else does anything for it: it
    is one operation for each rank that holds a part. What is read is a new array, or an element;
    `numpy.asarray(field)` is `field[...]`, on one rank. Values are broadcast. What is written is
    in place after `flush`, and `fence` tells all.

    **Who sees what.** Who reads elements while another rank writes them may see some old and some
    new ones. Nothing is atomic but `add`, `add_points` and `fetch_add`, element by element,
    against each other. An array has no locks.

    **Who waits for whom.** `exchange` waits for the neighbours; `fence`, `sum`, `mean`, `max`,
    `min`, `redistribute`, `like`, `copy_to`, `save`, `load` and `close` are collective, and wait
    for all. All else waits for nobody. One thread at a time calls `exchange` and what is
    collective.

    **Memory.** A rank has its block with its ghosts, and room for two times the ghosts. Tables grow
    with the blocks along each axis, not with the ranks.

    **On a device.** Kernels that have written to the own block have to be waited for before others
    read it, by `exchange` too, which copies by way of the host. What is read of any rank, sums and
    the like are arrays of the host; values may lie on a device.

    **Failure.** What touches elements of a rank that is lost is PeerLostError; other elements are
    read, written and exchanged as before. So is an `exchange` next to that rank; and one next to
    a rank that gave up then, after the time limit. What is collective is PeerLostError on
    all, and the array is closed then.

    Examples
    --------
    >>> from rmaext.containers import Array
    >>> with Array(MPI.COMM_SELF, (4, 6)) as field:
    ...     field[1:3, ::2] = [1, 2, 3]
    ...     field.add((2, slice(4)), 10.0)
    ...     field.fence()
    ...     field[2], field.sum()
    (array([11., 10., 12., 10.,  3.,  0.]), np.float64(52.0))
    """

    # -- ghosts ----------------------------------------------------------------------

    def exchange(self) -> None:
        """Fill the ghosts with what the neighbours have, corners too.

        Raises
        ------
        PeerLostError
            A neighbour is lost, or one does not come within the time limit after any rank was.
        RmaTimeout, ClosedError

        Notes
        -----
        All ranks call it, equally often. It waits for the ranks that have some of this rank's
        ghosts, each until it has begun its own call, and is no barrier: others may be far behind.
        A neighbour gets what `local` holds when this rank calls it, corners with it: in one
        message, or if it is more than 32 KiB, by one write and a message. The ghosts of this rank
        change within its own call only, so there is nothing to be done before the next one, nor
        before `local` is changed again. Interrupted by Ctrl-C it may be called again: it goes on.

        Corresponds to MPI_Neighbor_alltoallw, and GA_Update_ghosts.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4, ghosts=1, periodic=True) as field:
        ...     field.local[:] = [1, 2, 3, 4]
        ...     field.exchange()
        ...     field.padded
        array([4., 1., 2., 3., 4., 1.])
        """
        ghosts = self._exchanges()
        ghosts.begin()
        ghosts.end()

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Begin an `exchange`, which ends where the block does: compute what needs no ghosts there.

        Raises
        ------
        PeerLostError, RmaTimeout, ClosedError
            At the end of the block, as `exchange`.

        Notes
        -----
        As `exchange`; it waits for nobody at its beginning. What is sent is what `local` holds
        there; the block may change it. The ghosts may be read after the block only. After an
        exception in the block the exchange has not ended: the next call ends it, and does not send
        again.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 4, ghosts=1, periodic=True) as field:
        ...     field.local[:] = [1, 2, 3, 4]
        ...     with field.exchanging():
        ...         inner = field.local[:-2] + field.local[2:]
        ...     inner, field.padded[[0, -1]]
        (array([4., 6.]), array([4., 1.]))
        """
        ghosts = self._exchanges()
        ghosts.begin()
        yield
        ghosts.end()

    def _exchanges(self) -> Ghosts:
        if self._ghosts is None or self.closed:
            self._win.sync()  # raises if it is closed
            padded = self.padded if self._device is None else OnDevice(self._win)
            self._ghosts = Ghosts(padded, self._windows[1], self._blocks)
        return self._ghosts

    # -- collective ------------------------------------------------------------------

    def redistribute(self, grid: Widths = None, splits: Splits = None) -> Array:
        """Return the same array in other blocks.

        Parameters
        ----------
        grid, splits
            As for `Array`.

        Returns
        -------
        Array
            New, with the same ghosts, which are zero; to be closed.

        Raises
        ------
        TypeError, ValueError, MemoryError
            As `Array`, on every rank.
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking: a new array, and `copy_to`. As between pencils for a Fourier
        transform. Corresponds to MPI_Alltoallw.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6), grid=(0, 1)) as rows:
        ...     with rows.redistribute(grid=(1, 0)) as columns:
        ...         columns.where
        (slice(0, 4, None), slice(0, 6, None))
        """
        self._win.sync()  # raises if it is closed
        how = (grid, splits, *self._plan[2:], self._timeout)

        def make() -> Array:
            made = Array(self._comm, self.shape, self.dtype, *how, device=self._device)
            self.copy_to(made)
            return made

        return together(self._comm, "Array.redistribute", make)

    @classmethod
    def like(cls, field: Array) -> Array:
        """Return a new array of zeros with the shape, dtype, blocks and ghosts of another.

        Parameters
        ----------
        field : Array

        Returns
        -------
        Array

        Raises
        ------
        TypeError
            It is no Array.
        ValueError, MemoryError, PeerLostError, SyncError, RmaTimeout
            As `Array`, on every rank, as when the ranks name different fields.

        Notes
        -----
        Collective, blocking.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, (4, 6)) as field, Array.like(field) as new:
        ...     new
        <rmaext.containers.Array: shape (4, 6), float64, in a grid of (1, 1) blocks on 1 ranks>
        """
        if not isinstance(field, Array):
            raise TypeError(f"Array.like: {field!r:.60} is no Array")
        splits = [cut[:-1] for cut in field._plan.cuts]
        how = (None, splits, *field._plan[2:], field._timeout)
        return cls(field.comm, field.shape, field.dtype, *how, device=field._device)

    def copy_to(self, other: Array) -> None:
        """Copy all elements to another array of the same shape, whatever its blocks are.

        Parameters
        ----------
        other : Array
            Of the same shape and dtype, over the same ranks.

        Raises
        ------
        TypeError, ValueError
            It is no such array.
        SyncError
            It is one on some ranks only, or not the same array on all. Nothing is copied.
        PeerLostError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking: each rank puts its block, an operation for each block there that it
        meets. What any rank has written before its call is copied, and all of it is in place when
        a rank returns; ghosts stay as they are.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 3) as field, Array.like(field) as new:
        ...     field[:] = [1, 2, 3]
        ...     field.copy_to(new)
        ...     new.local
        array([1., 2., 3.])
        """
        try:
            self._compare(other)
        except (TypeError, ValueError):  # of all ranks; SyncError where others begin to copy
            agreed(self._comm, "Array.copy_to", lambda: self._compare(other))

        def copy() -> None:
            self.fence()
            other.fence()  # the same one on all ranks; nothing that was written there comes late
            block = self._block()
            if block.size:
                other[self.where] = block
            other.fence()

        together(self._comm, "Array.copy_to", copy)

    def _compare(self, other: Array) -> None:
        """Raise what `copy_to` does of an array that does not fit."""
        if not isinstance(other, Array):
            raise TypeError(f"Array.copy_to: {other!r:.60} is no Array")
        other._win.sync()  # raises if it is closed
        if (other.shape, other.dtype) != (self.shape, self.dtype):
            text = f"Array.copy_to: {other!r} is no array of shape {self.shape} and "
            raise ValueError(text + dtype_name(self.dtype))
        if MPI.Comm.Compare(other.comm, self._comm) not in (MPI.IDENT, MPI.CONGRUENT):
            raise ValueError("Array.copy_to: the other array is over other ranks")

    # -- files -----------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the array to a file, from which any number of ranks may load it.

        Parameters
        ----------
        path : path
            Ending in .npy, .zarr, .h5 or .hdf5, which says what is written; the same on all ranks,
            which see the same files. A .npy is what numpy.load reads. HDF5 has a dataset "array".

        Raises
        ------
        ValueError, ImportError
            There is no such kind of file, or its package is missing (zarr, h5py), on every rank.
        OSError
            As when a disk is full: on every rank, which ones have failed in its message.
        PeerLostError, SyncError, RmaTimeout, ClosedError

        Notes
        -----
        Collective, blocking. What any rank has written before its call is in the file. Each rank
        reads and writes pieces of 16 MiB or less, one after another, each in one piece of the
        file: so no rank holds the whole. h5py writes a file from one process, rank 0. The name is
        that of the old file, if there is one, until all is written. Where stderr is a
        terminal rank 0 shows how far it is.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> with Array(MPI.COMM_SELF, 3) as field:
        ...     field.save("/tmp/field.npy")
        >>> np.load("/tmp/field.npy")
        array([0., 0., 0.])
        """

        def saved() -> None:
            self.fence()
            files.save(self, path, self._timeout)

        together(self._comm, "Array.save", saved)

    @classmethod
    def load(
        cls,
        comm: MPI.Comm,
        path: str | PathLike[str],
        grid: Widths = None,
        splits: Splits = None,
        ghosts: Widths = None,
        periodic: bool | Sequence[bool] = False,
        timeout: float | None = None,
    ) -> Array:
        """Return a new array with what a file holds.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm
        path : path
            Of a file that `save` or another program has written: .npy in C or Fortran order, .zarr
            that is an array, .h5 or .hdf5 with a dataset "array", or only one.
        grid, splits, ghosts, periodic, timeout
            As for `Array`.

        Returns
        -------
        Array
            Of the shape and dtype of what the file holds.

        Raises
        ------
        ValueError, ImportError, OSError
            As `save`, on every rank.
        TypeError, MemoryError, PeerLostError, SyncError, RmaTimeout
            As `Array`.

        Notes
        -----
        Collective, blocking. As for `save`: each rank reads its pieces of the file, and no rank
        holds the whole.

        Examples
        --------
        >>> from rmaext.containers import Array
        >>> np.save("/tmp/field.npy", np.arange(3))
        >>> with Array.load(MPI.COMM_SELF, "/tmp/field.npy", ghosts=1) as field:
        ...     field.padded
        array([0, 0, 1, 2, 0])
        """

        def make() -> Array:
            shape, dtype = files.header(comm, path, timeout)
            made = cls(comm, shape, dtype, grid, splits, ghosts, periodic, timeout)
            with ExitStack() as stack:  # after an error no rank waits for others at its end
                stack.enter_context(made)
                files.load(made, path, timeout)
                stack.pop_all()
            return made

        return together(comm, "Array.load", make)
