"""The offline commands as a user starts them: in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

GoldenStore = Callable[[str], Path]


def quarry(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quarry_mq.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, encoding="utf-8")


def test_decode(golden_store: GoldenStore) -> None:
    store = golden_store("rocks-clean")
    result = quarry("decode", store / "store", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == (store / "messages.jsonl").read_text(encoding="utf-8")


def test_directory_that_is_no_store(tmp_path: Path) -> None:
    """One line that names the directory, and no traceback."""
    result = quarry("queues", tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"{tmp_path}: there is no store in this directory\n"


def test_reader_of_the_output_that_goes_away(golden_store: GoldenStore) -> None:
    """`quarry decode … | head` ends quietly."""
    command = [
        sys.executable,
        "-m",
        "quarry_mq.cli.main",
        "decode",
        str(golden_store("file-clean") / "store"),
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"bodyCRC"')
        process.stdout.close()
        assert process.stderr.read() == b""
