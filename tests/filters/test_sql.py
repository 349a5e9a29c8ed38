"""SQL filter expressions (docs/filters.md)."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.server.filters import INTEGER_MAX, LENGTH_MAX, NESTED_MAX, IllegalExpression, SqlFilter

ANSWERS = Path(__file__).with_name("rocketmq_answers.jsonl.gz")


def answer(expression: str, properties: dict[str, str]) -> str:
    """In the words of `ANSWERS`; a message that is not wanted may be so for three reasons, which look the same here."""
    try:
        wanted = SqlFilter.parse(expression)
    except IllegalExpression:
        return "refused"
    return "true" if wanted.matches(properties) else "not true"


def matches(expression: str, **properties: str) -> bool:
    return SqlFilter.parse(expression).matches(properties)


def test_four_thousand_random_expressions_mean_what_they_mean_to_rocketmq() -> None:
    """RocketMQ 5.5.0's own SqlFilter has given the answers: true, false, unknown, error, or refused.

    To tell false, unknown and error from each other each expression is asked with NOT in front, too: that turns false
    into true, and leaves the others.
    """
    wrong, seen = [], Counter[str]()
    for line in gzip.decompress(ANSWERS.read_bytes()).decode().splitlines():
        expression, properties, expected = json.loads(line)
        seen[expected] += 1
        ours = answer(expression, properties)
        if ours == "not true":
            ours = "false" if answer(f"NOT ({expression})", properties) == "true" else "unknown or error"
        if ours != ("unknown or error" if expected in ("unknown", "error") else expected):
            wrong.append((expression, properties, expected, ours))
    assert not wrong
    assert len(seen) == 5
    assert min(seen.values()) > 200


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a = 5", {"a": "5.0"}),
        ("a > 5", {"a": "5.5"}),
        ("a > 5", {"a": "3000000000"}),
        ("a < 0", {"a": "-99999999999999999999"}),
        ("a = 0.0", {"a": "0"}),
        ("TRUE = a", {"a": "true"}),
        ("(a > 1) = b", {"a": "2", "b": "true"}),
        ("a = 5 -- without an end of line", {"a": "5"}),
    ],
)
def test_what_rocketmq_cannot_answer(expression: str, properties: dict[str, str]) -> None:
    """RocketMQ ends each of these with an error; docs/filters.md lists them."""
    assert matches(expression, **properties)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "a syntax error at its end"),
        ("a = ", "a syntax error at"),
        ("a = 1 and", "a syntax error at"),
        ("a = 1 b = 2", "b = 2"),
        ("a LIKE 'x'", "LIKE"),
        ("a + 1 = 2", "a syntax error at"),
        ("a in (1)", "a syntax error at"),
        ("'x' in ('x')", "before IN"),
        ("a = NULL", "IS NULL"),
        ("a > 'x'", "only numbers and properties"),
        ("a > TRUE", "only numbers and properties"),
        ("not a > 1", "only numbers and properties"),
        ("a between 3 and 1", "BETWEEN 3 AND 1"),
        ("'text'", "a condition is expected"),
        ("5", "a condition is expected"),
        ("a and 5", "a condition is expected"),
        ("a-b = 1", "a syntax error at"),
        ("a = 'x", "a syntax error at"),
        ("007 = a", "a syntax error at"),
        (f"a = {INTEGER_MAX + 1}", "larger than"),
        ("a = " + "9" * 4000, "larger than"),
        ("a = 1e999", "too large"),
        ("a = 1 /* no end", "a syntax error at"),
        ("a = 1 OR " * LENGTH_MAX + "b", f"at most {LENGTH_MAX}"),
    ],
)
def test_what_is_no_condition_is_refused_and_named(expression: str, says: str) -> None:
    with pytest.raises(IllegalExpression, match=says):
        SqlFilter.parse(expression)


def test_an_expression_within_itself_ends_somewhere() -> None:
    """And long before Python's own limit: a message must not be able to end the broker."""
    deep = NESTED_MAX - 2
    assert matches("NOT " * deep + "(a IS NULL)")
    for tower in ("NOT " * NESTED_MAX + "(a IS NULL)", "(" * 1_500 + "a = 1" + ")" * 1_500 + " = b" * 200):
        with pytest.raises(IllegalExpression, match="nested in each other"):
            SqlFilter.parse(tower)


def test_many_alternatives_do_not_count_as_nested() -> None:
    expression = " OR ".join(f"a = {number}" for number in range(300))
    assert matches(expression, a="299")
    assert not matches(expression, a="300")


def test_keywords_in_any_case_names_as_they_are() -> None:
    assert matches("a Is Not Null AND Region in ('x') anD nOt (b BETWEEN 1 and 2)", a="", Region="x", b="3")
    assert not matches("region = 'x'", Region="x")
    assert matches("order_1 = 'x' and inside = 'y' and nothing = 'z'", order_1="x", inside="y", nothing="z")


def test_a_quote_is_written_twice() -> None:
    assert matches("a = 'it''s'", a="it's")
    assert matches("a in ('''', 'x')", a="'")


def test_tags_and_keys_are_properties_too() -> None:
    assert matches("TAGS = 'paid' and KEYS contains '77'", TAGS="paid", KEYS="order-77")


