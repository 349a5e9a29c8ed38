"""Sends and pulls by remoting, at a broker with the native part and at one without: the same answers and records.

A third kind of broker reads no send as plain: its answers are those of the slow path.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from socket import socketpair
from struct import pack
from typing import Any, Final

import pytest

from quarry_mq.protocol.remoting.batches import BatchedMessage
from quarry_mq.protocol.remoting.frames import Command, Serialization, write_command
from quarry_mq.server.broker import Broker
from quarry_mq.server.front.remoting import RemotingConnection
from quarry_mq.server.remoting.sends import ordinary
from quarry_mq.server.remoting.sends.fast import make_reader
from quarry_mq.server.remoting.sends.plain import PlainRemotingSendReader, PlainRemotingSendRun
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.message import Appended, Host, PhysicalOffset, QueueOffset
from quarry_mq.store.native import NATIVE, Native
from quarry_mq.store.record import decode_properties
from tests.native.mutations import TEXTS
from tests.native.twins import TURNS_MAX, Twins, running_twins
from tests.remoting.client import join_batch, pull_fields, send_fields

needs_native = pytest.mark.skipif(NATIVE is None, reason="no native part")
both_readers = pytest.mark.parametrize("native", [pytest.param(NATIVE, marks=needs_native, id="native"), None])

INPUTS: Final = int(os.environ.get("QUARRY_TEST_FUZZ_INPUTS", "200000"))
"""Reads from a connection in the long run."""
QUICK_INPUTS: Final = 150
FRAMES_PER_READ: Final = 6
TURNS_OF_ONEWAY: Final = 10
"""The loop runs for so many iterations until a send is stored that nobody waits for."""

HEAD_SIZE: Final = 20
"""Bytes at the beginning of a header that stay as they are: by them a frame is known to be a send."""

LONG_NAMES: Final = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
NUMBERS: Final = (
    "", "0", "1", "2", "7", "-1", "-2", "+1", "-", "007", "1.5", "1e3", " 1", "x", "²", str(2**31 - 1), str(2**31),
    str(-(2**31)), str(-(2**31) - 1), str(2**63 - 1), str(2**63), "9" * 20, "9" * 21, "-" + "0" * 20,
)  # fmt: skip
NAMES: Final = (
    "UNIQ_KEY", "TAGS", "KEYS", "WAIT", "CLUSTER", "MSG_REGION", "TRACE_ON", "POP_CK", "__CRC32#", "MIN_OFFSET",
    "DELAY", "TIMER_DELAY_SEC", "TRAN_MSG", "INNER_MULTI_DISPATCH", "__RMQ.TRANSIENT.x", "own", "", "ä", "a\0",
)  # fmt: skip
TOPICS: Final = (
    "orders",
    "mixed",
    "fifo",
    "new",
    "%RETRY%G",
    "SCHEDULE_TOPIC_XXXX",
    "no name",
    "",
    "%DLQ%G",
    "t" * 128,
)


class Wire(asyncio.Transport):
    """A wire is the transport of a connection without a network."""

    def __init__(self) -> None:
        self._sockets = socketpair()  # the front asks whether the peer is still there
        super().__init__(
            {
                "peername": ("192.0.2.7", 50_123),
                "sockname": ("192.0.2.1", 10_911),
                "socket": self._sockets[0],
            }
        )
        self.written = b""
        self.is_ended = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_ended

    def abort(self) -> None:
        self.is_ended = True

    def close(self) -> None:
        self.is_ended = True

    def end(self) -> None:
        for each in self._sockets:
            each.close()

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def begin(broker: Broker, data: bytes) -> tuple[RemotingConnection, Wire]:
    """Let a client send these bytes on a connection of its own."""
    front, wire = broker._remoting._front, Wire()
    assert front is not None
    connection = front.protocol(False, None)
    connection.connection_made(wire)
    connection.data_received(data)
    return connection, wire


def answers_in(data: bytes) -> list[bytes]:
    """Return the frames, which may come in any order."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at:end])
        at = end
    return sorted(found)


