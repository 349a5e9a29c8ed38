"""The pages as the tests read them: code blocks in their order, each with what comments before it say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
ORDERS: Final = ("not run", "elsewhere", "file", "added", "first", "outputs")
"""Comments that direct a block. Any other comment is ignored."""

_FENCE: Final = re.compile(r"^( *)(`{3,})(.*)$")
_COMMENT: Final = re.compile(rf"<!-- ({'|'.join(ORDERS)})(?:: ?|\n)(.*?)\s*-->", re.DOTALL)
_HERE_DOCUMENT: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
INTERRUPT: Final = "^C"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, or a comment with commands that readers do not see (`first`; the language is then `console`)."""

    page: Path
    line: int
    language: str
    text: str
    orders: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """For failure messages: clickable."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return not {"not run", "elsewhere"} & self.orders.keys()


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is typed, and its output."""

    typed: str
    output: Sequence[str]
    line: int

    @property
    def is_interrupt(self) -> bool:
        return self.typed == INTERRUPT


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Raises ValueError where a fence is not closed."""
    return tuple(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    orders: dict[str, str] = {}
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence is not None:
            indent, marks, language = fence.groups()
            begin, at = at + 1, at + 1
            while at < len(lines) and lines[at].strip() != marks:
                at += 1
            if at == len(lines):
                raise ValueError(f"{page}:{begin}: this block does not end")
            text = "".join(line.removeprefix(indent) + "\n" for line in lines[begin:at])
            yield Block(page, begin + 1, language.strip(), text, orders)
            orders = {}
        elif lines[at].startswith("<!--"):
            begin = at
            while "-->" not in lines[at]:
                at += 1
            said = _COMMENT.match("\n".join(lines[begin : at + 1]))
            if said is not None and said[1] == "first":
                yield Block(page, begin + 2, "console", f"{said[2]}\n", {"first": ""})
            elif said is not None:
                orders[said[1]] = said[2]
        elif lines[at].strip():
            orders = {}
        at += 1


def commands(block: Block) -> Iterator[Command]:
    """Return the commands of a console block. Lines before the first command are a mistake: ValueError."""
    lines = block.text.splitlines()
    at = 0
    while at < len(lines):
        begin = at
        if lines[at] == INTERRUPT:
            typed = [INTERRUPT]
        elif lines[at].startswith("$ "):
            typed = [lines[at][2:]]
            while typed[-1].endswith("\\"):
                at += 1
                typed.append(lines[at])
            here = _HERE_DOCUMENT.search(typed[-1])
            while here is not None and typed[-1] != here[2]:
                at += 1
                typed.append(lines[at])
        else:
            raise ValueError(f"{block.place}: neither a command nor what comes of one: {lines[at]}")
        at += 1
        output = at
        while at < len(lines) and lines[at] != INTERRUPT and not lines[at].startswith("$ "):
            at += 1
        yield Command("\n".join(typed), lines[output:at], block.line + begin)
