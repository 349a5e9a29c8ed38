"""`quarry serve --shards auto`: as many shards as suit the machine, and one address for all clients."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quarry_mq.cli import shards as command
from quarry_mq.cli.doctor.machine import usable_cores
from quarry_mq.cli.main import app
from quarry_mq.cli.shards import choose_shards, suitable_shards
from quarry_mq.server.settings.broker_settings import load_settings
from tests.e2e.broker import environment_of, quarry, until
from tests.e2e.clients import Outgoing
from tests.e2e.conftest import QUICK, StartClients, start_clients
from tests.remoting.test_java_clients import played, remoting_classes
from tests.shards.running import Supervisor, flags, ports_of_two_shards, reachable

__all__ = ["start_clients"]

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "gib", "shards"),
    [
        (1, 8, 1),
        (2, 8, 2),
        (4, 8, 4),
        (5, 8, 4),
        (8, 32, 7),
        (10, 32, 8),
        (16, 64, 13),
        (64, 256, 52),
        (128, 512, 100),
        (8, 1, 2),
        (8, 0.1, 1),
        (8, None, 7),
    ],
)
def test_a_core_of_five_and_half_a_gib_for_each_shard_are_left(cores: int, gib: float | None, shards: int) -> None:
    assert suitable_shards(cores=cores, memory_bytes=None if gib is None else int(gib * GIB)) == shards


class Machine:
    """Files in which a kernel says how much a process may use, and the cores of its affinity."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self.write("proc/meminfo", "MemTotal: 67108864 kB\n")
        self.has_cores(8)

    def has_cores(self, count: int) -> None:
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)))

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(command, "configure_logs", lambda *_: None)  # it would take the log away from `capture_logs`
    return Machine(tmp_path / "machine", monkeypatch)


