# SPDX-License-Identifier: BSD-3-Clause
"""examples/demo.py: what it prints is of this run, fits a screen, and nothing stays behind."""

from __future__ import annotations

import re

import launch
import pytest

TIME = r"[\d,.]+ ms"
SMALL = ["--rows", "16", "--cols", "16", "--steps", "4", "--tasks", "4"]
# What both libraries may truthfully be said to have done, and what ours does.
CASES = {
    "a get from a rank that computes in NumPy for 1 s took": (
        f"{TIME}: it waited|{TIME}: it did not wait|the job ended|no answer",
        f"{TIME}: it (did not wait|waited) for the target$",
    ),
    "a put of 4 elements at element 6 of a window of 8": (
        "no error; |MPI.Exception: |the job ended|no answer",
        "BoundsError: put: .*, rank 1, offset 6, length 4: outside the 8 elements.*; no damage$",
    ),
    "1,000 updates of random elements of a rank took": (
        f"{TIME}, a loop of Accumulate|the job ended|no answer",
        f"{TIME}, one accumulate_many",
    ),
    "a rank is killed, mpiexec lets the others live, and they call fence": (
        r"no answer for \d+ s, then|the job ended with status \d+|\d of 2 went on after",
        f"2 of 2 went on after {TIME}: PeerLostError: fence .* rank 2",
    ),
}

# Whatever loses its parent becomes a child of this process.
KEEPER = """
import ctypes, os, signal, subprocess, sys, time

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
until, *command = sys.argv[1:]
demo = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
for line in demo.stdout:
    print(line, end="", flush=True)
    if until and until in line:
        demo.terminate()
        time.sleep(0.1)
        demo.terminate()  # as of make and timeout(1), one each
status = demo.wait()
end = time.monotonic() + 120
try:
    while os.waitpid(-1, os.WNOHANG) != (0, 0) or time.monotonic() < end:
        time.sleep(0.02)
except ChildProcessError:
    sys.exit(status)
sys.exit("processes are left")
"""


def demo(*args, until=""):
    program = str(launch.ROOT / "examples" / "demo.py")
    env = {"PYTHONUNBUFFERED": "1"}
    return launch.run_python(KEEPER, until, program, *args, env=env, timeout=580)


@pytest.mark.timeout(600)
def test_demo_says_what_both_libraries_do():
    done = demo(*SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "demo: OK", done.stdout
    assert len(lines) <= 30, done.stdout
    # the command has a long path where the virtual environment lies elsewhere
    assert [line for line in lines if len(line) > 80 and "-m rmaext run" not in line] == []
    assert len(re.findall(r": heat [\d,]+ ms, right; task farm [\d,]+ ms, right", done.stdout)) == 2
    text = re.sub(r"\n {12,}", " ", done.stdout)  # as if lines were not wrapped
    for case, (theirs, ours) in CASES.items():
        found = re.search(f"  {case}\n    MPI.Win +(.*)\n    rmaext +(.*)\n", text)
        assert found, f"{case}: {text}"
        assert re.match(theirs, found[1]), found[1]
        assert re.match(ours, found[2]), found[2]


@pytest.mark.timeout(600)
def test_demo_that_is_ended_leaves_nothing_behind():
    done = demo(*SMALL, until="MPI.Win and on rmaext")
    assert "demo: " not in done.stdout.splitlines()[-1]
    assert done.returncode == 143, done.stdout + done.stderr


def test_what_is_not_in_our_favour_is_said(monkeypatch):
    monkeypatch.syspath_prepend(str(launch.ROOT / "examples"))
    from demo import Outcome, faults, of_busy, of_killed, of_offset, of_updates

    fact = {"case": "updates", "seconds": 0.002, "right": True}
    slow, fast = (Outcome([{**fact, "seconds": x}], 0, 9.0) for x in (0.003, 0.002))
    assert of_updates(slow, fast, "so") == "3.0 ms, so"
    assert of_updates(fast, slow, "so") == "2.0 ms, so: 1.5 times as fast"
    late = Outcome([{"case": "busy", "seconds": 0.9871, "right": False}], 0, 9.0)
    assert of_busy(late) == "987 ms: it waited for the target; WRONG values"
    damaged = {"case": "offset", "error": "BoundsError: no", "overwritten": 2}
    told = "BoundsError: no; 2 elements behind the window were overwritten"
    assert of_offset(Outcome([damaged], 0, 9.0)) == told
    assert of_offset(Outcome([], 139, 9.0)).startswith("the job ended with status 139")
    assert of_killed(Outcome([], None, 9.0)).startswith("no answer for 9 s")
    one = Outcome([{"case": "killed", "seconds": 0.1, "error": "PeerLostError: gone"}], 9, 9.0)
    assert of_killed(one).startswith("1 of 2 went on after 100 ms: PeerLostError: gone; the job")
    assert faults(late, one) == ["busy", "offset", "killed", "updates"]
