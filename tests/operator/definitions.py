"""The custom resource definitions of the chart, for tests."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import yaml

from quarry_mq.cli.operator.resources import GROUP
from tests.deploy.manifests import CHART

FILES: Final = sorted((CHART / "crds").glob("*.yaml"))
DEFINITIONS: Final[dict[str, dict[str, Any]]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
"""By the plural of the kind, which is the name of the file."""


@cache
def schema_of(plural: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[plural]["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def plural_of(kind: str) -> str:
    (found,) = (name for name, each in DEFINITIONS.items() if each["spec"]["names"]["kind"] == kind)
    assert DEFINITIONS[found]["spec"]["group"] == GROUP
    return found
