"""Names in the code use the words of docs/glossary.md.

A name is split into its words: `units_per_file` has `unit`, in the plural. Names of the generated protocol are its own.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.house.source import GENERATED, name, production_files, python_files, tree

WORDS: Final = {
    "allowance": "abuse budget",
    "anew": "again, or what is done: rebuild, restart, replace",
    "behind": "after, for a key or a position; lag, for consumers and indexes",
    "bury": "dead-letter",
    "buried": "dead-lettered",
    "complain": "report once",
    "complaint": "last error",
    "elsewhere": "in an executor, or on other members",
    "figure": "stat; a function that yields metrics ends in `_metrics`",
    "forget": "evict, invalidate, delete or remove",
    "generations": "LRU cache",
    "held": "pending, for scheduled and prepared messages",
    "ledger": "change log",
    "maxima": "max offsets",
    "mended": "repaired",
    "minima": "min offsets",
    "numbering": "assignment",
    "patience": "timeout",
    "round": "batch, for an append; sweep, for a clean-up",
    "surroundings": "dependencies",
    "taking": "fetch",
    "tally": "histogram",
    "unit": "entry, for a row of a consume queue",
    "upkeep": "maintenance",
    "wakeups": "redelivery timers",
}
"""Word that names no longer have, to the glossary's word."""

LEFT: Final[dict[str, tuple[str, ...]]] = {
    "behind": ("most_behind",),
    "complaint": ("complaints",),
    "elsewhere": (
        "INDEX_ELSEWHERE",
        "LeftElsewhere",
        "_SAID_ELSEWHERE",
        "_elsewhere",
        "_is_followed_elsewhere",
        "_left_elsewhere",
        "elsewhere",
        "is_elsewhere",
        "topics_elsewhere",
    ),
    "figure": ("ListGroupFigures", "ListTopicFigures"),
    "forget": ("forget",),
    "patience": (
        "MISSING_PATIENCE_S",
        "REMOTE_PATIENCE_S",
        "SEARCH_PATIENCE",
        "UPLOAD_PATIENCE",
        "_patience_s",
        "patience_s",
        "reader_patience_ms",
    ),
    "round": ("_round", "round_up", "segments_per_round"),
    "unit": (
        "UNITS_PER_FILE",
        "_UNITS",
        "_UNITS_S",
        "_units_per_file",
        "compared_units",
        "small_unit",
        "unit_s",
        "units_per_file",
    ),
}
"""Names of production code that keep such a word: those of settings, columns and answers, those where the word has its
ordinary meaning (a unit of measure, a round number), and what is left to be renamed. The lists only get shorter."""

TESTS_MAX: Final = {
    "allowance": 1,
    "behind": 2,
    "buried": 5,
    "bury": 2,
    "complaint": 2,
    "elsewhere": 10,
    "figure": 2,
    "forget": 9,
    "held": 6,
    "ledger": 6,
    "maxima": 1,
    "mended": 1,
    "minima": 1,
    "patience": 10,
    "round": 30,
    "surroundings": 1,
    "taking": 1,
    "unit": 11,
}
"""Word to the number of different names with it in `tests` and `bench`. The numbers only fall."""


@cache
def protocol_names() -> frozenset[str]:
    """Return the names of messages, fields, calls and values of the generated protocol."""
    return frozenset(word for path in GENERATED.rglob("*.pyi") for word in re.findall(r"\w+", path.read_text()))


def names_in(path: Path) -> Iterator[str]:
    """Yield each name that a file defines or uses, and the names of its folders and of itself."""
    yield from Path(name(path)).with_suffix("").parts
    for node in ast.walk(tree(path)):
        match node:
            case ast.Name(id=found) | ast.Attribute(attr=found) | ast.arg(arg=found):
                yield found
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
                yield found
            case ast.keyword(arg=str(found)):
                yield found


def words_of(identifier: str) -> Iterator[str]:
    for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier):
        word = part.lower()
        yield word if word in WORDS else word.removesuffix("s")


def left_in(paths: Iterable[Path]) -> dict[str, set[str]]:
    """Return for each word the names that have it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for identifier in set(names_in(path)) - protocol_names() - {"round"}:  # the built-in function
            for word in set(words_of(identifier)) & WORDS.keys():
                found[word].add(identifier)
    return found


def test_production_code_has_no_other_names_with_these_words() -> None:
    """A name that is gone leaves the list."""
    files = [path for path in production_files() if not name(path).startswith("bench/")]
    assert len(files) > 500
    found = left_in(files)
    print("names with a word that the glossary replaces:", {word: len(found[word]) for word in sorted(found)})
    assert {word: tuple(sorted(names)) for word, names in found.items()} == LEFT


def test_fewer_and_fewer_names_of_tests_have_these_words() -> None:
    found = left_in(path for path in python_files() if name(path).startswith(("tests/", "bench/")))
    print("in tests and benchmarks:", {word: len(found[word]) for word in sorted(found)})
    assert not {word: len(names) for word, names in found.items() if len(names) > TESTS_MAX.get(word, 0)}


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("units_per_file", {"unit"}),
        ("_HeldMessages", {"held"}),
        ("ROUNDS_MAX", {"round"}),
        ("is_behind", {"behind"}),
        ("grounded", set()),
        ("unity", set()),
    ],
)
def test_names_are_split_into_words(identifier: str, words: set[str]) -> None:
    assert set(words_of(identifier)) & WORDS.keys() == words
