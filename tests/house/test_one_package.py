"""Every module is imported as `quarry_mq.…`, and under no second name."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.house.source import PACKAGE, PUBLIC, ROOT, name, python_files, text_files, tree

FOLDERS: Final = tuple(sorted(each.name for each in (ROOT / PACKAGE).iterdir() if each.is_symlink()))
CHOICE: Final = "|".join(FOLDERS)
DOTTED: Final = re.compile(rf"({CHOICE})((?:\.[A-Za-z_]\w*)+)(?::\w+)?")
COMMAND: Final = re.compile(rf"-m ({CHOICE})\b|\b(?:from|import) ({CHOICE})(?:\.\w+)* import\b|\bimport ({CHOICE})\.\w")
SUSPECT: Final = re.compile(rf"\b(?:from|import)\s+({CHOICE})\b|-m[\"', ]+({CHOICE})\b|[\"']({CHOICE})\.\w")
"""Text that every file that breaks the rule contains: other files are not parsed."""


FOLDER_RULES: Final = {
    "tests/bench/test_journey.py",
    "tests/house/test_imports.py",
    "tests/house/test_one_package.py",
    "tests/house/test_rooms.py",
}
"""Files whose rules and tables are about folders, and name them by dots."""


def is_module(text: str) -> bool:
    """Return whether a string names a module, or something in one, by its folder alone."""
    found = DOTTED.fullmatch(text)
    if found is None:
        return False
    path = ROOT / found[1] / found[2].split(".")[1]
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def second_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a file imports, or names in a string that is not a docstring, without the package."""
    if not SUSPECT.search(path.read_text()):
        return
    docstrings = set()
    for node in ast.walk(tree(path)):  # which comes to a node before its children
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                docstrings.add(id(docstring))
                continue
            case ast.Import(names=aliases):
                found = [each.name for each in aliases if each.name.partition(".")[0] in FOLDERS]
            case ast.ImportFrom(module=str(module), level=0):
                found = [module] if module.partition(".")[0] in FOLDERS else []
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                found = [text] if is_module(text) or COMMAND.search(text) else []
            case _:
                continue
        for each in found:
            yield node.lineno, each


def test_the_package_is_links_to_the_folders_at_the_top_beside_the_public_ones() -> None:
    assert FOLDERS == ("cli", "kv", "pipeline", "server", "store")
    for each in FOLDERS:
        assert (ROOT / PACKAGE / each).readlink() == Path("..") / each
    kept = {each.name for each in (ROOT / PACKAGE).iterdir() if each.is_dir() and not each.is_symlink()}
    assert kept - {"__pycache__"} == {*PUBLIC}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": [PACKAGE]}


def test_no_module_is_named_without_the_package() -> None:
    """A module under a second name would be loaded again, with classes and state of its own."""
    files = [path for path in python_files() if name(path) not in FOLDER_RULES]
    assert len(files) > 1000
    wrong = [f"{name(path)}:{line}: {text}" for path in files for line, text in second_names(path)]
    assert not wrong, "\n".join(wrong)


def test_no_command_names_a_module_without_the_package() -> None:
    files = [path for path in text_files() if path.suffix in {".md", ".sh", ".toml", ".yaml", ".yml", ""}]
    wrong = [
        f"{name(path)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if COMMAND.search(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import server", 1),
        ("import server.main as main", 1),
        ("def f():\n    from store.disk import Disk", 1),
        ('patch("store.opening.open_store", 1)', 1),
        ('run(["-m", "cli.main"])', 1),
        ('code = "import sys, json; from server.main import main"', 1),
        ('"""Of `store.opening.open_store`."""', 0),
        ('settings = {"store.directory": "x"}', 0),
        ('patch("quarry_mq.store.opening.open_store", 1)', 0),
        ("from quarry_mq.server import main", 0),
    ],
)
def test_a_second_name_is_found(source: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(source)
    assert len(list(second_names(path))) == count


@pytest.mark.parametrize("folder", FOLDERS)
def test_tests_cannot_import_a_folder_by_its_own_name(folder: str) -> None:
    with pytest.raises(ImportError, match=rf"import {PACKAGE}\.{folder}"):
        __import__(folder)
