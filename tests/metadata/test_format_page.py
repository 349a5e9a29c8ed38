"""docs/formats/metadata.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.names import (
    GROUP_NAME_MAX,
    INTERNAL_TOPIC_NAME_MAX,
    SYSTEM_TOPICS,
    TOPIC_NAME_MAX,
    dead_letter_topic_name,
    retry_topic_name,
)
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import QUEUES_MAX, ConsumerOffsetTable, ExponentialBackoff, Group, Topic, TopicType
from quarry_mq.store.metadata.groups import ATTEMPTS_MAX, BACKOFF_MULTIPLIER_MAX, BACKOFF_STEPS_MAX, encode_group
from quarry_mq.store.metadata.rows import ATTRIBUTES_SIZE_MAX
from quarry_mq.store.metadata.topics import encode_topic
from quarry_mq.store.security.model import CERTIFICATES_MAX, RULES_MAX, SECRETS_MAX, decode_user, encode_user
from quarry_mq.store.security.policies import SOURCES_MAX, decode_policy, encode_policy
from quarry_mq.store.state.identity import FAMILIES

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "metadata.md").read_text(encoding="utf-8")


def test_the_example_rows_are_what_is_stored() -> None:
    orders = Topic("Orders", TopicType.FIFO, 8, 8, attributes={"lite.topic.expiration": "30"})
    billing = Group("billing", fifo=True, max_attempts=3, backoff=ExponentialBackoff(1000, 60_000, 1.5))
    assert f"\n{encode_topic(orders).decode()}\n" in PAGE
    assert f"\n{encode_group(billing).decode()}\n" in PAGE


def test_the_example_user_and_rules_are_what_is_stored() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("{") and "format" in line]
    (user,) = (line for line in rows if "sealed" in line)
    (policy,) = (line for line in rows if "rules" in line)
    assert encode_user(decode_user("orders", user.encode())).decode() == user
    assert encode_policy(decode_policy("orders", policy.encode())).decode() == policy


def test_the_example_offset_is_what_is_stored() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    batch = engine.batch()
    ConsumerOffsetTable(engine).stage(batch, "billing", QueueId("Orders", 258), QueueOffset(4660))
    engine.write(batch)
    shown = {
        tuple(part.replace(" ", "") for part in line.split("->"))
        for line in PAGE.splitlines()
        if line.startswith(("01 ", "02 "))
    }
    stored = engine.family("offsets").scan(KeyRange(b"", None))
    assert shown == {(key.hex(), value.hex()) for key, value in stored}


@pytest.mark.parametrize("name", sorted(SYSTEM_TOPICS))
def test_every_system_topic_is_listed(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("kind", TopicType)
def test_every_topic_type_is_listed(kind: TopicType) -> None:
    assert f"`{kind.value}`" in PAGE


@pytest.mark.parametrize(
    "text",
    [
        f"| topic          | {TOPIC_NAME_MAX} ",
        f"| group          | {GROUP_NAME_MAX} ",
        f"| internal topic | {INTERNAL_TOPIC_NAME_MAX} ",
        f"1 to {QUEUES_MAX} for new topics",
        f"at most {ATTRIBUTES_SIZE_MAX} characters",
        f"1 to {ATTEMPTS_MAX}",
        f"a list of 1 to {BACKOFF_STEPS_MAX} delays",
        f"multiplier 1 to {BACKOFF_MULTIPLIER_MAX}",
        f"at most {CERTIFICATES_MAX} ",
        f"the valid secrets, at most {SECRETS_MAX};",
        f"at most {RULES_MAX} rules",
        f"at most {SOURCES_MAX} sources",
        retry_topic_name("<group>"),
        retry_topic_name("<group>_<topic>"),
        dead_letter_topic_name("<group>"),
    ],
)
def test_every_limit_and_made_name_is_stated(text: str) -> None:
    assert text in PAGE
