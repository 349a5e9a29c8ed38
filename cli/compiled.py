"""Compiled modules in place of their sources, where they are installed (`make compiled`; docs/adr/0046).

They are the same code, so all that has to be seen to is that they are of the same sources, and that all of them are
taken or none: they call each other without Python, by the layout of their objects.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

PACKAGE: Final = "quarry_compiled"
ROOT: Final = Path(__file__).parents[1]
_OFF: Final = {"0", "false", "off", "no", "n", "f"}


class _Finder(MetaPathFinder):
    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def use_compiled(config: Path | None) -> str | None:
    """To be called before anything of a broker is imported. Returns why compiled modules are there and not used.

    `config` is the file with the settings, `broker.native` of which is looked at; what is wrong there says who reads it
    as a whole.
    """
    package = _installed()
    return None if package is None or not _is_wanted(config, os.environ) else _use(package, ROOT)


def are_current() -> bool:
    """Whether they are installed and of the sources that lie here."""
    package = _installed()
    return package is not None and _objection(package, ROOT) is None


def digest_of(source: Path) -> str:
    """By which a source is known to be the one that was compiled."""
    return sha256(source.read_bytes()).hexdigest()


def _installed() -> ModuleType | None:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError:
        return None


def _use(package: ModuleType, root: Path) -> str | None:
    if why_not := _objection(package, root):
        return why_not
    if loaded := [name for name in package.SOURCES if name in sys.modules]:
        return f"{loaded[0]} is loaded already"
    suffix = str(package.SUFFIX)
    files = {file.name.removesuffix(suffix): file for file in Path(str(package.__file__)).parent.glob(f"*{suffix}")}
    sys.meta_path.insert(0, _Finder(files))
    return None


def _objection(package: ModuleType, root: Path) -> str | None:
    """Why they cannot be taken in any process."""
    if package.SUFFIX not in EXTENSION_SUFFIXES:
        return f"the compiled modules are for another Python ({package.SUFFIX}): run `make compiled`"
    for name, digest in package.SOURCES.items():
        source = root.joinpath(*name.split(".")).with_suffix(".py")
        if not source.is_file() or digest_of(source) != digest:
            return f"{name} is not what was compiled: run `make compiled`"
    return None


def _is_wanted(config: Path | None, environment: Mapping[str, str]) -> bool:
    """Whether `broker.native` allows it. The settings themselves cannot be asked: they import what is compiled."""
    word = environment.get("QUARRY_BROKER_NATIVE")
    if word is not None:
        return word.strip().lower() not in _OFF
    if config is None:
        return True
    try:
        return tomllib.loads(config.read_text()).get("broker", {}).get("native") is not False
    except (OSError, ValueError, AttributeError):
        return False
