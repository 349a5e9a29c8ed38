"""A running broker whose object store is in trouble: it serves, tells what is missing, and catches up by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Final

import grpc.aio
import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.store.index.tiered.object_store import cloud
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage, decode_record
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker
from tests.object_store.faulty_proxy import FaultyProxy, Trouble, proxy_before
from tests.object_store.server import S3Server, options

PER_FILE: Final = 15
"""Messages: each has two keys, its id and `all`."""
TIERED: Final = {"tiered": True, "tiered_slots": 7, "tiered_items": 2 * PER_FILE, "keep_uploaded": False}
PATIENCE: Final = timedelta(seconds=1)
SLOW_S: Final = 2.0
LATENCY_MAX_S: Final = 1.0
"""Of a send. What waits for the object store takes longer, in those troubles that take time at all."""
ANSWER_MAX_S: Final = 6.0
"""Of a query: two reads for each of the files, all of them beside each other, and two retries."""


@contextmanager
def having(proxy: FaultyProxy, trouble: Trouble) -> Iterator[None]:
    proxy.trouble = trouble
    yield
    proxy.trouble = Trouble()


@contextmanager
def down(proxy: FaultyProxy) -> Iterator[None]:
    proxy.down()
    yield
    proxy.up()


TROUBLES: Final[dict[str, Callable[[FaultyProxy], AbstractContextManager[None]]]] = {
    "down": down,
    "silent": lambda proxy: having(proxy, Trouble(delay_s=60)),
    "500": lambda proxy: having(proxy, Trouble(status=500)),
    "503": lambda proxy: having(proxy, Trouble(status=503)),
    "truncated bodies": lambda proxy: having(proxy, Trouble(body="cut")),
}
"""In which files cannot be read. Other bytes are another thing: then they are damaged."""


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    for name in ("SAVE_INTERVAL_S", "MOVE_INTERVAL_S", "RETRY_INTERVAL_S"):
        monkeypatch.setattr(f"quarry_mq.server.maintenance.key_index.{name}", 0.05)
    with proxy_before(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def index(s3_server: S3Server, proxy: FaultyProxy) -> dict[str, object]:
    """Settings."""
    return {**TIERED, "upload_to": f"s3://{s3_server.new_bucket()}/index", "upload_options": options(proxy.port)}


class Observed:
    """A broker, and what this test has sent to it."""

    def __init__(self, broker: RunningBroker, directory: Path, sent: int = 0) -> None:
        self._broker = broker
        self._folder = directory / "store" / "key_index"
        self.sent = sent
        tiered = broker.store.messages.indexes.tiered
        assert tiered is not None
        self.tiered: TieredIndex = tiered

    async def send(self, client: Client, count: int) -> float:
        """Seconds that the slowest took."""
        slowest_s = 0.0
        for number in range(self.sent, self.sent + count):
            begun_s = monotonic()
            await client.sent(message("orders", b"%d" % number, keys=["all"], message_id=f"M{number}"))
            slowest_s = max(slowest_s, monotonic() - begun_s)
        self.sent += count
        return slowest_s

    async def ask(self) -> tuple[list[int], dict[str, str]]:
        """Numbers of the messages that are found, and the reasons of the files that could not be read."""
        async with grpc.aio.insecure_channel(self._broker.admin) as channel:
            request = pb.QueryMessagesRequest(topic="orders", key="all", limit=1_000)
            answer = await QueryServiceStub(channel).QueryMessages(request)
        found = []
        for each in answer.messages:
            record = decode_record(memoryview(each.record), 0, PhysicalOffset(each.physical_offset), check_crc=True)
            assert isinstance(record, StoredMessage)
            found.append(int(record.body))
        return found, {each.name: each.reason for each in answer.unread}

    async def all_found(self) -> None:
        """With a store that does well. The patience is so short here that a busy machine may exceed it once."""
        answer = await self.ask()
        if answer[1]:
            answer = await self.ask()
        assert answer == (self.newest(self.sent), {})

    @property
    def full(self) -> list[str]:
        """Names of the files that are full, the oldest first."""
        return [f"{number:020d}" for number in range(1, self.sent // PER_FILE + 1)]

    def names(self, stage: str) -> list[str]:
        return sorted(path.name for path in (self._folder / stage).iterdir()) if (self._folder / stage).exists() else []

    @property
    def failed_uploads(self) -> float:
        """Counted by the broker."""
        failures = self._broker.broker._metrics.index._failures
        [metric] = failures.collect()
        return sum(
            each.value for each in metric.samples if each.labels["step"] == "upload" and each.name.endswith("_total")
        )

    async def all_uploaded(self, names: Sequence[str] = ()) -> None:
        """Those that are full, if no others are said."""
        wanted = list(names) or self.full
        await until(lambda: self.names("uploaded") == wanted, "full files are uploaded")
        await until(lambda: self.names("compacted") == self.names("sealed") == [], "and are not here any more")
        assert [each.is_local for each in self.tiered.files if each.name in wanted] == [False] * len(wanted)

    def newest(self, count: int) -> list[int]:
        """Numbers of messages, as an answer has them."""
        return list(range(self.sent - 1, self.sent - count - 1, -1))


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble(
    with_broker: WithBroker,
    tmp_path: Path,
    proxy: FaultyProxy,
    index: dict[str, object],
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cloud, "SEARCH_PATIENCE", PATIENCE)
    monkeypatch.setattr(cloud, "UPLOAD_PATIENCE", PATIENCE)
    monkeypatch.setattr(cloud, "RETRY_TIME", PATIENCE / 2)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        observed = Observed(broker, tmp_path)
        async with Client(broker.endpoint) as client:
            await observed.send(client, 3 * PER_FILE + 5)
            await observed.all_uploaded()
            far = observed.full
            assert len(far) == 3
            await observed.all_found()
            with TROUBLES[trouble](proxy):
                asking = asyncio.create_task(observed.ask())
                assert await observed.send(client, 3 * PER_FILE) < LATENCY_MAX_S
                await asking
                near = observed.full[3:]
                assert len(near) == 3
                await until(lambda: observed.names("compacted") == near, "full files wait here")
                failed = observed.failed_uploads
                await until(lambda: observed.failed_uploads >= failed + 2, "uploads are tried again")
                assert await observed.send(client, 3) < LATENCY_MAX_S
                begun_s = monotonic()
                found, unread = await observed.ask()
                assert monotonic() - begun_s < ANSWER_MAX_S
                assert found == observed.newest(observed.sent - 3 * PER_FILE)
                assert sorted(unread) == far
                assert [name for name, reason in unread.items() if name not in reason] == []
                assert observed.names("compacted") == near
                assert observed.names("uploaded") == far
            await observed.all_uploaded()
            await observed.all_found()

    with_broker(test, index=index)


def test_files_of_which_a_store_gives_other_bytes_are_made_again_and_stay_here(
    with_broker: WithBroker, tmp_path: Path, proxy: FaultyProxy, index: dict[str, object]
) -> None:
    """A file of a name may hold afterwards what several did."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        observed = Observed(broker, tmp_path)
        async with Client(broker.endpoint) as client:
            await observed.send(client, 3 * PER_FILE + 5)
            await observed.all_uploaded()
            far = observed.full
            with having(proxy, Trouble(body="other")):
                found, unread = await observed.ask()
                assert set(observed.newest(5)) <= set(found) <= set(observed.newest(observed.sent))
                assert set(unread) <= set(far)
                assert len(found) == observed.sent or unread
                assert await observed.send(client, 3 * PER_FILE) < LATENCY_MAX_S
                await until(lambda: not observed.names("uploaded") and not observed.tiered.damaged, "all are made anew")
                await until(lambda: set(observed.full[3:]) < set(observed.names("compacted")), "and wait here")
                failed = observed.failed_uploads
                await until(lambda: observed.failed_uploads >= failed + 2, "uploads are tried again")
                assert await observed.ask() == (observed.newest(observed.sent), {})
                here = observed.names("compacted")
                assert set(here) <= set(observed.full)
                assert observed.names("uploaded") == []
            await observed.all_uploaded(here)
            assert await observed.ask() == (observed.newest(observed.sent), {})

    with_broker(test, index=index)


