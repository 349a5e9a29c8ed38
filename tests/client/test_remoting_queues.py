"""The client that reads queues over the remoting protocol, with a broker that does all that brokers may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import BrokerUnreachable
from quarry_mq.client.queues import RoutedQueue, Start
from quarry_mq.client.remoting import RemotingFailed
from quarry_mq.client.remoting_queues import PULLS_UNDER_WAY, PulledRecords, RemotingQueues
from quarry_mq.protocol.remoting.codes import ResponseCode
from tests.client.fake_rocketmq import BORN_MS, TOPIC, FakeRocketMQ, record_of
from tests.e2e.broker import until

QUEUE = (TOPIC, 0)
NOBODY = "127.0.0.1:9"


def client(fake: FakeRocketMQ, **terms: Any) -> RemotingQueues:
    made = RemotingQueues([Endpoint(fake.address)], **{"timeout_ms": 2_000, **terms})
    made.routes([TOPIC])
    return made


def pulled(queues: RemotingQueues, begin: int, end: int) -> list[PulledRecords]:
    return list(queues.pulls("broker-a", *QUEUE, begin, end))


def records(answers: list[PulledRecords]) -> bytes:
    return b"".join(each.records for each in answers)


def expected(*numbers: int) -> bytes:
    return b"".join(map(record_of, numbers))


def backwards(fake: FakeRocketMQ) -> None:
    fake.answers_backwards = True


def cut(fake: FakeRocketMQ) -> None:
    fake.cut_after = 3


def busy(fake: FakeRocketMQ) -> None:
    fake.refusals = [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE]


def few_at_once(fake: FakeRocketMQ) -> None:
    fake.given_max = 5


@pytest.mark.parametrize("trouble", [None, backwards, cut, busy, few_at_once])
def test_a_range_is_pulled_in_order_whatever_happens(trouble: Callable[[FakeRocketMQ], None] | None) -> None:
    with FakeRocketMQ(1_000) as fake, client(fake) as queues:
        if trouble is not None:
            trouble(fake)
        for begin, end in ((0, 1_000), (37, 838), (999, 1_000)):
            answers = pulled(queues, begin, end)
            assert records(answers) == expected(*range(begin, end))
            assert [each.begin for each in answers[1:]] == [each.following for each in answers[:-1]]
            assert answers[-1].following == end


def test_several_pulls_are_under_way_as_large_as_the_broker_gives() -> None:
    with FakeRocketMQ(2_000) as fake, client(fake) as queues:
        answers = queues.pulls("broker-a", *QUEUE, 0, 2_000)
        next(answers)
        next(answers)
        until(lambda: len(fake.pulls) > PULLS_UNDER_WAY, "several requests have come")
        assert fake.pulls[:3] == [0, 32, 64]
        assert len(fake.pulls) <= PULLS_UNDER_WAY + 2
        del answers
        assert records(pulled(queues, 5, 40)) == expected(*range(5, 40)), "answers of the range given up are left out"
        fake.given_max = 500
        fake.pulls.clear()
        assert records(pulled(queues, 0, 2_000)) == expected(*range(2_000))
        assert len(fake.pulls) < 45, "more is asked for as long as it is given"


def test_a_queue_without_the_offsets_says_so() -> None:
    with FakeRocketMQ(100) as fake, client(fake) as queues:
        *found, last = pulled(queues, 90, 200)
        assert records(found) == expected(*range(90, 100))
        assert (last.begin, last.following, last.is_outside, last.records) == (100, 100, False, b"")
        fake.minimum = 50
        assert pulled(queues, 10, 80) == [PulledRecords(b"", 10, 50, is_outside=True)]
        assert pulled(queues, 300, 310) == [PulledRecords(b"", 300, 100, is_outside=True)]


def test_gaps_are_passed_and_nothing_is_read_twice() -> None:
    missing = {*range(3, 10), 64, *range(200, 300), 399}
    with FakeRocketMQ(400, missing=missing) as fake, client(fake) as queues:
        answers = pulled(queues, 0, 400)
        assert records(answers) == expected(*(number for number in range(400) if number not in missing))
        assert answers[-1].following >= 399
        assert records(pulled(queues, 0, 250)) == expected(*(n for n in range(200) if n not in missing))


def test_a_time_is_found_whatever_the_broker_answers() -> None:
    with FakeRocketMQ(100, missing={0, 41}) as fake, client(fake) as queues:
        for nearest in (0, -1, 1, -30, 30):
            fake.nearest = nearest
            for time_ms, offset in ((0, 1), (BORN_MS + 7, 7), (BORN_MS + 41, 42), (BORN_MS + 99, 99)):
                [found] = queues.offsets_of("broker-a", [QUEUE], time_ms).values()
                # whether a missing message counts as older or not, reading begins at the same message
                assert records(pulled(queues, found, 100)).startswith(record_of(offset))
            assert queues.offsets_of("broker-a", [QUEUE], BORN_MS + 100) == {QUEUE: 100}
        assert queues.offsets_of("broker-a", [QUEUE], Start.EARLIEST) == {QUEUE: 0}
        assert queues.offsets_of("broker-a", [QUEUE], Start.LATEST) == {QUEUE: 100}


@pytest.mark.parametrize("quotes_ids", [True, False])
def test_a_route_has_the_readable_queues_of_masters_or_else_of_slaves(quotes_ids: bool) -> None:
    with FakeRocketMQ(1) as fake, client(fake) as queues:
        fake.quotes_ids = quotes_ids
        assert queues.routes([TOPIC, "ghost"]) == {TOPIC: [RoutedQueue("broker-a", 0, fake.address)]}
        fake.addresses = {"2": "s2:1", "1": "s1:1"}
        assert queues.routes([TOPIC])[TOPIC][0].address == "s1:1"
        fake.addresses = {"2": "s2:1", "0": "m:1"}
        assert queues.routes([TOPIC])[TOPIC][0].address == "m:1"
        fake.more = {"topicQueueMappingByBroker": {"broker-a": {}}}
        with pytest.raises(RemotingFailed, match="topic orders: static topics cannot be read by offset"):
            queues.routes([TOPIC])


def test_a_broker_that_moved_is_found_again() -> None:
    with FakeRocketMQ(100) as old, FakeRocketMQ(100) as new, client(old) as queues:
        queues.addresses["broker-a"] = NOBODY
        old.addresses = {"0": new.address}
        assert records(pulled(queues, 0, 100)) == expected(*range(100))
        queues.addresses["broker-a"] = NOBODY
        assert queues.offsets_of("broker-a", [QUEUE], Start.LATEST) == {QUEUE: 100}
        assert queues.addresses == {"broker-a": new.address}
        assert old.pulls == []


def test_name_servers_are_asked_in_turn_and_an_error_names_all() -> None:
    with FakeRocketMQ(1) as fake:
        with RemotingQueues([Endpoint(NOBODY), Endpoint(fake.address)], timeout_ms=2_000) as queues:
            assert queues.routes([TOPIC])[TOPIC]
        with (
            RemotingQueues([Endpoint(NOBODY), Endpoint("127.0.0.1:10")], timeout_ms=200) as queues,
            pytest.raises(BrokerUnreachable, match=r"topics: 127.0.0.1:9: .*; 127.0.0.1:10: .*\(after 200 ms\)"),
        ):
            queues.topic_names()


def test_a_refusal_ends_at_once_and_a_busy_broker_in_the_end() -> None:
    with FakeRocketMQ(10) as fake, client(fake, timeout_ms=300) as queues:
        fake.refusals = [ResponseCode.NO_PERMISSION]
        with pytest.raises(RemotingFailed, match=r"topic orders, queue broker-a/0: no \(code 16\)"):
            pulled(queues, 0, 10)
        fake.refusals = [ResponseCode.SYSTEM_BUSY] * 1_000
        with pytest.raises(
            BrokerUnreachable, match=r"127.0.0.1:\d+: topic orders, queue broker-a/0: no \(code 2\) \(after 300 ms\)"
        ):
            pulled(queues, 0, 10)
