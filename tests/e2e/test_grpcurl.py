"""docs/grpcurl.md, command by command, with the real grpcurl: what it shows there is what a broker answers."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import trustme

from quarry_mq.store.security.subjects import subject_of
from tests.e2e import languages
from tests.e2e.accounts import make_accounts
from tests.e2e.broker import PROJECT
from tests.e2e.conftest import StartBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE: Final = (PROJECT / "docs" / "grpcurl.md").read_text()
CALL_TIMEOUT_S: Final = 60


class Command(NamedTuple):
    """As it is typed, and what comes of it."""

    words: list[str]
    output: str


def commands(heading: str) -> Iterator[Command]:
    """Those of grpcurl in one part of the page: lines that begin with `$`, and what follows them."""
    part = re.split(rf"^## {heading}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]
    for block in re.findall(r"^```console\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL):
        for typed in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *rest = typed.splitlines(keepends=True)
            while first.endswith("\\\n"):
                first = first.removesuffix("\\\n") + rest.pop(0)
            if first.startswith("grpcurl "):
                yield Command(shlex.split(first), "".join(rest))


@pytest.fixture(scope="module")
def grpcurl() -> Path:
    module = re.search(r"go install (github\.com/fullstorydev/grpcurl/\S+@v[\d.]+)", PAGE)
    assert module is not None
    return languages.go_tool(module[1])


def outcome(grpcurl: Path, words: list[str], names: Mapping[str, object]) -> str:
    """What it says, with what the page calls by one name being another here."""
    assert words[0] == "grpcurl"
    replaced = [str(names.get(word, word)) for word in words[1:]]
    done = subprocess.run([grpcurl, *replaced], capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    return done.stdout + done.stderr


def shape(text: str) -> Any:
    """Of JSON the fields and their types, of all else the text itself."""
    found = []
    rest = text.strip()
    try:
        while rest:
            value, end = json.JSONDecoder().raw_decode(rest)
            found.append(value)
            rest = rest[end:].strip()
    except json.JSONDecodeError:
        return text.strip()
    return [_typed(each) for each in found]


def _typed(value: Any) -> Any:
    match value:
        case dict():
            return {name: _typed(each) for name, each in value.items()}
        case list():
            return [_typed(each) for each in value]
        case _:
            return type(value).__name__


def test_the_session_of_the_page(grpcurl: Path, start_broker: StartBroker) -> None:
    broker = start_broker()
    names = {"127.0.0.1:8082": broker.admin}
    session = list(commands("A session"))
    assert len(session) > 10
    for words, expected in session:
        assert shape(outcome(grpcurl, words, names)) == shape(expected), words


def test_with_tls_and_where_users_are_asked_for(grpcurl: Path, start_broker: StartBroker, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.crt")
    for name in ("server", "operator", "stranger"):
        issued = authority.issue_cert("127.0.0.1" if name == "server" else f"{name}@example.com")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        (tmp_path / f"{name}.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    operator = subject_of(ssl.PEM_cert_to_DER_cert((tmp_path / "operator.crt").read_text()))
    broker = start_broker(
        settings={
            **make_accounts(tmp_path / "store", operator=operator).settings,
            "network.admin_tls": True,
            "network.tls_certificate": tmp_path / "server.crt",
            "network.tls_key": tmp_path / "server.key",
            "network.admin_client_ca": tmp_path / "authority.crt",
        }
    )
    names: dict[str, object] = {each.name: each for each in tmp_path.iterdir()}
    session = list(commands("TLS and users"))
    assert len(session) > 1
    for words, expected in session:
        said = outcome(grpcurl, words, {**names, "mq.example.com:8082": broker.admin})
        assert shape(said) == shape(expected), words
