"""An error refers to the frames that it went through, and so to the requests and calls in them: it is not kept.

What outlives the handler that caught an error is a text or a status, or `without_frames(error)`. An error that
is raised from a variable leaves a circle, since its traceback refers to the frame that refers to it: the variable is
deleted on the way out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from tests.house.source import name as name_of
from tests.house.source import production_files

PACKAGES: Final = ("kv", "protocol", "server", "store")
ALLOWED: Final = {
    ("server/tasks.py", "failure"): "handed to the loop in the same breath",
    ("server/tasks.py", "self._failure.__cause__"): "the broker ends with it",
    ("server/tasks.py", "self._failure"): "the broker ends with it",
    ("store/commitlog/writer.py", "self._cause"): "the first of its log, and the last",
    ("server/cluster/replication.py", "outcome"): "the broker ends with it",
}


def kept_errors(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines at which a handler hands its error on to a variable or a list, and what it does so to."""
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in (each for statement in handler.body for each in ast.walk(statement)):
            if isinstance(node, ast.Assign) and _is_name(node.value, handler.name):
                yield node.lineno, ast.unparse(node.targets[0])
            elif isinstance(node, ast.Call) and any(_is_name(each, handler.name) for each in node.args):
                yield from [(node.lineno, name) for name in [ast.unparse(node.func)] if name.endswith(".append")]


def raised_variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    """Lines at which an error is raised from a variable of the function's own that is not deleted."""
    caught = {each.name for each in ast.walk(function) if isinstance(each, ast.ExceptHandler)}
    parameters = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)} - {"self"}
    deleted = {
        ast.unparse(name)
        for block in ast.walk(function)
        if isinstance(block, ast.Try)
        for statement in block.finalbody
        if isinstance(statement, ast.Delete)
        for name in statement.targets
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name | ast.Attribute):
            name = ast.unparse(node.exc)
            is_class = name.rpartition(".")[2].lstrip("_")[:1].isupper()
            if not is_class and name not in deleted and name.partition(".")[0] not in caught | parameters:
                yield node.lineno, name


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_no_error_is_kept_with_its_frames() -> None:
    found = []
    for path in production_files():
        name = name_of(path)
        if name.partition("/")[0] not in PACKAGES:
            continue
        tree = ast.parse(path.read_text())
        places = [*kept_errors(tree)]
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                places += raised_variables(function)
        found += [f"{name}:{line}: {text}" for line, text in places if (name, text) not in ALLOWED]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    f()\nexcept ValueError as error:\n    self.failure = error\n",
        "try:\n    f()\nexcept ValueError as error:\n    results.append(error)\n",
        "def f():\n    error = found[0]\n    raise error\n",
        "def f():\n    raise self._failure\n",
    ],
)
def test_what_would_keep_one_is_found(text: str) -> None:
    tree = ast.parse(text)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    assert [*kept_errors(tree), *(place for each in functions for place in raised_variables(each))]


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    f()\nexcept ValueError as error:\n    self.failure = str(error)\n",
        "try:\n    f()\nexcept ValueError as error:\n    results.append(without_frames(error))\n",
        "def f():\n    error = found.pop()\n    try:\n        raise error\n    finally:\n        del error\n",
        "def f():\n    try:\n        g()\n    except ValueError as error:\n        raise error\n",
    ],
)
def test_what_keeps_none_is_fine(text: str) -> None:
    tree = ast.parse(text)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    assert not [*kept_errors(tree), *(place for each in functions for place in raised_variables(each))]
