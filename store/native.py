"""The module loads the native part of Quarry where it is installed (`make native`; docs/adr/0043).

The native part repeats Python code of this repository, faster and only for the plain case. So everything works without
it, and each function that is typed here names the Python code that it must agree with; `tests/native` compares the two.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from quarry_mq.store.message import (
    Appended,
    ConsumeQueueEntry,
    DispatchRequest,
    EncodedBatch,
    EncodedMessage,
    Host,
    PhysicalOffset,
    QueueOffset,
    UnknownQueues,
)

if TYPE_CHECKING:
    from quarry_mq.store.record import StoredMessage
    from quarry_mq.store.record.properties import EncodedProperties

    HandedOut = tuple[StoredMessage, str, int, int]
    """A message, its receipt handle, how often it was delivered, how long it is hidden (ms)."""

MODULE: Final = "quarry_native"
CONTRACT: Final = 17
"""Number of the build that goes with this code; a build with another number is not used."""

PlainMessage = tuple[str, bytes, bytes, int, int, int]
"""A message is its id, body, stored properties, tags code, creation time (ms) and system flag."""

PlainSend = tuple[str, list[PlainMessage]]
"""A send is a topic and its messages, of which there is at least one."""


class SendReader(Protocol):
    """A send reader parses requests to send."""

    def read(self, request: bytes, peer: str, now_ms: int, /) -> PlainSend | None:
        """Return the NORMAL messages of the request as `check_send` and `to_message` make them; None if it is not
        plain.

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


class RemotingSendRun(Protocol):
    """A run is plain sends of one connection that follow each other."""

    @property
    def count(self) -> int:
        """Return the number of frames."""

    @property
    def size(self) -> int:
        """Return the bytes of their bodies."""

    @property
    def topics(self) -> dict[str, int]:
        """Return for each topic the highest number of a queue that is asked for."""

    @property
    def messages(self) -> list[EncodedMessage]:
        """Return the messages as `server.remoting.sends.RemotingSends` makes them."""

    def answers(self, appended: Sequence[Appended], start: int, store_host: Host, /) -> bytes:
        """Return the frames that answer the sends, whose messages are `appended` from `start` on; none for oneway
        sends.
        """


class RemotingSendReader(Protocol):
    """A reader of sends by remoting, from `quarry_mq.protocol.remoting.frames.Frame` on."""

    def read(
        self, frames: Sequence[tuple[int, bytes, bytes]], start: int, born_host: Host, store_host: Host, now_ms: int, /
    ) -> RemotingSendRun:
        """Return the plain sends among the frames from `start` on, up to the first other frame."""


class RemotingSendReaderMaker(Protocol):
    def __call__(
        self,
        *,
        message_type: type[EncodedMessage],
        body_size_max: int,
        messages_max: int,
        properties_size_max: int,
        transaction_mask: int,
        version: int,
        added: Sequence[tuple[str, str]],
        answered: Sequence[tuple[str, str]],
        dropped_names: Set[str],
        unusual_names: Set[str],
        unusual_prefix: str,
    ) -> RemotingSendReader:
        """Make a reader. `added` are properties that each single message gets, `answered` fields of each answer.

        Properties with a dropped name are not stored; a message with one of an unusual name, or prefix, is not plain.
        """


PlainAck = tuple[str, str, str, str, int, int, int, int]
"""An acknowledgement is group, topic, message id, receipt handle, and from the handle: queue number and offset,
delivery id, expiry (ms).
"""


class ReceiveWriter(Protocol):
    """A receive writer serializes the messages of answers to receives."""

    def write(self, topic: str, messages: Sequence[HandedOut], digest: int, /) -> list[bytes | None]:
        """Return the serialized `ReceiveMessageResponse` of each message as `fill_message` makes it; None if it is not
        plain.

        `digest` is the number of a `DigestType`, CRC32 or MD5. User properties are in the order of the record.
        """


class ReceiveWriterMaker(Protocol):
    def __call__(self, hidden_names: Set[str], unusual_names: Set[str], /) -> ReceiveWriter:
        """Make a writer. Receivers see no property with a hidden name; a message with a property of an unusual name is
        not plain.
        """


