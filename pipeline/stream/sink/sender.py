"""Groups messages into requests, and keeps several requests under way at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from quarry_mq.client.errors import CallRefused
from quarry_mq.client.queues import QueueClient, Unsent
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

MESSAGES_PER_REQUEST: Final = 64
BYTES_PER_REQUEST: Final = 1 << 20
COLLECTED_MAX: Final = 4_096
"""Messages that wait for their request to be full; there may be as many message groups as messages."""

OF_ONE_MESSAGE: Final = frozenset(
    {
        definition.ILLEGAL_TOPIC,
        definition.MESSAGE_BODY_TOO_LARGE,
        definition.MESSAGE_BODY_EMPTY,
        definition.MESSAGE_PROPERTIES_TOO_LARGE,
        definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        definition.MESSAGE_CORRUPTED,
        definition.ILLEGAL_MESSAGE_TAG,
        definition.ILLEGAL_MESSAGE_KEY,
        definition.ILLEGAL_MESSAGE_GROUP,
        definition.ILLEGAL_MESSAGE_PROPERTY_KEY,
        definition.ILLEGAL_MESSAGE_ID,
    }
)
"""Codes by which a broker refuses one message because of its content: others of the request may be good."""

Refused = Callable[[definition.Message, str], None]
"""Called with a message that the broker refused because of its content, and the reason. Called from several threads."""

_Key = tuple[str, str]
"""Topic and message group: all messages of one request have the same."""


class Sender:
    """Sends messages, those of one message group in order. Call `finish`, then `close`.

    A request goes over one of a few lanes, and each lane waits for its answers. All requests of a message group take
    the same lane; others take the lanes in turn.
    """

    def __init__(
        self, client: QueueClient, in_flight_max: int, refused: Refused | None = None, *, unsent: Unsent | None = None
    ) -> None:
        """Start the sender.

        Without `refused` a message that the broker refuses because of its content ends the sending. Without `unsent` a
        request whose answer is lost is sent again as a whole.
        """
        self._unsent = unsent
        self._client = client
        self._refused = refused
        self._pool = ThreadPoolExecutor(in_flight_max, thread_name_prefix="quarry-sink")
        self._lanes: list[Future[None] | None] = [None] * in_flight_max
        self._turn = 0
        self._collected: dict[_Key, list[definition.Message]] = {}
        self._sizes: dict[_Key, int] = {}
        self._count = 0

    def add(self, message: definition.Message) -> None:
        """Add a message. Raises what the sending of an earlier message raised."""
        key = message.topic.name, message.system_properties.message_group
        size = len(message.body)
        if self._sizes.get(key, 0) + size > BYTES_PER_REQUEST and key in self._collected:
            self._send(key)
        self._collected.setdefault(key, []).append(message)
        self._sizes[key] = self._sizes.get(key, 0) + size
        self._count += 1
        if len(self._collected[key]) == MESSAGES_PER_REQUEST:
            self._send(key)
        elif self._count == COLLECTED_MAX:
            self._send_all()

    def finish(self) -> None:
        """Send the rest, and wait until all requests are answered. Raises what sending raised."""
        self._send_all()
        for lane in self._lanes:
            if lane is not None:
                lane.result()

    def close(self) -> None:
        """End the threads. Requests whose answers are no longer needed end with the connection."""
        self._pool.shutdown()

    def _send_all(self) -> None:
        for key in list(self._collected):
            self._send(key)

    def _send(self, key: _Key) -> None:
        messages = self._collected.pop(key)
        self._count -= len(messages)
        del self._sizes[key]
        lane = self._lane_of(key[1])
        begun = self._lanes[lane]
        if begun is not None:
            begun.result()
        self._lanes[lane] = self._pool.submit(self._deliver, messages)

    def _deliver(self, messages: Sequence[definition.Message]) -> None:
        """Send a request. Since the broker refuses it as a whole, each of its messages is then sent alone."""
        try:
            self._client.send(messages, self._unsent)
        except CallRefused as error:
            if self._refused is None or error.code not in OF_ONE_MESSAGE:
                raise
            if len(messages) == 1:
                self._refused(messages[0], str(error))
                return
            for each in messages:
                self._deliver([each])

    def _lane_of(self, message_group: str) -> int:
        if message_group:
            return hash(message_group) % len(self._lanes)
        self._turn = (self._turn + 1) % len(self._lanes)
        return self._turn
