"""Each file of a store deleted in turn: made again, or refused by name; never silently less."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from tests.faults.damage import after
from tests.faults.test_flipped_bytes import Image, image

__all__ = ["image"]

_numbers = count()


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def test_each_file(image: Image, tmp_path: Path) -> None:
    missed = set()
    for file in image.files:
        outcome = after(image.root, tmp_path / str(next(_numbers)), lambda root, file=file: remove(root / file))  # type: ignore[misc]
        if outcome.refusal is None:
            assert outcome.differs_from(image.expected) == [], f"without {file}: {outcome}"
        else:
            assert file.name in outcome.refusal or str(file.parent) in outcome.refusal, f"without {file}: {outcome}"
            missed.add(file.suffix or file.name.partition("-")[0])
    # not each table: one that a compaction has just replaced may still lie there
    assert {".sst", "MANIFEST", "CURRENT", "0" * 20} <= missed


def test_the_queues_are_made_again(image: Image, tmp_path: Path) -> None:
    outcome = after(image.root, tmp_path / "store", lambda root: remove(root / "consumequeue_rocksdb"))
    assert outcome.refusal is None
    assert outcome.differs_from(image.expected) == []


def test_without_the_metadata_all_messages_are_there_and_a_warning_is_given(image: Image, tmp_path: Path) -> None:
    outcome = after(image.root, tmp_path / "store", lambda root: remove(root / "quarry"))
    assert outcome.refusal is None
    assert set(outcome.differs_from(image.expected)) <= {"topics", "groups", "offsets", "in flight"}
    assert "without metadata" in str(outcome.warnings)


@pytest.mark.parametrize("name", ["commitlog", "commitlog/00000000000000000000"])
def test_without_the_log_the_store_is_refused(image: Image, tmp_path: Path, name: str) -> None:
    outcome = after(image.root, tmp_path / "store", lambda root: remove(root / name))
    assert outcome.refusal is not None
    assert "commitlog" in outcome.refusal
