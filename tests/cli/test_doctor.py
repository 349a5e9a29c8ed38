"""`quarry doctor` finds faults that were planted, each by its name, and finds none where there is none."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from quarry_mq.cli.doctor import certificate, live, machine, network, places
from quarry_mq.cli.doctor.findings import Finding, Verdict
from quarry_mq.cli.main import app
from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.server.front import LiveTls, TlsFiles
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.http import HttpEndpoint
from quarry_mq.server.process.self_signed import SelfSigned
from quarry_mq.server.settings.broker_settings import BrokerSettings, load_settings
from quarry_mq.server.settings.sections import NetworkSection, RemotingSection
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.certificates import make_tls
from tests.conftest import GoldenStore
from tests.e2e.broker import DISK_OF_THE_TESTS, PROJECT, Broker, clean_environment, environment_of, quarry

HOUR_S = 3_600


class Patient:
    """A broker's settings, which `doctor` is asked about."""

    def __init__(self, store: Path) -> None:
        messaging, admin, http = ("127.0.0.1:0",) * 3
        self.store = store
        self.settings: dict[str, object] = {
            "store.directory": store,
            "network.listen": messaging,
            "network.admin": admin,
            "network.http": http,
            "expiry.refuse_percent": 100,
            "expiry.force_percent": 99,
            "expiry.clean_percent": 98,
        }

    def beside(self, broker: Broker) -> None:
        """A broker with these settings runs."""
        self.settings |= {
            "network.listen": broker.endpoint,
            "network.admin": broker.admin,
            "network.http": broker.http,
        }

    def ask(self, *words: object, status: int = 0) -> list[dict[str, Any]]:
        environment = {name: "" for name in os.environ if name.startswith("QUARRY_")}
        result = CliRunner().invoke(
            app, ["doctor", "--json", *map(str, words)], env={**environment, **environment_of(self.settings)}
        )
        assert result.exit_code == status, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def faults(self, *words: object) -> list[tuple[str, str]]:
        """Check and what it saw, of each fault."""
        found = self.ask(*words, status=1)
        assert all(each["advice"] for each in found if each["verdict"] in ("fault", "warning"))
        return [(each["check"], each["seen"]) for each in found if each["verdict"] == "fault"]


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path / "store")


@pytest.fixture
def broker(patient: Patient, tmp_path: Path) -> Iterator[Broker]:
    """One that the settings are of, not started yet."""
    made = Broker(patient.store, logs=tmp_path / "logs", environment=DISK_OF_THE_TESTS)
    patient.beside(made)
    yield made
    made.close()


def test_a_healthy_place_has_no_fault(patient: Patient) -> None:
    found = patient.ask()
    assert {each["verdict"] for each in found} <= {"fine", "warning", "unknown"}
    assert {"versions", "settings", "descriptors", "maps", "disk", "sync", "permissions", "clock", "store"} <= {
        each["check"] for each in found
    }
    assert not patient.store.exists(), "it only looks"


def test_a_healthy_broker_has_no_fault(patient: Patient, broker: Broker) -> None:
    broker.start()
    patient.settings["network.advertise"] = broker.endpoint
    found = {each["check"]: each for each in patient.ask()}
    assert found["broker"]["verdict"] == found["health"]["verdict"] == "fine"
    assert found["advertised address"]["seen"] == f"network.advertise = {broker.endpoint}: clients reach it"
    assert "served by the broker" in found["store"]["seen"]


def test_people_read_words_and_what_to_do(patient: Patient) -> None:
    patient.settings["network.advertise"] = "no-such-host.invalid:8081"
    result = CliRunner().invoke(app, ["doctor"], env=environment_of(patient.settings))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert any(line.startswith("FAULT") and "no-such-host.invalid" in line for line in lines)
    assert any(line.strip().startswith("-> set an address that clients can resolve") for line in lines)
    assert lines[-1].startswith("1 fault, ")


