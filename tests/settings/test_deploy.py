"""The files in deploy/ agree with the code."""

from __future__ import annotations

from pathlib import Path

from quarry_mq.server.settings.broker_settings import BrokerSettings, load_settings

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
