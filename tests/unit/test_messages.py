# SPDX-License-Identifier: BSD-3-Clause
"""What a user reads when something is wrong: each message, and how it is provoked."""

from __future__ import annotations

import re
import resource
import sys
import textwrap
import threading

import launch
import numpy as np
import pytest
from mpi4py import MPI
from support import jobs

import rmaext
from rmaext._runtime import tracebacks
from rmaext.containers import Dict, Published, Store, TaskQueue

INT, TEXT, RECORD = "int64", "S4", [("x", "f8"), ("n", "i4")]
RECORD_NAME = r"record \(x: float64, n: int32; 12 bytes\)"


def window(dtype=INT):
    return rmaext.Window.allocate(MPI.COMM_SELF, 8, dtype)


def table(**options):
    return Dict(MPI.COMM_SELF, **{"capacity": 16, "key_dtype": INT, "value_dtype": INT} | options)


def closed_after(make, use):
    """Use what is made, and close it."""
    with make() as it:
        use(it)


def on(dtype, use):
    return lambda: closed_after(lambda: window(dtype), use)


def of(use, **options):
    return lambda: closed_after(lambda: table(**options), use)


# what is said, of which type, and what says it
NAMES = [
    (
        r"win\.local is this rank's memory",
        TypeError,
        on(INT, lambda win: np.asarray(win)),
    ),
    (r"not iterable: items\(\)", TypeError, of(list)),
    (
        r"it is Window\(comm, array\) here\. rmaext\.compat\.Win has mpi4py's names$",
        AttributeError,
        lambda: rmaext.Window.create,
    ),
    # dtypes, as a program calls them
    (
        r"an array of dtype float64 for elements of int64, .*astype\('int64'\)",
        TypeError,
        on(INT, lambda win: win.put(np.zeros(2), 0)),
    ),
    (
        r"an array of dtype U3 for elements of S4, .*astype\('S4'\)",
        TypeError,
        on(TEXT, lambda win: win.put(np.array(["abc"]), 0)),
    ),
    (
        r"an array of dtype big-endian int64 \('>i8'\) for elements of int64",
        TypeError,
        on(INT, lambda win: win.put(np.zeros(2, ">i8"), 0)),
    ),
    (
        r"elements of big-endian int64 .*astype\('>i8'\)",
        TypeError,
        on(">i8", lambda win: win.put(np.zeros(2, INT), 0)),
    ),
    (
        rf"an array of dtype float64 for elements of {RECORD_NAME}, .*astype\(dtype\)",
        TypeError,
        on(RECORD, lambda win: win.put(np.zeros(2), 0)),
    ),
    (
        rf"a tuple of 3 for a record of 2: dtype {RECORD_NAME}",
        ValueError,
        on(RECORD, lambda win: win.put([(1.0, 2, 3)], 0)),
    ),
    (
        rf"is no value of dtype {RECORD_NAME}",
        TypeError,
        lambda: rmaext.elements(np.zeros((), "f8,f8"), RECORD),
    ),
    (
        r"shape \(\), not \(2, 3\)",
        ValueError,
        lambda: rmaext.elements(1.0, "(2,3)f8"),
    ),
    (
        r"no sum on dtype S4",
        rmaext.Unsupported,
        on(TEXT, lambda win: win.accumulate(b"a", 0)),
    ),
    (
        r"no minloc on dtype int64: it is for pairs",
        rmaext.Unsupported,
        on(INT, lambda win: win.fetch_op(1, 0, op="minloc")),
    ),
    (
        r"out has dtype U2, the window int64",
        TypeError,
        on(INT, lambda win: win.get(0, out=np.zeros(8, "U2"))),
    ),
    (
        r"ranks must be integers, not U3",
        TypeError,
        on(INT, lambda win: win.put_many(np.zeros(2, "U3"), [0, 0], [0, 1])),
    ),
    (
        r"no word of dtype S4",
        rmaext.Unsupported,
        on(TEXT, lambda win: win.wait_until(0, "==", b"a")),
    ),
    (
        r"dtype record \(a: object; 8 bytes\): Python objects cannot be shared",
        TypeError,
        lambda: window([("a", object)]),
    ),
    (r"dtype S0 has elements of no size", TypeError, lambda: window("S0")),
    (
        r"samples of dtype record \(a: object; 8 bytes\) hold Python objects",
        TypeError,
        lambda: Store(MPI.COMM_SELF, np.zeros(2, [("a", object)])),
    ),
    (
        r"out must be an array of U2, not",
        TypeError,
        lambda: closed_after(
            lambda: Store(MPI.COMM_SELF, np.zeros((4, 3), "U2")),
            lambda store: store.get([1], out=np.zeros((1, 3))),
        ),
    ),
    (
        r"out must be an array of U2$",
        TypeError,
        lambda: closed_after(
            lambda: Published(MPI.COMM_SELF, 3, "U2"),
            lambda shared: shared.read(0, out=np.zeros(3)),
        ),
    ),
    (
        r"dtype int64\[2\] has dimensions",
        TypeError,
        lambda: TaskQueue(MPI.COMM_SELF, dtype="(2,)i8", capacity=8),
    ),
    # keys
    (
        r"str 'abc' is no value of dtype S4, which is bytes: encode the text, or use a dtype of "
        r"text, as 'U24' \(the table's key_dtype\)",
        TypeError,
        of(lambda it: it.get("abc"), key_dtype=TEXT),
    ),
    (
        r"an array of dtype U3 is no value of dtype S4, which is bytes: .*'U24' \(the table's key",
        TypeError,
        of(lambda it: it.get(np.array(["abc"])), key_dtype=TEXT),
    ),
    (
        r"'abcde' has a length of 5: dtype U4 takes 4 \(the table's key_dtype\)",
        ValueError,
        of(lambda it: it.get("abcde"), key_dtype="U4"),
    ),
    (r"key_dtype=U0: .*say how long the longest is.*'U24'", ValueError, of(len, key_dtype=str)),
    (
        r"key_dtype=float64: keys are integers, text \('U24'\) or bytes \('S16'\)",
        TypeError,
        of(len, key_dtype=float),
    ),
    (r"value_dtype=S0: .*say how many, as 'U24'", ValueError, of(len, value_dtype=bytes)),
    # who called, of an error that all ranks raise
    (
        r"rank 0: a window needs a C-contiguous array: .* \(test_messages.py:\d+\)$",
        ValueError,
        lambda: rmaext.Window(MPI.COMM_SELF, np.zeros((3, 3), order="F")),
    ),
    # memory
    (
        r"no 9007199254740992 bytes \(8388608.0 GiB\) of shared memory: .*GiB left.*: ask for "
        r"less, or spread the ranks over more nodes",
        MemoryError,
        lambda: rmaext.empty(1 << 53, np.uint8),
    ),
    (
        r"no \d+ bytes: no machine has as many; is shape=\(\d+,\) meant\?",
        MemoryError,
        lambda: rmaext.empty(1 << 62),
    ),
]


