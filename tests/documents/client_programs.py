"""The programs of README.md and of the client pages, and how each language runs them with its official client."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.documents.pages import ROOT, Block, blocks
from tests.e2e import languages

TEST: Final = "tests/documents/test_client_programs.py"
"""The name of the test in the pages."""
ADDRESS: Final = "127.0.0.1:8081"
SAID: Final = "one coffee"
"""The line that a program prints which received its message."""
E2E: Final = ROOT / "tests" / "e2e"

Words = Sequence[str | Path]


def python(program: str, folder: Path) -> Words:
    return sys.executable, written(program, folder / "program.py")


def java(program: str, folder: Path) -> Words:
    (name,) = re.findall(r"^public class (\w+)", program, flags=re.MULTILINE)
    class_path = languages.java_classes("java-client", E2E / "java")
    return "java", "-cp", class_path, written(program, folder / f"{name}.java")


def go(program: str, folder: Path) -> Words:
    languages.need("go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(E2E / "go" / name, folder)
    written(program, folder / "main.go")
    languages.run(["go", "vet", "."], directory=folder)
    languages.run(["go", "build", "-buildvcs=false", "-o", "program", "."], directory=folder)
    return (folder / "program",)


def node(program: str, folder: Path) -> Words:
    return *languages.node().producer[:-1], written(program, folder / "program.js")


def rust(program: str, folder: Path) -> Words:
    languages.need("cargo")
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy(E2E / "rust" / name, folder)
    written(program, folder / "src" / "main.rs")
    # in a folder of its own, so that the program of the end-to-end tests stays what it is
    target = languages.cache() / "page-rust-target"
    languages.run(["cargo", "build", "--quiet", "--locked", "--target-dir", target], directory=folder)
    return (shutil.copy(target / "debug" / "quarry-client", folder / "program"),)


COMMANDS: Final[dict[str, Callable[[str, Path], Words]]] = {
    "python": python,
    "java": java,
    "go": go,
    "javascript": node,
    "rust": rust,
}


def written(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def programs(page: Path, language: str) -> list[Block]:
    """Return the programs of a page that send and receive."""
    return [each for each in blocks(page) if each.orders.get("elsewhere") == TEST and each.language == language]
