"""Secrets at rest are sealed; keys are read from files that only their owner may read."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from quarry_mq.store.errors import Invalid, SecretsUnreadable
from quarry_mq.store.security.sealer import KEYS_MAX, Sealer, new_key, read_keys
from tests.e2e.broker import PROJECT
from tests.users.tables import FIRST_KEY, SECOND_KEY, SECRET


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "security.key"
    path.touch(0o600)
    return path


def test_what_is_sealed_is_opened_and_never_looks_the_same() -> None:
    sealer = Sealer([new_key()])
    first, second = sealer.seal(SECRET), sealer.seal(SECRET)
    assert sealer.open(first) == sealer.open(second) == SECRET
    assert first != second
    assert SECRET.encode() not in first


def test_the_first_key_seals_and_all_of_them_open() -> None:
    old = Sealer([FIRST_KEY]).seal(SECRET)
    both = Sealer([SECOND_KEY, FIRST_KEY])
    assert both.open(old) == SECRET
    assert Sealer([SECOND_KEY]).open(both.seal(SECRET)) == SECRET


def test_another_key_and_a_changed_text_are_told_apart_from_a_secret() -> None:
    token = Sealer([FIRST_KEY]).seal(SECRET)
    with pytest.raises(SecretsUnreadable, match=r"security\.key_file"):
        Sealer([SECOND_KEY]).open(token)
    with pytest.raises(SecretsUnreadable):
        Sealer([FIRST_KEY]).open(token[:-6] + b"AAAAA=")


@pytest.mark.parametrize("key", [b"too-short", b"\xff" * 44, FIRST_KEY[:-4] + b"===="])
def test_what_is_no_key_is_named_by_its_place_and_not_shown(key: bytes) -> None:
    with pytest.raises(Invalid, match="key 2 is not a key") as caught:
        Sealer([FIRST_KEY, key])
    assert key.decode(errors="replace") not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("count", [0, KEYS_MAX + 1])
def test_there_is_a_key_and_not_any_number_of_them(count: int) -> None:
    with pytest.raises(Invalid, match=f"{count} keys"):
        Sealer([FIRST_KEY] * count)


def test_a_key_file_holds_a_key_in_a_line_with_comments(file: Path) -> None:
    file.write_bytes(b"# of 2026\n" + SECOND_KEY + b"\r\n\n  " + FIRST_KEY + b"  \n")
    assert read_keys(file) == [SECOND_KEY, FIRST_KEY]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_file_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    file.write_bytes(FIRST_KEY)
    file.chmod(mode)
    with pytest.raises(Invalid, match=f"{file}.*users other than its owner"):
        read_keys(file)


def test_problems_of_a_key_file_name_it_and_show_no_key(file: Path) -> None:
    with pytest.raises(Invalid, match=f"{file}: 0 keys"):
        read_keys(file)
    file.write_bytes(FIRST_KEY + b"\n" + SECOND_KEY[:-3])
    with pytest.raises(Invalid, match=f"{file}: key 2") as caught:
        read_keys(file)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECOND_KEY[:-3].decode() not in shown
    file.unlink()
    with pytest.raises(Invalid, match=f"{file}: No such file"):
        read_keys(file)


def test_a_broker_without_keys_and_certificates_does_not_load_what_handles_them() -> None:
    """It takes megabytes and a part of the time of each start."""
    code = "import sys, quarry_mq.server.main; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0
