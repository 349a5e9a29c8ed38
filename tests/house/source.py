"""The project's own source, as the house rules look at it."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "quarry_mq"
PUBLIC: Final = ("client", "protocol")
"""Packages whose folders lie in that of the import package. Those of the others lie at the top, and are linked."""
PACKAGES: Final = (*PUBLIC, "kv", "store", "server", "cli", "pipeline", "bench")
GENERATED: Final = ROOT / PACKAGE / "protocol" / "proto"
TEXT_SUFFIXES: Final = {".py", ".md", ".toml", ".proto", ".yaml", ".yml", ".js", ".java", ".xml", ".json", ".sh", ""}
SKIPPED_FOLDERS: Final = re.compile(r"^(\..*|__pycache__|node_modules|build|dist|target|.*\.egg-info)$")


class Import(NamedTuple):
    """Name an imported module by its folder (`store.fs`), wherever in the file the statement is."""

    module: str
    line: int


def folder_of(package: str) -> Path:
    return ROOT / PACKAGE / package if package in PUBLIC else ROOT / package


@cache
def production_files() -> list[Path]:
    """Python files of the packages that are installed or run, generated code left out."""
    files = [path for package in PACKAGES for path in folder_of(package).rglob("*.py")]
    return sorted(path for path in files if not path.is_relative_to(GENERATED))


@cache
def python_files() -> list[Path]:
    """Production files, tests and scripts."""
    return sorted({*production_files(), *(path for path in text_files() if path.suffix == ".py")})


@cache
def text_files() -> list[Path]:
    """Everything that a person wrote, generated code left out."""
    return sorted(path for path in _walk(ROOT) if path.suffix in TEXT_SUFFIXES and not path.is_relative_to(GENERATED))


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir():
            if not path.is_symlink() and not SKIPPED_FOLDERS.match(path.name):
                yield from _walk(path)
        elif path.is_file() and path.name != ".git":  # of a linked work tree it is a file
            yield path


@cache
def tree(path: Path) -> ast.Module:
    """Parse a file. Searches for garbage leave out its nodes, which are two million for all files."""
    gc.disable()
    try:
        parsed = ast.parse(path.read_text(), filename=str(path))
        gc.freeze()
    finally:
        gc.enable()
    return parsed


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Return the imports of the whole file, those inside functions too. Relative ones are resolved."""
    found = []
    package = Path(name(path)).parent.parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            # `from package import module` names the module only in the alias.
            found += [Import(module, node.lineno)]
            found += [Import(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return tuple(
        each._replace(module=each.module.removeprefix(f"{PACKAGE}.")) for each in found if each.module != PACKAGE
    )


def name(path: Path) -> str:
    """Return the path relative to the top, or to the folder of the import package, with forward slashes."""
    return path.relative_to(ROOT).as_posix().removeprefix(f"{PACKAGE}/")
