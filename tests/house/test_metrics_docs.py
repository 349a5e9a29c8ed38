"""`docs/metrics.md` lists what the broker exports: every name, type and meaning, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.emitted import emitted

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
BOUNDED = {"topic", "consumer_group"}
"""Labels whose values are as many as `metrics.top_topics` and `metrics.top_groups` allow."""

FEW = {
    *(
        "cause",
        "code",
        "database",
        "family",
        "generation",
        "holds",
        "how",
        "le",
        "level",
        "limit",
        "outcome",
        "phase",
        "stage",
    ),
    *("status", "step", "when"),
    *("cluster", "node_id", "node_type", "storage_medium", "storage_type"),
    *("consume_mode", "is_retry", "is_system", "message_type", "protocol_type"),
    *("cached", "decision", "port"),
    "kind",
    "replica",
    "severity",
    *("reachable", "state"),
    *("language", "version", "python"),
}
"""Labels with few values."""


def documented() -> list[tuple[str, str, str]]:
    names = r"(?:quarry|rocketmq|process|python)_[a-z_]+"
    found = re.findall(rf"^\| `({names})` \| ([a-z]+) \| (.+) \|$", DOCS.read_text(), flags=re.MULTILINE)
    return [(name, kind, meaning) for name, kind, meaning in found]


def test_the_metrics_page_agrees_with_what_a_broker_exports() -> None:
    listed = documented()
    assert len(listed) == len(set(listed))
    assert set(listed) == {(name, each.kind, each.meaning) for name, each in emitted().items()}


def test_each_metric_has_samples_under_some_traffic() -> None:
    """Those of things that have not happened are there, too: a rate of what appears with its first event misses it.

    Labels whose values nobody knows before they come are the exception.
    """
    without = {name for name, each in emitted().items() if not each.labels}
    assert without <= {
        "quarry_concerns",
        "quarry_dead_letters_waiting",
        "quarry_front_calls_failed_total",
        "quarry_front_connections_ended_total",
        "quarry_front_resets_received_total",
        "quarry_front_resets_sent_total",
        "quarry_index_failures_total",
        "quarry_queue_table_rewrite_bytes",
    }


def test_no_label_grows_with_queues_or_clients() -> None:
    """1,000,000 queues must not make 1,000,000 time series."""
    labels = {label for each in emitted().values() for found in each.labels.values() for label in found}
    assert labels <= BOUNDED | FEW


def test_what_is_given_of_rocketmqs_metrics_is_not_listed_as_missing() -> None:
    missing = set()
    for names, _ in re.findall(r"^\| (`rocketmq_[^|]+) \| ([^|]+) \|$", DOCS.read_text(), flags=re.MULTILINE):
        missing |= set(re.findall(r"`(rocketmq_[a-z_*]+)`", names))
    assert len(missing) > 10
    assert not missing & set(emitted())
