"""Make everything that a release has, ready to be published.

    make release

Everything is made of the last commit, not of the working tree, and lies in build/release/VERSION:

| file | what it is |
|---|---|
| quarry_mq-VERSION.tar.gz, quarry_mq-VERSION-py3-none-any.whl | the source distribution and the wheel of Quarry |
| quarry_native-VERSION.tar.gz, quarry_native-VERSION-cp311-abi3-*.whl | the native part for Python 3.11 and newer |
| quarry-VERSION.tgz | the Helm chart |
| quarry-VERSION-image.tar.gz | the container image, for `docker load` |
| quarry-VERSION-requirements.txt | the versions that a release was tested with, and their hashes |
| quarry-VERSION.cyclonedx.json | the software bill of materials (CycloneDX) of Quarry and its libraries |
| SHA256SUMS | the checksum of each file above |

The bill of materials of the native part is in each of its wheels. A part that cannot be made on this machine is named
with the reason, and the exit status is 1; `--without` leaves a part out on purpose.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from deploy.helm import render  # noqa: E402 - found by the line above

LIBRARY: Final = "manylinux_2_17"
"""The oldest C library that native wheels work with: glibc 2.17 of 2012."""

MACHINES: Final = ("x86_64", "aarch64")
CHECKSUMS: Final = "SHA256SUMS"
BLOCK_SIZE: Final = 1 << 20


class Missing(Exception):
    """A part cannot be made on this machine. The text gives the reason."""


class Release(NamedTuple):
    """`source` is the tree of the commit, `folder` is the folder for the files."""

    version: str
    source: Path
    folder: Path

    def file(self, end: str) -> Path:
        """Return the path of a file whose name begins with product and version."""
        return self.folder / f"quarry-{self.version}{end}"


def run(*words: object, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """Return the standard output of a program. Raises Missing if the program fails or is not installed."""
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
        )
    except OSError as cause:
        raise Missing(f"{command[0]} cannot be run: {cause.strerror}") from cause
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Missing("\n    ".join([f"{' '.join(command)} failed:", *said[-5:]]))
    return done.stdout


def python(release: Release) -> None:
    """Make the wheel and the source distribution of Quarry."""
    for kind in ("sdist", "wheel"):
        run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", release.folder, cwd=release.source)


def native_of(machine: str) -> Callable[[Release], None]:
    """Return the maker of the native wheel for one kind of processor."""

    def make(release: Release) -> None:
        target = f"{machine}-unknown-linux-gnu"
        library = Path(run("rustc", "--print", "target-libdir", "--target", target).strip())
        if not library.is_dir():
            raise Missing(f"Rust has no library for {target}: rustup target add {target}")
        # zig links for an old C library and for other processors
        run(
            *(sys.executable, "-m", "maturin", "build", "--release", "--locked", "--zig"),
            *("--compatibility", LIBRARY, "--target", target, "--out", release.folder),
            cwd=release.source / "native",
            environment={
                "CARGO_TARGET_DIR": str(ROOT / "native" / "target"),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the package of zig is there
            },
        )

    return make


def native_source(release: Release) -> None:
    """Make the source distribution of the native part."""
    run(sys.executable, "-m", "maturin", "sdist", "--out", release.folder, cwd=release.source / "native")


def chart(release: Release) -> None:
    """Make the package of the Helm chart."""
    try:
        helm = render.helm()
    except (OSError, subprocess.CalledProcessError) as cause:
        raise Missing(f"Helm cannot be built with Go ({cause}): set HELM=/path/to/helm") from cause
    run(helm, "package", release.source / "deploy" / "helm" / "quarry", "--destination", release.folder)


def image(release: Release) -> None:
    """Make the container image with Docker."""
    tag = f"quarry:{release.version}"
    run("docker", "build", "--file", "deploy/image/Dockerfile", "--tag", tag, ".", cwd=release.source)
    packed = release.file("-image.tar.gz")
    unpacked = packed.with_suffix("")
    run("docker", "save", "--output", unpacked, tag)
    with unpacked.open("rb") as source, gzip.GzipFile(packed, "wb", mtime=0) as target:
        shutil.copyfileobj(source, target, BLOCK_SIZE)
    unpacked.unlink()


def requirements(release: Release) -> None:
    """Copy the lock of the image: it is as good for pip."""
    shutil.copyfile(release.source / "deploy" / "locks" / "broker.txt", release.file("-requirements.txt"))


def materials(release: Release) -> None:
    """Write the software bill of materials: Quarry, and the libraries that the lock names, with their hashes."""
    run(
        *(sys.executable, "-m", "cyclonedx_py", "requirements", release.source / "deploy" / "locks" / "broker.txt"),
        *("--pyproject", release.source / "pyproject.toml", "--output-reproducible", "--of", "JSON"),
        *("--output-file", release.file(".cyclonedx.json")),
    )


PARTS: Final[Mapping[str, Callable[[Release], None]]] = {
    "python": python,
    **{f"native-{machine}": native_of(machine) for machine in MACHINES},
    "native-source": native_source,
    "chart": chart,
    "requirements": requirements,
    "materials": materials,
    "image": image,
}


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path) -> None:
    """Write a file that `sha256sum --check` reads."""
    paths = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    (folder / CHECKSUMS).write_text("".join(f"{checksum(path)}  {path.name}\n" for path in paths), encoding="utf-8")


def unpack_commit(folder: Path) -> None:
    """Write the tree of the last commit to an empty folder. Raises Missing."""
    archive = folder.with_suffix(".tar")
    run("git", "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    archive.unlink()


def make(folder: Path, left_out: Iterable[str]) -> list[str]:
    """Make all parts but those left out, in an emptied folder. Return a sentence for each part that is missing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    source = folder / "source"
    unpack_commit(source)
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    release = Release(project["version"], source, folder)
    missing = []
    for name in [each for each in PARTS if each not in set(left_out)]:
        print(f"{name} ...", flush=True)
        try:
            PARTS[name](release)
        except Missing as cause:
            missing.append(f"{name}: {cause}")
    shutil.rmtree(source)
    write_checksums(folder)
    return missing


def main(arguments: Sequence[str]) -> int:
    """Make a release. Return 1 if a part is missing."""
    parser = argparse.ArgumentParser(prog="make release", description="make everything that a release has")
    parser.add_argument("--into", type=Path, help="the folder for the files, which is emptied (build/release/VERSION)")
    parser.add_argument("--without", action="append", default=[], choices=list(PARTS), help="a part to leave out")
    chosen = parser.parse_args(arguments)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    folder: Path = (chosen.into or ROOT / "build" / "release" / version).absolute()
    try:
        missing = make(folder, chosen.without)
    except Missing as cause:
        print(cause, file=sys.stderr)
        return 1
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path}")
    for each in missing:
        print(f"missing: {each}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
