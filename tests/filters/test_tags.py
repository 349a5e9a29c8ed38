"""Tag expressions: which tags they want, and where the white space is that belongs to none (docs/filters.md)."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.names import is_blank, trimmed
from quarry_mq.server.admin.browsing import EVERYTHING, MessageWish
from quarry_mq.server.filters import TagFilter
from quarry_mq.store.record import java_hash

JAVA_WHITE_SPACE = {
    *range(0x09, 0x0E), *range(0x1C, 0x21), 0x1680, *range(0x2000, 0x2007), *range(0x2008, 0x200B), 0x2028, 0x2029,
    0x205F, 0x3000,
}  # fmt: skip
"""`Character.isWhitespace`, by its own documentation."""

KEPT = "\u3000\u00a0\u2003\u0085\u2028"
"""White space of other rules, which is a part of a tag."""


def test_every_code_point_is_white_space_or_not_as_java_has_it() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        assert is_blank(character) is (code in JAVA_WHITE_SPACE), hex(code)
        assert (trimmed(character) == "") is (code <= 0x20), hex(code)


@pytest.mark.parametrize("kept", KEPT)
def test_white_space_of_other_rules_belongs_to_the_tag(kept: str) -> None:
    for tag in (kept + "a", "a" + kept, kept):
        wanted = TagFilter.parse(f" {tag}\t|| \x1f b \x00")
        assert wanted.tags == {tag, "b"}
        assert wanted.may_match(java_hash(tag))
        assert wanted.matches({"TAGS": tag})
        assert not wanted.matches({"TAGS": tag.strip()})
        assert MessageWish.of(tag, is_sql=False, contained=b"").filter == TagFilter.parse(tag)


@given(st.text(st.characters(max_codepoint=0x20), max_size=5))
def test_what_java_trims_is_no_tag(blank: str) -> None:
    assert TagFilter.parse(blank).wants_all
    assert TagFilter.parse(f"{blank}*{blank}").wants_all
    assert TagFilter.parse(f"{blank}a{blank}||{blank}").tags == {"a"}
    assert MessageWish.of(blank, is_sql=True, contained=b"") is EVERYTHING
