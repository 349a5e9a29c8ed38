"""The console's access to the admin port: JSON to protobuf and back, and a signature per call.

A console has one channel to the admin port of its broker. Its calls block, and can be ended from outside. They go
through gRPC's blocking client, not the one for asyncio: two event loops with gRPC's asyncio in one process disturb each
other.

Records of the log are decoded, and become the JSON objects that pages show.

The console of a broker is built here from its settings.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, cast

import grpc
import structlog
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from quarry_mq.protocol.admin_methods import methods_by_short_name, path_of, short_name, stub_of
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.messages.bodies import body_text, compression_name, inflated
from quarry_mq.protocol.messages.property_names import DELIVER_AT_MS, KEYS, LITE_TOPIC, MESSAGE_GROUP, TAGS
from quarry_mq.protocol.messages.system_flag import TransactionState, compression, transaction_state
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, members_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.signature import signed_admin_headers
from quarry_mq.server.addresses import split_address
from quarry_mq.server.admin_port.calls.edge import BROWSER
from quarry_mq.server.console.calls import (
    ANSWERS_SIZE_MAX,
    MEMBERS_SIZE_MAX,
    AdminPort,
    Caller,
    CallFailed,
    ConsoleParts,
    Identity,
    OpenCall,
    Rules,
)
from quarry_mq.server.console.thread import ConsoleThread
from quarry_mq.server.front import LiveTls
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.index.keys import KEY_END
from quarry_mq.store.message import PhysicalOffset, host_text
from quarry_mq.store.record import StoredMessage, client_message_id, decode_record, offset_message_id

log = structlog.get_logger(__name__)

BODY_IN_LIST_MAX: Final = 64 * 1024
BODY_MAX: Final = 4 * 1024 * 1024
"""Bytes of a body that are shown, uncompressed: of one among many, and of one that was asked for alone."""

BODIES_MAX: Final = 4 * 1024 * 1024
BODY_BEYOND_MAX: Final = 256
"""Bytes of all bodies of one answer; once they are used up, only the beginning of each further body is shown."""

UTF8_REST_MAX: Final = 3
"""Bytes at the end of a cut text that may be the beginning of a character."""


class Room:
    """The bytes of bodies that one answer may still show."""

    def __init__(self, body_max: int) -> None:
        self._body_max = body_max
        self._left = BODIES_MAX

    @property
    def next_max(self) -> int:
        """Return how many bytes of the next body may be shown."""
        return max(min(self._body_max, self._left), BODY_BEYOND_MAX)

    def take(self, size: int) -> None:
        self._left -= size


def message_fields(record: bytes, physical_offset: int, room: Room) -> dict[str, object]:
    """Return the fields of the message in a record, without absent ones; or `problem` if the record is not whole."""
    at = PhysicalOffset(physical_offset)
    stored = decode_record(memoryview(record), 0, at, check_crc=True)
    if not isinstance(stored, StoredMessage):
        return {"physicalOffset": physical_offset, "problem": "the answer contains no complete record"}
    properties = stored.properties
    offset_id = offset_message_id(stored.store_host, at)
    state = transaction_state(stored.system_flag)
    fields: dict[str, object | None] = {
        "messageId": client_message_id(properties) or offset_id,
        "offsetId": offset_id,
        "topic": stored.topic,
        "queue": stored.queue_number,
        "offset": stored.queue_offset,
        "physicalOffset": physical_offset,
        "storedAtMs": stored.store_timestamp_ms,
        "bornAtMs": stored.born_timestamp_ms,
        "bornHost": host_text(stored.born_host),
        "storeHost": host_text(stored.store_host),
        "tag": properties.get(TAGS),
        "keys": [key for key in properties.get(KEYS, "").split(KEY_END) if key],
        "messageGroup": properties.get(MESSAGE_GROUP),
        "liteTopic": properties.get(LITE_TOPIC),
        "deliverAtMs": _number(properties.get(DELIVER_AT_MS)),
        "reconsumeTimes": stored.reconsume_times,
        "transactionState": None if state is TransactionState.NONE else state.name.lower(),
        "properties": dict(properties),
        "bodySize": len(stored.body),
    }
    return {name: value for name, value in fields.items() if value is not None} | _body_fields(stored, room)


def _number(text: str | None) -> int | None:
    """Return a number that a client wrote as text; None if it is not a number."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) <= 15 else None


