"""The programs of README.md and of the client pages run unchanged but for the address, each with an official client.

The pages: README.md, python.md, java.md, go.md, node.md and rust.md. All programs of a page run on one new broker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.documents.pages import PAGES, ROOT, blocks
from tests.e2e import languages
from tests.e2e.broker import DISK_OF_THE_TESTS, NO_CONSOLE, Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HERE: Final = "tests/documents/test_client_programs.py"
ADDRESS: Final = "127.0.0.1:8081"
PROGRAM_TIMEOUT_S: Final = 120.0
E2E: Final = ROOT / "tests" / "e2e"
PROGRAMS: Final = [
    (page, language)
    for page in PAGES
    for language in dict.fromkeys(each.language for each in blocks(page) if each.orders.get("elsewhere") == HERE)
]

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


@pytest.mark.parametrize(
    ("page", "language"), [pytest.param(*each, id=f"{each[0].relative_to(ROOT)}-{each[1]}") for each in PROGRAMS]
)
def test_programs_send_and_receive(page: Path, language: str, tmp_path: Path) -> None:
    programs = [each for each in blocks(page) if each.orders.get("elsewhere") == HERE and each.language == language]
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=DISK_OF_THE_TESTS | NO_CONSOLE)
    broker.start()
    try:
        for number, each in enumerate(programs):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            assert ADDRESS in each.text, each.place
            command = COMMANDS[language](each.text.replace(ADDRESS, broker.endpoint), folder)
            done = subprocess.run(
                command,
                env=os.environ | {"HOME": str(tmp_path)},  # clients write their logs there
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, f"{each.place}:\n{done.stdout}"
            assert "one coffee" in done.stdout.splitlines(), f"{each.place}:\n{done.stdout}"
        broker.assert_no_stack_trace()
    finally:
        broker.close()


def test_every_language_has_its_programs() -> None:
    assert {language for _, language in PROGRAMS} == COMMANDS.keys()
