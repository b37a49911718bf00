# SPDX-License-Identifier: BSD-3-Clause
"""Which endpoints ranks choose, on made-up hosts, and what a rank believes of another."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rmaext
from rmaext._comm import host
from rmaext._comm.host import Beacon, Hello, open_pidfd
from rmaext._comm.provider_choice import choose, wanted_interface
from rmaext._fabric.library import Candidate
from rmaext._runtime.config import PROVIDERS, Config

settings.register_profile("quick", deadline=None, derandomize=True, database=None)
settings.load_profile("quick")

TCP = "tcp;ofi_rxm"


def at(address, prefix=24, iface="eth0", provider=TCP):
    return Candidate(provider, f"domain of {iface}", iface, address, prefix)


def addresses(*texts, provider=TCP):
    """Candidates from "address/prefix@interface" or "address/prefix"."""
    found = []
    for text in texts:
        network, _, iface = text.partition("@")
        address, _, prefix = network.partition("/")
        found.append(at(address, int(prefix or 24), iface or "eth0", provider))
    return found


LO = addresses("127.0.0.1/8@lo")


def hello(candidates, number=0, **changes):
    """A rank; each number is a host of its own."""
    fields = {
        "build": host._build(),
        "net": f"boot {number}/net:[1]",
        "pids": f"boot {number}/pid:[1]",
        "pid": 100,
        "started": 5,
        "node": "",
        "beacon": "ab" * 32,
        "nonce": "cd" * 16,
        "address": 4096,
        "arena": [5, 6, 7, 0],
        "board": [-1, 0, 0, 0],
        "secret": "12" * 16,
        "forced": False,
        "transport": "libfabric",
        "wanted": "",
        "filtered": "",
        "mr_basic": False,
        "signature": "",
        "progress": True,
        "version": "1.17",
        "cpus": 2,
        "candidates": list(candidates),
        "opened": {},
    }
    return Hello(**fields | changes)


def chosen(hosts, scope="network", **changes):
    hellos = [hello(c, i, **changes) for i, c in enumerate(hosts)]
    picked = choose(hellos, scope)
    assert len(picked) == len(hosts)
    return [c.address for c in picked]


# what each host has, and the address that each shall take
NETWORKS = {
    "one": ([["10.0.0.1"], ["10.0.0.2"]], ["10.0.0.1", "10.0.0.2"]),
    "loopback first": (
        [["127.0.0.1/8@lo", "10.0.0.1"], ["127.0.0.1/8@lo", "10.0.0.2"]],
        ["10.0.0.1", "10.0.0.2"],
    ),
    "docker0": (
        [["172.17.0.1/16@docker0", "10.0.0.1"], ["172.17.0.1/16@docker0", "10.0.0.2"]],
        ["10.0.0.1", "10.0.0.2"],
    ),
    "docker0 on two of three": (
        [["172.17.0.1/16", "10.0.0.1"], ["172.17.0.1/16", "10.0.0.2"], ["10.0.0.3"]],
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"],
    ),
    "second in common": (
        [["192.168.1.1", "10.0.0.1"], ["192.168.2.1", "10.0.0.2"]],
        ["10.0.0.1", "10.0.0.2"],
    ),
    "order of the first": (
        [["10.1.0.1", "10.0.0.1"], ["10.0.0.2", "10.1.0.2"]],
        ["10.1.0.1", "10.1.0.2"],
    ),
    "prefix tells networks apart": (
        [["10.0.0.1/24", "10.9.0.1/16"], ["10.0.0.2/16", "10.9.0.2/16"]],
        ["10.9.0.1", "10.9.0.2"],
    ),
    "IPv6 only": ([["fd00::1/64"], ["fd00::2/64"]], ["fd00::1", "fd00::2"]),
    "IPv6 in common": (
        [["10.0.0.1", "fd00::1/64"], ["10.1.0.1", "fd00::2/64"]],
        ["fd00::1", "fd00::2"],
    ),
    "link-local": (
        [["fe80::1/64", "169.254.0.1/16", "fd00::1/64"], ["fe80::2/64", "fd00::2/64"]],
        ["fd00::1", "fd00::2"],
    ),
    "routed": ([["127.0.0.1/8", "10.0.0.1"], ["10.1.0.1", "10.2.0.1"]], ["10.0.0.1", "10.1.0.1"]),
    "routed, one docker0": (
        [["172.17.0.1/16", "10.0.0.1"], ["172.17.0.1/16", "10.1.0.1"]],
        ["10.0.0.1", "10.1.0.1"],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_network(name):
    hosts, expected = NETWORKS[name]
    assert chosen([addresses(*host) for host in hosts]) == expected


def test_two_ranks_of_one_host_share_an_address():
    """It is not one that two hosts have, unless they are pretend nodes of one host."""
    one = addresses("10.0.0.1")
    ranks = [hello(one, 0, pid=1), hello(one, 0, pid=2), hello(addresses("10.0.0.2"), 1)]
    assert [c.address for c in choose(ranks, "network")] == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    "host", [LO, addresses("fe80::1/64"), addresses("172.17.0.1/16"), addresses("169.254.3.4/16")]
)
def test_no_usable_address(host):
    with pytest.raises(rmaext.NoProviderError):
        chosen([host, host])


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["10.0.0.1", "127.0.0.1/8@lo"], "127.0.0.1"),
        (["10.0.0.1", "::1/128@lo", "127.0.0.1/8@lo"], "127.0.0.1"),
        (["10.0.0.1", "::1/128@lo"], "::1"),
        (["10.0.0.1"], "10.0.0.1"),
    ],
)
def test_loopback_within_one_host(texts, expected):
    ranks = [hello(addresses(*texts), 0, pid=pid) for pid in (1, 2)]
    assert [c.address for c in choose(ranks, "host")] == [expected] * 2


def test_provider_without_addresses():
    """As verbs or ofi_mrail: its first domain."""
    nic = [Candidate("cxi", f"cxi{i}", "", "", 0) for i in range(2)]
    for scope in "host", "network":
        picked = choose([hello(nic + LO, 0), hello(nic + LO, 1)], scope)
        assert picked == [nic[0]] * 2


def test_provider_that_all_ranks_have():
    both = [Candidate("efa", "efa0", "", "", 0), *addresses("10.0.0.1")]
    picked = choose([hello(both, 0), hello(addresses("10.0.0.2"), 1)], "network")
    assert {c.provider for c in picked} == {TCP}
    picked = choose([hello(both, 0), hello(both[:1], 1)], "network")
    assert {c.provider for c in picked} == {"efa"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_order_of_providers(provider):
    """The best first; what comes first in libfabric's list does not matter."""
    worse = PROVIDERS[PROVIDERS.index(provider) :]
    there = [c for p in reversed(worse) for c in addresses("10.0.0.1", provider=p)]
    there = addresses("10.0.0.1", provider="sockets") + there
    assert choose([hello(there, version="2.5")] * 2, "network")[0].provider == provider