def test_the_same_expression_is_compiled_once() -> None:
    assert SqlFilter.parse("a = 77") is SqlFilter.parse("a = 77")


@given(
    st.text(alphabet=st.sampled_from("ab'\"()=<>-+*/., \n015eEL_$%NOTANDINISULé"), max_size=60), st.text(max_size=20)
)
def test_no_text_does_more_than_being_refused(expression: str, value: str) -> None:
    try:
        wanted = SqlFilter.parse(expression)
    except IllegalExpression:
        return
    assert wanted.matches({"a": value, "b": "1"}) in (True, False)


@given(st.text(max_size=30))
def test_no_property_ends_an_evaluation_with_anything_but_an_answer(value: str) -> None:
    for expression in ("a > 5", "a = 5", "a = TRUE", "a < b", "a contains '5'", "a between 1 and 2.5"):
        assert matches(expression, a=value, b="7") in (True, False)


RESERVED = (
    "AND", "OR", "NOT", "IS", "NULL", "TRUE", "FALSE", "IN", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH",
)  # fmt: skip


@pytest.mark.parametrize("word", RESERVED)
def test_reserved_words_are_no_names_of_properties(word: str) -> None:
    constants = ("NULL", "TRUE", "FALSE")
    for spelled in (word, word.lower(), word.capitalize()):
        if word not in constants:
            for expression in (f"{spelled} = 1", f"a = 1 AND {spelled} IS NULL", f"a = {spelled}", spelled):
                assert answer(expression, {}) == "refused", expression
        for longer in (f"{spelled}_", f"{spelled}$", f"{spelled}1", f"_{spelled}", f"{spelled}{spelled}"):
            assert matches(f"{longer} = 'x'", **{longer: "x"}), longer


@pytest.mark.parametrize(
    "expression", ["a \u0131s NULL", "a = 1 \u00e4nd b = 1", "a \u0130n ('x')", "a \u0131\u017f NULL"]
)
def test_letters_beyond_ascii_spell_no_reserved_word(expression: str) -> None:
    """Where case is ignored as Unicode does it, dotless i and long s are an i and an s."""
    assert answer(expression, {"a": "x", "b": "1"}) == "refused"


@pytest.mark.parametrize("space", " \t\n\r\f")
def test_white_space_between_words(space: str) -> None:
    assert matches(f"{space}a{space}={space}1{space}", a="1")


@pytest.mark.parametrize("other", "\v\x1c\x85\xa0\u2003\u2028\u3000\x00")
def test_no_other_white_space_is_known(other: str) -> None:
    assert answer(f"a{other}= 1", {"a": "1"}) == "refused"


@pytest.mark.parametrize(
    ("around", "is_number"), [(" \t\x00\x1f", True), ("\xa0", False), ("\u3000", False), ("\x85", False)]
)
def test_around_a_number_there_may_be_what_java_trims(around: str, is_number: bool) -> None:
    for value in ("5", "5.0"):
        for expression in ("a = 5", "a >= 4.5"):
            assert matches(expression, a=f"{around}{value}{around}") is is_number


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a = 1AND b = 2", {"a": "1", "b": "2"}),
        ("a = 1and(b = 2)", {"a": "1", "b": "2"}),
        ("a = 3OR b = 2", {"a": "1", "b": "2"}),
        ("a = 1LAND b = 2lOR c = 1", {"a": "1", "b": "2"}),
        ("a = 1.AND b = .5AND c = 2.5e1AND d = 1E2or e = 1", {"a": "1", "b": "0.5", "c": "25", "d": "100"}),
        ("a BETWEEN 1AND 2AND b BETWEEN.5and+3.", {"a": "1", "b": "2"}),
        ("1IS NOT NULL AND a = 1", {"a": "1"}),
        ("a = 'x'AND'y'=b", {"a": "x", "b": "y"}),
        ("a IN('x')AND b NOT IN('x')AND c CONTAINS'z'", {"a": "x", "b": "y", "c": "z"}),
        ("a IS NULL--comment\nAND(b=1)", {"b": "1"}),
        ("a = 1/**/AND/**/b = 2", {"a": "1", "b": "2"}),
        ("a = 1--\nAND b>-1", {"a": "1", "b": "2"}),
        ("NOT(a = 2)AND'y'=b", {"a": "1", "b": "y"}),
    ],
)
def test_words_need_no_space_where_they_can_be_told_apart(expression: str, properties: dict[str, str]) -> None:
    """RocketMQ's lexer takes the longest token; the next token begins right after it."""
    assert matches(expression, **properties)


@pytest.mark.parametrize(
    "expression",
    [
        "a = 1ANDb = 2",  # a name, ANDb
        "a = 1eAND b = 2",  # a name, eAND: no exponent without digits
        "a = 0LAND b = 2",  # a name, LAND: 0 is written without L
        "a = 1_AND b = 2",
        "a = 1$",
        "a = 0x10",
        "a = 007",  # three numbers
        "a = 1.5.5",
        "a = 1.5L",
        "a = 1e5e5",
        "a = 1 2",
        "aAND b = 2",
        "a ISNULL",
        "a NOTIN ('x')",
    ],
)
def test_a_longer_token_is_never_taken_for_two(expression: str) -> None:
    assert answer(expression, {"a": "1", "b": "2", "aAND": "1"}) == "refused"
