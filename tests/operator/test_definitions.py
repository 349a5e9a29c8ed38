"""The custom resource definitions agree with Kubernetes, with the operator, and with what a broker takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from quarry_mq.cli.online.groups.groups import LiteModelName
from quarry_mq.cli.online.topics.topics import PermissionName, TopicTypeName
from quarry_mq.cli.operator import resources
from quarry_mq.cli.operator.declarations import declared, users
from quarry_mq.cli.operator.process import reconcilers
from quarry_mq.cli.operator.resources import ACCESS_RULE, CONSUMER_GROUP, MIGRATION, SHARD_SET, TOPIC, USER, Kind
from quarry_mq.protocol import names
from quarry_mq.protocol.lite_attributes import EXPIRATION_MAX_MINUTES, NUMBER_MAX
from quarry_mq.store.metadata.groups import ATTEMPTS_MAX, BACKOFF_MS_MAX, BACKOFF_STEPS_MAX
from quarry_mq.store.metadata.topics import QUEUES_MAX
from quarry_mq.store.security.model import CERTIFICATES_MAX, USER_NAME, Action, Decision, UserKind
from quarry_mq.store.security.policies import SOURCES_MAX
from quarry_mq.store.security.subjects import SUBJECT_MAX
from tests.deploy.manifests import CHART, DEPLOY, manifests
from tests.operator.definitions import DEFINITIONS, schema_of

KINDS = (TOPIC, CONSUMER_GROUP, USER, ACCESS_RULE)
ALL_KINDS = (*KINDS, SHARD_SET, MIGRATION)


def spec_of(kind: Kind) -> dict[str, Any]:
    properties: dict[str, Any] = schema_of(kind.plural)["properties"]["spec"]["properties"]
    return properties


def properties(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from properties(inner, f"{path}.{name}")


def test_there_is_a_definition_and_a_reconciler_for_each_kind() -> None:
    assert set(DEFINITIONS) == {each.plural for each in ALL_KINDS}
    anything: Any = None
    assert [each.kind for each in reconcilers(anything, anything, anything, None, anything)] == list(ALL_KINDS)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_a_definition_is_of_the_group_and_version_of_the_operator(kind: Kind) -> None:
    definition = DEFINITIONS[kind.plural]
    kubernetes_validate.validate(definition, "1.34", strict=True)
    assert definition["metadata"]["name"] == f"{kind.plural}.{resources.GROUP}"
    spec = definition["spec"]
    assert (spec["group"], spec["names"]["kind"], spec["names"]["plural"]) == (resources.GROUP, kind.name, kind.plural)
    (version,) = spec["versions"]
    assert version["name"] == resources.VERSION
    assert version["subresources"] == {"status": {}}
    columns = [each["name"] for each in version["additionalPrinterColumns"] if "priority" not in each]
    assert columns[-3:] == ["Ready", "Reason", "Age"]


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_every_field_explains_itself(kind: Kind) -> None:
    """`kubectl explain` shows it. Fields of conditions and of the Secret in the status have the usual meaning."""
    silent = [
        path
        for path, each in properties(schema_of(kind.plural), kind.name)
        if not each.get("description", "").endswith((".", ". ")) and not path.startswith(f"{kind.name}.status.")
    ]
    assert silent == []


def test_policies_and_status_are_the_same_in_all_kinds() -> None:
    topic = spec_of(TOPIC)
    defaults = {each.name: spec_of(each)["deletionPolicy"]["default"] for each in KINDS}
    assert defaults == {"Topic": "Retain", "ConsumerGroup": "Retain", "User": "Delete", "AccessRule": "Delete"}
    anything: Any = None
    for reconciler in reconcilers(anything, anything, anything, None, anything)[: len(KINDS)]:
        assert isinstance(reconciler, declared.DeclaredReconciler)
        assert reconciler.deletion_policy_default == defaults[reconciler.kind.name]
    for kind in KINDS:
        spec = spec_of(kind)
        assert spec["driftPolicy"] == topic["driftPolicy"]
        assert spec["deletionPolicy"]["enum"] == ["Retain", "Delete"]
        assert spec["adopt"]["default"] is False
        status = schema_of(kind.plural)["properties"]["status"]["properties"]
        assert status["conditions"] == schema_of("topics")["properties"]["status"]["properties"]["conditions"]


def test_words_are_those_of_the_commands() -> None:
    assert spec_of(TOPIC)["type"]["enum"] == [each.value for each in TopicTypeName]
    assert spec_of(TOPIC)["permission"]["enum"] == [each.value for each in PermissionName]
    assert spec_of(CONSUMER_GROUP)["liteModel"]["enum"] == [each.value for each in LiteModelName]
    assert spec_of(USER)["kind"]["enum"] == [each.value for each in UserKind][::-1]
    assert spec_of(ACCESS_RULE)["decision"]["enum"] == [each.value for each in Decision]
    assert spec_of(ACCESS_RULE)["actions"]["items"]["enum"] == [each.value for each in Action]


def test_limits_are_those_of_the_broker() -> None:
    topic, group, user, rule = (spec_of(each) for each in KINDS)
    assert topic["name"]["pattern"] == group["name"]["pattern"] == names.ALPHABET
    assert (topic["name"]["maxLength"], group["name"]["maxLength"]) == (names.TOPIC_NAME_MAX, names.GROUP_NAME_MAX)
    assert group["liteParent"]["maxLength"] == names.TOPIC_NAME_MAX
    assert topic["queues"]["maximum"] == QUEUES_MAX
    assert topic["liteTopicTtlMinutes"]["maximum"] == EXPIRATION_MAX_MINUTES
    assert group["maxAttempts"]["maximum"] == ATTEMPTS_MAX
    assert group["liteQuota"]["maximum"] == NUMBER_MAX
    delays = group["retryDelaysSeconds"]
    assert (delays["maxItems"], delays["items"]["maximum"] * 1000) == (BACKOFF_STEPS_MAX, BACKOFF_MS_MAX)
    assert user["name"]["pattern"].strip("^$").replace("*", "{0,63}") == USER_NAME.pattern
    assert user["name"]["maxLength"] == rule["user"]["maxLength"] == 64
    certificates = user["certificates"]
    assert (certificates["maxItems"], certificates["items"]["maxLength"]) == (CERTIFICATES_MAX, SUBJECT_MAX)
    assert user["previousSecretMinutes"]["default"] == users.PREVIOUS_DEFAULT_MINUTES
    assert rule["sources"]["maxItems"] == SOURCES_MAX


def test_the_chart_grants_what_the_operator_needs() -> None:
    these = manifests("operator")
    # Helm would let one release own them
    assert these.all("CustomResourceDefinition") == []
    role = {
        (group, each): rule["verbs"]
        for rule in these.only("Role")["rules"]
        for group in rule["apiGroups"]
        for each in rule["resources"]
    }
    for kind in KINDS:
        assert role.pop((resources.GROUP, kind.plural)) == ["get", "list", "watch", "patch"]
        assert role.pop((resources.GROUP, f"{kind.plural}/status")) == ["patch"]
    assert role == {
        ("", "secrets"): ["get", "create"],
        ("events.k8s.io", "events"): ["create"],
        **{
            (resources.GROUP, each): ["get", "list", "watch", "create", "patch"] for each in ("shardsets", "migrations")
        },
        **{(resources.GROUP, f"{each}/status"): ["patch"] for each in ("shardsets", "migrations")},
        ("", "pods"): ["get", "list", "patch"],
        ("apps", "statefulsets"): ["get"],
        ("apps", "statefulsets/scale"): ["patch"],
    }


def test_the_group_is_spelled_in_few_places() -> None:
    """A change of the group is a change of `resources.py`, the definitions, the role, and the page."""
    folders = (CHART / "templates", DEPLOY / "helm" / "variants")
    found = {path.name for folder in folders for path in folder.iterdir() if resources.GROUP in path.read_text()}
    assert found == {"_names.tpl", "operator.yaml", "stateful-set.yaml"}


def test_annotations_that_the_page_names_are_those_of_the_operator() -> None:
    page = (DEPLOY.parent / "docs" / "operator.md").read_text()
    named = set(re.findall(rf"{re.escape(resources.GROUP)}/([a-z-]+)\b", page))
    known = {
        each.rpartition("/")[2] for each in (resources.DELETE_MESSAGES, resources.BREAK_ORDER, resources.FINALIZER)
    }
    assert named == known


def test_values_of_the_variant_name_what_the_manual_creates() -> None:
    values = yaml.safe_load((DEPLOY / "helm" / "variants" / "operator.yaml").read_text())
    page = (DEPLOY.parent / "docs" / "operator.md").read_text()
    assert f"generic {values['operator']['contextSecret']} " in page
    assert f"[{values['operator']['context']}]" in page
