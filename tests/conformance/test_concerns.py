"""The broker and all that show concerns name the same command for a concern, and the command ends the concern."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub
from tests.conformance.broker import PATIENCE_S, RunningBroker, run, running_broker, until
from tests.conformance.client import Client, consumer_settings, message, producer_settings
from tests.conformance.test_order import dead_letter
from tests.e2e.broker import environment_of

LIMIT_MS: Final = 300
SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "metrics": {"lag_interval_ms": 100, "lag_limit_ms": LIMIT_MS},
    "delivery": {"new_group_start": "earliest", "polling_min_ms": 0, "invisible_time_min_ms": 100},
}


class Ward:
    """A running broker, and those who ask how it is."""

    def __init__(self, broker: RunningBroker, directory: Path, channel: grpc.aio.Channel) -> None:
        self.broker = broker
        self.store = directory / "store"
        self._service = OverviewServiceStub(channel)

    async def concerns(self) -> list[pb.Concern]:
        return list((await self._service.GetOverview(pb.GetOverviewRequest())).concern_details)

    async def until(self, is_so: Callable[[dict[str, pb.Concern]], bool]) -> dict[str, pb.Concern]:
        """The first of each kind, once they are as they have to become."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.concerns()
                by_kind = {each.kind: each for each in reversed(found)}
                if is_so(by_kind):
                    return by_kind
                await asyncio.sleep(0.05)

    async def command(self, *words: str, status: int = 0) -> str:
        def invoke() -> str:
            settings = {
                "store.directory": self.store,
                "network.admin": self.broker.admin,
                "network.listen": self.broker.endpoint,
                "expiry.refuse_percent": 100,
                "expiry.force_percent": 99,
                "expiry.clean_percent": 98,
            }
            result = CliRunner().invoke(app, [*words], env=environment_of(settings))
            assert result.exit_code == status, result.output
            return result.stdout

        with capture_logs():
            return await asyncio.to_thread(invoke)

    async def cure(self, concern: pb.Concern) -> None:
        """Run the command that the concern names."""
        program, *words = shlex.split(concern.command)
        assert program == "quarry"
        yes = ["--yes"] if words[:2] in (["group", "forget"], ["group", "reset-offset"]) else []
        await self.command(*words, *yes, "--admin", self.broker.admin)


@asynccontextmanager
async def ward(directory: Path) -> AsyncIterator[Ward]:
    with pytest.MonkeyPatch.context() as patch:
        async with (
            running_broker(directory, patch, **SETTINGS) as broker,
            grpc.aio.insecure_channel(broker.admin) as channel,
        ):
            broker.broker._sources.health.ready()
            yield Ward(broker, directory, channel)


def test_groups_that_are_stuck(tmp_path: Path) -> None:
    run(_groups_that_are_stuck(tmp_path))


async def _groups_that_are_stuck(directory: Path) -> None:
    async with ward(directory) as at, Client(at.broker.endpoint) as client, Client(at.broker.endpoint) as producer:
        at.broker.topic("orders", queues=2)
        for group in ("away", "idle"):
            at.broker.group(group)
        await client.declare(consumer_settings("away", "orders", kind=definition.PUSH_CONSUMER))
        await client.receive("away", "orders", count=1, polling_s=0)
        await client.declare(consumer_settings("idle", "orders", kind=definition.PUSH_CONSUMER))
        await producer.declare(producer_settings("orders"))
        for _ in range(5):
            await producer.sent(message("orders", b"x"))
        received = await client.receive("idle", "orders", count=2, polling_s=2)

        found = await at.until(lambda kinds: {"group-without-consumer", "group-acknowledges-nothing"} <= kinds.keys())
        away, idle = found["group-without-consumer"], found["group-acknowledges-nothing"]
        assert away.text.startswith("group away has no consumer in topic orders: 5 messages wait, the oldest for ")
        assert (away.severity, away.page) == (pb.CONCERN_SEVERITY_WARNING, "groups/away")
        assert away.command == "quarry group forget away --topic orders"
        assert idle.text.startswith("group idle has acknowledged nothing of topic orders for ")
        assert (idle.page, idle.command) == ("groups/idle", "quarry group consumers idle")
        assert at.broker.clock.wall_ms() - 60_000 < away.since_ms <= at.broker.clock.wall_ms() - LIMIT_MS

        await the_same_everywhere(at, {"group-without-consumer", "group-acknowledges-nothing"})
        await at.cure(away)
        await client.ack("idle", "orders", *received.handles)
        await at.until(lambda kinds: "group-without-consumer" not in kinds)


async def the_same_everywhere(at: Ward, kinds: set[str]) -> None:
    """Console, `overview`, `top`, `doctor` and metrics tell the concerns that the broker tells."""
    texts = {each.text.partition(":")[0].partition(" for ")[0] for each in await at.concerns() if each.kind in kinds}
    assert len(texts) >= len(kinds)
    printed = await at.command("overview", "--admin", at.broker.admin)
    fields = json.loads(await at.command("overview", "--json", "--admin", at.broker.admin))
    screen = " ".join((await at.command("top", "--once", "--admin", at.broker.admin)).split())
    doctor = await at.command("doctor", "--json", status=1 if "queue-blocked" in kinds else 0)
    findings = [json.loads(line) for line in doctor.splitlines()]
    told = [each for each in findings if each["check"] == "concerns"]
    for text in texts:
        assert text in printed
        assert any(text in each["text"] for each in fields["concernDetails"])
        assert any(text in each["seen"] for each in told), told
    assert any(text in screen for text in texts)
    assert all(each["advice"] for each in told)
    async with asyncio.timeout(PATIENCE_S):
        while not kinds <= (values := counted(at)).keys():
            await asyncio.sleep(0.05)  # they are counted by sweeps
    assert all(values.values())


