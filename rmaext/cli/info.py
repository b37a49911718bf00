# SPDX-License-Identifier: BSD-3-Clause
"""python -m rmaext info: what rmaext finds on this machine, and what it would use."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import resource
import signal
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from . import devices

__all__ = ["add", "apart", "collect", "find_devices", "library_in_use"]

FORMAT = 1  # of the JSON
_LIMIT = 20.0  # seconds that a provider may take to answer
_CACHE = "FI_MR_CACHE_"


def add(commands: Any) -> None:
    """Add the command `info` to the parser's subcommands."""
    parser = commands.add_parser(
        "info",
        allow_abbrev=False,
        help="what rmaext finds here, and what it would use",
        description="Print versions, the copies of libfabric that there are and which one is "
        "used, its providers with their demands and limits, the routes that this machine "
        "allows, and the settings in force. MPI is not initialised; no mpiexec is needed.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(function=info)


def info(options: argparse.Namespace) -> int:
    """Print everything; the status is 0 if a libfabric can be opened."""
    found = collect()
    print(json.dumps(found, indent=2) if options.json else "\n".join(_report(found)))
    return 0 if "error" not in found["libfabric"] else 1


def collect() -> dict[str, Any]:
    """Return all that `info` shows, as JSON has it.

    Whatever opens a libfabric or a provider does so in a child of its own, under
    a time limit: one that crashes or hangs is an entry with an "error".
    """
    library = apart(library_in_use)
    names = dict.fromkeys(c["provider"] for c in library.get("candidates", ()))
    return {
        "format": FORMAT,
        "versions": _versions(),
        "libfabric": {
            **{k: v for k, v in library.items() if k not in ("candidates", "settings")},
            "copies": [{"path": path, **apart(_version_of, path)} for path in _copies()],
        },
        "providers": [_provider(name, library) for name in names],
        "routes": _routes(),
        "devices": find_devices(),
        "cache": {name: v for name, v in library.get("settings", {}).items() if _CACHE in name},
        "limits": _limits(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("RMAEXT_", "FI_", "UCX_"))
        },
    }


# -- children ----------------------------------------------------------------------


def apart(function: Callable[..., Any], *args: Any, limit: float = _LIMIT) -> dict[str, Any]:
    """Return what a function returns in a forked child, or {"error": why there is nothing}.

    To be called before this process opens a libfabric or starts threads.
    """
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(send, function, *args), daemon=True)
    child.start()
    send.close()
    try:
        if not receive.poll(max(0.0, limit)):
            return {"error": f"no answer within {limit:.3g} s"}
        answer: dict[str, Any] = json.loads(receive.recv_bytes())
        return answer
    except EOFError:
        child.join(5)
        code = child.exitcode or 0
        return {"error": f"crashed: {signal.Signals(-code).name}" if code < 0 else "ended"}
    finally:
        child.kill()
        child.join()
        receive.close()


def _child(send: Any, function: Callable[..., Any], *args: Any) -> None:
    try:
        answer = function(*args)
    except Exception as exc:
        answer = {"error": str(exc)}
    send.send_bytes(json.dumps(answer).encode())
    os._exit(0)  # no exit handler of a provider has a say


# -- what there is -----------------------------------------------------------------


