"""Dashboards and alert rules in `deploy` name metrics and labels that a broker exports, in valid PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import promql_parser
import pytest
import yaml

from tests.house.emitted import emitted, samples
from tests.house.source import ROOT

DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
KEDA = ROOT / "deploy" / "keda" / "consumers.yaml"
RUNBOOK = ROOT / "docs" / "runbook.md"
FROM_PROMETHEUS = frozenset({"instance", "job"})
"""Labels that Prometheus adds to all that it scrapes."""

DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+")
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$__interval": "1m"}


class Selected(NamedTuple):
    """A metric that an expression reads, and the labels that it is chosen or grouped by."""

    name: str
    labels: frozenset[str]


def parsed(expression: str) -> Any:
    """Raises ValueError for what is no PromQL once Grafana has put in its variables."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return promql_parser.parse(expression)


def selected(node: Any, grouped_by: frozenset[str] = frozenset()) -> Iterator[Selected]:
    """Yield the selectors of an expression, each with the labels that it uses."""
    match type(node).__name__:
        case "VectorSelector":
            labels = frozenset(each.name for each in node.matchers.matchers if each.name != "__name__")
            yield Selected(node.name, labels | grouped_by)
        case "MatrixSelector":
            yield from selected(node.vector_selector, grouped_by)
        case "AggregateExpr":
            by = frozenset(node.modifier.labels) if node.modifier is not None else frozenset()
            yield from selected(node.expr, grouped_by | by)
        case "BinaryExpr":
            yield from selected(node.lhs, grouped_by)
            yield from selected(node.rhs, grouped_by)
        case "Call":
            for each in node.args:
                yield from selected(each, grouped_by)
        case "ParenExpr" | "UnaryExpr" | "SubqueryExpr":
            yield from selected(node.expr, grouped_by)
        case "NumberLiteral" | "StringLiteral":
            return
        case other:
            raise AssertionError(f"a kind of expression that this test does not know: {other}")


def wrong_names(expression: str) -> list[str]:
    """Return the metrics that the expression names and no broker exports."""
    wrong = []
    for name, labels in selected(parsed(expression)):
        if name == "up":
            continue
        if name not in samples():
            if name not in emitted():
                wrong.append(name)
            continue  # it has no samples until something happens, so nobody knows its labels
        wrong += [f"{name}: {label}" for label in labels - samples()[name] - FROM_PROMETHEUS]
    return wrong


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_what_nobody_exports_is_found() -> None:
    assert wrong_names("sum by (stage) (rate(quarry_sends_total[5m]))") == ["quarry_sends_total: stage"]
    assert wrong_names('quarry_ready{holds="log"} + quarry_nothing') == ["quarry_ready: holds", "quarry_nothing"]
    with pytest.raises(ValueError, match="unclosed"):
        parsed("sum(rate(quarry_sends_total[5m])")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_reads_what_a_broker_exports(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    found = list(expressions(dashboard))
    assert len(found) >= 10
    wrong = {each: wrong_names(each) for each in found if wrong_names(each)}
    assert not wrong


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_shown(path: Path) -> None:
    """Panels have ids of their own, do not overlap, and use variables that there are."""
    dashboard = json.loads(path.read_text())
    assert dashboard["uid"] == f"quarry-{path.stem.partition('-')[0]}"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    places: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & places, panel["title"]
        places |= cells
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", path.read_text()))
    assert used <= variables
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert not wrong_names(f"sum by ({label}) ({selector})")


def test_consumers_are_scaled_by_what_a_broker_exports() -> None:
    """KEDA takes fields that it does not know, and then does nothing; it takes only texts for values of triggers."""
    scaled = yaml.safe_load(KEDA.read_text())
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = scaled["spec"]
    assert spec.keys() <= {
        "scaleTargetRef",
        "pollingInterval",
        "cooldownPeriod",
        "minReplicaCount",
        "maxReplicaCount",
        "fallback",
        "advanced",
        "triggers",
    }
    assert spec["fallback"].keys() == {"failureThreshold", "replicas"}
    (trigger,) = spec["triggers"]
    assert (trigger.keys(), trigger["type"]) == ({"type", "metadata"}, "prometheus")
    assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())
    assert not wrong_names(trigger["metadata"]["query"])
    behavior = {"behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]}
    target = {"apiVersion": "apps/v1", **spec["scaleTargetRef"]}
    made = {"scaleTargetRef": target, "maxReplicas": spec["maxReplicaCount"], "minReplicas": spec["minReplicaCount"]}
    metadata = {"name": "made-by-keda"}
    kind = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata}
    kubernetes_validate.validate({**kind, "spec": {**made, **behavior}}, "1.34", strict=True)


def test_alert_rules_are_what_prometheus_takes() -> None:
    """Rules pass the checks of `promtool check rules`, done by hand: nothing but known keys, in valid forms."""
    document = yaml.safe_load(RULES.read_text())
    assert document.keys() == {"groups"}
    assert len({group["name"] for group in document["groups"]}) == len(document["groups"])
    for group in document["groups"]:
        assert group.keys() == {"name", "rules"}
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert (
            {"alert", "expr", "labels", "annotations"}
            <= rule.keys()
            <= {*("alert", "expr", "for", "labels", "annotations")}
        )
        assert re.fullmatch(r"Quarry[A-Za-z]+", rule["alert"])
        assert DURATION.fullmatch(rule.get("for", "1m"))
        assert rule["labels"].keys() == {"severity"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}


def test_each_alert_rule_has_its_section_in_the_runbook() -> None:
    """What it means, how to look closer, what to do, whether it can wait; in the order of the rules."""
    sections = re.split(r"^### ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections] == [rule["alert"] for rule in rules()]
    for rule, section in zip(rules(), sections, strict=True):
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert section.partition("\n")[2].strip().startswith(f"*{rule['labels']['severity']}.* ")
        said = re.findall(r"^- \*\*(\w+\W)\*\*", section, flags=re.MULTILINE)
        assert said == ["See.", "Do.", "Wait?"], rule["alert"]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_rule_reads_what_a_broker_exports(rule: dict[str, Any]) -> None:
    assert not wrong_names(rule["expr"])
    kept = [labels for _, labels in selected(parsed(rule["expr"]))]
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    own = {label for name, _ in selected(parsed(rule["expr"])) for label in samples().get(name, ())}
    by = re.findall(r"by \(([^)]*)\)", rule["expr"])
    left = set(", ".join(by).split(", ")) if by else own | FROM_PROMETHEUS
    assert shown <= left, f"an annotation shows labels that the expression does not keep: {shown - left} of {kept}"
