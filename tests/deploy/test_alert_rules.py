"""Each alert rule fires on a fault that is planted for it, and is silent beside a broker without one.

Prometheus itself evaluates the rules: `promtool` of a package `prometheus`, on the path, named by PROMTOOL, or in the
cache of the slow tests. Series are made up here; `test_alerts_in_prometheus.py` has real brokers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.e2e.debian import folder_of
from tests.house.source import ROOT

RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
UNPACKED: Final = folder_of("prometheus") / "usr" / "bin" / "promtool"
"""A copy that exists once `test_alerts_in_prometheus.py` has run."""

PROMTOOL: Final = os.environ.get("PROMTOOL") or shutil.which("promtool", path=f"{os.environ['PATH']}:{UNPACKED.parent}")
MINUTES: Final = 60

PAIR: Final = {"consumer_group": "billing", "topic": "orders"}


class Series(NamedTuple):
    """A metric with its labels, and its values with the fault and without, in promtool's notation."""

    name: str
    labels: Mapping[str, str]
    ill: str
    well: str


class Planted(NamedTuple):
    """A fault makes a rule fire; `labels` are those of its alert beside `instance`."""

    series: Sequence[Series]
    labels: Mapping[str, str] = {}


def constant(name: str, ill: float, well: float, **labels: str) -> Series:
    return Series(name, labels, f"{ill}x{MINUTES}", f"{well}x{MINUTES}")


def counter(name: str, ill: float, well: float, **labels: str) -> Series:
    """A counter that grows by so much a minute."""
    return Series(name, labels, f"0+{ill}x{MINUTES}", f"0+{well}x{MINUTES}")


def histogram(name: str, slow: str, **labels: str) -> list[Series]:
    """All values are above the bound `slow` with the fault, and at or below it without."""
    return [
        counter(f"{name}_bucket", 0, 600, le=slow, **labels),
        counter(f"{name}_bucket", 600, 600, le="16", **labels),
        counter(f"{name}_bucket", 600, 600, le="+Inf", **labels),
    ]


def lag(ill: str, well: str, *, age_ms: float = 3_600_000) -> list[Series]:
    return [
        Series("rocketmq_consumer_lag_messages", {**PAIR, "is_retry": "false"}, ill, well),
        constant("rocketmq_consumer_lag_latency", age_ms, age_ms, **PAIR, is_retry="false"),
    ]


