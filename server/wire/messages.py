"""Conversion of messages between protobuf and the store, on the hot path of every send and every delivery.

docs/formats/protocol.md says which property holds which field. Two consequences of how records hold properties concern
senders: keys come back split at spaces, and a property with an empty value does not come back.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Final
from zlib import crc32

from quarry_mq.protocol.messages import property_names as reserved
from quarry_mq.protocol.messages.bodies import compression_name, plain_body
from quarry_mq.protocol.messages.property_names import COMPRESSED_BY, KEYS, LIGHT_QUEUES, TAGS, UNIQUE_KEY
from quarry_mq.protocol.messages.system_flag import COMPRESSED, COMPRESSION_MASK, TransactionState
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import TIME_MS_MAX, fill_ms, to_ms
from quarry_mq.server.wire.message_types import stored_message_type
from quarry_mq.server.wire.validate import CheckedMessage, has_control_character
from quarry_mq.store.message import Host, Message, host_text
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.record import StoredMessage, offset_message_id

NO_HOST: Final = Host(bytes(4), 0)
"""The address of peers that have none, such as those on Unix sockets."""

PORT_MAX: Final = 65_535

PLAIN_SIZE_MAX: Final = 8 * 1024 * 1024
"""Bytes that a body may have after it is uncompressed for its receiver."""

CRC32_LANGUAGE: Final = "JAVA"
"""The language, in the header of a call, of clients that get a CRC32 as the digest of a body.

CRC32 takes a tenth of the time of MD5 on both sides. All versions of this client write it in the same way: in
hexadecimal, upper case, without leading zeros. Clients of other languages disagree, so they get MD5.
"""

_V4_MAPPED: Final = ip_network("::ffff:0:0/96")


@lru_cache(maxsize=4096)
def host_from_text(text: str) -> Host:
    """Return `ip:port` (IPv6 in brackets) as records hold it, or `NO_HOST` for any other text."""
    address_text, _, port_text = text.rpartition(":")
    try:
        address = ip_address(address_text.removeprefix("[").removesuffix("]"))
        port = int(port_text)
    except ValueError:
        return NO_HOST
    if not 0 <= port <= PORT_MAX:
        return NO_HOST
    if not isinstance(address, IPv4Address) and address in _V4_MAPPED:
        # a dual-stack listener shows IPv4 peers in this form; as IPv4 the record is 12 bytes shorter
        return Host(address.packed[12:], port)
    return Host(address.packed, port)


def to_message(
    checked: CheckedMessage,
    *,
    topic: str,
    queue_number: int,
    peer: str,
    store_host: Host,
    now_ms: int,
) -> Message:
    """Return a checked message as the store takes it, with all its properties. `peer` is the sender's `ip:port`."""
    message, kind, properties, keys = checked
    system = message.system_properties
    tag = system.tag
    if tag:
        properties[TAGS] = tag
    if keys:
        properties[KEYS] = " ".join(keys)
    properties[UNIQUE_KEY] = system.message_id
    properties[reserved.PRODUCER_GROUP] = topic
    born_ms = to_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    if not 0 <= born_ms <= TIME_MS_MAX:
        born_ms = now_ms
    properties[reserved.BORN_TIMESTAMP] = str(born_ms)
    born_host = system.born_host
    properties[reserved.BORN_HOST] = peer if not born_host or has_control_character(born_host) else born_host
    system_flag = COMPRESSED if system.body_encoding == definition.GZIP else 0
    if kind != definition.NORMAL:
        system_flag |= _add_special(properties, system)
        if kind == definition.LITE:
            properties[LIGHT_QUEUES] = light_queue_name(topic, system.lite_topic)
    trace_context = system.trace_context
    if trace_context:
        properties[reserved.TRACE_CONTEXT] = trace_context
    if system.delivery_attempt > 0:
        properties[reserved.RECONSUME_TIMES] = str(system.delivery_attempt)
    return Message(
        topic,
        queue_number,
        message.body,
        properties,
        born_ms,
        host_from_text(peer),
        store_host,
        system_flag=system_flag,
    )


def _add_special(properties: dict[str, str], system: definition.SystemProperties) -> int:
    """Add the properties that only messages other than NORMAL have. Returns the bits to add to the system flag."""
    bits = 0
    if system.message_type == definition.TRANSACTION:
        properties[reserved.TRANSACTION] = "true"
        bits = TransactionState.PREPARED
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            properties[reserved.TRANSACTION_RECOVERY_S] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties[reserved.DELIVER_AT_MS] = str(to_ms(system.delivery_timestamp))
    if system.message_group:
        properties[reserved.MESSAGE_GROUP] = system.message_group
    if system.HasField("priority"):
        properties[reserved.PRIORITY] = str(system.priority)
    if system.lite_topic:
        properties[reserved.LITE_TOPIC] = system.lite_topic
    return bits


