"""The custom resource definitions of the chart, for tests."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import jsonschema
import yaml

from quarry_mq.cli.operator.resources import GROUP
from tests.deploy.manifests import CHART

FILES: Final = sorted((CHART / "crds").glob("*.yaml"))
DEFINITIONS: Final[dict[str, dict[str, Any]]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
"""Definitions by the plural of the kind, which is the name of the file."""


@cache
def schema_of(plural: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[plural]["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def plural_of(kind: str) -> str:
    (found,) = (name for name, each in DEFINITIONS.items() if each["spec"]["names"]["kind"] == kind)
    assert DEFINITIONS[found]["spec"]["group"] == GROUP
    return found


def faults(resource: dict[str, Any]) -> list[str]:
    """Return what a definition says against a resource, unknown fields included; without the rules in CEL."""
    schema = _closed(schema_of(plural_of(resource["kind"])))
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    return [each.message for each in jsonschema.Draft7Validator(schema).iter_errors(resource)]


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, whose objects have no other fields than those that it names."""
    closed = dict(schema)
    if "properties" in schema:
        closed["properties"] = {name: _closed(each) for name, each in schema["properties"].items()}
        closed["additionalProperties"] = False
    return closed
