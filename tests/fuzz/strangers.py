# SPDX-License-Identifier: BSD-3-Clause
"""Strangers at the ports of a job: another user, or another host, sends wrong streams.

    python tests/fuzz/strangers.py --minutes 30 [--libfabric wheel] [--source host] [--seed 1]

A job of three ranks in a network namespace of its own puts, gets, updates and fences over
tcp or tcp;ofi_rxm and checks its data (attacked.py). Processes of another user play the cases of
streams.py against its ports: in the same namespace, or with `--source host` in one whose
address is no rank's, while the ranks are on two hosts. A failure is a rank that crashes, data
that are wrong, another error, ranks without a round for --patience seconds, or an exit that
takes longer. It is saved in build/fuzz/strangers, and the job is started anew; `--seed 1 --job 7`
plays the cases of that job again. With --refused a hello that is answered is a failure, too.
The status is 1 if anything failed. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import launch
from board import RANKS, STRANGERS, Board
from streams import Case, Maker
from support import netns
from support.libraries import LIBRARIES, SYSTEM

HELD = 64  # connections that a stranger keeps open at once
CASES, ANSWERED, REFUSED, ERRORS = range(4)  # columns of the counts
FOLDER = launch.ROOT / "build" / "fuzz" / "strangers"


# -- a stranger --------------------------------------------------------------------


def cases(options: argparse.Namespace, job: int, number: int, board: Board) -> Maker:
    """Return what makes the cases of one stranger in one job."""
    return Maker(f"{options.seed}/{job}/{number}", board.peers, options.provider == "tcp")


def stranger(number: int, board: Board, options: argparse.Namespace, pid: int) -> None:
    """Play cases for as long as there is a job; ends with the parent."""
    uid, pace = options.uid, STRANGERS / options.rate
    netns.enter(pid)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    counts, held, job = board.counts[number], deque[socket.socket](), 0
    parent = os.getppid()
    while os.getppid() == parent:
        if not board.attack:
            time.sleep(0.02)
            continue
        if board.attack != job:
            job = board.attack
            maker = cases(options, job, number, board)
            counts[CASES] = 0
        begin = time.monotonic()
        play(maker.case(), counts, held)
        counts[CASES] += 1
        time.sleep(max(0.0, pace - (time.monotonic() - begin)))


def play(case: Case, counts: Any, held: deque[socket.socket]) -> None:
    """Send what a case says over new connections."""
    made: list[socket.socket] = []
    try:
        for _ in range(case.copies):
            made.append(socket.socket())
            made[-1].settimeout(0.3)
            made[-1].connect((case.target.address, case.target.port))
        for k, piece in enumerate(case.pieces):
            for it in made:
                it.sendall(piece)
            if k == 0 and case.reads:
                counts[ANSWERED if made[0].recv(4096) else REFUSED] += 1
            elif case.pause:
                time.sleep(case.pause)
    except TimeoutError:
        pass  # silence, and a full window, are answers too
    except ConnectionError:
        counts[REFUSED] += 1
    except OSError:
        counts[ERRORS] += 1
    for it in made:
        if case.end == "hold":
            held.append(it)
            if len(held) > HELD:
                held.popleft().close()
            continue
        if case.end == "reset":
            it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        it.close()


# -- the job -----------------------------------------------------------------------


class Job:
    """A job under attack."""

    def __init__(
        self, board: Board, path: str, pids: str, library: str, provider: str, limit: float
    ) -> None:
        self._board = board
        board.clear()
        program = str(Path(__file__).with_name("attacked.py"))
        env = {"PYTHONPATH": launch.PYTHONPATH, "RMAEXT_LIBFABRIC": library}
        env |= {"RMAEXT_ROUTE": "fabric", "RMAEXT_PROVIDER": provider}
        command = launch.mpi_command(RANKS)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            ["timeout", "-k", "5", str(limit), *command, sys.executable, program, path, pids],
            env=launch.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._rounds, self._moved = [0] * RANKS, time.monotonic()

    def started(self, limit: float) -> bool:
        """Wait until all ranks have done a round."""
        end = time.monotonic() + limit
        while not all(self._board.rounds) and self._process.poll() is None:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return self._process.poll() is None

    def pace(self, seconds: float) -> float:
        """Return how many rounds a second a rank does; shorter if the job ends."""
        begin, before = time.monotonic(), sum(self._board.rounds)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return (sum(self._board.rounds) - before) / (time.monotonic() - begin) / RANKS

    def failure(self, patience: float) -> str:
        """Return what is wrong with it; "" if nothing is."""
        if self._process.poll() is not None:
            return self._ended()
        rounds, now = self._board.rounds, time.monotonic()
        if min(rounds) > min(self._rounds):
            self._rounds, self._moved = rounds, now
        return "stall" if now - self._moved > patience else ""

    def stop(self, patience: float) -> str:
        """Let it end; returns what is wrong with that."""
        self._board.stop = True
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            return "stall at the exit"
        return self._ended() if self._process.returncode else ""

    def _ended(self) -> str:
        text = self.text()
        for sign in ("Segmentation fault", "Bus error", "Aborted", "wrong data"):
            if sign in text:
                return sign
        code = self._process.returncode
        names = {128 + it: it.name for it in signal.Signals}
        return names.get(code % 256, f"error, status {code}")

    def text(self) -> str:
        """Return what it printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def end(self) -> None:
        """End what is left of it."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(3)
        for peer in self._board.peers:  # of ours, as long as its program is
            with contextlib.suppress(OSError):
                if b"attacked.py" in Path(f"/proc/{peer.pid}/cmdline").read_bytes():
                    os.kill(peer.pid, signal.SIGKILL)
        self._process.wait(10)
        self._output.close()


# -- the run -----------------------------------------------------------------------


@contextlib.contextmanager
def hosts(source: str) -> Iterator[tuple[str, int]]:
    """Make the namespaces: those of the ranks, and the strangers'."""
    if source == "user":
        with netns.namespaces(1) as (only,):
            yield ",".join([str(only.pid)] * RANKS), only.pid
        return
    with netns.namespaces(3) as (first, second, other):
        netns.join("cable", [(first, "10.77.0.1/24"), (second, "10.77.0.2/24")])
        for k, host in enumerate((first, second)):
            netns.join(f"other{k}", [(host, f"10.{80 + k}.0.1/24"), (other, f"10.{80 + k}.0.9/24")])
            other.run("ip", "route", "add", f"10.77.0.{1 + k}/32", "via", f"10.{80 + k}.0.1")
        yield f"{first.pid},{first.pid},{second.pid}", other.pid


