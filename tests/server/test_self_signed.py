"""The self-signed certificate: when it is made, what keeps it, and what it is worth to a client that verifies it."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.front import LiveTls, TlsFiles
from quarry_mq.server.process.certificates import LOOK_INTERVAL_S, Certificates, TlsPorts
from quarry_mq.server.process.self_signed import RENEW_BEFORE, VALID_FOR, SelfSigned
from quarry_mq.server.settings.broker_settings import load_settings
from quarry_mq.store.errors import Invalid
from quarry_mq.store.fs import PosixDisk
from tests.certificates import make_tls

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def clock_at(moment: datetime) -> ManualClock:
    return ManualClock(wall_ms=int(moment.timestamp() * 1000))


def self_signed(directory: Path, *hosts: str, at: datetime = NOW) -> SelfSigned:
    return SelfSigned(directory / "tls", list(hosts), clock_at(at))


def certificate_of(made: SelfSigned) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate.read_bytes())


def test_it_is_for_the_owner_only_and_is_kept(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    previous = os.umask(0)
    try:
        made.make()
    finally:
        os.umask(previous)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.key.parent.iterdir()} == {
        "certificate.pem": 0o600,
        "key.pem": 0o600,
    }
    assert stat.S_IMODE(made.key.parent.stat().st_mode) == 0o700
    before = made.certificate.read_bytes(), made.key.read_bytes()
    self_signed(tmp_path, "other.example.com", at=NOW + timedelta(days=365)).make()
    assert (made.certificate.read_bytes(), made.key.read_bytes()) == before


def test_it_names_this_machine_and_the_addresses_of_the_settings(tmp_path: Path) -> None:
    network = {"listen": "[2001:db8::1]:1", "advertise": "mq.example.com:2", "plain_text": "everywhere"}
    settings = load_settings(None, {"store": {"directory": tmp_path}, "network": network})
    made = SelfSigned.of(settings, clock_at(NOW))
    made.make()
    assert made.key == tmp_path / "tls" / "key.pem"
    names = certificate_of(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [*names.get_values_for_type(x509.DNSName)] == ["localhost", socket.gethostname(), "mq.example.com"]
    assert [*map(str, names.get_values_for_type(x509.IPAddress))] == ["127.0.0.1", "::1", "2001:db8::1"]


def test_names_that_no_certificate_can_hold_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "rechner-müller")
    made = self_signed(tmp_path, "x" * 300, "0.0.0.0")
    made.make()
    names = certificate_of(made).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]


@pytest.mark.parametrize("strict", [False, True])
def test_a_client_that_trusts_the_file_accepts_it_and_only_under_its_names(tmp_path: Path, strict: bool) -> None:
    made = SelfSigned(tmp_path / "tls", [], clock_at(datetime.now(UTC)))
    made.make()
    server = LiveTls(TlsFiles(made.certificate, made.key)).now.context
    client = ssl.create_default_context(cafile=made.certificate)
    if strict:  # the default from Python 3.13 on
        client.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("localhost", "127.0.0.1", "::1"):
        shake_hands(server, client, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mq\.example\.com"):
        shake_hands(server, client, "mq.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ssl.create_default_context(), "localhost")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[1].version() is not None


@pytest.mark.parametrize(
    ("after", "is_renewed"),
    [
        (VALID_FOR - RENEW_BEFORE - timedelta(days=1), False),
        (VALID_FOR - RENEW_BEFORE, True),
        (VALID_FOR + timedelta(days=1), True),
        (timedelta(days=-2), True),
    ],
)
def test_it_is_made_again_in_time_with_the_same_key(tmp_path: Path, after: timedelta, is_renewed: bool) -> None:
    """A clock that was wrong when it was made must not leave one that nobody accepts."""
    made = self_signed(tmp_path)
    made.make()
    old, key = certificate_of(made), made.key.read_bytes()
    self_signed(tmp_path, at=NOW + after).make()
    new = certificate_of(made)
    assert (new != old) == is_renewed
    assert new.not_valid_before_utc < NOW + after < new.not_valid_after_utc
    assert (new.public_key(), made.key.read_bytes()) == (old.public_key(), key)


def test_what_is_missing_or_damaged_is_made_again_but_no_key_is_replaced(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    made.make()
    key = made.key.read_bytes()
    for damage in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        made.certificate.write_bytes(damage)
        made.make()
        assert certificate_of(made).public_key() == load_pem_private_key(key, None).public_key()
    made.certificate.unlink()
    made.make()
    assert LiveTls(TlsFiles(made.certificate, made.key)).is_loaded
    made.key.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=f"TLS: {made.key} cannot be used: .*; remove it, and another one is made"):
        made.make()
    assert made.key.read_bytes() == b"nothing"
    made.key.unlink()
    made.make()
    assert made.key.read_bytes() not in {key, b"nothing"}
    assert LiveTls(TlsFiles(made.certificate, made.key)).is_loaded


def test_a_certificate_of_somebody_else_in_its_place_stays(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    made.make()
    issued = trustme.CA().issue_cert("mq.example.com", not_after=NOW - timedelta(days=1))
    made.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    made.make()
    assert made.certificate.read_bytes() == issued.cert_chain_pems[0].bytes()


def test_brokers_that_share_the_folder_and_make_it_at_once_show_one_key(tmp_path: Path) -> None:
    makers = [self_signed(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(len(makers)) as threads:
        list(threads.map(SelfSigned.make, makers))
    assert sorted(path.name for path in (tmp_path / "tls").iterdir()) == ["certificate.pem", "key.pem"]
    assert LiveTls(TlsFiles(makers[0].certificate, makers[0].key)).is_loaded


def ports_of(directory: Path, clock: ManualClock) -> TlsPorts:
    return TlsPorts.of(load_settings(None, {"store": {"directory": directory / "store"}}), clock)


def full(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_made_before_it_is_needed(tmp_path: Path) -> None:
    clock = clock_at(NOW)
    certificates = Certificates(ports_of(tmp_path, clock), clock)
    certificates.look()
    assert list(tmp_path.iterdir()) == []
    assert certificates.expires_s is None
    certificates.load_messaging()
    certificates.look()
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["tls"]
    assert certificates.expires_s == (NOW + VALID_FOR).timestamp()


def test_a_restarted_broker_shows_the_same(tmp_path: Path) -> None:
    shown = []
    for days in range(2):
        clock = clock_at(NOW + timedelta(days=days))
        certificates = Certificates(ports_of(tmp_path, clock), clock)
        assert certificates.messaging is not None
        shown.append((certificates.messaging.now.certificate, certificates.messaging.now.key))
    assert shown[0] == shown[1]


def test_a_full_disk_is_told_by_name_and_later_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_at(NOW)
    certificates = Certificates(ports_of(tmp_path, clock), clock)
    with monkeypatch.context() as patch:
        patch.setattr(PosixDisk, "replace_atomically", full)
        with pytest.raises(Invalid, match=r"tls/key\.pem cannot be made or read: No space left on device"):
            certificates.load_messaging()
        certificates.look()
        assert certificates.expires_s is None
    assert list((tmp_path / "store" / "tls").iterdir()) == []
    certificates.load_messaging()
    assert certificates.messaging is not None
    assert certificates.messaging.is_loaded


def test_a_running_broker_renews_it_and_takes_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_at(NOW)
    certificates = Certificates(ports_of(tmp_path, clock), clock)
    certificates.load_messaging()
    certificates.look()
    assert certificates.messaging is not None
    old = certificates.messaging.now
    clock.advance((VALID_FOR - RENEW_BEFORE).total_seconds() + 1)
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(PosixDisk, "replace_atomically", full)
        for _ in range(3):
            certificates.look()
            clock.advance(LOOK_INTERVAL_S)
    assert [line["event"] for line in logs] == ["the self-signed certificate cannot be renewed"]
    assert certificates.messaging.now is old
    clock.advance(3_600)
    with capture_logs() as logs:
        for _ in range(3):
            certificates.look()
            clock.advance(LOOK_INTERVAL_S)
    assert [line["event"] for line in logs] == ["new TLS files are in use"]
    assert certificates.messaging.now.certificate != old.certificate
    assert certificates.messaging.now.key == old.key
    assert certificates.failed_reloads == 0


def test_a_broker_takes_what_another_one_has_put_there(tmp_path: Path) -> None:
    clock = clock_at(NOW)
    certificates = Certificates(ports_of(tmp_path, clock), clock)
    certificates.load_messaging()
    certificates.look()
    other = make_tls(tmp_path).files
    (tmp_path / "store" / "tls" / "certificate.pem").write_bytes(other.certificate.read_bytes())
    (tmp_path / "store" / "tls" / "key.pem").write_bytes(other.key.read_bytes())
    certificates.look()
    assert certificates.messaging is not None
    assert certificates.messaging.now.key == other.key.read_bytes()


def test_the_library_that_makes_it_is_loaded_when_it_is_needed(tmp_path: Path) -> None:
    code = (
        "import sys; import quarry_mq.server.main; from pathlib import Path\n"
        "from quarry_mq.protocol.clock import SystemClock\n"
        "from quarry_mq.server.process.certificates import Certificates, TlsPorts\n"
        "from quarry_mq.server.settings.broker_settings import load_settings\n"
        "settings = load_settings(None, {'store': {'directory': Path(sys.argv[1])}})\n"
        "certificates = Certificates(TlsPorts.of(settings, SystemClock())); certificates.look()\n"
        "print('cryptography' in sys.modules); certificates.load_messaging(); print('cryptography' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
