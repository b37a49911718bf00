# SPDX-License-Identifier: BSD-3-Clause
"""Several hosts, played by network namespaces, and what a rank exposes to a network.

tests/jobs/programs/hosts.py runs the demo's two parts and checks where it listens.
Namespaces need root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support import netns
from support.jobs import kill, passes
from support.libraries import BOTH, BOTH_IN_MATRIX, SYSTEM


class Hosts(NamedTuple):
    """Two hosts with two cables between them."""

    pids: str  # of the namespaces, one a rank


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(2) as (first, second):
        for host in (first, second):
            host.decoy("docker0", "172.17.0.1/16")  # the same on both
        netns.join("cable", [(first, "10.77.0.1/24"), (second, "10.77.0.2/24")])
        netns.join("other", [(first, "10.78.0.1/24"), (second, "10.78.0.2/24")])
        yield Hosts(f"{first.pid},{first.pid},{second.pid},{second.pid}")


def run(library, size, prefix, pids, iface="", **env):
    args, oks = (prefix, pids, iface), int(iface != "absent")
    return passes(size, "jobs/programs/hosts.py", *args, oks=oks, library=library, **env)


@pytest.mark.parametrize("library", BOTH)
def test_demo_between_two_hosts(hosts, library):
    """Over the cable, not over what both hosts have under one address."""
    output = run(library, 4, "10.7", hosts.pids)
    assert "172." not in output
    assert "127." not in output


@pytest.mark.parametrize("scenario", ["new_operations", "fence"])
def test_killed_rank_on_another_host(hosts, scenario):
    """Neither pidfd nor beacon tells: only reads from there do."""
    kill(scenario, hosts.pids)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize(("iface", "prefix"), [("cable", "10.77.0."), ("10.78.0.0/24", "10.78.0.")])
def test_interface_is_the_one_asked_for(hosts, iface, prefix, library):
    assert prefix in run(library, 4, prefix, hosts.pids, iface)


def test_interface_that_is_not_there(hosts):
    """NoProviderError on all ranks, with the interfaces that there are."""
    run("", 4, "10.77.0.", hosts.pids, "absent")


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_one_host_listens_on_loopback_only_with_random_keys(library):
    found = []
    for _ in range(2):
        output = run(library, 2, "127.0.0.1", "0,0", RMAEXT_ROUTE="fabric")
        match = re.search("keys ([0-9a-f,]+):", output)
        assert match, output
        found += match.group(1).split(",")
    keys = {int.from_bytes(bytes.fromhex(key), "little") for key in found}
    assert len(keys) > 1, "the same key in two runs"
    assert all(bin(key).count("1") > 8 for key in keys), f"{found}: counted, not drawn"


def test_the_preferred_libfabric_is_not_the_systems():
    """Else the tests above try one version twice."""
    from rmaext._fabric.library import open_library

    assert open_library("").version.startswith("2.")
    assert open_library(SYSTEM).version.startswith("1.")