def test_a_slow_store_keeps_nobody_but_who_asks_it(
    with_broker: WithBroker, tmp_path: Path, proxy: FaultyProxy, index: dict[str, object]
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        observed = Observed(broker, tmp_path)
        async with Client(broker.endpoint) as client:
            await observed.send(client, 2 * PER_FILE + 5)
            await observed.all_uploaded()
            there = observed.newest(observed.sent)
            proxy.trouble = Trouble(delay_s=SLOW_S)
            begun_s = monotonic()
            asking = asyncio.create_task(observed.ask())
            assert await observed.send(client, PER_FILE) < LATENCY_MAX_S
            found, unread = await asking
            assert monotonic() - begun_s > 2 * SLOW_S
            assert unread == {}
            assert found[-len(there) :] == there, "later is not never"
            await observed.all_uploaded()
            assert observed.failed_uploads == 0

    with_broker(test, index=index)


def test_a_broker_starts_while_the_store_is_down(
    with_broker: WithBroker, tmp_path: Path, proxy: FaultyProxy, index: dict[str, object]
) -> None:
    sent = 2 * PER_FILE + 5

    async def before(broker: RunningBroker) -> None:
        broker.topic("orders")
        observed = Observed(broker, tmp_path)
        async with Client(broker.endpoint) as client:
            await observed.send(client, sent)
        await observed.all_uploaded()

    async def meanwhile(broker: RunningBroker) -> None:
        observed = Observed(broker, tmp_path, sent)
        async with Client(broker.endpoint) as client:
            assert await observed.send(client, 1) < LATENCY_MAX_S
        found, unread = await observed.ask()
        assert found == observed.newest(6)
        assert sorted(unread) == observed.full

    async def after(broker: RunningBroker) -> None:
        observed = Observed(broker, tmp_path, sent + 1)
        assert await observed.ask() == (observed.newest(sent + 1), {})

    with_broker(before, index=index)
    with down(proxy):
        with_broker(meanwhile, index=index)
    with_broker(after, index=index)


def test_an_object_that_is_gone_is_missed_and_made_again(
    with_broker: WithBroker, tmp_path: Path, proxy: FaultyProxy, index: dict[str, object]
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        observed = Observed(broker, tmp_path)
        async with Client(broker.endpoint) as client:
            await observed.send(client, 2 * PER_FILE + 5)
        await observed.all_uploaded()
        newer = observed.tiered.files[1]
        cloud.CloudObjects.at(str(index["upload_to"]), options(proxy.port)).remove(newer.object_name)
        found, unread = await observed.ask()
        assert found == [*range(34, 29, -1), *range(14, -1, -1)]
        assert "not found" in unread.pop(newer.name)
        assert unread == {}
        await until(lambda: observed.tiered.rebuilt == 1, "it is made anew")
        assert await observed.ask() == (observed.newest(observed.sent), {})
        await observed.all_uploaded()
        assert await observed.ask() == (observed.newest(observed.sent), {})

    with_broker(test, index=index)
