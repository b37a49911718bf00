# SPDX-License-Identifier: BSD-3-Clause
"""What users see of an endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._runtime.copies import Unique

if TYPE_CHECKING:
    from .endpoint import Endpoint

__all__ = ["Fabric"]


class Fabric(Unique):
    """What there is to know of this process's endpoint of libfabric: `win.fabric`.

    A process has at most two endpoints, which all its windows share: one for communicators
    within one host, which listens on the loopback interface, and one on the job's network.
    Where all ranks are reached by memory there is none.

    Notes
    -----
    Local, without a call of libfabric: what it tells was read when the endpoint was opened
    (fi_getinfo(3), struct fi_info), but for `stats`. Any threads may read it at once.

    Examples
    --------
    >>> with rmaext.Window.dynamic(MPI.COMM_SELF) as other:  # whose messages need one
    ...     "failed" in other.fabric.stats, other.fabric.library != ""
    (True, True)
    """

    __slots__ = ("__weakref__", "_endpoint")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __repr__(self) -> str:
        it = self._endpoint
        state = f"at {it.address or 'no address'}" if it.handle else "closed"
        of = "UCX" if it.transport == "ucx" else "libfabric"
        return f"<rmaext.Fabric {it.provider}, {of} {it.version}, {state}>"

    @property
    def transport(self) -> str:
        """What the network is reached by, "libfabric" or "ucx": see RMAEXT_TRANSPORT."""
        return self._endpoint.transport

    @property
    def provider(self) -> str:
        """Name of the provider, as "tcp;ofi_rxm"; "ucx" with that transport."""
        return self._endpoint.provider

    @property
    def domain(self) -> str:
        """Name of the domain, which is that of the device or interface."""
        return self._endpoint.domain

    @property
    def address(self) -> str:
        """Address of the endpoint, as fi_av_straddr(3) writes it."""
        return self._endpoint.address

    @property
    def version(self) -> str:
        """Version of the libfabric that was opened, as "1.17", or of UCX, as "1.20.1"."""
        return self._endpoint.version

    @property
    def library(self) -> str:
        """Path of that library."""
        return self._endpoint.library

    @property
    def key_size(self) -> int:
        """Bytes of a remote key."""
        return self._endpoint.key_size

    @property
    def auth_key_size(self) -> int:
        """Bytes of an authorization key; 0 if the provider has none."""
        return self._endpoint.auth_key_size

    @property
    def iov_limit(self) -> int:
        """How many pieces of memory may be registered as one region."""
        return self._endpoint.iov_limit

    @property
    def capabilities(self) -> int:
        """Bits FI_RMA, FI_HMEM and so on, of fi_getinfo(3)."""
        return self._endpoint.capabilities

    @property
    def mr_bits(self) -> int:
        """Bits of `mr_mode`, of fi_mr(3)."""
        return self._endpoint.mr_bits

    @property
    def mr_mode(self) -> str:
        """What the provider demands of registered memory, as "VIRT_ADDR|PROV_KEY"."""
        return self._endpoint.mr_mode

    @property
    def guarded(self) -> bool:
        """Whether connections of other users, and from other hosts, are closed unread.

        False where the provider does not listen on TCP sockets, or is ofi_mrail (other users of
        the host are refused there, too), the kernel does not tell who owns a socket
        (sock_diag(7)), or RMAEXT_ADMIT is "everyone". Clients may come from other hosts while
        there is a grant for the network, unless RMAEXT_ADMIT names networks.
        """
        return self._endpoint.guarded

    @property
    def stats(self) -> dict[str, int]:
        """Counts since the endpoint was opened; zeros once it is closed.

        Of operations: posted, completed, failed. Of the progress thread:
        thread_wakeups. Of memory: registrations, deregistrations. Of origins, where
        the provider demands that they are registered (FI_MR_LOCAL): hits, misses,
        evictions, bounced. Of connections that others have opened, where they are
        checked: admitted, refused.
        """
        return self._endpoint.stats
