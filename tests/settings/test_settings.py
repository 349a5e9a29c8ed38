"""Settings come from a file, the environment and flags; what is wrong with them is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from quarry_mq.server.addresses import split_address
from quarry_mq.server.process.descriptors import front_limits
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid, load_settings
from quarry_mq.server.settings.sections import NewGroupStart
from quarry_mq.store.settings import Durability


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("QUARRY_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quarry.toml"
    path.write_text(
        """
        [store]
        directory = "/data/store"
        segment_size = "64MiB"
        durability = "async"

        [network]
        listen = "127.0.0.2:9081"
        """
    )
    return path


def problem(file: Path | None = None, flags: dict[str, dict[str, object]] | None = None) -> str:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(file, flags)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_defaults_need_no_file() -> None:
    settings = load_settings()
    assert settings == BrokerSettings()
    assert settings.network.listen == "127.0.0.1:8081"
    assert settings.store.durability is Durability.SYNC
    assert settings.delivery.new_group_start is NewGroupStart.AUTO


def test_the_file_sets_values(file: Path) -> None:
    settings = load_settings(file)
    assert settings.store.directory == Path("/data/store")
    assert settings.store.segment_size == 64 << 20
    assert settings.store.durability is Durability.ASYNC
    assert settings.network.listen == "127.0.0.2:9081"
    assert settings.network.admin == "127.0.0.1:8082"


def test_the_environment_wins_over_the_file_and_flags_over_both(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_STORE_SEGMENT_SIZE", "128MiB")
    monkeypatch.setenv("QUARRY_STORE_FLUSH_INTERVAL_MS", "250")
    monkeypatch.setenv("QUARRY_NETWORK_LISTEN", "127.0.0.1:1")
    settings = load_settings(file, {"network": {"listen": "127.0.0.1:2"}})
    assert settings.store.segment_size == 128 << 20
    assert settings.store.flush_interval_ms == 250
    assert settings.store.directory == Path("/data/store")
    assert settings.network.listen == "127.0.0.1:2"


def test_a_broker_in_kubernetes_ignores_the_variables_of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pod gets such variables for a Service named `quarry` or `quarry-broker`."""
    for name in ("QUARRY_SERVICE_HOST", "QUARRY_PORT", "QUARRY_PORT_8081_TCP_ADDR"):
        monkeypatch.setenv(name, "10.0.0.1")
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT", "PORT_8081_TCP"):
        monkeypatch.setenv(f"QUARRY_BROKER_{name}", "tcp://10.0.0.1:8081")
        monkeypatch.setenv(f"QUARRY_MY_OWN_{name}", "tcp://10.0.0.1:8081")
    monkeypatch.setenv("QUARRY_CONFIG", "/etc/quarry.toml")
    assert load_settings() == BrokerSettings()


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("store", "segment_size", "12 apples"),
        ("store", "segment_size", 65_537),
        ("store", "durability", "maybe"),
        ("store", "flush_interval_ms", 0),
        ("store", "no_such_key", 1),
        ("network", "listen", "8081"),
        ("network", "listen", "localhost:65536"),
        ("network", "listen", "::1:8081"),
        ("network", "advertise", "broker.example:0"),
        ("broker", "name", "two words"),
        ("topics", "default_queues", 0),
        ("delivery", "new_group_start", "middle"),
        ("log", "level", "loud"),
    ],
)
def test_a_wrong_value_is_named_by_its_key(section: str, key: str, value: object) -> None:
    assert f"{section}.{key}" in problem(flags={section: {key: value}})


def test_an_unknown_section_is_named(tmp_path: Path) -> None:
    path = tmp_path / "quarry.toml"
    path.write_text("[sotre]\ndirectory = 'x'\n")
    assert "sotre" in problem(path)


def test_a_section_of_two_words_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_CONSUME_QUEUE_UNITS_PER_FILE", "500")
    monkeypatch.setenv("QUARRY_CONSUME_QUEUE_DOUBLE_WRITE_TOPICS", '["orders-*"]')
    settings = load_settings().for_store()
    assert (settings.units_per_file, settings.doubled_topics) == (500, ("orders-*",))
    monkeypatch.setenv("QUARRY_CONSUME_UNITS_PER_FILE", "500")
    found = "QUARRY_CONSUME_UNITS_PER_FILE: unknown setting (did you mean QUARRY_CONSUME_QUEUE_UNITS_PER_FILE?)"
    assert problem() == found


def test_a_mistyped_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_STORE_DIRECTROY", "/data")
    assert problem() == "QUARRY_STORE_DIRECTROY: unknown setting (did you mean QUARRY_STORE_DIRECTORY?)"


@pytest.mark.parametrize("value", ["", "/data"])
def test_a_variable_without_a_key_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUARRY_STORE", value)
    assert problem().startswith("QUARRY_STORE: a section has to be a JSON object; a single setting has a variable")


