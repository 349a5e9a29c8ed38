"""A console that nobody asked for keeps no broker from its work; one that was asked for does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quarry_mq.server.settings.sections.network import NetworkSection
from tests.certificates import make_tls
from tests.console.browser import QUICK
from tests.e2e.broker import NO_CONSOLE, PROJECT, Broker, clean_environment, environment_of, quarry

DEFAULT = NetworkSection().console


def started(directory: Path, settings: dict[str, object]) -> Broker:
    """With the default of the console."""
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment_of({**QUICK, **settings}))
    for name in NO_CONSOLE:
        del broker._environment[name]
    return broker


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_of_and_left_alone(tmp_path: Path) -> None:
    host, _, port = DEFAULT.rpartition(":")
    broker = started(tmp_path, {})
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((host, int(port)))
            taken.listen()
        except OSError:
            pass  # somebody has it: fine, too
        try:
            broker.start()
            assert f"cannot listen on {DEFAULT}" in broker.words()
            assert "there is no console" in broker.words()
            assert "for browsers" not in broker.words()
            broker.stop()
        finally:
            broker.close()
        refused = quarry(
            *("serve", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            *("--http", "127.0.0.1:0", "--console", DEFAULT),
        )
    assert refused.returncode == 2
    assert f"network.console: cannot listen on {DEFAULT}" in refused.stderr


@pytest.mark.slow
def test_it_stays_away_where_it_would_go_around_certificates(tmp_path: Path) -> None:
    tls = make_tls(tmp_path, clients_too=True)
    network = {"network.admin_tls": True, "network.admin_client_ca": tls.authority_path}
    broker = started(tmp_path, {**tls.settings("off"), **network})
    try:
        broker.start()
        assert "the console would require nothing" in broker.words()
        assert "for browsers" not in broker.words()
        broker.stop()
    finally:
        broker.close()


def test_a_broker_that_no_browser_asks_does_not_load_what_serves_them() -> None:
    code = "import sys, quarry_mq.server.main; sys.exit('aiohttp' in sys.modules)"
    environment = {**os.environ, **clean_environment()}
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, check=False).returncode == 0


@pytest.mark.slow
def test_a_folder_whose_name_is_too_long_for_a_socket_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120)
    folder.mkdir()
    done = quarry(
        *("serve", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--http", "127.0.0.1:0", "--console", "127.0.0.1:0"),
        environment={"TMPDIR": str(folder)},
    )
    assert done.returncode == 2
    assert "too long for the path of a socket" in done.stderr
