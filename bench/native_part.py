"""Measures what the native part saves, piece by piece.

Each piece of its work is done in turns by it and by the Python code that it must agree with, on the same bytes:
requests to send with bodies of 1 KiB and the headers of the official Java client, in batches of 64, as a busy loop
iteration brings them. Nothing is stored, and nothing goes over a socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.harness import CannotRun, Case, Options, Sample, Scale, alternate, measure
from bench.raw_client import CallMaker
from bench.scratch_store import TOPIC
from bench.send_load import send_body
from bench.waiting_sends import PATH
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import PREFACE
from quarry_mq.protocol.limits import DEFAULT_LIMITS
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.delivery import Delivered
from quarry_mq.server.delivery.handles import HandleKey, ReceiptHandle
from quarry_mq.server.front import FrontLimits, Method, ScannerMaker
from quarry_mq.server.front.h2.call import Client
from quarry_mq.server.front.h2.connection import Connection
from quarry_mq.server.front.h2.switchboard import Switchboard
from quarry_mq.server.front.resources import FrontResources
from quarry_mq.server.rpc.plain import PlainSendReader, PythonCalls, make_send_reader
from quarry_mq.server.rpc.receives import message_items
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.server.wire.parsing import SHORT_MAX
from quarry_mq.store.commitlog.writer import encode_batch, native_batch_encoder
from quarry_mq.store.message import EncodedMessage, Host, PhysicalOffset, QueueOffset
from quarry_mq.store.native import NATIVE, WHY_NOT, Native
from quarry_mq.store.record import REPLACED_TOPIC, StoredMessage, decode_record

QUESTION: Final = "What does the native part save, piece by piece?"
PEER: Final = "the same in Python"
ROUND: Final = 64
PEER_ADDRESS: Final = "127.0.0.1:50123"
HOST: Final = host_from_text(PEER_ADDRESS)
NOW_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale: the number of batches of `ROUND` messages in a sample, and the number of samples."""

    rounds_per_sample: int
    samples: int


SIZES: Final = {
    Scale.FULL: Sizes(rounds_per_sample=400, samples=7),
    Scale.QUICK: Sizes(rounds_per_sample=100, samples=3),
    Scale.TINY: Sizes(rounds_per_sample=2, samples=1),
}

Work = Callable[[], object]
"""The work for one batch."""


def run(options: Options) -> list[Case]:
    if NATIVE is None:
        raise CannotRun(f"there is no native part: {WHY_NOT}")
    sizes = SIZES[options.scale]
    random = Random(options.seed)
    sent = [send_body(random) for _ in range(ROUND)]
    cases = [_case(name, *works, sizes) for name, works in pieces(NATIVE, sent).items()]
    return [*cases, _calls_case(NATIVE, sent, random, sizes)]


def pieces(native: Native, sent: list[bytes]) -> dict[str, tuple[Work, Work]]:
    """Return what is done for the messages of these requests, each time natively and in Python."""
    return {
        "requests to send, read and checked": _reading(native, sent),
        "rounds made": _recording(native, sent),
        "answers to sends": _answering(native),
        "records read": _decoding(native, sent),
        "messages of receives written": _delivering(native, sent),
        "acknowledgements read": _acknowledging(native),
    }


def _case(name: str, ours: Work, theirs: Work, sizes: Sizes) -> Case:
    def sample(work: Work) -> Sample:
        def rounds() -> int:
            for _ in range(sizes.rounds_per_sample):
                work()
            return sizes.rounds_per_sample * ROUND

        return measure(rounds)

    samples = alternate(sizes.samples, lambda: sample(ours), lambda: sample(theirs))
    return Case(name=name, unit="messages", peer=PEER, ours=samples[0], theirs=samples[1])


def _reading(native: Native, sent: list[bytes]) -> tuple[Work, Work]:
    reader = make_send_reader(native, DEFAULT_LIMITS)

    in_python = PlainSendReader(DEFAULT_LIMITS)

    return (
        lambda: [reader.read(body, PEER_ADDRESS, NOW_MS) for body in sent],
        lambda: [in_python.read(body, PEER_ADDRESS, NOW_MS) for body in sent],
    )


def _encoded(native: Native, sent: list[bytes]) -> list[EncodedMessage]:
    reader = make_send_reader(native, DEFAULT_LIMITS)
    messages: list[EncodedMessage] = []
    for body in sent:
        plain = reader.read(body, PEER_ADDRESS, NOW_MS)
        if plain is None:
            raise RuntimeError("a request of the official client is not plain")
        topic, [(_, content, properties, code, born_ms, flag)] = plain
        messages.append(EncodedMessage(topic, 0, content, properties, born_ms, HOST, HOST, flag, code))
    return messages


