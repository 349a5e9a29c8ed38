"""Imports flow one way, and each outside library has a home."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

import pytest

from tests.house.source import PACKAGE, PACKAGES, ROOT, imports, name, production_files

MAY_IMPORT: Final = {
    "protocol": set[str](),
    "client": {"protocol"},
    "kv": set[str](),
    "store": {"kv", "protocol"},
    "server": {"store", "kv", "protocol"},
    "cli": {"pipeline", "server", "store", "kv", "client", "protocol"},
    "pipeline": {"store", "kv", "client", "protocol"},
    "bench": {"cli", "pipeline", "server", "store", "kv", "client", "protocol"},
}
"""Package to the packages it may import besides itself. Think hard before changing this."""

INSIDE: Final = [
    ("server/wire/", {"server/front"}, "protobuf and calls meet in server/rpc"),
    (
        "server/delivery/",
        {"server/wire", "server/rpc", "server/admin_port", "server/front", "protocol/proto"},
        "rules know no wire",
    ),
    (
        "server/front/",
        {"server/wire", "server/rpc", "server/admin_port", "server/delivery", "store", "kv", "protocol/proto"},
        "no domain words",
    ),
    (
        "server/console/",
        {"server/wire", "server/rpc", "server/admin_port", "server/delivery", "protocol/proto"},
        "knows no protobuf",
    ),
    ("store/record/", {"store/commitlog", "store/consumequeue", "store/fs", "store/metadata"}, "codecs are pure"),
    ("store/fs/", {"store/commitlog", "store/consumequeue", "store/record", "store/metadata"}, "disks know no bytes"),
    ("pipeline/source/", {"protocol/proto"}, "stores are read without a wire"),
    ("pipeline/export/", {"protocol/proto"}, "stores are read without a wire"),
    ("pipeline/rebuild/", {"protocol/proto"}, "stores are read without a wire"),
    ("cli/online/", {"server", "store", "kv", "pipeline"}, "its commands load no broker"),
    ("cli/offline/", {"server", "cli/online"}, "works without a broker"),
    ("cli/pipeline/", {"server", "cli/online"}, "works without a broker"),
]
"""Folder, what it must not import, and why."""

HOMES: Final = {
    "rocksdict": r"kv/rocks\w*\.py",
    "aiohttp": r"server/console/\w+\.py",
    "grpc": r"protocol/admin_methods\.py|client/\w+\.py|server/front/grpcio\.py|cli/(online|local|operator)/.*"
    r"|cli/records\.py|server/admin_port/(\w+/)?\w+\.py",
    "grpc_health": r"server/admin_port/server\.py",
    "grpc_reflection": r"server/admin_port/server\.py",
    "google.protobuf": r"protocol/(times|admin_methods)\.py|client/\w+\.py|server/(wire|rpc|admin_port)/.*"
    r"|cli/(online|local|operator)/.*|cli/records\.py",
    "protocol.proto": r"protocol/admin_methods\.py|client/\w+\.py|server/(wire|rpc|admin_port)/.*"
    r"|cli/(online|local|operator)/.*|cli/records\.py|pipeline/stream/.*",
    "prometheus_client": r".*/(\w+_)?metrics\.py|server/observability/metrics/\w+\.py|server/process/http\.py"
    r"|server/(main|broker)\.py",
    "opentelemetry": r"server/observability/tracing\.py",
    "pydantic": r"server/settings/.*",
    "pydantic_settings": r"server/settings/(broker|live)_settings\.py",
    "cryptography": r"server/process/(certificates|self_signed)\.py|store/security/(sealer|subjects)\.py"
    r"|cli/doctor/certificate\.py",
    "packaging": r"cli/doctor/machine\.py",
    "lark": r"server/filters\.py",
    "obstore": r"store/index/tiered/object_store/cloud\.py",
    "lightkube": r"cli/operator/kubernetes\.py",
    "httpx": r"cli/operator/(kubernetes|pods)\.py",
    "httpx_ws": r"cli/operator/kubernetes\.py",
    "yaml": r"cli/operator/kubernetes\.py",
    "uvloop": r"server/main\.py",
    "typer": r"cli/.*",
    "rich": r"cli/.*",
    "textual": r"cli/online/top/screen/(view|widgets)\.py",
    "jinja2": r"pipeline/stats/report\.py",
    "pyarrow": r"pipeline/.*",
    "py4j": r"cli/pipeline/session\.py|pipeline/lake/table\.py",
    "pyspark": r"pipeline/.*|cli/pipeline/session\.py",
    "hpack": r"protocol/h2/header_blocks\.py",
    "lz4": r"protocol/messages/bodies\.py",
    "backports": r"protocol/messages/bodies\.py",
    "mmap": r"store/fs/posix\.py",
    "fcntl": r"store/fs/posix\.py",
    "rocketmq": r"(?!)",
}
"""Module to the files that may import it. Benchmarks measure the libraries themselves and are free.

