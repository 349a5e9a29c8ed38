"""Finds the messages of a repetition that brokers have stored before, by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from quarry_mq.client.admin import AdminClient
from quarry_mq.client.queues import QueueClient
from quarry_mq.pipeline.stream.options import SinkOptions
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition

IDS_PER_CALL: Final = 256
"""Ids of one call: a call searches the key index for some milliseconds."""


class SentBefore:
    """Asks all members of the cluster for the ids of messages. Several threads may use it. It must be closed."""

    def __init__(self, options: SinkOptions, client: QueueClient, clock: Clock) -> None:
        """`client` repeats calls. Raises OSError for a file that cannot be read."""
        assert options.admin_endpoint is not None
        self._admin = AdminClient(options.connection.at(options.admin_endpoint))
        self._client = client
        self._window_ms = options.window_ms
        self._clock = clock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def unsent(self, messages: Sequence[definition.Message]) -> list[definition.Message]:
        """Return the messages that no member has. Calls that fail are repeated for a time.

        Raises BrokerUnreachable when time is over, AdminCallRefused if a member has no key index.
        """
        return self._client.again("ids of messages", lambda: self.unsent_now(messages))

    def unsent_now(self, messages: Sequence[definition.Message]) -> list[definition.Message]:
        """Return the messages that no member has, without repeating calls. Raises as `AdminClient.known_ids`."""
        from_ms = 0 if self._window_ms is None else max(0, self._clock.wall_ms() - self._window_ms)
        by_topic: dict[str, list[str]] = {}
        for each in messages:
            by_topic.setdefault(each.topic.name, []).append(each.system_properties.message_id)
        known = {
            topic: {
                each
                for begin in range(0, len(ids), IDS_PER_CALL)
                for each in self._admin.known_ids(topic, ids[begin : begin + IDS_PER_CALL], from_ms)
            }
            for topic, ids in by_topic.items()
        }
        return [each for each in messages if each.system_properties.message_id not in known[each.topic.name]]
