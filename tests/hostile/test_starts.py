"""`quarry serve` where it cannot run: status 2, and one line that names what is at fault."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.broker import PROJECT, clean_environment, quarry

ADDRESSES: Final = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--http", "127.0.0.1:0")


def refusal(*arguments: object, variables: dict[str, str] | None = None) -> str:
    """The one line with which `quarry serve` ends."""
    done = quarry("serve", *map(str, arguments), *ADDRESSES, environment=variables)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    return line


def test_places_where_no_store_can_be(tmp_path: Path) -> None:
    """Tests may run as root, for whom no directory is unwritable: these are for everybody."""
    file = tmp_path / "file"
    file.write_bytes(b"x")
    (tmp_path / "dangling").symlink_to("/nowhere/at/all")
    (tmp_path / "lock-is-a-directory" / "lock").mkdir(parents=True)
    foreign = tmp_path / "foreign" / "commitlog"
    foreign.mkdir(parents=True)
    (foreign / "notes.txt").write_bytes(b"x")
    places = {
        file: f"{file}: a file, not a directory",
        file / "below": f"{file / 'below'}: a file, not a directory",
        tmp_path / "dangling": f"{tmp_path / 'dangling'}: ",
        Path("/proc/no-such-place/store"): "/proc/no-such-place: ",
        tmp_path / ("n" * 300): f"{tmp_path / ('n' * 300)}: ",
        Path("/dev/null"): "/dev/null: a file, not a directory",
        tmp_path / "lock-is-a-directory": f"{tmp_path / 'lock-is-a-directory' / 'lock'}: Is a directory",
        tmp_path / "foreign": f"{foreign / 'notes.txt'}: no commit log segment",
    }
    with ThreadPoolExecutor(2) as pool:
        lines = pool.map(lambda place: refusal("--store", place), places)
    for (place, expected), line in zip(places.items(), lines, strict=True):
        assert line.startswith(expected), (place, line)


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    contents = {
        b"[store\n": "settings.toml: ",
        b"[store]\nnope = 1\n": "store.nope: ",
        b"store = 1\n": "store: ",
        b"[store]\nsegment_size = -5\n": "store.segment_size: ",
    }
    files = []
    for number, content in enumerate(contents):
        directory = tmp_path / str(number)
        directory.mkdir()
        files.append(directory / "settings.toml")
        files[-1].write_bytes(content)
    with ThreadPoolExecutor(2) as pool:
        lines = pool.map(lambda file: refusal("--config", file, "--store", tmp_path / "store"), files)
    for (content, expected), line in zip(contents.items(), lines, strict=True):
        assert expected in line, (content, line)
    assert not (tmp_path / "store").exists()


def test_a_mistyped_variable(tmp_path: Path) -> None:
    line = refusal("--store", tmp_path / "store", variables={"QUARRY_SOTRE_DIRECTORY": "/data"})
    assert line == "QUARRY_SOTRE_DIRECTORY: unknown setting (did you mean QUARRY_STORE_DIRECTORY?)"


def test_a_disk_that_takes_no_file_of_any_size(tmp_path: Path) -> None:
    done = _serve_within(tmp_path / "store", "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(str(tmp_path / "store")), done.stderr
    assert "Traceback" not in done.stderr


def _serve_within(store: Path, limit: str) -> subprocess.CompletedProcess[str]:
    # a process that is forked while grpc runs here (`preexec_fn`) may end in it: grpc#43055
    command = f"import resource; from quarry_mq.cli.main import main; {limit}; main()"
    return subprocess.run(
        [sys.executable, "-c", command, "serve", "--store", str(store), *ADDRESSES],
        cwd=PROJECT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("command", ["decode", "queues"])
def test_the_offline_commands_name_it_too(tmp_path: Path, command: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    done = quarry(command, str(file))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(os.fspath(file))
