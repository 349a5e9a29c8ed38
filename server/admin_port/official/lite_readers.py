"""Find the clients of a group that are subscribed to a lite topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.clients import Client
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.metadata import Group
from quarry_mq.store.metadata.lite import LiteGroup, is_lite_topic_name
from quarry_mq.store.metadata.lite_subscriptions import ALL_OF_THEM, LiteSubscriptionTable

FIELD: Final = "liteTopic"


class LiteReaders:
    """Reads the stored subscriptions of one client at a time: all clients of a group may subscribe to a lite topic."""

    def __init__(self, table: LiteSubscriptionTable, writer: StateWriter) -> None:
        self._table = table
        self._writer = writer

    def of(self, group: Group, topic: str | None, lite_topic: str) -> Callable[[Client], bool]:
        """Return a test whether a client of the group is subscribed to the lite topic, by name or with all of them.

        `topic` is the topic to which the lite topic is said to belong. Raises Refused.
        """
        if not is_lite_topic_name(lite_topic):
            raise Refused(
                definition.ILLEGAL_LITE_TOPIC, f"{FIELD}: a lite topic has letters, digits, underscores or hyphens"
            )
        terms = LiteGroup.of(group)
        if terms is None:
            reason = f"group: {group.name} is bound to no topic, it gets no lite topics"
            raise Refused(definition.ILLEGAL_CONSUMER_GROUP, reason)
        if topic not in (None, terms.bind_topic):
            raise Refused(
                definition.ILLEGAL_TOPIC, f"topic: group {group.name} is bound to topic {terms.bind_topic}, not {topic}"
            )
        names = [lite_topic]
        if terms.wildcard is not None and lite_topic.startswith(terms.wildcard):
            names.append(ALL_OF_THEM)
        self._writer.write_now()  # from here on the rows are complete
        return lambda client: any(self._table.is_subscribed(group.name, client.client_id, each) for each in names)
