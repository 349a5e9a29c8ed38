"""Plain sends by remoting: those of a loop iteration are read and stored together.

A plain send has a message, or a batch of messages, without any of the properties of pending messages, for a topic that
exists. Native code reads and answers them where it is installed; any other send is served by `RemotingSends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.property_names import CLUSTER, TRANSIENT_PREFIX
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK
from quarry_mq.protocol.names import RETRY_PREFIX
from quarry_mq.protocol.remoting.frames import VERSION, Frame
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.front.remoting import RemotingConnection
from quarry_mq.server.remoting.sends.ordinary import RECEIVED_ONLY, REGION, RESERVED_TOPICS, TYPE_WORD
from quarry_mq.server.remoting.sends.plain import FAST_BATCH_MAX, UNUSUAL_NAMES, PlainRemotingSendReader
from quarry_mq.server.rpc.context import GATHERED_SIZE_MAX
from quarry_mq.server.rpc.sends import SendStore
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.store.message import Appended, EncodedMessage, Host
from quarry_mq.store.metadata import Permission, TopicTable
from quarry_mq.store.native import Native, RemotingSendReader, RemotingSendRun
from quarry_mq.store.record.layout import CRC_PROPERTY_SIZE, PROPERTIES_LENGTH_MAXIMUM

_HEADS: Final = (b'{"code":310,', b'{"code":320,', b'{"code":10,', b"\x01\x36", b"\x01\x40", b"\x00\x0a")
"""The first bytes of the header of a send, as all clients write it, in both serializations."""


class _Run(NamedTuple):
    """Plain sends of one connection that follow each other, and the frames that they were read from."""

    connection: RemotingConnection
    frames: list[Frame]
    read: RemotingSendRun


class FastRemotingSends:
    """Collects the sends of a loop iteration, and stores the plain ones together.

    A connection's sends are stored in their order: what is plain is stored before one that is not is served.
    """

    def __init__(self, native: Native | None, sends: SendStore, topics: TopicTable, settings: BrokerSettings) -> None:
        self._native = native
        self._sends = sends
        self._topics = topics
        self._clock = sends.clock
        self._gathered: dict[RemotingConnection, list[Frame]] = {}
        self._since_s = 0.0
        self._accepted: list[_Run] = []
        self.configure(settings)

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings from now on."""
        self._reader = make_reader(self._native, settings)

    def gather(self, connection: RemotingConnection, frame: Frame) -> bool:
        """Take a frame that may be a send; for `server.front.remoting.RemotingFront`.

        A large one is served now, with those before it, in the turn of its sender.
        """
        if not frame.header.startswith(_HEADS):
            return False
        if not self._gathered:
            self._since_s = self._clock.monotonic_s()
            self._sends.commit.after_pass(self._serve)
        self._gathered.setdefault(connection, []).append(frame)
        if len(frame.body) > GATHERED_SIZE_MAX:
            self._serve()
        return True

    def _serve(self) -> None:
        gathered, self._gathered = self._gathered, {}
        if not gathered:
            return
        began_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        store_host = self._sends.identity.store_host()
        for connection, frames in gathered.items():
            self._serve_connection(connection, frames, store_host, now_ms)
        stages = self._sends.commit.stages
        if stages.is_turn():
            stages.check.add((self._clock.monotonic_s() - began_s) / sum(map(len, gathered.values())))
        self._store()

    def _serve_connection(
        self, connection: RemotingConnection, frames: list[Frame], store_host: Host, now_ms: int
    ) -> None:
        born_host = host_from_text(connection.peer)
        at = 0
        while at < len(frames):
            read = self._reader.read(frames, at, born_host, store_host, now_ms)
            count = read.count
            if count and self._takes(connection, read):
                self._accepted.append(_Run(connection, frames[at : at + count], read))
            else:
                count = max(count, 1)
                self._store()
                was_closed = connection.is_closed
                for frame in frames[at : at + count]:
                    connection.serve_gathered(frame)
                if (
                    connection.is_closed and not was_closed
                ):  # nothing can be understood after what it did not understand
                    return
            at += count

    def _takes(self, connection: RemotingConnection, read: RemotingSendRun) -> bool:
        """Return whether all sends of the run can be stored, and count their bodies if they can."""
        for name, highest in read.topics.items():
            topic = None if name.startswith(RETRY_PREFIX) or name in RESERVED_TOPICS else self._topics.stored(name)
            if topic is None or Permission.WRITE not in topic.permission or highest >= topic.queue_count:
                return False
        try:
            self._sends.waiting_sizes.take(connection.peer, read.size)
        except OverLimit:  # one by one, some may still pass
            return False
        return True

    def _store(self) -> None:
        runs, self._accepted = self._accepted, []
        if runs:
            messages = [message for run in runs for message in run.read.messages]
            stored = partial(self._stored, runs, self._clock.monotonic_s())
            count = sum(run.read.count for run in runs)
            self._sends.commit.send_encoded(messages, stored, self._since_s, sends=count)

    def _stored(self, runs: list[_Run], began_s: float, appended: Sequence[Appended], error: Exception | None) -> None:
        for run in runs:
            self._sends.waiting_sizes.give(run.connection.peer, run.read.size)
        if error is not None:  # none of them is stored, and one of them may be the cause
            for run in runs:
                for frame in run.frames:
                    run.connection.serve_gathered(frame)
            return
        sizes_by_topic: dict[str, list[int]] = {}
        sends = at = 0
        for run in runs:
            messages = run.read.messages
            for message, where in zip(messages, appended[at : at + len(messages)], strict=True):
                sizes_by_topic.setdefault(message.topic, []).append(where.size)
            run.connection.answer_gathered(run.read.count, run.read.answers(appended, at, messages[0].store_host))
            sends += run.read.count
            at += len(messages)
        self._sends.metrics.sent_together(sends, at, self._clock.monotonic_s() - began_s)
        self._sends.metrics.traffic.sent_together(TYPE_WORD, sizes_by_topic)


def make_reader(native: Native | None, settings: BrokerSettings) -> RemotingSendReader:
    """Return the native reader of plain sends if there is a native part, or else the one in Python."""
    if native is None:
        return PlainRemotingSendReader(settings)
    return native.RemotingSendReader(
        message_type=EncodedMessage,
        body_size_max=settings.for_wire().body_size_max,
        messages_max=FAST_BATCH_MAX,
        properties_size_max=PROPERTIES_LENGTH_MAXIMUM - CRC_PROPERTY_SIZE,
        transaction_mask=TRANSACTION_MASK,
        version=VERSION,
        added=[(CLUSTER, settings.broker.cluster), *REGION.items()],
        answered=list(REGION.items()),
        dropped_names=frozenset(RECEIVED_ONLY),
        unusual_names=UNUSUAL_NAMES,
        unusual_prefix=TRANSIENT_PREFIX,
    )
