"""Administration by remoting: settings of topics and groups, and resets of groups.

Fields of RocketMQ's settings that Quarry has no use for are answered with RocketMQ's defaults, and are not stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import orjson
from isal.isal_zlib import crc32

from quarry_mq.protocol.names import RETRY_PREFIX
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.server.admin.administration import Administration, GroupChange, TopicChange
from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import POP_TOPICS, pop_topics
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.wire import (
    INT32,
    Json,
    RemotingRefused,
    group_config,
    integer_of,
    json_object,
    keyed,
    member_flag,
    member_integer,
    member_objects,
    member_text,
    member_texts,
    queue_of,
    text_of,
    topic_config,
)
from quarry_mq.server.rpc.access import read
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import Forbidden, GroupNotFound, TopicNotFound
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata import Group, Permission, Topic, TopicType
from quarry_mq.store.security.model import Action, ResourceKind

ListedT = TypeVar("ListedT", Topic, Group)

LISTED_MAX: Final = 20_000
"""Topics or groups in one answer: so many fit into a frame."""

NO_VERSION: Final = {"counter": 0, "stateVersion": 0, "timestamp": 0}
"""The version of a table that is always empty here."""

TYPE_ATTRIBUTE: Final = "message.type"
_TYPES: Final = {
    "NORMAL": TopicType.NORMAL,
    "FIFO": TopicType.FIFO,
    "DELAY": TopicType.DELAY,
    "TRANSACTION": TopicType.TRANSACTION,
    "PRIORITY": TopicType.PRIORITY,
    "LITE": TopicType.LITE,
    "MIXED": TopicType.MIXED,
    "UNSPECIFIED": TopicType.MIXED,
}


class RemotingAdministration:
    """Serves requests of operators."""

    def __init__(self, edge: RemotingEdge, administration: Callable[[], Administration]) -> None:
        """`administration` returns the broker's administration, which is there once the broker listens."""
        self._edge = edge
        self._administration = administration

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._edge.operators_handler
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: handler(self._put_topic),
            RequestCode.DELETE_TOPIC_IN_BROKER: handler(self._delete_topic),
            RequestCode.GET_TOPIC_CONFIG: self._edge.handler(self._topic),
            RequestCode.UPDATE_AND_CREATE_GROUP: handler(self._put_group),
            RequestCode.DELETE_GROUP: handler(self._delete_group),
            RequestCode.GET_GROUP_CONFIG: self._edge.handler(self._group),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: handler(self._put_topics),
            RequestCode.UPDATE_AND_CREATE_GROUP_LIST: handler(self._put_groups),
            RequestCode.GET_ALL_TOPIC_CONFIG: handler(self._all_topics),
            RequestCode.GET_ALL_GROUP_CONFIG: handler(self._all_groups),
            RequestCode.RESET_OFFSET: handler(self._reset_offset),
            RequestCode.SET_MESSAGE_REQUEST_MODE: handler(self._set_request_mode),
        }

    # -- topics

    def _put_topic(self, call: RemotingCall) -> None:
        fields = call.fields
        change = TopicChange(
            type=_type_of(_attributes(fields.get("attributes", ""))),
            read_queues=integer_of(fields, "readQueueNums", within=INT32),
            write_queues=integer_of(fields, "writeQueueNums", within=INT32),
            permission=Permission(integer_of(fields, "perm", 6, within=INT32) & 6),
        )
        self._change_topic(call, text_of(fields, "topic"), change)
        call.answer()

    def _put_topics(self, call: RemotingCall) -> None:
        """Create or change topics in turn. The first that is refused ends the request."""
        for each in member_objects(json_object(call.command.body), "topicConfigList"):
            change = TopicChange(
                type=_type_of(member_texts(each, "attributes")),
                read_queues=member_integer(each, "readQueueNums", 16),
                write_queues=member_integer(each, "writeQueueNums", 16),
                permission=Permission(member_integer(each, "perm", 6) & 6),
            )
            self._change_topic(call, _name_in(each, "topicName"), change)
        call.answer()

    def _change_topic(self, call: RemotingCall, name: str, change: TopicChange) -> None:
        admin = self._administration()
        try:
            admin.topic(name)
        except TopicNotFound:
            self._require(call, ResourceKind.TOPIC, name, Action.CREATE)
            # RocketMQ's topics take any message unless a type is given
            admin.create_topic(name, change if change.type is not None else replace(change, type=TopicType.MIXED))
        else:
            self._require(call, ResourceKind.TOPIC, name, Action.UPDATE)
            admin.update_topic(name, change)

    def _delete_topic(self, call: RemotingCall) -> None:
        """Delete a topic; one that does not exist is deleted already."""
        name = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, name, Action.DELETE)
        with contextlib.suppress(TopicNotFound):
            self._administration().delete_topic(name)
        call.answer()

    def _topic(self, call: RemotingCall) -> None:
        name = text_of(call.fields, "topic")
        self._require(call, ResourceKind.TOPIC, name, Action.GET)
        call.answer(body=orjson.dumps(topic_config(self._administration().topic(name))))

    def _all_topics(self, call: RemotingCall) -> None:
        """Answer with the settings of all topics, or of one page of them."""
        self._require(call, ResourceKind.TOPIC, "*", Action.LIST)
        page = _Page.of(call.fields, "topicSeq", "maxTopicNum")

        async def answer(time_slice: TimeSlice) -> None:
            listed = await page.cut(self._administration().topics(), topic_config, time_slice)
            versions = {"dataVersion": listed.version, "mappingDataVersion": NO_VERSION}
            body = {**versions, "topicConfigTable": listed.configs}
            call.answer(fields={"totalTopicNum": str(listed.total)}, body=orjson.dumps(body))

        self._edge.paced(call, answer)

    # -- groups

    def _put_group(self, call: RemotingCall) -> None:
        self._change_group(call, json_object(call.command.body))
        call.answer()

    def _put_groups(self, call: RemotingCall) -> None:
        """Create or change groups in turn. The first that is refused ends the request."""
        for each in member_objects(json_object(call.command.body), "groupConfigList"):
            self._change_group(call, each)
        call.answer()

    def _change_group(self, call: RemotingCall, config: Mapping[str, Json]) -> None:
        name, admin = _name_in(config, "groupName"), self._administration()
        change = GroupChange(
            fifo=member_flag(config, "consumeMessageOrderly", default=False),
            max_attempts=max(member_integer(config, "retryMaxTimes", 16), 0) + 1,
            enabled=member_flag(config, "consumeEnable", default=True),
        )
        try:
            admin.group(name)
        except GroupNotFound:
            self._require(call, ResourceKind.GROUP, name, Action.CREATE)
            admin.create_group(name, change)
        else:
            self._require(call, ResourceKind.GROUP, name, Action.UPDATE)
            admin.update_group(name, change)

    def _set_request_mode(self, call: RemotingCall) -> None:
        """Let a group's consumers get messages of a topic by POP, or pull them. Consumers see it when they next ask.

        With POP all consumers share all queues: the number of consumers that are to share one is not stored.
        """
        members, admin = json_object(call.command.body), self._administration()
        topic, name = _name_in(members, "topic"), _name_in(members, "consumerGroup")
        mode = member_text(members, "mode", "PULL")
        self._require(call, ResourceKind.GROUP, name, Action.UPDATE)
        if topic.startswith(RETRY_PREFIX):
            raise Forbidden("retry topic is not allowed to set mode")
        if mode not in ("POP", "PULL"):
            raise RemotingRefused(
                ResponseCode.INVALID_PARAMETER, f"mode in the body is {mode[:32]!r}; POP and PULL are allowed"
            )
        admin.topic(topic)
        popped = pop_topics(admin.group(name)) - {topic}
        names = ",".join(sorted(popped | {topic} if mode == "POP" else popped))
        admin.update_group(name, GroupChange(attributes={POP_TOPICS: names}))
        call.answer()

    def _delete_group(self, call: RemotingCall) -> None:
        """Delete a group with its progress; one that does not exist is deleted already."""
        name = text_of(call.fields, "groupName")
        self._require(call, ResourceKind.GROUP, name, Action.DELETE)
        with contextlib.suppress(GroupNotFound):
            self._administration().delete_group(name)
        call.answer()

    def _group(self, call: RemotingCall) -> None:
        name = text_of(call.fields, "group")
        self._require(call, ResourceKind.GROUP, name, Action.GET)
        call.answer(body=orjson.dumps(group_config(self._administration().group(name))))

    def _all_groups(self, call: RemotingCall) -> None:
        """Answer with the settings of all groups, or of one page of them."""
        self._require(call, ResourceKind.GROUP, "*", Action.LIST)
        page = _Page.of(call.fields, "groupSeq", "maxGroupNum")

        async def answer(time_slice: TimeSlice) -> None:
            listed = await page.cut(self._administration().groups(), group_config, time_slice)
            body = {"dataVersion": listed.version, "forbiddenTable": {}, "subscriptionGroupTable": listed.configs}
            call.answer(fields={"totalGroupNum": str(listed.total)}, body=orjson.dumps(body))

        self._edge.paced(call, answer)

    def _reset_offset(self, call: RemotingCall) -> None:
        """Move a group in a topic. Clients that own its queues are told at their next pulls, see `RemotingPulls`."""
        fields = call.fields
        topic, group = text_of(fields, "topic"), text_of(fields, "group")
        self._require(call, ResourceKind.GROUP, group, Action.UPDATE)
        self._edge.require(call, (*read(topic, group), Access(ResourceKind.TOPIC, topic, Action.GET)))
        time_ms, offset = integer_of(fields, "timestamp"), integer_of(fields, "offset", -1)
        number = integer_of(fields, "queueId", -1, within=INT32)
        to: ResetTarget = Place.LATEST if time_ms < 0 else StoredSince(min(time_ms, TIME_MS_MAX))
        if offset >= 0:
            to = QueueOffset(offset)
        admin = self._administration()

        async def answer(time_slice: TimeSlice) -> None:
            queue_number = None if number < 0 else number
            resets = await admin.reset_offset(group, topic, to, time_slice, queue_number=queue_number)
            rows = keyed((queue_of(admin.facts.name, each.queue), each.new) for each in resets)
            call.answer(body=b'{"offsetTable":' + rows + b"}")

        self._edge.paced(call, answer)

    # -- common parts

    def _require(self, call: RemotingCall, kind: ResourceKind, name: str, action: Action) -> None:
        self._edge.require(call, (Access(kind, name, action),))