@pytest.mark.parametrize(("words", "kind", "provoke"), NAMES, ids=[words for words, *_ in NAMES])
def test_what_is_said(words, kind, provoke):
    with pytest.raises(kind) as caught:
        provoke()
    assert re.search(words, str(caught.value)), str(caught.value)


def test_memory_that_the_shell_limits():
    code = """
        import resource, rmaext
        rmaext.zeros(8)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 33, resource.RLIM_INFINITY))
        try:
            rmaext.empty(1 << 30)
        except MemoryError as error:
            print(error)
    """
    assert resource.RLIM_INFINITY in (-1, (1 << 64) - 1)  # before CPython 3.15, and since
    done = launch.run_python(code)
    assert "no 8589934592 bytes (8.0 GiB)" in done.stdout, done.stdout + done.stderr
    assert "(ulimit -v: 8.0 GiB)" in done.stdout, done.stdout


# -- tracebacks ----------------------------------------------------------------------

PROGRAM = """
import sys, threading
import numpy as np
from mpi4py import MPI
import rmaext

win = rmaext.Window.allocate(MPI.COMM_SELF, 8)

class Index:
    def __index__(self):
        raise ZeroDivisionError("the program's own")

def raised():
    win.put(np.zeros(3, complex), 0)  # the line
def in_thread():
    thread = threading.Thread(target=raised)
    thread.start()
    thread.join()
def within():
    win.get(0, Index())  # the line
def met():
    rmaext._memory.values._KINDS = None  # so that our code fails, and does not raise
    rmaext.elements([1.0, 2.0], float)  # the line
def chained():
    try:
        raised()
    except TypeError as error:
        raise KeyError("its own") from error  # the end
def grouped():
    errors = []
    for call in raised, within:
        try:
            call()
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("several", errors)
def mine():
    raise KeyError("none of ours")  # the line
def odd():
    class Odd(Exception):
        def exceptions(self): pass
    def run():
        raise Odd("of its own kind")  # the line
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
def of_ours():
    thread = threading.Thread(target=win.put, args=(np.zeros(3, complex), 0))
    thread.start()
    thread.join()

seen = sys.excepthook
def after(kind, value, trace):
    seen(kind, value, trace)
    count = 0
    while value.__traceback__:
        value.__traceback__, count = value.__traceback__.tb_next, count + 1
    print("frames there:", count)
sys.excepthook = after
globals()[sys.argv[1]]()
"""
FILE = re.compile(r'^[ |+]*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
SHOWN = [
    # how, the last line of the program shown, and frames of ours in the end
    ("raised", "the line", 0),
    ("in_thread", "the line", 0),
    ("within", "the program's own", 0),
    ("mine", "the line", 0),
    ("met", "the line", 2),
    ("chained", "the end", 0),
    ("odd", "the line", 0),
    pytest.param(
        *("grouped", "the program's own", 0),
        marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has none"),
    ),
]


def shown(tmp_path, how, **env):
    """Run it; return what it prints, and the frames shown: (of ours, its line)."""
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    code = f"import runpy, sys; sys.argv = ['app.py', {how!r}]; runpy.run_path({str(program)!r})"
    done = launch.run_python(code, env={"PYTHONPATH": launch.PYTHONPATH, **env})
    lines = PROGRAM.split("\n")
    frames = []
    for path, number, _ in FILE.findall(done.stderr):
        if path == str(program):
            frames.append(lines[int(number) - 1])
        elif path.startswith(f"{launch.ROOT}/rmaext/"):
            frames.append("")
    return done, frames


@pytest.mark.parametrize(("how", "last", "ours"), SHOWN)
def test_tracebacks_end_with_the_program(tmp_path, how, last, ours):
    done, frames = shown(tmp_path, how, RMAEXT_TRACEBACK=None)
    count = len(frames) - len("".join("x" if frame else " " for frame in frames).rstrip())
    assert count == ours, done.stderr
    assert last in frames[len(frames) - count - 1], done.stderr
    assert "".join("x" if frame else "." for frame in frames).count("...") == 0, done.stderr
    assert ("RMAEXT_TRACEBACK=full" in done.stderr) == bool(ours), done.stderr


def test_tracebacks_that_are_shown_as_they_are(tmp_path):
    """Of a thread that is all ours, and by a hook of the program."""
    done, frames = shown(tmp_path, "of_ours", RMAEXT_TRACEBACK=None)
    assert frames.count("") > 1, done.stderr
    code = """
        import sys
        def own(kind, value, trace):
            depth = 0
            while trace:
                trace, depth = trace.tb_next, depth + 1
            print("depth", depth)
        sys.excepthook = own
        import rmaext
        assert sys.excepthook is own
        rmaext.elements("x", "i4")
    """
    done = launch.run_python(code, env={"RMAEXT_TRACEBACK": None})
    assert int(done.stdout.split("depth ")[1]) > 2, done.stdout + done.stderr


def test_two_threads_show_one_exception():
    """The second shows it as it is for the first, and both leave it whole."""
    error = None
    try:
        rmaext.elements("x", "i4")
    except TypeError as exc:
        error = exc
    whole, seen = error.__traceback__, []

    def show(trace):
        cut = error.__traceback__
        args = error, cut, seen.append
        other = threading.Thread(target=tracebacks._show_less, args=args)
        other.start()
        other.join()
        assert trace is cut is not whole
        assert error.__traceback__ is cut

    tracebacks._show_less(error, whole, show)
    assert len(seen) == 1
    assert error.__traceback__ is whole


def test_tracebacks_can_be_had_whole(tmp_path):
    done, frames = shown(tmp_path, "raised", RMAEXT_TRACEBACK="full")
    assert frames.count("") > 2, done.stderr
    cut, _ = shown(tmp_path, "raised", RMAEXT_TRACEBACK=None)
    there = re.findall("frames there: (.*)", done.stdout + cut.stdout)
    assert there[0] == there[1], "the exception itself has lost frames"


def test_pytest_hides_what_raises(tmp_path):
    test = tmp_path / "test_app.py"
    test.write_text(
        textwrap.dedent("""
            import numpy as np
            from mpi4py import MPI
            import rmaext

            def test_it():
                with rmaext.Window.allocate(MPI.COMM_SELF, 8) as win:
                    win.put(np.zeros(3, complex), 0)
        """)
    )
    code = f"""
        import pytest, sys
        sys.exit(pytest.main(["-p", "no:cacheprovider", "--rootdir", {str(tmp_path)!r},
            "-c", "/dev/null", {str(test)!r}]))
    """
    env = {"PYTHONPATH": launch.PYTHONPATH}
    done = launch.run_python(code, env=env | {"RMAEXT_TRACEBACK": None})
    assert "nothing is cast" in done.stdout, done.stdout + done.stderr
    assert "rmaext/_" not in done.stdout, done.stdout
    done = launch.run_python(code, env=env | {"RMAEXT_TRACEBACK": "full"})
    assert "rmaext/_memory/values.py" in done.stdout, done.stdout


# -- several ranks ------------------------------------------------------------------

ENDED = (
    # after rmaext's own part of the end, instead of MPI_Finalize, which would wait for the other
    "import atexit, os; atexit.register(os._exit, 0)\n"
    + jobs.PRELUDE
    + """
from rmaext.containers import TaskQueue
win = rmaext.Window.allocate(world, 8)
queue = TaskQueue(world, int, 8)
win.fence()
if rank == 1:
    raise ValueError("no data file")  # the line
calls = {"fence": win.fence, "wait_notify": lambda: win.wait_notify(0), "loop": lambda: list(queue)}
text = refuses(calls[os.environ["CALL"]], rmaext.PeerLostError)
line = open(__file__).read().split("# the line")[0].count("\\n") + 1
assert f"rank 1 ended by ValueError: no data file, program.py:{line}" in text, text
assert "end of its program" not in text, text
print("end", flush=True)
os._exit(0)
"""
)


@pytest.mark.parametrize(
    ("call", "route"), [("fence", ""), ("fence", "nodes"), ("wait_notify", ""), ("loop", "")]
)
def test_who_has_ended_by_an_exception(call, route):
    """Peers read which, and where; "nodes": the ranks pretend to be on two."""
    code = ENDED
    if route:
        code = code.replace("win = ", 'os.environ["RMAEXT_NODE"] = f"node {rank}"\nwin = ', 1)
    done = jobs.start(2, code, env={"CALL": call}, survive=True, timeout=40)
    assert done.stdout.count("end") == 1, done.stdout + done.stderr


LATE = (
    jobs.PRELUDE
    + """
import re
from support.processes import waits

win = rmaext.Window.allocate(world, 8)
other = world.allgather(os.getpid())[1 - rank]
if rank == 1:
    win.lock(1, exclusive=True)
    world.Barrier()
    win.wait_notify(0)  # the line
    win.unlock(1)
else:
    world.Barrier()
    while not waits(other):
        time.sleep(0.01)
    text = refuses(lambda: win.lock(1, timeout=2.5), rmaext.RmaTimeout)
    line = open(__file__).read().split("# the line")[0].count("\\n") + 1
    assert text.startswith("lock: window 1, rank 1: not within the time limit given. "), text
    assert "held by rank 1 since" in text, text
    assert re.search(rf"rank 1 waits in wait_notify, .* at .*program.py:{line}", text), text
    assert text.endswith("`python -m rmaext why`, while it waits, shows the line of each rank")
    start = time.monotonic()
    text = refuses(lambda: win.lock(1, timeout=0.1), rmaext.RmaTimeout)
    assert "rmaext why" not in text or time.monotonic() - start > 0.5, text
    win.put_notify(np.ones(1), 1, 0)
win.close()
print("end", flush=True)
"""
)


def test_a_time_limit_names_who_is_waited_for_and_where():
    jobs.clean(jobs.start(2, LATE, timeout=50), 2)
