# SPDX-License-Identifier: BSD-3-Clause
"""What the documents say of the tests."""

import re

from launch import ROOT


def test_tests_that_are_named_exist():
    text = (ROOT / "docs" / "registration.md").read_text()
    named = set(re.findall(r"([\w/]+\.(?:py|c))::(\w+)", text))
    assert len(named) > 40
    sources = {file: next((ROOT / "tests").rglob(file)).read_text() for file, _ in named}
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not re.search(rf"^(def |static void ){name}\(", sources[file], re.MULTILINE)
    ]
    assert not missing


def test_each_row_names_a_test():
    lines = (ROOT / "docs" / "registration.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| feature")]
    assert len(rows) > 40
    assert [row for row in rows if "::" not in row.split(" | ")[-1] and "`make " not in row] == []
