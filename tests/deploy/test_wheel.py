"""The wheel: what it puts into site-packages, and that it lives there beside packages of any other name."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.environments import Environment, run
from tests.deploy.manifests import ROOT
from tests.e2e.broker import SMALL_SEGMENTS, Broker
from tests.house.source import PACKAGE, PUBLIC

FOREIGN: Final = ("cli", "kv", "pipeline", "server", "store")
"""Names that other people's packages may have, too."""

RAISES: Final = 'raise ImportError("of another package")\n'


def build(kind: str, source: Path, into: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", into, cwd=source)
    [made] = into.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, as somebody has it who builds of it."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder / "packed")) as archive:
        archive.extractall(folder, filter="data")
    [made] = [each for each in folder.iterdir() if each.name != "packed"]
    return made


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return sorted(archive.namelist())


def sources() -> set[str]:
    """The files that the wheel has to hold, by the folders of the repository."""
    own = (f"{PACKAGE}/{each}" for each in ("__init__.py", *PUBLIC))
    listed = run("git", "ls-files", "-z", *FOREIGN, *own).split("\0")
    return {each if each.startswith(PACKAGE) else f"{PACKAGE}/{each}" for each in listed if each}


def test_one_name_is_added_to_site_packages(wheel: Path) -> None:
    found = names(wheel)
    assert {each.partition("/")[0] for each in found if ".dist-info/" not in each} == {PACKAGE}
    if (ROOT / ".git").exists():
        assert {each for each in found if ".dist-info/" not in each} == sources()


def test_each_folder_with_modules_is_a_package(wheel: Path) -> None:
    """Spark adds a wheel to the path as it is, and a folder in an archive is no package without `__init__.py`."""
    found = names(wheel)
    folders = {each.rpartition("/")[0] for each in found if each.endswith(".py")}
    assert sorted(each for each in folders if f"{each}/__init__.py" not in found) == []


def test_the_licence_comes_with_it(wheel: Path) -> None:
    licences = [each for each in names(wheel) if "/licenses/" in each]
    assert [each.rpartition("/")[2] for each in licences] == ["LICENSE", "NOTICE"]
    with zipfile.ZipFile(wheel) as archive:
        for each in licences:
            assert archive.read(each) == (ROOT / each.rpartition("/")[2]).read_bytes()


def test_the_source_distribution_makes_the_same_wheel(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    assert names(build("wheel", unpacked, tmp_path)) == names(wheel)
    assert {each.name for each in unpacked.iterdir()} >= {"LICENSE", "NOTICE", PACKAGE}


# -- beside another package


def foreign_wheel(folder: Path) -> Path:
    """A distribution with folders of the names of ours, none of which can be imported."""
    path = folder / "foreign-1-py3-none-any.whl"
    files = {f"{name}/{module}.py": RAISES for name in FOREIGN for module in ("__init__", "main", "disk")}
    files["foreign-1.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: foreign\nVersion: 1\n"
    files["foreign-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "foreign-1.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in (*files, record))
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def environment(tmp_path: Path, wheel: Path) -> Environment:
    made = Environment(tmp_path / "environment")
    made.pip("install", "--no-deps", "--no-index", wheel)
    assert made.top_names() == {PACKAGE}
    return made


def folder_with(names: Iterable[str], folder: Path) -> Path:
    """Make a working directory with folders of the same names."""
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(RAISES)
    return folder


@pytest.mark.slow
def test_a_broker_runs_beside_packages_of_the_same_names(tmp_path: Path, environment: Environment) -> None:
    """The broker also runs if these folders lie in the working directory, and after the foreign package was removed."""
    environment.pip("install", "--no-deps", "--no-index", foreign_wheel(tmp_path))
    environment.borrow_libraries()
    assert environment.top_names() == {PACKAGE, *FOREIGN}
    beside = folder_with(FOREIGN, tmp_path / "beside")
    with pytest.raises(AssertionError, match="of another package"):
        run(environment.python, "-c", "import server", cwd=tmp_path)
    broker = Broker(
        tmp_path / "store",
        logs=tmp_path / "logs",
        environment={**SMALL_SEGMENTS, "PYTHONPATH": "."},
        installed=environment.quarry,
        folder=beside,
    )
    ping = ("ping", "--topic", "orders", "--count", "1", "--endpoint", broker.endpoint)
    use(broker, environment, beside, ("topic", "create", "orders"), ping)

    environment.pip("uninstall", "--yes", "foreign")
    assert environment.top_names() == {PACKAGE}
    use(broker, environment, beside, ping)


def use(broker: Broker, environment: Environment, folder: Path, *commands: tuple[str, ...]) -> None:
    """Start it, run commands of the same installation, and stop it. Nothing of the checkout is loaded."""
    told = run(environment.python, "-c", f"import {PACKAGE}.server.main as it; print(it.__file__)", cwd=folder)
    assert Path(told.strip()).is_relative_to(environment.packages)
    broker.start()
    try:
        for words in commands:
            run(environment.quarry, *words, "--admin", broker.admin, cwd=folder, environment={"PYTHONPATH": "."})
    finally:
        broker.stop()


def test_no_path_of_this_machine_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = [each for each in archive.namelist() if os.fsencode(ROOT) in archive.read(each)]
    assert found == []
