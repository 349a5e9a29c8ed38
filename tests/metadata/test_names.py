"""Names: the rules of protocol v2 and the names made by the broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.names import (
    dead_letter_topic_name,
    is_light_queue,
    is_system_group,
    is_system_topic,
    retry_topic_name,
)
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import IllegalGroupName, IllegalTopicName, check_group_name, check_topic_name
from quarry_mq.store.metadata.topics import check_internal_topic_name

ALPHABET = "%|abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

SYSTEM_TOPICS = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
    "rmq_sys_",
    "rmq_sys_wheel_timer",
]


@pytest.mark.parametrize("name", ["a", "Orders", "%RETRY%g_t", "%DLQ%g", "a|b-c_d%", "0", "t" * 127, "RMQ_SYS_MINE"])
def test_names_a_client_may_use_for_topics(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("a b", "allowed"),
        ("a.b", "allowed"),
        ("a@b", "allowed"),
        ("a+b", "allowed"),
        ("$a", "allowed"),
        ("a\n", "allowed"),
        ("тема", "allowed"),
        ("a\u0661", "allowed"),
        ("\ud800", "allowed"),
        ("t" * 128, "128 characters, at most 127"),
        *((name, "reserved") for name in SYSTEM_TOPICS),
    ],
)
def test_illegal_topic_names_say_which_rule_they_break(name: str, reason: str) -> None:
    with pytest.raises(IllegalTopicName, match=reason) as caught:
        check_topic_name(name)
    assert isinstance(caught.value, Invalid)


@pytest.mark.parametrize("name", ["a", "CID_ONS", "g" * 120, "%LMQ%dev1"])
def test_names_a_client_may_use_for_groups(name: str) -> None:
    check_group_name(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "allowed"),
        ("g" * 121, "121 characters, at most 120"),
        ("CID_RMQ_SYS_", "reserved"),
        ("CID_RMQ_SYS_TRANS", "reserved"),
    ],
)
def test_illegal_group_names_say_which_rule_they_break(name: str, reason: str) -> None:
    with pytest.raises(IllegalGroupName, match=reason):
        check_group_name(name)


@given(st.text(max_size=10))
def test_exactly_the_alphabet_is_allowed(name: str) -> None:
    fits = bool(name) and set(name) <= set(ALPHABET)
    if fits and not is_system_topic(name):
        check_topic_name(name)
    else:
        with pytest.raises(IllegalTopicName):
            check_topic_name(name)


def test_a_hostile_name_does_not_fill_the_log() -> None:
    with pytest.raises(IllegalTopicName) as caught:
        check_topic_name("x" * 1_000_000)
    assert len(str(caught.value)) < 200


def test_names_made_for_a_group_of_the_greatest_length_can_be_stored() -> None:
    group = "g" * 120
    check_topic_name(dead_letter_topic_name(group))  # consumers read their dead letter topic directly
    check_internal_topic_name(retry_topic_name(group))
    check_internal_topic_name(retry_topic_name(f"{group}_{'t' * 127}"))


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "t" * 256, "ä" * 128])
def test_what_the_broker_itself_may_not_store(name: str) -> None:
    with pytest.raises(IllegalTopicName):
        check_internal_topic_name(name)


def test_names_made_out_of_names() -> None:
    assert retry_topic_name("g") == "%RETRY%g"
    assert dead_letter_topic_name("g") == "%DLQ%g"
    assert is_light_queue("%LMQ%dev1")
    assert not is_light_queue("LMQ%dev1")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("acme-cg")