def test_native_tcp_of_1x_is_the_last():
    """Where one rank has an old one: all choose the same. Without ofi_rxm it must do."""
    both = addresses("10.0.0.1", provider="tcp") + addresses("10.0.0.1")
    ranks = [hello(both, version=version) for version in ("2.5", "1.22")]
    assert choose(ranks, "network")[0].provider == TCP
    assert choose([hello(both[:1], version="1.22")] * 2, "network")[0].provider == "tcp"


def test_the_provider_that_some_have_open_is_chosen_first():
    """A process has one endpoint of a kind; a communicator with an older libfabric comes later."""
    both = addresses("10.0.0.1", provider="tcp") + addresses("10.0.0.1")
    have = {"network": both[0]}
    ranks = [hello(both, version="2.5", opened=have), hello(both, version="1.22")]
    assert choose(ranks, "network")[0].provider == "tcp"


def test_wanted_provider():
    there = [*addresses("10.0.0.1"), *addresses("10.0.0.1", provider="sockets")]
    picked = choose([hello(there, wanted="sockets")] * 2, "network")
    assert picked[0].provider == "sockets"
    with pytest.raises(
        rmaext.NoProviderError, match=r"'verbs'.*1\.17 offers: sockets, tcp;ofi_rxm$"
    ):
        choose([hello(there, wanted="verbs")], "host")


def test_wanted_provider_must_be_the_same():
    ranks = [hello(LO, i, wanted=wanted) for i, wanted in enumerate(["", TCP, ""])]
    with pytest.raises(rmaext.NoProviderError, match=r"^rank 1: .*RMAEXT_PROVIDER"):
        choose(ranks, "network")


def test_transport_must_be_the_same():
    ucx = [Candidate("ucx", "mlx5_0", "", "", 0)]
    ranks = [hello(ucx, i, transport="ucx") for i in range(3)]
    for scope in "host", "network":
        assert choose(ranks, scope) == 3 * ucx
    ranks[2] = hello(LO, 2)
    with pytest.raises(rmaext.NoProviderError, match=r"^rank 2: RMAEXT_TRANSPORT=libfabric, rank"):
        choose(ranks, "network")


def test_secret_must_be_the_same():
    """Else the kernels of two hosts would drop each other's connections without a word."""
    ranks = [hello(LO, i, signature=of) for i, of in enumerate(["ab", "ab", ""])]
    with pytest.raises(ValueError, match=r"^rank 2: .*RMAEXT_SECRET"):
        choose(ranks, "network")


