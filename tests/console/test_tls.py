"""The console with TLS: cookies for TLS alone, client certificates, and a certificate that changes while it runs."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.certificates import Tls, make_tls
from tests.console.browser import Browser, broker_with_console, raw
from tests.e2e.broker import Broker, until


class Place(NamedTuple):
    broker: Broker
    console: str
    tls: Tls

    def browser(self, tls: Tls | None = None, *, shows: bool = True) -> Browser:
        """Trusts the authority of `tls`, and shows its client certificate."""
        known = tls or self.tls
        context = ssl.create_default_context(cadata=known.authority.decode())
        if shows and known.client is not None:
            certificate, key = (known.files.certificate.with_name(f"client{number}.pem") for number in (0, 1))
            certificate.write_bytes(known.client[0])
            key.write_bytes(known.client[1])
            context.load_cert_chain(certificate, key)
        return Browser(self.console, context)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The admin port, too, has TLS and asks for a certificate: the console's own way there has neither."""
    directory = tmp_path_factory.mktemp("tls")
    tls = make_tls(directory, clients_too=True)
    settings: dict[str, object] = {
        **tls.settings("off"),
        "network.console_tls": True,
        "network.admin_tls": True,
        "network.admin_client_ca": tls.authority_path,
    }
    broker, console = broker_with_console(directory, settings)
    try:
        broker.start()
        assert f"https://{console}/" in broker.words()
        yield Place(broker, console, tls)
        broker.stop()
    finally:
        broker.close()


def test_calls_go_through(place: Place) -> None:
    browser = place.browser()
    assert browser.get("/").status == 200
    assert browser.call("AdminService/GetBroker").fields["name"] == "quarry"


def test_browsers_without_a_certificate_are_not_let_in(place: Place) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        place.browser(shows=False).get("/")


def test_plain_text_is_no_answer(place: Place) -> None:
    assert not raw(place.console, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").startswith(b"HTTP")
    assert place.browser().get("/").status == 200


def test_a_certificate_that_changes_is_taken_while_it_runs(place: Place, tmp_path: Path) -> None:
    """New connections get it, with the new authority for clients; one that is open stays as it is."""
    browser = place.browser()
    connection = browser.connect()
    with browser.asking(connection, "GET", "/") as answer:
        answer.read()
    new = make_tls(tmp_path, clients_too=True)
    for old_path, new_path in (
        (place.tls.files.key, new.files.key),
        (place.tls.files.certificate, new.files.certificate),
        (place.tls.authority_path, new.authority_path),
    ):
        old_path.write_bytes(new_path.read_bytes())

    def is_new() -> bool:
        try:
            return place.browser(new).get("/").status == 200
        except (ssl.SSLError, ConnectionError):
            return False

    until(is_new, "the new certificate is shown")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        browser.get("/")
    with browser.asking(connection, "GET", "/") as answer:
        assert answer.status == 200
    connection.close()


@pytest.mark.slow
def test_the_cookie_is_for_tls_alone(tmp_path: Path) -> None:
    from tests.console.test_login import CHIEF, make_users, secret_of

    tls = make_tls(tmp_path)
    settings = {**make_users(tmp_path / "store"), **tls.settings("off"), "network.console_tls": True}
    broker, console = broker_with_console(tmp_path, settings)
    try:
        broker.start()
        browser = Browser(console, ssl.create_default_context(cadata=tls.authority.decode()))
        (cookie,) = browser.log_in(CHIEF, secret_of(CHIEF)).headers.get_all("Set-Cookie", [])
        assert cookie.startswith("__Host-")
        assert "secure" in {each.strip().lower() for each in cookie.split(";")}
        assert browser.call("AdminService/GetBroker").status == 200
    finally:
        broker.close()
