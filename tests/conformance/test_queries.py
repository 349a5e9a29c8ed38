"""Messages by their keys: asked of a running broker through its admin port."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.query_pb2_grpc import QueryServiceStub
from quarry_mq.store.index import IndexState, Unread
from quarry_mq.store.index.key_files import Answer
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.record import StoredMessage, decode_record
from tests.conformance.broker import RunningBroker, until
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker

INDEX = {"hash_files": True, "hash_slots": 7, "hash_items": 30}
TIERED = {"tiered": True, "tiered_slots": 7, "tiered_items": 30, "keep_uploaded": False}


def stub_of(broker: RunningBroker) -> QueryServiceStub:
    return QueryServiceStub(grpc.aio.insecure_channel(broker.admin))


async def query(broker: RunningBroker, **fields: object) -> list[bytes]:
    """The bodies of what is found."""
    answer = await stub_of(broker).QueryMessages(pb.QueryMessagesRequest(**fields))  # type: ignore[arg-type]
    assert answer.indexed_offset == answer.dispatched_offset
    bodies = []
    for each in answer.messages:
        record = decode_record(memoryview(each.record), 0, PhysicalOffset(each.physical_offset), check_crc=True)
        assert isinstance(record, StoredMessage)
        bodies.append(bytes(record.body))
    return bodies


@pytest.mark.parametrize("index", [INDEX, TIERED, {**INDEX, **TIERED}], ids=["hash files", "tiered", "both"])
def test_a_message_is_found_as_soon_as_its_send_is_answered(with_broker: WithBroker, index: dict[str, object]) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=2)
        async with Client(broker.endpoint) as client:
            for number in range(50):
                keys = ["all", f"k{number}"]
                await client.sent(message("orders", b"%d" % number, keys=keys, message_id=f"M{number}"))
                assert await query(broker, topic="orders", key=f"k{number}") == [b"%d" % number]
        assert await query(broker, topic="orders", key="all", limit=3) == [b"49", b"48", b"47"]
        assert len(await query(broker, topic="orders", key="all")) == 32
        assert await query(broker, topic="orders", key="M7") == [b"7"]
        assert await query(broker, topic="bills", key="all") == []
        last_ms = broker.store.messages.last_stored_ms
        assert await query(broker, topic="orders", key="M7", from_ms=last_ms + 1) == []
        assert await query(broker, topic="orders", key="M7", to_ms=last_ms) == [b"7"]

    with_broker(test, index=index)


def test_files_go_through_their_stages_by_themselves(
    with_broker: WithBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.SAVE_INTERVAL_S", 0.05)
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.MOVE_INTERVAL_S", 0.05)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for number in range(60):
                await client.sent(message("orders", b"%d" % number, keys=["all"], message_id=f"M{number}"))
        tiered = broker.store.messages.indexes.tiered
        assert tiered is not None
        await until(lambda: len(list((tmp_path / "objects").glob("*"))) == 3, "full files are uploaded")
        await until(lambda: [each.is_local for each in tiered.files] == [False] * 3 + [True], "and not kept here")
        assert await query(broker, topic="orders", key="all", limit=100) == [
            b"%d" % number for number in range(59, -1, -1)
        ]
        assert await query(broker, topic="orders", key="M3") == [b"3"]

    with_broker(test, index={**TIERED, "upload_to": str(tmp_path / "objects")})


def test_what_nobody_asks_for_is_written_and_saved_by_itself(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.SAVE_INTERVAL_S", 0.1)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"a", keys=["k"]))
        messages = broker.store.messages
        [index] = messages.indexes.followers
        end = messages.dispatched_up_to
        assert end > 0
        await until(lambda: index.written_up_to == end, "its keys are written")

        def is_saved() -> bool:
            row = broker.store.identity.index_row("hash_index")
            return row is not None and IndexState.unpack(row).up_to == end

        await until(is_saved, "and saved")

    with_broker(test, index=INDEX)


@pytest.mark.parametrize(
    ("index", "fields", "code", "words"),
    [
        ({}, {"topic": "orders", "key": "k"}, grpc.StatusCode.FAILED_PRECONDITION, "index.hash_files"),
        (INDEX, {"topic": "orders"}, grpc.StatusCode.INVALID_ARGUMENT, "topic and key"),
        (INDEX, {"topic": "orders", "key": "k", "limit": 1_001}, grpc.StatusCode.INVALID_ARGUMENT, "limit 1001"),
        (INDEX, {"topic": "orders", "key": "k", "limit": -1}, grpc.StatusCode.INVALID_ARGUMENT, "limit -1"),
    ],
)
def test_refusals(
    with_broker: WithBroker, index: dict[str, object], fields: dict[str, object], code: grpc.StatusCode, words: str
) -> None:
    async def test(broker: RunningBroker) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
            await query(broker, **fields)
        assert refused.value.code() is code

    with_broker(test, index=index)


async def known(broker: RunningBroker, *ids: str, topic: str = "orders", from_ms: int = 0) -> list[str]:
    answer = await stub_of(broker).QueryIds(pb.QueryIdsRequest(topic=topic, ids=ids, from_ms=from_ms))
    return list(answer.ids)


@pytest.mark.parametrize("index", [INDEX, TIERED], ids=["hash files", "tiered"])
def test_ids_are_known_as_soon_as_their_sends_are_answered(with_broker: WithBroker, index: dict[str, object]) -> None:
    async def test(broker: RunningBroker) -> None:
        for topic in ("orders", "bills"):
            broker.topic(topic, TopicType.MIXED)
        due = Timestamp()
        due.FromMilliseconds(SystemClock().wall_ms() + 3_600_000)
        async with Client(broker.endpoint) as client:
            for number in range(100):
                await client.sent(message("orders", keys=["M7", f"k{number}"], message_id=f"M{number}"))
                assert await known(broker, f"M{number}", f"M{number + 1}") == [f"M{number}"]
            for topic in ("orders", "bills"):
                late = message(topic, message_id=f"late-{topic}", delivery_timestamp=due, message_type=definition.DELAY)
                await client.sent(late)
        everything = [f"M{number}" for number in range(100)]
        assert await known(broker, "k3", *everything, "another") == everything, "keys are no ids"
        assert await known(broker, "late-orders", "late-bills") == ["late-orders"], (
            "a delayed message has its id already"
        )
        assert await known(broker, "M7", topic="bills") == []
        assert await known(broker) == []
        last_ms = broker.store.messages.last_stored_ms
        assert await known(broker, "M99", "late-orders", from_ms=last_ms + 1) == []

    with_broker(test, index=index)


def test_ids_are_not_told_while_some_may_be_missing(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.server.admin_port.messages.queries.VISIBLE_TIMEOUT_S", 0.05)

    async def refusal(broker: RunningBroker) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await known(broker, "M0")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        return str(refused.value.details())

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", message_id="M0"))
        [index] = broker.store.messages.indexes.followers
        with monkeypatch.context() as lagging:
            lagging.setattr(index, "step", lambda: False)
            lagging.setattr(index, "_written_up_to", PhysicalOffset(0))
            assert "the key index has got to offset 0 of the log" in await refusal(broker)
        with monkeypatch.context() as storing:
            storing.setattr(broker.store.messages, "_dispatched_up_to", PhysicalOffset(0))
            assert "not visible after 0.05 s" in await refusal(broker)
        with monkeypatch.context() as damaged:
            unread = Answer[StoredMessage](unread=[Unread("0001", "it is damaged")])
            damaged.setattr(index, "_search", lambda *_: unread)
            assert "a file of the key index cannot be read: 0001" in await refusal(broker)
        assert await known(broker, "M0") == ["M0"]

    with_broker(test, index=TIERED)


async def command(*arguments: str, of: str = "query") -> tuple[int | None, list[dict[str, object]], str]:
    """`quarry query`, or another: its exit code, what it found, its words."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quarry_mq.cli.main", of, *arguments, "--json", stdout=PIPE, stderr=PIPE
    )
    stdout, stderr = await process.communicate()
    return process.returncode, [json.loads(line) for line in stdout.splitlines()], stderr.decode()


