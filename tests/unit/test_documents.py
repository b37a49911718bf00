# SPDX-License-Identifier: BSD-3-Clause
"""What the documents say: their programs run, and what they name is there."""

import contextlib
import json
import re
import sys

import launch
import pytest
from launch import ROOT
from support.documents import programs

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(ROOT / "docs" / "extensions"))
import names
import picture
from public import public

import rmaext

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGES.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
REGISTRATION = ROOT / "docs" / "reference" / "registration.md"


def slug(heading):
    """Return the anchor of a heading, as GitHub and MyST have it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def prose(page):
    """Yield number and text of the lines that are no code and no table."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            yield number, line


PROGRAMS = {
    f"{page.relative_to(ROOT)}-{i}": text for page in PAGES for i, text in enumerate(programs(page))
}

# The page of each container begins with a problem, and with ten lines that run as they stand.
CONTAINERS = [page for page in PAGES if page.parent.name == "containers" if page.stem != "index"]
for page in CONTAINERS:
    ten = "".join(programs(page)[0].splitlines(keepends=True)[:10])
    PROGRAMS[f"{page.relative_to(ROOT)}, ten lines"] = ten

# Each rank says in a file of its own which programs it has come through.
SHARED = """
import json, sys, traceback
from pathlib import Path
from mpi4py import MPI
world, folder = MPI.COMM_WORLD, Path(sys.argv[1])
with open(folder / str(world.rank), "w") as passed:
    for name, text in json.loads((folder / "programs").read_text()).items():
        try:
            exec(compile(text, name, "exec"), {"__name__": "__main__"})
            world.Barrier()
        except BaseException:
            traceback.print_exc()
            world.Abort(1)
        print(name, file=passed, flush=True)
"""


@pytest.fixture(scope="module")
def passed(request, tmp_path_factory):
    """The programs that have passed one after the other in a job of four ranks.

    That job ends with the first that fails; it and those behind it then have one of their own.
    """
    folder = tmp_path_factory.mktemp("programs")
    wanted = [it.callspec.id for it in request.session.items if it.function is test_program]
    if len(wanted) == 1:
        return set()
    (folder / "programs").write_text(json.dumps({name: PROGRAMS[name] for name in wanted}))
    with contextlib.suppress(AssertionError):  # a time limit
        launch.mpirun(4, SHARED, str(folder), timeout=100)
    return set.intersection(*(set((folder / str(r)).read_text().split("\n")) for r in range(4)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, passed, mpirun):
    if name not in passed:
        done = mpirun(4, PROGRAMS[name], timeout=50)
        assert done.returncode == 0, done.stderr


REPEATED = """
import sys
from mpi4py import MPI
from support.documents import programs
from pathlib import Path
comm, shown = MPI.COMM_WORLD, set()
(text,) = programs(Path(sys.argv[1]))
for _ in range(50):
    said = []
    exec(text, {"print": lambda rank, array, *ticket: said.append((rank, str(array), *ticket))})
    everything = sorted(comm.allgather(*said))
    tickets = [it[2] for it in everything if len(it) > 2]
    assert sorted(tickets) in ([], [0, 1, 2, 3]), tickets
    shown.add(str([it[:2] for it in everything]))
if not comm.rank:
    print(*shown, sep="\\n")
"""


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_the_first_program_prints_is_the_same_each_time(page, mpirun):
    env = {"PYTHONPATH": launch.PYTHONPATH}
    done = mpirun(4, REPEATED, str(ROOT / page), env=env, timeout=50)
    assert done.returncode == 0, done.stderr
    first = "4" if page == "README.md" else "0"
    want = [f"[{first}. 3. 3. 3.]", *(f"[0. {n}. {n}. {n}.]" for n in range(3))]
    assert done.stdout.strip() == str(list(enumerate(want)))


@pytest.mark.parametrize("page", CONTAINERS, ids=lambda page: page.stem)
def test_a_container_begins_with_a_problem(page):
    """What is to be done is said first, in words that know nothing of the container."""
    title, problem, *_ = page.read_text().split("\n\n")
    name = title.removeprefix("# ").partition(":")[0]
    assert name in rmaext.containers.__all__
    assert re.match(r"[A-Z]", problem)
    assert name not in re.split(r"[.:?] ", problem)[0]
    assert name in PROGRAMS[f"{page.relative_to(ROOT)}, ten lines"]


def test_each_container_has_a_page():
    text = "".join(page.read_text() for page in CONTAINERS)
    assert [name for name in rmaext.containers.__all__ if f"containers.{name}\n" not in text] == []


def test_there_are_programs():
    assert len(PROGRAMS) > 15


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_short(page):
    assert [number for number, line in prose(page) if len(line) >= 100] == []


@pytest.mark.parametrize("page", PAGES[:3], ids=lambda page: page.name)
def test_links(page):
    """Those of the pages beside docs/; Sphinx checks the others."""
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text())
    assert links
    for path, anchor in links:
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in map(slug, headings), f"{path}#{anchor}"


