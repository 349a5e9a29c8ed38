"""Settings that change while the broker runs: checked as ever, kept over restarts, above all others."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.errors import NoSuchSetting
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid, load_settings
from quarry_mq.server.settings.live_settings import ROW, LiveSettings, live_fields
from quarry_mq.store.state.identity import FAMILIES, META


class World:
    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        self.settings = settings or BrokerSettings()
        self.heard: list[BrokerSettings] = []
        self.restart()

    def restart(self) -> None:
        self.live = LiveSettings(self.settings, self.engine)
        self.live.on_change(self.heard.append)

    def store(self, row: bytes) -> None:
        batch = self.engine.batch()
        batch.put(self.engine.family(META), ROW, row)
        self.engine.write(batch)


def test_a_change_is_heard_shown_and_kept() -> None:
    world = World()
    before = world.live.show("limits.connections")
    assert (before.value, before.source) == ("10000", "default")
    after = world.live.set("limits.connections", "77")
    assert (after.value, after.source, after.configured) == ("77", "live", "10000")
    assert [each.limits.connections for each in world.heard] == [77]
    world.restart()
    assert world.live.current.limits.connections == 77
    assert world.live.show("limits.connections").source == "live"


def test_a_reset_brings_back_what_the_broker_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_LIMITS_CLIENTS", "5")
    world = World(load_settings(flags={"delivery": {"batch_max": 7}}))
    assert world.live.show("limits.clients").source == "environment"
    assert world.live.show("delivery.batch_max").source == "flags"
    world.live.set("limits.clients", "6")
    shown = world.live.reset("limits.clients")
    assert (shown.value, shown.source) == ("5", "environment")
    assert world.heard[-1].limits.clients == 5
    world.restart()
    assert world.live.current.limits.clients == 5


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("limits.waiting_sends_size", "64MiB", 64 << 20),
        ("limits.waiting_sends_size", "1000001", 1_000_001),
        ("topics.auto_create", "false", False),
        ("log.level", "debug", "debug"),
        ("expiry.retention_hours", "1.5", 1.5),
    ],
)
def test_values_are_written_as_in_the_file(key: str, text: str, value: object) -> None:
    world = World()
    shown = world.live.set(key, text)
    section, _, name = key.partition(".")
    assert getattr(getattr(world.live.current, section), name) == value
    assert shown.value == text
    world.restart()
    assert world.live.show(key).value == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("limits.connections", "0"),
        ("limits.connections", "-1"),
        ("limits.connections", "many"),
        ("limits.connections", ""),
        ("limits.connections", "1" * 65),
        ("log.level", "loud"),
        ("topics.auto_create", "perhaps"),
        ("delivery.polling_min_ms", "20001"),
        ("expiry.clean_percent", "101"),
        ("expiry.force_percent", "10"),
    ],
)
def test_what_is_no_good_is_refused_and_changes_nothing(key: str, text: str) -> None:
    world = World()
    with pytest.raises(SettingsInvalid, match=key.partition(".")[0] if text != "1" * 65 else "64"):
        world.live.set(key, text)
    assert world.live.current == world.settings
    assert world.heard == []
    assert world.engine.family(META).get(ROW) is None


@pytest.mark.parametrize(
    "key", ["store.directory", "network.listen", "limits.body_size", "limits", "", "x.y", "a" * 999]
)
def test_nothing_else_can_be_changed_or_seen(key: str) -> None:
    world = World()
    with pytest.raises(NoSuchSetting) as refused:
        world.live.show(key)
    assert len(str(refused.value)) < 200
    with pytest.raises(NoSuchSetting):
        world.live.set(key, "1")
    with pytest.raises(NoSuchSetting):
        world.live.reset(key)


def test_a_change_that_another_one_depends_on_is_not_reset_before_it() -> None:
    world = World()
    world.live.set("delivery.polling_max_ms", "60000")
    world.live.set("delivery.polling_min_ms", "30000")
    with pytest.raises(SettingsInvalid, match="polling_min_ms must not exceed"):
        world.live.reset("delivery.polling_max_ms")
    assert world.live.current.delivery.polling_max_ms == 60_000
    world.restart()
    assert world.live.current.delivery.polling_min_ms == 30_000


def test_what_no_longer_goes_with_the_file_is_told_and_left_alone() -> None:
    world = World()
    world.live.set("delivery.polling_max_ms", "6000")
    world.live.set("delivery.batch_max", "9")
    world.settings = load_settings(flags={"delivery": {"polling_min_ms": 7_000}})
    with capture_logs() as lines:
        world.restart()
    assert world.live.current.delivery.polling_max_ms == 20_000
    assert world.live.current.delivery.batch_max == 9
    assert any("polling_min_ms must not exceed" in line["cause"] for line in lines)
    assert world.live.show("delivery.polling_max_ms").source == "default"


@pytest.mark.parametrize("row", [b"\xff", b"{", json.dumps({"store.directory": "/etc", "no.such": "1"}).encode()])
def test_a_row_that_is_no_good_stops_nothing(row: bytes) -> None:
    world = World()
    world.store(row)
    world.restart()
    assert world.live.current == world.settings


def test_all_that_can_be_changed_is_listed() -> None:
    world = World()
    assert [each.key for each in world.live.shown()] == [key for key, _ in live_fields()]
    assert all(each.meaning and each.source == "default" for each in world.live.shown())
