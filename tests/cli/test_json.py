"""Every command is run with --json, and prints what its schema says (tests/schemas.py holds it to that)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.cli.schemas.shapes import commands
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.messaging import MessagingClient
from quarry_mq.client.requests import Subscription
from tests.cli.online_runner import Quarry
from tests.conftest import GoldenStore
from tests.e2e.broker import PROJECT, Broker, environment_of
from tests.schemas import command_of

ELSEWHERE = {
    "bench": "tests/cli/test_bench.py",
    "ping": "tests/cli/test_ping.py",
    "acl allow": "tests/cli/test_security.py",
    "acl deny": "tests/cli/test_security.py",
    "acl list": "tests/cli/test_security.py",
    "acl remove": "tests/cli/test_security.py",
    "acl show": "tests/cli/test_security.py",
    "acl test": "tests/cli/test_security.py",
    "context add": "tests/cli/test_context_commands.py",
    "context list": "tests/cli/test_context_commands.py",
    "context remove": "tests/cli/test_context_commands.py",
    "context show": "tests/cli/test_context_commands.py",
    "context test": "tests/cli/test_context_commands.py",
    "context use": "tests/cli/test_context_commands.py",
    "client stack": "tests/cli/test_admin_calls.py",
    "client verify-message": "tests/cli/test_admin_calls.py",
    "cluster drain": "tests/e2e/test_cluster.py",
    "cluster members": "tests/e2e/members.py",
    "cluster rejoin": "tests/e2e/test_cluster.py",
    "dead-letters list": "tests/conformance/test_dead_letters.py",
    "dead-letters resend": "tests/conformance/test_dead_letters.py",
    "cluster remove": "tests/e2e/test_cluster.py",
    "lite backlog": "tests/cli/test_browse.py",
    "doctor": "tests/cli/test_doctor.py",
    "export-metadata": "tests/cli/test_export_metadata.py",
    "job cancel": "tests/conformance/test_jobs.py",
    "migration advance": "tests/e2e/test_migration.py",
    "migration rollback": "tests/e2e/test_migration.py",
    "pipeline export": "tests/pipeline",
    "pipeline index": "tests/pipeline",
    "pipeline migrate": "tests/pipeline",
    "pipeline rebuild": "tests/pipeline",
    "pipeline replay": "tests/pipeline/test_replay.py",
    "pipeline lake": "tests/pipeline",
    "pipeline lake-maintain": "tests/pipeline",
    "pipeline stats": "tests/cli/test_pipeline_stats.py",
    "pipeline verify": "tests/pipeline",
    "follow": "tests/following/test_following.py",
    "recover": "tests/cli/test_recover.py",
    "replica list": "tests/cli/test_replica.py",
    "replica promote": "tests/cli/test_replica.py",
    "replica seed": "tests/cli/test_replica.py",
    "restore": "tests/cli/test_backup.py",
    "tail": "tests/cli/test_online.py",
    "user add-secret": "tests/cli/test_security.py",
    "user bootstrap": "tests/cli/test_security.py",
    "user create": "tests/cli/test_security.py",
    "user delete": "tests/cli/test_security.py",
    "user list": "tests/cli/test_security.py",
    "user remove-secret": "tests/cli/test_security.py",
    "user reseal": "tests/cli/test_security.py",
    "user show": "tests/cli/test_security.py",
    "user update": "tests/cli/test_security.py",
    "index upload": "tests/cli/test_index.py",
    "verification cancel": "tests/e2e/test_verification.py",
}
"""Commands that need a broker or a store of another kind, and where they run with --json."""

SAME_AS = {"cluster activate": "cluster drain"}
"""Commands that print what another one prints, by the same code."""

HERE = """
topic create orders --queues 2 --attribute owner=shop
topic create sessions --type lite
topic create grouped --type fifo
topic update orders --permission read-write
topic list --system
topic show orders
topic status orders
topic route orders
topic readers orders
topic spans orders
topic top --order name
group create billing --retry-delays 1,2
group create exponential
group update billing --max-attempts 3
group list
group show billing
group top --order name
produce orders hello --tag new --key k1 --property a=b --count 3
produce grouped ordered --message-group g
message send orders hello --key k2
browse orders --limit 2
consume orders --group billing --limit 2 --timeout 1
consume grouped --group billing --limit 1 --timeout 1
group reset-offset billing --topic orders --to earliest --yes
group reset-offset billing --topic orders --to latest --dry-run
group reset-offset billing --topic orders --to earliest --no-wait --yes
group consumers reading --topic orders
group subscriptions billing
group times billing
lag billing
client list
client list --all
job list
message query --topic orders
message query --topic grouped
message trace --topic orders --key k1
message show --topic orders --queue 0 --offset 0
message resend --topic orders --key k1 --dry-run
query --topic orders --key k1 --admin ADMIN
queues --summary --admin ADMIN
index list --admin ADMIN
index verify --admin ADMIN
index compact --admin ADMIN
lite list sessions
lite stats sessions
expire --dry-run
verification begin --wait
verification status
verification list
migration status
settings list
settings get log.level
settings set log.level warning
settings reset log.level
stats
broker
overview
overview --all
topic top --all --order name
group top --all --order name
history
history --all
top --once
storage
storage --files
storage --rocksdb
pending
call AdminService/GetBroker
group forget billing --topic orders --yes
group delete billing --yes
topic delete orders --yes
"""


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("json")
    settings = {"index.tiered": True, "store.segment_size": 16 * 1024 * 1024}
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment_of(settings))
    try:
        yield Quarry(broker.start())
        broker.stop()
    finally:
        broker.close()


OFTEN_EMPTY = {
    "expire",
    "group reset-offset",
    "index list",
    "index verify",
    "lite list",
    "topic readers",
}
"""What may print nothing here, and prints something in tests of its own."""


def test_commands_of_a_live_broker(quarry: Quarry) -> None:
    silent = set()
    with MessagingClient(
        Endpoint(quarry.broker.endpoint), subscription=Subscription(group="reading", topic="orders")
    ) as client:
        for line in HERE.split("\n")[1:-1]:
            words = line.replace("ADMIN", quarry.broker.admin).split()
            result = quarry.result(*words, "--json")
            assert result.exit_code in (0, 1), (line, result.output)
            if not result.stdout:
                silent.add(" ".join(words[:2]))
        job = quarry.rows("job", "list")[0]["id"]
        assert quarry.row("job", "show", job)["id"] == job
        shown = quarry.row("client", "show", client._requests.client_id, "--group", "reading")
    assert shown["group"] == "reading"
    assert {each.split(" --")[0] for each in silent} <= OFTEN_EMPTY


def test_lite_topics(quarry: Quarry) -> None:
    stdin = b'{"body": "hello", "liteTopic": "one"}'
    quarry.rows("produce", "sessions", "--file", "-", "--json-lines", stdin=stdin)
    assert quarry.row("lite", "show", "sessions", "one")["maxOffset"] == 1
    assert quarry.row("lite", "delete", "--yes", "sessions", "one")["deleted"] == "one"


def test_commands_of_stores(quarry: Quarry, golden_copy: GoldenStore, tmp_path: Path) -> None:
    offline = Quarry(None)
    store = golden_copy("rocks-clean") / "store"
    assert offline.rows("decode", store, "--limit", 3)
    bounds = offline.rows("queues", store)
    queue = next(each for each in bounds if each["maxOffset"] > each["minOffset"])
    assert offline.rows("units", store, "--topic", queue["topic"], "--queue", queue["queueId"])
    assert offline.rows("verify", store)[-1]["verdict"] == "agree"
    assert offline.row("migrate", store, "--to", "file", "--dry-run")["dryRun"]
    assert offline.row("backup", store, tmp_path / "backups")["files"]
    assert offline.row("security", "new-key", tmp_path / "key")["file"] == str(tmp_path / "key")


def test_every_command_is_run_with_json() -> None:
    own = Path(__file__).read_text()
    here = {command_of(line.split()) for line in HERE.split("\n")[1:-1]}
    called = {name for name in commands() if '("' + name.replace(" ", '", "') + '"' in own}
    assert here | called | set(ELSEWHERE) | set(SAME_AS) == set(commands())
    assert all(commands()[name] == commands()[other] for name, other in SAME_AS.items())
    for name, where in ELSEWHERE.items():
        path = PROJECT / where
        text = "".join(each.read_text() for each in (sorted(path.glob("*.py")) if path.is_dir() else [path]))
        assert name.rpartition(" ")[2] in text, (name, where)
