#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a stranger does first, on machines where nothing of ours has ever run.

    tests/fresh/run.py [--list] [--jobs N] [CASE ...]

Each case is a command in a throw-away machine (tests/fresh/machine), which is given what
is committed; by itself all of them run. One line each tells how it went, and
build/fresh/CASE.log what was printed. The status is 0 if all went as they should, 77 if
there can be no such machine here. It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "fresh"
SKIPPED = 77
FAULTS = re.compile(r"Traceback|fatal error:")


@dataclass(frozen=True)
class Case:
    """A command, and what is to come of it: one sentence, where it is to fail."""

    name: str
    command: str
    options: tuple[str, ...] = ()
    sentence: str = ""  # a regular expression
    says: tuple[str, ...] = ()  # regular expressions for lines, where it is to succeed
    base: str = ""  # a release of Debian, else this machine
    limit: float = 600


# Each step of the set-up with its seconds; then what tests/jobs/test_demo.py knows more of.
STEPS = ("making", "pip .* numpy", "compiling", "the set-up is done")
DEMO = (*(rf"rmaext: +\d+ s  {step}" for step in STEPS), "    MPI.Win ", "demo: OK")


def both(name: str, *options: str, base: str = "", before: str = "") -> list[Case]:
    """Return the demo with both MPIs, and a second time, which is to start at once."""
    # The status of a pipe is that of its last command.
    twice = (
        "make {0} demo && make {0} demo | tee second && grep -q '^demo: OK' second && "
        "! grep 'the set-up' second"
    )
    return [
        Case(f"{name}-{mpi}", before + twice.format(f"MPI={mpi}"), options, "", DEMO, base)
        for mpi in ("mpich", "openmpi")
    ]


# gcc-12-base stays: all of Debian needs it
COMPILER = "gcc gcc-[0-9][0-9] cpp cpp-[0-9]* g++ g++-[0-9]* clang tcc libc6-dev linux-libc-dev"
# A bare Debian has neither make nor a Python.
MAKE = "apt-get -q update && apt-get -qy install --no-install-recommends make && "
PYTHON_315 = (
    "apt-get -qy install --no-install-recommends python3.15-venv python3.15-dev && "
    "ln -s /usr/bin/python3.15 /usr/local/bin/python3 && python3 --version && "
)
RUN_PROGRAM = (
    "python3 tests/fresh/program.py >example.py && "
    "timeout 60 .venv/bin/mpiexec -n 4 .venv/bin/python example.py"
)
# What newer compilers, headers and Pythons have a say in.
NEWER = (
    "make -j4 develop && make test-2 "
    "ARGS='tests/ops/test_put_get.py tests/ops/test_atomic.py tests/native/test_c_methods.py' && "
    "make test-serial ARGS='tests/unit tests/native tests/ops "
    f"tests/containers/test_taskqueue_interrupted.py' && {RUN_PROGRAM}"
)

# README.md's first block: pip from the checkout, and from an sdist of it, and its program.
NEEDS = "apt-get -q update && apt-get -qy install --no-install-recommends python3-venv "
VENV = "cd .. && python3 -m venv venv && "
SDIST = "venv/bin/pip -q install build && venv/bin/python -m build -q --sdist -o . rmaext && "
RUN_INSTALLED = (
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 "
    "venv/bin/mpiexec -n 4 {0} venv/bin/python example.py"
)
SAYS = (r".*\[4\. 3\. 3\. 3\.\]", r".*\[0\. 0\. 0\. 0\.\]", r".*\[0\. 2\. 2\. 2\.\]")