def _versions() -> dict[str, str]:
    def of(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "missing"

    from .. import __version__

    return {
        "rmaext": __version__,
        "python": platform.python_version(),
        "numpy": of("numpy"),
        "mpi4py": of("mpi4py"),
        "mpi": str(apart(_mpi).get("mpi", "missing")),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _mpi() -> dict[str, str]:
    # Loads the library, but does not initialise it.
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    name, version = MPI.get_vendor()
    return {"mpi": f"{name} {'.'.join(map(str, version))}"}


def library_in_use() -> dict[str, Any]:
    """Open the library that a program would; in a child."""
    from .._fabric import library
    from .._fabric.transport import open_transport
    from .._runtime.config import Config

    config = Config.read()
    answer: dict[str, Any] = {}
    try:
        _mpi()  # some copies are MPI's, and are loaded with it
    except Exception as exc:
        answer["mpi_error"] = str(exc)
    try:
        places = dict(reversed(list(library.places())))
        opened = open_transport(config)
        # the one that windows are to take may answer only to its name
        names = dict.fromkeys(("", config.provider))
        found = [c for name in names for c in opened.candidates(name, config.mr_basic)]
        chosen = config.ucx if config.transport == "ucx" else config.library
        named = "RMAEXT_UCX" if config.transport == "ucx" else "RMAEXT_LIBFABRIC"
        loaded = "what MPI has loaded" if opened.shared else "the system's"
        answer |= {
            "transport": config.transport,
            "path": opened.path,
            "version": opened.version,
            "why": named if chosen else places.get(opened.path, loaded),
            "shared_with_mpi": opened.shared,
            "candidates": [c._asdict() for c in dict.fromkeys(found)],
            "settings": opened.settings(),
        }
    except Exception as exc:
        answer["error"] = str(exc)
    return answer


def _copies() -> list[str]:
    from .._fabric import library

    found: dict[str, str] = {}
    wanted = os.environ.get("RMAEXT_LIBFABRIC", "")
    for name in (wanted, *(path for path, _ in library.places())):
        if os.path.exists(name):
            found.setdefault(os.path.realpath(name), name)
    return list(found.values())


def _version_of(path: str) -> dict[str, str]:
    from .._fabric.library import Library

    return {"version": Library(path).version}


def _provider(name: str, library: dict[str, Any]) -> dict[str, Any]:
    from .._runtime.config import preferred

    own = [c for c in library["candidates"] if c["provider"] == name]
    places = [{k: c[k] for k in ("domain", "iface", "address", "prefix")} for c in own]
    ucx = library["transport"] == "ucx"
    order = ["ucx"] if ucx else preferred([library["version"]])
    preference = order.index(name) if name in order else None
    return {"name": name, "preference": preference, **apart(_survey, name), "endpoints": places}


def _survey(name: str) -> dict[str, Any]:
    from .._fabric.transport import open_transport
    from .._runtime.config import Config

    config = Config.read()
    if config.transport == "ucx":
        _mpi()  # whose UCX it is
    return open_transport(config).survey(name, config.mr_basic)


# -- the machine -------------------------------------------------------------------


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _read(path)
    return int(text) if text.lstrip("-").isdigit() else None


def _routes() -> dict[str, Any]:
    """Tell which routes between processes of this machine there would be, by trying them."""
    scope = _number("/proc/sys/kernel/yama/ptrace_scope")
    shm = None
    if os.path.isdir("/dev/shm"):
        status = os.statvfs("/dev/shm")
        shm = status.f_bavail * status.f_frsize
    tried = _beside(_arena, _reach)
    return {
        "direct": tried.get("direct", False),
        "cma": tried.get("cma", False),
        **({"error": tried["error"]} if "error" in tried else {}),
        "yama_ptrace_scope": scope,
        "memfd": hasattr(os, "memfd_create"),
        "dev_shm_free": shm,
    }


def find_devices(limit: float = _LIMIT) -> dict[str, Any]:
    """Return what there is of CUDA, and whether one process maps the memory of another."""
    end = time.monotonic() + limit
    found = apart(devices.driver, limit=limit)
    if "error" not in found:
        tried = _beside(devices.owner, devices.mapped, end - time.monotonic())
        found["ipc"] = "error" not in tried
        found |= {"ipc_error": tried["error"]} if "error" in tried else {}
    return found


def _beside(
    own: Callable[[], dict[str, Any]],
    reach: Callable[[dict[str, Any]], dict[str, Any]],
    limit: float = _LIMIT,
) -> dict[str, Any]:
    """Return what one child finds of the memory of another, by what that has told."""
    end = time.monotonic() + limit
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(duplex=False)
    hold, release = fork.Pipe(duplex=False)
    owner = fork.Process(target=_owner, args=(send, hold, own), daemon=True)
    owner.start()
    send.close()
    try:
        if not receive.poll(max(0.0, limit)):
            return {"error": f"no answer within {limit:.3g} s of the process with the memory"}
        facts = json.loads(receive.recv_bytes())
        return facts if "error" in facts else apart(reach, facts, limit=end - time.monotonic())
    except EOFError:
        return {"error": "the process with the memory crashed"}
    finally:
        release.close()
        owner.kill()
        owner.join()


def _owner(send: Any, hold: Any, own: Callable[[], dict[str, Any]]) -> None:
    try:
        facts = own()
    except Exception as exc:
        facts = {"error": str(exc)}
    send.send_bytes(json.dumps(facts).encode())
    hold.poll(_LIMIT)  # the memory must stay
    os._exit(0)


def _arena() -> dict[str, Any]:
    """Return how others prove, as ranks do, what they can do with this process's memory."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from .._memory.node import Arena, allow_copies
    from .._runtime.config import Config

    if Config.read().ptracer:
        allow_copies()
    arena = Arena.own()
    address, first = arena.process()
    facts = {"pid": os.getpid(), "address": address, "first": list(first)}
    return facts | {"nonce": arena.nonce.hex()}


def _reach(facts: dict[str, Any]) -> dict[str, bool]:
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from .._memory.node import Block, Process

    nonce, first = bytes.fromhex(facts["nonce"]), Block(*facts["first"])
    fd = os.pidfd_open(facts["pid"])
    process = Process.find(facts["pid"], facts["address"], nonce, first, fd)
    return {"direct": process.can_map, "cma": process.can_copy}


def _limits() -> dict[str, Any]:
    def soft(which: int) -> int | None:
        value = resource.getrlimit(which)[0]
        return None if value == resource.RLIM_INFINITY else value

    return {
        "locked_memory": soft(resource.RLIMIT_MEMLOCK),  # None: unlimited
        "descriptors": soft(resource.RLIMIT_NOFILE),
        "mappings": _number("/proc/sys/vm/max_map_count"),
        "overcommit": _number("/proc/sys/vm/overcommit_memory"),
        "huge_pages": _number("/proc/sys/vm/nr_hugepages"),
        "cpus": len(os.sched_getaffinity(0)),
    }


# -- for people --------------------------------------------------------------------


def _bytes(n: int | None) -> str:
    if n is None:
        return "unlimited"
    if n >= 1 << 62:
        return "unlimited"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n} {unit}"
        if n % 1024 and n < 1 << 20:
            return f"{n} {unit}"
        n //= 1024
    raise AssertionError("unreachable")


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _report(found: dict[str, Any]) -> list[str]:
    lines = ["versions"]
    lines += [f"  {name:<10} {text}" for name, text in found["versions"].items()]
    lines += _library_lines(found["libfabric"])
    first = min(
        (p["preference"] for p in found["providers"] if p["preference"] is not None), default=None
    )
    for provider in found["providers"]:
        default = first is not None and provider["preference"] == first
        lines += _provider_lines(provider, default)
    routes = found["routes"]
    lines += ["routes within this machine"]
    lines += [f"  direct     {_yes(routes['direct'])} (memory of rmaext, mapped; memfd)"]
    scope = routes["yama_ptrace_scope"]
    yama = "no Yama" if scope is None else f"Yama's ptrace_scope is {scope}"
    lines += [f"  cma        {_yes(routes['cma'])} (own arrays, process_vm_writev; {yama})"]
    lines += [f"  /dev/shm   {_bytes(routes['dev_shm_free'] or 0)} free (MPI's, not used here)"]
    if "error" in routes:
        lines += [f"  error      {routes['error']}"]
    mark, text = devices.words(found["devices"])
    lines += ["arrays on devices", f"  cuda       {text if mark == 'ok' else f'{mark} ({text})'}"]
    names = enumerate(found["devices"].get("devices", ()))
    lines += [f"  cuda:{number:<5} {name}" for number, name in names]
    lines += ["registration cache of libfabric (off in a copy of our own, unless set here)"]
    for name, setting in found["cache"].items():
        lines += [f"  {name:<34} {setting['value'] or 'not set'}"]
    limits = found["limits"]
    lines += [
        "limits",
        f"  locked memory {_bytes(limits['locked_memory'])} (ulimit -l)",
        f"  descriptors   {limits['descriptors'] or 'unlimited'} (ulimit -n)",
        f"  mappings      {limits['mappings']} (vm.max_map_count)",
        f"  huge pages    {limits['huge_pages']} (vm.nr_hugepages)",
        f"  cores         {limits['cpus']}",
        "environment",
    ]
    lines += [f"  {name}={value}" for name, value in found["environment"].items()] or ["  none"]
    return lines


def _library_lines(library: dict[str, Any]) -> list[str]:
    lines = ["libfabric"]
    for copy in library.get("copies", ()):
        used = "*" if copy["path"] == library.get("path") else " "
        lines += [f"{used} {copy['path']}: {copy.get('version') or copy.get('error')}"]
    if "path" in library:
        of = "UCX, " if library["transport"] == "ucx" else ""
        lines += [f"  used: {of}{library['path']}, {library['version']}: {library['why']}"]
    if library.get("transport") == "libfabric":
        lines += [
            "  shared with MPI: FI_* in the environment counts as it was when MPI began, if MPI "
            "uses it, else when the first window is made"
            if library["shared_with_mpi"]
            else "  a copy of its own, apart from MPI's: FI_* is read when the first window is made"
        ]
    for name in ("error", "mpi_error"):
        if name in library:
            lines += [f"  error: {library[name]}"]
    return lines


def fork_note(release: str, mr_mode: str) -> str | None:
    """Return what to heed before a fork; None where nothing is.

    A network card that has pinned private pages goes on with them after a fork. From
    Linux 5.12 on the child gets copies of such pages, of any size. Before, who writes
    first gets one: the parent may, and then its array is not what the card works on.
    MADV_DONTFORK would end children that only look at the array.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    pins = {"LOCAL", "ALLOCATED"} & set(mr_mode.split("|"))
    if not pins or not found or (int(found[1]), int(found[2])) >= (5, 12):
        return None
    return (
        f"Linux {release} does not copy pinned pages for a child (5.12 does): let windows "
        "allocate their memory, or fork before they are made"
    )


def _provider_lines(provider: dict[str, Any], default: bool) -> list[str]:
    lines = [f"provider {provider['name']}{' (default)' if default else ''}"]
    if "error" in provider:
        return [*lines, f"  error      {provider['error']}"]
    p = provider
    if "atomics" not in p:  # UCX
        domains = [e["domain"] or "none" for e in p["endpoints"]]
        return [
            *lines,
            f"  mr_mode    {p['mr_mode']}; keys of {p['key_size']} bytes or more",
            f"  devices    {', '.join(domains)}",
        ]
    atomics = p["atomics"]
    native = (
        f"{atomics['update']} / {atomics['fetch']} / {atomics['compare']} uint64 at a time"
        if any(atomics.values())
        else "none"
    )
    progress = "by itself, as it says" if p["data_progress"] == "auto" else "when called"
    most = f"at most {p['mr_count']} registrations" if p["mr_count"] else "registrations"
    lines += [
        f"  mr_mode    {p['mr_mode']}; keys of {p['key_size']} bytes; "
        f"{most} of {p['mr_iov_limit']} pieces",
        f"  atomics    all, by message; its own (not used): {native}",
        f"  limits     message {_bytes(p['max_msg_size'])}, inject {_bytes(p['inject_size'])}, "
        f"{p['iov_limit']} pieces locally, {p['rma_iov_limit']} remotely, "
        f"{p['tx_size']} operations in flight",
        f"  progress   {progress}; the thread "
        + ("sleeps on a descriptor" if p["wait_fd"] else "polls, as there is no descriptor"),
    ]
    note = fork_note(platform.release(), p["mr_mode"])
    if note:
        lines += [f"  fork       {note}"]
    for domain in dict.fromkeys(e["domain"] for e in provider["endpoints"]):
        own = [e for e in provider["endpoints"] if e["domain"] == domain and e["address"]]
        places = [f"{e['address']}/{e['prefix']}" for e in own]
        lines += [f"  domain     {domain}: {', '.join(places) or 'no IP address'}"]
    return lines
