"""`quarry serve` and the demo as a user starts them: in processes of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.broker import PROJECT, Broker, clean_environment, quarry


def failure(*arguments: object, environment: dict[str, str] | None = None) -> str:
    """The one line on standard error of a `quarry serve` that cannot run."""
    done = quarry("serve", *map(str, arguments), environment=environment)
    assert done.returncode == 2, done.stdout + done.stderr
    # Logs may come before it; it is the last line, and no stack trace is among them.
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def free_addresses() -> list[str]:
    return ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    assert failure("--config", tmp_path / "none.toml") == f"{tmp_path}/none.toml: no such file"


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    config = tmp_path / "quarry.toml"
    config.write_text("[store]\nsegment_size = 'large'\n")
    assert failure("--config", config).startswith(f"{config}:2: store.segment_size: ")
    assert failure("--listen", "nowhere").startswith("network.listen: ")
    variable = "QUARRY_NETWORK_LISTEN"
    assert failure(environment={variable: "nowhere"}).startswith(f"{variable}: network.listen: ")


def test_plain_text_for_other_machines_is_refused_by_name() -> None:
    without = {"QUARRY_NETWORK_TLS": "optional"}
    text = failure("--listen", "0.0.0.0:0", environment=without)
    assert text.startswith("network: listen = 0.0.0.0:0 would accept plain text ")
    assert failure("--http", "[::]:0").startswith("network: http = [::]:0 would accept plain text ")


def test_a_tls_file_that_is_no_good_is_named(tmp_path: Path) -> None:
    names = ("TLS", "TLS_CERTIFICATE", "TLS_KEY", "METRICS_TOKEN_FILE")
    values = ("required", f"{tmp_path}/tls.crt", f"{tmp_path}/tls.key", f"{tmp_path}/token")
    environment = {f"QUARRY_NETWORK_{name}": value for name, value in zip(names, values, strict=True)}
    store = ("--store", tmp_path / "store", *free_addresses())
    assert f"{tmp_path}/tls.crt" in failure(*store, environment=environment)
    environment["QUARRY_NETWORK_TLS"] = "off"
    assert f"{tmp_path}/token" in failure(*store, environment=environment)


@pytest.mark.parametrize("port", ["--listen", "--admin", "--http"])
def test_a_taken_port_is_named(tmp_path: Path, port: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = failure("--store", tmp_path / "store", *free_addresses(), port, address)
    assert address in line


def test_a_directory_that_is_no_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear diary")
    assert str(tmp_path) in failure("--store", tmp_path, *free_addresses())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["letter.txt"]


def test_a_store_that_another_broker_holds_is_named(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    try:
        broker.start()
        assert str(tmp_path / "store") in failure("--store", tmp_path / "store", *free_addresses())
        assert broker.get("/readyz") == (200, "ready\n")
        broker.stop()
    finally:
        broker.close()


def test_flags_win_over_the_environment(tmp_path: Path) -> None:
    environment = {"QUARRY_STORE_DIRECTORY": str(tmp_path / "other"), "QUARRY_CONFIG": str(tmp_path / "quarry.toml")}
    (tmp_path / "quarry.toml").write_text("[broker]\nname = 'from-file'\n")
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment)
    try:
        broker.start()
        assert str(tmp_path / "store") in broker.words()
        broker.stop()
    finally:
        broker.close()
    assert (tmp_path / "store").is_dir()
    assert not (tmp_path / "other").exists()


def test_the_demo_sends_and_receives_with_the_official_client(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quarry_mq.cli.main", "demo"],
        cwd=PROJECT,
        env={**clean_environment(), "TMPDIR": str(tmp_path), "HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    sent = next(line.split()[1] for line in lines if line.startswith("sent"))
    assert any(line.startswith(f"received  {sent}  hello, quarry") for line in lines)
    assert "acknowledged" in lines
    # Neither a store nor the client's logs are left.
    assert list(tmp_path.iterdir()) == []
