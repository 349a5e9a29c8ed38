"""Export metrics under RocketMQ's names, with its labels, so that its dashboards show this broker.

Only metrics with the same meaning have such a name; docs/metrics.md lists those left out, and why. RocketMQ's exporter
adds units to some of the names that RocketMQ documents. Dashboards exist for both, so those metrics have both names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from quarry_mq.protocol.names import is_system_group, is_system_topic
from quarry_mq.server.clients import Client
from quarry_mq.server.counters import OTHER, InKey, PairKey, Row, TopCounts, TopicKey, Traffic
from quarry_mq.server.lag.consumer_lag import PairLag
from quarry_mq.server.wire.settings import ClientKind

STORAGE: Final = {"storage_type": "local", "storage_medium": "disk"}
READ: Final = 4
READ_AND_WRITE: Final = 6
"""Bits of a permission, as RocketMQ has them."""

CONSUME_MODES: Final = {
    ClientKind.PUSH_CONSUMER: "push",
    ClientKind.LITE_PUSH_CONSUMER: "push",
    ClientKind.SIMPLE_CONSUMER: "pull",
    ClientKind.LITE_SIMPLE_CONSUMER: "pull",
    ClientKind.PULL_CONSUMER: "pull",
}


class Families:
    """Make metric families whose labels all name the broker, as RocketMQ's do."""

    def __init__(self, *, cluster: str, node_id: str) -> None:
        self._node = {"cluster": cluster, "node_type": "broker", "node_id": node_id}

    def gauge(self, name: str, meaning: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
        """Make a gauge with one value for each set of labels, which all have the same names."""
        return self._filled(GaugeMetricFamily, name, meaning, list(values))

    def gauges(
        self, name: str, unit: str, meaning: str, values: Iterable[tuple[Mapping[str, str], float]]
    ) -> Iterator[Metric]:
        """Make the gauge under the documented name, and under that of RocketMQ's exporter, which adds the unit."""
        kept = list(values)
        yield self.gauge(name, meaning, kept)
        yield self.gauge(f"{name}_{unit}", meaning, kept)

    def counter(self, name: str, meaning: str, values: Iterable[tuple[Mapping[str, str], float]]) -> Metric:
        """Make a counter; `name` is without `_total`."""
        return self._filled(CounterMetricFamily, name, meaning, list(values))

    def histogram(self, name: str, meaning: str, rows: Iterable[tuple[Mapping[str, str], Row]]) -> Metric:
        family: HistogramMetricFamily | None = None
        for labels, row in rows:
            family = family or HistogramMetricFamily(name, meaning, labels=[*self._node, *labels])
            values = [*self._node.values(), *labels.values()]
            family.add_metric(values, buckets=list(row.sizes.buckets()), sum_value=row.sizes.total)
        return family or HistogramMetricFamily(name, meaning, labels=list(self._node))

    def _filled(
        self,
        family_type: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        meaning: str,
        values: Sequence[tuple[Mapping[str, str], float]],
    ) -> Metric:
        names = [*self._node, *(values[0][0] if values else ())]
        family = family_type(name, meaning, labels=names)
        for labels, value in values:
            family.add_metric([*self._node.values(), *labels.values()], value)
        return family


def traffic_metrics(families: Families, traffic: Traffic) -> Iterator[Metric]:
    sent = [(_in_labels(key), row) for key, row in traffic.sent_by_topic.rows()]
    received = [(_pair_labels(key), row) for key, row in traffic.received_by_group.rows()]
    yield families.counter(
        "rocketmq_messages_in", "Messages that producers sent and the broker stored", _messages(sent)
    )
    yield families.counter("rocketmq_throughput_in", "Bytes of the records of these messages", _bytes(sent))
    yield families.histogram(
        "rocketmq_message_size", "Bytes per record; the records of one send count as equally large", sent
    )
    yield families.counter("rocketmq_messages_out", "Messages delivered to consumers", _messages(received))
    yield families.counter("rocketmq_throughput_out", "Bytes of the records of these messages", _bytes(received))
    dead_lettered = [
        ({"consumer_group": key.group, "topic": key.topic, "is_system": _is_system(key.topic, key.group)}, row)
        for key, row in traffic.dead_lettered_by_group.rows()
    ]
    yield families.counter(
        "rocketmq_send_to_dlq_messages",
        "Messages that went to the dead letters of their group",
        _messages(dead_lettered),
    )
    for name, meaning, counts in (
        ("commit", "Transactions committed by producers", traffic.committed_by_topic),
        ("rollback", "Transactions rolled back by producers", traffic.rolled_back_by_topic),
    ):
        yield families.counter(f"rocketmq_{name}_messages", meaning, _messages(_by_topic(counts)))


def lag_metrics(families: Families, pairs: Sequence[PairLag]) -> Iterator[Metric]:
    """Yield the lag of `pairs` as last found by `server.lag.consumer_lag`. Unknown values have no sample
    (dashboard#4516).
    """
    labelled = [
        (
            {
                "consumer_group": each.group,
                "topic": each.topic,
                "is_retry": _word(each.is_retry),
                "is_system": _is_system(each.topic, each.group),
            },
            each,
        )
        for each in pairs
    ]
    counted = [(labels, each, each.in_flight) for labels, each in labelled if each.in_flight is not None]
    lag_known = [(labels, each.lag_ms) for labels, each in labelled if each.lag_ms is not None]
    queueing_known = [(labels, each.queueing_ms) for labels, each in labelled if each.queueing_ms is not None]
    yield families.gauge(
        "rocketmq_consumer_lag_messages",
        "Messages that a group has not acknowledged: ready and in flight",
        ((labels, each.ready + in_flight) for labels, each, in_flight in counted),
    )
    yield families.gauge(
        "rocketmq_consumer_ready_messages",
        "Messages that a group has never received; messages that its filter will skip are included",
        ((labels, each.ready) for labels, each in labelled),
    )
    yield families.gauge(
        "rocketmq_consumer_inflight_messages",
        "Messages that a group has received and not acknowledged",
        ((labels, in_flight) for labels, _, in_flight in counted),
    )
    yield from families.gauges(
        "rocketmq_consumer_lag_latency",
        "milliseconds",
        "Age of the oldest message that a group has not acknowledged",
        lag_known,
    )
    yield from families.gauges(
        "rocketmq_consumer_queueing_latency",
        "milliseconds",
        "Age of the oldest message that a group has never received",
        queueing_known,
    )


class StorageStats(Protocol):
    """The store's offsets, readable on any thread."""

    @property
    def appended_up_to(self) -> int: ...

    @property
    def flushed_up_to(self) -> int: ...

    @property
    def dispatched_up_to(self) -> int: ...


class BrokerStats(NamedTuple):
    """Other values of the broker that are exported; None for what is not known yet."""

    disk_used_bytes: int | None
    oldest_message_age_ms: int | None
    timer_late_ms: int | None
    takes_sends: bool


def storage_metrics(families: Families, store: StorageStats, broker: BrokerStats) -> Iterator[Metric]:
    dispatched, flushed = store.dispatched_up_to, store.flushed_up_to  # read before the end, which only grows
    end = store.appended_up_to
    for name, meaning, value in (
        ("flush_behind", "Bytes of commit log that are appended and not on disk yet", end - flushed),
        ("dispatch_behind", "Bytes of commit log that are appended and not visible to consumers yet", end - dispatched),
    ):
        yield families.gauge(f"rocketmq_storage_{name}_bytes", meaning, [(STORAGE, max(0, value))])
    for name, unit, meaning, known in (
        ("rocketmq_storage_size", "bytes", "Size of the store's file system", broker.disk_used_bytes),
        (
            "rocketmq_storage_message_reserve_time",
            "milliseconds",
            "Age of the oldest message in the commit log",
            broker.oldest_message_age_ms,
        ),
        (
            "rocketmq_timer_dequeue_latency",
            "milliseconds",
            "How long the earliest due delayed message has been overdue",
            broker.timer_late_ms,
        ),
    ):
        yield from families.gauges(name, unit, meaning, [] if known is None else [(STORAGE, known)])
    permission = READ_AND_WRITE if broker.takes_sends else READ
    yield families.gauge(
        "rocketmq_broker_permission", "6: sends and receives are served. 4: sends are refused", [({}, permission)]
    )


def connection_metrics(families: Families, clients: Iterable[Client], series_max: int) -> Iterator[Metric]:
    """Yield counts of clients by what they report. That may be anything, so only the most frequent have series."""
    producers: Counter[tuple[str, ...]] = Counter()
    consumers: Counter[tuple[str, ...]] = Counter()
    for client in clients:
        said = client.settings
        version = (said.language.lower(), said.version)
        if said.kind in CONSUME_MODES:
            consumers[said.group or OTHER, *version, CONSUME_MODES[said.kind]] += 1
        else:
            producers[version] += 1
    yield families.gauge(
        "rocketmq_producer_connections",
        "Producers that sent their settings",
        [
            ({"language": language, "version": version, "protocol_type": "grpc"}, count)
            for (language, version), count in _most(producers, series_max)
        ],
    )
    yield families.gauge(
        "rocketmq_consumer_connections",
        "Consumers that sent their settings",
        [
            (
                {
                    "consumer_group": group,
                    "language": language,
                    "version": version,
                    "consume_mode": mode,
                    "protocol_type": "grpc",
                    "is_system": _word(is_system_group(group)),
                },
                count,
            )
            for (group, language, version, mode), count in _most(consumers, series_max)
        ],
    )


def _most(counts: Counter[tuple[str, ...]], series_max: int) -> list[tuple[tuple[str, ...], int]]:
    """Return the most frequent counts, and all others as one."""
    most = nlargest(series_max, counts.items(), key=lambda item: item[1])
    rest = counts.total() - sum(count for _, count in most)
    return most if not rest else [*most, ((OTHER,) * len(most[0][0]), rest)]


def _by_topic(counts: TopCounts[TopicKey]) -> list[tuple[Mapping[str, str], Row]]:
    return [({"topic": key.topic}, row) for key, row in counts.rows()]


def _in_labels(key: InKey) -> Mapping[str, str]:
    return {
        "topic": key.topic,
        "message_type": key.message_type,
        "is_system": _word(is_system_topic(key.topic)),
    }


def _pair_labels(key: PairKey) -> Mapping[str, str]:
    return {
        "consumer_group": key.group,
        "topic": key.topic,
        "is_retry": _word(key.is_retry),
        "is_system": _is_system(key.topic, key.group),
    }


def _messages(rows: Iterable[tuple[Mapping[str, str], Row]]) -> Iterator[tuple[Mapping[str, str], float]]:
    return ((labels, row.messages) for labels, row in rows)


def _bytes(rows: Iterable[tuple[Mapping[str, str], Row]]) -> Iterator[tuple[Mapping[str, str], float]]:
    return ((labels, row.bytes) for labels, row in rows)


def _is_system(topic: str, group: str) -> str:
    return _word(is_system_topic(topic) or is_system_group(group))


def _word(yes: bool) -> str:  # noqa: FBT001
    return "true" if yes else "false"