@pytest.mark.parametrize("scope", ["host", "network"])
def test_none_in_common(scope):
    ranks = [hello(addresses("10.0.0.1")), hello(addresses("10.0.0.2", provider="sockets"), 1)]
    with pytest.raises(rmaext.NoProviderError, match=r"on all ranks.*offers: sockets, tcp"):
        choose(ranks, scope)
    with pytest.raises(rmaext.NoProviderError, match="offers: none"):
        choose([hello([]), hello([])], scope)


def test_hidden_by_fi_provider():
    sockets = addresses("127.0.0.1/8", provider="sockets")
    with pytest.raises(rmaext.NoProviderError, match="FI_PROVIDER=udp may hide it"):
        choose([hello(sockets, filtered="udp")], "host")
    picked = choose([hello(sockets, filtered="sockets")], "host")
    assert picked[0].provider == "sockets"  # named by the user, so he gets it


def test_opened_endpoints_stay():
    """A process that listens somewhere already does not choose again."""
    old = at("10.0.0.9")
    both = addresses("10.0.0.1", "10.0.0.9")
    ranks = [hello(both, 0, opened={"network": old}), hello(addresses("10.0.0.2"), 1)]
    assert [c.address for c in choose(ranks, "network")] == ["10.0.0.9", "10.0.0.2"]
    assert [c.address for c in choose(ranks[:1], "host")] == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("iface", "expected"),
    [
        ("", ["127.0.0.1", "10.0.0.1", "fd00::1"]),
        ("eth0", ["10.0.0.1", "fd00::1"]),
        ("domain of lo", ["127.0.0.1"]),
        ("10.0.0.1", ["10.0.0.1"]),
        ("10.0.0.0/8", ["10.0.0.1"]),
        ("10.0.0.77/24", ["10.0.0.1"]),
        ("fd00::/16", ["fd00::1"]),
        ("0.0.0.0/0", ["127.0.0.1", "10.0.0.1"]),
    ],
)
def test_interface(iface, expected):
    there = LO + addresses("10.0.0.1", "fd00::1/64")
    assert [c.address for c in wanted_interface(there, iface)] == expected


def test_unknown_interface():
    with pytest.raises(
        rmaext.NoProviderError, match=r"RMAEXT_IFACE=eth7.*eth0 10\.0\.0\.1, lo 127\.0\.0\.1"
    ):
        wanted_interface(LO + addresses("10.0.0.1"), "eth7")


# -- what comes over the wire ------------------------------------------------------

GOOD = hello(LO + addresses("10.0.0.1", "fd00::1/64"), opened={"host": LO[0]})


def test_own_hello():
    config = Config.read()
    mine = Hello.make(config, "ab" * 32, version="1.17", candidates=LO, opened={})
    assert Hello.parse(mine.pack()) == mine
    again = Hello.make(config, "ab" * 32, version="1.17", candidates=LO, opened={})
    assert again.secret != mine.secret
    assert Hello.parse(GOOD.pack()) == GOOD


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b"null", b"7", b"\xff", b"[" * 60_000, b'"candidates"']
)
def test_malformed_hello(payload):
    with pytest.raises(rmaext.KeyRecordError, match="malformed"):
        Hello.parse(payload)


def test_truncated_hello():
    payload = GOOD.pack()
    for n in range(len(payload)):
        with pytest.raises(rmaext.KeyRecordError, match="malformed"):
            Hello.parse(payload[:n])


BAD = [
    *(("pid", value) for value in (-1, 1.5, "1", None, True, 2**64, [])),
    *(("started", value) for value in (-1, "x", None)),
    *(("cpus", value) for value in (-1, {}, "2")),
    *(("secret", value) for value in ("", "zz" * 16, "12", "12" * 17, 5, None)),
    *(("beacon", value) for value in ("x", "12", "12" * 500, None)),
    *(("forced", value) for value in (1, "yes", None)),
    *((name, value) for name in ("net", "node", "wanted", "version") for value in (5, None, [])),
    *(("candidates", value) for value in (None, 5, {"a": 1}, [[]], [{}], ["x"])),
    *(("opened", value) for value in (None, 5, [], {"host": 5}, {"host": {}})),
]
CANDIDATE = [
    *(("address", value) for value in ("nonsense", 5, None, "1.2.3", "10.0.0.1/8")),
    *(("prefix", value) for value in (-1, 33, "8", None, 1e3)),
    *((name, 5) for name in ("provider", "domain", "iface")),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_malformed_field(name, value):
    record = GOOD.facts() | {name: value}
    with pytest.raises(rmaext.KeyRecordError, match="malformed"):
        Hello.parse(json.dumps(record).encode())


@pytest.mark.parametrize(("name", "value"), CANDIDATE)
def test_malformed_candidate(name, value):
    record = GOOD.facts()
    record["candidates"][0][name] = value
    with pytest.raises(rmaext.KeyRecordError, match="malformed"):
        Hello.parse(json.dumps(record).encode())


def test_other_fields():
    record = GOOD.facts()
    for wrong in {**record, "more": 1}, {k: v for k, v in record.items() if k != "pid"}:
        with pytest.raises(rmaext.KeyRecordError, match="malformed"):
            Hello.parse(json.dumps(wrong).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(Hello._fields), JSON))
