"""File names, made and parsed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.layout.paths import StorePaths, cut_directory, cut_name, parse_segment_name, segment_name
from quarry_mq.store.message import PhysicalOffset

OFFSETS = st.integers(0, 2**63 - 1).map(PhysicalOffset)


@given(OFFSETS, OFFSETS)
def test_segment_names_sort_like_offsets_and_parse_back(one: PhysicalOffset, other: PhysicalOffset) -> None:
    assert parse_segment_name(segment_name(one)) == one
    assert (segment_name(one) < segment_name(other)) == (one < other)


def test_a_segment_is_named_as_rocketmq_names_it() -> None:
    assert segment_name(PhysicalOffset(1024**3)) == "00000000001073741824"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0" * 19,
        "0" * 21,
        "0" * 19 + "a",
        "-" + "0" * 19,
        "0" * 19 + "\n",
        "\N{ARABIC-INDIC DIGIT ZERO}" * 20,
        "9" * 20,
        "00000000000000000000.broken",
        ".DS_Store",
    ],
)
def test_strangers_are_no_segments(name: str) -> None:
    assert parse_segment_name(name) is None


@given(OFFSETS, st.integers(0, 10**6))
def test_names_of_cut_bytes_tell_where_they_lay(start: PhysicalOffset, number: int) -> None:
    name = cut_name(start, number)
    assert name.startswith(segment_name(start) + ".broken")
    assert parse_segment_name(name) is None
    assert cut_name(start, number + 1) != name


def test_a_store_is_laid_out_as_rocketmq_lays_it_out() -> None:
    paths = StorePaths(Path("/data/store"))
    names = {
        paths.commit_log: "commitlog",
        paths.consume_queue: "consumequeue",
        paths.consume_queue_rocksdb: "consumequeue_rocksdb",
        paths.quarry: "quarry",
        paths.config: "config",
        paths.index: "index",
        paths.abort: "abort",
        paths.checkpoint: "checkpoint",
        paths.lock: "lock",
    }
    assert {path: path.name for path in names} == names
    assert {path.parent for path in names} == {Path("/data/store")}


def test_every_name_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats" / "store-directory.md").read_text(encoding="utf-8")
    paths = StorePaths(Path("store"))
    for name in ("commit_log", "consume_queue", "consume_queue_rocksdb", "quarry", "config", "index"):
        assert f"| `{getattr(paths, name).name}/` |" in page
    for name in ("abort", "checkpoint", "lock"):
        assert f"| `{getattr(paths, name).name}` |" in page
    assert f"`commitlog/{cut_directory(paths.commit_log).name}/`" in page