def fork(board: Board, options: argparse.Namespace, pid: int) -> list[int]:
    """Start the strangers."""
    made = []
    for number in range(STRANGERS):
        child = os.fork()
        if not child:
            try:
                stranger(number, board, options, pid)
            finally:
                os._exit(1)
        made.append(child)
    return made


def save(found: str, board: Board, job: int, options: argparse.Namespace, text: str) -> Path:
    """Write down a failure: what is needed to make its cases again, and the last ones."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    last: dict[int, list[Any]] = {}
    for number in range(STRANGERS):
        count = int(board.counts[number, CASES])
        maker = cases(options, job, number, board)
        made = [maker.case() for _ in range(count + 1)][-5:]
        last[number] = [asdict(it) | {"pieces": [p.hex() for p in it.pieces]} for it in made]
    it = vars(options) | {"found": found, "job": job, "cases": board.counts[:, CASES].tolist()}
    path = FOLDER / f"{options.seed}-{job}.json"
    path.write_text(json.dumps(it | {"output": text[-8000:], "last": last}, indent=1))
    return path


def main() -> int:
    """Attack; returns the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--uid", type=int, default=65534, help="whose the strangers are")
    parser.add_argument("--libfabric", default="system", help="system, wheel or a path")
    parser.add_argument("--provider", choices=("tcp", "tcp;ofi_rxm"), help="the one it prefers")
    parser.add_argument("--source", choices=("user", "host"), default="user")
    parser.add_argument("--rate", type=float, default=100, help="cases a second at most")
    parser.add_argument("--patience", type=float, default=8, help="seconds of a stall")
    parser.add_argument("--job", type=int, default=1, help="number of the first job")
    parser.add_argument("--failures", type=int, default=0, help="end after so many; 0: never")
    parser.add_argument("--refused", action="store_true", help="an answer is a failure")
    options = parser.parse_args()
    if netns.missing():
        print(f"no network namespaces: {netns.missing()}")
        return 77
    library = LIBRARIES.get(options.libfabric, options.libfabric)
    options.provider = options.provider or ("tcp;ofi_rxm" if library == SYSTEM else "tcp")
    print(f"{options.provider} of {library}, seed {options.seed}, user {options.uid},", end=" ")
    print(f"from another {options.source}")
    with tempfile.TemporaryDirectory() as folder, hosts(options.source) as (pids, pid):
        path = f"{folder}/board"
        board = Board(path)
        children = fork(board, options, pid)
        try:
            return attack(board, path, pids, library, options, children)
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def attack(
    board: Board,
    path: str,
    pids: str,
    library: str,
    options: argparse.Namespace,
    children: list[int],
) -> int:
    """Run jobs until the time is over; returns the status."""
    begin = said = time.monotonic()
    end = begin + 60 * options.minutes
    found, played, job = Counter[str](), 0, options.job - 1
    slowest, usual = math.inf, 0.0
    while time.monotonic() < end and (not options.failures or found.total() < options.failures):
        job += 1
        it = Job(board, path, pids, library, options.provider, end - time.monotonic() + 90)
        if not it.started(30):
            print(it.text())
            it.end()
            raise SystemExit("the job does not start")
        usual = it.pace(1.0)
        board.attack, wrong = job, ""
        while not wrong and time.monotonic() < end:
            slowest = min(slowest, it.pace(1.0))
            wrong = it.failure(options.patience)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                report(said - begin, played, board, found, slowest, usual)
            for child in children:
                if os.waitpid(child, os.WNOHANG)[0]:
                    raise SystemExit("a stranger failed")
        if not wrong:
            wrong = it.stop(options.patience)
        board.attack = 0
        if wrong:
            found[wrong] += 1
            print(f"  {wrong} after {board.counts[:, CASES].sum()} cases:", end=" ")
            print(save(wrong, board, job, options, it.text()))
        played += int(board.counts[:, CASES].sum())
        board.counts[:, CASES] = 0
        it.end()
    report(time.monotonic() - begin, played, board, found, slowest, usual)
    answered = int(board.counts[:, ANSWERED].sum())
    return int(bool(found) or (options.refused and answered > 0) or not played)


def report(
    seconds: float, cases: int, board: Board, found: Counter[str], slowest: float, usual: float
) -> None:
    """Print a line on how it goes."""
    counts = board.counts.sum(0).tolist()
    what = ", ".join(f"{count} {name}" for name, count in found.items()) or "no failure"
    print(
        f"{seconds:5.0f} s: {cases + counts[CASES]} cases, {counts[ANSWERED]} hellos answered, "
        f"{counts[REFUSED]} refused; {what}; {slowest:.0f} rounds in the slowest second, "
        f"{usual:.0f} without strangers",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
