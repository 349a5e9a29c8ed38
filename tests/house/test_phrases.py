"""Texts that people read avoid phrases that a reader from outside has to read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tests.house.source import ROOT, production_files, tree

LEFT: Final[Mapping[str, int]] = MappingProxyType(
    {
        r"\bof late\b": 0,
        r"\banew\b": 4,
        r"\bwho(?:ever)? wants?\b": 0,
        r"\bwants? to be\b": 0,
        r"\bmend(?:ed|s|ing)?\b": 0,
        r"\bless long\b": 0,
        r"\bgone past\b": 0,
        r"\b[Hh]alf are\b|\b99 % are\b": 0,
        r"\bno broker runs on\b": 0,
        r"\bin good order\b": 1,
        r"\bis told\b": 16,
        r"\b[Ss]o (?:many|much|long)\b(?! (?:that|as)\b)": 7,
        r"\bpass(?:ed|es)? over\b": 27,
        r"\bhanded out\b": 31,
        r"\blooked at\b": 28,
        r"\bg[ai]ve(?:s|n)? way\b": 11,
        r"\bput again\b": 8,
        r"\bis none\b(?! of)": 51,
    }
)
"""Phrases, and how often each is left. The numbers may only fall."""


def texts() -> Iterator[str]:
    """Yield the strings and docstrings of production code, and the documents except decisions and log events."""
    for path in production_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        if page.parent.name != "adr" and page.name != "log-events.md":
            yield page.read_text()


def test_phrases_with_two_readings_become_fewer() -> None:
    found = list(texts())
    assert len(found) > 10_000
    counts = {phrase: sum(len(re.findall(phrase, text)) for text in found) for phrase in LEFT}
    print(counts)
    assert {phrase: count for phrase, count in counts.items() if count > LEFT[phrase]} == {}
