"""No test fails because a machine is busy: what must happen is waited for with patience.

That something does not happen is shown on a clock that the test moves, or may take its time: it fails nobody.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.house.source import ROOT, name, python_files, tree

PATIENCE_MIN_S: Final = 30
CLOCKS: Final = frozenset({"monotonic", "perf_counter", "time", "monotonic_s"})
"""Clocks of the time that passes, not of the processor's."""
IN_VAIN: Final = frozenset(
    {
        ("tests/front/test_abuse_sockets.py", "wait_for"),  # that a peer which is not read from can send no more
    }
)
"""Files and calls where the time has to be up."""


def short_waits() -> Iterator[tuple[str, str]]:
    """Each place that allows what must happen less time than a busy machine may take, and what it does."""
    for path in python_files():
        if path.is_relative_to(ROOT / "tests"):
            for node in ast.walk(tree(path)):
                if _is_short_limit(node) or (_is_short_wait(node) and (name(path), "wait_for") not in IN_VAIN):
                    yield name(path), ast.unparse(node)


def _is_short_limit(node: ast.AST) -> bool:
    """An assertion that so much time has not passed, given as a number."""
    if not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare)):
        return False
    terms = [node.test.left, *node.test.comparators]
    return any(
        isinstance(operator, ast.Lt | ast.LtE) and _is_elapsed(before) and _is_short(after)
        for operator, before, after in zip(node.test.ops, terms, terms[1:], strict=False)
    )


def _is_elapsed(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "seconds"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call):
        called = node.left.func
        return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in CLOCKS
    return False


def _is_short_wait(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 2):
        return False
    return node.func.attr == "wait_for" and _is_short(node.args[1])


def _is_short(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value < PATIENCE_MIN_S


def test_whatever_must_happen_is_waited_for_with_patience() -> None:
    assert list(short_waits()) == []


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("assert received.seconds < 2", True),
        ("assert 0.5 < received.seconds < 3", True),
        ("assert time.monotonic() - began_s < 5", True),
        ("assert time.monotonic() - began_s < 60", False),
        ("assert received.seconds > 0.5", False),
        ("assert process_time() - began_s < 0.25", False),
        ("asyncio.wait_for(told.get(), 3)", True),
        ("asyncio.wait_for(told.get(), PATIENCE_S)", False),
    ],
)
def test_what_counts_as_short(line: str, is_found: bool) -> None:
    nodes = list(ast.walk(ast.parse(line)))
    assert any(_is_short_limit(each) or _is_short_wait(each) for each in nodes) is is_found
