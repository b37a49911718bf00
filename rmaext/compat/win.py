# SPDX-License-Identifier: BSD-3-Clause
"""The class that stands in for MPI.Win."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec

from mpi4py import MPI

from .._comm.group import together
from .._memory.devices import DeviceArray
from .._native import cmethods
from .._record import tracing
from . import attributes, creation, requests, transfer
from .creation import State
from .epochs import Epochs
from .errors import RAISED, error, report, translated
from .numbers import integer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["WIN_NULL", "Win"]

P = ParamSpec("P")

_NULL = attributes.MpiWin()
_FLAVORS = {
    MPI.WIN_FLAVOR_CREATE: "created",
    MPI.WIN_FLAVOR_ALLOCATE: "allocated",
    MPI.WIN_FLAVOR_SHARED: "shared",
    MPI.WIN_FLAVOR_DYNAMIC: "dynamic",
}


class _Nothing:
    """In place of what a null window lacks."""

    def __getattr__(self, name: str) -> NoReturn:
        raise error(MPI.ERR_WIN, "the window is MPI.WIN_NULL, or was freed")


def ending(
    method: Callable[Concatenate[Win, P], None],
) -> Callable[Concatenate[Win, P], None]:
    """Let a method that ends something do nothing once the interpreter itself ends.

    Programs call these in `__del__`: so late that modules have lost their names, and all ranks
    have come to their end.
    """
    call = translated(method)

    @functools.wraps(method)
    def unless_over(self: Win, /, *args: P.args, **keywords: P.kwargs) -> None:
        if not self._is_over():
            call(self, *args, **keywords)

    return unless_over


class Win(cmethods.Win):
    """Memory of all ranks of a communicator: mpi4py's MPI.Win, over `rmaext.Window`.

    Parameters
    ----------
    win : Win, optional
        Another object of the same window; by default that of none.

    Notes
    -----
    Names, arguments, results and errors are those of mpi4py 4.1, whose manual describes
    them; docs/guides/drop-in.md has what differs. No operation waits for its target
    to call MPI.

    Threads: any number of them may call operations at once. An epoch or a lock is the
    process's, as in MPI: all may use it, and one of them ends it. Of collective calls a
    communicator takes one at a time; another thread's is MPI.ERR_OTHER.

    Examples
    --------
    >>> other = rmaext.compat.Win.Allocate(16, comm=MPI.COMM_SELF)
    >>> other.Lock(0)
    >>> other.Put(np.ones(2), 0)
    >>> other.Unlock(0)
    >>> np.frombuffer(other.tomemory()), other.Free()
    (array([1., 1.]), None)
    """

    _state: State | None
    _window: Any
    _units: Any
    _epochs: Any
    _attributes: Any
    _near: frozenset[int]
    _finalizing = staticmethod(sys.is_finalizing)

    def __new__(cls, win: Any = None) -> Self:
        """Return another object of a window."""
        if win is not None and not isinstance(win, Win):
            text = f"Argument 'win' has incorrect type (expected Win, got {type(win).__name__})"
            raise TypeError(text)
        self = super().__new__(cls)
        self._adopt(None if win is None else win._state)
        return self

    def _adopt(self, state: State | None) -> None:
        """Be the window of a state; of None, be null."""
        if state is None:
            nothing = _Nothing()
            # no signal handler runs between these lines: else `Free` could not be called again
            self._state = None
            self._window = self._units = self._epochs = self._attributes = nothing
            self._end()
            return
        self._state = state
        self._window, self._units = state.window, state.units
        self._epochs, self._attributes = state.epochs, state.attributes
        epochs = state.epochs
        self._near = state.near
        # what is nowhere, or on a device, cannot be shown; a dynamic window has no own memory
        base = state.attributes.fixed[MPI.WIN_BASE]
        shows = bool(base) and not isinstance(state.window._array, DeviceArray)
        self._be(shows, state.window, state.units, epochs.access, epochs.passive)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Win):
            return NotImplemented
        return self._state is other._state

    def __ne__(self, other: object) -> bool:
        if not isinstance(other, Win):
            return NotImplemented
        return self._state is not other._state

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self._state is not None

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._state is None:
            return "WIN_NULL" if self is WIN_NULL else (type(self), (WIN_NULL,))
        raise ValueError(f"cannot pickle '{type(self).__name__}' object")

    def __repr__(self) -> str:
        kind = f"{type(self).__module__.partition('.')[0]}.compat.{type(self).__qualname__}"
        if self._state is None:
            return f"<{kind}: null>"
        memory = self._state.attributes
        flavor = _FLAVORS.get(memory.fixed[MPI.WIN_CREATE_FLAVOR], "unknown")
        words = [flavor, f"displacement unit {memory.fixed[MPI.WIN_DISP_UNIT]}"]
        words += [f"name {memory.name!r}"] * bool(memory.name)
        return f"<{kind}: {', '.join(words)}, over {self._window!r}>"

    # -- handles ---------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """A number that `fromhandle` takes; MPI does not know it."""
        return _NULL.handle if self._state is None else self._state.handle

    @classmethod
    def fromhandle(cls, handle: int) -> Win:
        """Create object from handle."""
        win = Win()
        win._adopt(State.of(integer(handle, 64)))
        return win

    def toint(self) -> int:
        """Translate object to integer handle."""
        return _NULL.toint() if self._state is None else self._state.handle

    @classmethod
    def fromint(cls, arg: int, /) -> Win:
        """Translate integer handle to object."""
        return Win() if integer(arg, 64) == _NULL.toint() else cls.fromhandle(arg)

    def py2f(self) -> int:
        """Return what `f2py` takes; Fortran does not know it."""
        return _NULL.py2f() if self._state is None else self._state.handle

    @classmethod
    def f2py(cls, arg: int) -> Win:
        """Return the window of which `py2f` returned a number."""
        return Win() if integer(arg, 64) == _NULL.py2f() else cls.fromhandle(arg)

    # -- creation --------------------------------------------------------------------

    @classmethod
    def _make(cls, comm: MPI.Intracomm, make: Callable[[], State]) -> Self:
        def made() -> Any:
            self = cls.__new__(cls)
            self._adopt(make())
            return self

        win: Self = together(comm, "creation of a compat.Win", made, MPI.Exception)
        return win

    @classmethod
    def Create(
        cls,
        memory: Any,
        disp_unit: int = 1,
        info: MPI.Info = MPI.INFO_NULL,
        comm: MPI.Intracomm = MPI.COMM_SELF,
    ) -> Self:
        """Create a window over memory of this rank's, None or MPI.BOTTOM for none."""
        return cls._make(comm, lambda: creation.create(memory, disp_unit, info, comm))

    @classmethod
    def Allocate(
        cls,
        size: int,
        disp_unit: int = 1,
        info: MPI.Info = MPI.INFO_NULL,
        comm: MPI.Intracomm = MPI.COMM_SELF,
    ) -> Self:
        """Create a window over new memory."""
        return cls._make(comm, lambda: creation.allocate(size, disp_unit, info, comm))

    @classmethod
    def Allocate_shared(
        cls,
        size: int,
        disp_unit: int = 1,
        info: MPI.Info = MPI.INFO_NULL,
        comm: MPI.Intracomm = MPI.COMM_SELF,
    ) -> Self:
        """Create a window over new memory that all ranks have mapped."""
        return cls._make(comm, lambda: creation.allocate_shared(size, disp_unit, info, comm))

    @classmethod
    def Create_dynamic(
        cls, info: MPI.Info = MPI.INFO_NULL, comm: MPI.Intracomm = MPI.COMM_SELF
    ) -> Self:
        """Create a window to which memory is attached later."""
        return cls._make(comm, lambda: creation.create_dynamic(info, comm))

    @translated
    def Free(self) -> None:
        """Free the window."""
        state = self._state
        if state is not None and state.over:
            return
        self._epochs.may_free()
        self._attributes.end(self)
        assert state is not None
        if state.window.closed:
            raise error(MPI.ERR_WIN, "the window was freed by another object of it")
        try:
            state.window.close()
        finally:
            if state.window.closed:  # not where the ranks are in different calls
                state.end()
                self._adopt(None)

    def free(self) -> None:
        """Call `Free` if not null."""
        if self:
            self.Free()

    def _is_over(self) -> bool:
        """Whether the interpreter ends, and with it all that is open. No name may be needed."""
        state = self._state
        return state is not None and state.over and self._finalizing()

    # -- memory ----------------------------------------------------------------------

    @translated
    def Attach(self, memory: Any) -> None:
        """Let other ranks reach some memory; of a dynamic window."""
        creation.attach(self._the_state(), memory)

    @translated
    def Detach(self, memory: Any) -> None:
        """Take memory from other ranks' reach; of a dynamic window."""
        creation.detach(self._the_state(), memory)

    @translated
    def Shared_query(self, rank: int) -> tuple[MPI.buffer, int]:
        """Return a rank's memory, where it is mapped here, and its displacement unit."""
        return creation.shared_query(self._the_state(), rank)

    @translated
    def tomemory(self) -> MPI.buffer:
        """Return this rank's memory."""
        self._the_state()
        return MPI.buffer.frombuffer(self)

    def _the_state(self) -> State:
        if self._state is None:
            raise error(MPI.ERR_WIN, "the window is MPI.WIN_NULL, or was freed")
        return self._state

    # -- info, group, attributes -------------------------------------------------------

    def Set_info(self, info: MPI.Info) -> None:
        """Set hints."""
        self._attributes.set_info(info)

    def Get_info(self) -> MPI.Info:
        """Return the hints in use."""
        found: MPI.Info = self._attributes.get_info()
        return found

    @property
    def info(self) -> MPI.Info:
        """Info hints."""
        return self.Get_info()

    @info.setter
    def info(self, value: MPI.Info) -> None:
        self.Set_info(value)

    def Get_group(self) -> MPI.Group:
        """Return the ranks of the window."""
        # a copy: the caller frees it
        return MPI.Group.Union(self._attributes.group, MPI.GROUP_EMPTY)

    @property
    def group(self) -> MPI.Group:
        """Group."""
        return self.Get_group()

    @property
    def group_size(self) -> int:
        """Group size."""
        return int(self._attributes.size)

    @property
    def group_rank(self) -> int:
        """Group rank."""
        return int(self._attributes.rank)

    @translated
    def Get_attr(self, keyval: int) -> Any:
        """Return an attribute; None: it is not set."""
        return self._attributes.get(keyval)

    @translated
    def Set_attr(self, keyval: int, attrval: Any) -> None:
        """Set an attribute."""
        self._attributes.set(self, keyval, attrval)

    @translated
    def Delete_attr(self, keyval: int) -> None:
        """Delete an attribute."""
        self._attributes.delete(self, keyval)

    @classmethod
    def Create_keyval(
        cls,
        copy_fn: Callable[[Win, int, Any], Any] | None = None,
        delete_fn: Callable[[Win, int, Any], None] | None = None,
        nopython: bool = False,
    ) -> int:
        """Return a new key of attributes. No window is ever copied."""
        return attributes.create_keyval(delete_fn, nopython)

    @classmethod
    def Free_keyval(cls, keyval: int) -> int:
        """Free a key of attributes."""
        return attributes.free_keyval(keyval)

    @property
    def attrs(self) -> tuple[int, int, int]:
        """Base address, size and displacement unit."""
        fixed = self._attributes.fixed
        return fixed[MPI.WIN_BASE], fixed[MPI.WIN_SIZE], fixed[MPI.WIN_DISP_UNIT]

    @property
    def flavor(self) -> int:
        """How it was created."""
        return int(self._attributes.fixed[MPI.WIN_CREATE_FLAVOR])

    @property
    def model(self) -> int:
        """Memory model."""
        return int(self._attributes.fixed[MPI.WIN_MODEL])

    # -- operations ------------------------------------------------------------------
    # Put, Get and so on are in csrc/python/compat/win.c, and come here with what is not plain.

    @translated
    def _Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        target_rank = integer(target_rank)
        self._enter("Put", target_rank)
        transfer.put(self, origin, target_rank, target)
        self._reach_self(target_rank)

    @translated
    def _Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        target_rank = integer(target_rank)
        self._enter("Get", target_rank)
        transfer.get(self, origin, target_rank, target)

    @translated
    def _Accumulate(
        self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM
    ) -> None:
        target_rank = integer(target_rank)
        self._enter("Accumulate", target_rank)
        transfer.accumulate(self, origin, target_rank, target, op)
        self._reach_self(target_rank)

    def _enter(self, call: str, rank: int) -> None:
        """Let an operation on a rank begin; C asks this of ranks that it does not know of yet."""
        self._epochs.enter(call, rank)

    def _reach_self(self, rank: int) -> None:
        """Flush to the own rank, where that is reached by network; see csrc/python/compat/win.c."""
        if rank == self._attributes.rank and rank not in self._near:
            self._window.flush(rank)

    @translated
    def _Get_accumulate(
        self,
        origin: Any,
        result: Any,
        target_rank: int,
        target: Any = None,
        op: MPI.Op = MPI.SUM,
    ) -> None:
        target_rank = integer(target_rank)
        self._enter("Get_accumulate", target_rank)
        transfer.get_accumulate(self, origin, result, target_rank, target, op)

    @translated
    def _Fetch_and_op(
        self,
        origin: Any,
        result: Any,
        target_rank: int,
        target_disp: int = 0,
        op: MPI.Op = MPI.SUM,
    ) -> None:
        target_rank = integer(target_rank)
        self._enter("Fetch_and_op", target_rank)
        transfer.fetch_and_op(self, origin, result, target_rank, target_disp, op)

    @translated
    def _Compare_and_swap(
        self,
        origin: Any,
        compare: Any,
        result: Any,
        target_rank: int,
        target_disp: int = 0,
    ) -> None:
        target_rank = integer(target_rank)
        self._enter("Compare_and_swap", target_rank)
        transfer.compare_and_swap(self, origin, compare, result, target_rank, target_disp)

    def _report(self, cause: BaseException) -> NoReturn:
        """Raise what MPI raises in place of an exception."""
        report(self, cause)

    @translated
    def _Rput(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        target_rank = integer(target_rank)
        self._epochs.enter_passive("Rput", target_rank)
        return requests.begun(transfer.put(self, origin, target_rank, target, True))

    @translated
    def _Rget(self, origin: Any, target_rank: int, target: Any = None) -> MPI.Request:
        target_rank = integer(target_rank)
        self._epochs.enter_passive("Rget", target_rank)
        return requests.begun(transfer.get(self, origin, target_rank, target, True))

    @translated
    def _Raccumulate(
        self, origin: Any, target_rank: int, target: Any = None, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        target_rank = integer(target_rank)
        self._epochs.enter_passive("Raccumulate", target_rank)
        begun = transfer.accumulate(self, origin, target_rank, target, op, True)
        return requests.begun(begun)

    @translated
    def _Rget_accumulate(
        self,
        origin: Any,
        result: Any,
        target_rank: int,
        target: Any = None,
        op: MPI.Op = MPI.SUM,
    ) -> MPI.Request:
        target_rank = integer(target_rank)
        self._epochs.enter_passive("Rget_accumulate", target_rank)
        begun = transfer.get_accumulate(self, origin, result, target_rank, target, op, True)
        return requests.begun(begun)

    # -- epochs ----------------------------------------------------------------------

    @ending
    def Fence(self, assertion: int = 0) -> None:
        """End an epoch of all ranks, and begin one. Collective."""
        self._epochs.fence(integer(assertion))

    @translated
    def Start(self, group: MPI.Group, assertion: int = 0) -> None:
        """Begin to access the ranks of a group."""
        self._epochs.start(group, integer(assertion))

    @ending
    def Complete(self) -> None:
        """End what `Start` began."""
        self._epochs.complete()

    @translated
    def Post(self, group: MPI.Group, assertion: int = 0) -> None:
        """Let the ranks of a group access this one."""
        self._epochs.post(group, integer(assertion))

    @translated
    def Wait(self) -> Literal[True]:
        """Wait until what `Post` began was ended by all."""
        if not self._is_over():
            self._epochs.wait()
        return True

    @translated
    def Test(self) -> bool:
        """Return whether what `Post` began was ended by all; then it is over."""
        return self._is_over() or bool(self._epochs.test())

    # what `translated` does, without the time that its call takes; nor may a handler raise
    # after it, when the lock is taken

    def Lock(self, rank: int, lock_type: int = MPI.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin to access a rank."""
        try:
            if not (type(rank) is type(lock_type) is type(assertion) is int):
                rank, lock_type, assertion = map(integer, (rank, lock_type, assertion))
            self._epochs.lock(rank, lock_type, assertion)
        except RAISED as exc:
            report(self, exc)

    # Unlock and Unlock_all are those of csrc/python/compat/win.c, which calls these.

    def _Unlock(self, rank: int) -> None:
        if self._is_over():
            return
        try:
            self._epochs.unlock(rank if type(rank) is int else integer(rank))
        except RAISED as exc:
            report(self, exc)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin to access all ranks, together with others."""
        try:
            self._epochs.lock_all(integer(assertion))
        except RAISED as exc:
            report(self, exc)

    @ending
    def _Unlock_all(self) -> None:
        self._epochs.unlock_all()

    def _unlock_anyway(self, *args: Any, **keywords: Any) -> None:
        """End what Unlock(rank) was to end, if it still goes on."""
        given = [*args, *keywords.values()]
        if len(given) == 1 and isinstance(self._epochs, Epochs) and not self._is_over():
            with suppress(TypeError, ValueError, OverflowError):
                self._epochs.unlock_anyway(integer(given[0]))

    def _unlock_all_anyway(self, *args: Any, **keywords: Any) -> None:
        """End what Unlock_all() was to end, if it still goes on."""
        wrong = args or keywords
        if not wrong and isinstance(self._epochs, Epochs) and not self._is_over():
            self._epochs.unlock_all_anyway()

    @ending
    def _Flush(self, rank: int) -> None:
        rank = integer(rank)
        self._epochs.enter_passive("Flush", rank)
        self._window.flush(rank)

    @ending
    def Flush_all(self) -> None:
        """Wait until all operations are complete at their targets."""
        self._epochs.enter_passive_all("Flush_all")
        self._window.flush()

    @ending
    def Flush_local(self, rank: int) -> None:
        """Wait until the buffers of all operations on a rank may be used again."""
        rank = integer(rank)
        self._epochs.enter_passive("Flush_local", rank)
        self._window.flush_local(rank)

    @ending
    def Flush_local_all(self) -> None:
        """Wait until the buffers of all operations may be used again."""
        self._epochs.enter_passive_all("Flush_local_all")
        self._window.flush_local()

    @ending
    def Sync(self) -> None:
        """Order accesses to this rank's memory."""
        self._window.sync()

    # -- errors ----------------------------------------------------------------------

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Win, int], None]) -> MPI.Errhandler:
        """Return a new error handler for windows."""
        return attributes.create_errhandler(errhandler_fn)

    @translated
    def Get_errhandler(self) -> MPI.Errhandler:
        """Return the error handler."""
        handler: MPI.Errhandler = self._attributes.get_errhandler()
        return handler

    @translated
    def Set_errhandler(self, errhandler: MPI.Errhandler) -> None:
        """Set the error handler."""
        self._attributes.set_errhandler(errhandler)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the error handler."""
        self._attributes.handle(self, integer(errorcode))

    # -- name ------------------------------------------------------------------------

    def Get_name(self) -> str:
        """Return the print name."""
        return _NULL.Get_name() if self._state is None else self._state.attributes.name

    def Set_name(self, name: str) -> None:
        """Set the print name."""
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}")
        self._the_state().attributes.name = name

    @property
    def name(self) -> str:
        """Print name."""
        return self.Get_name()

    @name.setter
    def name(self, value: str) -> None:
        self.Set_name(value)


WIN_NULL = Win()


tracing.follow(Win, cmethods.Win)