def fill_message(
    target: definition.Message,
    stored: StoredMessage,
    *,
    topic: str,
    receipt_handle: str,
    delivery_attempt: int,
    invisible_ms: int | None = None,
    digest: definition.DigestType = definition.MD5,
) -> None:
    """Fill in a stored message as it is delivered. `topic` is the one the receiver asked for.

    The receiver sees exactly the sender's user properties. The digest, MD5 or CRC32, is computed over the body as it is
    delivered.
    `delivery_attempt` counts from 1.
    """
    properties = stored.properties
    target.topic.name = topic
    body = bytes(stored.body)
    system = target.system_properties
    get = properties.get
    system.body_encoding = definition.IDENTITY
    if stored.system_flag & COMPRESSED:
        if is_gzip_of_sender(stored):
            system.body_encoding = definition.GZIP
        else:
            body = _fill_plain(target, stored.system_flag, body)
    target.body = body
    tag = get(TAGS)
    if tag is not None:
        system.tag = tag
    keys = get(KEYS)
    if keys is not None:
        system.keys.extend([key for key in keys.split(" ") if key])
    system.message_id = get(UNIQUE_KEY) or offset_message_id(stored.store_host, stored.physical_offset)
    system.body_digest.type = digest
    system.body_digest.checksum = (
        f"{crc32(body):X}" if digest == definition.CRC32 else md5(body, usedforsecurity=False).hexdigest().upper()
    )
    system.message_type = stored_message_type(properties)
    fill_ms(system.born_timestamp, min(max(stored.born_timestamp_ms, 0), TIME_MS_MAX))
    system.born_host = host_text(stored.born_host)
    fill_ms(system.store_timestamp, min(max(stored.store_timestamp_ms, 0), TIME_MS_MAX))
    system.store_host = host_text(stored.store_host)
    system.receipt_handle = receipt_handle
    system.queue_id = stored.queue_number
    system.queue_offset = stored.queue_offset
    system.delivery_attempt = delivery_attempt
    if invisible_ms is not None:
        fill_ms(system.invisible_duration, invisible_ms)
    if not properties.keys().isdisjoint(RARE_PROPERTIES):
        _fill_rare(system, properties)
    user_properties = target.user_properties
    for name, value in properties.items():
        if name not in reserved.RESERVED_PROPERTIES:
            user_properties[name] = value


def digest_for(language: str | None) -> definition.DigestType:
    """Return the type of digest for clients of this language, as the header of their calls names it."""
    return definition.CRC32 if language == CRC32_LANGUAGE else definition.MD5


def is_gzip_of_sender(stored: StoredMessage) -> bool:
    """Return whether the sender declared a compressed body as GZIP, so that receivers get it unchanged.

    Producers of the remoting protocol name a method in the system flag, of which receivers never hear. The old ones
    name none; they are told apart from gRPC senders by a property that the gRPC protocol adds to each message.
    """
    return not stored.system_flag & COMPRESSION_MASK and reserved.BORN_TIMESTAMP in stored.properties


def _fill_plain(target: definition.Message, system_flag: int, body: bytes) -> bytes:
    """Return the body uncompressed. If that is not possible, return it unchanged and add its method as a property."""
    plain = plain_body(system_flag, body, PLAIN_SIZE_MAX)
    if plain is None:
        target.user_properties[COMPRESSED_BY] = compression_name(system_flag, body) or ""
        return body
    return plain


RARE_PROPERTIES: Final = frozenset(
    {
        reserved.DELIVER_AT_MS,
        reserved.MESSAGE_GROUP,
        reserved.TRACE_CONTEXT,
        reserved.DEAD_LETTER_TOPIC,
        reserved.LITE_TOPIC,
        reserved.PRIORITY,
        reserved.TRANSACTION_RECOVERY_S,
    }
)
"""Properties with fields of their own that most messages do not have."""


def _fill_rare(system: definition.SystemProperties, properties: dict[str, str]) -> None:
    """Fill in the fields that most messages do not have. Malformed numbers, in foreign stores, are left out."""
    deliver_at_ms = _number(properties.get(reserved.DELIVER_AT_MS), TIME_MS_MAX)
    if deliver_at_ms is not None:
        fill_ms(system.delivery_timestamp, deliver_at_ms)
    message_group = properties.get(reserved.MESSAGE_GROUP)
    if message_group is not None:
        system.message_group = message_group
    trace_context = properties.get(reserved.TRACE_CONTEXT)
    if trace_context is not None:
        system.trace_context = trace_context
    dead_letter_topic = properties.get(reserved.DEAD_LETTER_TOPIC)
    if dead_letter_topic is not None:
        system.dead_letter_queue.topic = dead_letter_topic
        system.dead_letter_queue.message_id = properties.get(reserved.DEAD_LETTER_MESSAGE_ID, "")
    lite_topic = properties.get(reserved.LITE_TOPIC)
    if lite_topic is not None:
        system.lite_topic = lite_topic
    priority = _number(properties.get(reserved.PRIORITY), 2**31 - 1)
    if priority is not None:
        system.priority = priority
    recovery_s = _number(properties.get(reserved.TRANSACTION_RECOVERY_S), TIME_MS_MAX // 1000)
    if recovery_s is not None:
        system.orphaned_transaction_recovery_duration.seconds = recovery_s


def _number(text: str | None, maximum: int) -> int | None:
    """Return the number, or None if the text is not one or exceeds the maximum of its field."""
    if text is None or not text.isdecimal() or len(text) > len(str(maximum)):
        return None
    number = int(text)
    return number if number <= maximum else None
