"""Imports of `quarry` before it does anything, and its version."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.command_table import COMMANDS, SECTIONS
from quarry_mq.cli.main import app
from tests.e2e.broker import PROJECT

HEAVY = {"aiohttp", "cryptography", "jsonschema", "numpy", "pyspark", "structlog", "textual"}
USE_A_STORE = {
    *("serve", "console", "queues", "backup", "index", "verify", "recover", "restore", "decode", "units", "migrate"),
    *("export-metadata", "follow", "pipeline", "replica"),
}


def imported(*words: str) -> set[str]:
    """Outermost names of the modules that `quarry` has imported at its end."""
    code = (
        "import sys\nfrom quarry_mq.cli.main import app\n"
        f"try:\n    app({words!r})\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        "print(*{each.partition('.')[0] for each in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("topic", "list", "--help"), ("produce", "--help")])
def test_a_command_imports_what_it_needs_alone(words: tuple[str, ...]) -> None:
    """Shells ask `quarry` at each tabulator key, and scripts call it in loops."""
    needless = HEAVY if "topic" in words or "produce" in words else HEAVY | {"grpc", "google"}
    assert needless & imported(*words) == set()


def test_only_commands_that_use_a_store_load_one() -> None:
    """A command is loaded to show its help, and a shell that completes its options does that, too."""
    others = [name for name in COMMANDS if name not in USE_A_STORE]
    code = (
        "import sys, typer\nfrom quarry_mq.cli.main import app\n"
        f"for name in {others!r}:\n    typer.main.get_command(app).load(name)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert len(others) > 30
    assert not {"numpy", "rocksdict", "quarry_mq.kv", "quarry_mq.server.broker"} & set(done.stdout.split())


def test_help_lists_all_commands_in_sections() -> None:
    told = CliRunner().invoke(app, ["--help"]).stdout.splitlines()
    sections = [line.split()[1] for line in told if line.startswith("╭─ ")]
    assert sections == ["Options", *(section.split()[0] for section in SECTIONS)]
    assert [line.split()[1] for line in told if line.startswith("│ ") and line[2].isalpha()] == list(COMMANDS)


@pytest.mark.parametrize("words", [(), ("topic",), ("topic", "create"), ("serve",), ("doctor",)])
def test_h_is_short_for_help(words: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert not re.search("<(bool|str|path|list)", short.stdout), "these are nothing to type"


def test_help_shows_how_a_command_is_typed() -> None:
    told = CliRunner().invoke(app, ["acl", "allow", "-h"]).stdout
    assert "Usage: quarry acl allow [OPTIONS] USER RESOURCE ACTION..." in told
    assert "[OPTIONS] [STORE]" in CliRunner().invoke(app, ["queues", "-h"]).stdout


@pytest.mark.parametrize("words", [(), ("topic",), ("topic", "create")])
def test_help_before_a_command_is_the_same_as_after_it(words: tuple[str, ...]) -> None:
    before, after = (CliRunner().invoke(app, typed) for typed in (["help", *words], [*words, "-h"]))
    assert (before.exit_code, before.stdout) == (0, after.stdout)


def test_help_of_no_command_names_near_ones() -> None:
    told = CliRunner().invoke(app, ["help", "topic", "creat"])
    assert (told.exit_code, "Did you mean 'create'?" in told.output) == (2, True)


def test_the_version_is_told() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"quarry {project['version']}\n")


def test_a_process_ends_without_a_search_for_garbage() -> None:
    """Python searches all objects at the end; frozen ones are left out."""
    ending = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(len(gc.get_objects()), gc.get_freeze_count()))\n"
        "sys.argv = ['quarry', '--version']\n"
        "from quarry_mq.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", ending], capture_output=True, text=True, timeout=60, check=True)
    searched, frozen = map(int, done.stdout.splitlines()[-1].split())
    assert searched < 1_000 < frozen
