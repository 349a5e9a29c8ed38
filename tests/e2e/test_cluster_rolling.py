"""Members of a cluster are restarted one after the other while official clients send, receive and acknowledge.

As an upgrade does it (docs/upgrading.md): SIGTERM, the port is closed, a new process comes, and there is time for a
heartbeat of each client before the next member goes. Clients know all members, and have the defaults
of their libraries: a send that fails is tried again on another member, so none may reach the application.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.broker import Broker, quarry, until
from tests.e2e.clients import ClientProcess
from tests.e2e.conftest import StartClients
from tests.e2e.ledger import Call, Ledger, Workers, consume, produce
from tests.e2e.members import ClusterOfBrokers, names, reachable
from tests.e2e.test_drain import NEVER_SENT, NEVER_SENT_SHARE, Outage

ROUNDS: Final = int(os.environ.get("E2E_ROLLS", "3"))
MEMBERS: Final = 3
TOPIC: Final = "orders"
GROUP: Final = "workers"
SENDER: Final = "sender"
HEARTBEAT_S: Final = 12.0
"""Clients send one every ten seconds. Until then those of Java send nothing more to a member that failed a send: were
two of three stopped within that time, all attempts would go to the third, and fail when it is stopped in its turn.
"""
STANDSTILL_S: Final = 30.0
"""How long the consumers may get nothing while messages are left. They may be thousands behind, and all of that on one
member: a simple consumer takes one batch of it, and waits at each of the others before it comes back.
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    made = ClusterOfBrokers(tmp_path)
    try:
        for _ in range(MEMBERS):
            made.add()
        made.agree(reachable, [each.store.name for each in made.brokers])
        made.brokers[0].administer("topic", "create", TOPIC, "--queues", "4")
        made.agree(lambda broker: names(broker, "topic"), [TOPIC])
        yield made
    finally:
        made.close()


def roll(cluster: ClusterOfBrokers, ledger: Ledger, rounds: int) -> list[Outage]:
    """Each member in turn, again and again; the next one when all are there."""
    outages = []
    everybody = [each.store.name for each in cluster.brokers]
    for _ in range(rounds):
        for broker in cluster.brokers:
            sent, consumed = len(ledger.acknowledged), len(ledger.consumed_s)
            until(lambda: len(ledger.acknowledged) > sent + 20, "sends are acknowledged")  # noqa: B023 - ends in this round
            until(lambda: len(ledger.consumed_s) > consumed, "a delivery is acknowledged")  # noqa: B023 - `until` calls it at once
            outages.append(restart(cluster, broker))
            cluster.agree(reachable, everybody)
            time.sleep(HEARTBEAT_S)
    return outages


def restart(cluster: ClusterOfBrokers, broker: Broker) -> Outage:
    signal_s = time.monotonic()
    broker.signal(signal.SIGTERM)
    status = broker.ended()
    ended_s = time.monotonic()
    assert status == 0, f"status {status}:\n{broker.words()}"
    cluster.start(broker)
    return Outage(signal_s, ended_s, time.monotonic())


def is_never_sent(call: Call) -> bool:
    return any(words in call.text for words in NEVER_SENT)


def drain(ledger: Ledger) -> None:
    """Until all is delivered, or nothing more comes."""
    with suppress(AssertionError):
        while left := len(ledger.undelivered):
            until(lambda: len(ledger.undelivered) < left, "more is delivered", timeout_s=STANDSTILL_S)


def judge(cluster: ClusterOfBrokers, ledger: Ledger, outages: Sequence[Outage]) -> None:
    """Sends are what is promised; receives and acknowledgements of a member that is away are not tried elsewhere."""
    sends = [each for each in ledger.refusals if each.who.startswith(SENDER)]
    raised = [each for each in sends if not is_never_sent(each)]
    others = [each for each in ledger.refusals if each not in sends]
    unexplained = [each for each in others if not any(outage.explains(each) for outage in outages)]
    stats = {
        "restarts": len(outages),
        "stop_s": round(max(each.ended_s - each.signal_s for each in outages), 3),
        "acknowledged": len(ledger.acknowledged),
        "consumed": len(ledger.consumed_s),
        "slowest_send_s": round(max(each.ended_s - each.began_s for each in ledger.sends), 3),
        "delivered_twice": sum(count > 1 for count in ledger.delivered.values()),
        "raised": ledger.refused,
    }
    print(json.dumps(stats))
    assert not ledger.undelivered, f"{len(ledger.undelivered)} were never delivered: {sorted(ledger.undelivered)[:5]}"
    assert not ledger.faults, f"{len(ledger.faults)} faults: {ledger.faults[:5]}"
    assert not raised, Counter((each.who, each.refusal, each.text) for each in raised)
    assert len(sends) <= NEVER_SENT_SHARE * len(outages)
    assert not unexplained, Counter((each.refusal, each.text) for each in unexplained)
    for broker in cluster.brokers:
        broker.stop()
        done = quarry("verify", str(broker.store), timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", ["java", "python"])
def test_a_rolling_restart_fails_no_send(language: str, cluster: ClusterOfBrokers, start_clients: StartClients) -> None:
    ledger, workers = Ledger(), Workers()
    endpoints = ";".join(each.endpoint for each in cluster.brokers)
    clients = start_clients(language, endpoints)
    processes: list[ClientProcess] = []
    for number in range(2):
        producer, consumer = clients.producer(TOPIC), clients.simple_consumer(TOPIC, group=GROUP, await_s=1)
        processes += [producer, consumer]
        workers.start("producer", partial(produce, producer, f"{SENDER}-{number}", ledger, topics=[TOPIC]))
        workers.start("consumer", partial(consume, consumer, f"receiver-{number}", ledger))
    try:
        outages = roll(cluster, ledger, ROUNDS)
        workers.stop("producer")
        drain(ledger)
        workers.stop("consumer")
    except BaseException:
        workers.abandon()
        raise
    for process in processes:
        process.kill()
    judge(cluster, ledger, outages)