class _Shown(NamedTuple):
    """The part of a body to show. `plain_size` is None if the body is compressed and was not read to its end."""

    data: bytes
    is_cut: bool
    plain_size: int | None
    is_plain: bool


def _body_fields(stored: StoredMessage, room: Room) -> dict[str, object]:
    body = bytes(stored.body)
    data, is_cut, plain_size, is_plain = _shown(body, stored.system_flag, room.next_max)
    room.take(len(data))
    return {
        "compression": compression_name(stored.system_flag, body),
        "body": {
            "text": _text(data, is_cut=is_cut) if is_plain else None,
            "base64": base64.b64encode(data).decode(),
            "isCut": is_cut,
            "plainSize": plain_size,
        },
    }


def _shown(body: bytes, system_flag: int, size_max: int) -> _Shown:
    try:
        method = compression(system_flag)
    except ValueError:
        return _Shown(body[:size_max], len(body) > size_max, None, is_plain=False)
    if method is None:
        return _Shown(body[:size_max], len(body) > size_max, len(body), is_plain=True)
    found = inflated(body, size_max, method)
    if found is None:
        return _Shown(body[:size_max], len(body) > size_max, None, is_plain=False)
    return _Shown(found.plain, not found.is_whole, len(found.plain) if found.is_whole else None, is_plain=True)


def _text(shown: bytes, *, is_cut: bool) -> str | None:
    """Decode a text, without a character that was cut in the middle; None if it is no text."""
    text = body_text(shown)
    if text is None and is_cut:
        for rest in range(1, UTF8_REST_MAX + 1):
            text = body_text(shown[:-rest])
            if text is not None:
                break
    return text


RECORD: Final = "record"
"""The field that holds a record's bytes, in messages that also have its `physical_offset`."""

MESSAGE: Final = "message"
"""The field that replaces the record."""

HTTP_PER_CODE: Final = 100
"""The factor between RocketMQ's codes and those of HTTP, which have two digits less."""

ERRORS: Final = range(400, 600)


def request_from(method: MethodDescriptor, text: bytes) -> Message:
    """Parse a request. Raises CallFailed."""
    request = message_factory.GetMessageClass(method.input_type)()
    try:
        json_format.Parse(text.strip() or b"{}", request)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise CallFailed("INVALID_ARGUMENT", f"not a {method.input_type.full_name}: {error}") from None
    return request


def answer_text(answer: Message) -> bytes:
    """Return the answer as one line of JSON. Raises CallFailed if the answer's own status says that the call failed."""
    _require_ok(answer)
    fields = json_format.MessageToDict(answer, always_print_fields_with_no_presence=True)
    if _leads_to_record(answer.DESCRIPTOR):
        is_alone = not _repeats_records(answer.DESCRIPTOR)
        _put_messages(answer, fields, Room(BODY_MAX if is_alone else BODY_IN_LIST_MAX))
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _require_ok(answer: Any) -> None:
    status = getattr(answer, "status", None)
    if isinstance(status, definition.Status) and status.code != definition.OK:
        known = definition.Code.values()
        name = definition.Code.Name(status.code) if status.code in known else str(status.code)
        http = status.code // HTTP_PER_CODE
        raise CallFailed(name, status.message, status=http if http in ERRORS else 500)


def _put_messages(answer: Any, fields: dict[str, Any], room: Room) -> None:
    """Replace each record in `fields`, which are those of `answer`."""
    for field in answer.DESCRIPTOR.fields:
        if _is_record(field):
            record = fields.pop(RECORD, None)
            if record:
                fields[MESSAGE] = message_fields(answer.record, answer.physical_offset, room)
        elif field.json_name in fields and field.message_type is not None and _leads_to_record(field.message_type):
            inner, its_fields = getattr(answer, field.name), fields[field.json_name]
            pairs = zip(inner, its_fields, strict=True) if field.is_repeated else ((inner, its_fields),)
            for each, fields_of_each in pairs:
                _put_messages(each, fields_of_each, room)


def _is_record(field: FieldDescriptor) -> bool:
    return field.name == RECORD and field.type == FieldDescriptor.TYPE_BYTES


