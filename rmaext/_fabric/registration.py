# SPDX-License-Identifier: BSD-3-Clause
"""What a window asks of the registration of its memory, and what it has got."""

from __future__ import annotations

import errno
import operator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from .._native._lib import lib
from ..errors import KeyRejectedError, Unsupported
from ..typing import MemoryKind, Ordering

if TYPE_CHECKING:
    from .endpoint import Endpoint

__all__ = ["PLAIN", "How", "HowAllocated", "Registration", "one_part"]

KINDS: dict[MemoryKind, int] = {
    "system": lib.RMAEXT_IFACE_SYSTEM,
    "cuda": lib.RMAEXT_IFACE_CUDA,
    "rocr": lib.RMAEXT_IFACE_ROCR,
    "ze": lib.RMAEXT_IFACE_ZE,
    "neuron": lib.RMAEXT_IFACE_NEURON,
    "synapseai": lib.RMAEXT_IFACE_SYNAPSEAI,
}
_NO_KEY = (1 << 64) - 1  # libfabric's FI_KEY_NOTAVAIL
_PROV_KEY, _RAW = 1 << 6, 1 << 3  # of mr_mode
_HMEM = 1 << 47  # of capabilities


class _Anywhere(TypedDict, total=False):
    key: int | None
    auth_key: bytes
    ordering: Ordering
    kind: MemoryKind
    persistent: bool
    counts_writes: bool


class How(_Anywhere, total=False):
    """The arguments of `Registration`, as `Window` takes them."""

    device: int


class HowAllocated(_Anywhere, total=False):
    """The same, as `Window.allocate` takes them."""

    device: int | str


@dataclass(frozen=True)
class Registration:
    """How the memory of a rank is to be registered: the last arguments of `Window`.

    Each rank says so for its own memory. What asks for the network has the memory
    registered also where all ranks are reached by memory. It does not change: any threads, and
    any windows, may use one at once.

    Parameters
    ----------
    key : int, optional
        That peers are to use, in place of a random one: KeyRejectedError if the
        provider chooses keys itself, or takes shorter ones only; NoKeyError if another
        registration of this process has it. Whoever knows it, and reaches the
        endpoint, may access the memory as `access` allows.
    auth_key : bytes, optional
        Only endpoints with the same authorization key may access the memory, in place of
        the domain's. Unsupported where the provider has none.
    ordering : {"strict", "relaxed"}, optional
        A hint: the order in which what is written becomes visible does not matter.
        `win.memory.ordering` says what was granted; no libfabric up to 2.5 has a way
        to ask for the relaxed one.
    kind : {"system", "cuda", "rocr", "ze", "neuron", "synapseai"}, optional
        Who has allocated the memory: for NumPy arrays over memory of a device's library
        that the host can access, too (cudaMallocHost, cudaMallocManaged, ...).
        Unsupported where the provider does not do FI_HMEM; those that do are asked
        for it with RMAEXT_MR_MODE=hmem.
    device : int, optional
        Its number, if `kind` is not "system".
    persistent : bool, optional
        The memory is persistent: `flush(persist=True)`.
    counts_writes : bool, optional
        The provider counts what peers write: `win.writes_received`. Unsupported
        where it cannot.

    Notes
    -----
    fi_mr(3): the fields of struct fi_mr_attr, FI_RMA_EVENT, FI_RMA_PMEM.

    Examples
    --------
    >>> rmaext.Registration(ordering="relaxed").ordering
    'relaxed'
    >>> with rmaext.Window(MPI.COMM_SELF, np.zeros(4), ordering="relaxed") as other:
    ...     other.memory.ordering  # what was granted
    'strict'
    """

    key: int | None = None
    auth_key: bytes = b""
    ordering: Ordering = "strict"
    kind: MemoryKind = "system"
    device: int = 0
    persistent: bool = False
    counts_writes: bool = False

    @classmethod
    def _of(cls, how: How) -> Registration:
        """Return what the arguments of a window ask for; TypeError, ValueError."""
        if not how:
            return PLAIN
        known = [field.name for field in fields(cls)]
        unknown = [name for name in how if name not in known]
        if unknown:
            raise TypeError(f"unknown argument {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**how)

    def __post_init__(self) -> None:
        if self.key is not None:
            key = _index("key", self.key)
            if not 0 <= key < _NO_KEY:
                raise ValueError(f"key={key}: must be 0 to 2**64 - 2")
            object.__setattr__(self, "key", key)
        if not isinstance(self.auth_key, (bytes, bytearray, memoryview)):
            raise TypeError(f"auth_key: must be bytes, not {type(self.auth_key).__name__}")
        object.__setattr__(self, "auth_key", bytes(self.auth_key))
        _choice("ordering", self.ordering, get_args(Ordering))
        _choice("kind", self.kind, tuple(KINDS))
        device = _index("device", self.device)
        if not 0 <= device < 1 << 31:
            raise ValueError(f"device={device}: must be 0 to 2**31 - 1")
        if device and self.kind == "system":
            raise ValueError(f"device={device}: of what kind? kind='system' has no devices")
        object.__setattr__(self, "device", device)
        for name in "persistent", "counts_writes":
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}={getattr(self, name)!r}: must be True or False")

    @property
    def _needs_network(self) -> bool:
        """Whether it means something only to those who come by the network."""
        plain = self.key is None and not self.auth_key and self.kind == "system"
        return self.counts_writes or not plain

    def _check(self, fabric: Endpoint) -> None:
        """Refuse what the provider does not do, before it is asked.

        Raises
        ------
        KeyRejectedError, Unsupported, ValueError
        """
        who = f"provider {fabric.provider}"
        if self.key is not None:
            text = f"key={self.key:#x}: {who} "
            if fabric.mr_bits & (_PROV_KEY | _RAW):
                text += f"chooses the keys itself (mr_mode {fabric.mr_mode})"
                raise KeyRejectedError(errno.EKEYREJECTED, text, call="fi_mr_regattr")
            if self.key >> 8 * fabric.key_size:
                text += f"takes keys of {fabric.key_size} bytes"
                raise KeyRejectedError(errno.EKEYREJECTED, text, call="fi_mr_regattr")
        if self.auth_key:
            if not fabric.auth_key_size:
                text = f"auth_key: {who} has no authorization keys"
                raise Unsupported(errno.EOPNOTSUPP, text, call="fi_mr_regattr")
            if len(self.auth_key) != fabric.auth_key_size:
                text = f"auth_key of {len(self.auth_key)} bytes: {who} has those of "
                raise ValueError(f"{text}{fabric.auth_key_size}")
        if self.kind != "system" and not fabric.capabilities & _HMEM:
            text = f"kind={self.kind!r}: {who} registers no memory of devices (FI_HMEM), or "
            text += "was not asked to (RMAEXT_MR_MODE=hmem)"
            raise Unsupported(errno.EOPNOTSUPP, text, call="fi_mr_regattr")


def _index(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be an integer") from None


def _choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: must be a string")
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")


PLAIN = Registration()  # nothing special


def one_part(call: str, part: slice | None, size: int) -> tuple[int, int]:
    """Return the first of `size` elements that a slice is about, and the one behind the last."""
    if part is None:
        return 0, size
    if not isinstance(part, slice):
        raise TypeError(f"{call}: a slice, not {type(part).__name__}")
    start, stop, step = part.indices(size)
    if step != 1:
        raise ValueError(f"{call}: a slice without a step, not {part}")
    return start, max(start, stop)
