"""Whatever a comment, a docstring or a document refers to exists: decisions, pages, their sections, modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.source import PACKAGE, PACKAGES, ROOT, folder_of, name, python_files, text_files, tree

DOCS: Final = ROOT / "docs"
FOLDERS: Final = ("docs", "native", "proto", "deploy", "tests", *PACKAGES, PACKAGE)
MADE_LATER: Final = ("bench/results", "native/target")
"""Folders that a run or a build makes."""

DECISION: Final = re.compile(r"\b(?:ADR|[Dd]ecision) (\d+)\b")
FILE: Final = re.compile(rf"(?<![\w/.<-])((?:{'|'.join(FOLDERS)})/[\w./-]*\w)")
PLACEHOLDER: Final = re.compile(r"(?:^|/)[A-Z]+(?:\.\w+)?(?:/|$)")
MODULE: Final = re.compile(
    rf"(?<![\w./`@-])`?(?:{PACKAGE}\.)?((?:{'|'.join((*PACKAGES, 'tests'))})(?:\.[A-Za-z_]\w*)+)"
)
SECTION: Final = re.compile(r"(?:([\w./-]+\.md)[)`]*,? )?(?:§ ?|\bsections? )(\d+(?:\.\d+)*)")
FOREIGN: Final = re.compile(
    r"\b[Ff]ormats §|\b[Pp]ains? \d|\bprotocol points?\b|\b[Tt]he design (?:asks|requires|allows|sets|says)\b"
)
"""Words for documents that are not in the repository."""


class Line(NamedTuple):
    path: Path
    number: int
    text: str

    @property
    def place(self) -> str:
        return f"{name(self.path)}:{self.number}: {self.text.strip()[:100]}"


@cache
def prose() -> tuple[Line, ...]:
    """Comments and docstrings of all Python files, comments of all others, and the documents without their examples."""
    lines: list[Line] = []
    for path in text_files():
        match path.suffix:
            case ".py":
                lines += prose_of_python(path)
            case ".md":
                lines += prose_of_page(path)
    rust = sorted((ROOT / "native" / "src").rglob("*.rs"))
    for path in rust:
        lines += [Line(path, at, text) for at, text in numbered(path.read_text()) if "//" in text]
    return tuple(lines)


def numbered(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=first)


def prose_of_python(path: Path) -> Iterator[Line]:
    for number, text in numbered(path.read_text()):
        _, _, comment = text.partition("#")
        if comment:
            yield Line(path, number, comment)
    for node in ast.walk(tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield from (Line(path, *line) for line in numbered(text, node.lineno))


def prose_of_page(path: Path) -> Iterator[Line]:
    is_example = False
    for number, text in numbered(path.read_text()):
        if text.lstrip().startswith("```"):
            is_example = not is_example
        elif not is_example:
            yield Line(path, number, text)


@cache
def headings(page: Path) -> frozenset[str]:
    """Return the numbers of the headings of a page: `## 5.1 …` is 5.1."""
    return frozenset(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", page.read_text(), re.MULTILINE))


def page_cited(line: Line, cited: str) -> Path:
    """Return the page that a citation names by its path; without one it is the page of the line itself."""
    if not cited:
        return line.path
    return ROOT / cited if cited.startswith("docs/") else (line.path.parent / cited).resolve()


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names that a module defines, imports or uses."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        match node:
            case ast.FunctionDef(name=each) | ast.AsyncFunctionDef(name=each) | ast.ClassDef(name=each):
                found.add(each)
            case ast.Name(id=each) | ast.Attribute(attr=each):
                found.add(each)
            case ast.alias(name=each, asname=other):
                found.add(other or each)
    return frozenset(found)


def file_exists(path: str) -> bool:
    if path.startswith(MADE_LATER) or PLACEHOLDER.search(path):
        return True
    top, _, rest = path.partition("/")
    place = folder_of(top) / rest
    return (
        place.exists() or place.with_name(f"{place.name}.py").exists() or any(place.parent.glob(f"{place.name}-*.md"))
    )


def module_exists(dotted: str) -> bool:
    place = folder_of(dotted.partition(".")[0]).parent
    for at, part in enumerate(parts := dotted.split(".")):
        module = place / f"{part}.py"
        if module.exists():
            return at + 1 == len(parts) or parts[at + 1] in names_in(module)
        if (place / part).is_dir():
            place /= part
            continue
        module = place / "__init__.py"
        return module.exists() and part in names_in(module)
    return True


@cache
def settings() -> frozenset[str]:
    return frozenset(re.findall(r"^\| `(\w+\.\w+)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE))


def is_withdrawn(path: Path) -> bool:
    return "**Withdrawn.**" in path.read_text()


def test_cited_decisions_exist() -> None:
    pages = {int(page.name[:4]) for page in (DOCS / "adr").glob("[0-9]*.md")}
    cited = [(line, int(number)) for line in prose() for number in DECISION.findall(line.text)]
    print(f"decisions cited: {len(cited)}")
    assert len(cited) > 100
    assert not [line.place for line, number in cited if number not in pages]


def test_cited_files_exist() -> None:
    cited = [(line, path) for line in prose() for path in FILE.findall(line.text) if name(line.path) != "CHANGELOG.md"]
    print(f"files cited: {len(cited)}")
    assert len(cited) > 300
    assert not [line.place for line, path in cited if not file_exists(path) and not is_withdrawn(line.path)]


def test_cited_modules_exist() -> None:
    """Modules are cited in comments and docstrings; documents name modules by their files."""
    python = set(python_files())
    lines = [line for line in prose() if line.path in python]
    cited = [(line, module) for line in lines for module in MODULE.findall(line.text) if module not in settings()]
    print(f"modules cited: {len(cited)}")
    assert len(cited) > 100
    assert not [line.place for line, module in cited if not module_exists(module)]


def test_cited_sections_exist() -> None:
    """A section without a page is one of the page itself, or of the RFC that the module names."""
    wrong, count = [], 0
    for line in prose():
        for page, number in SECTION.findall(line.text):
            if not page and line.path.suffix != ".md" and "RFC" in line.path.read_text():
                continue
            count += 1
            cited = page_cited(line, page)
            if cited.suffix != ".md" or not cited.exists() or number not in headings(cited):
                wrong.append(line.place)
    print(f"sections cited: {count}")
    assert count > 20
    assert not wrong


def test_no_document_outside_the_repository_is_cited() -> None:
    assert not [line.place for line in prose() if FOREIGN.search(line.text) and line.path != Path(__file__)]
