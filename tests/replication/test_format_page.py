"""docs/formats/shared-rows.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from quarry_mq.store.replication import PAGE_ROWS_MAX, SharedKind, Version, member_id
from quarry_mq.store.replication.layout import VERSIONS, Stamp, order_key, row_id
from quarry_mq.store.replication.rows import SEEN_MAX

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "shared-rows.md").read_text(encoding="utf-8")
MADE_MS = 1763800000000


def test_the_example_is_what_is_stored() -> None:
    made, changed = Version(MADE_MS, 0, member_id("shard-0")), Version(MADE_MS + 1000, 2, member_id("shard-1"))
    stamp = Stamp(changed, made, (), deleted=False, sequence=(MADE_MS + 2000) * 1000)
    row = row_id(SharedKind.TOPIC, "orders")
    assert f"\n{(VERSIONS + row).hex()} -> {stamp.encode().hex()}\n" in PAGE
    assert f"\n{order_key(stamp.sequence).hex()} -> {row.hex()}\n" in PAGE


def test_versions_that_were_seen_are_read_again() -> None:
    seen = tuple(Version(number, 0, member_id(str(number))) for number in range(SEEN_MAX))
    stamp = Stamp(Version(99, 1, bytes(8)), None, seen, deleted=True, sequence=7)
    assert Stamp.decode(stamp.encode()) == stamp


def test_limits_and_kinds_are_as_on_the_page() -> None:
    assert f"0 to {SEEN_MAX} |" in PAGE
    assert f"at most {PAGE_ROWS_MAX} rows" in PAGE
    assert all(f"`{kind.value}`" in PAGE for kind in SharedKind)
