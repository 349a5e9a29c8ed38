"""Keys come from a file or from the environment, and no error shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid, load_settings
from quarry_mq.server.settings.sections import SecuritySection
from quarry_mq.store.errors import Invalid
from tests.users.tables import FIRST_KEY, SECOND_KEY, SECRET


def settings(**values: object) -> BrokerSettings:
    return BrokerSettings(security=SecuritySection.model_validate(values))


def test_without_a_key_nothing_is_sealed() -> None:
    assert BrokerSettings().for_sealer() is None


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_SECURITY_KEY", f"{FIRST_KEY.decode()}, {SECOND_KEY.decode()}")
    both = load_settings().for_sealer()
    second = settings(key=SECOND_KEY.decode()).for_sealer()
    assert both is not None
    assert second is not None
    assert both.open(second.seal(SECRET)) == SECRET
    assert settings(key=FIRST_KEY.decode()).for_sealer() is not None


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "security.key"
    path.touch(0o600)
    path.write_bytes(FIRST_KEY + b"\n")
    sealer = settings(key_file=path).for_sealer()
    assert sealer is not None
    assert sealer.open(sealer.seal(SECRET)) == SECRET


def test_two_places_are_one_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_SECURITY_KEY", FIRST_KEY.decode())
    monkeypatch.setenv("QUARRY_SECURITY_KEY_FILE", str(tmp_path))
    with pytest.raises(SettingsInvalid, match="security: key_file and key are both set") as caught:
        load_settings()
    assert FIRST_KEY.decode() not in str(caught.value) + str(caught.value.__cause__)


def test_no_text_about_settings_shows_a_key() -> None:
    wrong = FIRST_KEY.decode()[:-3]
    with pytest.raises(Invalid, match=r"security\.key: key 1 is not a key") as caught:
        settings(key=wrong).for_sealer()
    assert wrong not in str(caught.value)
    right = settings(key=FIRST_KEY.decode())
    assert FIRST_KEY.decode() not in repr(right) + str(right) + right.model_dump_json()
