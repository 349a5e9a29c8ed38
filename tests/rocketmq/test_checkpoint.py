"""RocketMQ's checkpoint file: read as it left it, written as it reads it, and docs/formats/checkpoint.md agrees."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.rocketmq import Checkpoint, decode_checkpoint, encode_checkpoint
from quarry_mq.store.rocketmq.checkpoint import CHECKPOINT_SIZE, FIELDS, TIME_MARGIN_MS
from tests import golden

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "checkpoint.md").read_text(encoding="utf-8")
EXAMPLE = Checkpoint(
    log_flushed_ms=1_795_220_511_176,
    file_queues_ms=1_795_219_837_586,
    confirmed_up_to=PhysicalOffset(2_319_796),
    file_queues_up_to=PhysicalOffset(2_319_796),
)


@pytest.mark.parametrize("name", ["file-clean", "rocks-clean", "double-clean", "file-kill"])
def test_files_by_rocketmq_are_read(name: str, golden_store: Callable[[str], Path]) -> None:
    """What it says to have flushed is never newer than the newest record."""
    folder = golden_store(name)
    checkpoint = decode_checkpoint((folder / "store" / "checkpoint").read_bytes())
    stored = [record["storeTimestamp"] for record in golden.records(folder) if "blank" not in record]
    assert 0 < checkpoint.log_flushed_ms <= max(stored)
    assert encode_checkpoint(checkpoint) == (folder / "store" / "checkpoint").read_bytes()


@given(st.lists(st.integers(0, 2**63 - 1), min_size=6, max_size=6))
def test_what_is_written_is_read(fields: list[int]) -> None:
    log_ms, queues_ms, index_ms, *offsets = fields
    checkpoint = Checkpoint(log_ms, queues_ms, index_ms, *map(PhysicalOffset, offsets))
    content = encode_checkpoint(checkpoint)
    assert len(content) == CHECKPOINT_SIZE
    assert content[FIELDS.size :].strip(b"\0") == b""
    assert decode_checkpoint(content) == checkpoint


@given(st.binary(max_size=64))
def test_a_damaged_file_claims_nothing_negative(content: bytes) -> None:
    checkpoint = decode_checkpoint(content)
    assert min(FIELDS.unpack(encode_checkpoint(checkpoint)[: FIELDS.size])) >= 0


def test_a_short_file_is_filled_up_with_zeros() -> None:
    assert decode_checkpoint(b"") == Checkpoint()
    assert decode_checkpoint(encode_checkpoint(EXAMPLE)[:20]) == Checkpoint(
        log_flushed_ms=EXAMPLE.log_flushed_ms, file_queues_ms=EXAMPLE.file_queues_ms
    )


def test_the_example_of_the_page_is_a_file_by_rocketmq(golden_store: Callable[[str], Path]) -> None:
    assert decode_checkpoint((golden_store("double-clean") / "store" / "checkpoint").read_bytes()) == EXAMPLE


def test_the_example_of_the_page_is_what_is_written() -> None:
    (example,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    shown = bytes.fromhex("".join(line.partition("|")[0] for line in example.splitlines()))
    assert shown == encode_checkpoint(EXAMPLE)[: FIELDS.size]


def test_the_table_of_the_page_has_every_byte() -> None:
    rows = [
        (int(offset), int(size)) for offset, size in re.findall(r"^\|[^|]+\| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    ]
    assert rows == [(0, 8), (8, 8), (16, 8), (24, 8), (32, 8), (40, 8), (48, CHECKPOINT_SIZE - FIELDS.size)]
    assert f"{CHECKPOINT_SIZE} bytes" in PAGE
    assert f"{TIME_MARGIN_MS} ms" in PAGE