def _recording(native: Native, sent: list[bytes]) -> tuple[Work, Work]:
    messages = _encoded(native, sent)
    next_offsets, at, make = _from_zero(messages), PhysicalOffset(0), native_batch_encoder(native)
    return (
        lambda: make(messages, next_offsets, at, NOW_MS, True),
        lambda: encode_batch(messages, next_offsets, at, NOW_MS, True),
    )


def _from_zero(messages: list[EncodedMessage]) -> dict[tuple[str, int], QueueOffset]:
    """Return the next offsets of the messages' queues, which are all empty."""
    return {(each.topic, each.queue_number): QueueOffset(0) for each in messages}


def _segment(native: Native, sent: list[bytes]) -> tuple[memoryview, list[PhysicalOffset]]:
    """Return consecutive records, and where they begin."""
    messages = _encoded(native, sent)
    made = native_batch_encoder(native)(messages, _from_zero(messages), PhysicalOffset(0), NOW_MS, True)
    if isinstance(made, list):
        raise RuntimeError(f"unknown queues: {made}")
    records, _, appended, _ = made
    return memoryview(records), [each.physical_offset for each in appended]


def _decoding(native: Native, sent: list[bytes]) -> tuple[Work, Work]:
    segment, places = _segment(native, sent)
    read = native.RecordReader(StoredMessage, Host, REPLACED_TOPIC).read
    return (
        lambda: [read(segment, at, at) for at in places],
        lambda: [decode_record(segment, at, at) for at in places],
    )


def _delivering(native: Native, sent: list[bytes]) -> tuple[Work, Work]:
    segment, places = _segment(native, sent)
    records = [decode_record(segment, at, at) for at in places]
    messages = [Delivered(each, "h" * 52, 1, 15_000) for each in records if isinstance(each, StoredMessage)]
    ours, theirs = message_items(native), message_items(None)
    return lambda: ours(TOPIC, messages, definition.MD5), lambda: theirs(TOPIC, messages, definition.MD5)


def _acknowledging(native: Native) -> tuple[Work, Work]:
    group, topic = "bench-billing", TOPIC
    key = HandleKey(bytes(32), PhysicalOffset(0))
    handles = [ReceiptHandle(0, number, number, NOW_MS).encode(group, topic, key) for number in range(ROUND)]
    requests_ = [
        service.AckMessageRequest(
            group=definition.Resource(name=group),
            topic=definition.Resource(name=topic),
            entries=[service.AckMessageEntry(message_id=f"01{number:032X}", receipt_handle=handle)],
        ).SerializeToString()
        for number, handle in enumerate(handles)
    ]

    in_python = PythonCalls()

    def rounds_of(read: Callable[[bytes], object]) -> Work:
        return lambda: [read(body) for body in requests_]

    return (
        rounds_of(lambda body: native.read_ack(body, SHORT_MAX, key.raw)),
        rounds_of(lambda body: in_python.read_ack(body, SHORT_MAX, key.raw)),
    )


def _answering(native: Native) -> tuple[Work, Work]:
    ids = [f"01{number:032X}" for number in range(ROUND)]

    in_python = PythonCalls()
    return (
        lambda: [native.send_answer([message_id], 1_000_000) for message_id in ids],
        lambda: [in_python.send_answer([message_id], 1_000_000) for message_id in ids],
    )


def _calls_case(native: Native, sent: list[bytes], random: Random, sizes: Sizes) -> Case:
    """Measure the way from a connection's bytes to calls with their fields; the answers are empty."""

    def sample(make_scanner: ScannerMaker | None) -> Sample:
        connection, maker = open_connection(make_scanner), CallMaker(random, PATH)
        rounds = [
            b"".join(maker.call(number * ROUND + index, body) for index, body in enumerate(sent))
            for number in range(sizes.rounds_per_sample + 4)
        ]
        for written in rounds[:4]:  # the decoder learns the peer's header blocks
            connection.receive(written)

        def work() -> int:
            for written in rounds[4:]:
                connection.receive(written)
                connection.sender.take()
            return sizes.rounds_per_sample * ROUND

        return measure(work)

    ours, theirs = alternate(sizes.samples, lambda: sample(native.CallScanner), lambda: sample(None))
    return Case(
        name="calls found in what a connection brings, and answered",
        unit="messages",
        peer=PEER,
        ours=ours,
        theirs=theirs,
    )


def open_connection(make_scanner: ScannerMaker | None) -> Connection:
    """Return a connection without a socket that answers each call to `PATH`, whose client has sent its preface."""
    board = Switchboard(
        {PATH: Method(lambda call, _: call.reply(b""))},
        FrontResources(FrontLimits()),
        clock=lambda: 0.0,
        soon=lambda _: None,
        make_scanner=make_scanner,
    )
    connection = Connection(board, Client(PEER_ADDRESS), lambda: None)
    connection.receive(PREFACE + frames.settings({}) + frames.SETTINGS_ACK + frames.window_update(0, 1 << 30))
    return connection