@cache
def _leads_to_record(message: Descriptor) -> bool:
    """Return whether a message holds records, also indirectly. No message of the admin port contains itself."""
    return any(
        _is_record(field) or (field.message_type is not None and _leads_to_record(field.message_type))
        for field in message.fields
    )


@cache
def _repeats_records(message: Descriptor) -> bool:
    return any(
        field.is_repeated or _repeats_records(field.message_type)
        for field in message.fields
        if field.message_type is not None and _leads_to_record(field.message_type)
    )


CALL_TIMEOUT_S: Final = 120.0
"""Seconds that a call with one answer may take; streams may go on as long as they are read."""

QUICK_TIMEOUT_S: Final = 10.0
"""Seconds that the calls at the beginning of a session may take."""

ANSWER_SIZE_MAX: Final = 16 * 1024 * 1024
"""Bytes of one answer: four times the limit of a message."""

NONCE_BYTES: Final = 16
ASK_MEMBERS: Final = "AllMembersService/AskMembers"

REFLECTION: Final = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
"""The call that every user may make, whatever the rules say."""

LIST_SERVICES: Final = b"\x3a\x01*"
"""The serialized request `ServerReflectionRequest(list_services="*")`."""

OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", ANSWER_SIZE_MAX),
)

TRANSLATING: Final = Lock()
"""A lock for one translation at a time: each computing thread makes the broker's loop wait for Python's lock."""

Metadata = tuple[tuple[str, str], ...]


def plain_channel(address: str) -> grpc.Channel:
    """Open a channel to `unix:path` or `host:port`, without TLS."""
    return grpc.insecure_channel(address, options=OPTIONS)