The official client never shares a process with our generated code."""


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_flow_one_way(package: str) -> None:
    forbidden = {*PACKAGES, "tests"} - MAY_IMPORT[package] - {package}
    wrong = [
        f"{name(path)}:{line} imports {module}"
        for path in production_files()
        if name(path).startswith(f"{package}/")
        for module, line in imports(path)
        if module.partition(".")[0] in forbidden
    ]
    assert not wrong, f"{package} may import {sorted(MAY_IMPORT[package]) or 'nothing of ours'}: {wrong}"


@pytest.mark.parametrize(("folder", "banned", "reason"), INSIDE, ids=[folder for folder, _, _ in INSIDE])
def test_folders_keep_to_themselves(folder: str, banned: set[str], reason: str) -> None:
    modules = {each.replace("/", ".") for each in banned}
    wrong = [
        f"{name(path)}:{line} imports {module}"
        for path in production_files()
        if name(path).startswith(folder)
        for module, line in imports(path)
        if any(module == each or module.startswith(f"{each}.") for each in modules)
    ]
    assert not wrong, f"{reason}: {wrong}"


@pytest.mark.parametrize("library", HOMES)
def test_outside_libraries_stay_at_home(library: str) -> None:
    home = re.compile(HOMES[library])
    wrong = [
        f"{name(path)}:{line}"
        for path in production_files()
        for module, line in imports(path)
        if module == library or module.startswith(f"{library}.")
        if not home.fullmatch(name(path)) and not name(path).startswith("bench/")
    ]
    assert not wrong, f"{library} is imported only in {home.pattern}: {wrong}"


def test_every_outside_library_is_a_declared_dependency() -> None:
    """A library that only happens to be installed here is missing on a clean machine."""
    declared = (ROOT / "pyproject.toml").read_text().lower().replace("_", "-")
    distributions = {
        "backports": "backports.zstd",
        "compression": "backports.zstd",  # of the standard library from 3.14 on
        "google": "protobuf",
        "grpc": "grpcio",
        "grpc_health": "grpcio-health-checking",
        "grpc_reflection": "grpcio-reflection",
        "httpx_ws": "httpx-ws",
        "opentelemetry": "opentelemetry-sdk",
        "prometheus_client": "prometheus-client",
        "py4j": "pyspark",  # which pins the version that it works with
        "pydantic_settings": "pydantic-settings",
        "yaml": "pyyaml",
    }
    roots = {module.partition(".")[0] for path in production_files() for module, _ in imports(path)}
    outside = roots - set(PACKAGES) - sys.stdlib_module_names - {"tests", "__future__"}
    missing = sorted(root for root in outside if f'"{distributions.get(root, root)}>=' not in declared)
    assert not missing, f"not in pyproject.toml: {missing}"


def test_nothing_of_ours_shadows_the_official_clients_code() -> None:
    """Generated code on the path `apache` would collide with what PyPI packages bring."""
    assert not (ROOT / "apache").exists()
    assert not (ROOT / "proto" / "__init__.py").exists(), "the import name proto belongs to proto-plus"


@pytest.mark.parametrize("words", [("topic", "create", "orders"), ("topic", "list")])
def test_a_command_for_a_live_broker_loads_no_broker(words: tuple[str, ...]) -> None:
    """The command runs up to its call, which nobody answers."""
    program = (
        "import sys; from quarry_mq.cli.main import main\n"
        f"sys.argv = ['quarry', *{words!r}, '--admin', '127.0.0.1:9']\n"
        "try: main()\n"
        "finally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    loaded = set(done.stdout.split())
    assert "127.0.0.1:9: no answer from a broker" in done.stderr
    assert "quarry_mq.client.channel" in loaded
    forbidden = ("rocksdict", *(f"{PACKAGE}.{each}" for each in ("kv", "store", "server", "pipeline")))
    assert not [
        each for each in loaded if each in forbidden or each.startswith(tuple(f"{each}." for each in forbidden))
    ]
