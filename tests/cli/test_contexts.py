"""Named contexts: what the file may say, and commands that use one."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from quarry_mq.cli.context_file import FILE_VARIABLE, NAME_VARIABLE, Context, ContextInvalid, read_context
from quarry_mq.cli.main import app
from quarry_mq.cli.online.connection.administration import open_channel
from quarry_mq.client.channel import call_metadata
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import ManualClock
from tests.certificates import make_tls
from tests.cli.said import hint_in
from tests.e2e.broker import Broker, environment_of

RUNNER = CliRunner()


def written(directory: Path, text: str) -> Path:
    file = directory / "contexts.toml"
    file.write_text(text)
    return file


def secret(directory: Path, text: str = "s3cret\n", mode: int = 0o600) -> Path:
    file = directory / "secret"
    file.write_text(text)
    file.chmod(mode)
    return file


def problem(file: Path, name: str = "prod") -> str:
    with pytest.raises(ContextInvalid) as caught:
        read_context(file, name)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_context_says_where_a_broker_is_and_how_it_is_known(tmp_path: Path) -> None:
    secret(tmp_path)
    file = written(
        tmp_path,
        """
        [local]
        [prod]
        endpoint = "mq.example.com:8081"
        admin = "mq.example.com:8082"
        tls_ca = "authority.pem"
        tls_certificate = "/etc/me.pem"
        tls_key = "/etc/me.key"
        user = "operator"
        secret_file = "secret"
        """,
    )
    assert read_context(file, "local") == Context()
    context = read_context(file, "prod")
    assert context == Context(
        endpoint="mq.example.com:8081",
        admin="mq.example.com:8082",
        tls=True,
        tls_ca=tmp_path / "authority.pem",
        tls_certificate=Path("/etc/me.pem"),
        tls_key=Path("/etc/me.key"),
        user="operator",
        secret="s3cret",
        secret_file=tmp_path / "secret",
    )
    assert "s3cret" not in repr(context)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('adress = "x:1"', "prod.adress: no such key"),
        ('endpoint = "nowhere"', "prod.endpoint: 'nowhere' is not host:port"),
        ("admin = 8082", "prod.admin: must be text"),
        ('tls = "yes"', "prod.tls: must be true or false"),
        ('tls = false\ntls_ca = "ca.pem"', "prod.tls: is false, but TLS files are given"),
        ('tls_key = "me.key"', "prod.tls_key: needs tls_certificate"),
        ('tls_certificate = "me.pem"', "prod.tls_certificate: needs tls_key"),
        ('user = "me"', "prod.user: needs secret_file"),
        ('secret_file = "secret"', "prod.secret_file: needs user"),
    ],
)
def test_what_is_wrong_is_told_by_file_and_key(tmp_path: Path, said: str, told: str) -> None:
    file = written(tmp_path, f"[prod]\n{said}\n")
    assert problem(file) == f"{file}: {told}"


def test_a_file_or_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert problem(tmp_path / "contexts.toml") == f"{tmp_path}/contexts.toml: No such file or directory"
    file = written(tmp_path, "[test]\n[other]\n")
    assert problem(file) == f"{file}: no context 'prod'; there are: other, test"
    file.write_text("[prod")
    assert problem(file).startswith(f"{file}: ")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret(tmp_path, mode=mode)
    file = written(tmp_path, '[prod]\nuser = "me"\nsecret_file = "secret"\n')
    assert problem(file) == f"{path}: other users may read the secret: chmod 600 {path}"
    path.chmod(0o400)
    assert read_context(file, "prod").secret == "s3cret"
    path.unlink()
    assert problem(file) == f"{path}: No such file or directory"
    secret(tmp_path, text=" \n")
    assert problem(file) == f"{path}: the file contains no secret"


def test_calls_of_a_user_are_signed_as_official_clients_sign_them() -> None:
    clock = ManualClock(wall_ms=1_700_000_000_000)
    metadata = dict(
        call_metadata(
            Endpoint("host:1", user="me", secret="s3cret"), "/apache.rocketmq.v2.MessagingService/Method", clock
        )
    )
    assert metadata["x-mq-date-time"] == "20231114T221320Z"
    signature = hmac.new(b"s3cret", b"20231114T221320Z", "sha1").hexdigest()
    assert (
        metadata["authorization"]
        == f"MQv2-HMAC-SHA1 Credential=me, SignedHeaders=x-mq-date-time, Signature={signature}"
    )
    assert call_metadata(Endpoint("host:1"), "/apache.rocketmq.v2.MessagingService/Method", clock) == ()


def test_calls_of_the_admin_port_are_signed_each_for_itself() -> None:
    clock = ManualClock(wall_ms=1_700_000_000_000)
    endpoint = Endpoint("host:1", user="me", secret="s3cret")
    first, second = (dict(call_metadata(endpoint, "/apache.rocketmq.v2.Admin/Method", clock)) for _ in range(2))
    assert first["x-quarry-date"] == "2023-11-14T22:13:20+00:00"
    covered = f"/apache.rocketmq.v2.Admin/Method\n{first['x-quarry-date']}\n{first['x-quarry-nonce']}".encode()
    signature = hmac.new(b"s3cret", covered, "sha256").hexdigest()
    assert first["authorization"] == f"Quarry-HMAC-SHA256 Credential=me, Signature={signature}"
    assert first["x-quarry-nonce"] != second["x-quarry-nonce"]


class Seen(grpc.GenericRpcHandler):
    """A server that keeps the metadata of each call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def service(self, details: Any) -> Any:
        self.calls.append(dict(details.invocation_metadata))
        if details.method.endswith("Stream"):
            return grpc.unary_stream_rpc_method_handler(lambda request, context: iter([request, request]))
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)


