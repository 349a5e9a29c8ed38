"""The output of `make serve` is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from quarry_mq.server.process.banner import WAITS, banner, is_for_people
from tests.certificates import make_tls
from tests.e2e.broker import Broker, environment_of
from tests.e2e.conftest import QUICK, StartBroker


def test_the_three_lines_of_python_send_and_receive(broker: Broker, tmp_path: Path) -> None:
    text = banner(
        listen=broker.endpoint, admin=broker.admin, http=f"http://{broker.http}", store="store", names="127.0.0.1:9876"
    )
    assert "\n  name server 127.0.0.1:9876     (remoting, clients and tools of RocketMQ 4)\n" in text
    assert "hello" in run_lines(text, tmp_path)


@pytest.mark.slow
def test_so_they_do_where_the_broker_wants_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    broker = start_broker(settings=tls.settings())
    text = banner(listen=broker.endpoint, admin=broker.admin, http=f"http://{broker.http}", store="s", needs_tls=True)
    assert text in broker.words().replace(str(broker.store), "s")
    assert "hello" in run_lines(text, tmp_path, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(tls.authority_path))


@pytest.mark.slow
def test_a_broker_for_others_says_what_its_own_certificate_is_worth(tmp_path: Path) -> None:
    """The broker accepts TLS alone if the only setting is an address that other machines reach."""
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(QUICK))
    broker.endpoint = broker.endpoint.replace("127.0.0.1", "0.0.0.0")
    certificate = broker.store / "tls" / "certificate.pem"
    text = banner(
        listen=broker.endpoint,
        admin=broker.admin,
        http=f"http://{broker.http}",
        store=str(broker.store),
        needs_tls=True,
        self_signed=certificate,
    )
    assert f"certificate {certificate}: nobody on the network can read" in text
    try:
        broker.start()
        assert text in broker.words()
        assert "hello" in run_lines(text, tmp_path, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(certificate))
    finally:
        broker.close()


@pytest.mark.parametrize("variables", [{"container": "oci"}, {"QUARRY_LOG_FORMAT": "json"}])
def test_where_lines_are_collected_it_is_one_line_of_json(variables: dict[str, str], tmp_path: Path) -> None:
    """Seven lines of text stood among the JSON lines of a pod, with an address that no client can use."""
    environment = {**environment_of(QUICK), **variables, "QUARRY_NETWORK_ADVERTISE": "quarry-0.quarry:8081"}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment)
    try:
        broker.start()
        lines = [json.loads(line) for line in broker.words().splitlines() if line]
    finally:
        broker.close()
    (ready,) = [line for line in lines if line["event"] == "ready"]
    assert ready["advertise"] == "quarry-0.quarry:8081"
    assert (ready["listen"], ready["admin"], ready["http"]) == (broker.endpoint, broker.admin, f"http://{broker.http}")
    assert "tls_advertise" not in ready


@pytest.mark.parametrize(
    ("log_format", "environment", "is_terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, True),
        ("auto", {"container": "oci"}, True, True),
        ("auto", {"container": "oci"}, False, False),
        ("auto", {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, False, False),
        ("console", {"container": "oci"}, False, True),
        ("json", {}, True, False),
        ("json", {"container": "oci", WAITS: "1"}, False, True),
    ],
)
def test_the_text_is_for_people_and_for_a_supervisor(
    log_format: str, environment: dict[str, str], is_terminal: bool, expected: bool
) -> None:
    assert is_for_people(log_format, environment, is_terminal=is_terminal) is expected


def run_lines(text: str, directory: Path, **environment: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.startswith(("  import", "  p =", "  c ="))]
    assert len(lines) == 3
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, "p.shutdown(); c.shutdown()"])],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
