"""Fixtures that every tests folder may use."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import golden
from tests.object_store import server as s3

GoldenStore = Callable[[str], Path]


class _OnePackage(MetaPathFinder):
    """Refuses the folders of the repository as packages of their own names: pytest puts the repository on the path."""

    names = frozenset({"cli", "kv", "pipeline", "server", "store"})

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname in self.names:
            raise ImportError(f"{fullname} would be a second copy: import quarry_mq.{fullname}")


sys.meta_path.insert(0, _OnePackage())

gc.disable()
"""Until the tests are collected: modules and tests are no garbage, and each worker would search them for seconds."""

# An example may take long where the machine does other work: no test of random inputs fails for its time.
settings.register_profile("quarry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quarry")

# Errors are logged with plain frames, as by a broker. The default of structlog has colours and takes 150 ms for each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


def pytest_collection_finish() -> None:
    """Leave the tests, and what they import, out of each search for garbage during the run."""
    gc.collect()
    gc.freeze()
    gc.enable()
    atexit.register(gc.freeze)  # nor are all objects searched when the process ends


@pytest.fixture(autouse=True, scope="module")
def stay_frozen() -> Iterator[None]:
    """Leave the tests out of searches for garbage again, if the module has let them be searched, as benchmarks do."""
    yield
    if not gc.get_freeze_count():
        gc.freeze()


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder for tests that are about a disk: `make test` lets `tmp_path` lie in memory, which has no page cache."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def _stats(root: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file below `root`."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            status = os.stat(os.path.join(folder, name))
            found[os.path.join(folder, name)] = (status.st_size, status.st_mtime_ns)
    return found


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoldenStore]:
    """`golden_store("rocks-clean")` is the unpacked folder: store/ and its companions. Only read it.

    It is shared by the whole session; the session fails at its end if any file was added, changed or removed.
    """
    unpacked: dict[str, Path] = {}
    stats: dict[str, dict[str, tuple[int, int]]] = {}
    root = tmp_path_factory.mktemp("golden")

    def find(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = golden.unpack(name, root)
            stats[name] = _stats(unpacked[name])
        return unpacked[name]

    yield find
    for name, path in unpacked.items():
        assert _stats(path) == stats[name], f"a test changed the shared golden store {name}; use golden_copy"


@pytest.fixture
def golden_copy(tmp_path: Path) -> GoldenStore:
    """`golden_copy("rocks-clean")` is a private copy of the unpacked folder that the test may change."""

    def make(name: str) -> Path:
        return golden.unpack(name, tmp_path / "golden-copy")

    return make


@pytest.fixture(scope="module")
def s3_server() -> Iterator[s3.S3Server]:
    """What tests of the same module share: each takes a bucket of its own."""
    with s3.serving() as server:
        yield server