def test_every_kind_of_call_is_signed_and_keeps_its_own_headers() -> None:
    from concurrent.futures import ThreadPoolExecutor

    seen = Seen()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((seen,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with open_channel(f"127.0.0.1:{port}", Context(user="me", secret="s3cret")) as channel:
            untyped: Any = channel
            own = (("x-mq-client-id", "client"),)
            assert untyped.unary_unary("/test/Unary")(b"body", metadata=own, timeout=10) == b"body"
            assert list(untyped.unary_stream("/test/Stream")(b"body", metadata=own, timeout=10)) == [b"body"] * 2
        server.stop(None).wait()
    assert len(seen.calls) == 2
    for call in seen.calls:
        assert call["authorization"].startswith("Quarry-HMAC-SHA256 Credential=me, ")
        assert call["x-mq-client-id"] == "client"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """One with TLS on all ports and client certificates, and the folder of its files."""
    folder = tmp_path_factory.mktemp("contexts")
    tls = make_tls(folder, clients_too=True)
    assert tls.client is not None
    (folder / "me.pem").write_bytes(tls.client[0])
    (folder / "me.key").write_bytes(tls.client[1])
    settings = {
        "store.segment_size": 16 * 1024 * 1024,
        "network.tls": "required",
        "network.tls_certificate": tls.files.certificate,
        "network.tls_key": tls.files.key,
        "network.tls_client_ca": tls.authority_path,
        "network.admin_tls": True,
        "network.admin_client_ca": tls.authority_path,
    }
    broker = Broker(folder / "store", logs=folder / "logs", environment=environment_of(settings))
    written(
        folder,
        f"""
        [prod]
        endpoint = "{broker.endpoint}"
        admin = "{broker.admin}"
        tls_ca = "{tls.authority_path}"
        tls_certificate = "me.pem"
        tls_key = "me.key"
        [anonymous]
        admin = "{broker.admin}"
        tls_ca = "authority.pem"
        [broken]
        admin = "{broker.admin}"
        tls_ca = "me.key"
        """,
    )
    try:
        yield broker.start(), folder
        broker.stop()
    finally:
        broker.close()


def run(folder: Path, *words: str, status: int = 0, context: str | None = None) -> str:
    environment = {FILE_VARIABLE: str(folder / "contexts.toml"), NAME_VARIABLE: context}
    result = RUNNER.invoke(app, words, env=environment)
    assert result.exit_code == status, result.output
    return result.stdout if status == 0 else result.stderr


def test_commands_use_the_context_for_addresses_and_tls(broker: tuple[Broker, Path]) -> None:
    running, folder = broker
    run(folder, "--context", "prod", "topic", "create", "orders")
    sent = json.loads(run(folder, "--context", "prod", "produce", "orders", "hello", "--json"))
    assert sent["topic"] == "orders"
    assert "hello" in run(folder, "consume", "orders", "--limit", "1", context="prod")
    assert "orders" in run(folder, "topic", "list", "--admin", running.admin, context="prod")
    assert json.loads(run(folder, "queues", "--summary", "--json", context="prod").splitlines()[0])


def test_an_address_that_is_given_goes_before_the_context(broker: tuple[Broker, Path]) -> None:
    assert "127.0.0.1:1: no answer" in run(
        broker[1], "--context", "prod", "topic", "list", "--admin", "127.0.0.1:1", status=2
    )


def test_without_the_right_context_nobody_gets_in(broker: tuple[Broker, Path]) -> None:
    running, folder = broker
    for words in (("topic", "list", "--admin", running.admin), ("--context", "anonymous", "topic", "list")):
        told = run(folder, *words, status=2)
        assert "no answer from a broker" in told
        assert hint_in(told).startswith("the other side closes the connection"), told


def test_a_file_that_is_no_good_is_one_line(broker: tuple[Broker, Path]) -> None:
    _, folder = broker
    told = run(folder, "topic", "list", status=2, context="broken")
    assert told.startswith(f"{folder}/me.key: cannot be used for TLS: ")
    assert told.count("\n") == 1
    assert run(folder, "topic", "list", status=2, context="none").startswith(f"{folder}/contexts.toml: no context")


def test_commands_that_need_no_broker_need_no_context(tmp_path: Path) -> None:
    run(tmp_path, "queues", str(tmp_path / "nothing"), status=2, context="none")
