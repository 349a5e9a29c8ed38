"""Stores how far a stream has read as the offsets of a consumer group, for everything that shows the lag of groups.

The checkpoint of Spark stays the only place that the stream reads its own offsets from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from quarry_mq.client.admin import AdminClient
from quarry_mq.client.errors import BrokerUnreachable, CallRefused
from quarry_mq.pipeline.source.options import InvalidOption
from quarry_mq.pipeline.stream.brokers import GrpcBrokers
from quarry_mq.pipeline.stream.offsets import Offsets
from quarry_mq.pipeline.stream.options import MessagesLost
from quarry_mq.pipeline.stream.source_options import SourceOptions
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

log = structlog.get_logger(__name__)

CALL_TIMEOUT_MS: Final = 2_000
"""Milliseconds for which a call is repeated: the query waits for it."""
RETRY_S: Final = 5.0


class GroupOffsets:
    """The offsets of the group at the brokers. It must be closed.

    Until some offsets are stored, a group that may not be used ends the query. After that no failure ends the query: a
    later call stores the offsets.
    """

    def __init__(self, options: SourceOptions, address_of: Callable[[str], str], clock: Clock) -> None:
        """`address_of` returns the address of a broker by its name."""
        self._options = options
        self._address_of = address_of
        self._clock = clock
        quick = replace(options, connection=replace(options.connection, timeout_ms=CALL_TIMEOUT_MS))
        self._brokers = GrpcBrokers(quick, {})
        self._stored: Offsets = {}
        self._try_again_s = float("-inf")

    def close(self) -> None:
        self._brokers.close()

    def store(self, offsets: Offsets) -> None:
        """Store the offsets that have changed since the last call.

        Raises InvalidOption if the group has consumers, or if a broker refuses it, before any offset is stored.
        """
        if self._clock.monotonic_s() < self._try_again_s:
            return
        by_broker: dict[str, Offsets] = {}
        for queue, offset in offsets.items():
            if self._stored.get(queue) != offset:
                by_broker.setdefault(queue.broker, {})[queue] = offset
        for broker, some in by_broker.items():
            try:
                if not self._stored:
                    self._require_unused()
                self._brokers.addresses[broker] = self._address_of(broker)
                changed = {(queue.topic, queue.number): offset for queue, offset in some.items()}
                self._brokers.commit_offsets(broker, changed)
            except (CallRefused, BrokerUnreachable, MessagesLost) as error:
                self._failed(error)
            else:
                self._stored |= some

    def _failed(self, error: Exception) -> None:
        # an offset that has expired is no fault of the group, and the query finds out by itself
        is_refused = isinstance(error, CallRefused) and error.code != definition.ILLEGAL_OFFSET
        if is_refused and not self._stored:
            raise InvalidOption(f"option 'group': {self._options.group} cannot have offsets: {error}") from error
        self._try_again_s = self._clock.monotonic_s() + RETRY_S
        log.warning("the offsets of the group are not stored", group=self._options.group, error=str(error))

    def _require_unused(self) -> None:
        """Raise InvalidOption if the group has consumers. Only the admin port tells, if there is one."""
        options = self._options
        if options.admin_endpoint is None:
            return
        with AdminClient(options.connection.at(options.admin_endpoint)) as admin:
            found = admin.consumers(options.group, options.admin_endpoint)
        if found:
            raise InvalidOption(
                f"option 'group': {options.group} has {len(found)} consumers, such as {found[0]}, and the "
                "query would move their offsets: give a group that no consumer uses"
            )
