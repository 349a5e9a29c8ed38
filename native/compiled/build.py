"""Compiles the modules that are named in modules.txt with mypyc, for `cli/compiled.py` to load in their place.

    python native/compiled/build.py [DIRECTORY]

makes DIRECTORY/quarry_compiled (default: where this Python keeps its packages). It needs the development tools and a C
compiler, and is run in the checkout whose modules it compiles.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from mypyc.build import mypycify
from setuptools import setup

from cli.compiled import PACKAGE, digest_of

ROOT: Final = Path(__file__).parents[2]
LIST: Final = Path(__file__).with_name("modules.txt")
SUFFIX: Final[str] = sysconfig.get_config_var("EXT_SUFFIX")


def main(into: Path) -> None:
    os.chdir(ROOT)
    sources = LIST.read_text().split()
    package = into / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        compiled = _compile(sources, Path(scratch))
        shutil.rmtree(package, ignore_errors=True)
        package.mkdir(parents=True)
        for each in compiled:
            # flat, by the full names of the modules: as packages they would hide those that are not compiled
            name = ".".join(each.relative_to(Path(scratch) / "lib").parts).removesuffix(SUFFIX)
            shutil.copy(each, package / f"{name}{SUFFIX}")
    digests = {source.removesuffix(".py").replace("/", "."): digest_of(ROOT / source) for source in sources}
    lines = "".join(f"    {name!r}: {digest!r},\n" for name, digest in digests.items())
    (package / "__init__.py").write_text(
        f'"""Compiled modules of Quarry (docs/adr/0046)."""\n\nSUFFIX = {SUFFIX!r}\nSOURCES = {{\n{lines}}}\n'
    )


def _compile(sources: list[str], scratch: Path) -> list[Path]:
    """The libraries below scratch/lib: one for each module, and one that they all share."""
    modules = mypycify(
        ["--strict", *sources], opt_level="2", debug_level="0", multi_file=True, target_dir=str(scratch / "c")
    )
    command = ["build_ext", "--build-lib", str(scratch / "lib"), "--build-temp", str(scratch / "o")]
    setup(name="quarry-compiled", packages=[], py_modules=[], ext_modules=modules, script_args=command)
    return sorted((scratch / "lib").rglob(f"*{SUFFIX}"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("platlib")).absolute())
