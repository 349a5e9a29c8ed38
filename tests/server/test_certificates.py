"""The certificate that ports show: how it is exchanged, and what is said of it."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.front import LiveTls, TlsFiles
from quarry_mq.server.observability.metrics.instruments import watch_certificates
from quarry_mq.server.process import certificates as certificates_module
from quarry_mq.server.process.certificates import Certificates, TlsPorts
from quarry_mq.store.errors import Invalid
from tests.certificates import make_tls

DAY_S = 86_400


def ports(directory: Path) -> TlsPorts:
    files = make_tls(directory, clients_too=True).files
    return TlsPorts(files, TlsFiles(files.certificate, files.key), TlsFiles(files.certificate, files.key))


def renewed(directory: Path) -> tuple[bytes, bytes]:
    """The texts of another certificate and its key; nothing is written to the directory."""
    (directory / "other").mkdir(exist_ok=True)
    files = make_tls(directory / "other").files
    return files.certificate.read_bytes(), files.key.read_bytes()


def shown(certificates: Certificates) -> list[bytes]:
    lives = (certificates.messaging, certificates.admin, certificates.http)
    return [live.now.certificate for live in lives if live is not None]


def test_what_has_changed_is_taken_for_all_ports(tmp_path: Path) -> None:
    wanted = ports(tmp_path)
    certificates = Certificates(wanted)
    before = shown(certificates)
    contexts = [live.now.context for live in (certificates.messaging, certificates.http) if live is not None]
    certificates.look()
    assert shown(certificates) == before
    new = make_tls(tmp_path, clients_too=True)
    with capture_logs() as logs:
        certificates.look()
    assert shown(certificates) == [new.files.certificate.read_bytes()] * 3 != before
    assert isinstance(certificates.messaging, LiveTls)
    assert certificates.messaging.now.client_ca == new.authority
    assert certificates.messaging.now.context not in contexts
    assert [line["event"] for line in logs] == ["new TLS files are in use"]
    assert certificates.failed_reloads == 0


def test_a_broken_file_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    wanted = ports(tmp_path)
    certificates = Certificates(wanted)
    before = shown(certificates)
    assert wanted.messaging is not None
    key, good = wanted.messaging.key, wanted.messaging.key.read_bytes()
    with capture_logs() as logs:
        for _ in range(2):
            key.write_text("nothing")
            for _ in range(5):
                certificates.look()
            key.write_bytes(good)
            certificates.look()
        key.unlink()
        for _ in range(5):
            certificates.look()
    assert [line["log_level"] for line in logs] == ["error"] * 3
    assert all(str(key) in line["reason"] for line in logs)
    assert not any("PRIVATE" in str(line) for line in logs)
    assert certificates.failed_reloads == 3
    assert shown(certificates) == before


def test_a_certificate_whose_key_comes_a_moment_later_is_no_failure(tmp_path: Path) -> None:
    wanted = ports(tmp_path)
    certificates = Certificates(wanted)
    assert wanted.messaging is not None
    certificate, key = renewed(tmp_path)
    with capture_logs() as logs:
        wanted.messaging.certificate.write_bytes(certificate)
        certificates.look()
        wanted.messaging.key.write_bytes(key)
        certificates.look()
    assert shown(certificates) == [certificate] * 3
    assert certificates.failed_reloads == 0
    assert [line["log_level"] for line in logs] == ["info"]


def test_the_watch_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates_module, "LOOK_INTERVAL_S", 0.01)
    certificates = Certificates(ports(tmp_path))
    before = shown(certificates)

    async def test() -> None:
        watch = asyncio.create_task(certificates.watch())
        await asyncio.sleep(0.05)
        make_tls(tmp_path, clients_too=True)
        while shown(certificates) == before:
            await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.wait([watch])

    asyncio.run(asyncio.wait_for(test(), 60))


def test_files_that_are_no_good_at_the_start_are_refused_by_name(tmp_path: Path) -> None:
    wanted = ports(tmp_path)
    assert wanted.messaging is not None
    wanted.messaging.certificate.write_text("nothing")
    with pytest.raises(Invalid, match=str(wanted.messaging.certificate)):
        Certificates(wanted)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = make_tls(tmp_path).files
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(Invalid, match=f"{files.key} cannot be used: it has a passphrase"):
        Certificates(TlsPorts(files))


def test_the_end_of_the_certificate_is_exported_and_warned_of_once_a_day(tmp_path: Path) -> None:
    authority = trustme.CA()
    end = dt.datetime(2030, 1, 15, tzinfo=dt.UTC)
    issued = authority.issue_cert("localhost", not_after=end)
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    key.write_bytes(issued.private_key_pem.bytes())
    clock = ManualClock(wall_ms=int((end.timestamp() - 20 * DAY_S) * 1000))
    certificates = Certificates(TlsPorts(TlsFiles(certificate, key)), clock)
    registry = CollectorRegistry()
    watch_certificates(registry, certificates)
    assert registry.get_sample_value("quarry_tls_certificate_expires_seconds") == end.timestamp()
    assert registry.get_sample_value("quarry_tls_failed_reloads_total") == 0
    with capture_logs() as logs:
        for _ in range(21):
            certificates.look()
            certificates.look()
            clock.advance(DAY_S)
    assert {line["log_level"] for line in logs} == {"warning"}
    assert [line["days_left"] for line in logs] == [13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert all(line["certificate"] == str(certificate) for line in logs)


def test_without_tls_there_is_nothing_to_look_at() -> None:
    certificates = Certificates(TlsPorts())
    certificates.look()
    registry = CollectorRegistry()
    watch_certificates(registry, certificates)
    assert registry.get_sample_value("quarry_tls_certificate_expires_seconds") is None