def test_a_variable_of_a_mistyped_section_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would start a broker on another store than its operator thinks."""
    monkeypatch.setenv("QUARRY_SOTRE_DIRECTORY", "/data")
    assert problem() == "QUARRY_SOTRE_DIRECTORY: unknown setting (did you mean QUARRY_STORE_DIRECTORY?)"


def test_several_problems_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the line of the file or the variable that has it, and a name that is near, if there is one."""
    path = tmp_path / "quarry.toml"
    path.write_text(
        "# a comment\n[store]\ndurabilty = 'sync'\nflush_interval_ms = 'x'\nlisten = '127.0.0.1:1'\n"
        "[netwrk]\nlisten = 'x'\n[ log ]\n\"level\" = 'loud'\nnothing_like_it = 1\n"
    )
    monkeypatch.setenv("QUARRY_SOTRE_DIRECTORY", "/data")
    monkeypatch.setenv("QUARRY_LIMITS_BODY_SIZE", "huge")
    told = problem(path, {"network": {"listen": "x"}})
    for each in (
        "QUARRY_SOTRE_DIRECTORY: unknown setting (did you mean QUARRY_STORE_DIRECTORY?)",
        "QUARRY_LIMITS_BODY_SIZE: limits.body_size: ",
        f"{path}:3: store.durabilty: unknown setting (did you mean store.durability?)",
        f"{path}:4: store.flush_interval_ms: ",
        f"{path}:5: store.listen: unknown setting (did you mean network.listen?)",
        f"{path}:6: netwrk: unknown setting (did you mean network?)",
        f"{path}:9: log.level: ",
        f"{path}:10: log.nothing_like_it: unknown setting",
        "network.listen: must be",
    ):
        assert f"; {each}" in f"; {told}", told
    assert told.count("; ") == 8


@pytest.mark.parametrize(
    ("section", "low", "high"),
    [
        ("delivery", {"invisible_time_min_ms": 10}, {"invisible_time_max_ms": 9}),
        ("delivery", {"polling_min_ms": 10}, {"polling_max_ms": 9}),
        ("delivery", {"lease_ms": 3_000}, {"lease_total_ms": 2_000}),
        ("delivery", {"client_disconnected_ms": 3_000}, {"client_silent_ms": 2_000}),
        ("limits", {"body_size": "8MiB"}, {"request_size": "8MiB"}),
    ],
)
def test_limits_that_depend_on_each_other_are_checked(
    section: str, low: dict[str, object], high: dict[str, object]
) -> None:
    text = problem(flags={section: {**low, **high}})
    assert all(key in text for key in (section, *low, *high))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "none.toml") in problem(tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"[store", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "quarry.toml"
    path.write_bytes(content)
    assert str(path) in problem(path)


def test_a_section_that_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "quarry.toml"
    path.write_text("store = 5\n")
    assert problem(path).startswith(f"{path}:1: store: ")
    assert problem(path, {"store": {"directory": "/data"}}).startswith("store: ")


def test_settings_are_frozen() -> None:
    settings = BrokerSettings()
    with pytest.raises(ValidationError):
        settings.log = settings.log
    with pytest.raises(ValidationError):
        settings.log.level = "debug"


def test_parts_get_their_share() -> None:
    settings = load_settings(
        flags={
            "store": {"segment_size": "1MiB", "durability": "async", "directory": "/s"},
            "limits": {"body_size": "1MiB", "request_size": "2MiB", "open_calls": 7},
            "delivery": {
                "batch_max": 5,
                "new_group_start": "latest",
                "polling_min_ms": 0,
                "client_disconnected_ms": 5_000,
            },
        }
    )
    store = settings.for_store()
    assert (store.root, store.segment_size, store.durability) == (Path("/s"), 1 << 20, Durability.ASYNC)
    assert store.record_size_max > 1 << 20
    assert front_limits(settings).max_open_calls == 7
    assert front_limits(settings).max_message_size == 2 << 20
    wire = settings.for_wire()
    assert (wire.body_size_max, wire.batch_size_max, wire.polling_min_ms) == (1 << 20, 5, 0)
    assert settings.delivery.new_group_start is NewGroupStart.LATEST


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("broker.example:8081", ("broker.example", 8081)),
        ("[::1]:65535", ("[::1]", 65535)),
    ],
)
def test_addresses_split_into_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        # rmq#8613, rmq#9958: one switch without the other
        ({"authorization": True}, "authorization needs authentication"),
        ({"client_zones": ["Europe/Berlin", "Mars/Olympus"]}, "'Mars/Olympus' is not a time zone"),
        ({"client_zones": ["../../etc/passwd"]}, "is not a time zone"),
        ({"client_zones": [""]}, "'' is not a time zone"),
        ({"date_window_s": -1}, "date_window_s"),
        ({"failures_per_minute": 0}, "failures_per_minute"),
    ],
)
def test_settings_of_security_that_make_no_sense_are_named(settings: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(flags={"security": settings})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_text_about_the_settings_shows_a_secret() -> None:
    secret = "do-not-show-this"
    settings = load_settings(
        None,
        {
            "index": {
                "tiered": True,
                "upload_to": f"s3://key:{secret}@bucket/prefix",
                "upload_options": {"access_key_id": secret, "secret_access_key": secret},
            },
            "security": {"key": secret},
        },
    )
    for whole in (settings, settings.index, settings.security, settings.for_store()):
        assert secret not in f"{whole!r} {whole}"
    assert settings.for_store().index.upload_options[0] == ("access_key_id", secret)


DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_example_file_names_every_setting_with_its_default() -> None:
    text = (DEPLOY / "quarry.toml").read_text(encoding="utf-8")
    assert load_settings(DEPLOY / "quarry.toml") == BrokerSettings()
    for section in BrokerSettings.model_fields:
        for key in type(getattr(BrokerSettings(), section)).model_fields:
            assert f"\n{key} = " in text or f"\n# {key} = " in text, f"{section}.{key}"


def test_the_socket_is_the_port_that_clients_use() -> None:
    unit = (DEPLOY / "quarry.socket").read_text(encoding="utf-8")
    assert f"ListenStream={BrokerSettings().network.listen}\n" in unit


def test_the_unit_starts_a_command_that_exists() -> None:
    unit = (DEPLOY / "quarry.service").read_text(encoding="utf-8")
    assert "quarry serve --config /etc/quarry/quarry.toml --store " in unit
    assert "RestartPreventExitStatus=2" in unit
