# SPDX-License-Identifier: BSD-3-Clause
"""What real providers refuse or demand of registrations, by the demanding provider."""

from __future__ import annotations

import errno

import pytest
from launch import run_python
from support import demanding
from support.libraries import SYSTEM

START = """
    import mmap, os, sys
    import numpy as np, rmaext
    from mpi4py import MPI

    def caught(call):
        try:
            call()
        except (rmaext.RmaError, MemoryError) as error:
            name, number = type(error).__name__, getattr(error, "errno", 0)
            print(name, number, getattr(error, "call", ""), error, sep="\\t")
        else:
            print("nothing")

    def make(**how):
        return rmaext.Window(MPI.COMM_SELF, np.zeros(4, "i8"), **how)

    def works(win):
        win.put(7, 0, 3)
        assert win.fetch_add(1, 0, 3) == 7
        win.flush()
        assert win.local[3] == win.get(0)[3] == 8
        return win
"""


def run(mode, folder, code, **env):
    """Return the lines that the code prints, cut at tabs."""
    env |= demanding.environment(mode, folder)
    env |= {"RMAEXT_LIBFABRIC": SYSTEM, "RMAEXT_ROUTE": "fabric"}
    done = run_python(START + code, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


# errors of fi_mr_regattr: class, number
REFUSALS = {
    "ENOKEY": ("NoKeyError", 266),
    "EKEYREJECTED": ("KeyRejectedError", errno.EKEYREJECTED),
    "ENOSYS": ("Unsupported", errno.ENOSYS),
    "EOPNOTSUPP": ("Unsupported", errno.EOPNOTSUPP),
    "EBADFLAGS": ("FlagsError", 260),
    "ETOOSMALL": ("TooSmallError", 257),
    "EBUSY": ("BusyError", errno.EBUSY),
    "EACCES": ("AccessError", errno.EACCES),
    "EINVAL": ("RmaError", errno.EINVAL),
    "EMSGSIZE": ("RmaError", errno.EMSGSIZE),
    "ENODEV": ("RmaError", errno.ENODEV),
}


def test_refused_registrations(tmp_path):
    """Each by its class, with the call and the provider; the next one works."""
    code = f"""
    import resource
    with works(make()) as first:
        for name in {list(REFUSALS)}:
            os.environ["DEMAND_FAULT"] = "regattr:*:" + name
            caught(make)
            os.environ["DEMAND_FAULT"] = ""
            with make():
                pass
        works(first)

        # one of the random ones that is taken is drawn again, one that was asked for is not
        os.environ["DEMAND_FAULT"] = ",".join(f"regattr:{{n}}:ENOKEY" for n in range(99) if n % 8)
        with works(make()):
            os.environ["DEMAND_FAULT"] = "regattr:*:ENOKEY"
            caught(lambda: make(key=5))

        # what the system allows is said
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
        os.environ["DEMAND_FAULT"] = "regattr:*:ENOMEM"
        caught(make)
        os.environ["DEMAND_FAULT"] = ""

    # what cannot be closed stays, and the process ends in order
    win = works(make())
    os.environ["DEMAND_FAULT"] = "close_mr:*:EBUSY"
    caught(win.close)
    os.environ["DEMAND_FAULT"] = ""
    assert win.closed
    """
    *lines, key, memory, busy = run("none", tmp_path, code)
    assert len(lines) == len(REFUSALS)
    for (name, (cls, number)), line in zip(REFUSALS.items(), lines, strict=True):
        assert line[:3] == [cls, str(number), "fi_mr_regattr"], name
        assert "provider demand" in line[3]
        assert "rank 0" in line[3]
    assert key[0] == "NoKeyError"
    assert "key=0x5" in key[3]
    assert memory[0] == "MemoryError"
    assert "32 bytes" in memory[3]
    assert "provider demand" in memory[3]
    assert "1048576 bytes (ulimit -l)" in memory[3]
    assert busy[:3] == ["BusyError", str(errno.EBUSY), "fi_close"]
    assert not list(demanding.complaints(tmp_path, 1))


# -- keys --------------------------------------------------------------------------


def test_raw_keys(tmp_path):
    code = """
    with works(make()):
        os.environ["DEMAND_FAULT"] = "raw_attr:*:ETOOSMALL"
        caught(make)
        os.environ["DEMAND_FAULT"] = ""
        caught(lambda: make(key=5))
    """
    small, chosen = run("raw", tmp_path, code)
    assert small[:3] == ["TooSmallError", "257", "fi_mr_raw_attr"]
    assert "provider demand" in small[3]
    assert chosen[0] == "KeyRejectedError"
    assert "RAW" in chosen[3]


def test_short_keys(tmp_path):
    code = """
    caught(lambda: make(key=1 << 16))
    with works(make(key=0xfffe)) as win:
        assert int.from_bytes(win.memory.key, sys.byteorder) == 0xfffe
        caught(lambda: make(key=0xfffe))
        with works(make()) as other:
            assert int.from_bytes(other.memory.key, sys.byteorder) < 1 << 16
    """
    rejected, taken = run("none:2", tmp_path, code)
    assert rejected[0] == "KeyRejectedError"
    assert "key=0x10000: provider demand takes keys of 2 bytes" in rejected[3]
    assert taken[0] == "NoKeyError"


@pytest.mark.parametrize("mode", ["none:1", "raw:1"])
def test_all_keys_are_used(tmp_path, mode):
    """Of 256; the next window is refused, and one can be made when another is closed."""
    code = """
    wins, refused = [], None
    while refused is None:
        try:
            wins.append(works(make()))
        except rmaext.NoKeyError as error:
            refused = error
    print(len(wins))
    assert "rank 0: fi_mr_regattr: 32 bytes" in str(refused), refused
    for win in wins:
        win.close()
        works(make()).close()
    """
    ((count,),) = run(mode, tmp_path, code)
    assert 240 < int(count) < 256  # one or more for what all windows share
    assert not list(demanding.complaints(tmp_path, 1))


def test_authorization_keys(tmp_path):
    code = """
    with works(make(auth_key=b"sesame")), works(make()):
        os.environ["DEMAND_FAULT"] = "auth_key:*:EKEYREJECTED"
        caught(lambda: make(auth_key=b"barley"))
        with works(make()):  # which has none
            os.environ["DEMAND_FAULT"] = ""
        try:
            make(auth_key=b"open sesame")
        except ValueError as error:
            print(error)
    """
    rejected, long = run("none", tmp_path, code, DEMAND_AUTH_KEY_SIZE="6")
    assert rejected[:3] == ["KeyRejectedError", str(errno.EKEYREJECTED), "fi_mr_regattr"]
    words = "rank 0: auth_key of 11 bytes: provider demand has those of 6 (<string>:"
    assert [line[: len(words)] for line in long] == [words]


# -- several arrays ----------------------------------------------------------------

PIECES = """
    room = np.zeros(100)
    arrays = [{arrays}]
    arrays[2].flags.writeable = {all_alike}
    with rmaext.Window(MPI.COMM_SELF, arrays) as win:
        print(win.fabric.iov_limit, win.fabric.stats["registrations"] - OWN)
        assert len({{part.key for part in win.memory}}) == {keys}
        for k, array in enumerate(arrays):
            assert np.shares_memory(array, room)
            place = sum(map(len, arrays[:k]))
            if array.flags.writeable:
                win.put(np.full(len(array), k + 1.0), 0, place)
                win.fetch_add(0.5, 0, place)
        win.flush()
        for k, array in enumerate(arrays):
            if array.flags.writeable:
                assert array.tolist() == [k + 1.5] + [k + 1] * (len(array) - 1), array
        whole = np.concatenate(arrays)
        assert (win.get(0) == whole).all()
        assert room.sum() == whole.sum()  # nothing between them
"""


@pytest.mark.parametrize(
    ("mode", "arrays", "all_alike", "limit", "regions"),
    [
        ("virt_addr", "room[50:60], room[10:13], room[20:30], room[0:4]", True, 3, 2),
        ("none", "room[61:64], room[4:5], room[25:29], room[9:10]", True, 4, 1),
        ("none", "room[61:64], room[4:5], room[25:29], room[9:10]", False, 4, 3),
    ],
)
def test_several_arrays(tmp_path, mode, arrays, all_alike, limit, regions):
    """One region: as many pieces as the provider takes, all of the same rights."""
    own = "    OWN = make().fabric.stats['registrations']\n"
    code = PIECES.format(arrays=arrays, all_alike=all_alike, keys=regions)
    (line,) = run(mode, tmp_path, own + code, DEMAND_IOV_LIMIT=str(limit))
    assert line == [f"{limit} {regions}"]


# -- counters, pages, devices ------------------------------------------------------


def test_writes_received(tmp_path):
    """Also where the region is to be told of its counter, and of much else."""
    code = """
    with make(counts_writes=True) as win, make() as other:
        assert win.writes_received == 0
        for i in range(3):
            win.put(i, 0, i)
            other.put(i, 0, i)
        win.get(0)
        win.flush()
        assert win.writes_received == 3, win.writes_received
        caught(lambda: other.writes_received)
        os.environ["DEMAND_FAULT"] = "bind:*:ENOSYS"
        before = win.fabric.stats
        caught(lambda: make(counts_writes=True))
        after = win.fabric.stats
        assert after["registrations"] - before["registrations"] == (
            after["deregistrations"] - before["deregistrations"])
        os.environ["DEMAND_FAULT"] = ""
        caught(lambda: make(key=5))
    """
    unasked, refused, key = run("efa+rma_event", tmp_path, code)
    assert unasked[0] == refused[0] == "Unsupported"
    assert "counts_writes=True" in unasked[3]
    assert "provider demand" in refused[3]
    assert key[:3] == ["KeyRejectedError", str(errno.EKEYREJECTED), "fi_mr_regattr"]
    assert "provider demand chooses the keys" in key[3]


def test_refresh(tmp_path):
    """The provider is told, and may refuse."""
    code = """
    with make() as win, rmaext.Window(MPI.COMM_SELF, [np.zeros(3), np.zeros(3)]) as pair:
        os.environ["DEMAND_FAULT"] = "refresh:*:EINVAL"
        for part in None, slice(0, 2), slice(-1, None):
            caught(lambda: win.refresh(part))
            caught(lambda: win.subwindow(1, 4).refresh(part))
        caught(lambda: pair.refresh(slice(4, 5)))
        win.refresh(slice(2, 2))  # of nothing
        pair.refresh(slice(9, 99))
        os.environ["DEMAND_FAULT"] = ""
        for part in None, slice(0, 2), slice(-1, None):
            win.refresh(part)
        works(win)
    """
    lines = run("mmu_notify", tmp_path, code)
    assert [line[:3] for line in lines] == [["RmaError", str(errno.EINVAL), "fi_mr_refresh"]] * 7
    assert all("provider demand" in line[3] for line in lines)
    assert demanding.calls(tmp_path, "refresh")[0] >= 10


def test_memory_of_devices(tmp_path):
    """Its kind reaches the provider; one that is not said, or wrong, is refused by it."""
    code = f"""
    import ctypes
    provider = ctypes.CDLL({str(demanding.FOLDER / "demand-fi.so")!r})
    provider.demand_device.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = np.frombuffer(mmap.mmap(-1, 1 << 16), "i8")
    assert provider.demand_device(page.ctypes.data, page.nbytes, 2) == 0  # FI_HMEM_ROCR
    def device(**how):
        return rmaext.Window(MPI.COMM_SELF, page, **how)
    caught(device)
    caught(lambda: device(kind="cuda"))
    caught(lambda: make(kind="ze", device=1))
    with works(make()), works(device(kind="rocr", device=3)) as win:
        assert (win.memory.kind, win.memory.device) == ("rocr", 3)
    """
    lines = run("hmem", tmp_path, code)
    assert [line[:3] for line in lines] == [["RmaError", str(errno.EINVAL), "fi_mr_regattr"]] * 3
