"""Generate the private package `quarry_mq/protocol/proto` from every `proto/**/*.proto`.

Run by `make proto`; the result is committed, and tests/house/test_proto.py generates it again and compares.
protoc writes imports as if the package were at the top of the path; there it would collide with the official
client's own generated code, so imports of our files are rewritten to `quarry_mq.protocol.proto…`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO: Final = Path(__file__).resolve().parent
PACKAGE: Final = "quarry_mq.protocol.proto"
WITH_STUBS: Final = (
    "apache/rocketmq/v2/admin.proto",
    "apache/rocketmq/v2/service.proto",
    "quarry/admin/v1/admin.proto",
    "quarry/admin/v1/browsing.proto",
    "quarry/admin/v1/clients.proto",
    "quarry/admin/v1/dead_letters.proto",
    "quarry/admin/v1/index.proto",
    "quarry/admin/v1/jobs.proto",
    "quarry/admin/v1/lite_topics.proto",
    "quarry/admin/v1/settings.proto",
    "quarry/admin/v1/members.proto",
    "quarry/admin/v1/migration.proto",
    "quarry/admin/v1/overview.proto",
    "quarry/admin/v1/query.proto",
    "quarry/admin/v1/replicas.proto",
    "quarry/admin/v1/security.proto",
    "quarry/admin/v1/storage.proto",
    "quarry/admin/v1/verification.proto",
    "quarry/cluster/v1/cluster.proto",
)
"""Files whose services are called or served through grpcio; the others need only messages."""


def generate(destination: Path) -> list[Path]:
    """Write the package into `destination`, an empty or missing directory, and return its files.

    Raises RuntimeError when protoc rejects a file (its message goes to standard error).
    """
    sources = sorted(path.relative_to(PROTO).as_posix() for path in PROTO.rglob("*.proto"))
    destination.mkdir(parents=True, exist_ok=True)
    run_protoc(sources, f"--python_out={destination}", f"--pyi_out={destination}")
    run_protoc([each for each in sources if each in WITH_STUBS], f"--grpc_python_out={destination}")
    for path in [*destination.rglob("*.py"), *destination.rglob("*.pyi")]:
        path.write_text(with_private_imports(path.read_text(), sources))
    for directory in {parent for source in sources for parent in (destination / source).parents}:
        if directory.is_relative_to(destination):
            (directory / "__init__.py").touch()
    return sorted(path for path in destination.rglob("*") if path.is_file())


def run_protoc(sources: Sequence[str], *outputs: str) -> None:
    well_known = files("grpc_tools") / "_proto"
    if protoc.main(["protoc", f"--proto_path={PROTO}", f"--proto_path={well_known}", *outputs, *sources]):
        raise RuntimeError(f"protoc failed for {', '.join(sources)}")


def with_private_imports(text: str, sources: Sequence[str]) -> str:
    """The text with `from apache.rocketmq.v2 import …` and the like made imports from the private package."""
    for package in {Path(source).parent.as_posix().replace("/", ".") for source in sources}:
        text = re.sub(
            rf"^from {re.escape(package)} import ",
            f"from {PACKAGE}.{package} import ",
            text,
            flags=re.MULTILINE,
        )
    return text


def replace(destination: Path) -> None:
    """Generate beside `destination` and swap, so that a rejected file leaves the old package whole."""
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".generated-") as scratch:
        fresh = Path(scratch) / "fresh"
        for path in generate(fresh):
            sys.stdout.write(f"{destination / path.relative_to(fresh)}\n")
        if destination.exists():
            destination.rename(Path(scratch) / "old")
        fresh.rename(destination)


if __name__ == "__main__":
    replace(PROTO.parent / "quarry_mq" / "protocol" / "proto")
