"""RocketMQ's JSON text with its unquoted integer keys."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.store.rocketmq import NotJson, parse_json
from quarry_mq.store.rocketmq.model import quote_integer_keys


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        ('{"a":{0:12,1:9}}', {"a": {"0": 12, "1": 9}}),
        ('{"a":{"0":12,1:9}}', {"a": {"0": 12, "1": 9}}),
        ('{"offsetTable":{1:5,3:8\n\t}\n}', {"offsetTable": {"1": 5, "3": 8}}),
        ('{"a":{\n\t\t\t0:2,\n\t\t\t1 : 3\n}}', {"a": {"0": 2, "1": 3}}),
        ('{-1:{2:[3,4]},5:6}', {"-1": {"2": [3, 4]}, "5": 6}),
        ('{"k,1:2":"{3:4}"}', {"k,1:2": "{3:4}"}),
        ('{"k":"\\"{1:2}"}', {"k": '"{1:2}'}),
        ('{"k":"\\\\",1:2}', {"k": "\\", "1": 2}),
        ('{"t@g":{0:{"o":[100,1,2],"oc":{100:1}}}}', {"t@g": {"0": {"o": [100, 1, 2], "oc": {"100": 1}}}}),
        ('{"a":"tab\tinside"}', {"a": "tab\tinside"}),
    ],
)  # fmt: skip
def test_what_rocketmq_writes_is_read(text: str, value: object) -> None:
    assert parse_json(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"\x00" * 4096,
        b"{",
        b'{"a":',
        b'{"a',
        b'{"a\\',
        b"[1]",
        b"7",
        b"null",
        b'"{}"',
        b'{"a":{x:1}}',
        b'{"a":{1.5:1}}',
        b'{"a":\xff}',
        b'{"a":1}{"b":2}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_everything_else_is_not_json(text: bytes) -> None:
    with pytest.raises(NotJson):
        parse_json(text)


TEXTS = st.text(st.sampled_from('ab01 ,:{}[]"\\-\n\tü'), max_size=12)
KEYS = TEXTS | st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def written_by_rocketmq(value: object, gap: str) -> str:
    """The text with integer keys bare, and `gap` wherever JSON allows white space."""
    if isinstance(value, dict):
        members = [
            f"{gap}{key if isinstance(key, int) else json.dumps(key)}{gap}:{gap}{written_by_rocketmq(each, gap)}"
            for key, each in value.items()
        ]
        return "{" + f"{gap},".join(members) + gap + "}"
    if isinstance(value, list):
        return f"[{gap}" + f"{gap},{gap}".join(written_by_rocketmq(each, gap) for each in value) + f"{gap}]"
    return json.dumps(value, ensure_ascii=False)


def with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): with_text_keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_text_keys(each) for each in value]
    return value


@settings(max_examples=300)
@given(st.dictionaries(KEYS, VALUES, max_size=5), st.sampled_from(["", " ", "\n\t\t"]))
def test_any_object_comes_back(value: dict[str | int, Any], gap: str) -> None:
    assert parse_json(written_by_rocketmq(value, gap).encode()) == with_text_keys(value)


@settings(max_examples=300)
@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_proper_json_is_left_alone(value: dict[str, Any]) -> None:
    text = json.dumps(with_text_keys(value))
    assert quote_integer_keys(text) == text


@settings(max_examples=300)
@given(st.text(st.sampled_from('01a{},:"\\ \n'), max_size=40).map(str.encode) | st.binary(max_size=40))
def test_no_text_does_worse_than_not_json(text: bytes) -> None:
    try:
        value = parse_json(text)
    except NotJson:
        return
    assert isinstance(value, dict)


def test_hostile_text_costs_linear_time() -> None:
    """A lost closing quote must not make every later quote a new start: the tokens cover the text once."""
    text = '{"' + '\\"{1:' * 200_000
    tokens = quote_integer_keys(text)
    assert tokens == text, "all of it is one unfinished string"
    assert len(re.findall('"', tokens)) == 200_001
