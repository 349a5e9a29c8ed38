"""SIGTERM again and again while official clients send, receive and acknowledge, and go on doing so.

The broker is started again on the same addresses. A stop in good order may cost its clients time, but no message; what
their libraries raise is counted, and may only be for calls made while no broker was there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Final, NamedTuple

import pytest

from quarry_mq.store.layout.paths import StorePaths
from tests.e2e.broker import Broker, quarry, until
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.ledger import Call, Ledger, Workers, start_pairs

ROUNDS: Final = int(os.environ.get("E2E_DRAINS", "50"))
TOPIC: Final = "orders"
GROUP: Final = "workers"
GRACE_S: Final = 5.0
RECONNECT_S: Final = 10.0
"""How long after the start a client may still refuse calls by itself: gRPC waits longer after each attempt in vain."""
CALL_TIMEOUT_S: Final = 3.0
"""The request timeout of the clients: the default of all official ones."""
NEVER_SENT: Final = (
    "GOAWAY shut down transport",  # grpc-java
    "Stream removed (GOAWAY received; Error code: 0; Debug Text: )",  # gRPC's C core
)
"""Of a call that one thread was about to put on a connection while another read its GOAWAY. It is not on the wire, and
gRPC would repeat it unseen, but RocketMQ's clients turn gRPC's retries off: they send again by themselves, and raise
the error for receives and acknowledgements."""
NEVER_SENT_SHARE: Final = 0.1
"""Of the stops: so many may meet such a call."""


class Outage(NamedTuple):
    """From the signal to the end of the process, and until the next one is ready; monotonic seconds."""

    signal_s: float
    ended_s: float
    ready_s: float

    def explains(self, refusal: Call) -> bool:
        return refusal.ended_s >= self.signal_s and refusal.began_s <= self.ready_s + RECONNECT_S

    def outlasts(self, call: Call) -> bool:
        """Whether no broker ran for so much of the call that its client gave up before an answer could come.

        A start takes half a second; on a machine that is busy with other work, some of fifty take three.
        """
        return min(call.ended_s, self.ready_s) - max(call.began_s, self.signal_s) > CALL_TIMEOUT_S - 1


def drain_again_and_again(broker: Broker, ledger: Ledger, chance: random.Random, rounds: int) -> list[Outage]:
    """Each round begins when all is well: a send and a delivery were acknowledged since the last start."""
    outages = []
    for _ in range(rounds):
        sent, consumed = len(ledger.acknowledged), len(ledger.consumed_s)
        until(lambda: len(ledger.acknowledged) > sent, "a send is acknowledged")  # noqa: B023 - ends in this round
        until(lambda: len(ledger.consumed_s) > consumed, "a delivery is acknowledged")  # noqa: B023 - `until` calls it at once
        time.sleep(chance.uniform(0.0, 0.7))
        signal_s = time.monotonic()
        broker.signal(signal.SIGTERM)
        status = broker.ended()
        ended_s = time.monotonic()
        assert status == 0, f"status {status}:\n{broker.words()}"
        assert not StorePaths(broker.store).abort.exists()
        broker.start()
        outages.append(Outage(signal_s, ended_s, time.monotonic()))
    return outages


def play(
    broker: Broker, start_clients: StartClients, *, languages: Sequence[str], rounds: int, seed: int
) -> tuple[Ledger, list[Outage]]:
    """The rounds with clients of these languages, to the last message."""
    ledger, workers = Ledger(), Workers()
    processes = start_pairs(
        workers,
        ledger,
        lambda language: start_clients(language, broker.endpoint),
        languages,
        topic=TOPIC,
        group=GROUP,
    )
    try:
        outages = drain_again_and_again(broker, ledger, random.Random(seed), rounds)
        workers.stop("producer")
        with suppress(AssertionError):
            until(lambda: not ledger.undelivered, "all is delivered")
        workers.stop("consumer")
    except BaseException:
        workers.abandon()
        raise
    for process in processes:
        process.kill()  # the shutdown of a client that is about to connect again may fail
    return ledger, outages


def longest_after_ready_s(ledger: Ledger, outages: Sequence[Outage]) -> float:
    """How long after a broker was ready again a call began that its client's library let fail."""
    lags_s = [0.0]
    for refusal in ledger.refusals:
        lags_s += [refusal.began_s - each.ready_s for each in outages if each.ready_s <= refusal.began_s][-1:]
    return max(lags_s)


def judge(broker: Broker, ledger: Ledger, outages: Sequence[Outage], *, may_refuse: bool = True) -> None:
    stops_s = [each.ended_s - each.signal_s for each in outages]
    stats = {
        "stops": len(outages),
        "stop_s": {"median": round(median(stops_s), 3), "longest": round(max(stops_s), 3)},
        "outage_s": round(median(each.ready_s - each.signal_s for each in outages), 3),
        "raised_until_s_after_ready": round(longest_after_ready_s(ledger, outages), 3),
        "acknowledged": len(ledger.acknowledged),
        "consumed": len(ledger.consumed_s),
        "delivered_twice": sum(count > 1 for count in ledger.delivered.values()),
        "raised": ledger.refused,
    }
    print(json.dumps(stats))
    assert not ledger.undelivered, f"{len(ledger.undelivered)} were never delivered: {sorted(ledger.undelivered)[:5]}"
    assert not ledger.faults, f"{len(ledger.faults)} faults: {ledger.faults[:5]}"
    assert max(stops_s) < GRACE_S
    unexplained = [each for each in ledger.refusals if not any(outage.explains(each) for outage in outages)]
    assert not unexplained, Counter(each.refusal for each in unexplained)
    if not may_refuse:
        raised = [
            each
            for each in ledger.refusals
            if not any(words in each.text for words in NEVER_SENT) and not any(it.outlasts(each) for it in outages)
        ]
        assert not raised, Counter(each.text for each in raised)
        assert len(ledger.refusals) <= NEVER_SENT_SHARE * len(outages)
    broker.assert_no_stack_trace()
    broker.stop()
    done = quarry("verify", str(broker.store), timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_stop_under_load_loses_nothing(start_broker: StartBroker, start_clients: StartClients) -> None:
    broker = start_broker()
    judge(broker, *play(broker, start_clients, languages=["python"], rounds=2, seed=1))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("keeps_listening", [True, False], ids=["the-port-stays-open", "the-port-is-closed"])
def test_fifty_stops_under_load_lose_nothing(
    keeps_listening: bool, start_broker: StartBroker, start_clients: StartClients
) -> None:
    """With a port that stays open (`deploy/quarry.socket`) clients raise nothing that the broker could prevent."""
    seed = int(os.environ.get("E2E_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"E2E_SEED={seed}")
    broker = start_broker(keeps_listening=keeps_listening)
    played = play(broker, start_clients, languages=["python", "java"], rounds=ROUNDS, seed=seed)
    judge(broker, *played, may_refuse=not keeps_listening)