def test_hostile_hello(changes):
    """It is refused, or does no harm where it is used."""
    record = GOOD.facts() | changes
    try:
        other = Hello.parse(json.dumps(record).encode())
    except rmaext.KeyRecordError:
        return
    for scope in "host", "network":
        with contextlib.suppress(rmaext.NoProviderError):
            choose([GOOD, other], scope)
    fd = open_pidfd(GOOD, other)
    if fd >= 0:
        os.close(fd)
    assert not Beacon.visible(other.beacon)


# -- beacons and pidfds ------------------------------------------------------------


def test_beacon():
    beacon = Beacon()
    assert Beacon.visible(beacon.name)
    assert not Beacon.visible("00" * 32)
    code = "import mpi4py; mpi4py.rc.initialize = False; from rmaext._comm.host import Beacon; "
    code += f"print(Beacon.visible({beacon.name!r}))"
    for command, seen in ([], "True"), (["unshare", "-n"], "False"):
        if command and os.geteuid():
            continue  # needs root
        shown = subprocess.run(
            [*command, sys.executable, "-c", code], capture_output=True, text=True, timeout=50
        )
        assert shown.stdout.strip() == seen, shown.stderr
    beacon.close()
    beacon.close()
    assert not Beacon.visible(beacon.name)


def test_many_beacons():
    """They are asked for at once, and each answer is that of its own question."""
    beacons = [Beacon() for _ in range(500)]
    names = [beacon.name for beacon in beacons]
    try:
        assert all(Beacon.visible_of(names))
        gone = range(0, 500, 7)
        for i in gone:
            beacons[i].close()
        assert [i for i, there in enumerate(Beacon.visible_of(names)) if not there] == [*gone]
        odd = ["", "\u00e9" * 64, names[1][:-1], names[1] + "0", "00" * 32]
        assert Beacon.visible_of([*odd, names[1], *odd]) == [False] * 5 + [True] + [False] * 5
        assert Beacon.visible_of([names[1]] * 3 + [names[0]]) == [True] * 3 + [False]
        assert Beacon.visible_of([]) == []
    finally:
        for beacon in beacons:
            beacon.close()


def test_beacon_goes_with_its_process(run_python):
    """Not with a child of it."""
    code = """
        import os, sys
        from rmaext._comm.host import Beacon
        beacon = Beacon.own()
        assert Beacon.own() is beacon and Beacon.visible(beacon.name)
        if not os.fork():
            os._exit(0 if beacon._fd == -1 else 1)
        assert os.wait()[1] == 0 and Beacon.visible(beacon.name)
        print(beacon.name)
    """
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert not Beacon.visible(done.stdout.strip())


@contextlib.contextmanager
def child():
    """A process that waits, and the hello that it would send."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    started = int(stat.rpartition(")")[2].split()[19])
    try:
        yield process, OWN._replace(pid=process.pid, started=started)
    finally:
        process.kill()
        process.communicate()


OWN = Hello.make(Config.read(), "", version="", candidates=[], opened={})


def readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


def test_pidfd():
    """It becomes readable when the process ends, also as long as it is a zombie."""
    with child() as (process, its):
        fd = open_pidfd(OWN, its)
        assert fd >= 0
        assert not os.get_inheritable(fd)
        assert not readable(fd)
        process.send_signal(signal.SIGSTOP)
        assert not readable(fd)
        process.kill()
        assert select.select([fd], [], [], 10)[0] == [fd]
        os.close(fd)


@pytest.mark.parametrize(
    "change", [{"started": 1}, {"node": "other"}, {"pids": "boot/pid:[1]"}], ids=str
)
def test_no_pidfd_of_what_may_be_another_process(change):
    with child() as (_, its):
        before = len(os.listdir("/proc/self/fd"))
        assert open_pidfd(OWN, its._replace(**change)) == -1
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("pid", [pytest.param(os.getpid(), id="own"), 0, 2**22 + 1, 2**31, 2**62])
def test_no_pidfd_of_no_peer(pid):
    assert open_pidfd(OWN, OWN._replace(pid=pid)) == -1


def test_no_pidfd_of_the_dead():
    with child() as (process, its):
        pass
    assert process.returncode is not None
    assert open_pidfd(OWN, its) == -1
