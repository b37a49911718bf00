# SPDX-License-Identifier: BSD-3-Clause
"""Exceptions: each derives from `RmaError` and from the builtin that one would expect."""

__all__ = [
    "AccessError",
    "AddressError",
    "AlignmentError",
    "AttachError",
    "BoundsError",
    "BusyError",
    "CapacityError",
    "ClosedError",
    "FlagsError",
    "GrantError",
    "KeyRecordError",
    "KeyRejectedError",
    "LibraryError",
    "NoKeyError",
    "NoProviderError",
    "NotLocalError",
    "PeerLostError",
    "RmaError",
    "RmaTimeout",
    "SyncError",
    "TooSmallError",
    "Unsupported",
]


class RmaError(OSError):
    """An operation or a set-up step failed. All other exceptions of rmaext derive from it.

    Attributes
    ----------
    errno : int
        Positive libfabric or system error number.
    call : str
        The call that failed: an fi_* function or an operation of rmaext.
    rank : int or None
        Target rank, where there is one.
    detail : str
        What libfabric, the provider or the check had to say.
    """

    def __init__(
        self,
        errno: int,
        message: str,
        *,
        call: str = "",
        rank: int | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(errno, message)
        self.call = call
        self.rank = rank
        self.detail = detail or message

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errno, self.strerror), vars(self)


class BoundsError(RmaError, IndexError):
    """A rank, offset or slot is outside the window. Nothing was sent.

    The message names the window, the rank, the offset and the length, in elements.
    """


class AccessError(RmaError, PermissionError):
    """The window does not allow the access, or the buffer is read-only. Nothing was sent.

    Origins may do what `access` says: give the window more rights, or do what they allow.
    """


class AddressError(RmaError, ValueError):
    """Memory cannot lie at the `fixed_address` that was asked for.

    Something else is there, or the address is no multiple of the page size.
    """


class AlignmentError(RmaError, ValueError):
    """An update of an element whose address is no multiple of what its dtype needs.

    Fields of records are aligned by `numpy.dtype(..., align=True)`.
    """


class AttachError(RmaError, ValueError):
    """Memory to be attached overlaps other, or memory to be detached is not attached."""


class SyncError(RmaError, RuntimeError):
    """A synchronisation call, or a request, is out of its order.

    The ranks are in different collective calls; there is an `unlock` without a `lock`, a
    `complete` without a `start`, and so on; or a request was freed before. The message says
    what each rank called.
    """


class ClosedError(RmaError, ValueError):
    """The window is closed, or was the parent's of this forked process."""


class Unsupported(RmaError, NotImplementedError):  # noqa: N818
    """The provider cannot do this."""


class RmaTimeout(RmaError, TimeoutError):  # noqa: N818
    """No progress within the time limit."""


class PeerLostError(RmaError, ConnectionError):
    """The target process, or the connection to it, is gone. What was in flight may be lost.

    Attributes
    ----------
    ranks : tuple of int
        Of the communicator, where a wait for all of them found them gone.
    """

    ranks: tuple[int, ...] = ()
    _explained = False  # the text has what ended them


class KeyRecordError(RmaError, ValueError):
    """What a rank sent when the window was made, or a ticket, cannot be decoded."""


class NoProviderError(RmaError, LookupError):
    """There is no libfabric provider that fits; the message lists those there are.

    `python -m rmaext info` says what each can do.
    """


class NotLocalError(RmaError, ValueError):
    """The memory of that rank cannot be mapped here; `Window.route` tells how it is reached."""


class LibraryError(RmaError, LookupError):
    """No libfabric could be opened; RMAEXT_LIBFABRIC may name one."""


class NoKeyError(RmaError, ValueError):
    """Another registration of this process has the key that was asked for (-FI_ENOKEY)."""


class KeyRejectedError(RmaError, ValueError):
    """The provider chooses keys itself, or takes shorter ones only (-FI_EKEYREJECTED)."""


class FlagsError(RmaError, ValueError):
    """The provider does not know what a registration asks for (-FI_EBADFLAGS)."""


class TooSmallError(RmaError, ValueError):
    """There is less room than what is to be read takes (-FI_ETOOSMALL)."""


class BusyError(RmaError, RuntimeError):
    """Somebody else still uses what is to be given up (-FI_EBUSY)."""


class CapacityError(RmaError, RuntimeError):
    """A container is full, or a value is longer than it takes. Nothing was changed.

    Make it with a larger `capacity`, or take something out first.
    """


class GrantError(BusyError):
    """A window is to be closed while its grants are not revoked: it stays open."""
