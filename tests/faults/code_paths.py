"""The code that production runs between a send and what is stored: in which of it a simulated broker works."""

from __future__ import annotations

from enum import Enum
from typing import Final

from quarry_mq.store.message import EncodedMessage, Message
from quarry_mq.store.native import NATIVE
from quarry_mq.store.record import encode_properties, tags_code

CACHED_QUEUES_MAX: Final = 4
"""Fewer than the queues of the tests, so that caches drop some of them all the time."""
ENCODED: Final = 0.6
"""Share of messages that are encoded when they are sent, as nearly all are in production."""
BEGUN: Final = 0.5
"""Share of flushes that are begun and ended separately, as with the native part in production."""
COMPARED: Final = 0.5
"""Share of removals after which caches are compared with the database. Not all: a comparison fills the caches."""


class CodePath(Enum):
    """The code that sends, flushes and entries of queues go through."""

    APPEND = "append"
    """Sends that are never encoded, and whole flushes, without the native part; caches hold all queues of a test."""
    PYTHON = "python"
    """Either kind of sends, in any mixture, and either kind of flushes, without the native part."""
    NATIVE = "native"
    """Production's path with the native part: native records, staged entries and the warmed-up table of maxima."""


CODE_PATHS: Final = [CodePath.PYTHON] if NATIVE is None else [CodePath.PYTHON, CodePath.NATIVE]
"""The code paths of production."""


def encoded_message(message: Message) -> EncodedMessage:
    """The message as the front encodes it."""
    return EncodedMessage(
        message.topic,
        message.queue_number,
        message.body,
        encode_properties(message.properties),
        message.born_timestamp_ms,
        message.born_host,
        message.store_host,
        message.system_flag,
        tags_code(message.topic, message.properties, 0),
    )