async def ask(twins: Twins, data: bytes) -> list[bytes]:
    """Send the same bytes to both, and return the answers. Raises Difference where the two do not agree."""
    both = [begin(twin.broker, data) for twin in (twins.native, twins.python)]
    for _ in range(TURNS_MAX):
        if not any(connection.has_open_calls and not connection.is_closed for connection, _ in both):
            break
        await asyncio.sleep(0)
    for _ in range(TURNS_OF_ONEWAY):
        await asyncio.sleep(0)
    (native, ended), (python, python_ended) = [(answers_in(wire.written), wire.is_ended) for _, wire in both]
    twins._require(ended == python_ended, "the end of the connection", "sends", data, ended, python_ended)
    if not ended:  # else it depends on the moment which answers were written before
        twins._require(native == python, "answers", "sends", data, native, python)
    twins.compare_records("sends", data)
    for connection, wire in both:
        connection.connection_lost(None)
        wire.end()
    return native


class Clients:
    """Clients send what is usual and what is not, by a random sequence."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._opaque = 0

    def read(self) -> bytes:
        """Return what one read from a connection brings."""
        return b"".join([self.frame() for _ in range(self._random.randint(1, FRAMES_PER_READ))])

    def frame(self) -> bytes:
        chance = self._random.random
        self._opaque += 1
        kind = self._random.choice((310, 310, 310, 10, 320))
        fields: dict[str, Any] = send_fields(
            self._random.choice(("orders", "mixed", "fifo")), self._random.randint(0, 1)
        )
        fields["i"] = self.properties()
        if chance() < 0.3:
            fields[self._random.choice("abdefghjlm")] = self._random.choice((*NUMBERS, "true", "TRUE", "1"))
        if chance() < 0.1:
            fields["b"] = self._random.choice(TOPICS)
        if chance() < 0.05:
            del fields[self._random.choice(list(fields))]
        if kind == 10:
            fields = {LONG_NAMES[name]: value for name, value in fields.items()}
        is_batch = kind == 320 or str(fields.get("m", fields.get("batch", ""))).lower() in ("true", "1")
        body = self.batch() if is_batch and chance() < 0.9 else bytes(self._random.choice((0, 1, 30, 20_000)))
        command = Command(
            kind,
            self._opaque,
            {name: str(value) for name, value in fields.items()},
            body,
            flag=self._random.choice((0, 0, 0, 0, 2, 1)),
            serialization=self._random.choice((Serialization.JSON, Serialization.JSON, Serialization.ROCKETMQ)),
        )
        return self.mutated(write_command(command)) if chance() < 0.2 else write_command(command)

    def properties(self) -> str:
        pairs = [("UNIQ_KEY", f"{self._opaque:032X}"), ("TAGS", "red"), ("WAIT", "true")]
        while self._random.random() < 0.3:
            value = self._random.choice((*NUMBERS, *(each.decode("utf-8", "replace") for each in TEXTS), 'a"b\\/\n'))
            pairs.insert(self._random.randint(0, len(pairs)), (self._random.choice(NAMES), value))
        if self._random.random() < 0.01:
            pairs.append(("long", "v" * self._random.choice((32_000, 32_640, 32_750))))
        text = "".join([f"{name}\x01{value}\x02" for name, value in pairs])
        return text if self._random.random() < 0.7 else text[: self._random.choice((-1, -2, -40))]

    def batch(self) -> bytes:
        messages = [
            BatchedMessage(self._random.choice((0, 0, 5, -1)), b"b" * self._random.randint(0, 9), self.raw())
            for _ in range(self._random.choice((0, 1, 2, 5, 1_030) if self._random.random() < 0.05 else (1, 2, 5)))
        ]
        body = join_batch(messages)
        return body if self._random.random() < 0.9 else body[: self._random.randint(0, len(body))] + bytes(3)

    def raw(self) -> bytes:
        return self._random.choice((self.properties().encode()[:32_700], b"", b"\xff\x01a\x02", b"KEYS\x01k"))

    def mutated(self, frame: bytes) -> bytes:
        """Return the frame with some bytes of its header changed, which still has its size."""
        header_end = 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF)
        changed = bytearray(frame)
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randint(8 + HEAD_SIZE, header_end - 1)
            changed[at] = self._random.choice(b'\0\x01\x02"\\{}[],:09az \xc3\xff')
        return bytes(changed)


async def compare(directory: Path, seed: int, inputs: int) -> None:
    clients = Clients(seed)
    async with running_twins(directory) as twins:
        for _ in range(inputs):
            await ask(twins, clients.read())
        twins.compare_stores()
        for topic in ("orders", "mixed", "fifo"):
            for offset in (0, 1, 10, 1_000_000):
                fields = {name: str(value) for name, value in pull_fields(topic, offset, offset % 2).items()}
                (answer,) = await ask(twins, write_command(Command(11, offset, fields)))
                assert offset > 10 or len(answer) > 400, "records come"


@pytest.fixture(autouse=True)
def same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the same id to every message whose producer gave it none, in both brokers."""
    monkeypatch.setattr(ordinary, "_unique_key", lambda: "0" * 32)