PLANTED: Final[Mapping[str, Planted]] = {
    "QuarryDown": Planted([constant("up", 0, 1, job="quarry")], {"job": "quarry"}),
    # a copy of a store that follows its primary serves no clients, and is well
    "QuarryNotReady": Planted(
        [
            constant("quarry_ready", 0, 0),
            Series("quarry_replica_connected", {"replica": "b"}, f"_x{MINUTES}", f"1x{MINUTES}"),
            Series("quarry_replica_primary", {}, f"_x{MINUTES}", f"0x{MINUTES}"),
        ]
    ),
    "QuarrySendsRefused": Planted([constant("rocketmq_broker_permission", 4, 6)]),
    "QuarrySendsFail": Planted(
        [
            counter("quarry_sends_total", 100, 1, outcome="failed"),
            counter("quarry_sends_total", 900, 999, outcome="stored"),
        ]
    ),
    "QuarryLoopSilent": Planted([constant("quarry_loop_silence_seconds", 6, 0.1)]),
    "QuarryLoopLate": Planted(histogram("quarry_loop_late_seconds", "0.1")),
    "QuarrySlowSends": Planted(histogram("quarry_send_duration_seconds", "0.5")),
    "QuarryDiskFills": Planted([constant("quarry_disk_used_ratio", 0.9, 0.8, holds="log")], {"holds": "log"}),
    "QuarryExpiredUnread": Planted([counter("quarry_expired_unread_messages_total", 1, 0)]),
    "QuarryDamageMet": Planted([counter("quarry_damage_met_total", 1, 0)]),
    "QuarryFlushSlow": Planted(histogram("quarry_flush_duration_seconds", "0.1")),
    "QuarryDispatchBehind": Planted([constant("rocketmq_storage_dispatch_behind_bytes", 1 << 27, 1 << 20)]),
    "QuarryRocksdbStalls": Planted(
        [counter("quarry_rocksdb_write_stops_total", 1, 0, database="queues", cause="memtables")],
        {"database": "queues"},
    ),
    "QuarryRocksdbErrors": Planted(
        [constant("quarry_rocksdb_background_errors", 1, 0, database="queues")], {"database": "queues"}
    ),
    "QuarryIndexBehind": Planted([constant("quarry_index_behind_bytes", 1 << 31, 1 << 20)]),
    "QuarryQueuesDiffer": Planted([constant("quarry_queue_mismatches", 1, 0)]),
    "QuarryReplicaAway": Planted(
        [constant("quarry_replica_connected", 0, 1, replica="b"), constant("quarry_replica_primary", 1, 1)],
        {"replica": "b"},
    ),
    "QuarryReplicaBehind": Planted(
        [constant("quarry_replica_lag_seconds", 11, 9, replica="b"), constant("quarry_replica_primary", 1, 1)],
        {"replica": "b"},
    ),
    "QuarryLagGrows": Planted(lag(f"100+1x{MINUTES}", f"100-1x{MINUTES}"), PAIR),
    # the producer stopped, too: the lag does not grow
    "QuarryGroupStuck": Planted(lag(f"100x{MINUTES}", f"100-1x{MINUTES}"), PAIR),
    # the first dead letters of a group: its counter has no earlier value, so that no increase is seen
    "QuarryDeadLettersWaiting": Planted(
        [
            Series("quarry_dead_letters_waiting", {"consumer_group": "billing"}, "_x40 12x20", f"_x{MINUTES}"),
            Series("rocketmq_send_to_dlq_messages_total", PAIR, "_x40 12x20", f"_x{MINUTES}"),
        ],
        {"consumer_group": "billing"},
    ),
    "QuarryDeadLetters": Planted([counter("rocketmq_send_to_dlq_messages_total", 1, 0, **PAIR)], PAIR),
    "QuarryDelayedLate": Planted([constant("rocketmq_timer_dequeue_latency", 120_000, 10)]),
    "QuarryLagUnknown": Planted([constant("quarry_sampled_age_seconds", 900, 15)]),
    "QuarryConcern": Planted(
        [constant("quarry_concerns", 1, 0, kind="clock-behind-log", severity="fault")],
        {"kind": "clock-behind-log"},
    ),
    "QuarryFilesRunOut": Planted(
        [
            constant("process_open_fds", 900, 100, job="quarry"),
            constant("process_max_fds", 1_000, 1_000, job="quarry"),
        ],
        {"job": "quarry"},
    ),
    "QuarryRestarts": Planted(
        [
            Series(
                "process_start_time_seconds",
                {"job": "quarry"},
                f"1000+1x{MINUTES}",
                f"1000x{MINUTES}",
            )
        ],
        {"job": "quarry"},
    ),
}


def rules() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(RULES.read_text())
    return loaded


def alerts() -> Iterator[dict[str, Any]]:
    for group in rules()["groups"]:
        yield from group["rules"]


def test_a_fault_is_planted_for_each_rule() -> None:
    assert [each["alert"] for each in alerts()] == list(PLANTED)


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on the path, and none named by PROMTOOL")
def test_each_rule_fires_on_its_fault_and_is_silent_otherwise(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    assert _promtool("check", "rules", RULES).returncode == 0
    bare = rules()
    for group in bare["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]  # promtool compares them, and their texts are not what is tested
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(bare))
    tests = [_test(each) for each in alerts()]
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "30s", "tests": tests})
    )
    done = _promtool("test", "rules", tmp_path / "tests.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def _test(rule: Mapping[str, Any]) -> dict[str, Any]:
    """The fault at one broker, and the same metrics without it at another."""
    alert, planted = rule["alert"], PLANTED[rule["alert"]]
    labels = {"instance": "ill", "severity": rule["labels"]["severity"], **planted.labels}
    return {
        "interval": "1m",
        "input_series": [
            {"series": _named(each, instance), "values": values}
            for each in planted.series
            for instance, values in (("ill", each.ill), ("well", each.well))
        ],
        "alert_rule_test": [{"eval_time": "59m", "alertname": alert, "exp_alerts": [{"exp_labels": labels}]}],
    }


def _named(series: Series, instance: str) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in {**series.labels, "instance": instance}.items())
    return f"{series.name}{{{labels}}}"


def _promtool(*words: object) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *map(str, words)], capture_output=True, text=True, check=False, timeout=120)