class _Listed(NamedTuple):
    """The settings of a page by name, the number of all, and the version of the whole table.

    A slave of RocketMQ takes over a table whose version differs from its own, and begins with the first page again if
    the version changes between two pages. So the version is derived from the rows.
    """

    configs: Mapping[str, Json]
    total: int
    version: Json


class _Page(NamedTuple):
    """A page is a part of a list by name: RocketMQ's tools since 5.5 ask for one after the other."""

    start: int
    size: int
    is_whole: bool

    @classmethod
    def of(cls, fields: Mapping[str, str], start: str, size: str) -> _Page:
        """Return the page that a request asks for; without a page the whole list."""
        wanted = integer_of(fields, size, LISTED_MAX, within=INT32)
        begin = max(integer_of(fields, start, 0, within=INT32), 0)
        return cls(begin, min(max(wanted, 1), LISTED_MAX), is_whole=size not in fields)

    async def cut(
        self, found: Iterator[ListedT], config: Callable[[ListedT], dict[str, Json]], time_slice: TimeSlice
    ) -> _Listed:
        """Return the page. Raises RemotingRefused if it is the whole list, and that is too long."""
        configs: dict[str, Json] = {}
        count = checksum = 0
        for each in found:
            row = config(each)
            checksum = crc32(orjson.dumps(row), checksum)
            if self.start <= count < self.start + self.size:
                configs[each.name] = row
            count += 1
            await time_slice.pause()
        if self.is_whole and count > self.size:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"{count} rows are too many for one answer: ask by pages")
        return _Listed(configs, count, {"counter": checksum, "stateVersion": 0, "timestamp": 0})


def _name_in(config: Mapping[str, Json], member: str) -> str:
    name = member_text(config, member)
    if not name:
        raise RemotingRefused(ResponseCode.INVALID_PARAMETER, f"{member} in the body is missing")
    return name


def _attributes(text: str) -> dict[str, str]:
    """Return the changes of attributes in a text, `+message.type=FIFO,-other`."""
    changes: dict[str, str] = {}
    for each in text.split(","):
        name, _, value = each.strip().partition("=")
        changes[name] = value
    return changes


def _type_of(attributes: Mapping[str, str]) -> TopicType | None:
    """Return the type that attributes give to a topic; None without one. Names of changes begin with `+`."""
    value = attributes.get(TYPE_ATTRIBUTE, attributes.get(f"+{TYPE_ATTRIBUTE}"))
    if value is None:
        return None
    if value not in _TYPES:
        raise RemotingRefused(ResponseCode.INVALID_PARAMETER, f"{TYPE_ATTRIBUTE} {value[:32]!r} is unknown")
    return _TYPES[value]
