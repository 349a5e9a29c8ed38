"""A real API server refuses what makes no sense, before the operator sees it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from quarry_mq.cli.operator.resources import GROUP, VERSION
from tests.operator.definitions import plural_of
from tests.operator.real_api import RealApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("Topic", {"queues": 0}, "spec.queues"),
    ("Topic", {"queues": 8193}, "spec.queues"),
    ("Topic", {"type": "ordered"}, "spec.type"),
    ("Topic", {"name": "orders.paid"}, "spec.name"),
    ("Topic", {"queue": 3}, 'unknown field "spec.queue"'),
    ("Topic", {"type": "fifo", "liteTopicTtlMinutes": 60}, "liteTopicTtlMinutes needs type lite"),
    (
        "Topic",
        {"type": "lite", "liteTopicTtlMinutes": 60, "attributes": {"lite.topic.expiration": "60"}},
        "not allowed together with the attribute lite.topic.expiration",
    ),
    ("Topic", {"attributes": {"owner": ""}}, "spec.attributes.owner"),
    ("Topic", {"deletionPolicy": "Keep"}, "spec.deletionPolicy"),
    ("ConsumerGroup", {"maxAttempts": 0}, "spec.maxAttempts"),
    ("ConsumerGroup", {"retryDelaysSeconds": []}, "spec.retryDelaysSeconds"),
    ("ConsumerGroup", {"liteQuota": 5, "attributes": {"lite.sub.client.quota": "6"}}, "liteQuota is not allowed"),
    ("User", {}, "a user needs secretName, certificates, or both"),
    ("User", {"name": "-orders", "secretName": "a"}, "spec.name"),
    ("User", {"kind": "root", "secretName": "a"}, "spec.kind"),
    ("AccessRule", {"user": "orders", "actions": ["get"]}, "spec.resource"),
    ("AccessRule", {"user": "orders", "resource": "topic:a*b", "actions": ["get"]}, "spec.resource"),
    ("AccessRule", {"user": "orders", "resource": "queue:a", "actions": ["get"]}, "spec.resource"),
    ("AccessRule", {"user": "orders", "resource": "*", "actions": []}, "spec.actions"),
    ("AccessRule", {"user": "orders", "resource": "*", "actions": ["read"]}, "spec.actions"),
    ("AccessRule", {"user": "orders", "resource": "*", "actions": ["get", "get"]}, "Duplicate value"),
]

RULE = {"user": "orders", "resource": "topic:a", "actions": ["get"]}
FIXED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Topic", {"name": "a"}, {"name": "b"}, "name cannot be changed"),
    ("Topic", {"name": "a"}, {"name": None}, "name cannot be changed"),
    ("Topic", {}, {"name": "b"}, "name cannot be changed"),
    ("ConsumerGroup", {"liteParent": "a"}, {"liteParent": "b"}, "liteParent cannot be changed"),
    ("ConsumerGroup", {"liteParent": "a"}, {"liteParent": None}, "liteParent cannot be changed"),
    ("User", {"secretName": "a"}, {"secretName": None}, "a user needs secretName"),
    ("User", {"name": "a", "secretName": "a"}, {"name": "b"}, "name cannot be changed"),
    ("AccessRule", RULE, {"user": "billing"}, "user, resource and decision cannot be changed"),
    ("AccessRule", RULE, {"resource": "topic:b"}, "user, resource and decision cannot be changed"),
    ("AccessRule", RULE, {"decision": "deny"}, "user, resource and decision cannot be changed"),
]


def manifest(kind: str, name: str, spec: dict[str, Any]) -> str:
    return yaml.safe_dump({"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": name}, "spec": spec})


@pytest.mark.parametrize(("kind", "spec", "reason"), REFUSED, ids=str)
def test_bad_values_are_refused_with_their_field(
    real_api: RealApi, kind: str, spec: dict[str, Any], reason: str
) -> None:
    refusal = real_api.kubectl("create", "--filename", "-", text=manifest(kind, "bad", spec), is_refused=True)
    assert reason in refusal


@pytest.mark.parametrize(("kind", "spec", "change", "reason"), FIXED, ids=str)
def test_what_names_a_thing_stays(
    real_api: RealApi, kind: str, spec: dict[str, Any], change: dict[str, Any], reason: str, name: str
) -> None:
    real_api.kubectl("create", "--filename", "-", text=manifest(kind, name, spec))
    patch = yaml.safe_dump({"spec": change})
    words = ("patch", f"{plural_of(kind)}.{GROUP}", name, "--type", "merge", "--patch", patch)
    assert reason in real_api.kubectl(*words, is_refused=True)


@pytest.mark.parametrize(("kind", "word"), [("Topic", "topic"), ("ConsumerGroup", "group")])
def test_a_resource_whose_name_the_broker_cannot_have_needs_one(real_api: RealApi, kind: str, word: str) -> None:
    refusal = real_api.kubectl("create", "--filename", "-", text=manifest(kind, "orders.paid", {}), is_refused=True)
    assert f"metadata.name cannot be the name of a {word}" in refusal
    real_api.kubectl("create", "--filename", "-", text=manifest(kind, "orders.paid", {"name": "orders_paid"}))


def test_defaults_are_shown(real_api: RealApi) -> None:
    real_api.kubectl(
        "create",
        "--filename",
        "-",
        text=yaml.safe_dump({"apiVersion": f"{GROUP}/{VERSION}", "kind": "Topic", "metadata": {"name": "plain"}}),
    )
    found = yaml.safe_load(real_api.kubectl("get", "topic", "plain", "--output", "yaml"))
    assert found["spec"] == {"adopt": False, "deletionPolicy": "Retain", "driftPolicy": "Correct"}
