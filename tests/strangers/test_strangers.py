# SPDX-License-Identifier: BSD-3-Clause
"""Other users of the host, and other hosts, that come to the port of a rank.

Each attack is what a process of another user tried successfully before connections were
checked: csrc/admission. The ranks run in a network namespace of their own.
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attacks
import pytest
from attacks import NOBODY, Address, Stranger
from support import netns
from support.jobs import passes
from support.libraries import BOTH_IN_MATRIX

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


class Job:
    """A running victim.py; `addresses` of its ranks, `said` at its end."""

    said = ""

    def __init__(self) -> None:
        self.addresses = list[Address]()

    def counted(self, what: str) -> int:
        """Return a number that rank 0 said at the end: of operations a second, refused ..."""
        found = re.search(rf"{what} (\d+)", self.said)
        assert found, self.said
        return int(found[1])


@contextmanager
def job(folder: Path, pids: str, library: str, *args: str, **env: str) -> Iterator[Job]:
    """Run victim.py meanwhile; it must end well."""
    it, failed = Job(), list[BaseException]()

    def run() -> None:
        try:
            program = "strangers/programs/victim.py"
            line = (program, str(folder), pids, *args)
            it.said = passes(2, *line, oks=2, library=library, timeout=55, **env)
        except BaseException as exc:
            failed.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not (folder / "addresses").exists() and thread.is_alive():
            time.sleep(0.02)
        if thread.is_alive():
            for text, provider in json.loads((folder / "addresses").read_text()):
                host, port = text.split("://")[1].rsplit(":", 1)
                it.addresses.append(Address(host, int(port), provider == "tcp"))
            yield it
    finally:
        (folder / "stop").touch()
        thread.join()
    if failed:
        raise failed[0]


@pytest.fixture(scope="module")
def host() -> Iterator[netns.Namespace]:
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(1) as (it,):
        yield it


ATTACKS = {
    "hijack": lambda zero, one: (attacks.hijack, zero, one),
    "acknowledgement": lambda zero, one: (attacks.say, zero, 9, attacks.ack()),
    "type 1": lambda zero, one: (attacks.say, zero, 9, attacks.wild(1)),
    "type 3": lambda zero, one: (attacks.say, zero, 9, attacks.wild(3)),
    "type 7": lambda zero, one: (attacks.say, zero, 9, attacks.wild(7)),
    "answers": lambda zero, one: (attacks.say, zero, 9, *map(attacks.stray, range(3, 8))),
    "promise": lambda zero, one: (attacks.promise, zero, 4),
}


def refused_all(it: Job, strangers: int) -> None:
    """Require that all strangers were refused.

    Both ranks may connect at once: the one whose connection is not used closes it, perhaps
    before the other has asked whose it is. That counts as refused.
    """
    assert it.counted("refused") >= strangers, it.said
    assert it.counted("admitted") + it.counted("refused") <= strangers + 2, it.said


Withstood = Callable[[str, str, int, int], set[str]]


@pytest.fixture(scope="module")
def withstood(tmp_path_factory) -> Withstood:
    """Return a function: the attacks that get nothing, one after the other in one job.

    If that does not end well these are none, and each attack has a job of its own.
    """

    @functools.cache
    def attacked(pids: str, library: str, namespace: int, user: int) -> set[str]:
        taken = dict.fromkeys(ATTACKS, 1)
        try:
            with job(tmp_path_factory.mktemp("attacks"), pids, library) as it:
                for attack, args in ATTACKS.items():
                    taken[attack] = Stranger(namespace, user, *args(*it.addresses)).result()
            if user != NOBODY:
                refused_all(it, 10 * len(ATTACKS))
        except AssertionError:
            return set()
        return {attack for attack in ATTACKS if not taken[attack]}

    return attacked


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("attack", ATTACKS)
def test_another_user_gets_no_answer(host, tmp_path, withstood, library, attack):
    """Neither rank crashes, stalls, or reads what it did not write."""
    pids = f"{host.pid},{host.pid}"
    if attack not in withstood(pids, library, host.pid, NOBODY):
        with job(tmp_path, pids, library) as it:
            assert Stranger(host.pid, NOBODY, *ATTACKS[attack](*it.addresses)).result() == 0


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_ten_thousand_idle_connections_of_another_user(host, tmp_path, library):
    with job(tmp_path, f"{host.pid},{host.pid}", library) as it:
        victim = it.addresses[0]
        stranger = Stranger(host.pid, NOBODY, attacks.idle, victim, 10_000, 3)
        (tmp_path / "attack").touch()
        assert stranger.result() == 0
        (tmp_path / "attack").unlink()
    assert it.counted("operations") > 500, it.said


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_the_program_keeps_its_descriptors(host, tmp_path, library):
    with job(tmp_path, f"{host.pid},{host.pid}", library, "256") as it:
        victim = it.addresses[0]
        assert Stranger(host.pid, NOBODY, attacks.idle, victim, 400, 2).result() == 0


def test_the_attacks_are_what_would_work(host, tmp_path):
    """Without the check a hello gets its answer: that the tests above get none says something."""
    pids = f"{host.pid},{host.pid}"
    with job(tmp_path, pids, "", RMAEXT_ADMIT="everyone") as it:
        assert Stranger(host.pid, NOBODY, attacks.say, it.addresses[0], 9).result() == 10


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_another_user_who_is_gone_already(host, tmp_path, library):
    """What it sent is there still, and its socket has no owner any more: to the kernel, root."""
    with job(tmp_path, f"{host.pid},{host.pid}", library) as it:
        for reset in (False, True):
            args = (it.addresses[0], reset, attacks.hello(it.addresses[0], 9), attacks.ack())
            assert Stranger(host.pid, NOBODY, attacks.leave, *args).result() == 50
        time.sleep(1.5)  # for all to be looked at, though a rank is late
    refused_all(it, 100)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_this_user_gets_an_answer(host, tmp_path, library):
    with job(tmp_path, f"{host.pid},{host.pid}", library) as it:
        assert Stranger(host.pid, 0, attacks.say, it.addresses[0], 9).result() == 10


# -- between hosts ----------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[netns.Namespace]]:
    """Three hosts: the ranks are on the first two, and the third reaches the first."""
    if netns.missing():
        pytest.skip(f"no network namespaces: {netns.missing()}")
    with netns.namespaces(3) as (first, second, third):
        netns.join("cable", [(first, "10.77.0.1/24"), (second, "10.77.0.2/24")])
        netns.join("other", [(first, "10.79.0.1/24"), (third, "10.79.0.3/24")])
        third.run("ip", "route", "add", "10.77.0.0/24", "via", "10.79.0.1")
        yield [first, second, third]


def ranks_on(hosts: list[netns.Namespace]) -> str:
    return f"{hosts[0].pid},{hosts[1].pid}"


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_address_that_is_no_ranks(hosts, tmp_path, withstood, library, attack):
    """Whoever it is: root here, as the ranks."""
    if attack not in withstood(ranks_on(hosts), library, hosts[2].pid, 0):
        with job(tmp_path, ranks_on(hosts), library) as it:
            assert it.addresses[0][0] == "10.77.0.1"
            assert Stranger(hosts[2].pid, 0, *ATTACKS[attack](*it.addresses)).result() == 0
        refused_all(it, 10)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_another_user_of_a_ranks_own_host(hosts, tmp_path, library):
    with job(tmp_path, ranks_on(hosts), library) as it:
        victim = it.addresses[0]
        assert victim[0] == "10.77.0.1"
        assert Stranger(hosts[0].pid, NOBODY, attacks.say, victim, 9).result() == 0
        assert Stranger(hosts[0].pid, 0, attacks.say, victim, 9).result() == 10


@pytest.mark.parametrize(("networks", "answers"), [("10.79.0.0/24", 10), ("10.80.0.0/16", 0)])
def test_networks_that_the_user_names(hosts, tmp_path, networks, answers):
    with job(tmp_path, ranks_on(hosts), "", RMAEXT_ADMIT=networks) as it:
        assert Stranger(hosts[2].pid, 0, attacks.say, it.addresses[0], 9).result() == answers


def grant(folder: Path, scope: str) -> None:
    """Have rank 0 grant memory to such clients; "": take that back."""
    if scope:
        (folder / "scope").write_text(scope)
        (folder / "scope").rename(folder / "grant")
    else:
        (folder / "grant").unlink(missing_ok=True)
    end = time.monotonic() + 20
    while (folder / "granted").exists() != bool(scope):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_hosts_of_clients(hosts, tmp_path, library):
    """They may come while there is a grant, and not after the last is revoked."""
    with job(tmp_path, ranks_on(hosts), library) as it:
        for scope, answers in (("", 0), ("network", 10), ("", 0), ("network", 10)):
            grant(tmp_path, scope)
            stranger = Stranger(hosts[2].pid, 0, attacks.say, it.addresses[0], 9)
            assert stranger.result() == answers


def test_a_grant_for_the_host_of_a_job_that_listens_elsewhere(hosts, tmp_path):
    """RMAEXT_IFACE names the interface, also where all ranks are on one host."""
    pids = f"{hosts[0].pid},{hosts[0].pid}"
    with job(tmp_path, pids, "", RMAEXT_IFACE="other") as it:
        assert it.addresses[0][0] == "10.79.0.1"
        grant(tmp_path, "host")
        assert Stranger(hosts[2].pid, 0, attacks.say, it.addresses[0], 9).result() == 0
        assert Stranger(hosts[0].pid, 0, attacks.say, it.addresses[0], 9).result() == 10


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_a_ranks_port_that_is_a_listeners_here(hosts, tmp_path, library):
    """The kernel finds the listener when it is asked for the connection's other end."""
    with job(tmp_path, ranks_on(hosts), library) as it:
        port = 45454
        listening = Stranger(hosts[0].pid, 0, attacks.listen, port, str(tmp_path / "stop"))
        end = time.monotonic() + 20
        while f":{port} " not in hosts[0].run("ss", "-ltn"):
            assert time.monotonic() < end
            time.sleep(0.02)
        victim = it.addresses[0]
        assert Stranger(hosts[1].pid, 0, attacks.try_once, victim, port).result() == 1
    assert listening.result() == 0


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_connections_that_come_and_go(hosts, tmp_path, library):
    """None stays open here: 1.17 kept those that ended before they had sent a request."""
    (tmp_path / "attack").touch()
    (tmp_path / "sleep").touch()
    with job(tmp_path, ranks_on(hosts), library) as it:
        victim = it.addresses[0]
        client = Stranger(hosts[1].pid, NOBODY, attacks.come_and_go, victim)
        # of an address that is no rank's: what is refused leaves EAGAIN in errno
        assert Stranger(hosts[2].pid, NOBODY, attacks.say_often, victim, 3).result() == 0
        assert client.result() == 0
    assert it.counted("descriptors") == 0, it.said
    assert it.counted("admitted") + it.counted("refused") > 400, it.said


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_headers_without_end_from_a_ranks_address(hosts, tmp_path, library):
    """Each is closed at once, as a part of a request is none."""
    with job(tmp_path, ranks_on(hosts), library, "256") as it:
        args = (it.addresses[0], 200, 6)
        assert Stranger(hosts[1].pid, NOBODY, attacks.promise_twice, *args).result() == 0


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_half_a_request_from_a_ranks_address(hosts, tmp_path, library):
    """No rank waits for the rest of it."""
    with job(tmp_path, ranks_on(hosts), library) as it:
        Stranger(hosts[1].pid, NOBODY, attacks.promise, it.addresses[0], 4).result()


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_idle_connections_from_a_ranks_address(hosts, tmp_path, library):
    """They are limited in number, so that the program has descriptors, and in time."""
    with job(tmp_path, ranks_on(hosts), library, "256") as it:
        victim, other = it.addresses[0], hosts[1].pid
        assert Stranger(other, NOBODY, attacks.idle, victim, 400, 3, "").result() <= 32
        first = Stranger(other, NOBODY, attacks.idle, victim, 400, 10, "")
        time.sleep(8)  # the first have had their time once somebody comes
        assert Stranger(other, NOBODY, attacks.idle, victim, 1, 0.5, "").result() == 1
        assert first.result() == 0


@pytest.mark.parametrize("library", BOTH_IN_MATRIX)
def test_signed_between_hosts(hosts, tmp_path, library):
    """Who has not the secret cannot even connect, from a rank's address and as the same user."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_bytes(os.urandom(32))
    with job(tmp_path, ranks_on(hosts), library, RMAEXT_SECRET=str(secret)) as it:
        assert Stranger(hosts[1].pid, 0, attacks.try_once, it.addresses[0]).result() == 0
    assert it.counted("operations") > 500, it.said
