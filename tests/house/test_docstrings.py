"""Docstrings begin with a sentence that a reader understands without the code below it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.source import ROOT, name, production_files, python_files, tree

FRAGMENT: Final = re.compile(
    r"(?:Those|These|That|It|They|Some|Of|The same|The others?|As|What|So|Whose|Who|Whoever|Which|Where|How|When"
    r"|Whether|Why|For|By|With|Without|Beside|Behind|None|Nobody|Nothing|Likewise|Others|Such|In|At|Only|Not|And|But|Also"
    r"|There|To|Because|Else|If|Once|Its|Their|On)\b"
)
"""First words of a text that continues a sentence which stands elsewhere, or nowhere."""

NOUN_PHRASE: Final = re.compile(r"(?:One|Two|Both)\b(?! of)")
"""First words of a text that names a thing and says nothing of it."""

FRAGMENTS_OF_TESTS_MAX: Final = 545
"""Fragments in `tests`. The number may only fall."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a file, those below attributes and constants included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield statement.lineno, text.strip()


def fragments(path: Path, *patterns: re.Pattern[str]) -> list[str]:
    """Return `file:line: first line` of each docstring of a file that begins as one of the patterns."""
    found = [(line, text) for line, text in docstrings(path) if any(each.match(text) for each in patterns)]
    return [f"{name(path)}:{line}: {text.splitlines()[0]}" for line, text in found]


def test_docstrings_of_production_code_begin_with_a_sentence() -> None:
    files = [*production_files(), *(path for path in python_files() if path.is_relative_to(ROOT / "bench"))]
    assert len(files) > 600
    assert [each for path in files for each in fragments(path, FRAGMENT, NOUN_PHRASE)] == []


def test_fewer_and_fewer_docstrings_of_tests_are_fragments() -> None:
    files = [path for path in python_files() if path.is_relative_to(ROOT / "tests")]
    count = sum(len(fragments(path, FRAGMENT)) for path in files)
    print(f"docstrings of tests that begin with a fragment: {count}")
    assert count <= FRAGMENTS_OF_TESTS_MAX
