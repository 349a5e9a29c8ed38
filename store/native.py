"""The native part of Quarry, where it is installed (`make native`; docs/adr/0043).

It does again, faster, what Python code here does, for the plain case alone. So everything works without it, and each
function that is typed here names the Python code it must agree with; `tests/native` holds them against each other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from quarry_mq.store.message import (
    Appended,
    ConsumeQueueEntry,
    DispatchRequest,
    EncodedMessage,
    Host,
    Round,
    UnknownQueues,
)
from quarry_mq.store.offsets import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    from quarry_mq.store.record import StoredMessage
    from quarry_mq.store.record.properties import EncodedProperties

    HandedOut = tuple[StoredMessage, str, int, int]
    """A message, its receipt handle, how often it was delivered, how long it is hidden (ms)."""

MODULE: Final = "quarry_native"
CONTRACT: Final = 11
"""Of the build that goes with this code; one of another number is left alone."""

PlainMessage = tuple[str, bytes, bytes, int, int, int]
"""Message id, body, stored properties, tags code, born at (ms), system flag."""

PlainSend = tuple[str, list[PlainMessage]]
"""Topic, and its messages, of which there is one at least."""


class SendReader(Protocol):
    """Reads requests to send."""

    def read(self, request: bytes, peer: str, now_ms: int, /) -> PlainSend | None:
        """The NORMAL messages of the request, as `check_send` and `to_message` would have them; None: not plain.

        User properties are stored in the order of the request.
        """


class SendReaderMaker(Protocol):
    def __call__(
        self,
        *,
        messages_max: int,
        body_size_max: int,
        properties_max: int,
        properties_size_max: int,
        keys_max: int,
        topic_size_max: int,
        message_id_size_max: int,
        born_host_size_max: int,
        unusual_names: Set[str],
        unusual_prefix: str,
    ) -> SendReader: ...


PlainAck = tuple[str, str, str, str, int, int, int, int]
"""Group, topic, message id, receipt handle; of the handle: queue number and offset, delivery id, expiry (ms)."""


class ReceiveWriter(Protocol):
    """Writes the messages of answers to receives."""

    def write(self, topic: str, messages: Sequence[HandedOut], /) -> list[bytes | None]:
        """The serialized `ReceiveMessageResponse` of each, as `fill_message` makes it; None: not plain.

        User properties are in the order of the record.
        """


class ReceiveWriterMaker(Protocol):
    def __call__(self, hidden_names: Set[str], unusual_names: Set[str], /) -> ReceiveWriter:
        """Receivers see no property of a hidden name; a message with one of an unusual name is not plain."""


class RecordReader(Protocol):
    """Reads records of the commit log."""

    def read(self, segment: memoryview, position: int, physical_offset: PhysicalOffset, /) -> StoredMessage | None:
        """What `store.record.decode_record` finds with every CRC checked; None: not plain, or no whole record.

        Plain is a record that ends in its CRC. May be called from any thread.
        """


class RecordReaderMaker(Protocol):
    def __call__(self, record_type: type[StoredMessage], host_type: type[Host], /) -> RecordReader: ...


class MakeRound(Protocol):
    """See `store.commitlog.rounds.make_round`."""

    def __call__(
        self,
        messages: list[EncodedMessage],
        next_offsets: dict[tuple[str, int], QueueOffset],
        physical_offset: PhysicalOffset,
        stored_ms: int,
        crc_property: bool,  # noqa: FBT001
        /,
    ) -> Round | UnknownQueues: ...


class RoundMaker(Protocol):
    """Makes what rounds of encoded messages bring into the store."""

    @property
    def make(self) -> MakeRound: ...


class RoundMakerMaker(Protocol):
    def __call__(
        self,
        request_type: type[DispatchRequest],
        appended_type: type[Appended],
        properties_type: type[EncodedProperties],
        /,
    ) -> RoundMaker: ...


class EntryMaker(Protocol):
    """Makes entries of consume queues in RocksDB."""

    @property
    def make(self) -> Callable[[list[tuple[bytes, bytes]]], list[ConsumeQueueEntry]]:
        """See `store.consumequeue.rocks.entries.entries_of`, but that another unit is a ValueError."""


class SyncThread(Protocol):
    """A thread for fdatasync that never takes Python's lock; it ends when nobody refers to it."""

    def fileno(self) -> int:
        """Readable when `finish` has something to tell."""

    def start(self, file_number: int, /) -> None:
        """Begin an fdatasync of the file that is open under this number, and must be so until `finish` returns."""

    def finish(self) -> int:
        """How the next one ended that was begun: 0, or the error's number (errno). Waits for it."""


NativelyStaged = tuple[
    list[tuple[bytes, bytes]],
    list[tuple[bytes, bytes]],
    list[tuple[tuple[str, int], QueueOffset, PhysicalOffset]],
    list[int],
]
"""See `MaximaTable.stage`."""