def test_cores_are_those_of_the_affinity_without_a_limit(machine: Machine) -> None:
    assert usable_cores(machine.root) == 8
    machine.write("sys/fs/cgroup/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(machine.root) == 8


@pytest.mark.parametrize(("quota", "cores"), [("300000 100000", 3), ("250000 100000", 2), ("5000 10000", 1)])
def test_a_container_has_the_whole_cores_of_its_limit(machine: Machine, quota: str, cores: int) -> None:
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", f"{quota}\n")
    assert usable_cores(machine.root) == cores


def test_the_least_limit_of_all_control_groups_around_the_process_holds(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/system.slice/quarry.service\n")
    machine.write("sys/fs/cgroup/system.slice/quarry.service/cpu.max", "400000 100000\n")
    assert usable_cores(machine.root) == 4
    machine.write("sys/fs/cgroup/system.slice/cpu.max", "200000 100000\n")
    assert usable_cores(machine.root) == 2
    machine.write("sys/fs/cgroup/user.slice/cpu.max", "100000 100000\n")
    assert usable_cores(machine.root) == 2


def test_limits_of_the_first_version_of_control_groups_hold(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/docker/abc\n")
    machine.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "500000\n")
    machine.write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n")
    assert usable_cores(machine.root) == 5


def chosen(machine: Machine, directory: Path) -> tuple[int | None, dict[str, object]]:
    """Return the number, and the line that says why."""
    with capture_logs() as lines:
        count = choose_shards(load_settings(None, {"store": {"directory": directory}}), machine.root)
    (line,) = lines
    return count, {name: line.get(name) for name in ("log_level", "shards", "suitable", "cores", "advice")}


def said(level: str, shards: int, **others: object) -> dict[str, object]:
    return {"log_level": level, "shards": shards, "suitable": None, "cores": 8, "advice": None, **others}


def test_a_new_directory_gets_what_suits_the_machine(machine: Machine, tmp_path: Path) -> None:
    assert chosen(machine, tmp_path / "store") == (7, said("info", 7))
    machine.write("sys/fs/cgroup/memory.max", str(GIB))
    assert chosen(machine, tmp_path / "store") == (2, said("info", 2))
    machine.has_cores(1)
    assert chosen(machine, tmp_path / "store") == (None, said("info", 1, cores=1))


def test_shards_that_are_there_are_as_many_as_before(machine: Machine, tmp_path: Path) -> None:
    for number in (0, 1, 3):
        (tmp_path / f"shard-{number}").mkdir()
    advice = "to have more, start it with --shards 7"
    assert chosen(machine, tmp_path) == (4, said("warning", 4, suitable=7, advice=advice))
    machine.has_cores(4)
    assert chosen(machine, tmp_path) == (4, said("info", 4, cores=4))
    machine.has_cores(1)
    assert chosen(machine, tmp_path) == (4, said("warning", 4, suitable=1, cores=1))


@pytest.mark.parametrize("name", ["commitlog", "quarry"])
def test_the_store_of_a_single_broker_stays_one(machine: Machine, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    advice = f"to have more, stop it, move the store to {tmp_path}/shard-0, and start it with --shards 7"
    assert chosen(machine, tmp_path) == (None, said("warning", 1, suitable=7, advice=advice))
    machine.has_cores(1)
    assert chosen(machine, tmp_path) == (None, said("info", 1, cores=1))


def test_a_store_beside_shards_is_not_served_without_them(machine: Machine, tmp_path: Path) -> None:
    """The directory counts as one of shards, which `test_directory.py` sees refused beside a store."""
    for name in ("commitlog", "shard-0"):
        (tmp_path / name).mkdir()
    assert chosen(machine, tmp_path)[0] == 1


@pytest.mark.parametrize("value", ["0", "101", "-1", "2.5", "AUTO", "many", "", "²"])
def test_what_is_no_number_of_shards_is_refused(value: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--shards", value])
    assert done.exit_code == 2
    text = " ".join(done.output.replace("│", " ").split())
    assert f"Invalid value for '--shards': {value!r} is neither a number from 1 to 100 nor auto" in text


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Processes that are started meanwhile may use so many cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        if usable_cores() != count:
            pytest.skip(f"{count} cores are needed")
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def started(directory: Path, ports: Sequence[int], *, cores: int) -> Supervisor:
    """Start `--shards auto` with so many cores, for clients of both protocols."""
    settings = {**QUICK, "remoting.names_listen": f"127.0.0.1:{ports[3]}"}
    arguments = ["quarry_mq.cli.main", "serve", "--shards", "auto", *flags(directory / "store", ports[:3])]
    with on_cores(cores):
        return Supervisor(arguments, directory, environment=environment_of(settings))


def stored(admin: int, topic: str) -> int:
    """Messages of the topic on this shard."""
    done = quarry("topic", "show", topic, "--json", "--admin", f"127.0.0.1:{admin}")
    return sum(queue["maxOffset"] - queue["minOffset"] for queue in json.loads(done.stdout)["queues"])


@pytest.fixture
def ports() -> list[int]:
    return ports_of_two_shards(4)


@pytest.fixture
def two_cores(tmp_path: Path, ports: Sequence[int]) -> Iterator[Supervisor]:
    """Two shards with the topic `orders`, which has two queues on each of them."""
    supervisor = started(tmp_path, ports, cores=2)
    try:
        supervisor.until_said("2 shards are ready.")
        until(lambda: reachable(ports[1]) == ["quarry-0", "quarry-1"], "they are one cluster")
        done = quarry("topic", "create", "orders", "--queues", "2", "--admin", f"127.0.0.1:{ports[1]}")
        assert done.returncode == 0, done.stderr
        yield supervisor
    finally:
        supervisor.close()


def test_two_cores_run_two_shards_that_clients_of_one_address_use(
    two_cores: Supervisor, ports: Sequence[int], tmp_path: Path, start_clients: StartClients
) -> None:
    (event,) = two_cores.events("as many shards run as suit the machine")
    assert (event["shards"], event["cores"]) == (2, 2)
    clients = start_clients("python", f"127.0.0.1:{ports[0]}")
    sent = [b"%d" % number for number in range(16)]
    clients.producer("orders").send([Outgoing("orders", body) for body in sent])
    assert min(stored(admin, "orders") for admin in (ports[1], ports[1] + 100)) >= 4
    consumer = clients.simple_consumer("orders", group="billing", await_s=2)
    deliveries = consumer.receive_until(len(sent))
    consumer.ack(deliveries)
    assert {each.body for each in deliveries} == set(sent)
    clients.close()

    two_cores.tell(SIGTERM)
    assert two_cores.ended() == 0, two_cores.words()
    again = started(tmp_path, ports, cores=1)
    try:
        again.until_said("2 shards are ready.")
        (event,) = again.events("the stores that are there decide how many shards run")
        assert (event["shards"], event["suitable"], event["cores"]) == (2, 1, 1)
    finally:
        again.close()


def test_one_core_runs_one_broker(tmp_path: Path, ports: Sequence[int]) -> None:
    for cores, event in (
        (1, "as many shards run as suit the machine"),
        (2, "the stores that are there decide how many shards run"),
    ):
        broker = started(tmp_path, ports, cores=cores)
        try:
            broker.until_said("Quarry is ready.")
            assert [line["shards"] for line in broker.events(event)] == [1]
            assert (tmp_path / "store" / "commitlog").is_dir()
        finally:
            broker.close()


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_one_address_is_enough_for_official_clients_of_both_protocols(
    ports: Sequence[int], start_clients: StartClients, tmp_path_factory: pytest.TempPathFactory
) -> None:
    address = f"127.0.0.1:{ports[0]}"
    class_path = remoting_classes("4.9.8", tmp_path_factory)
    played(address, class_path, "orders", "fleet-send", options=["-Dfirst=0", "-Dlast=20"])
    assert [stored(admin, "orders") for admin in (ports[1], ports[1] + 100)] == [10, 10]

    clients = start_clients("java", address)
    consumer = clients.simple_consumer("orders", group="billing", await_s=2)
    deliveries = consumer.receive_until(20)
    consumer.ack(deliveries)
    assert sorted(int(each.body) for each in deliveries) == list(range(20))
    clients.producer("orders").send([Outgoing("orders", b"%d" % number) for number in range(20, 40)])
    assert [stored(admin, "orders") for admin in (ports[1], ports[1] + 100)] == [20, 20]

    text = played(address, class_path, "orders", "fleet-receive", options=["-Dcount=40"])
    received = [int(line.split()[2]) for line in text.splitlines() if line.startswith("got ")]
    assert sorted(received) == list(range(40))
