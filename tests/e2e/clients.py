"""Client programs of the official libraries, driven by the line protocol of `README.md`."""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.e2e.broker import DELIVERED_TIMEOUT_S

Line = dict[str, Any]
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 60.0
"""Go's push consumer waits out a long poll and its request timeout, 33 s, whenever one of its polls found nothing."""
_Client = TypeVar("_Client", bound="ClientProcess")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    message_group: str | None = None
    delivery_ms: int | None = None
    """Wall clock: not before."""
    priority: int | None = None
    lite_topic: str | None = None

    def line(self) -> Line:
        return {
            "topic": self.topic,
            "body": base64.b64encode(self.body).decode(),
            "tag": self.tag,
            "keys": list(self.keys),
            "properties": dict(self.properties),
            "message_group": self.message_group,
            "delivery_ms": self.delivery_ms,
            "priority": self.priority,
            "lite_topic": self.lite_topic,
        }


@dataclass(frozen=True, slots=True)
class Receipt:
    message_id: str
    at_ms: int
    """Wall clock just before the send call."""
    recall_handle: str | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message, as a client library showed it."""

    message_id: str
    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    message_group: str | None
    priority: int | None
    attempt: int
    at_ms: int
    number: int | None
    """How the simple consumer names this delivery; None from a push consumer."""
    failed: bool = False
    lite_topic: str | None = None

    @classmethod
    def of(cls, line: Line) -> Delivery:
        assert not line["corrupted"], f"the client calls the body corrupted: {line}"
        return cls(
            message_id=line["message_id"],
            topic=line["topic"],
            body=base64.b64decode(line["body"]),
            tag=line["tag"],
            keys=tuple(line["keys"]),
            properties=line["properties"],
            message_group=line["message_group"],
            priority=line["priority"],
            attempt=line["attempt"],
            at_ms=line["at_ms"],
            number=line.get("delivery"),
            failed=line.get("failed", False),
            lite_topic=line["lite_topic"],
        )

    def content(self) -> tuple[str, bytes, str | None, tuple[str, ...], tuple[tuple[str, str], ...]]:
        """All that the sender decided, in a form that compares and hashes."""
        return self.topic, self.body, self.tag, self.keys, tuple(sorted(self.properties.items()))


def content_of(message: Outgoing) -> tuple[str, bytes, str | None, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """What a delivery of this message must show as its content."""
    return (
        message.topic,
        message.body,
        message.tag,
        tuple(sorted(message.keys)),
        tuple(sorted(message.properties.items())),
    )


class ClientError(Exception):
    """What the client library raised; `kind` is `Unsupported` where the program says that it has no such thing."""

    def __init__(self, line: Line) -> None:
        super().__init__(f"{line['type']}: {line['text']}")
        self.kind: str = line["type"]
        self.code: int | None = line["code"]


def _tls_environment(authority: Path | None) -> dict[str, str]:
    """Has a client program speak TLS and trust the authority; how each library is told so (Java's trusts anybody)."""
    if authority is None:
        return {}
    return {
        "CLIENT_TLS": "on",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority),
        "NODE_EXTRA_CA_CERTS": str(authority),
        "SSL_CERT_FILE": str(authority),  # Go's
    }


@dataclass(frozen=True, slots=True)
class Login:
    """As whom a client calls."""

    user: str
    secret: str


def _login_environment(login: Login | None) -> dict[str, str]:
    return {} if login is None else {"CLIENT_USER": login.user, "CLIENT_SECRET": login.secret}