def test_llms_txt_leads_to_pages():
    """And to each folder of them."""
    page = ROOT / "docs" / "llms.txt"
    links = re.findall(r"\]\(([^)]*)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert {"guides", "gallery", "containers", "reference"} < {it.split("/")[0] for it in links}


def test_the_picture_is_of_the_table_of_results():
    bars = picture.bars(picture.RESULTS.read_text())
    chosen = sum(map(len, picture.CHOSEN.values()))
    assert len(bars) == chosen * len(picture.COLOURS)
    assert any(bar.speed < 1 for bar in bars)
    drawn = re.findall(r"<text [^>]*>([^<]*)</text>", picture.PICTURE.read_text())
    assert [it for bar in bars for it in (bar.words, bar.text) if it not in drawn] == []


@pytest.mark.parametrize("page", names.PAGES, ids=lambda page: page.stem)
def test_lists_of_names_are_up_to_date(page):
    assert names.renewed(page.read_text()) == page.read_text(), (
        "python docs/extensions/names.py writes them"
    )


def test_each_public_name_is_in_a_list():
    text = "".join(page.read_text() for page in names.PAGES)
    assert set(" ".join(re.findall("<!-- names (.*) -->", text)).split()) == {
        *names.SECTIONS,
        *(names.directive(getattr(rmaext, name)) for name in rmaext.__all__),
        *rmaext.containers.__all__,
    }
    shown = re.sub("`win[.]", "`Window.", text)
    every = [name.removeprefix("containers.") for name, _ in public() if name != "Window"]
    assert [it for it in every if not re.search(rf"^- `{re.escape(it)}[`(]", shown, re.M)] == []


def test_files_that_are_named_exist():
    roots = "csrc|rmaext|tests|docs|examples|benchmarks"
    missing = []
    for page in PAGES:
        text = page.read_text()
        named = re.findall(rf"`((?:{roots})/[\w./-]*)`", text)
        named += [f"rmaext/{it}" for it in re.findall(r"`((?:_\w+|compat)/\w+\.py)`", text)]
        missing += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
        tests = re.findall(r"`(test_\w+\.py)`", text)
        missing += [f"{page.name}: {it}" for it in tests if not any(ROOT.glob(f"tests/*/{it}"))]
    assert missing == []


def test_tests_that_are_named_exist():
    named = set(re.findall(r"([\w/]+\.(?:py|c))::(\w+)", REGISTRATION.read_text()))
    assert len(named) > 40
    sources = {file: next((ROOT / "tests").rglob(file)).read_text() for file, _ in named}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not re.search(rf"^(def |static void ){name}\(", sources[file], re.MULTILINE)
    ]
    assert not missing


def test_each_row_names_a_test():
    lines = REGISTRATION.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| feature")]
    assert len(rows) > 40
    assert [row for row in rows if "::" not in row.split(" | ")[-1] and "`make " not in row] == []