class AdminCalls:
    """The admin port behind a channel. Implements server.console.calls.AdminPort."""

    def __init__(
        self, channel: grpc.Channel, *, clock: Clock, needs_login: bool | None = None, tells_browser: bool = False
    ) -> None:
        """`needs_login` None: the broker is asked. `tells_browser`: report the browser's address.

        Brokers believe that address only on the socket of their own console.
        """
        self._channel = channel
        self._clock = clock
        self._needs_login = needs_login
        self._tells_browser = tells_browser
        self._methods = methods_by_short_name()

    def open_call(self, method: str, request: bytes, caller: Caller, members: Sequence[str] | None = None) -> OpenCall:
        """Prepare a call, on the broker itself or on members of its cluster. Raises CallFailed."""
        found = self._methods.get(method)
        if found is None:
            raise CallFailed("NOT_FOUND", f"no call {method!r:.200}")
        if members is None:
            return Call(self._channel, found, lambda: request_from(found, request), self._signing(found, caller))
        asking = self._methods[ASK_MEMBERS]
        made = Call(self._channel, asking, lambda: _ask_members(found, request, members), self._signing(asking, caller))
        return MemberCall(made, found, is_of_one=len(members) == 1)

    def _signing(self, method: MethodDescriptor, caller: Caller) -> Callable[[], Metadata]:
        return lambda: self._metadata(path_of(method), caller)

    def needs_login(self) -> bool:
        """Return whether the broker requires a user. Raises CallFailed."""
        if self._needs_login is not None:
            return self._needs_login
        try:
            self.log_in(Caller(None, None, ""))
        except CallFailed as failure:
            if failure.code != grpc.StatusCode.UNAUTHENTICATED.name:
                raise
            return True
        return False

    def log_in(self, caller: Caller) -> None:
        """Check the caller's user and secret with a call. Raises CallFailed."""
        begin: Any = self._channel.stream_stream(REFLECTION)
        call = begin(iter((LIST_SERVICES,)), timeout=QUICK_TIMEOUT_S, metadata=self._metadata(REFLECTION, caller))
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            raise _failure(error) from None

    def identity(self, caller: Caller) -> Identity:
        """Return the names of broker and cluster, None for both without the right to see them. Raises CallFailed."""
        stub: Any = AdminServiceStub(self._channel)
        path = "/quarry.admin.v1.AdminService/GetBroker"
        metadata = self._metadata(path, caller)
        try:
            broker = stub.GetBroker(admin_pb2.GetBrokerRequest(), timeout=QUICK_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            if _failure(error).code == grpc.StatusCode.PERMISSION_DENIED.name:
                return Identity(None, None)
            raise _failure(error) from None
        return Identity(broker.name, broker.cluster)

    def close(self) -> None:
        """Close the channel, which ends open calls."""
        self._channel.close()

    def _metadata(self, path: str, caller: Caller) -> Metadata:
        browser = ((BROWSER, caller.peer),) if self._tells_browser and caller.peer else ()
        if caller.user is None or caller.secret is None:
            return browser
        nonce = secrets.token_hex(NONCE_BYTES)
        return (
            *browser,
            *signed_admin_headers(caller.user, caller.secret, path, now_ms=self._clock.wall_ms(), nonce=nonce),
        )


class Call:
    """A call of the admin port. Implements server.console.calls.OpenCall."""

    def __init__(
        self,
        channel: grpc.Channel,
        method: MethodDescriptor,
        request: Callable[[], Message],
        metadata: Callable[[], Metadata],
    ) -> None:
        """`request` and `metadata` are made when the call begins; `request` may raise CallFailed."""
        self._channel = channel
        self._method = method
        self._request = request
        self._metadata = metadata
        self._lock = Lock()
        self._answers: Iterator[Any] | None = None
        self._call: Any = None  # guarded by _lock
        self._is_cancelled = False  # guarded by _lock

    @property
    def is_streaming(self) -> bool:
        return self._method.server_streaming

    @property
    def answers_size_max(self) -> int:
        return ANSWERS_SIZE_MAX

    def next_answer(self) -> bytes | None:
        """Return the next answer in JSON; None after the last. Raises CallFailed."""
        answer = self.next_message()
        if answer is None:
            return None
        with TRANSLATING:
            return answer_text(answer)

    def next_message(self) -> Any:
        """Return the next answer; None after the last. Raises CallFailed."""
        try:
            if self._answers is None:
                self._answers = self._begin()
            return next(self._answers, None)
        except grpc.RpcError as error:
            raise _failure(error) from None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._call is not None:
                self._call.cancel()

    def _begin(self) -> Iterator[Any]:
        request = self._request()
        stub = stub_of(self._channel, self._method)
        with self._lock:
            if self._is_cancelled:
                raise CallFailed(grpc.StatusCode.CANCELLED.name, "the caller does not wait for the answer any more")
            if self.is_streaming:
                self._call = stub(request, metadata=self._metadata())
            else:
                self._call = stub.future(request, metadata=self._metadata(), timeout=CALL_TIMEOUT_S)
        return iter(self._call) if self.is_streaming else _one(self._call)


class MemberCall:
    """A call on members of the cluster. Implements server.console.calls.OpenCall.

    A call on one member answers as the member does. One on all has answers with the member that gave each, or that has
    ended its call, with gRPC's code.
    """

    def __init__(self, asking: Call, method: MethodDescriptor, *, is_of_one: bool) -> None:
        self._asking = asking
        self._answer_type = message_factory.GetMessageClass(method.output_type)
        self._is_of_one = is_of_one
        self.is_streaming = method.server_streaming or not is_of_one
        self.answers_size_max = ANSWERS_SIZE_MAX if is_of_one else MEMBERS_SIZE_MAX

    def next_answer(self) -> bytes | None:
        """Return the next answer in JSON; None after the last. Raises CallFailed."""
        while (answer := self._asking.next_message()) is not None:
            with TRANSLATING:
                if not self._is_of_one:
                    return self._of_all(answer)
                if answer.HasField("answer"):
                    return answer_text(self._answer_type.FromString(answer.answer))
            if answer.code != grpc.StatusCode.OK.name:
                raise CallFailed(answer.code, answer.problem)
        return None

    def cancel(self) -> None:
        self._asking.cancel()

    def _of_all(self, answer: Any) -> bytes:
        fields = {"member": answer.member, "isSelf": answer.is_self, "code": answer.code, "problem": answer.problem}
        text = b""
        if answer.HasField("answer"):
            try:
                text = b',"answer":' + answer_text(self._answer_type.FromString(answer.answer))
            except CallFailed as failure:
                fields |= {"code": failure.code, "problem": failure.message}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()[:-1] + text + b"}"


def _ask_members(method: MethodDescriptor, request: bytes, members: Sequence[str]) -> Message:
    return members_pb2.AskMembersRequest(
        members=members,
        method=short_name(path_of(method)),
        request=request_from(method, request).SerializeToString(),
    )


def _one(future: Any) -> Iterator[Any]:
    try:
        yield future.result()
    except grpc.FutureCancelledError:
        raise CallFailed(grpc.StatusCode.CANCELLED.name, "the caller does not wait for the answer any more") from None


def _failure(error: grpc.RpcError) -> CallFailed:
    # every error of a call is also that call; the type does not say so
    call = cast("grpc.Call", error)
    code = call.code()
    details = call.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and not details:
        details = "no answer from the broker"
    return CallFailed(code.name, details or code.name.lower().replace("_", " "))


def _conforms(calls: AdminCalls) -> AdminPort:
    """Let the type checker prove that `AdminCalls` is an `AdminPort`."""
    return calls


PREFIX: Final = "quarry-console-"
"""The prefix of the name of the folder with the socket."""

SOCKET: Final = "admin"

SOCKET_PATH_MAX: Final = 107
"""Bytes of a socket's path on Linux."""


class ConsoleBeside:
    """The console of an admin port. `socket` is where the admin port also listens; None without a console.

    A console that was not configured does not keep a broker from its work: if the setting is the default one, a port
    that is taken is logged and left alone.
    """

    def __init__(self, settings: BrokerSettings, tls: LiveTls | None, *, needs_login: bool, clock: Clock) -> None:
        self._network = settings.network
        self._may_be_left_out = settings.may_be_left_out("network.console")
        self._goes_around = settings.console_goes_around
        self._tls = tls
        self._needs_login = needs_login
        self._clock = clock
        self.socket: str | None = None
        self.url = ""

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Create the folder for the socket, which only this user may enter. Raises OSError."""
        with contextlib.ExitStack() as folders:
            if self._network.console_address is not None and not self._goes_around:
                try:
                    self.socket = f"unix:{_socket_in(folders)}"
                except OSError as error:
                    self._do_without(error)
            elif self._network.console_address is not None:
                log.warning("there is no console", reason=self._goes_around)
            yield

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the console, once the admin port listens. Raises OSError that names the address."""
        address, thread = self._network.console_address, None
        if address is not None and self.socket is not None:
            thread = ConsoleThread(address, self._parts(self.socket))
            try:
                thread.start()
                self.url = thread.url
            except OSError as error:
                self._do_without(error)
        try:
            yield
        finally:
            if thread is not None:
                await asyncio.to_thread(thread.stop)

    def _do_without(self, error: OSError) -> None:
        if not self._may_be_left_out:
            raise OSError(f"network.console: {error}") from error
        log.warning("there is no console", reason=f"{error}: set network.console to another address, or off")

    def _parts(self, address: str) -> ConsoleParts:
        network = self._network
        names = frozenset(each.lower() for each in (split_address(network.console)[0], *network.console_hosts))
        return ConsoleParts(
            port=lambda: AdminCalls(
                plain_channel(address), clock=self._clock, needs_login=self._needs_login, tells_browser=True
            ),
            rules=Rules(names=names),
            version=version("quarry-mq"),
            clock=self._clock,
            tls=self._tls,
        )


def _socket_in(folders: contextlib.ExitStack) -> Path:
    """Return the path of a socket in a new folder. Raises OSError."""
    _remove_left_over(Path(tempfile.gettempdir()))
    folder = folders.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True))
    path = Path(folder) / SOCKET
    if len(bytes(path)) > SOCKET_PATH_MAX:
        raise OSError(f"{path} is too long for the path of a socket: set TMPDIR to a shorter directory")
    return path


def _remove_left_over(folder: Path) -> None:
    """Remove sockets of this user's brokers that were killed, on which no process listens any more."""
    for path in folder.glob(f"{PREFIX}*/{SOCKET}"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0)  # other users may have put something there that would block
            try:
                if path.parent.lstat().st_uid == os.getuid():
                    probe.connect(str(path))
            except ConnectionRefusedError:
                shutil.rmtree(path.parent, ignore_errors=True)
            except OSError:
                continue