class RecordReader(Protocol):
    """A record reader decodes records of the commit log."""

    def read(self, segment: memoryview, position: int, physical_offset: PhysicalOffset, /) -> StoredMessage | None:
        """Return what `store.record.decode_record` finds with every CRC checked; None if that is not plain or no whole
        record.

        A record is plain if it ends in its CRC. May be called from any thread.
        """

    def read_all(
        self,
        segment: memoryview,
        base: PhysicalOffset,
        end: int,
        entries: list[ConsumeQueueEntry],
        fetch: Callable[[int, int], None],
        /,
    ) -> list[StoredMessage] | None:
        """Return the records of these entries, each checked as in `read`. The rest is as for `join`."""

    def join(
        self,
        segment: memoryview,
        base: PhysicalOffset,
        end: int,
        entries: list[ConsumeQueueEntry],
        fetch: Callable[[int, int], None],
        /,
    ) -> bytes | None:
        """Return the records of these entries, one behind the other, each checked as in `read`.

        `fetch` is called with the position and the size of each part of the segment before this part is read; its error
        is raised. Returns None if a record is not plain, or has the reader's topic `unlike`, or is not of the size of
        its entry, or does not lie whole in the segment, which begins at `base`, and below `end`.
        """


class RecordReaderMaker(Protocol):
    def __call__(self, record_type: type[StoredMessage], host_type: type[Host], unlike: str, /) -> RecordReader:
        """Make a reader. `read_all` and `join` return None if a record has the topic `unlike`."""


class EncodeBatch(Protocol):
    """The function assigns offsets to a batch and encodes it; see `store.commitlog.writer.encode_batch`."""

    def __call__(
        self,
        messages: list[EncodedMessage],
        next_offsets: dict[tuple[str, int], QueueOffset],
        physical_offset: PhysicalOffset,
        stored_ms: int,
        crc_property: bool,  # noqa: FBT001
        /,
    ) -> EncodedBatch | UnknownQueues: ...


class BatchEncoder(Protocol):
    """A round maker makes the records of batches of encoded messages, and their dispatch requests."""

    @property
    def make(self) -> EncodeBatch: ...


class BatchEncoderMaker(Protocol):
    def __call__(
        self,
        request_type: type[DispatchRequest],
        appended_type: type[Appended],
        properties_type: type[EncodedProperties],
        /,
    ) -> BatchEncoder: ...


class EntryMaker(Protocol):
    """An entry maker makes entries of consume queues in RocksDB."""

    @property
    def make(self) -> Callable[[list[tuple[bytes, bytes]]], list[ConsumeQueueEntry]]:
        """Return a function as `store.consumequeue.rocks.entry_reader.entries_of`.

        It raises ValueError for a malformed entry.
        """


class SyncThread(Protocol):
    """A sync thread runs fdatasync and never takes Python's lock; it ends when nothing refers to it any more."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `finish` has a result."""

    def start(self, file_number: int, /) -> None:
        """Begin an fdatasync of the file that is open under this number; it has to stay open until `finish` returns."""

    def finish(self) -> int:
        """Wait for the next fdatasync that was begun, and return its result: 0, or the number of the error (errno)."""


NativelyStaged = tuple[
    list[tuple[bytes, bytes]],
    list[tuple[bytes, bytes]],
    list[tuple[tuple[str, int], QueueOffset, PhysicalOffset]],
    list[int],
]
"""See `MaxOffsetTable.stage` for the meaning of the four lists."""

EntryPlace = tuple[bytes, bytes, int]
"""An entry's place is its key, the key that ends the queue, and how many entries are to be read (0: there are none)."""


