"""Our protocol files: the generated code is theirs, and they say what the official client's say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "quarry_mq" / "protocol" / "proto"
DESCRIBE = Path(__file__).with_name("descriptors.py")

OURS = tuple(f"quarry_mq.protocol.proto.apache.rocketmq.v2.{name}_pb2" for name in ("definition", "service", "admin"))
THEIRS = tuple(f"rocketmq.grpc_protocol.{name}_pb2" for name in ("definition", "service", "admin"))

PACKAGE = "apache.rocketmq.v2"

NEWER_THAN_THE_CLIENT = {
    f"{PACKAGE}.Settings.client_properties": "added in May 2026, after the client's release 5.1.2",
    f"{PACKAGE}.Code.INVALID_CLIENT_PROPERTIES": "the code that goes with them",
    f"{PACKAGE}.Settings.ClientPropertiesEntry": "the map of client_properties",
    f"{PACKAGE}.Settings.ClientPropertiesEntry.key": "the map of client_properties",
    f"{PACKAGE}.Settings.ClientPropertiesEntry.value": "the map of client_properties",
}
"""Fields that our messaging files have and the client's do not, and why. Every entry must be needed."""


def describe(*modules: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, str(DESCRIBE), *modules],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def without_versions(text: str) -> str:
    """The generated text without the versions of the generators, which may differ between machines."""
    text = re.sub(r"^# Protobuf Python Version: .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"Domain\.PUBLIC,\s+\d+,\s+\d+,\s+\d+,", "Domain.PUBLIC,", text)
    return re.sub(r"^GRPC_GENERATED_VERSION = .*$", "", text, flags=re.MULTILINE)


def test_the_generated_code_has_not_drifted(tmp_path: Path) -> None:
    """`make proto` would change nothing."""
    program = "import sys, generate; from pathlib import Path; generate.generate(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "proto"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fresh = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(GENERATED) for path in GENERATED.rglob("*.py*") if "__pycache__" not in path.parts}
    assert fresh == kept
    for name in sorted(fresh):
        assert without_versions((tmp_path / name).read_text()) == without_versions((GENERATED / name).read_text()), (
            f"{name} is not what proto/ says: run `make proto`"
        )


@pytest.fixture(scope="module")
def ours() -> dict[str, object]:
    return describe(*OURS)


@pytest.fixture(scope="module")
def theirs() -> dict[str, object]:
    return describe(*THEIRS)


def test_our_protocol_is_the_official_clients(ours: dict[str, object], theirs: dict[str, object]) -> None:
    """Every message, field, number, type, presence, enum value and method the client knows is the same here."""
    assert len(theirs) > 350
    assert {name: ours.get(name) for name in theirs} == theirs


def test_what_we_have_beyond_the_client_is_listed(ours: dict[str, object], theirs: dict[str, object]) -> None:
    admin = set(describe(OURS[-1]))
    assert set(ours) - set(theirs) - admin == set(NEWER_THAN_THE_CLIENT)


def test_the_admin_service_is_whole(ours: dict[str, object]) -> None:
    """The published client carries one call of it only, so its shape is pinned by numbers here."""
    calls = [name for name in ours if name.startswith(f"{PACKAGE}.Admin.")]
    assert len(calls) == 16
    assert ours[f"{PACKAGE}.Admin.QueryMessage"] == [
        f"{PACKAGE}.ListMessageRequest",
        False,
        f"{PACKAGE}.ListMessageResponse",
        False,
    ]
    search_key = {
        name.rpartition(".")[2]: fact["number"]
        for name, fact in ours.items()
        if name.startswith(f"{PACKAGE}.ListMessageRequest.")
        and isinstance(fact, dict)
        and fact["oneof"] == "search_key"
    }
    assert search_key == {"message_id": 6, "message_key": 7, "subscription": 8, "lite_topic": 14}


def test_our_generated_code_is_private() -> None:
    """The official client's package and ours may be installed side by side; only a process must choose."""
    program = (
        "import sys; import quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2; print('apache' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
