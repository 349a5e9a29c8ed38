"""The connection to a broker, the options of sinks, and the errors that end a query that talks to a broker.

Options are parsed before a broker is called.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.queues import TIMEOUT_MS, QueueClient, Retries
from quarry_mq.pipeline.kafka_columns import KAFKA
from quarry_mq.pipeline.source.options import InvalidOption, flag, known_options, whole_number
from quarry_mq.store.errors import BrokerError

GROUP: Final = "quarry-spark"
IN_FLIGHT_MAX: Final = 8
CONNECTION_OPTIONS: Final = ("endpoints", "timeoutMs", "tls", "tlsCa", "tlsCertificate", "tlsKey", "user", "secretFile")
NAME_SERVERS: Final = "nameServers"
SINK_OPTIONS: Final = (
    *("topic", "writeId", "maxInFlight", "deduplicate", "deduplicateWindow", "adminEndpoint"),
    *CONNECTION_OPTIONS,
)
_PROBE_TIMEOUT_S: Final = 1.0
BOOTSTRAP: Final = "kafka.bootstrap.servers"
"""Kafka's name of the addresses, which both source and sink take."""
_OF_SPARK: Final = ("checkpointLocation", "queryName")
"""Options that Spark passes to the sink of a stream, although they are meant for Spark."""
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_DURATIONS_MS: Final = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The addresses of brokers or name servers, and how to connect to them."""

    endpoint: str
    """`host:port` of the messaging port of a broker, or several, separated by commas."""
    name_servers: tuple[str, ...] = ()
    """`host:port` of the name servers of RocketMQ. If there are any, `endpoint` is empty."""
    timeout_ms: int = TIMEOUT_MS
    """Milliseconds for which calls are retried when the broker does not answer or is overloaded."""
    tls: bool = False
    ca: Path | None = None
    """Certificate authorities to trust (PEM), instead of gRPC's own list."""
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    """Name of the user that calls are signed as."""
    secret_file: Path | None = None
    """File with the user's secret, on every worker. Spark shows options, so the secret itself cannot be one."""

    def client(self, address: str | None = None) -> QueueClient:
        """Make a client of this broker, or of another at an address, which must be closed.

        Raises OSError for a certificate, key or secret that cannot be read, and BrokerUnreachable if there are several
        endpoints, and none of them accepts a connection.
        """
        return QueueClient(
            self.at(address or self.address()), timeout_ms=self.timeout_ms, client_id=f"{GROUP}@{uuid.uuid4().hex}"
        )

    def address(self) -> str:
        """Return the address of the messaging port. Of several, it is the first that accepts a connection.

        Raises BrokerUnreachable with all of them if none does within the timeout.
        """
        addresses = self.endpoint.split(",")
        if len(addresses) == 1:
            return self.endpoint
        retries = Retries(self.timeout_ms)
        while True:
            errors = []
            for address in addresses:
                endpoint = Endpoint(address)
                try:
                    socket.create_connection((endpoint.host, endpoint.port), _PROBE_TIMEOUT_S).close()
                except OSError as error:
                    errors.append(f"{address}: {error}")
                else:
                    return address
            retries.wait("; ".join(errors))

    def at(self, address: str) -> Endpoint:
        """Return an address with the files and the user of this connection. Raises OSError."""
        return Endpoint(
            address,
            tls=self.tls,
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
            user=self.user,
            secret=None if self.secret_file is None else self.secret_file.read_text().strip(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options of `df.write.format("quarry").option(…)` or `df.writeStream`."""

    connection: Connection
    topic: str | None = None
    """The topic that all rows are sent to; None: each row names its topic."""
    write_id: str | None = None
    """The base of the message ids; None: a new id for each write, or the id of the stream's query."""
    in_flight_max: int = IN_FLIGHT_MAX
    """Requests of one task that are under way at the same time."""
    deduplicates: bool = False
    """Tells that a repetition sends only the messages whose ids no broker has."""
    window_ms: int | None = None
    """Age of the oldest messages among which ids are looked for; None: all in the log."""
    admin_endpoint: str | None = None
    """`host:port` of the admin port, which knows ids."""


def sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parse the options of a sink. Raises InvalidOption with the option's name."""
    options = with_our_names(options, is_source=False)
    given = known_options(_without(options, _OF_SPARK) if is_stream else options, SINK_OPTIONS)
    if is_stream and "writeid" in given:
        raise InvalidOption("option 'writeId': a stream has the id of its query")
    deduplicates, window = flag("deduplicate", given.get("deduplicate", "false")), given.get("deduplicatewindow")
    admin = given.get("adminendpoint")
    if deduplicates and admin is None:
        raise InvalidOption("option 'adminEndpoint': deduplicate needs it: the admin port knows the ids of messages")
    if window is not None and not deduplicates:
        raise InvalidOption("option 'deduplicateWindow': it belongs to deduplicate=true")
    return SinkOptions(
        connection=connection_of(given),
        topic=given.get("topic") or None,
        write_id=given.get("writeid") or None,
        in_flight_max=whole_number("maxInFlight", given.get("maxinflight", str(IN_FLIGHT_MAX)), minimum=1),
        deduplicates=deduplicates,
        window_ms=None if window is None else duration_ms("deduplicateWindow", window),
        admin_endpoint=None if admin is None else address_of("adminEndpoint", admin),
    )


def with_our_names(options: Mapping[str, str], *, is_source: bool) -> dict[str, str]:
    """Return the options with `endpoints` for `kafka.bootstrap.servers`; a source then has the columns of Kafka.

    So a job for Kafka needs another format and another address, and no other option. Raises InvalidOption if both are
    given.
    """
    names = {name.lower(): name for name in options}
    if BOOTSTRAP not in names:
        return dict(options)
    if "endpoints" in names:
        raise InvalidOption(f"option 'endpoints': {names[BOOTSTRAP]!r} is given, too; they are the same")
    ours = {name: text for name, text in options.items() if name.lower() != BOOTSTRAP}
    ours["endpoints"] = options[names[BOOTSTRAP]]
    if is_source and "columns" not in names:
        ours["columns"] = KAFKA
    return ours


def _without(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    left_out = {name.lower() for name in names}
    return {name: text for name, text in options.items() if name.lower() not in left_out}


def connection_of(given: Mapping[str, str]) -> Connection:
    """Parse the options of the connection, by names in lower case. Raises InvalidOption."""
    tls = flag("tls", given.get("tls", "false"))
    for name in ("tlsCa", "tlsCertificate", "tlsKey"):
        if given.get(name.lower()) and not tls:
            raise InvalidOption(f"option {name!r}: it needs tls=true")
    if bool(given.get("tlscertificate")) != bool(given.get("tlskey")):
        raise InvalidOption("option 'tlsKey': it belongs to tlsCertificate, and that to it")
    if bool(given.get("user")) != bool(given.get("secretfile")):
        raise InvalidOption("option 'secretFile': it belongs to user, and that to it")
    endpoints, name_servers = given.get("endpoints"), given.get(NAME_SERVERS.lower())
    if endpoints and name_servers:
        raise InvalidOption(f"option {NAME_SERVERS!r}: 'endpoints' is given, too; they exclude each other")
    return Connection(
        endpoint="" if name_servers else ",".join(_addresses_of("endpoints", endpoints or "")),
        name_servers=_addresses_of(NAME_SERVERS, name_servers) if name_servers else (),
        timeout_ms=whole_number("timeoutMs", given.get("timeoutms", str(TIMEOUT_MS)), minimum=1),
        tls=tls,
        ca=_path(given.get("tlsca")),
        certificate=_path(given.get("tlscertificate")),
        key=_path(given.get("tlskey")),
        user=given.get("user") or None,
        secret_file=_path(given.get("secretfile")),
    )


def _addresses_of(option: str, text: str) -> tuple[str, ...]:
    """Return addresses that are separated by commas, or by semicolons as RocketMQ has it. Raises InvalidOption."""
    return tuple(dict.fromkeys(address_of(option, each.strip()) for each in re.split("[,;]", text)))


def address_of(option: str, text: str) -> str:
    """Check an address. Raises InvalidOption."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidOption(f"option {option!r}: {text!r} is not host:port")
    return text


def duration_ms(option: str, text: str) -> int:
    """Parse a duration into ms. Raises InvalidOption."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidOption(f"option {option!r}: {text!r} is no duration such as 15m, 30s or 500ms")
    return int(found[1]) * _DURATIONS_MS[found[2]]


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


class MessagesLost(BrokerError):
    """The broker no longer holds, or does not hold yet, messages that are to be read."""


class UnusableRow(BrokerError):
    """A row cannot become a message. The text names its column."""


class UnreadableBody(BrokerError):
    """The body of a message cannot be uncompressed. The text names the message."""
