"""Errors as codes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from quarry_mq.kv import EngineCorrupt, EngineFull
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.errors import InvalidReceiptHandle, OwnerAway
from quarry_mq.server.wire.status import (
    INTERNAL_TEXT,
    Refused,
    code_of,
    fill_overall,
    fill_status,
    is_expected,
    status_of,
)
from quarry_mq.store import errors
from quarry_mq.store.metadata import IllegalGroupName, IllegalTopicName

TABLE = [
    (errors.TopicNotFound("x"), definition.TOPIC_NOT_FOUND),
    (errors.GroupNotFound("x"), definition.CONSUMER_GROUP_NOT_FOUND),
    (errors.Forbidden("x"), definition.FORBIDDEN),
    (errors.AlreadyExists("x"), definition.BAD_REQUEST),
    (errors.OffsetOutOfRange("x"), definition.ILLEGAL_OFFSET),
    (errors.MessageTooLarge("x"), definition.PAYLOAD_TOO_LARGE),
    (errors.Invalid("x"), definition.BAD_REQUEST),
    (errors.Busy("x"), definition.TOO_MANY_REQUESTS),
    (OwnerAway("x"), definition.PROXY_TIMEOUT),
    (errors.StorePoisoned("x"), definition.INTERNAL_SERVER_ERROR),
    (errors.BrokerError("x"), definition.INTERNAL_SERVER_ERROR),
    (IllegalTopicName("x"), definition.ILLEGAL_TOPIC),
    (IllegalGroupName("x"), definition.ILLEGAL_CONSUMER_GROUP),
    (InvalidReceiptHandle("x"), definition.INVALID_RECEIPT_HANDLE),
    (Refused(definition.ILLEGAL_OFFSET, "x"), definition.ILLEGAL_OFFSET),
    (DecodeError("x"), definition.BAD_REQUEST),
    (EngineFull("x"), definition.TOO_MANY_REQUESTS),
    (EngineCorrupt("x"), definition.INTERNAL_SERVER_ERROR),
    (ValueError("x"), definition.INTERNAL_SERVER_ERROR),
]


@pytest.mark.parametrize(("error", "code"), TABLE, ids=lambda value: type(value).__name__)
def test_every_error_has_its_code(error: Exception, code: definition.Code) -> None:
    assert code_of(error) == code
    assert is_expected(error) == (code != definition.INTERNAL_SERVER_ERROR)


def test_a_subclass_has_its_bases_code() -> None:
    class StillBusy(errors.Busy):
        pass

    assert code_of(StillBusy("x")) == definition.TOO_MANY_REQUESTS


def test_the_text_of_an_unexpected_error_stays_inside() -> None:
    assert status_of(ValueError("secret")).message == INTERNAL_TEXT
    assert status_of(errors.StorePoisoned("flush failed")).message == "flush failed"
    assert status_of(EngineFull("no room")).message == "no room"
    assert "protobuf" in status_of(DecodeError("secret")).message


def test_the_outcome_of_one() -> None:
    status = definition.Status(message="left over")
    fill_status(status, None)
    assert (status.code, status.message) == (definition.OK, "OK")
    fill_status(status, errors.Busy("too much"))
    assert (status.code, status.message) == (definition.TOO_MANY_REQUESTS, "too much")


def test_the_outcome_of_several() -> None:
    """Point 43."""
    status = definition.Status()
    gone, busy = InvalidReceiptHandle("gone"), errors.Busy("busy")
    for outcomes, code in (
        ([None, None], definition.OK),
        ([gone, gone], definition.INVALID_RECEIPT_HANDLE),
        ([gone, None], definition.MULTIPLE_RESULTS),
        ([gone, busy], definition.MULTIPLE_RESULTS),
        ([None], definition.OK),
        ([], definition.OK),
    ):
        fill_overall(status, outcomes)  # type: ignore[arg-type]
        assert status.code == code
