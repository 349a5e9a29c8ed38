"""Plain sends by remoting, read and answered in Python: what the native part does where it is installed.

The reader says only whether a send is plain; `RemotingSends` serves the others, and says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.property_names import LIGHT_QUEUES, TAGS, TRANSIENT_PREFIX, UNIQUE_KEY
from quarry_mq.protocol.messages.system_flag import TRANSACTION_MASK
from quarry_mq.protocol.remoting.batches import split_batch
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.protocol.remoting.frames import Command, Frame, Serialization, read_command, write_command
from quarry_mq.server.remoting.sends.ordinary import (
    PENDING_NAMES,
    SendHeader,
    answer_fields,
    says_batch,
    send_header,
    stored_properties,
)
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Appended, EncodedMessage, Host
from quarry_mq.store.record import decode_properties, encode_properties
from quarry_mq.store.record.properties import java_hash

FAST_BATCH_MAX: Final = 1024
"""Messages of a batch on the fast path: the ids of so many fit into the header of an answer."""
UNUSUAL_NAMES: Final = frozenset({*PENDING_NAMES, LIGHT_QUEUES})
"""Properties of these names are not plain."""

_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})


class _Send(NamedTuple):
    """A send of a run has what its answer needs."""

    command: Command
    queue_number: int
    messages: int
    unique_key: str


class PlainRemotingSendRun:
    """The plain sends of one connection that follow each other; see `store.native.RemotingSendRun`."""

    def __init__(self) -> None:
        self.size = 0
        self.topics: dict[str, int] = {}
        self.messages: list[EncodedMessage] = []
        self._sends: list[_Send] = []

    @property
    def count(self) -> int:
        return len(self._sends)

    def add(self, command: Command, header: SendHeader, messages: list[EncodedMessage], unique_key: str) -> None:
        """Add one more send."""
        self.size += len(command.body)
        self.topics[header.topic] = max(header.queue_number, self.topics.get(header.topic, -1))
        self.messages += messages
        self._sends.append(_Send(command, header.queue_number, len(messages), unique_key))

    def answers(self, appended: Sequence[Appended], start: int, store_host: Host) -> bytes:
        """Return the frames that answer the sends, as `RemotingSends` does for a single one."""
        frames, at = [], start
        for command, queue_number, count, unique_key in self._sends:
            places = appended[at : at + count]
            at += count
            if command.is_oneway:
                continue
            fields = answer_fields(store_host, queue_number, places, unique_key)
            frames.append(write_command(command.response(fields=fields)))
        return b"".join(frames)


class PlainRemotingSendReader:
    """Reads plain sends, as `store.native.RemotingSendReader`."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._body_size_max = settings.for_wire().body_size_max
        self._cluster = settings.broker.cluster

    def read(
        self, frames: Sequence[tuple[int, bytes, bytes]], start: int, born_host: Host, store_host: Host, now_ms: int
    ) -> PlainRemotingSendRun:
        """Return the plain sends among the frames from `start` on, up to the first other frame."""
        run = PlainRemotingSendRun()
        for serialization, head, body in frames[start:]:
            try:
                frame = Frame(Serialization(serialization), head, body)
                is_plain = self._take(run, frame, (born_host, store_host), now_ms)
            except (ValueError, Invalid):  # a malformed frame or batch; a field that is refused
                is_plain = False
            if not is_plain:
                break
        return run

    def _take(self, run: PlainRemotingSendRun, frame: Frame, hosts: tuple[Host, Host], now_ms: int) -> bool:
        """Take one more send; return whether it is plain."""
        command = read_command(frame)
        if command.code not in _CODES or command.is_response or len(frame.body) > self._body_size_max:
            return False
        header = send_header(command.code, command.fields)
        if header.queue_number < 0 or header.reconsume_times > 0:
            return False
        unique_key = ""
        if command.code == RequestCode.SEND_BATCH_MESSAGE or says_batch(command.fields):
            parts = [
                (flag, body, decode_properties(raw)) for flag, body, raw in split_batch(frame.body, FAST_BATCH_MAX)
            ]
        else:
            properties = stored_properties(header.properties, self._cluster)
            unique_key = properties.get(UNIQUE_KEY, "")
            if not unique_key:
                return False
            parts = [(header.flag, frame.body, properties)]
        if not parts or not all(_is_plain(properties) for _, _, properties in parts):
            return False
        born_host, store_host = hosts
        born_ms = header.born_timestamp_ms if header.born_timestamp_ms >= 0 else now_ms
        system_flag = header.system_flag & ~TRANSACTION_MASK
        messages = []
        for flag, body, properties in parts:
            tags = properties.get(TAGS)
            messages.append(
                EncodedMessage(
                    header.topic,
                    header.queue_number,
                    body,
                    encode_properties(properties),
                    born_ms,
                    born_host,
                    store_host,
                    system_flag,
                    java_hash(tags) if tags else 0,
                    flag,
                )
            )
        run.add(command, header, messages, unique_key)
        return True


def _is_plain(properties: dict[str, str]) -> bool:
    return UNUSUAL_NAMES.isdisjoint(properties) and not any(name.startswith(TRANSIENT_PREFIX) for name in properties)
