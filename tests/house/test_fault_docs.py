"""Every row about a fault, and what answers a question, names a test that exists: a promise without one is a wish."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.house.source import ROOT, tree

PAGE: Final = ROOT / "docs" / "faults.md"
QUESTIONS: Final = ROOT / "docs" / "faq.md"
COLUMNS: Final = ["fault", "what happens", "test"]
TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def tables(page: Path) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, the heading first, the line below it left out."""
    found: list[list[list[str]]] = []
    in_table = False
    for line in page.read_text().splitlines():
        if line.startswith("|"):
            if not in_table:
                found.append([])
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        in_table = line.startswith("|")
    return [[rows[0], *rows[2:]] for rows in found]


def rows() -> list[list[str]]:
    return [row for table in tables(PAGE) for row in table[1:]]


def functions(path: str) -> set[str]:
    file = ROOT / path
    return {node.name for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_table_has_the_same_three_columns() -> None:
    assert tables(PAGE)
    for table in tables(PAGE):
        assert table[0] == COLUMNS
        assert len(table) > 1
        assert all(len(row) == len(COLUMNS) and all(row) for row in table), table


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_every_fault_names_tests_that_exist(row: list[str]) -> None:
    named = TEST.findall(row[2])
    assert named, f"no `file::function` in {row[2]!r}"
    for path, function in named:
        assert (ROOT / path).is_file(), path
        assert function in functions(path), f"{path} has no {function}"


def test_answers_to_questions_name_tests_that_exist() -> None:
    named = TEST.findall(QUESTIONS.read_text())
    assert len(named) > 20
    assert not [(path, function) for path, function in named if function not in functions(path)]
    assert len(named) == QUESTIONS.read_text().count("`tests/")


def test_no_fault_stands_twice() -> None:
    faults = [row[0] for row in rows()]
    assert sorted(faults) == sorted(set(faults))
