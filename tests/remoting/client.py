"""A client of the remoting protocol that says exactly what a test wants, and nothing by itself."""

from __future__ import annotations

import asyncio
import hmac
import json
import struct
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Self

from quarry_mq.protocol.remoting.batches import BatchedMessage
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.protocol.remoting.frames import Command, Flag, FrameReader, Language, read_command, write_command
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.record.codec import decode_record

PATIENCE_S = 30.0


class RemotingClient:
    """A connection whose answers are paired with requests; requests of the broker wait in `asked`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.asked: asyncio.Queue[Command] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.unexpected: list[Command] = []
        self.user: tuple[str, str] | None = None
        self._reader = reader
        self._waiting: dict[int, asyncio.Future[Command]] = {}
        self._opaque = 0
        self._task = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, address: str, **terms: Any) -> Self:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), **terms))

    async def close(self) -> None:
        self._task.cancel()
        self.writer.close()

    async def _read(self) -> None:
        frames = FrameReader()
        try:
            while data := await self._reader.read(1 << 16):
                for frame in frames.feed(data):
                    command = read_command(frame)
                    if not command.is_response:
                        self.asked.put_nowait(command)
                    elif (waiting := self._waiting.pop(command.opaque, None)) is not None:
                        waiting.set_result(command)
                    else:
                        self.unexpected.append(command)
        except OSError:
            pass
        self.ended.set()
        for waiting in self._waiting.values():
            waiting.cancel()

    def begin(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **terms: Any
    ) -> asyncio.Future[Command]:
        """Send a request, and return the future of its answer."""
        command = self.command(code, fields, body, **terms)
        waiting = self._waiting[command.opaque] = asyncio.get_running_loop().create_future()
        self.writer.write(write_command(command))
        return waiting

    def command(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **terms: Any
    ) -> Command:
        self._opaque += 1
        texts = {name: str(value) for name, value in (fields or {}).items()}
        if self.user is not None:
            name, secret = self.user
            texts["AccessKey"] = name
            signed = "".join(texts[each] for each in sorted(texts)).encode() + body
            texts["Signature"] = b64encode(hmac.digest(secret.encode(), signed, "sha1")).decode()
        return Command(code, self._opaque, texts, body, language=Language.JAVA, **terms)

    async def call(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **terms: Any
    ) -> Command:
        async with asyncio.timeout(PATIENCE_S):
            return await self.begin(code, fields, body, **terms)

    def tell(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> None:
        """Send a oneway request."""
        self.writer.write(write_command(self.command(code, fields, body, flag=Flag.ONEWAY)))

    # -- requests that many tests make

    async def send(self, topic: str, body: bytes = b"hello", queue: int = 0, **properties: str) -> Command:
        return await self.call(310, send_fields(topic, queue, **properties), body)

    async def pull(self, topic: str, offset: int, queue: int = 0, **terms: Any) -> Command:
        return await self.call(11, pull_fields(topic, offset, queue, **terms))

    async def heartbeat(self, group: str, *topics: str, client_id: str = "c1", **terms: Any) -> Command:
        return await self.call(34, body=heartbeat_body(client_id, group, *topics, **terms))


def ask(address: str, *requests: tuple[int, Mapping[str, object], bytes], user: tuple[str, str] | None = None) -> None:
    """Make requests one after the other, and see that each succeeds."""

    async def whole() -> None:
        client = await RemotingClient.connect(address)
        client.user = user
        try:
            for code, fields, body in requests:
                answer = await client.call(code, fields, body)
                assert answer.code == 0, (code, fields, body, answer.remark)
        finally:
            await client.close()

    asyncio.run(whole())


def prepare(
    address: str, topics: Iterable[str], groups: Iterable[str], *, queues: int, user: tuple[str, str] | None = None
) -> None:
    """Make the topics, and groups that read them from the first message on: most would begin with the next one."""
    settings = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6, "defaultTopic": "TBW102"}
    topics, groups = list(topics), list(groups)
    ask(
        address,
        *((RequestCode.UPDATE_AND_CREATE_TOPIC, {**settings, "topic": topic}, b"") for topic in topics),
        *((RequestCode.UPDATE_AND_CREATE_GROUP, {}, f'{{"groupName":"{group}"}}'.encode()) for group in groups),
        *(
            (RequestCode.UPDATE_CONSUMER_OFFSET,
             {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": 0}, b"")
            for group in groups for topic in topics for queue in range(queues)
        ),
        user=user,
    )  # fmt: skip


def send_fields(topic: str, queue: int = 0, **properties: str) -> dict[str, object]:
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return {
        "a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1_700_000_000_000, "h": 7,
        "i": text, "j": 0, "k": "false", "m": "false",
    }  # fmt: skip


def pull_fields(topic: str, offset: int, queue: int = 0, **terms: Any) -> dict[str, object]:
    return {
        "consumerGroup": terms.get("group", "G"),
        "topic": topic,
        "queueId": queue,
        "queueOffset": offset,
        "maxMsgNums": terms.get("most", 32),
        "sysFlag": terms.get("flags", 4),
        "commitOffset": terms.get("commit", 0),
        "suspendTimeoutMillis": terms.get("wait_ms", 0),
        "subVersion": terms.get("version", 0),
        "subscription": terms.get("subscription", "*"),
        "expressionType": terms.get("kind", "TAG"),
    }


def heartbeat_body(client_id: str, group: str, *topics: str, **terms: Any) -> bytes:
    subscriptions = [
        {
            "topic": topic,
            "subString": terms.get("expression", "*"),
            "expressionType": "TAG",
            "subVersion": terms.get("version", 1),
        }
        for topic in topics
    ]
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": terms.get("model", "CLUSTERING"),
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": subscriptions,
    }
    return json.dumps(
        {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in terms.get("producers", ())],
            "consumerDataSet": [consumer] if group else [],
        }
    ).encode()


def records_in(body: bytes) -> list[StoredMessage]:
    """Return the records in the body of an answer."""
    found: list[StoredMessage] = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4])
        record = decode_record(memoryview(body)[at : at + size], 0, PhysicalOffset(0), check_crc=False)
        offset = int.from_bytes(body[at + 28 : at + 36])
        record = decode_record(memoryview(body)[at : at + size], 0, PhysicalOffset(offset), check_crc=True)
        assert isinstance(record, StoredMessage), record
        found.append(record)
        at += size
    return found


def join_batch(messages: Iterable[BatchedMessage]) -> bytes:
    """Return the body of a batch, as a producer sends it."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(body) + len(raw_properties), 0, 0, flag, len(body))
        + body
        + struct.pack(">h", len(raw_properties))
        + raw_properties
        for flag, body, raw_properties in messages
    )
