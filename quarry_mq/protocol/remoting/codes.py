"""Numbers of the remoting protocol: what a request asks for, and how a response ends it.

Source: `RequestCode` and `ResponseCode` of RocketMQ 5.5.0.
"""

from __future__ import annotations

from enum import IntEnum


class RequestCode(IntEnum):
    """A request code says what a request asks for. The name server's codes and the broker's do not overlap."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MESSAGE_STORE_TIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MESSAGE_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    """Sent by the broker."""
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    """Sent by the broker."""
    LOCK_BATCH_QUEUES = 41
    UNLOCK_BATCH_QUEUES = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTE_BY_TOPIC = 105
    GET_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_GROUP = 200
    GET_ALL_GROUP_CONFIG = 201
    GET_TOPIC_STATS = 202
    GET_CONSUMER_CONNECTIONS = 203
    GET_PRODUCER_CONNECTIONS = 204
    GET_ALL_TOPICS_FROM_NAME_SERVER = 206
    DELETE_GROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAME_SERVER = 216
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_SYSTEM_TOPICS_FROM_NAME_SERVER = 304
    GET_SYSTEM_TOPICS_FROM_BROKER = 305
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    GET_TOPIC_CONFIG = 351
    GET_GROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370


class ResponseCode(IntEnum):
    """A response code says how a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    CONSUMER_NOT_ONLINE = 206
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604


_NAMES = {each.value: each.name for each in RequestCode}


def request_name(code: int) -> str:
    """Return the name of a request code; its number if it is unknown."""
    return _NAMES.get(code) or str(code)
