# SPDX-License-Identifier: BSD-3-Clause
"""The choice of provider and endpoints: the same computation, on the same input, on every rank."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._fabric.library import Candidate
from .._runtime.config import PROVIDERS, preferred
from .._runtime.failures import of_all
from ..errors import NoProviderError
from .agreement import blame
from .host import Hello

__all__ = ["choose", "usable", "wanted_interface"]

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

    Network = IPv4Network | IPv6Network


def _ip(candidate: Candidate) -> IPv4Address | IPv6Address | None:
    import ipaddress  # a job without a network needs none

    return ipaddress.ip_address(candidate.address) if candidate.address else None


def usable(candidate: Candidate) -> bool:
    """Tell whether another host could reach the address: link-local needs more than that."""
    ip = _ip(candidate)
    return ip is None or not ip.is_link_local


def wanted_interface(candidates: Sequence[Candidate], iface: str) -> list[Candidate]:
    """Return the candidates on an interface, address or network (RMAEXT_IFACE)."""
    if not iface:
        return list(candidates)
    import ipaddress

    try:
        network: Network | None = ipaddress.ip_network(iface, strict=False)
    except ValueError:
        network = None
    found = []
    for candidate in candidates:
        ip = _ip(candidate)
        if iface in (candidate.iface, candidate.domain) or (
            network and ip and ip.version == network.version and ip in network
        ):
            found.append(candidate)
    if not found:
        there = sorted({f"{c.iface or c.domain} {c.address}".strip() for c in candidates})
        raise NoProviderError(
            errno.ENODEV, f"RMAEXT_IFACE={iface}: no such interface among {', '.join(there)}"
        )
    return found


def _order(hellos: Sequence[Hello]) -> list[str]:
    """Return the providers that all ranks have, best first."""
    first = hellos[0].transport
    odd = [rank for rank, hello in enumerate(hellos) if hello.transport != first]
    if odd:
        text = f"RMAEXT_TRANSPORT={hellos[odd[0]].transport}, rank 0 has {first}: all ranks need "
        raise blame(odd, NoProviderError, text + "the same one")
    names = [list(dict.fromkeys(c.provider for c in h.candidates)) for h in hellos]
    common = set(names[0]).intersection(*names[1:])
    wanted = hellos[0].wanted
    odd = [rank for rank, hello in enumerate(hellos) if hello.wanted != wanted]
    if odd:
        text = f"RMAEXT_PROVIDER={hellos[odd[0]].wanted!r}, rank 0 has {wanted!r}"
        raise blame(odd, NoProviderError, text)
    odd = [rank for rank, hello in enumerate(hellos) if hello.mr_basic != hellos[0].mr_basic]
    if odd:
        raise blame(odd, ValueError, "RMAEXT_MR_MODE differs from that of rank 0")
    odd = [rank for rank, hello in enumerate(hellos) if hello.signature != hellos[0].signature]
    if odd:
        raise blame(odd, ValueError, "RMAEXT_SECRET names another secret than that of rank 0")
    if first == "ucx":
        return [first]
    if wanted:
        return [wanted] if wanted in common else []
    order = [name for name in preferred(hello.version for hello in hellos) if name in common]
    # the user's FI_PROVIDER names one that is none of these
    if not order and hellos[0].filtered in common:
        order = [hellos[0].filtered]
    return order


def _none(hellos: Sequence[Hello]) -> NoProviderError:
    there = sorted({c.provider for h in hellos for c in h.candidates})
    wanted = hellos[0].wanted
    text = f"no provider {wanted!r}" if wanted else f"none of {', '.join(PROVIDERS)}"
    text += f" on all ranks; libfabric {hellos[0].version} offers: {', '.join(there) or 'none'}"
    if hellos[0].filtered:
        text += f"; FI_PROVIDER={hellos[0].filtered} may hide it"
    return of_all(NoProviderError(errno.ENODATA, text))


def choose(hellos: Sequence[Hello], scope: str) -> list[Candidate]:
    """Return the endpoint that each rank shall open.

    Within one host the loopback interface; between hosts addresses on one
    network that all ranks are on, else ("routed") the first that each has.
    An address that two hosts have (docker0) leads nowhere.
    """
    opened = {h.opened[scope].provider for h in hellos if scope in h.opened}
    # first what some have open: a process has one endpoint of a kind
    for provider in sorted(_order(hellos), key=lambda name: name not in opened):
        mine = [
            [h.opened[scope]]
            if scope in h.opened and h.opened[scope].provider == provider
            else [c for c in h.candidates if c.provider == provider]
            for h in hellos
        ]
        chosen = (_loopback if scope == "host" else _network)(hellos, mine)
        if chosen:
            return chosen
    raise _none(hellos)


def _loopback(hellos: Sequence[Hello], mine: list[list[Candidate]]) -> list[Candidate]:
    chosen = []
    for candidates in mine:
        ips = [(c, _ip(c)) for c in candidates]
        loop = [c for c, ip in ips if ip and ip.is_loopback]
        four = [c for c in loop if ":" not in c.address]
        chosen.append((four or loop or candidates)[0])
    return chosen


def _network(hellos: Sequence[Hello], mine: list[list[Candidate]]) -> list[Candidate]:
    import ipaddress

    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for hello, candidates in zip(hellos, mine, strict=True):
        for candidate in candidates:
            hosts[candidate.address].add(f"{hello.net} {hello.node}")
    usable: list[dict[Network | None, Candidate]] = []
    for candidates in mine:
        by_network: dict[Network | None, Candidate] = {}
        for c in candidates:
            ip = _ip(c)
            if ip is None:
                by_network.setdefault(None, c)
            elif not (ip.is_loopback or ip.is_link_local or len(hosts[c.address]) > 1):
                network = ipaddress.ip_network(f"{c.address}/{c.prefix}", strict=False)
                by_network.setdefault(network, c)
        if not by_network:
            return []
        usable.append(by_network)
    for shared in usable[0]:
        if all(shared in each for each in usable):
            return [each[shared] for each in usable]
    return [next(iter(each.values())) for each in usable]