def installs(mpi: str, more: str) -> list[Case]:
    """Return the ways to install with pip for an MPI, whose mpiexec takes `more` arguments."""
    ready = f"{NEEDS} gcc libc6-dev python3-dev libfabric-dev && {VENV}"
    program = f"python3 rmaext/tests/fresh/program.py >example.py && {RUN_INSTALLED.format(more)}"
    sdist = "$(echo ./rmaext-*.tar.gz)"
    # All that pip wants is in a folder: no index is asked, and there is no network.
    offline = (
        f"venv/bin/pip -q wheel -w wheels 'setuptools>=77.0.3' 'cffi>=1.16' './rmaext[{mpi}]' && "
        "rm wheels/rmaext-*.whl && unshare -n env PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/wheels "
    )
    pip = f"venv/bin/pip install './rmaext[{mpi}]'"
    # What pip says of a build is indented.
    refused = f"{pip} >log 2>&1; status=$?; sed 's/^ *rmaext: /rmaext: /' log; exit $status"
    return [
        Case(f"pip-{mpi}", f"{ready}{pip} && {program}", says=SAYS),
        Case(
            f"pip-sdist-{mpi}",
            f'{ready}{SDIST}venv/bin/pip install "{sdist}[{mpi}]" && {program}',
            says=SAYS,
        ),
        Case(f"pip-offline-{mpi}", f"{ready}{offline}{pip} && {program}", says=SAYS),
        Case(
            f"pip-no-compiler-{mpi}",
            f"{NEEDS} python3-dev && {VENV}{refused}",
            ("-x", COMPILER),
            "no C compiler.*: install one",
        ),
        Case(
            f"pip-no-headers-{mpi}",
            f"{NEEDS} gcc libc6-dev python3-dev && {VENV}{refused}",
            sentence="rdma/fi_domain.h.*libfabric-dev",
        ),
    ]


CASES = [
    *both("demo"),
    *installs("mpich", ""),
    *installs("openmpi", "--map-by :OVERSUBSCRIBE"),
    Case("program", f"make build && {RUN_PROGRAM}"),
    Case("jobs", "make -j4 demo"),
    *both("spaces", "-d", "/home/fresh/a folder of mine"),
    Case("no-compiler", "make demo", ("-x", COMPILER)),
    Case("sudo", "make demo", ("-u", "scientist", "-S")),
    Case("moved", "make demo && mv ../rmaext ../moved && cd ../moved && make demo"),
    Case("no-home", "make demo", ("-E", "-u HOME")),
    Case(
        "nameless",  # as in containers that give a number for the user
        ".ci/packages && chown -R 4242 . && setpriv --reuid 4242 --regid 4242 --clear-groups "
        "env -u HOME make demo",
    ),
    Case("no-root", "make demo", ("-u", "scientist"), "not root.*libfabric-dev.*python3-venv"),
    Case("no-root-test", "make -j4 test", ("-u", "scientist"), "not root.*libfabric-dev"),
    Case("offline", "make demo", ("-o",), "offline.*libfabric-dev"),
    Case("offline-pip", "timeout 60 make demo", ("-k", "-o"), "offline.*PIP_FIND_LINKS"),
    Case(
        "read-only",
        "mount --bind . . && mount -o remount,bind,ro . && cd . && make demo",
        sentence="cannot be written to",
    ),
    Case(
        "old-python",
        MAKE + "apt-get -qy install --no-install-recommends python3 && make demo",
        sentence=r"Python 3\.9.* is too old",
        base="bullseye",
    ),
    Case(
        "not-linux",
        "printf '#!/bin/sh\necho Darwin\n' >/usr/local/bin/uname && "
        "chmod +x /usr/local/bin/uname && make demo",
        sentence="this is Darwin.*Linux only",
    ),
    Case(
        "spaces-test",
        "make -j4 develop && make test-2 ARGS=tests/ops/test_put_get.py && make test-serial "
        "ARGS='tests/provider/test_demanding.py tests/unit/test_makefile.py tests/cli/test_info.py "
        "tests/cli/test_run.py'",
        ("-d", "/home/fresh/a folder of mine"),
    ),
    *both("trixie", base="trixie", before=MAKE),
    *both("forky", base="forky", before=MAKE),
    *(
        Case(f"{release}-test", MAKE + NEWER, base=release, limit=2400)
        for release in ("trixie", "forky")
    ),
    # A Python newer than Debian's own.
    Case("forky-python3.15", MAKE + PYTHON_315 + NEWER, base="forky", limit=2400),
    Case("test-mpich", "make test", limit=5400),
    Case("test-openmpi", "make test MPI=openmpi", limit=5400),
]


