"""A broker at a glance, its last hour, and pages of topics and groups: one broker with traffic for all tests."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar, cast

import grpc.aio
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.kv import EngineCorrupt
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub
from quarry_mq.server.admin import pages as pages_module
from quarry_mq.server.admin import stats as history_module
from quarry_mq.server.admin.concerns import Concern, Concerns, UnsentDeadLetters, _denied
from quarry_mq.server.admin.stats import make_recording
from quarry_mq.server.process.host_commands import HostCommands
from quarry_mq.server.replicas.primary import Primary
from quarry_mq.server.replicas.process import WatchedCopies
from quarry_mq.server.replicas.status import ReplicaStatus
from quarry_mq.server.security.denied_callers import Denial, DeniedCaller
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.security.model import SealedSecret, SealedUser, UserKind
from tests.conformance.broker import PATIENCE_S, RunningBroker, running_broker
from tests.conformance.client import Client, consumer_settings, message, producer_settings
from tests.conformance.test_order import dead_letter
from tests.schemas import assert_documented

SAMPLE_MS: Final = 100
"""In place of ten seconds."""
SAMPLE_COST_MAX_S: Final = 0.001
"""It is some 40 µs; the machine may be busy."""
MANY: Final = 1_200
T = TypeVar("T")


class Bench:
    """A broker with traffic, and the service that tells of it."""

    def __init__(self, runner: asyncio.Runner, broker: RunningBroker) -> None:
        self._runner = runner
        self.broker = broker
        self.channel = runner.run(self._channel())
        self.service = OverviewServiceStub(self.channel)

    async def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.broker.admin)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, 3 * PATIENCE_S))

    def call(self, method: str, request: Any) -> Any:
        async def calling() -> Any:
            return await getattr(self.service, method)(request)

        return self.run(calling())

    def until(self, method: str, request: Any, condition: Any) -> Any:
        """The first answer that is as it has to become."""
        deadline_s = time.perf_counter() + PATIENCE_S
        while not condition(answer := self.call(method, request)):
            assert time.perf_counter() < deadline_s, answer
            self.run(asyncio.sleep(0.02))
        return answer

    def topics(self, **terms: Any) -> Any:
        return self.call("ListTopicFigures", pb.ListTopicFiguresRequest(**terms))

    def groups(self, **terms: Any) -> Any:
        return self.call("ListGroupFigures", pb.ListGroupFiguresRequest(**terms))

    def command(self, *words: str, as_json: bool = True) -> tuple[int, Any]:
        """Exit status, and what was printed: rows, or text."""
        arguments = [*words, *(["--json"] if as_json else []), "--admin", self.broker.admin]

        async def running() -> Any:
            with capture_logs():  # the broker's are no part of what the command says
                return await asyncio.to_thread(CliRunner().invoke, app, arguments)

        result = self.run(running())
        assert_documented(arguments, result.stdout)
        if not as_json or result.exit_code:
            return result.exit_code, result.output
        return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_module, "INTERVAL_MS", SAMPLE_MS)
        patch.setattr(history_module, "until_next_ms", lambda _: SAMPLE_MS)
        patch.setattr(history_module, "RATE_SECONDS_MIN", 0.01)
        running = running_broker(
            tmp_path_factory.mktemp("overview"),
            patch,
            metrics={"lag_interval_ms": 100},
            delivery={"new_group_start": "earliest"},
        )
        broker = runner.run(running.__aenter__())
        client = Client(broker.endpoint)
        try:
            runner.run(traffic(broker, client))
            bench = Bench(runner, broker)
            yield bench
            bench.run(bench.channel.close())
        finally:
            runner.run(client.__aexit__(None, None, None))
            runner.run(running.__aexit__(None, None, None))


async def traffic(broker: RunningBroker, client: Client) -> None:
    """20 messages in `orders`, 6 of them given to `billing`, 2 acknowledged, 1 buried; `audit` has long been away."""
    broker.broker._sources.health.ready()
    broker.topic("orders", queues=4)
    broker.topic("quiet", queues=4)
    broker.store.topics.create(Topic("rmq_sys_own", TopicType.NORMAL, 1, 1), internal=True)
    broker.store.topics.add_missing(Topic(f"many-{number:04d}", TopicType.NORMAL, 1, 1) for number in range(MANY))
    broker.group("billing")
    broker.group("audit")
    await client.declare(consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER))
    async with Client(broker.endpoint) as producer:
        await producer.declare(producer_settings("orders"))
        for _ in range(20):
            await producer.sent(message("orders", b"x" * 100))
    handles: list[str] = []
    while len(handles) < 6:
        handles += (await client.receive("billing", "orders", count=6 - len(handles), polling_s=2)).handles
    await client.ack("billing", "orders", *handles[:2])
    await dead_letter(client, "billing", "orders", handles[2])
    batch = broker.store.state_engine.batch()
    for number in range(4):
        broker.store.offsets.stage(batch, "audit", QueueId("orders", number), QueueOffset(0))
    broker.store.state_engine.write(batch)


def test_a_broker_at_a_glance(bench: Bench) -> None:
    def is_counted(answer: Any) -> bool:
        is_swept = answer.HasField("topics") and answer.in_flight_messages == 3 and answer.HasField("disk_total")
        return bool(is_swept and answer.concerns)

    found = bench.until("GetOverview", pb.GetOverviewRequest(), is_counted)
    # the dead letters have made a topic
    assert (found.topics, found.groups) == (MANY + 3, 2)
    assert (found.sent, found.received) == (20, 6)
    assert found.sent_per_second > 0
    assert (found.ready_messages, found.in_flight_messages, found.lag_is_whole) == (14, 3, True)
    assert 0 <= found.lag_ms < 60_000
    assert (found.broker.name, found.readiness) == ("quarry", "ready")
    [concern] = found.concern_details
    assert (concern.kind, concern.severity) == ("dead-letters", pb.CONCERN_SEVERITY_WARNING)
    assert concern.text == "group billing has 1 dead letter that nobody sent again. Fix the consumer first"
    assert list(found.concerns) == [concern.text]
    assert (concern.page, concern.command) == ("dead-letters/billing", "quarry dead-letters resend billing")
    assert abs(concern.since_ms - found.at_ms) < 60_000
    assert (found.connections, found.consumers) == (1, 1)
    assert not any(found.HasField(each) for each in ("sent_today", "sent_yesterday", "migration_lag_bytes"))
    assert (found.timers, found.transactions, found.lite_topics) == (0, 0, 0)
    assert found.disk_total > found.disk_free > 0
    assert found.log_size == found.broker.log.appended_offset > 20 * 100
    assert abs(found.oldest_stored_at_ms - found.at_ms) < 60_000
    assert found.migration_phase == "rocksdb"
    assert found.process.cpu_seconds > 0
    assert found.process.resident_bytes > 1_000_000
    assert found.process.open_files > 3
    flush = next(each for each in found.stages if (each.call, each.name) == ("send", "flush"))
    assert sum(flush.counts) >= 1
    assert flush.total_seconds > 0
    assert len(flush.counts) == len(flush.bounds_seconds) + 1


def test_a_broker_without_a_cluster_is_alone(bench: Bench) -> None:
    answer = bench.call("ListOverviews", pb.ListOverviewsRequest())
    (member,) = answer.members
    assert (member.name, member.state, member.is_self, member.is_reachable) == ("quarry", "alone", True, True)
    assert member.overview.sent == 20


def test_verifications_that_run_are_open_jobs(bench: Bench) -> None:
    before = bench.call("GetOverview", pb.GetOverviewRequest()).open_jobs
    broker, channel = bench.broker, bench.channel

    async def begin() -> int:
        begun = await JobServiceStub(channel).BeginJob(
            jobs_pb2.BeginJobRequest(resend_messages=jobs_pb2.MessagesResend(topic="quiet", from_offset=0, queue=0))
        )
        return int(begun.id)

    assert (before, bench.run(begin()) > 0) == (0, True)
    broker.broker._maintenance.verification.begin("test")
    assert bench.call("GetOverview", pb.GetOverviewRequest()).open_jobs >= 1
    bench.until("GetOverview", pb.GetOverviewRequest(), lambda answer: answer.open_jobs == 0)


def test_the_last_hour_ends_with_what_there_is_now(bench: Bench) -> None:
    request = pb.GetHistoryRequest(series=["in_flight_messages", "ready_messages", "loop_late_seconds"])
    found = bench.until("GetHistory", request, lambda answer: answer.series[0].values[-1:] == [3.0])
    assert found.series[1].values[-1] == 14
    assert found.series[2].values[-1] != found.series[2].values[-1], "nobody watches the loop of a test"
    assert list(found.at_ms) == sorted(set(found.at_ms))
    later = bench.until(
        "GetHistory", pb.GetHistoryRequest(after_ms=found.at_ms[-1]), lambda answer: len(answer.at_ms) > 0
    )
    assert min(later.at_ms) > found.at_ms[-1]
    everything = bench.call("GetHistory", pb.GetHistoryRequest())
    assert len({each.name for each in everything.series}) == len(everything.series) == 34
    assert all(len(each.values) == len(everything.at_ms) for each in everything.series)


def test_the_last_hour_of_a_topic_and_of_a_group(bench: Bench) -> None:
    series = ["in_flight_messages", "ready_messages", "lag_seconds"]

    def is_known(answer: Any) -> bool:
        return bool(answer.series[0].values[-1:] == [3.0])

    of_topic = pb.GetHistoryRequest(series=series, topic="orders")
    for request in (of_topic, pb.GetHistoryRequest(series=series, group="billing")):
        found = bench.until("GetHistory", request, is_known)
        assert [each.unit for each in found.series] == ["messages", "messages", "seconds"]
        assert len(found.at_ms) == len(found.series[2].values)
    nobody = bench.call("GetHistory", pb.GetHistoryRequest(topic="nobody"))
    assert ([*nobody.at_ms], len(nobody.series)) == ([], 5)


def test_a_sample_costs_next_to_nothing(bench: Bench) -> None:
    async def samples() -> list[float]:
        recording, costs = make_recording(bench.broker.broker._sources), []
        for _ in range(50):
            began_s = time.perf_counter()
            recording.sample()
            costs.append(time.perf_counter() - began_s)
        return costs

    assert median(bench.run(samples())) < SAMPLE_COST_MAX_S


def test_a_topic_with_those_who_read_it(bench: Bench) -> None:
    request = pb.ListTopicFiguresRequest(contains="ORDERS")

    def is_there(answer: Any) -> bool:
        return bool(answer.topics[0].groups[1].in_flight == 3)

    answer = bench.until("ListTopicFigures", request, is_there)
    (found,) = answer.topics
    assert (answer.matching, answer.has_more, found.topic.name, found.topic.write_queues) == (1, False, "orders", 4)
    assert (found.messages, found.group_count) == (20, 2)
    assert 20 * 100 < found.estimated_bytes < 20 * 1_000
    assert abs(found.last_stored_at_ms - time.time_ns() // 1_000_000) < 60_000
    assert found.HasField("sent_per_second")
    audit, billing = found.groups
    assert (billing.ready, billing.in_flight, billing.consumers) == (14, 3, 1)
    # it is not in memory: its lag is looked at for this answer
    assert (audit.group, audit.ready, audit.in_flight, audit.consumers) == ("audit", 20, 0, 0)
    assert audit.lag_ms >= billing.lag_ms > 0
    assert audit.received_per_second == 0


def test_an_empty_topic_has_nothing_and_that_is_known(bench: Bench) -> None:
    (found,) = bench.topics(contains="quiet").topics
    assert (found.messages, found.estimated_bytes, found.group_count, list(found.groups)) == (0, 0, 0, [])
    assert (found.sent_per_second, found.received_per_second) == (0, 0)
    assert not found.HasField("last_stored_at_ms")


def test_groups_with_the_topics_they_read(bench: Bench) -> None:
    def is_there(answer: Any) -> bool:
        return bool(len(answer.groups) == 2 and answer.groups[1].in_flight == 3)

    answer = bench.until("ListGroupFigures", pb.ListGroupFiguresRequest(), is_there)
    audit, billing = answer.groups
    assert (answer.matching, audit.group.name, billing.group.name) == (2, "audit", "billing")
    assert (billing.ready, billing.in_flight, billing.dead_letters, billing.topic_count) == (14, 3, 1, 1)
    assert (billing.consumers, [each.topic for each in billing.topics]) == (1, ["orders"])
    assert (audit.ready, audit.dead_letters, audit.consumers) == (20, 0, 0)


def test_all_topics_page_by_page(bench: Bench) -> None:
    names: list[str] = []
    while True:
        page = bench.topics(after=names[-1] if names else "", limit=500)
        names += [each.topic.name for each in page.topics]
        assert page.matching == MANY + 3
        if not page.has_more:
            break
    assert names == sorted(names)
    assert len(names) == MANY + 3
    assert len(bench.topics().topics) == 50
    some = bench.topics(contains="ANY-00", limit=30)
    assert (len(some.topics), some.matching, some.has_more) == (30, 100, True)
    assert bench.topics(contains="sys").matching == 0
    assert [each.topic.name for each in bench.topics(contains="SYS", include_system=True).topics] == ["rmq_sys_own"]


def test_the_busiest_and_those_with_the_largest_lag_come_first(bench: Bench) -> None:
    busiest = bench.topics(order=pb.FIGURE_ORDER_BUSIEST)
    assert [each.topic.name for each in busiest.topics][:1] == ["orders"]
    assert busiest.matching == MANY + 3
    assert not bench.topics(order=pb.FIGURE_ORDER_BUSIEST, contains="quiet").topics
    assert [each.topic.name for each in bench.topics(order=pb.FIGURE_ORDER_LAG).topics] == ["orders"]
    assert [each.group.name for each in bench.groups(order=pb.FIGURE_ORDER_LAG).groups] == ["billing"]
    assert [each.group.name for each in bench.groups(order=pb.FIGURE_ORDER_BUSIEST).groups] == ["billing"]


def test_what_a_page_does_not_get_to_is_not_known(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = pages_module.Budget
    monkeypatch.setattr(pages_module, "Budget", lambda left=3: budget(min(left, 3)))
    (found,) = bench.topics(contains="orders").topics
    assert not any(found.HasField(each) for each in ("messages", "estimated_bytes", "last_stored_at_ms"))
    audit, billing = found.groups
    assert not any(audit.HasField(each) for each in ("ready", "in_flight", "lag_ms"))
    assert billing.ready == 14, "it is in memory, nothing has to be looked at"


def test_commands(bench: Bench) -> None:
    assert bench.command("overview")[1][0]["sent"] == 20
    assert bench.command("overview", "--all")[1][0]["state"] == "alone"
    status, text = bench.command("overview", as_json=False)
    assert (status, re.search(r"^sent today +-$", text, re.MULTILINE) is not None) == (0, True)
    status, rows = bench.command("history", "ready_messages", "timers")
    assert [(each["name"], each["values"][-1]) for each in rows] == [("ready_messages", 14.0), ("timers", 0.0)]
    status, text = bench.command("history", "ready_messages", as_json=False)
    assert (status, text.splitlines()[1].split()[:3]) == (0, ["ready_messages", "messages", "14"])
    assert bench.command("history", "nothing")[0] != 0
    (topic,) = bench.command("topic", "top", "--contains", "orders", "--order", "name")[1]
    assert (topic["messages"], topic["groups"], topic["readers"][1]["ready"]) == (20, 2, 14)
    assert len(bench.command("topic", "top", "--order", "name", "--limit", "600")[1]) == 600
    (group,) = bench.command("group", "top")[1]
    assert (group["name"], group["ready"], group["deadLetters"]) == ("billing", 14, 1)
    assert "billing" in bench.command("group", "top", as_json=False)[1]


AROUND = HostCommands("quarry serve", "quarry doctor", "ulimit -n 1048576")
STORE = StorePaths(Path("/store"))
COMPARED = "The command compares everything that the broker keeps; what cannot be rebuilt comes from a backup"


def test_what_is_wrong_is_said(bench: Bench) -> None:
    own = bench.broker.broker._sources
    sources = replace(
        own, access=own.access._replace(open_to_everybody={"admin": "0.0.0.0:8082"}, lacks_super=lambda: True)
    )
    clock = sources.components.clock

    class NoLetters:
        def concerns(self) -> Iterator[Concern]:
            return iter(())

    async def told() -> list[Concern]:
        sources.health.sends_refused("the disk is 91 % full")
        for number in range(5):
            with capture_logs():
                sources.components.edge.error_reporter.report(StoreDamaged(Path(f"/store/{number}"), "a bad record"))
        return Concerns(sources, cast(UnsentDeadLetters, NoLetters()), lambda: 2.5, AROUND, STORE).now()

    try:
        found = bench.run(told())
    finally:
        sources.health.sends_refused("")
        sources.components.edge.error_reporter._damage.clear()
    assert [(each.kind, each.severity.value) for each in found] == [
        ("sends-refused", "fault"),
        *[("damage-met", "fault")] * 4,
        ("admin-open", "warning"),
        ("no-super-user", "warning"),
        ("loop-late", "warning"),
    ]
    assert found[0].text == "sends are refused: the disk is 91 % full"
    assert [each.text for each in found[1:5]] == [
        *(f"damaged data was met: store/{number}: a bad record. {COMPARED}" for number in (4, 3, 2)),
        "2 more damaged places: see the broker's log",
    ]
    assert found[5].text.startswith("network.admin = 0.0.0.0:8082 needs no authentication: anybody")
    assert all(each.command.startswith("quarry ") for each in found)
    assert all(each.since_ms is not None and abs(each.since_ms - clock.wall_ms()) < 60_000 for each in found)


def test_damage_names_the_command_that_repairs_its_part_of_the_store(bench: Bench) -> None:
    sources = bench.broker.broker._sources
    damage = {
        "RocksDB 1": EngineCorrupt("a bad block", STORE.consume_queue_rocksdb),
        "RocksDB 2": EngineCorrupt("a bad block beside consumequeue", STORE.pending_messages),
        "RocksDB 3": EngineCorrupt("a bad block beside held_rocksdb", STORE.quarry),
        "RocksDB 4": EngineCorrupt("a bad block of consumequeue_rocksdb"),
        "a file": StoreDamaged(STORE.consume_queue / "orders" / "0" / "00000000000000000000", "has 7 bytes"),
        "a record": StoreDamaged(STORE.commit_log, "the record at 7 is damaged", record_at=7),
    }

    class NoLetters:
        def concerns(self) -> Iterator[Concern]:
            return iter(())

    def command(error: Exception) -> str:
        reporter = sources.components.edge.error_reporter
        with capture_logs():
            reporter.report(error)
        concerns = Concerns(sources, cast(UnsentDeadLetters, NoLetters()), lambda: 0.0, AROUND, STORE)
        try:
            return next(each.command for each in concerns.now() if each.kind == "damage-met")
        finally:
            reporter._damage.clear()
            reporter._logged_s.clear()

    async def commands() -> dict[str, str]:
        return {name: command(error) for name, error in damage.items()}

    assert bench.run(commands()) == {
        "RocksDB 1": "quarry recover STORE --rebuild-queues",
        "RocksDB 2": "mv STORE/held_rocksdb STORE/held_rocksdb.damaged",
        "RocksDB 3": "quarry verification begin --wait",
        "RocksDB 4": "quarry verification begin --wait",
        "a file": "quarry recover STORE --rebuild-queues",
        "a record": "quarry recover STORE --replace-damaged --dry-run",
    }


def test_a_check_of_the_log_that_does_not_go_on_is_a_concern(bench: Bench) -> None:
    sources = bench.broker.broker._sources
    sweeps = sources.maintenance.verification.sweeps

    class NoLetters:
        def concerns(self) -> Iterator[Concern]:
            return iter(())

    async def texts() -> list[str]:
        with capture_logs():
            concerns = Concerns(sources, cast(UnsentDeadLetters, NoLetters()), lambda: 0.0, AROUND, STORE).now()
        return [each.text for each in concerns if each.kind == "log-check-held-up"]

    assert bench.run(texts()) == []
    sweeps._errors.is_new(OSError("Too many open files"))
    assert bench.run(texts()) == ["the check of the log is held up: Too many open files"]
    sweeps._errors.clear()


class Statuses:
    """A primary with copies that are how the test says."""

    def __init__(self) -> None:
        self.copies: list[ReplicaStatus] = []

    def statuses(self) -> list[ReplicaStatus]:
        return self.copies


def test_a_copy_that_is_away_or_lags_is_a_concern(bench: Bench) -> None:
    sources, primary, clock = bench.broker.broker._sources, Statuses(), ManualClock()
    copies = WatchedCopies(cast(Primary, primary), "a", ["b", "c"], clock)

    class NoLetters:
        def concerns(self) -> Iterator[Concern]:
            return iter(())

    async def found(*statuses: ReplicaStatus) -> list[tuple[str, str]]:
        primary.copies = [*statuses]
        unsent = cast(UnsentDeadLetters, NoLetters())
        concerns = Concerns(sources, unsent, lambda: 0.0, AROUND, STORE, copies=copies).now()
        return [(each.kind, each.text) for each in concerns if each.kind.startswith("replica-")]

    b, c, stranger = (ReplicaStatus(name=each) for each in ("b", "c", "old"))
    follows = replace(b, is_connected=True, lag_s=9.0)
    assert bench.run(found(follows, c, stranger)) == []
    clock.advance(59)
    assert bench.run(found(follows, c, stranger)) == []
    clock.advance(2)
    ((kind, text),) = bench.run(found(follows, c, stranger))
    assert (kind, text.startswith("copy c of the store is not connected")) == ("replica-away", True)
    late = replace(follows, lag_s=11.0, lag_bytes=70_000, lag_changes=3)
    seeding = replace(c, is_connected=True, is_seeding=True, lag_s=75.0, lag_bytes=1 << 30)
    (_, slow), (_, seeded) = bench.run(found(late, seeding))
    assert slow == (
        "copy b of the store is 11 s, 70,000 bytes and 3 changes behind: they are lost if this machine is lost now"
    )
    assert seeded.startswith("copy c of the store is being seeded, and 1 min 15 s, 1,073,741,824 bytes and 0 changes")
    assert bench.run(found(follows, c)) == []  # it was there meanwhile


def test_denied_calls_name_what_helps(bench: Bench) -> None:
    own = bench.broker.broker._sources

    def user(name: str, secrets: int, *, enabled: bool = True) -> SealedUser:
        return SealedUser(
            name=name,
            kind=UserKind.NORMAL,
            enabled=enabled,
            secrets=tuple(SealedSecret(number, b"", 0) for number in range(1, secrets + 1)),
            certificates=(),
            created_at_ms=0,
            next_secret_number=3,
        )

    users = {each.name: each for each in (user("orders", 1), user("full", 2), user("off", 1, enabled=False))}

    def told(denial: Denial, user: str) -> tuple[str, str]:
        caller = DeniedCaller(denial, "messaging", user, "192.0.2.7", 3, "the reason", 0.0, 0.0)
        access = own.access._replace(denied=lambda: [caller], user=users.get)
        [found] = _denied(replace(own, access=access))
        assert found.text.startswith("3 calls from 192.0.2.7 to the messaging port were denied. ")
        return found.text, found.command

    assert told(Denial.WRONG_SECRET, "orders")[1] == "quarry user add-secret orders"
    assert told(Denial.WRONG_SECRET, "full")[1] == "quarry user show full"
    assert told(Denial.WRONG_SECRET, "off") == (
        "3 calls from 192.0.2.7 to the messaging port were denied. User off is disabled",
        "quarry user show off",
    )
    text, command = told(Denial.WRONG_SECRET, "nobody")
    assert ("There is no user nobody." in text, command) == (True, "quarry user list")
    text, command = told(Denial.WRONG_SECRET, "x; rm -rf /")
    assert ("rm" in text, command) == (False, "quarry user list")
    assert told(Denial.WRONG_CLOCK, "")[1] == "timedatectl set-ntp true"
    assert told(Denial.NO_CREDENTIALS, "")[1] == "quarry user list"
    text, command = told(Denial.NO_RIGHT, "orders")
    assert ("the reason" in text, command) == (True, "quarry acl show orders")
    assert told(Denial.OTHER, "orders")[1] == "quarry user show orders"


def test_a_concern_says_since_when(bench: Bench) -> None:
    health = bench.broker.broker._sources.health
    health.sends_refused("the disk is 91 % full")
    try:
        first = bench.call("GetOverview", pb.GetOverviewRequest()).concern_details
        bench.run(asyncio.sleep(0.05))
        again = bench.call("GetOverview", pb.GetOverviewRequest()).concern_details
    finally:
        health.sends_refused("")
    assert first[0].kind == "sends-refused"
    assert [each.since_ms for each in again] == [each.since_ms for each in first]
    assert "sends-refused" not in [
        each.kind for each in bench.call("GetOverview", pb.GetOverviewRequest()).concern_details
    ]