EntryPlace = tuple[bytes, bytes, int]
"""The key of an entry, the key that ends the queue, and how many entries are to be read; 0: there are none."""


class MaximaTable(Protocol):
    """What is stored as maxima of queues that were in use, as far as it has room; see `KnownQueues`.

    Of some also where they begin: the queue offset of the stored minimum, 0 where none is stored.
    """

    def find(self, queues: list[tuple[str, int]], /) -> list[tuple[bytes, bytes, bytes | None, int | None]] | None:
        """Of each queue `rocks_layout.keys_of`, what is stored under its maximum's key, and where it begins; None: not
        known.

        None in place of all of them where one can have no keys.
        """

    def place(self, queue: tuple[str, int], start: int, limit: int, minimum: int, /) -> EntryPlace | None:
        """Where `limit` entries of the queue lie from `start` on, in a log that begins at `minimum`.

        The first of them may be one that the log has no more. None: not all that takes is known.
        """

    def ends(self, queues: list[tuple[str, int]], /) -> list[int | None] | None:
        """Of each queue the offset behind its last entry, as far as it is known; None as in `find`."""

    def stage(self, requests: list[DispatchRequest], /) -> NativelyStaged | None:
        """Keys and values of a unit for each request, as `rocks_layout` lays them out, and of the queues among them, in
        the order of their first requests: keys and values of their maxima, where these do not go back; queue, queue
        offset and physical offset of their last requests; which of those have a maximum that is not known. It is left
        out.

        None where one can have no keys.
        """

    def put_all(self, maxima: list[tuple[bytes, bytes]], /) -> None:
        """That is stored now, by the keys of the maxima; each takes 16 bytes."""

    def put_begins(self, begins: list[tuple[bytes, int]], /) -> None:
        """There queues begin now, by the keys of their maxima. Of a queue that is not here nothing is remembered."""

    def begin_all(self) -> None:
        """All that is stored is about to be put in."""

    def end_all(self) -> None:
        """It was. A key that is not found has nothing stored, until some is discarded, or finds no room."""

    def remove(self, maximum_key: bytes, /) -> None:
        """Nothing is stored there any more."""

    def discard(self, maximum_key: bytes, /) -> None:
        """Something else is stored there."""

    def clear(self) -> None: ...


class Native(Protocol):
    """What the module offers."""

    @property
    def CallScanner(self) -> Any:
        """A `server.front.h2.protocol.scanner.ScannerMaker`, which the store knows nothing of."""

    def fields_left(self, body: bytes, shape: dict[int, Any], most: int, /) -> int:
        """See `server.wire.parsing.fields_left`. It counts whatever comes, not plain requests alone."""

    @property
    def SendReader(self) -> SendReaderMaker: ...

    @property
    def ReceiveWriter(self) -> ReceiveWriterMaker: ...

    @property
    def RecordReader(self) -> RecordReaderMaker: ...

    def receipt_handles(
        self,
        key: bytes,
        whose: str,
        queue_number: int,
        deliveries: list[tuple[int, int]],
        expires_at_ms: int,
        /,
    ) -> list[str]:
        """The handles of deliveries from one queue, each given as queue offset and delivery id.

        `whose`: group and topic, a zero byte behind each.
        """

    def read_ack(self, request: bytes, text_size_max: int, key: bytes, /) -> PlainAck | None:
        """The one delivery that an `AckMessageRequest` names, by a handle of its group and topic that the key proves.

        None: not plain.

        No text of a plain one has more bytes than `text_size_max`.
        As `server.delivery.receipt_handle.ReceiptHandle.decode` decodes it. The names are still to be checked.
        """

    def ack_answer(self, message_id: str, receipt_handle: str, /) -> bytes:
        """The serialized `AckMessageResponse` for one message that is done."""

    def send_answer(self, message_ids: list[str], first_offset: int, /) -> bytes:
        """The serialized `SendMessageResponse` of messages that are stored from a queue offset on."""

    @property
    def RoundMaker(self) -> RoundMakerMaker: ...

    def SyncThread(self) -> SyncThread: ...

    def EntryMaker(self, entry_type: type[ConsumeQueueEntry], /) -> EntryMaker: ...

    def MaximaTable(self, queues: int, /) -> MaximaTable:
        """Room for so many queues, in 80 bytes for each; memory is used as they come."""


def _load() -> tuple[Native | None, str]:
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        return None, str(error)
    found = getattr(module, "CONTRACT", None)
    if found != CONTRACT:
        return None, f"it has contract {found}, wanted is {CONTRACT}: run `make native`"
    return cast(Native, module), ""


NATIVE, WHY_NOT = _load()
"""None where it cannot be used, and why."""
