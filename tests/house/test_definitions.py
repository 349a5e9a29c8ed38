"""Each thing is defined once: a name of the formats in one constant, a contract in one protocol."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.source import name, production_files, tree

FORMAT_NAME: Final = re.compile(r"(?=\S*[A-Z%])(?=\S*[_%#])[A-Z0-9_%#]{5,}|__\w+#?|rmq_\w+|x-mq-[\w-]+")
"""Names that stores and clients know: of topics, groups, properties and headers."""

DEFINED_TWICE: Final = {
    "QUARRY_CONFIG",
    "QUARRY_CONTEXT",
    "QUARRY_CONTEXTS",
    "x-mq-client-id",
}
"""Names that stand in several places today. Nothing is ever added."""

SAME_MEMBERS: Final = {
    frozenset({"cli/online/top/poller.py:Task", "server/delivery/model.py:Timer"}): "the command and the broker",
    frozenset({"server/cluster/handover.py:LogSource", "store/recovery/recovery.py:DispatchedQueues"}): (
        "a log has dispatched something; of queues it may not be known"
    ),
    frozenset({"store/native.py:EntryMaker", "store/native.py:BatchEncoder"}): "their results differ",
}
"""Protocols that are alike by chance, and why they have nothing to do with each other."""


def constants(path: Path) -> Iterator[tuple[str, ast.Constant]]:
    """Yield the constants of a module whose value is a text, with their names."""
    for statement in tree(path).body:
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id=constant), value=ast.Constant(value=str() | bytes()) as value)
                | ast.Assign(targets=[ast.Name(id=constant)], value=ast.Constant(value=str() | bytes()) as value)
            ) if constant.isupper():
                yield constant, value


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and value of each text of a module, docstrings left out."""
    nodes = list(ast.walk(tree(path)))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            yield node.lineno, text_of(node)


def text_of(node: ast.Constant) -> str:
    return node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)


def test_a_name_of_the_formats_is_written_in_one_place() -> None:
    """A name that has a constant stands nowhere else."""
    files = [path for path in production_files() if not name(path).startswith("bench/")]
    named = {text_of(value) for path in files for _, value in constants(path)}
    places = defaultdict(list)
    for path in files:
        for line, text in texts(path):
            if text in named and FORMAT_NAME.fullmatch(text):
                places[text].append(f"{name(path)}:{line}")
    several = {text: found for text, found in places.items() if len(found) > 1}
    print(f"names that have a constant: {len(places)}, written in several places: {len(several)}")
    assert len(places) > 40
    assert not {text: found for text, found in several.items() if text not in DEFINED_TWICE}


def protocols(path: Path) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
            yield node


def members(protocol: ast.ClassDef) -> frozenset[tuple[str, ...]]:
    """Return the attributes of a protocol with their types, and its methods with their parameters.

    Results are left out: one caller says `object`, because it does not need the result, where another needs it.
    """
    found: set[tuple[str, ...]] = set()
    for node in protocol.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=attribute), annotation=annotation):
                found.add((attribute, ast.unparse(annotation)))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add((node.name, type(node).__name__, ast.unparse(node.args)))
    return frozenset(found)


def test_no_two_protocols_have_the_same_members() -> None:
    by_members = defaultdict(set)
    count = 0
    for path in production_files():
        for protocol in protocols(path):
            by_members[members(protocol)].add(f"{name(path)}:{protocol.name}")
            count += 1
    alike = {frozenset(found) for found in by_members.values() if len(found) > 1}
    print(f"protocols: {count}, with the members of another: {len(alike)}")
    assert count > 100
    assert alike == set(SAME_MEMBERS), "one contract: define it once; or say why both have nothing in common"
