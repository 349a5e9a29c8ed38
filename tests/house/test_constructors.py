"""Parts are put together by constructors of few parameters, in an order in which each gets what it needs.

Two kinds of classes have parameters that count: those with an `__init__`, and dataclasses and named tuples most of
whose fields are objects which do something. One of plain values is a record: it may have as many fields as its format.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

from tests.house.source import name, production_files, tree

PARAMETERS_MAX: Final = 8

KNOWN_LONG: Final[dict[str, int]] = {
    "store/consumequeue/files/store.py:FileConsumeQueues": 9,
    "store/metadata/rows.py:NamedRows": 9,
}
"""Class to the number of its parameters, where that is above the limit. The numbers only fall."""


def _production() -> list[Path]:
    return [path for path in production_files() if not name(path).startswith("bench/")]


def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]


def _constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)


def _fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """Return the fields of a dataclass or a named tuple; none for other classes."""
    is_record = any("dataclass" in ast.unparse(each) for each in node.decorator_list) or any(
        "NamedTuple" in ast.unparse(each) for each in node.bases
    )
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)] if is_record else []
    return [each for each in fields if "ClassVar" not in ast.unparse(each) and "init=False" not in ast.unparse(each)]


@cache
def _doers() -> frozenset[str]:
    """Names of the classes whose objects do something: those with a constructor of their own, and protocols."""
    return frozenset(
        node.name
        for path in _production()
        for node in _classes(path)
        if "Protocol" in {ast.unparse(each).partition("[")[0] for each in node.bases} or _constructor(node) is not None
    )


def _holds_parts(fields: list[ast.AnnAssign]) -> bool:
    parts = [
        field
        for field in fields
        if any(isinstance(each, ast.Name) and each.id in _doers() for each in ast.walk(field.annotation))
    ]
    return len(parts) > len(fields) / 2


def parameters() -> dict[str, int]:
    """Return the number of constructor parameters of each class that is put together from parts."""
    found = {}
    for path in _production():
        for node in _classes(path):
            constructor, fields = _constructor(node), _fields(node)
            if constructor is not None:
                taken = constructor.args
                count = len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1
            elif fields and _holds_parts(fields):
                count = len(fields)
            else:
                continue
            found[f"{name(path)}:{node.name}"] = count
    return found


def test_constructors_take_few_parameters() -> None:
    found = parameters()
    print(f"at most {max(found.values())} parameters of a constructor, of {len(found)}")
    assert {each: count for each, count in found.items() if count > PARAMETERS_MAX} == KNOWN_LONG


def _does(value: ast.expr, node: ast.ClassDef) -> bool:
    """Return whether a value in the class is a function, a method of the class, or an object that does something."""
    match value:
        case ast.Lambda():
            return True
        case ast.Call(func=ast.Name(id=called)):
            return called == "partial" or called in _doers()
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return any(isinstance(each, ast.FunctionDef) and each.name == attribute for each in node.body)
        case _:
            return False


def test_nobody_fills_in_the_fields_of_another_part() -> None:
    """A part is complete when its constructor returns: what it learns later is told by a method of its own."""
    wrong = [
        f"{name(path)}:{target.lineno}: {ast.unparse(target)}"
        for path in _production()
        for node in _classes(path)
        for method in node.body
        for each in ast.walk(method)
        if isinstance(each, ast.Assign) and _does(each.value, node)
        for target in each.targets
        if isinstance(target, ast.Attribute)
        if (owner := ast.unparse(target.value)).startswith("self.")
        or (owner != "self" and method is _constructor(node))
    ]
    assert not wrong, f"use a parameter of the constructor, or a method: {wrong}"
