"""Statistics of the broker by remoting, as RocketMQ's tools and its exporter read them.

| request | answer |
|---|---|
| GET_BROKER_RUNTIME_INFO | the state of the broker: texts by RocketMQ's names |
| VIEW_BROKER_STATS | messages or bytes of one topic, group or all, in the last minute, hour and day |
| GET_BROKER_CONFIG | the settings that RocketMQ has, too, as properties |

Tools fail without some names that mean nothing here, such as those of thread pools. These are 0.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import orjson

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.admin.stats import DayTotals, Moved
from quarry_mq.server.counters import Traffic
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.wire import RemotingRefused, text_of
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.security.model import Action, ResourceKind
from quarry_mq.store.settings import Durability

ROCKETMQ_VERSION: Final = ("513", "V5_5_0")
"""The version whose answers these are: tools compare it before they ask for more."""

Counts = dict[tuple[str, str], int]
"""Counts since the start, by the name of a statistic and its key."""

TOPIC_MESSAGES: Final = "TOPIC_PUT_NUMS"
TOPIC_BYTES: Final = "TOPIC_PUT_SIZE"
GROUP_MESSAGES: Final = "GROUP_GET_NUMS"
GROUP_BYTES: Final = "GROUP_GET_SIZE"
SENT_BACK: Final = "SNDBCK_PUT_NUMS"
BROKER_SENT: Final = "BROKER_PUT_NUMS"
BROKER_RECEIVED: Final = "BROKER_GET_NUMS"


LATEST_S: Final = 1.0


class _Sample(NamedTuple):
    at_s: float
    counts: Counts


class Window:
    """The counts of a time that ends now, from samples at regular times within it."""

    def __init__(self, length_s: float, samples: int) -> None:
        """Keep `samples` of them in `length_s` seconds."""
        self.length_s: Final = length_s
        self._interval_s = length_s / samples
        self._samples: deque[_Sample] = deque()

    def add(self, sample: _Sample) -> None:
        """Keep the sample, unless the one before is too young."""
        samples = self._samples
        if samples and sample.at_s - samples[-1].at_s < self._interval_s * 0.99:
            return
        samples.append(sample)
        while len(samples) > 1 and sample.at_s - samples[1].at_s >= self.length_s:
            samples.popleft()

    def counted(self, now: _Sample, name: tuple[str, str]) -> tuple[int, float]:
        """Return the count in the window, and how many that is per second. A name that was forgotten begins with 0."""
        first = self._samples[0] if self._samples else now
        before, after = first.counts.get(name, 0), now.counts.get(name, 0)
        count, seconds = after - before if after >= before else after, now.at_s - first.at_s
        if seconds <= 0:
            return count, 0.0
        return round(count * min(1.0, self.length_s / seconds)), count / seconds


class RemotingStatistics:
    """Serves requests for statistics."""

    def __init__(self, edge: RemotingEdge, sources: Sources, settings: BrokerSettings, clock: Clock) -> None:
        self._edge = edge
        self._sources = sources
        self._settings = settings
        self._clock = clock
        self._started_ms = clock.wall_ms()
        self._days = DayTotals(clock)
        self._minute, self._ten_minutes = Window(60, 6), Window(600, 10)
        self._hour, self._day = Window(3600, 6), Window(24 * 3600, 6)
        self._latest = self._counted()
        self.sample()

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.operators_handler
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: handler(self._runtime_info),
            RequestCode.VIEW_BROKER_STATS: handler(self._stats),
            RequestCode.GET_BROKER_CONFIG: handler(self._config),
            RequestCode.UPDATE_BROKER_CONFIG: handler(self._refuse_config),
        }

    def sample(self) -> None:
        """Note the counts of now; to be called every few seconds."""
        now = self._now()
        for window in (self._minute, self._ten_minutes, self._hour, self._day):
            window.add(now)
        self._days.note(self._moved)

    # -- statistics by name

    def _stats(self, call: RemotingCall) -> None:
        name, key = text_of(call.fields, "statsName"), text_of(call.fields, "statsKey")
        self._require(call)
        now = self._now()
        if (name, key) not in now.counts:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name[:64]}> <{key[:255]}> not exist")
        stats = {}
        for member, window in (("statsMinute", self._minute), ("statsHour", self._hour), ("statsDay", self._day)):
            count, rate = window.counted(now, (name, key))
            stats[member] = {"avgpt": 0.0, "sum": count, "tps": rate}
        call.answer(body=orjson.dumps(stats))

    def _now(self) -> _Sample:
        """Return the counts of now. Tools ask for each topic and group, so that these serve for a second."""
        if self._clock.monotonic_s() - self._latest.at_s > LATEST_S:
            self._latest = self._counted()
        return self._latest

    def _counted(self) -> _Sample:
        traffic, cluster = self._traffic, self._settings.broker.cluster
        counts: Counts = {
            (BROKER_SENT, cluster): traffic.messages_sent,
            (BROKER_RECEIVED, cluster): traffic.messages_received,
        }
        rows = [(TOPIC_MESSAGES, TOPIC_BYTES, key.topic, row) for key, row in traffic.sent_by_topic.rows()]
        for pair, row in traffic.received_by_group.rows():
            rows.append((GROUP_MESSAGES, GROUP_BYTES, f"{pair.topic}@{pair.group}", row))
        for messages, size, key, row in rows:
            counts[messages, key] = counts.get((messages, key), 0) + row.messages
            counts[size, key] = counts.get((size, key), 0) + row.bytes
        for pair, row in traffic.sent_back_by_group.rows():
            counts[SENT_BACK, f"{pair.topic}@{pair.group}"] = row.messages
        return _Sample(self._clock.monotonic_s(), counts)

    # -- the broker

    def _runtime_info(self, call: RemotingCall) -> None:
        self._require(call)
        table = {**_UNKNOWN, **self._times(), **self._rates(), **self._log(), **self._days_before()}
        call.answer(body=orjson.dumps({"table": table}))

    def _times(self) -> dict[str, str]:
        version, name = ROCKETMQ_VERSION
        seconds = (self._clock.wall_ms() - self._started_ms) // 1000
        minutes, hours = seconds // 60, seconds // 3600
        return {
            "bootTimestamp": str(self._started_ms),
            "brokerActive": "true",
            "brokerVersion": version,
            "brokerVersionDesc": name,
            "runtime": f"[ {hours // 24} days, {hours % 24} hours, {minutes % 60} minutes, {seconds % 60} seconds ]",
        }

    def _rates(self) -> dict[str, str]:
        """Return messages per second over the last ten seconds, minute, and ten minutes."""
        now, recent = self._now(), self._sources.rates.totals()
        sent, received = [f"{recent.sent:.2f}"], [f"{recent.received:.2f}"]
        for window in (self._minute, self._ten_minutes):
            for texts, name in ((sent, BROKER_SENT), (received, BROKER_RECEIVED)):
                _, rate = window.counted(now, (name, self._settings.broker.cluster))
                texts.append(f"{rate:.2f}")
        out = " ".join(received)
        return {
            "putTps": " ".join(sent),
            "getTransferredTps": out,
            "getTransferedTps": out,  # RocketMQ 4 spells the name so, and its tools ask for no other
            "getFoundTps": out,
            "getTotalTps": out,
        }

    def _log(self) -> dict[str, str]:
        sources, traffic = self._sources, self._traffic
        store, space = sources.components.store, sources.maintenance.retention.log_space
        share = 0.0 if space is None else space.used_bytes / space.total_bytes
        total, free = (0, 0) if space is None else (space.total_bytes, space.available_bytes)
        sent = traffic.messages_sent
        return {
            "commitLogDirCapacity": f"Total : {_gib(total)}, Free : {_gib(free)}.",
            "commitLogDiskRatio": f"{share:.4f}",
            "commitLogMaxOffset": str(store.messages.appended_up_to),
            "commitLogMinOffset": str(store.expiry.minimum),
            "consumeQueueDiskRatio": f"{share:.4f}",
            "dispatchBehindBytes": str(sources.dispatch_lag_bytes),
            "earliestMessageTimeStamp": str(sources.background.waiting.oldest_stored_ms or self._clock.wall_ms()),
            "putMessageAverageSize": str(traffic.bytes_sent / sent if sent else 0.0),
            "putMessageSizeTotal": str(traffic.bytes_sent),
            "putMessageTimesTotal": str(sent),
            "remainHowManyDataToFlush": f"{store.messages.appended_up_to - store.messages.flushed_up_to} B",
        }

    def _days_before(self) -> dict[str, str]:
        """Return the totals of now and of the last two midnights, as far as the broker has seen these."""
        now = self._moved
        today = self._days.today(now)
        morning = Moved(0, 0) if today is None else now.since(today)
        yesterday = self._days.yesterday
        before = Moved(0, 0) if yesterday is None else morning.since(yesterday)
        totals = (("TodayNow", now), ("TodayMorning", morning), ("YesterdayMorning", before))
        return {
            **{f"msgPutTotal{name}": str(moved.sent) for name, moved in totals},
            **{f"msgGetTotal{name}": str(moved.received) for name, moved in totals},
        }

    # -- settings

    def _config(self, call: RemotingCall) -> None:
        """Answer with the settings that have a name in RocketMQ."""
        self._require(call)
        settings = self._settings
        properties = {
            "autoCreateSubscriptionGroup": settings.groups.auto_create,
            "autoCreateTopicEnable": settings.topics.auto_create,
            "brokerClusterName": settings.broker.cluster,
            "brokerId": 0,
            "brokerName": settings.broker.name,
            "defaultTopicQueueNums": settings.topics.default_queues,
            "enablePropertyFilter": True,
            "fileReservedTime": int(settings.expiry.retention_hours),
            "flushDiskType": "SYNC_FLUSH" if settings.store.durability is Durability.SYNC else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": settings.store.segment_size,
            "maxMessageSize": settings.limits.body_size,
        }
        lines = [f"{name}={_property(value)}\n" for name, value in properties.items()]
        version = orjson.dumps({"counter": 0, "stateVersion": 0, "timestamp": self._started_ms}).decode()
        call.answer(fields={"version": version}, body="".join(lines).encode())

    def _refuse_config(self, _call: RemotingCall) -> None:
        raise Forbidden("settings of this broker have other names: change them with `quarry settings set`")

    # -- common parts

    @property
    def _traffic(self) -> Traffic:
        return self._sources.components.sends.metrics.traffic

    @property
    def _moved(self) -> Moved:
        return Moved(self._traffic.messages_sent, self._traffic.messages_received)

    def _require(self, call: RemotingCall) -> None:
        self._edge.require(call, (Access(ResourceKind.CLUSTER, self._settings.broker.cluster, Action.GET),))


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _property(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_POOLS: Final = ("send", "pull", "query", "ack", "litePull")

_UNKNOWN: Final = {
    **{f"{pool}ThreadPoolQueueSize": "0" for pool in _POOLS},
    **{f"{pool}ThreadPoolQueueCapacity": "0" for pool in _POOLS},
    **{f"{pool}ThreadPoolQueueHeadWaitTimeMills": "0" for pool in _POOLS},
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "dispatchMaxBuffer": "0",
    "getMessageEntireTimeMax": "0",
    "getMissTps": "0.0 0.0 0.0",
    "pageCacheLockTimeMills": "0",
    "putLatency99": "0.00",
    "putLatency999": "0.00",
    "putMessageDistributeTime": "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 "
    "[500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0 ",
    "putMessageEntireTimeMax": "0",
    "putMessageFailedTimes": "0",
    "remainTransientStoreBufferNumbs": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "timerCongestNum": "0",
    "timerDequeueTps": "0.0",
    "timerEnqueueTps": "0.0",
    "timerOffsetBehind": "0",
    "timerReadBehind": "0",
}
"""Values that tools ask for, and that mean nothing for this broker."""