def counted(at: Ward) -> dict[str, float]:
    """Return the metric `quarry_concerns` by kind."""
    return {
        each.labels["kind"]: each.value
        for metric in at.broker.registry.collect()
        for each in metric.samples
        if each.name == "quarry_concerns"
    }


def test_dead_letters_stay_a_concern_until_they_are_sent_again(tmp_path: Path) -> None:
    run(_dead_letters_stay_a_concern_until_they_are_sent_again(tmp_path))


async def _dead_letters_stay_a_concern_until_they_are_sent_again(directory: Path) -> None:
    async with ward(directory) as at, Client(at.broker.endpoint) as client, Client(at.broker.endpoint) as producer:
        at.broker.topic("orders", queues=1)
        at.broker.group("billing")
        await client.declare(consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER))
        await producer.declare(producer_settings("orders"))
        await producer.sent(message("orders", b"x"), message("orders", b"y"))
        handles = (await client.receive("billing", "orders", count=2, polling_s=2)).handles
        for handle in handles:
            await dead_letter(client, "billing", "orders", handle)

        text = "group billing has 2 dead letters that nobody sent again. Fix the consumer first"
        found = await at.until(lambda kinds: "dead-letters" in kinds and kinds["dead-letters"].text == text)
        await the_same_everywhere(at, {"dead-letters"})
        await at.cure(found["dead-letters"])
        await at.until(lambda kinds: "dead-letters" not in kinds)


def test_a_damaged_record_that_holds_up_a_queue(tmp_path: Path) -> None:
    run(_a_damaged_record_that_holds_up_a_queue(tmp_path))


async def _a_damaged_record_that_holds_up_a_queue(directory: Path) -> None:
    async with ward(directory) as at, Client(at.broker.endpoint) as client, Client(at.broker.endpoint) as producer:
        at.broker.topic("orders", queues=1)
        at.broker.group("billing")
        await client.declare(consumer_settings("billing", "orders", kind=definition.PUSH_CONSUMER))
        await producer.declare(producer_settings("orders"))
        for body in (b"first", b"to be damaged", b"third"):
            await producer.sent(message("orders", body))
        flip(at.store / "commitlog", b"to be damaged")
        with capture_logs() as logged:
            first = await client.receive("billing", "orders", count=1, polling_s=2)
            await client.ack("billing", "orders", *first.handles)
            await client.receive("billing", "orders", count=1, polling_s=2)

        [line] = [each for each in logged if each["event"] == "damaged data"]
        assert line["error"].endswith("quarry group reset-offset billing --topic orders --queue 0 --to 2")
        found = await at.until(lambda kinds: {"queue-blocked", "damage-met"} <= kinds.keys())
        blocked = found["queue-blocked"]
        assert blocked.severity == found["damage-met"].severity == pb.CONCERN_SEVERITY_FAULT
        assert "cannot go on in queue 0 of topic orders: the record of its message 1 is damaged" in blocked.text
        assert blocked.command == "quarry group reset-offset billing --topic orders --queue 0 --to 2"
        await the_same_everywhere(at, {"queue-blocked", "damage-met"})
        await at.cure(blocked)
        left = await at.until(lambda kinds: "queue-blocked" not in kinds)
        assert "damage-met" in left, "the record is damaged still"
        assert "Groups go on behind a damaged message with `quarry group reset-offset`" in left["damage-met"].text
        third = await client.receive("billing", "orders", count=1, polling_s=2)
        assert [each.body for each in third.messages] == [b"third"]
        flip(at.store / "commitlog", bytes([b"t"[0] ^ 1]) + b"o be damaged")
        await at.until(lambda kinds: "damage-met" not in kinds)


def flip(log: Path, content: bytes) -> None:
    segment = next(each for each in sorted(log.iterdir()) if content in each.read_bytes())
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(content))
        file.write(bytes([content[0] ^ 1]))


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    run(_a_clock_that_was_set_back(tmp_path))


async def _a_clock_that_was_set_back(directory: Path) -> None:
    async with ward(directory) as at, Client(at.broker.endpoint) as producer:
        at.broker.topic("orders", queues=1)
        await producer.declare(producer_settings("orders"))
        await producer.sent(message("orders", b"x"))
        with capture_logs() as logged:

            def told() -> list[Any]:
                return [each for each in logged if each.get("kind") == "clock-behind-log"]

            at.broker.clock.jump(-3_600)
            found = await at.until(lambda kinds: "clock-behind-log" in kinds)
            assert found["clock-behind-log"].text.startswith("the clock is ")
            assert found["clock-behind-log"].command == "timedatectl set-ntp true"
            await until(lambda: len(told()) == 1, "a sweep logs that it has begun")
            at.broker.clock.jump(3_600)
            await until(lambda: len(told()) == 2, "a sweep logs that it has ended")
            assert "clock-behind-log" not in await at.until(lambda _: True)
        begin, end = told()
        assert [begin["event"], end["event"]] == ["a concern", "a concern has ended"]
        assert begin["text"].startswith("the clock is ")
        assert (begin["command"], begin["severity"]) == ("timedatectl set-ntp true", "fault")
