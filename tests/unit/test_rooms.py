# SPDX-License-Identifier: BSD-3-Clause
"""The check of csrc's rooms (`make lint`) finds each kind of arrow upwards."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def rooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "csrc" / "rooms.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TREE = {
    "base/a.h": "int rmx_low(void);\n",
    "base/a.c": '#include "base/a.h"\nint rmx_low(void)\n{\n\treturn 0;\n}\n',
    "net/b.h": '#include "base/a.h"\n',
    "net/b.c": '#include "net/b.h"\nint rmx_high(int a,\n\t     int b)\n{\n\treturn rmx_low();\n}\n'
    "const struct rmx_table rmx_table = {0};\n",
}


def test_arrows_down_are_fine(rooms: ModuleType) -> None:
    assert rooms.arrows_upwards(TREE) == []
    assert rooms.circle(TREE) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('#include "net/b.h"\n', "includes net/b.h"),
        ("int f(void)\n{\n\treturn rmx_high(1, 2);\n}\n", "uses rmx_high"),
        ("const void *p = &rmx_table;\n", "uses rmx_table"),
    ],
)
def test_arrow_up_is_found(rooms: ModuleType, text: str, said: str) -> None:
    (found,) = rooms.arrows_upwards(TREE | {"base/c.c": text})
    assert said in found
    assert "csrc/base/c.c" in found


@pytest.mark.parametrize(
    "text", ['const char *s = "rmx_high";\n', "struct rmx_table;\n", "struct rmx_table *t;\n"]
)
def test_words_and_tags_are_no_use(rooms: ModuleType, text: str) -> None:
    assert rooms.arrows_upwards(TREE | {"base/c.c": text}) == []


def test_circle_is_found(rooms: ModuleType) -> None:
    circle = {"base/a.h": '#include "base/c.h"\n', "base/c.h": '#include "base/a.h"\n'}
    (found,) = rooms.circle(TREE | circle)
    assert "base/c.h" in found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("int64_t t = time(NULL);\n", "time"),
        ("\tclock_gettime(CLOCK_MONOTONIC, &t);\n", "clock_gettime"),
        ("\tpthread_cond_timedwait(&c, &m, &t);\n", "pthread_cond_timedwait"),
        ("int i = (int)syscall(SYS_gettid);\n", "SYS_gettid"),
        ("\tw->sleep(w->arg, 1);\n\trmx_sleep(1);\n", ""),
        ('const char *s = "rand(";\n', ""),
    ],
)
def test_time_and_chance_are_asked_for_in_one_place(
    rooms: ModuleType, text: str, name: str
) -> None:
    said = rooms.chances({"net/a.c": text})
    assert [line.split()[2].rstrip(":") for line in said] == [name] * bool(name)


def test_an_exception_that_is_none_any_more_is_said(rooms: ModuleType) -> None:
    (said,) = rooms.chances({"base/clock.c": ""})
    assert "no exception" in said


def test_the_tree_is_clean(rooms: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert rooms.main() == 0
    assert capsys.readouterr().out == ""


def test_every_function_has_a_home(rooms: ModuleType) -> None:
    """Shared functions that headers declare are found where they are defined."""
    texts = {str(p): rooms.COMMENT.sub(" ", p.read_text()) for p in rooms.CSRC.glob("*/**/*.[ch]")}
    homes = {
        name
        for file, text in texts.items()
        if file.endswith(".c")
        for name in rooms.DEFINED.findall(text)
    }
    declared = {
        name
        for text in [*texts.values(), (rooms.CSRC / "rmaext.h").read_text()]
        for name in rooms.re.findall(r"^\w[\w *]*?\b(rmaext_\w+)\([^;{}]*\);", text, rooms.re.M)
    }
    assert len(declared) > 80
    assert declared <= homes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("int rmx_a(void)\n{\n\treturn fi_close(p) ? -FI_EIO : 0;\n}\n", ["fi_close"]),
        ("#include <rdma/fi_cm.h>\nstruct fid_ep *ep;\n", ["<rdma/", "fi_cm", "fid_ep"]),
        ("#include <rdma/fi_errno.h>\nint i = FI_EAGAIN;\n", []),
        ('const char *s = "fi_close";\nint i = FI_MR_RAW;\n', ["FI_MR_RAW"]),
    ],
)
def test_names_of_a_transport(rooms: ModuleType, text: str, names: list[str]) -> None:
    found = rooms.strange_names({"net/a.c": text, "net/libfabric/a.c": text})
    assert [line.split()[2].rstrip(",") for line in found] == names
    assert all(line.startswith("csrc/net/a.c has ") for line in found)


ROOM = {
    "net/a.c": "int rmx_a(void)\n{\n\treturn rmx_b();\n}\n",
    "net/b.c": "int rmx_b(void)\n{\n\treturn rmx_c();\n}\n",
    "net/c.c": "int rmx_c(void)\n{\n\treturn 0;\n}\n",
}


def test_circle_within_a_room(rooms: ModuleType) -> None:
    assert rooms.circles_within(ROOM) == []
    round_ = ROOM | {"net/c.c": "int rmx_c(void)\n{\n\treturn rmx_a();\n}\n"}
    (found,) = rooms.circles_within(round_)
    assert found.startswith("a circle within a room: ")
    assert "net/b.c uses rmx_c of net/c.c" in found