class ClientProcess:
    """A client program. Its lines are read by a thread so that every wait has a bound.

    Raises ClientError when the library does not start, or has no such client.
    """

    def __init__(
        self, command: Sequence[str], *, directory: Path, home: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._command = command
        self._ended = False
        self._errors_path = home / "client.err"
        with self._errors_path.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, "HOME": str(home), "PYTHONUNBUFFERED": "1", **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._pushed: queue.Queue[Line | None] = queue.Queue()
        """Messages that came by themselves, whatever was asked meanwhile."""
        self._reader = threading.Thread(target=self._read, name="client lines", daemon=True)
        self._reader.start()
        try:
            ready = self.next_line(START_TIMEOUT_S)
            if "error" in ready:
                raise ClientError(ready["error"])
            assert "ready" in ready, f"first line of {command}: {ready}"
        except BaseException:
            self.kill()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            (self._pushed if "message" in line else self._lines).put(line)
        self._lines.put(None)
        self._pushed.put(None)

    def next_line(self, timeout_s: float, *, pushed: bool = False) -> Line:
        """The next answer, or pushed message. Raises TimeoutError; fails when the program ended instead."""
        try:
            line = (self._pushed if pushed else self._lines).get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no line within {timeout_s} s from {self._command}") from None
        assert line is not None, f"{self._command} ended:\n{self._errors_path.read_text()[-4000:]}"
        return line

    def say(self, text: str) -> None:
        """One line to the program's input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def request(self, command: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **fields: object) -> Line:
        """One command and its answer. Raises ClientError for what the client library raised."""
        self.say(json.dumps({"command": command, **fields}))
        answer = self.next_line(timeout_s)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer

    def close(self) -> None:
        """Let the client shut down in good order; it must end with status 0. Repeatable."""
        if self._ended:
            return
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            status = self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._finish()
        assert status == 0, f"{self._command} ended with {status}:\n{self._errors_path.read_text()[-4000:]}"

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """It does nothing at all meanwhile, as on a machine that is overloaded; its connections stay open."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, as a crash of the application would."""
        self._process.kill()
        self._process.wait(CLOSE_TIMEOUT_S)
        self._finish()

    def _finish(self) -> None:
        self._ended = True
        self._reader.join(CLOSE_TIMEOUT_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


class Producer(ClientProcess):
    def send(self, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Send one after the other. Raises ClientError for the first that failed."""
        answer = self.request("send", messages=[message.line() for message in messages])
        receipts = []
        for line in answer["receipts"]:
            if "error" in line:
                raise ClientError(line["error"])
            receipts.append(Receipt(line["message_id"], line["at_ms"], line["recall_handle"]))
        return receipts

    def send_in_transaction(self, message: Outgoing, resolution: str) -> Receipt:
        """`resolution`: `commit`, `rollback`, or `none`, which leaves it to the checker."""
        answer = self.request("send_in_transaction", message=message.line(), resolution=resolution)
        return Receipt(answer["message_id"], answer["at_ms"])

    def checked(self) -> list[str]:
        """Ids of the messages that the checker was asked about."""
        ids: list[str] = self.request("checked")["message_ids"]
        return ids

    def recall(self, topic: str, receipt: Receipt) -> None:
        self.request("recall", topic=topic, recall_handle=receipt.recall_handle)


class SimpleConsumer(ClientProcess):
    def receive(self, *, count: int = 32, invisible_s: int = 60) -> list[Delivery]:
        answer = self.request("receive", count=count, invisible_s=invisible_s)
        return [Delivery.of(line) for line in answer["messages"]]

    def receive_until(
        self, wanted: int, *, invisible_s: int = 60, timeout_s: float = DELIVERED_TIMEOUT_S
    ) -> list[Delivery]:
        """Receive until there are `wanted` deliveries. Fails with those that came when the time is over."""
        deliveries: list[Delivery] = []
        deadline = time.monotonic() + timeout_s
        while len(deliveries) < wanted:
            assert time.monotonic() < deadline, f"{len(deliveries)} of {wanted} within {timeout_s} s"
            deliveries += self.receive(invisible_s=invisible_s)
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge. Raises ClientError for the first that failed."""
        answer = self.request("ack", deliveries=[delivery.number for delivery in deliveries])
        for result in answer["results"]:
            if "error" in result:
                raise ClientError(result["error"])

    def change_invisible(self, delivery: Delivery, *, invisible_s: int) -> None:
        self.request("change_invisible", delivery=delivery.number, invisible_s=invisible_s)


class PushConsumer(ClientProcess):
    def next_delivery(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Delivery:
        return Delivery.of(self.next_line(timeout_s, pushed=True)["message"])


class _LiteConsumer(ClientProcess):
    def subscribe(self, *lite_topics: str, start: Line | None = None, synchronizes: bool = True) -> None:
        """`start`: a field of OffsetOption and its value, where the library has that.

        Without `synchronizes` the client of Python is left to do it in its own time (`README.md`).
        """
        for lite_topic in lite_topics:
            self.request("subscribe", lite_topic=lite_topic, start=start, synchronizes=synchronizes)

    def unsubscribe(self, *lite_topics: str) -> None:
        for lite_topic in lite_topics:
            self.request("unsubscribe", lite_topic=lite_topic)

    def subscribed(self) -> set[str]:
        """To which lite topics the library says that it is subscribed."""
        return set(self.request("subscribed")["lite_topics"])


class LiteSimpleConsumer(SimpleConsumer, _LiteConsumer):
    """Gets messages of the lite topics that it is subscribed to, when asked."""


class LitePushConsumer(PushConsumer, _LiteConsumer):
    """The same, by itself."""


@dataclass(frozen=True, slots=True)
class Language:
    """How the programs of one client library are started."""

    name: str
    directory: Path
    producer: Sequence[str]
    simple_consumer: Sequence[str]
    push_consumer: Sequence[str]
    lite_push_consumer: Sequence[str] | None = None
    """None: the library has none."""
    lite_simple_consumer: Sequence[str] | None = None


class Clients:
    """Starts clients of one language against one endpoint, and closes all of them."""

    def __init__(
        self,
        language: Language,
        endpoint: str,
        home: Path,
        *,
        tls_authority: Path | None = None,
        login: Login | None = None,
    ) -> None:
        """With `tls_authority` (PEM) the clients speak TLS with a server whose certificate it signed."""
        self._language = language
        self._environment = _tls_environment(tls_authority) | _login_environment(login)
        self._endpoint = endpoint
        self._home = home
        self._open: list[ClientProcess] = []

    def logged(self) -> str:
        """What the libraries have put into their own logs."""
        return "".join(path.read_text(errors="replace") for path in self._home.rglob("*.log"))

    def producer(self, *topics: str, checker: str | None = None) -> Producer:
        """`checker`: what its transaction checker answers, `commit`, `rollback` or `unknown`; None: it has none."""
        command = [*self._language.producer, "--endpoint", self._endpoint]
        if checker is not None:
            command += ["--checker", checker]
        for topic in topics:
            command += ["--topic", topic]
        return self._keep(Producer(command, **self._surroundings()))

    def simple_consumer(
        self, *topics: str, group: str, tags: str = "*", sql: str | None = None, await_s: int = 5
    ) -> SimpleConsumer:
        command = [*self._language.simple_consumer, *self._subscription(topics, group, tags, sql)]
        command += ["--await-s", str(await_s)]
        return self._keep(SimpleConsumer(command, **self._surroundings()))

    def push_consumer(
        self, *topics: str, group: str, tags: str = "*", sql: str | None = None, failed_attempts: int = 0
    ) -> PushConsumer:
        command = [*self._language.push_consumer, *self._subscription(topics, group, tags, sql)]
        command += ["--failed-attempts", str(failed_attempts)]
        return self._keep(PushConsumer(command, **self._surroundings()))

    def lite_push_consumer(
        self, topic: str, *, group: str, failed_attempts: int = 0, suspended_ms: int | None = None
    ) -> LitePushConsumer:
        """`failed_attempts`: how often it refuses each message. With `suspended_ms` it suspends its lite topic then."""
        command = self._lite_command(self._language.lite_push_consumer, topic, group)
        command += ["--failed-attempts", str(failed_attempts)]
        if suspended_ms is not None:
            command += ["--suspended-ms", str(suspended_ms)]
        return self._keep(LitePushConsumer(command, **self._surroundings()))

    def lite_simple_consumer(self, topic: str, *, group: str, await_s: int = 1) -> LiteSimpleConsumer:
        command = self._lite_command(self._language.lite_simple_consumer, topic, group)
        command += ["--await-s", str(await_s)]
        return self._keep(LiteSimpleConsumer(command, **self._surroundings()))

    def _lite_command(self, program: Sequence[str] | None, topic: str, group: str) -> list[str]:
        if program is None:
            text = f"no such consumer of lite topics in the library of {self._language.name}"
            raise ClientError({"type": "Unsupported", "text": text, "code": None})
        return [*program, "--endpoint", self._endpoint, "--group", group, "--topic", topic]

    def _subscription(self, topics: Sequence[str], group: str, tags: str, sql: str | None) -> list[str]:
        options = ["--endpoint", self._endpoint, "--group", group]
        options += ["--filter", tags] if sql is None else ["--filter", sql, "--filter-type", "sql"]
        for topic in topics:
            options += ["--topic", topic]
        return options

    def _surroundings(self) -> dict[str, Any]:
        return {"directory": self._language.directory, "home": self._home, "environment": self._environment}

    def _keep(self, client: _Client) -> _Client:
        self._open.append(client)
        return client

    def kill(self) -> None:
        """End all of them at once: whatever failed is told already."""
        for client in self._open:
            client.kill()
        self._open.clear()

    def close(self) -> None:
        """Close what the test left open. One that does not end in good order fails the test."""
        failures: list[BaseException] = []
        for client in self._open:
            try:
                client.close()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failures.append(error)
        self._open.clear()
        assert not failures, failures
