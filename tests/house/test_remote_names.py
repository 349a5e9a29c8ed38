"""Texts from outside name no path, command, class or address: every text of an admin request is on a list."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final, Literal, get_args, get_origin

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import ByteSize

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2, definition_pb2
from quarry_mq.protocol.proto.quarry.admin import v1
from quarry_mq.server.settings.live_settings import live_fields

WHAT_TEXTS_NAME: Final = {
    "name": "a topic, a group or a backup that there is, or a topic or group that shall be: checked names",
    "topic": "a topic, looked up",
    "group": "a group, looked up",
    "names": "topics or groups, looked up",
    "members": "members of the cluster, looked up",
    "method": "a call of this port, looked up",
    "request": "the request of that call: parsed as one that is made directly",
    "prefix": "the beginning of names that are listed",
    "lite_topic": "a lite topic that there is",
    "after": "a name of a topic, a group or a lite topic, compared: where a list goes on",
    "contains": "a part of names that are listed",
    "series": "a series of the last hour, looked up",
    "attributes.key": "what operators note of a topic or group: bounded and kept, a few words looked at",
    "attributes.value": "the same; what is looked at is a number, one of some words, or a topic that is compared",
    "key": "a key of messages, or a setting out of those that can be changed",
    "value": "a setting's new value: a number, a switch or a level, checked as in the file",
    "user": "a user that there is",
    "kind": "one of two words",
    "certificates": "subjects of certificates: compared, never opened",
    "certificates.subjects": "subjects of certificates: compared, never opened",
    "secret": "what a user signs with: sealed, and compared",
    "resource": "what rules are about: a kind and a name, compared",
    "rule.resource": "the same",
    "action": "one of seven words",
    "rule.actions": "one of seven words",
    "decision": "one of two words",
    "rule.decision": "one of two words",
    "source": "an address that calls come from: compared, nothing is ever sent there",
    "rule.sources": "networks that calls come from: compared, nothing is ever sent there",
    "asked_by": "who asks, for the log; bounded",
    "reset_offset.group": "a group, looked up",
    "reset_offset.topic": "a topic, looked up",
    "resend_dead_letters.group": "a group, looked up",
    "resend_messages.topic": "a topic, looked up",
    "resend_messages.to_topic": "a topic, looked up",
    "resend_messages.key": "a key of messages, looked up in the index",
    "topic.name": "a topic, looked up",
    "topics.name": "topics, looked up",
    "group.name": "a group, looked up",
    "topic.resource_namespace": "never looked at",
    "topics.resource_namespace": "never looked at",
    "group.resource_namespace": "never looked at",
    "deployment_name": "never looked at",
    "client_id": "a client that is connected, looked up",
    "id": "a message: an address that is compared and an offset of the log, or looked up in the index",
    "ids": "messages, looked up in the index",
    "liteTopic": "a lite topic, looked up in what clients are subscribed to",
    "message_id": "a message, looked up in the index",
    "message_key": "a key of messages, looked up in the index",
    "subscription": "refused",
    "scroll_id": "two numbers",
    "cursor": "fourteen bytes of numbers that are compared and looked up",
    "filter.expression": "a filter, read as that of a consumer and evaluated over a message's properties",
    "filter.body_contains": "bytes that are looked for in a message's body",
    "broker_name": "compared with the broker's own",
    "protocol_type": "never looked at",
    "client_address": "never looked at: nothing is ever sent there",
    "expression.expression": "never looked at",
    "body": "a message's, stored",
    "tag": "a message's, checked as a producer's and stored",
    "user_properties.key": "a message's, checked as a producer's and stored",
    "user_properties.value": "a message's, checked as a producer's and stored",
    "system_properties": "a message's, checked as a producer's and stored",
    "ext_info.key": "never looked at",
    "ext_info.value": "never looked at",
}
"""Every text in a request to the admin port, by its name, and why it can do no harm. Nothing is here that is a path."""

CLOSED_TYPES: Final = (int, float, bool, ByteSize)


def texts_of(message: Descriptor, prefix: str = "", depth: int = 0) -> Iterator[str]:
    for field in message.fields:
        name = f"{prefix}{field.name}"
        is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
        if is_text or field.message_type is definition_pb2.SystemProperties.DESCRIPTOR:
            yield name
        elif field.message_type is not None and depth < 5:
            yield from texts_of(field.message_type, f"{name}.", depth + 1)


def requests() -> Iterator[tuple[str, Descriptor]]:
    names = [f"{v1.__name__}.{module.name}" for module in pkgutil.iter_modules(v1.__path__)]
    modules = [import_module(name) for name in names if name.endswith("_pb2")]
    for module in (*modules, admin_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield f"{service.name}.{method.name}", method.input_type


def test_every_text_of_an_admin_request_is_known() -> None:
    found = {text for _, message in requests() for text in texts_of(message)}
    assert len(list(requests())) > 30
    assert found == set(WHAT_TEXTS_NAME)


def is_closed(annotation: Any) -> bool:
    """A number, a switch, or one of a few words that the code lists."""
    if get_origin(annotation) is Literal:
        return all(isinstance(each, str) for each in get_args(annotation))
    return annotation in CLOSED_TYPES


def test_what_can_be_changed_while_a_broker_runs_is_a_number_a_switch_or_a_level() -> None:
    fields = dict(live_fields())
    assert len(fields) > 30
    assert {key for key, field in fields.items() if not is_closed(field.annotation)} == set()


def test_where_a_broker_listens_and_what_it_reads_cannot_be_changed_while_it_runs() -> None:
    sections = {key.partition(".")[0] for key, _ in live_fields()}
    assert sections <= {
        "consume_queue",
        "delivery",
        "expiry",
        "groups",
        "limits",
        "log",
        "topics",
        "transactions",
        "verification",
    }