class MaxOffsetTable(Protocol):
    """A maxima table caches the stored max offsets of recently used queues, as far as it has capacity; see
    `RocksBounds`.

    For some queues it also holds the min offset: the stored one, 0 where none is stored.
    """

    def find(self, queues: list[tuple[str, int]], /) -> list[tuple[bytes, bytes, bytes | None, int | None]] | None:
        """Return for each queue `rocks_layout.keys_of`, the value stored under its max-offset key, and its min offset;
        None where one is not known.

        Returns None in place of the whole list if some queue can have no keys.
        """

    def place(self, queue: tuple[str, int], start: int, limit: int, minimum: int, /) -> EntryPlace | None:
        """Return where `limit` entries of the queue lie from `start` on, in a log that begins at `minimum`.

        The first of them may be an entry whose record the log has no more. Returns None if the table does not know
        enough.
        """

    def ends(self, queues: list[tuple[str, int]], /) -> list[int | None] | None:
        """Return for each queue the offset after its last entry, None where it is not known; None for
        all as in `find`.
        """

    def stage(self, requests: list[DispatchRequest], /) -> NativelyStaged | None:
        """Lay out the entries of these requests, and the max offsets of their queues, as `rocks_layout` does.

        Returns four lists. The first holds key and value of one entry per request. The others are about the queues of
        the requests, in the order of their first requests: keys and values of their max offsets, where these do not go
        back; queue, queue offset and physical offset of their last requests; which of those have a max offset that is
        not known, so that it is left out.

        Returns None if some queue can have no keys.
        """

    def put_all(self, max_offsets: list[tuple[bytes, bytes]], /) -> None:
        """Record that these max offsets are now stored, as pairs of key and value; each takes 16 bytes."""

    def put_min_offsets(self, begins: list[tuple[bytes, int]], /) -> None:
        """Set the min offsets of cached queues, addressed by their max-offset keys. Queues that are not cached are
        ignored.
        """

    def begin_all(self) -> None:
        """Begin loading: all stored max offsets are about to be put in."""

    def end_all(self) -> None:
        """End loading: from now on a miss means that nothing is stored, until a key finds no capacity."""

    def remove(self, maximum_key: bytes, /) -> None:
        """Record that nothing is stored under this key any more."""

    def clear(self) -> None: ...


class Native(Protocol):
    """The protocol lists what the native module offers."""

    @property
    def CallScanner(self) -> Any:
        """Return the class, a `server.front.h2.request_head.ScannerMaker`, a type that the store
        knows nothing of.
        """

    def fields_left(self, body: bytes, shape: dict[int, Any], most: int, /) -> int:
        """Count fields as `server.wire.parsing.fields_left` does. Any request is counted, not only plain ones."""

    @property
    def SendReader(self) -> SendReaderMaker: ...

    @property
    def RemotingSendReader(self) -> RemotingSendReaderMaker: ...

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
        """Return the receipt handles of deliveries from one queue, each given as queue offset and delivery id.

        `whose`: group and topic, each followed by a zero byte.
        """

    def read_ack(self, request: bytes, text_size_max: int, key: bytes, /) -> PlainAck | None:
        """Return the one delivery that an `AckMessageRequest` names, by a handle of its group and topic that the key
        proves.

        Returns None if the request is not plain. No text of a plain one has more bytes than `text_size_max`. The handle
        is decoded as by `server.delivery.handles.ReceiptHandle.decode`. The caller still has to check the names.
        """

    def ack_answer(self, message_id: str, receipt_handle: str, /) -> bytes:
        """Return the serialized `AckMessageResponse` for one message that is acknowledged."""

    def send_answer(self, message_ids: list[str], first_offset: int, /) -> bytes:
        """Return the serialized `SendMessageResponse` of messages that are stored from a queue offset on."""

    @property
    def BatchEncoder(self) -> BatchEncoderMaker: ...

    def SyncThread(self) -> SyncThread: ...

    def EntryMaker(self, entry_type: type[ConsumeQueueEntry], /) -> EntryMaker: ...

    def MaxOffsetTable(self, queues: int, /) -> MaxOffsetTable:
        """Make a table with capacity for this number of queues, 80 bytes each; memory is allocated as they come."""


def _load() -> tuple[Native | None, str]:
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        return None, str(error)
    found = getattr(module, "CONTRACT", None)
    if found != CONTRACT:
        return None, f"it implements contract {found}, but {CONTRACT} is required: run `make native`"
    return cast(Native, module), ""


NATIVE, WHY_NOT = _load()
"""`NATIVE` is None where the native part cannot be used, and `WHY_NOT` says why."""
