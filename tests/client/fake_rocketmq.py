"""A name server and a broker of RocketMQ in one port, in threads of the test, with the behaviour that a test wants."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any, Self

from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import Command, FrameReader, read_command, write_command
from quarry_mq.store.message import PhysicalOffset, QueueOffset
from quarry_mq.store.record import encode_properties, encode_record
from tests.record.records import PROPERTIES, message

TOPIC = "orders"
BORN_MS = 1_700_000_000_000


class FakeRocketMQ:
    """Serves one queue of one topic at the broker `broker-a`."""

    def __init__(self, count: int, *, missing: Iterable[int] = ()) -> None:
        """Hold the messages 0 to `count`, stored one per ms, without those that are `missing`."""
        gone = set(missing)
        self.records = {number: record_of(number) for number in range(count) if number not in gone}
        self.end = count
        self.minimum = 0
        self.given_max = 32
        """Messages that a pull gives, at most."""
        self.refusals: list[int] = []
        """Response codes of the next pulls."""
        self.cut_after: int | None = None
        """Answers after which a connection is cut, once."""
        self.answers_backwards = False
        """True: requests that come together are answered in the opposite order."""
        self.pulls: list[int] = []
        """The offsets of all pulls."""
        self.nearest = 0
        """The difference between the answer to a search by time and the right one, as RocketMQ 4 has it."""
        self.is_away = False
        """True: name servers do not know the topic, and the broker ends connections."""
        self.quotes_ids = True
        self.addresses: dict[str, str] | None = None
        """Addresses in the route, by broker id; None: this one as the master's."""
        self.more: dict[str, Any] = {}
        """More members of the route."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # it ends the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameReader()
        with connection, suppress(OSError):
            while data := connection.recv(1 << 16):
                commands = [read_command(frame) for frame in frames.feed(data)]
                for command in reversed(commands) if self.answers_backwards else commands:
                    if self.is_away and command.code != RequestCode.GET_ROUTE_BY_TOPIC:
                        return
                    if self.cut_after == 0:
                        self.cut_after = None
                        return
                    if self.cut_after is not None:
                        self.cut_after -= 1
                    connection.sendall(write_command(self._answer(command)))

    def _answer(self, command: Command) -> Command:
        fields = command.fields
        match command.code:
            case RequestCode.GET_ROUTE_BY_TOPIC if fields["topic"] == TOPIC and not self.is_away:
                return command.response(body=self._route())
            case RequestCode.GET_ROUTE_BY_TOPIC:
                return command.response(ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
            case RequestCode.GET_ALL_TOPICS_FROM_NAME_SERVER:
                topics = [TOPIC, "%RETRY%fleet", "%DLQ%fleet", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG"]
                return command.response(body=json.dumps({"topicList": topics}).encode())
            case RequestCode.GET_MIN_OFFSET:
                return command.response(fields={"offset": str(self.minimum)})
            case RequestCode.GET_MAX_OFFSET:
                return command.response(fields={"offset": str(self.end)})
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                offset = int(fields["timestamp"]) - BORN_MS + self.nearest
                return command.response(fields={"offset": str(max(0, min(offset, self.end)))})
            case RequestCode.PULL_MESSAGE:
                return self._pulled(command)
        return command.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f"code {command.code}")

    def _pulled(self, command: Command) -> Command:
        offset = int(command.fields["queueOffset"])
        self.pulls.append(offset)
        if self.refusals:
            return command.response(self.refusals.pop(0), remark="no")
        if not self.minimum <= offset <= self.end:
            corrected = self.minimum if offset < self.minimum else self.end
            return self._empty(command, ResponseCode.PULL_OFFSET_MOVED, corrected)
        if offset == self.end:
            return self._empty(command, ResponseCode.PULL_NOT_FOUND, offset)
        most = min(int(command.fields["maxMsgNums"]), self.given_max)
        found = [number for number in range(offset, self.end) if number in self.records][:most]
        if not found:
            return self._empty(command, ResponseCode.PULL_RETRY_IMMEDIATELY, self.end)
        following = {"nextBeginOffset": str(found[-1] + 1), "minOffset": str(self.minimum), "maxOffset": str(self.end)}
        return command.response(fields=following, body=b"".join(self.records[number] for number in found))

    def _empty(self, command: Command, code: int, following: int) -> Command:
        return command.response(code, {"nextBeginOffset": str(following)}, remark="none")

    def _route(self) -> bytes:
        queue = {"brokerName": "broker-a", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
        closed = {**queue, "brokerName": "broker-b", "perm": 2}
        addresses = {"0": self.address} if self.addresses is None else self.addresses
        brokers = [{"brokerName": name, "cluster": "C", "brokerAddrs": addresses} for name in ("broker-a", "broker-b")]
        text = json.dumps({"brokerDatas": brokers, "queueDatas": [queue, closed], **self.more})
        for number in () if self.quotes_ids else addresses:
            text = text.replace(f'{{"{number}":', f"{{{number}:").replace(f', "{number}":', f",{number}:")
        return text.encode()


def record_of(
    number: int, *, body: bytes | None = None, system_flag: int = 0, properties: Mapping[str, str] = PROPERTIES
) -> bytes:
    """Return the record of a message, whose body is its number unless another is given."""
    one = message(topic=TOPIC, body=b"%d" % number if body is None else body, properties=properties)
    one = one._replace(queue_number=0, system_flag=system_flag)
    return encode_record(
        one, QueueOffset(number), PhysicalOffset(1_000 + 300 * number), BORN_MS + number, encode_properties(properties)
    )