@pytest.fixture(params=["Python", "slow path"])
def compared_with(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose what the broker without the native part does with plain sends."""
    if request.param == "slow path":
        monkeypatch.setattr(PlainRemotingSendReader, "read", lambda *_: PlainRemotingSendRun())


@needs_native
def test_some_hundred_reads_are_answered_and_stored_the_same(tmp_path: Path, compared_with: None) -> None:
    asyncio.run(compare(tmp_path, seed=1, inputs=QUICK_INPUTS))


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_reads_are_answered_and_stored_the_same(tmp_path: Path, compared_with: None, seed: int) -> None:
    asyncio.run(compare(tmp_path, seed, INPUTS // 4))


HOST: Final = Host(b"\x7f\0\0\x01", 10_911)
USUAL: Final = send_fields("orders", 1, UNIQ_KEY="K1", TAGS="é", own="\U0001f642")


def frame_of(
    changes: dict[str, Any], body: bytes = b"body", *, code: int = 310, text: Callable[[str], str] = str
) -> tuple[int, bytes, bytes]:
    """Return a frame whose header is as Java writes it."""
    fields = {name: str(value) for name, value in {**USUAL, **changes}.items()}
    members = {
        "code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 7,
        "serializeTypeCurrentRPC": "JSON", "version": 513,
    }  # fmt: skip
    return 0, text(json.dumps(members, ensure_ascii=False)).encode(), body


def count_of(native: Native | None, *frames: tuple[int, bytes, bytes]) -> int:
    """Return how many of the frames are read as plain sends."""
    return make_reader(native, BrokerSettings()).read(list(frames), 0, HOST, HOST, 1).count


@both_readers
def test_plain_sends_are_read(native: Native | None) -> None:
    """Otherwise the comparisons above would compare Python with itself."""
    batch = join_batch([BatchedMessage(1, b"a", b"TAGS\x01t"), BatchedMessage(0, b"", b"")])
    frames = [
        frame_of({}),
        frame_of({"h": 3, "g": -1, "f": 13}),
        frame_of({"AccessKey": "any other field"}),
        frame_of({}, batch, code=320),
        frame_of({"m": "True"}, batch),
        frame_of({"m": "1"}, batch),
        (1, write_command(Command(310, 1, {name: str(value) for name, value in USUAL.items()},
                                  serialization=Serialization.ROCKETMQ))[8:], b""),
    ]  # fmt: skip
    assert count_of(native, *frames) == len(frames)
    read = make_reader(native, BrokerSettings()).read(frames, 1, HOST, HOST, 99)
    assert (read.count, read.size, read.topics) == (6, 4 + 4 + 3 * len(batch), {"orders": 1})
    first = read.messages[0]
    assert (first.flag, first.born_timestamp_ms, first.system_flag) == (3, 99, 1)
    assert [each.flag for each in read.messages] == [3, 7, 1, 0, 1, 0, 1, 0, 7]


@both_readers
@pytest.mark.parametrize(
    "frame",
    [
        frame_of({"e": -1}),
        frame_of({"j": 1}),
        frame_of({"i": "TAGS\x01a\x02"}),
        frame_of({"i": "UNIQ_KEY\x01a\x02DELAY\x013\x02"}),
        frame_of({"i": "UNIQ_KEY\x01a" + "b" * 32_760}),
        frame_of({}, bytes(4 * 1024 * 1024 + 1)),
        frame_of({}, b"no batch", code=320),
        frame_of({}, code=11),
        frame_of({}, text=lambda text: text.replace('"opaque": 7', '"opaque": 7.0')),
        frame_of({}, text=lambda text: text.replace('"opaque": 7', '"opaque": 07')),
        frame_of({}, text=lambda text: text.replace('"flag": 0', '"flag": 1')),
        frame_of({}, text=lambda text: text.replace('"JAVA"', '"JA\\u00"')),
        frame_of({}, text=lambda text: text + "}"),
        frame_of({}, text=lambda text: text[:-1]),
        (2, *frame_of({})[1:]),
    ],
)
def test_others_are_left_to_python_with_all_that_follow(native: Native | None, frame: tuple[int, bytes, bytes]) -> None:
    assert count_of(native, frame_of({}), frame, frame_of({})) == 1


@both_readers
def test_of_a_repeated_property_the_last_value_counts(native: Native | None) -> None:
    frame = frame_of({"i": "UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02"})
    read = make_reader(native, BrokerSettings()).read([frame], 0, HOST, HOST, 1)
    assert [decode_properties(each.raw_properties)["UNIQ_KEY"] for each in read.messages] in ([], ["b"])


@both_readers
def test_an_answer_is_what_python_writes(native: Native | None) -> None:
    """Both serializations are written; a oneway send gets no answer."""
    batch = join_batch([BatchedMessage(0, b"a", b""), BatchedMessage(0, b"b", b"")])
    fields = {name: str(value) for name, value in USUAL.items()}
    binary = write_command(Command(310, -5, fields, serialization=Serialization.ROCKETMQ))[8:]
    oneway = frame_of({}, text=lambda text: text.replace('"flag": 0', '"flag": 2'))
    read = make_reader(native, BrokerSettings()).read(
        [oneway, frame_of({}), (1, binary, b""), frame_of({}, batch, code=320)], 0, HOST, HOST, 1
    )
    appended = [Appended(QueueOffset(at), PhysicalOffset(171 * at), 1, 1) for at in range(6)]

    def answer(opaque: int, offsets: list[int], form: Serialization, **more: str) -> bytes:
        ids = ",".join(f"7F00000100002A9F{171 * at:016X}" for at in offsets)
        said = {"msgId": ids, "queueId": "1", "queueOffset": str(offsets[0]), "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true", **more}  # fmt: skip
        return write_command(Command(0, opaque, {}, serialization=form).response(fields=said))

    assert read.answers(appended, 1, HOST) == b"".join(
        [
            answer(7, [2], Serialization.JSON, transactionId="K1"),
            answer(-5, [3], Serialization.ROCKETMQ, transactionId="K1"),
            answer(7, [4, 5], Serialization.JSON),
        ]
    )


def test_the_size_of_a_header_is_that_of_its_frame() -> None:
    """The frames above are what the front gives to the reader."""
    frame = write_command(Command(310, 1, {"a": "b"}))
    length, mark = (int.from_bytes(frame[at : at + 4], "big") for at in (0, 4))
    assert frame[:8] == pack(">II", length, mark)
    assert length == 4 + mark
