"""Every byte of a small store flipped in turn: refused by name, or harmless; never a wrong message, never less.

Jepsen on NATS: one flipped bit cost half of the acknowledged messages. The quick run takes samples, other ones with
QUARRY_FLIPS=<seed>; a failure names file, byte and mask.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv.rocks_logs import HEAD
from quarry_mq.store.errors import StoreDamaged
from tests.faults.damage import after
from tests.faults.small_store import Content, build, build_killed, opened

SAMPLES = 30
PARTS = 8
"""Into which the slow run is divided, so that several processes can share it (pytest -k part3)."""
UNREAD = ("LOG", "LOCK")
"""RocksDB only writes them."""
_numbers = count()


class Image:
    """An undamaged store and what is in it."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.expected = self._look(directory)
        self.files = [
            path.relative_to(root)
            for path in sorted(root.rglob("*"))
            if path.is_file() and not path.name.startswith(UNREAD)
        ]

    def _look(self, directory: Path) -> Content:
        outcome = after(self.root, directory / "undamaged", lambda _: None)
        assert outcome.found is not None
        return outcome.found

    def places(self) -> list[tuple[Path, int]]:
        """Every byte worth flipping. Long stretches of zeros stand for themselves in their first and last one, the
        options files, which nobody reads, in one of a hundred.
        """
        found = []
        for file in self.files:
            data = (self.root / file).read_bytes()
            end = len(data.rstrip(b"\0"))
            found += [(file, at) for at in range(0, end, 100 if file.name.startswith("OPTIONS") else 1)]
            found += [(file, at) for at in sorted({end, len(data) - 1} - {-1}) if end <= at < len(data)]
        return found


@pytest.fixture(scope="module", params=["stopped", "killed"])
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Image:
    directory = tmp_path_factory.mktemp(str(request.param))
    with capture_logs():
        if request.param == "stopped":
            build(directory / "store")
        else:
            build_killed(directory / "store", directory / "scratch")
    return Image(directory / "store", directory)


def flip(root: Path, file: Path, at: int, mask: int) -> None:
    data = bytearray((root / file).read_bytes())
    data[at] ^= mask
    (root / file).write_bytes(data)


def check(image: Image, directory: Path, file: Path, at: int, mask: int) -> str:
    """Returns what came of it in one word."""
    outcome = after(image.root, directory / str(next(_numbers)), partial(flip, file=file, at=at, mask=mask))
    flipped = f"byte {at} of {file} flipped by {mask:#04x}"
    if outcome.refusal is not None:
        assert file.name in outcome.refusal or f"/{file.parent.name}" in outcome.refusal, f"{flipped}: {outcome}"
        return "refused"
    different = outcome.differs_from(image.expected)
    assert not different, f"{flipped}: {different} differ; warnings: {outcome.warnings}"
    return "harmless"


def test_samples_of_all_flips(image: Image, tmp_path: Path) -> None:
    seed = int(os.environ.get("QUARRY_FLIPS", "1"))
    chance = Random(seed)
    places = image.places()
    seen = set()
    for file in image.files:
        here = [at for name, at in places if name == file]
        for at in chance.sample(here, min(len(here), max(2, SAMPLES // len(image.files)))):
            seen.add(check(image, tmp_path, file, at, 1 << chance.randrange(8)))
    assert seen == {"refused", "harmless"}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS), ids=lambda part: f"part{part}")
def test_every_byte(image: Image, tmp_path: Path, part: int) -> None:
    chance = Random(part)
    for file, at in image.places()[part::PARTS]:
        check(image, tmp_path, file, at, 1 << chance.randrange(8))


def heads_in(log: Path) -> Iterator[int]:
    """Return where the records of a manifest or a write-ahead log begin, one smaller than a block."""
    data = log.read_bytes()
    at = 0
    while at + HEAD.size <= len(data):
        yield at
        _, length, _ = HEAD.unpack_from(data, at)
        at += HEAD.size + length


@pytest.mark.parametrize("database", ["quarry", pytest.param("consumequeue_rocksdb", marks=pytest.mark.slow)])
def test_every_head_in_a_manifest(image: Image, tmp_path: Path, database: str) -> None:
    """RocksDB takes a record that reaches over the end for torn, and forgets the tables named from there on.

    And of a kind that no manifest has it never gets to the end.
    """
    (file,) = [each for each in image.files if each.parent.name == database and each.name.startswith("MANIFEST")]
    for at in heads_in(image.root / file):
        for byte, mask in ((at + 5, 0x08), (at + 4, 0x80), (at + 6, 0x04), (at + 6, 0x80)):
            check(image, tmp_path, file, byte, mask)


def test_every_head_in_a_write_ahead_log(killed: Path, tmp_path: Path) -> None:
    """Of a kind that only logs have whose files are used again, RocksDB never gets to the end."""
    image = Image(killed, tmp_path)
    file = write_ahead_log(killed).relative_to(killed)
    for at in heads_in(killed / file):
        for mask in (0x02, 0x04, 0x08, 0x80):
            check(image, tmp_path, file, at + 6, mask)


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    with capture_logs():
        build_killed(tmp_path / "killed", tmp_path / "scratch")
    return tmp_path / "killed"


def write_ahead_log(root: Path) -> Path:
    (found,) = [path for path in (root / "quarry").glob("*.log") if path.stat().st_size]
    return found


def test_a_write_ahead_log_that_ends_early_is_refused_and_left_as_it_is(killed: Path) -> None:
    """By itself RocksDB goes on without the rest of it, and removes it."""
    file = write_ahead_log(killed)
    os.truncate(file, file.stat().st_size // 2)
    before = file.read_bytes()
    for _ in range(2):
        with pytest.raises(
            StoreDamaged, match=r"quarry/DURABLE: the database ends with change \d+, but \d+ were durable"
        ):
            opened(killed)
    assert file.read_bytes() == before


def test_a_write_ahead_log_that_is_missing_is_refused(killed: Path) -> None:
    write_ahead_log(killed).unlink()
    with pytest.raises(StoreDamaged, match="quarry/DURABLE"):
        opened(killed)


def test_damage_in_the_last_second_of_the_write_ahead_log_is_told(killed: Path) -> None:
    """It cannot be told from what a power cut leaves, so the store opens."""
    (killed / "quarry" / "DURABLE").write_text("1\n")
    file = write_ahead_log(killed)
    flip(killed, file.relative_to(killed), file.stat().st_size - 3, 0x10)
    with capture_logs() as logs:
        opened(killed).close()
    (told,) = [each for each in logs if each["log_level"] == "warning"]
    assert told["directory"] == str(killed / "quarry")
    assert "checksum mismatch" in told["cause"]
    assert file.name in told["cause"]