def test_the_command(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders", b"body", keys=["k"], message_id="M"))
        where = ("--admin", broker.admin, "--topic", "orders")
        status, [found], _ = await command(*where, "--key", "k")
        assert status == 0
        assert (found["topic"], found["bodyLength"]) == ("orders", 4)
        assert await command(*where, "--key", "other") == (1, [], "")
        status, _, words = await command("--topic", "orders", "--key", "k")
        assert status == 2
        assert "STORE or --admin" in words

    with_broker(test, index=INDEX)


def test_an_answer_names_the_files_that_could_not_be_read(
    with_broker: WithBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.SAVE_INTERVAL_S", 0.05)
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.MOVE_INTERVAL_S", 0.05)
    objects = tmp_path / "objects"

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for number in range(40):
                await client.sent(message("orders", b"%d" % number, keys=["all"], message_id=f"M{number}"))
        tiered = broker.store.messages.indexes.tiered
        assert tiered is not None
        await until(lambda: [each.is_local for each in tiered.files] == [False, False, True], "full files are uploaded")
        oldest, newer, _ = (each.name for each in tiered.files)
        (objects / tiered.files[1].object_name).unlink()
        request = pb.QueryMessagesRequest(topic="orders", key="all", limit=100)
        answer = await stub_of(broker).QueryMessages(request)
        assert [each.name for each in answer.unread] == [newer]
        assert newer in answer.unread[0].reason
        assert 0 < len(answer.messages) < 40
        (objects / tiered.files[0].object_name).unlink()
        status, found, words = await command("--admin", broker.admin, "--topic", "orders", "--key", "all")
        assert status == 0
        assert len(found) == len(answer.messages) - 15
        assert sorted(line.split(" could not be read")[0] for line in words.splitlines()) == [
            f"{broker.admin}: messages may be missing, {name}" for name in (oldest, newer)
        ]

    with_broker(test, index={**TIERED, "upload_to": str(objects)})


@pytest.mark.parametrize("stage", ["sealed", "compacted"])
def test_a_damaged_file_is_made_again_while_the_broker_serves(
    with_broker: WithBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.SAVE_INTERVAL_S", 0.05)
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.MOVE_INTERVAL_S", 0.05)
    if stage == "sealed":
        monkeypatch.setattr("quarry_mq.store.index.tiered.tiered_index.TieredIndex.compact_one", lambda _: False)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for number in range(80):
                await client.sent(message("orders", b"%d" % number, keys=["all"], message_id=f"M{number}"))
        tiered = broker.store.messages.indexes.tiered
        assert tiered is not None
        await until(
            lambda: [each.stage.value for each in tiered.files] == [stage] * 5 + ["filling"], f"full files are {stage}"
        )
        [path] = tmp_path.rglob(f"key_index/{stage}/{tiered.files[2].name}")
        with path.open("r+b") as file:
            for position in (20, path.stat().st_size - 5):
                file.seek(position)
                [byte] = file.read(1)
                file.seek(position)
                file.write(bytes([byte ^ 1]))
        request = pb.QueryMessagesRequest(topic="orders", key="all", limit=100)
        unread = [each.name for each in (await stub_of(broker).QueryMessages(request)).unread]
        assert unread == [path.name], "whoever comes upon it is told"
        await until(lambda: tiered.rebuilt == 1, "it is made anew")
        assert tiered.damaged == []
        newest_first = [b"%d" % number for number in range(79, -1, -1)]
        assert await query(broker, topic="orders", key="all", limit=100) == newest_first
        for each in tiered.files[:-1]:
            tiered.check(each.name)

    with_broker(test, index=TIERED)


@pytest.mark.slow
def test_the_commands_of_files(with_broker: WithBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the broker does by itself now and then is done when it is asked for."""
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.SAVE_INTERVAL_S", 0.05)
    monkeypatch.setattr("quarry_mq.server.maintenance.key_index.MOVE_INTERVAL_S", 3600)

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        async with Client(broker.endpoint) as client:
            for number in range(50):
                await client.sent(message("orders", b"%d" % number, keys=["all"], message_id=f"M{number}"))
        tiered = broker.store.messages.indexes.tiered
        assert tiered is not None
        await until(lambda: len(tiered.files) == 4, "three files are full")
        saved = broker.store.identity
        await until(
            lambda: (saved.index_row("tiered_index") or b"").count(b"0004") == 1, "and need not be cut any more"
        )

        async def index(name: str) -> tuple[int | None, list[dict[str, object]], str]:
            return await command(name, "--admin", broker.admin, of="index")

        async def stages() -> list[object]:
            _, rows, _ = await index("list")
            return [row["stage"] for row in rows if row["kind"] == "tiered"]

        assert await stages() == ["sealed"] * 3 + ["filling"]
        assert await index("compact") == (0, [{"compacted": 3}], "")
        assert await stages() == ["compacted"] * 3 + ["filling"]
        assert await index("upload") == (0, [{"uploaded": 3}], "")
        assert await stages() == ["uploaded"] * 3 + ["filling"]
        status, rows, _ = await index("verify")
        assert status == 0
        assert [row["verdict"] for row in rows] == ["not looked at"] + ["whole"] * 3 + ["not looked at"]
        gone, changed = (tmp_path / "objects" / tiered.files[place].object_name for place in (0, 1))
        gone.unlink()
        data = changed.read_bytes()
        changed.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        status, rows, _ = await index("verify")
        assert status == 2
        assert gone.name in str(rows[1]["unread"])
        assert changed.name in str(rows[2]["damage"])

    sections = {**INDEX, "hash_items": 1_000, **TIERED, "upload_to": str(tmp_path / "objects")}
    with_broker(test, index=sections)


def test_commands_of_files_that_the_broker_does_not_keep(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        for name, words in (("list", "no key index"), ("compact", "index.tiered"), ("upload", "index.tiered")):
            status, rows, told = await command(name, "--admin", broker.admin, of="index")
            assert (status, rows) == (2, [])
            assert words in told

    with_broker(test)


@pytest.mark.parametrize("index", [INDEX, TIERED], ids=["hash files", "tiered"])
def test_what_was_deleted_with_its_topic_is_not_found_by_its_key(
    with_broker: WithBroker, tmp_path: Path, index: dict[str, object]
) -> None:
    """Neither while there is no such topic, nor once it was made again, by the broker or in its store."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=2)
        broker.topic("bills", queues=2)
        async with Client(broker.endpoint) as client:
            for number in range(70):
                await client.sent(message("orders", b"old", keys=["all", f"k{number}"], message_id=f"M{number}"))
            await client.sent(message("bills", b"bill", keys=["all"]))
            broker.broker._administration.delete_topic("orders")
            assert await query(broker, topic="orders", key="all") == []
            broker.topic("orders", queues=2)
            assert await query(broker, topic="orders", key="all") == []
            assert await query(broker, topic="orders", key="M3") == []
            for number in range(3):
                await client.sent(message("orders", b"new %d" % number, keys=["all"], message_id=f"M{number}"))
        assert await query(broker, topic="orders", key="all", limit=100) == [b"new 2", b"new 1", b"new 0"]
        assert await query(broker, topic="orders", key="k1") == []
        assert await query(broker, topic="bills", key="all") == [b"bill"]
        traced = await stub_of(broker).TraceMessages(pb.QueryMessagesRequest(topic="orders", key="all"))
        assert [len(each.queues) for each in traced.messages] == [1, 1, 1]
        by_id = pb.GetMessageRequest(topic="orders", id="M2")
        got = await stub_of(broker).GetMessage(by_id)
        assert (got.same_id, got.message.queues[0].is_there) == (1, True)
        with pytest.raises(grpc.aio.AioRpcError, match="no message with this id"):
            await stub_of(broker).GetMessage(pb.GetMessageRequest(topic="orders", id="M9"))

    with_broker(test, index=index)
    for key, found in (("all", 3), ("k1", 0), ("M0", 1), ("M9", 0)):
        asked = CliRunner().invoke(app, ["query", str(tmp_path / "store"), "--topic", "orders", "--key", key, "--json"])
        assert len(asked.stdout.splitlines()) == found, asked.output
