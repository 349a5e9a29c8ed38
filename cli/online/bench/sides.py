"""The producers and consumers of a load."""

from __future__ import annotations

import asyncio
from typing import Final

from quarry_mq.cli.online.bench.schedule import Schedule
from quarry_mq.cli.online.bench.stats import Stats
from quarry_mq.client.aio import AsyncMessagingClient
from quarry_mq.client.requests import OutgoingMessage, Subscription
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service

TAG: Final = "quarry-bench"
PROPERTY: Final = "quarry-bench"
"""Property of each message: its run, its number in the run, and the µs at which it should have been sent."""

RECEIVE_MESSAGES: Final = 32
RECEIVE_WAIT_S: Final = 5.0
INVISIBLE_S: Final = 60
ERROR_PAUSE_S: Final = 0.1
"""Seconds to wait after a failed call, as the official clients do."""


class Mark:
    """Encodes and decodes the property that marks the messages of one run."""

    def __init__(self, run: str, clock: Clock) -> None:
        self._prefix = f"{run}:"
        self._clock = clock
        self._zero_s = clock.monotonic_s()

    def text(self, number: int, due_s: float) -> str:
        return f"{self._prefix}{number}:{int((due_s - self._zero_s) * 1e6)}"

    def read(self, text: str) -> tuple[int, float] | None:
        """Return number and time; None for a message of another run."""
        if not text.startswith(self._prefix):
            return None
        number, _, microseconds = text[len(self._prefix) :].partition(":")
        return int(number), self._zero_s + int(microseconds) / 1e6


class Producer:
    """Sends the messages that are due, each by its own call, with a limited number of calls in flight."""

    def __init__(
        self, session: AsyncMessagingClient, schedule: Schedule, stats: Stats, mark: Mark, clock: Clock
    ) -> None:
        plan = stats.plan
        self._session = session
        self._schedule = schedule
        self._stats = stats
        self._mark = mark
        self._clock = clock
        self._room = plan.in_flight
        self._loop = asyncio.get_running_loop()
        message = session.requests.message(OutgoingMessage(topic=plan.topic, body=bytes(plan.size), tag=TAG))
        self._request = service.SendMessageRequest(messages=[message])
        self.open_sends = 0

    def send_due(self, most: int | None = None) -> int:
        """Send the messages that are due, as far as calls are free, and at most `most`. Returns how many were sent."""
        sent = 0
        while self._room and sent != most and (due_s := self._schedule.take()) is not None:
            self._send(due_s)
            sent += 1
        return sent

    def _send(self, due_s: float) -> None:
        number = self._stats.new_number()
        (message,) = self._request.messages
        message.system_properties.message_id = self._session.requests.new_message_id()
        message.system_properties.born_timestamp.FromMilliseconds(self._clock.wall_ms())
        message.user_properties[PROPERTY] = self._mark.text(number, due_s)
        self._room -= 1
        self.open_sends += 1
        code: list[int] = []

        def took(answer: bytes) -> None:
            code.append(service.SendMessageResponse.FromString(answer).status.code)

        def ended(outcome: str | None) -> None:
            self.open_sends -= 1
            failure = failure_of(outcome, code)
            if failure is None:
                self._stats.was_sent(number, due_s)
                self._free()
            else:
                self._stats.failed("send", failure)
                self._loop.call_later(ERROR_PAUSE_S, self._free)

        self._session.call("SendMessage", self._request.SerializeToString(), took, ended)

    def _free(self) -> None:
        self._room += 1
        self.send_due()


class Consumer:
    """Receives forever and acknowledges each message by its own call, as the official clients do."""

    def __init__(self, session: AsyncMessagingClient, subscription: Subscription, stats: Stats, mark: Mark) -> None:
        self._session = session
        self._subscription = subscription
        self._stats = stats
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        wanted = session.requests.receive(
            subscription, limit=RECEIVE_MESSAGES, invisible_s=INVISIBLE_S, wait_s=RECEIVE_WAIT_S
        )
        self._request = wanted.SerializeToString()
        self.open_acknowledgements = 0
        self.is_stopped = False

    def receive(self) -> None:
        if self.is_stopped:
            return
        code: list[int] = []

        def took(answer: bytes) -> None:
            item = service.ReceiveMessageResponse.FromString(answer)
            match item.WhichOneof("content"):
                case "message":
                    self._take(item.message)
                case "status":
                    code.append(item.status.code)

        def ended(outcome: str | None) -> None:
            failure = failure_of(outcome, code, fine=(definition.OK, definition.MESSAGE_NOT_FOUND))
            if failure is None:
                self.receive()
            elif not self.is_stopped:
                self._stats.failed("receive", failure)
                self._loop.call_later(ERROR_PAUSE_S, self.receive)

        self._session.call("ReceiveMessage", self._request, took, ended)

    def _take(self, message: definition.Message) -> None:
        found = self._mark.read(message.user_properties.get(PROPERTY, ""))
        if found is not None:
            self._stats.was_received(*found)
        code: list[int] = []

        def took(answer: bytes) -> None:
            code.append(service.AckMessageResponse.FromString(answer).status.code)

        def ended(outcome: str | None) -> None:
            self.open_acknowledgements -= 1
            failure = failure_of(outcome, code)
            if failure is not None:
                self._stats.failed("acknowledge", failure)

        self.open_acknowledgements += 1
        request = self._session.requests.acknowledgement(self._subscription, message)
        self._session.call("AckMessage", request.SerializeToString(), took, ended)


def failure_of(outcome: str | None, codes: list[int], *, fine: tuple[int, ...] = (definition.OK,)) -> str | None:
    """Return the name to count a call's error under; None if the call succeeded.

    `codes` are the status codes of its answers.
    """
    if outcome is not None:
        return outcome
    if not codes:
        return "NO_STATUS"
    code = codes[0]
    if code in fine:
        return None
    return definition.Code.Name(code) if code in definition.Code.values() else str(code)
