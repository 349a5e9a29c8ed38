"""Every public name of production has a user in production: what only tests use is deleted, or has a reason here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.house.source import ROOT, name, production_files, tree

ENTRY_POINT: Final = re.compile(r"[\w.]+:(\w+)")
REGISTERED: Final = re.compile(r"\b(?:command|callback|\w+_validator)\b")
"""Decorators by which typer and pydantic learn of a function that they call."""
PUBLIC_API: Final = ROOT / "docs" / "python-client.md"
"""The page of the names that other people's programs use."""
TEMPLATES: Final = ROOT / "pipeline" / "stats"
OWN_BASES: Final = {"Protocol", "NamedTuple", "Generic", "Exception", "object", "ABC"}
"""Classes outside of production that call no member of a class which extends them."""

HAVE_REASONS: Final = {
    "add_registered_method_handlers": "the shape of a server: generated code calls it",
    "HEADER_TABLE_SIZE_DEFAULT": "a number of HTTP/2 that the module lists with the others",
    "MULTIPLE_TAGS": "a bit of the format that nothing reads",
    "crash": "the engine in memory is there for tests: it loses what was not synced",
    "from_checkpoint": "the engine in memory is there for tests: it opens what it saved",
    "is_old": "tests see that a reading failed",
    "is_stateless": "tests see when a decoder keeps nothing",
    "jump": "the clock that tests move",
    "nonces": "tests see that nothing is left of strangers",
    "open_streams": "tests see that nothing is left of a client",
}
"""Names that production does not read, and why they are there. The list only falls."""


def definitions(path: Path) -> Iterator[str]:
    """Yield the public names of functions, classes and constants of a module, and of the members of its classes."""
    pending: list[ast.AST] = [tree(path)]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            match node:
                case ast.ClassDef(name=each):
                    yield each
                    if not extends_a_library(each):
                        pending.append(node)
                case ast.FunctionDef(name=each) | ast.AsyncFunctionDef(name=each) if not is_registered(node):
                    yield each
                case ast.AnnAssign(target=ast.Name(id=each)) | ast.Assign(targets=[ast.Name(id=each)]):
                    yield each


def is_registered(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(REGISTERED.search(ast.unparse(each)) for each in function.decorator_list)


@cache
def bases() -> Mapping[str, set[str]]:
    """Return the classes of production, each with the names of the classes that it extends."""
    nodes = (node for path in production_files() for node in ast.walk(tree(path)))
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            names = {ast.unparse(base).partition("[")[0] for base in node.bases}
            found.setdefault(node.name, set()).update(names)
    return found


@cache
def extends_a_library(class_name: str) -> bool:
    """Return whether a library may call the members of the class, because the class extends one of the library's."""
    return any(
        extends_a_library(base) if base in bases() and base != class_name else base not in OWN_BASES
        for base in bases()[class_name]
    )


def uses(path: Path) -> Iterator[str]:
    """Yield the names that a module reads. An import is no use, and neither is `__all__`."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Name(id=each, ctx=ast.Load()) | ast.Attribute(attr=each, ctx=ast.Load()):
                yield each
            case ast.Constant(value=str(text)):
                yield from ENTRY_POINT.findall(text)


def unused() -> dict[str, str]:
    """Return the public names that nothing in production reads, with their module."""
    used = {each for path in production_files() for each in uses(path)}
    used.update(re.findall(r"\w+", PUBLIC_API.read_text()))
    used.update(word for path in TEMPLATES.rglob("*.html*") for word in re.findall(r"\w+", path.read_text()))
    return {
        each: name(path)
        for path in production_files()
        for each in definitions(path)
        if each not in used and not each.startswith("_")
    }


def test_every_public_name_has_a_user() -> None:
    found = unused()
    print(f"public names that production does not use: {len(found)}")
    assert {each: place for each, place in found.items() if each not in HAVE_REASONS} == {}
    assert HAVE_REASONS.keys() <= found.keys(), "a name that has a user, or is gone, leaves the list"
