"""The client stacks and how their client programs are run. Each is built at its first use (tests/e2e/languages.py)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.languages import cache, digest, installed, java_classes, need, run

CLIENTS: Final = Path(__file__).parent / "clients"


@dataclass(frozen=True, slots=True)
class Stack:
    """`command` builds the client program; it skips the test when a tool is absent."""

    name: str
    command: Callable[[], Sequence[str]]


def c_core() -> Sequence[str]:
    return [sys.executable, "-m", "tests.interop.clients.python_client"]


def java(transport: str) -> Sequence[str]:
    class_path = java_classes("interop-java", CLIENTS / "java")
    return ["java", "-Xmx256m", "-cp", class_path, "quarry.interop.InteropClient", transport]


def java_netty() -> Sequence[str]:
    return java("netty")


def java_okhttp() -> Sequence[str]:
    return java("okhttp")


def go() -> Sequence[str]:
    need("go")
    project = CLIENTS / "go"

    def install(folder: Path) -> None:
        run(["go", "build", "-o", folder / "interop", "."], directory=project)

    sources = [project / name for name in ("go.mod", "go.sum", "main.go")]
    return [str(installed(f"interop-go-{digest(sources)}", install) / "interop")]


def tonic() -> Sequence[str]:
    need("cargo")
    project = CLIENTS / "rust"
    # apart from the result, so that another version of the client does not compile its libraries anew
    target = cache() / "interop-rust-target"

    def install(folder: Path) -> None:
        run(["cargo", "build", "--quiet", "--locked", "--target-dir", target], directory=project)
        shutil.copy(target / "debug" / "quarry-interop", folder)

    sources = [project / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    return [str(installed(f"interop-rust-{digest(sources)}", install) / "quarry-interop")]


def grpc_js() -> Sequence[str]:
    need("node", "npm")
    package = CLIENTS / "node" / "package.json"

    def install(folder: Path) -> None:
        shutil.copy(package, folder)
        options = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        run(["npm", "install", *options], directory=folder)

    folder = installed(f"interop-node-{digest([package])}", install)
    return ["env", f"NODE_PATH={folder}/node_modules", "node", str(CLIENTS / "node" / "interop.js")]


def curl() -> Sequence[str]:
    need("curl")
    features = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout
    if "HTTP2" not in features.split():
        pytest.skip("curl is installed without HTTP/2")
    return [sys.executable, "-m", "tests.interop.clients.curl_client"]


STACKS: Final = (
    Stack("grpc C core", c_core),
    Stack("grpc-go", go),
    Stack("grpc-java Netty", java_netty),
    Stack("grpc-java OkHttp", java_okhttp),
    Stack("grpc-js", grpc_js),
    Stack("tonic", tonic),
    Stack("curl", curl),
)
