"""House rules about the text of the source: sizes, words, file access."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.house.source import ROOT, name, production_files, python_files, text_files, tree

MODULE_LINES_MAX: Final = 900
FUNCTION_LINES_MAX: Final = 60

LONG_FUNCTIONS: Final[dict[str, str]] = {}
"""Functions above the limit, each with its reason."""

BANNED_WORDS: Final = {
    # Assembled here, so that this file does not break its own rules.
    r"\b(TO" r"DO|FIX" r"ME)\b(?!\(#\d+\))": "say it in an issue and name that: TODO(#12)",
    r"(?<![\w.~])/(work|root|Users|home/\w+)/\w": "a path of one machine",
    r"(?i)\b(cla" r"ude|anthr" r"opic|chat" r"gpt|copi" r"lot|open" r"ai|ll" r"m)\b": "who typed it does not matter",
    r"(?i)\bas an a" r"i\b": "who typed it does not matter",
    r"\.\./sh" r"ared|(?<![\w/])sh" r"ared/(design|golden|peers)": "the project is complete without it",
    r"\bNotImplemented" r"Error\b": "there are no stubs",
}

FILE_FUNCTIONS: Final = {
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "unlink",
    "mkdir",
    "rmdir",
    "symlink_to",
    "hardlink_to",
    "iterdir",
    "rglob",
    "exists",
    "is_file",
    "is_dir",
}
"""Methods of pathlib that ask or change the file system."""

OS_FUNCTIONS: Final = {"getpid", "getppid", "environ", "cpu_count", "sched_getaffinity", "path", "dup2", "strerror"}
"""Names of `os` that are used outside store/fs; none of them touches files."""

READS_CONFIGURATION: Final = {
    "server/settings/broker_settings.py",
    "server/front/tls.py",
    "server/process/certificates.py",
    "server/process/process_metrics.py",  # /proc
    "server/process/http.py",  # the token of the metrics
    "server/admin_port/console.py",  # sockets that killed brokers left behind
    "server/console/application.py",  # the pages, which come with the program
    "store/security/sealer.py",  # the key lies outside of the store
}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(path: Path) -> set[int]:
    """Lines that hold code: not blank, not only a comment."""
    quiet = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in quiet:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    if ast.get_docstring(function) is None:
        return set()
    return set(range(function.body[0].lineno, (function.body[0].end_lineno or 0) + 1))


def long_functions() -> dict[str, int]:
    found = {}
    for path in python_files():
        candidates = [each for each in functions(path) if (each.end_lineno or 0) - each.lineno >= FUNCTION_LINES_MAX]
        if not candidates:
            continue
        lines = code_lines(path)
        for each in candidates:
            size = len(lines & set(range(each.lineno, (each.end_lineno or 0) + 1)) - docstring_lines(each))
            if size > FUNCTION_LINES_MAX:
                found[f"{name(path)}:{each.name}"] = size
    return found


def test_modules_are_short() -> None:
    sizes = {name(path): len(path.read_text().splitlines()) for path in python_files()}
    assert {path: size for path, size in sizes.items() if size > MODULE_LINES_MAX} == {}


def test_functions_are_short() -> None:
    """Counted without docstring, comments and blank lines. An exception that is no longer needed fails too."""
    assert set(long_functions()) == set(LONG_FUNCTIONS)


def test_nobody_left_a_note_to_himself() -> None:
    rules = {re.compile(pattern): reason for pattern, reason in BANNED_WORDS.items()}
    found = [
        f"{name(path)}:{number}: {reason}: {line.strip()[:80]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        for rule, reason in rules.items()
        if rule.search(line)
    ]
    assert not found, "\n".join(found)


def test_files_are_opened_in_one_place() -> None:
    """`store/fs` is the seam that tests replace to tear, lose and fail writes. RocksDB keeps its own directory."""
    wrong = [
        f"{name(path)}:{node.lineno}: {ast.unparse(node.func)}"
        for path in production_files()
        if name(path).startswith(("store/", "server/")) and not name(path).startswith("store/fs/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and touches_files(node) and name(path) not in READS_CONFIGURATION
    ]
    assert not wrong, f"file access belongs to store/fs: {wrong}"


def touches_files(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id="open"):
            return True
        case ast.Attribute(value=ast.Name(id="os"), attr=attribute):
            return attribute not in OS_FUNCTIONS
        case ast.Attribute(value=receiver, attr=attribute) if attribute in FILE_FUNCTIONS:
            return not ast.unparse(receiver).endswith("disk")
        case _:
            return False


def test_packages_say_what_they_are() -> None:
    silent = [name(path) for path in production_files() if ast.get_docstring(tree(path)) is None]
    assert not silent, f"no module docstring: {silent}"


def test_tests_lie_in_packages() -> None:
    """Two test files of one name in folders that are no packages import each other."""
    folders = {path.parent for path in python_files() if path.is_relative_to(ROOT / "tests")}
    missing = sorted(name(folder) for folder in folders if not (folder / "__init__.py").exists())
    assert not missing
