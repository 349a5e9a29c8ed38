"""When compiled modules are taken in place of their sources: all of them or none, and never of another source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from cli import compiled
from tests.house.source import ROOT

SUFFIX = EXTENSION_SUFFIXES[0]
NAMES = ("made_up.first", "made_up.second")


@pytest.fixture(autouse=True)
def finders() -> Iterator[None]:
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before


@pytest.fixture
def package(tmp_path: Path) -> ModuleType:
    """What the build leaves, of two modules whose sources lie in the same directory."""
    found = ModuleType("quarry_compiled")
    found.__file__ = str(tmp_path / "__init__.py")
    digests = {}
    for name in NAMES:
        source = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        source.parent.mkdir(exist_ok=True)
        source.write_text(f"NAME = {name!r}\n")
        digests[name] = sha256(source.read_bytes()).hexdigest()
        (tmp_path / f"{name}{SUFFIX}").touch()
    vars(found).update(SUFFIX=SUFFIX, SOURCES=digests)
    return found


def test_those_of_these_sources_are_found_and_no_others(package: ModuleType, tmp_path: Path) -> None:
    assert compiled._use(package, tmp_path) is None
    for name in NAMES:
        spec = sys.meta_path[0].find_spec(name, None)
        assert spec is not None
        assert spec.origin == str(tmp_path / f"{name}{SUFFIX}")
    assert sys.meta_path[0].find_spec("made_up", None) is None
    assert (found := find_spec("server.limits")) is not None
    assert str(found.origin).endswith("limits.py")


def test_after_a_change_of_one_source_none_is_taken(package: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "made_up/second.py").write_text("NAME = 'changed'\n")
    before = list(sys.meta_path)
    assert compiled._use(package, tmp_path) == "made_up.second is not what was compiled: run `make compiled`"
    (tmp_path / "made_up/second.py").unlink()
    assert compiled._use(package, tmp_path) == "made_up.second is not what was compiled: run `make compiled`"
    assert sys.meta_path == before


def test_beside_one_that_is_loaded_from_its_source_none_is_taken(
    package: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They reach into each other's objects by their layout: of both kinds at once the process would die."""
    monkeypatch.setitem(sys.modules, NAMES[1], ModuleType(NAMES[1]))
    before = list(sys.meta_path)
    assert compiled._use(package, tmp_path) == f"{NAMES[1]} is loaded already"
    assert sys.meta_path == before


def test_those_of_another_python_are_left_alone(package: ModuleType, tmp_path: Path) -> None:
    vars(package).update(SUFFIX=".cpython-299-vax.so")
    assert "another Python (.cpython-299-vax.so)" in str(compiled._use(package, tmp_path))


@pytest.mark.parametrize(
    ("environment", "text", "wanted"),
    [
        ({}, None, True),
        ({}, "", True),
        ({}, "[broker]\nnative = true", True),
        ({}, "[broker]\nnative = false", False),
        ({"QUARRY_BROKER_NATIVE": "false"}, "[broker]\nnative = true", False),
        ({"QUARRY_BROKER_NATIVE": "0"}, None, False),
        ({"QUARRY_BROKER_NATIVE": "true"}, "[broker]\nnative = false", True),
        ({}, "broker = 7", False),
        ({}, "[broker", False),
    ],
)
def test_whoever_does_without_the_native_part_does_without_them(
    environment: dict[str, str], text: str | None, wanted: bool, tmp_path: Path
) -> None:
    config = None
    if text is not None:
        config = tmp_path / "quarry.toml"
        config.write_text(text)
    assert compiled._is_wanted(config, environment) is wanted


def test_a_config_that_cannot_be_read_is_left_to_who_reads_it_next(tmp_path: Path) -> None:
    assert compiled._is_wanted(tmp_path / "missing.toml", {}) is False


def test_each_module_that_is_compiled_is_there() -> None:
    sources = (ROOT / "native/compiled/modules.txt").read_text().split()
    assert [each for each in sources if not (ROOT / each).is_file()] == []
    assert len(set(sources)) == len(sources)
