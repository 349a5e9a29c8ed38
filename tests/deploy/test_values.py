"""The values of the chart: all are described, none but those are taken, and times are the broker's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from quarry_mq.server.settings.broker_settings import BrokerSettings
from tests.deploy.manifests import CHART, DEPLOY, ROOT, VARIANTS, manifests

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
MANUAL = (ROOT / "docs" / "kubernetes.md").read_text()
FREE = {"global", "settings", "resources"}
"""Values that are not the chart's own: parts of Kubernetes' objects, settings of the broker, Helm's."""


def refused(values: dict[str, Any]) -> bool:
    return any(jsonschema.Draft7Validator(SCHEMA).iter_errors(values))


def changed(path: str, value: object) -> dict[str, Any]:
    """The values of the chart with one of them another one."""
    values = json.loads(json.dumps(VALUES))
    inner = values
    *parents, last = path.split(".")
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return dict(values)


def parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects of the schema with what leads to them."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        if name not in FREE and "properties" in inner:
            yield from parts(inner, f"{path}.{name}")


def test_the_schema_is_one() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_nothing_is_taken_that_is_not_described() -> None:
    for path, schema in parts(SCHEMA):
        assert schema["additionalProperties"] is False, path
        values = VALUES
        for name in path.split(".")[1:]:
            values = values[name]
        assert set(schema["properties"]) - {"global"} == set(values), path


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_within_the_schema(variant: str) -> None:
    values = yaml.safe_load((DEPLOY / "helm" / "variants" / f"{variant}.yaml").read_text())
    merged = VALUES | {
        key: VALUES[key] | value if isinstance(value, dict) and isinstance(VALUES[key], dict) else value
        for key, value in values.items()
    }
    if "settings" in values:
        merged["settings"] = VALUES["settings"] | values["settings"]
    assert not refused(merged)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replica", 3),
        ("replicas", 0),
        ("replicas", "3"),
        ("cluster.enabled", "yes"),
        ("advertise.kind", "nodePort"),
        ("advertise.nodePort", 31_085),
        ("tls.enable", True),
        ("tls.messaging", "off"),
        ("backup.destination", "/backups"),
        ("settings.network.drain_delay_ms", None),
        ("settings.network.listen", None),
        ("settings.limits.body_size", None),
        ("settings.limits.body_size", {"MiB": 4}),
        ("settings.Network", {}),
        ("settings.topics", []),
        ("store.size", "20"),
        ("security.keySecret", "Quarry"),
        ("follow.from", "rocketmq"),
        ("follow.from", "rocketmq:10911 --user a"),
        ("follow.maxLagBytes", -1),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_made(path: str, value: object) -> None:
    assert not refused(VALUES)
    assert refused(changed(path, value))


def test_times_of_a_stop_are_the_broker_s_own_but_for_the_delay() -> None:
    network = BrokerSettings().network
    given = VALUES["settings"]["network"]
    assert given.keys() == {"drain_delay_ms", "stop_grace_ms", "stop_rest_ms"}
    assert given["stop_grace_ms"] == network.stop_grace_ms
    assert given["stop_rest_ms"] == network.stop_rest_ms


def test_the_manual_knows_every_secret_that_has_to_be_there() -> None:
    named = set()
    for variant in VARIANTS:
        named |= set(re.findall(r"secretName: (\S+)", manifests(variant).text))
        for source in re.findall(r"- secret:\n\s+name: (\S+)", manifests(variant).text):
            named.add(source)
        named |= set(re.findall(r"secretRef:\n\s+name: (\S+)", manifests(variant).text))
    uses = ("cluster", "security", "tls", "backup", "operator", "replication")
    assert named == {*(f"quarry-{use}" for use in uses), "rocketmq-user"}
    assert all(f"`{each}`" in MANUAL for each in named)


def test_the_manual_has_a_row_for_every_kind_of_address() -> None:
    rows = re.findall(r"^\| `([a-z-]+)`", MANUAL, flags=re.MULTILINE)
    assert rows == SCHEMA["properties"]["advertise"]["properties"]["kind"]["enum"]


def test_values_that_the_manual_names_are_there() -> None:
    top = set(VALUES)
    for path in re.findall(r"`([a-z][A-Za-z]+(?:\.[A-Za-z]+)+)`", MANUAL):
        names = path.split(".")
        if names[0] not in top or path.endswith((".md", ".yaml", ".toml", ".key", ".crt")):
            continue
        inner: Any = VALUES
        if names[0] == "settings":
            continue
        for name in names:
            assert name in inner, path
            inner = inner[name]