def test_the_page_has_every_check() -> None:
    code = "".join(path.read_text() for path in (PROJECT / "cli" / "doctor").glob("*.py"))
    page = (PROJECT / "docs" / "doctor.md").read_text()
    named = set(re.findall(r'\b(?:fine|unknown|warning|fault)\(\s*"([a-z ]+)"', code))
    assert set(re.findall(r"^\| `([a-z ]+)` \|", page, flags=re.MULTILINE)) == named


# -- faults, each planted for real


def test_a_setting_that_is_none(patient: Patient, tmp_path: Path) -> None:
    config = tmp_path / "quarry.toml"
    config.write_text("[store]\nflush_intervall_ms = 5\n")
    [(check, seen)] = patient.faults("--config", config)
    assert check == "settings"
    assert "flush_intervall_ms" in seen


def test_a_value_that_may_not_be(patient: Patient) -> None:
    patient.settings["store.segment_size"] = 1_000_000
    [(check, seen)] = patient.faults()
    assert check == "settings"
    assert "store.segment_size" in seen


def test_too_few_descriptors(patient: Patient) -> None:
    # a process that is forked while grpc runs here (`preexec_fn`) may end in it: grpc#43055
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 256; exec {sys.executable} -m quarry_mq.cli.main doctor"],
        cwd=PROJECT,
        env={**clean_environment(), **environment_of(patient.settings)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "FAULT    descriptors         256 open files" in done.stdout
    assert "ulimit -Hn" in done.stdout


def test_whoever_reaches_the_admin_port_administers() -> None:
    def looked_at(**addresses: object) -> list[tuple[Verdict, str]]:
        settings = load_settings(
            None, {"network": {"plain_text": "everywhere", **addresses}, "security": {"open_admin": True}}
        )
        return [(each.verdict, each.seen.partition(":")[0]) for each in network.operators(settings)]

    assert looked_at() == [(Verdict.FINE, "may be anybody on this machine")]
    assert looked_at(admin="0.0.0.0:1", console="10.0.0.7:2") == [
        (Verdict.WARNING, "network.admin = 0.0.0.0"),
        (Verdict.WARNING, "network.console = 10.0.0.7"),
    ]


def test_descriptors_for_fewer_connections_than_are_wanted(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_at(hard: int) -> str:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
        (found,) = machine.descriptors(settings)
        return f"{found.verdict.value} {found.seen}"

    settings = BrokerSettings()
    assert looked_at(65_536) == "fine 65536 open files"
    assert looked_at(4_096).startswith("warning 4096 open files: ")
    assert looked_at(4_096).endswith(" connections of 10000")
    assert looked_at(256) == "fault 256 open files"


def test_a_library_that_is_too_old(patient: Patient, tmp_path: Path) -> None:
    planted = tmp_path / "libraries" / "structlog-1.0.dist-info"
    planted.mkdir(parents=True)
    (planted / "METADATA").write_text("Metadata-Version: 2.1\nName: structlog\nVersion: 1.0\n")
    done = quarry("doctor", environment={**environment_of(patient.settings), "PYTHONPATH": str(planted.parent)})
    assert done.returncode == 1, done.stdout
    assert "structlog 1.0, but" in done.stdout


def test_a_disk_that_is_too_full(patient: Patient) -> None:
    patient.store.mkdir()
    used = shutil.disk_usage(patient.store)
    if used.used / used.total < 0.02:
        pytest.skip("the disk is emptier than the smallest limit")
    patient.settings |= {"expiry.refuse_percent": 1, "expiry.force_percent": 1, "expiry.clean_percent": 1}
    [(check, seen)] = patient.faults()
    assert check == "disk"
    assert "% in use" in seen


def test_a_key_file_that_is_missing(patient: Patient, tmp_path: Path) -> None:
    patient.settings["security.key_file"] = tmp_path / "keys"
    assert patient.faults() == [("secrets", f"security.key_file: {tmp_path / 'keys'}: No such file or directory")]


def test_a_store_from_the_future(patient: Patient) -> None:
    made(patient.store)
    written = patient.store / "quarry" / "CURRENT"
    later_s = datetime.now(UTC).timestamp() + HOUR_S
    os.utime(written, (later_s, later_s))
    [(check, seen)] = patient.faults()
    assert check == "clock"
    assert str(written) in seen


def test_a_port_that_is_taken(patient: Patient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        patient.settings["network.listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        [(check, seen)] = patient.faults()
    assert check == "ports"
    assert "Address already in use" in seen


def test_an_advertised_name_that_nobody_knows(patient: Patient) -> None:
    patient.settings["network.advertise"] = "no-such-host.invalid:8081"
    [(check, seen)] = patient.faults()
    assert check == "advertised address"
    assert "no-such-host.invalid" in seen


def test_an_advertised_address_that_leads_nowhere(patient: Patient, broker: Broker) -> None:
    broker.start()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        patient.settings["network.advertise"] = f"127.0.0.1:{silent.getsockname()[1]}"
        [(check, seen)] = patient.faults()
    assert check == "advertised address"
    assert "no answer from there within" in seen


def test_a_certificate_that_has_ended(patient: Patient, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1", not_after=datetime.now(UTC) - timedelta(days=1))
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    issued.private_key_pem.write_to_path(key)
    key.chmod(0o600)
    patient.settings |= {
        "network.tls": "required",
        "network.tls_certificate": certificate,
        "network.tls_key": key,
    }
    [(check, seen)] = patient.faults()
    assert check == "certificate"
    assert "ended on" in seen


def test_a_certificate_that_the_broker_makes(patient: Patient) -> None:
    """Doctor makes no certificate; a certificate that is there is checked like any other."""
    settings = load_settings(None, {"store": {"directory": patient.store}, "network": {"tls": "required"}})
    clock = ManualClock(wall_ms=int(datetime(2026, 6, 1, tzinfo=UTC).timestamp() * 1000))

    def looked_at(settings: BrokerSettings = settings) -> list[tuple[str, str]]:
        found = [*certificate.certificate(settings, clock), *places.secrets(settings)]
        return [(each.verdict.value, each.seen) for each in found]

    folder = patient.store / "tls"
    shown = folder / "certificate.pem"
    assert looked_at() == [("fine", f"{shown}, self-signed, is made for the first client with TLS")]
    assert not patient.store.exists()
    SelfSigned.of(settings, clock).make()
    key = ("fine", f"self-signed certificate: {folder / 'key.pem'}")
    assert looked_at() == [("fine", f"{shown} is valid for 3650 days"), key]
    elsewhere = load_settings(
        None,
        {"store": {"directory": patient.store}, "network": {"tls": "required", "advertise": "mq.example.com:1"}},
    )
    (_, names, _) = looked_at(elsewhere)
    assert names == (
        "warning",
        f"{shown} is for localhost, {socket.gethostname()}, 127.0.0.1, ::1, but clients are sent to mq.example.com",
    )
    clock.advance(3_640 * 86_400)
    assert looked_at() == [("warning", f"{shown} ends in 10.0 days"), key]
    (folder / "key.pem").chmod(0o644)
    shown.write_text("nothing")
    (damage, mode) = looked_at()
    assert damage[0] == "fault"
    assert str(shown) in damage[1]
    assert mode == ("warning", f"{key[1]} can be read by other users than its owner")
    assert looked_at(load_settings(None, {"network": {"tls": "off"}})) == [("fine", "no port uses TLS")]


def test_a_certificate_for_somebody_else(patient: Patient, tmp_path: Path) -> None:
    patient.settings |= {**make_tls(tmp_path).settings(), "network.advertise": "example.com:8081"}
    assert [seen for check, seen in patient.faults() if check == "certificate"] == [
        f"{tmp_path / 'server.pem'} is for localhost, 127.0.0.1, but clients are sent to example.com"
    ]


def test_a_folder_that_is_no_store(patient: Patient) -> None:
    (patient.store / "photos").mkdir(parents=True)
    (patient.store / "photos" / "cat.jpg").write_bytes(b"meow")
    [(check, seen)] = patient.faults()
    assert check == "store"
    assert str(patient.store) in seen


def test_a_damaged_store(patient: Patient, golden_copy: GoldenStore) -> None:
    patient.store = golden_copy("rocks-clean") / "store"
    patient.settings["store.directory"] = patient.store
    os.truncate(patient.store / "commitlog" / f"{0:020}", 4_096)
    [(check, seen)] = patient.faults()
    assert check == "store"
    assert f"{0:020}: the file has 4096 bytes" in seen


def test_a_store_that_another_process_holds(patient: Patient, golden_copy: GoldenStore) -> None:
    patient.settings["store.directory"] = root = golden_copy("rocks-clean") / "store"
    holding = opened(root)
    try:
        done = quarry("doctor", "--json", environment=environment_of(patient.settings))
    finally:
        holding.close()
    [fault] = [each for each in map(json.loads, done.stdout.splitlines()) if each["verdict"] == "fault"]
    assert fault["check"] == "store"
    assert fault["advice"].startswith("a broker that does not answer at network.admin has the store open"), fault


def test_a_broker_that_serves_another_store(patient: Patient, broker: Broker, tmp_path: Path) -> None:
    broker.start()
    patient.settings["store.directory"] = tmp_path / "another"
    [(check, seen)] = patient.faults()
    assert check == "broker"
    assert str(broker.store) in seen


def test_a_broker_that_takes_no_sends(patient: Patient, broker: Broker) -> None:
    used = shutil.disk_usage("/")
    if used.used / used.total < 0.02:
        pytest.skip("the disk is emptier than the smallest limit")
    broker.start(
        settings={
            "expiry.refuse_percent": 1,
            "expiry.force_percent": 1,
            "expiry.clean_percent": 1,
            "expiry.force": False,
        }
    )
    found = patient.faults()
    assert [check for check, _ in found] == ["concerns"], "it is said once"
    assert "sends are refused" in found[0][1]


# -- what cannot be planted without harm to others


def looked(check: Callable[..., Iterator[Finding]], *arguments: Any) -> list[Verdict]:
    return [each.verdict for each in check(*arguments)]


def test_too_few_maps(patient: Patient, tmp_path: Path) -> None:
    settings = load_settings(None, {"store": {"directory": patient.store}})
    limit = tmp_path / "max_map_count"
    for text, verdict in (("65530", Verdict.FINE), ("1024", Verdict.FAULT), ("many", Verdict.UNKNOWN)):
        limit.write_text(text)
        assert looked(machine.maps, settings, limit) == [verdict]


def test_a_console_that_nobody_asked_for_gives_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "http": "127.0.0.1:0"}
        asked_for = NetworkSection.model_validate({**free, "console": address})
        default = asked_for.model_copy()
        default.model_fields_set.discard("console")
        off = NetworkSection.model_validate({**free, "console": "off"})
        no_remoting = RemotingSection(listen="off", names_listen="off")  # its ports may be taken here

        def verdicts(section: NetworkSection) -> list[Verdict]:
            return looked(network.ports, BrokerSettings(network=section, remoting=no_remoting))

        assert verdicts(asked_for) == [Verdict.FAULT]
        assert verdicts(default) == [Verdict.WARNING]
        assert verdicts(off) == [Verdict.FINE]


def test_too_little_memory(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8000000 kB\n")
    for text, verdict in (("max", Verdict.FINE), (str(100 << 20), Verdict.WARNING)):
        (group / "memory.max").write_text(text)
        assert looked(machine.memory, tmp_path) == [verdict]


def test_a_clock_that_nobody_keeps() -> None:
    for state, verdict in ((0, Verdict.FINE), (5, Verdict.WARNING), (-1, Verdict.UNKNOWN)):
        assert looked(machine.clock_is_kept, lambda _, state=state: state) == [verdict]


def test_a_disk_of_another_machine(patient: Patient, tmp_path: Path) -> None:
    settings = load_settings(None, {"store": {"directory": patient.store}})
    mounts = tmp_path / "mounts"
    for kind, verdict in (("ext4", Verdict.FINE), ("nfs4", Verdict.WARNING), ("tmpfs", Verdict.WARNING)):
        mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n")
        assert looked(places.file_system, settings, mounts) == [verdict]


def test_what_another_user_has_written(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    made(patient.store)
    theirs = patient.store / "quarry" / "CURRENT"
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != theirs)
    settings = load_settings(None, {"store": {"directory": patient.store}})
    [found] = places.permissions(settings)
    assert found.verdict is Verdict.FAULT
    assert str(theirs) in found.seen
    assert "chown -R" in found.advice


def made(root: Path) -> None:
    """A store that was open once."""
    opened(root).close()


def opened(root: Path) -> OpenStore:
    return open_store(StoreSettings(root=root), disk=PosixDisk(), clock=SystemClock(), report=lambda *_: None)


@pytest.mark.parametrize("names", [("localhost",), ("127.0.0.1",), ("*.members.example",), ("nobody.example",)])
def test_the_health_of_a_port_with_tls_is_asked_by_a_name_of_its_certificate(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """A certificate of Kubernetes has names of Services and pods, and no address."""
    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    files.certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    health = HealthState()
    health.ready()
    endpoint = HttpEndpoint("127.0.0.1:0", CollectorRegistry(), health, tls=LiveTls(files))
    endpoint.start()
    try:
        network = {
            "http": endpoint.url.removeprefix("https://"),
            "http_tls": True,
            "tls_certificate": files.certificate,
            "tls_key": files.key,
        }
        cluster = {"members": ["a:1"], "key_file": "/cluster.key", "advertise": "quarry-0.members.example:8082"}
        settings = load_settings(None, {"network": network, "cluster": cluster})
        found = [*live.health(settings, SystemClock(), tmp_path / "ca.crt")]
    finally:
        endpoint.stop()
    if names == ("nobody.example",):
        [finding] = found
        assert finding.verdict is Verdict.UNKNOWN
        assert "certificate verify failed" in finding.seen
    else:
        assert [(each.check, each.verdict) for each in found] == [("health", Verdict.FINE), ("clock", Verdict.FINE)]


def test_a_key_that_a_group_is_given_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Secret of Kubernetes is mounted with the mode 0440, and nobody in the pod can change it."""
    tls, member = tmp_path / "tls.key", tmp_path / "cluster.key"
    for path in (tls, member):
        path.touch(0o440)
        path.chmod(0o440)
    network = {"tls_certificate": tls, "tls_key": tls}
    settings = load_settings(None, {"network": network, "cluster": {"members": ["a:1"], "key_file": member}})

    def looked_at() -> list[tuple[str, str, str]]:
        return [(each.verdict.value, each.seen, each.advice) for each in places.secrets(settings)]

    of_member = f"cluster.key_file: {member} can be read by other users than its owner"
    assert looked_at() == [("warning", of_member, f"chmod 600 {member}"), ("fine", f"network.tls_key: {tls}", "")]
    tls.chmod(0o444)
    of_tls = f"network.tls_key: {tls} can be read by other users than its owner"
    assert looked_at()[1] == ("warning", of_tls, f"chmod 600 {tls}")
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert looked_at()[1] == ("warning", of_tls, "mount it with the mode 0440")


def test_an_address_for_clients_that_a_pod_may_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        cluster = {"members": ["a:1"], "key_file": "/cluster.key", "advertise": address}
        settings = load_settings(None, {"network": {"advertise": address}, "cluster": cluster})
        found = {
            each.seen.partition(" ")[0]: each.verdict for each in network.advertised(settings, None, is_served=True)
        }
    assert found == {"network.advertise": Verdict.UNKNOWN, "cluster.advertise": Verdict.FAULT}