def base(release: str) -> Path:
    """Return the root of a bare Debian, which is made the first time."""
    tree = FOLDER / f"debian-{release}"
    if not tree.exists():
        # debootstrap is unpacked, not installed: this machine stays as it is
        script = """
            set -e
            cd "$0"
            rm -rf tool partial
            apt-get -qq -o APT::Sandbox::User=root download debootstrap || {
                apt-get -qq update
                apt-get -qq -o APT::Sandbox::User=root download debootstrap
            }
            dpkg -x debootstrap_*.deb tool
            rm debootstrap_*.deb
            # A release that is newer than debootstrap is made as unstable is.
            [ -e "tool/usr/share/debootstrap/scripts/$1" ] ||
                ln -s sid "tool/usr/share/debootstrap/scripts/$1"
            DEBOOTSTRAP_DIR=$PWD/tool/usr/share/debootstrap \
                tool/usr/sbin/debootstrap --variant=minbase "$1" partial
            # A mirror's copy of testing may be some days past its date; it is signed all the same.
            echo 'Acquire::Check-Valid-Until "false";' >partial/etc/apt/apt.conf.d/90late
            mv partial "debian-$1"
        """
        with open(FOLDER / f"debian-{release}.log", "wb") as log:
            subprocess.run(
                ["sh", "-c", script, str(FOLDER), release], stdout=log, stderr=log, check=True
            )
    return tree


def judge(case: Case, status: int, said: str) -> str:
    """Return what is wrong with the outcome of a case; "" if nothing is."""
    if not case.sentence:
        missing = [line for line in case.says if not re.search(f"(?m)^{line}", said)]
        if status == 0 and missing:
            return f"it does not say {missing[0]}"
        return "" if status == 0 else f"status {status}"
    if status == 0:
        return "status 0, where it should fail"
    if FAULTS.search(said):
        return "it fails with a traceback or a compiler's words"
    sentences = [line for line in said.splitlines() if line.startswith("rmaext: ")]
    if not (sentences and re.search(case.sentence, sentences[-1])):
        return f"it does not say why: {sentences[-1:]}"
    return ""


def run(case: Case) -> bool:
    """Run a case; print how it went."""
    start = time.monotonic()
    log = FOLDER / f"{case.name}.log"
    options = [*case.options, "-s", str(ROOT)]
    if case.base:
        options += ["-k", "-r", str(base(case.base))]
    command = ["timeout", "-k", "10", str(case.limit), str(ROOT / "tests" / "fresh" / "machine")]
    with open(log, "wb") as output:
        status = subprocess.run(
            [*command, *options, case.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
    said = log.read_text(errors="replace")
    wrong = judge(case, status, said)
    outcome = f"FAILED: {wrong}; see {log.relative_to(ROOT)}" if wrong else "as it should be"
    print(f"{case.name:<14} {outcome}, {time.monotonic() - start:.0f} s", flush=True)
    if not wrong and case.sentence:
        print("  " + [x for x in said.splitlines() if x.startswith("rmaext: ")][-1], flush=True)
    return not wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that were named, or all. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("case", nargs="*", help="default: all")
    options = parser.parse_args(arguments)
    known = {case.name: case for case in CASES}
    if options.list:
        print(*known, sep="\n")
        return 0
    if unknown := set(options.case) - set(known):
        parser.error(f"no such case: {', '.join(sorted(unknown))} (--list names them)")
    machine = str(ROOT / "tests" / "fresh" / "machine")
    if subprocess.run([machine, "-k", "true"], stderr=subprocess.PIPE).returncode == SKIPPED:
        print("skipped: there can be no fresh machine here, which takes root and overlayfs")
        return SKIPPED
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = [known[name] for name in options.case] or CASES
    for release in sorted({case.base for case in wanted} - {""}):
        base(release)  # before the cases, several of which may begin with the same one
    with ThreadPoolExecutor(options.jobs) as pool:
        good = list(pool.map(run, wanted))
    print(f"{sum(good)} passed, {len(good) - sum(good)} failed", flush=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
