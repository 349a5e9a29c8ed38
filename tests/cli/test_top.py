"""`quarry top` without a screen: snapshots, JSON, refusals, and how it asks again and again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.main import app
from quarry_mq.cli.online.top.poller import CALLS, Follower, Known, look
from quarry_mq.cli.online.top.readings import CallFailed, Failure, Reading, Wish, overview_of
from quarry_mq.cli.online.top.screen.pages import head
from quarry_mq.cli.online.top.screen.tables import Canvas, topic_details
from quarry_mq.cli.online.top.snapshot import object_of, plain_text
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from tests.cli import overview_stub
from tests.cli.overview_stub import NOW_MS, Stub, later, overview, served
from tests.cli.said import complaint
from tests.schemas import assert_documented


class Hands:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.s = 1000.0

    def wall_ms(self) -> int:
        return NOW_MS + int(self.s - 1000) * 1000

    def monotonic_s(self) -> float:
        return self.s


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["top", *words], env={"COLUMNS": "100", **environment})


# -- a snapshot


def test_once_prints_everything(address: str) -> None:
    done = run("--once", "--admin", address)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "broker-a of DefaultCluster  0.1.0  up 3 d 4 h  since 2026-11-20T05:12:00Z"
    assert lines[1].startswith(f"ready  {address} ")
    for expected in (
        "in            12,346 /s  ",
        "waiting    ready 1,203,456   in flight 1,024   behind by 3 h 12 min",
        "storage    disk 45 % of 200 GiB used   log 71.0 GiB   oldest message 2 d 3 h",
        "slowest    send flush p99 211 ms SLOW   receive answer p99 10 ms",
        "migration  phase double_write   behind by 4.0 KiB   next refused now (5)",
        "held       timers 12,345   transactions unknown   lite topics 1,000,000",
        "process    cpu unknown   memory 345 MiB   files 120   loop late 4.0 ms",
        "LARGEST LAG",
        "billing                          1,203,456         12   3 h 12 min   unknown          0  NO CONSUMER",
        "reports-that-run-once-a-month      unknown    unknown      unknown   unknown          3",
        "BUSIEST TOPICS",
        "SENDS  since the broker's start",
        "flush        664 µs    211 ms   34 %  ███░░░░░░░  SLOW",
        "RECEIVES  since the broker's start",
        "JOBS  2 open",
        "resend-messages          running       45 %  █████░░░░░░░      unknown  4,500 looked at",
        "phase      file   [double_write]   backfilling   verified   reading_rocksdb   rocksdb",
        "next       refused: the second store is 4,096 bytes behind: wait until it has caught up",
    ):
        words = expected.split()
        assert any(line.split()[: len(words)] == words for line in lines), expected
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in done.stdout


def test_what_is_no_terminal_gets_one_snapshot(address: str) -> None:
    assert run("--admin", address).stdout.splitlines()[0] == run("--once", "--admin", address).stdout.splitlines()[0]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_no_line_is_wider_than_the_screen(address: str, stub: Stub, width: int, height: int) -> None:
    stub.answers["GetOverview"] = overview(concerns=["a concern that is " + "long " * 40] * 5, readiness="recovering")
    stub.answers["ListOverviews"] = overview_stub.members("one", "two", "three", silent="two")
    with Reading(address, None) as reading:
        known = Known(address, Hands())
        look(known, reading, Wish())
    for plain in (False, True):
        lines = plain_text(known, Canvas(width=width, height=height, plain=plain)).splitlines()
        assert max(map(len, lines)) <= width
    assert any(line.startswith("! and 2 more") for line in lines)
    assert all(line.isascii() for line in lines)
    assert lines[1].startswith("NOT READY: recovering"[: width - 24])


def test_what_is_not_told_is_unknown_and_never_0(address: str, stub: Stub) -> None:
    bare = pb.Overview(at_ms=NOW_MS, readiness="ready")
    stub.answers.update(GetOverview=bare, GetHistory=pb.History(), ListJobs=jobs_pb2.ListJobsResponse())
    text = run("--once", "--admin", address).stdout
    for expected in (
        "waiting    ready unknown   in flight unknown   behind by unknown",
        "storage    disk unknown   log 0 B   oldest message unknown",
        "today unknown   yesterday unknown",
        "held       timers unknown   transactions unknown   lite topics unknown",
        "process    cpu unknown   memory unknown   files unknown   loop late unknown",
        "most unknown /s in 1 h",
    ):
        assert expected in text, text


def test_what_is_but_a_part_is_at_least_so_much(address: str, stub: Stub) -> None:
    part = overview(lag_is_whole=False)
    stub.answers.update(GetOverview=part, ListOverviews=overview_stub.members("one", "two"))
    assert "at least" not in run("--once", "--admin", address).stdout.partition("MEMBERS")[2]
    stub.answers["ListOverviews"].members[0].overview.CopyFrom(part)
    text = run("--once", "--admin", address).stdout
    waiting = text.partition("waiting")[2].partition("storage")[0].split()
    assert " ".join(waiting) == "ready at least 1,203,456 in flight at least 1,024 behind by at least 3 h 12 min"
    one, two = (line for line in text.splitlines() if line.split()[1:2] == ["active"])
    assert one.split()[:1] == ["one"]
    assert "at least 3 h 12 min" in one
    assert "at least" not in two
    (row,) = map(json.loads, run("--json", "--once", "--admin", address).stdout.splitlines())
    assert row["overview"]["lagIsWhole"] is False
    assert [each["overview"]["lagIsWhole"] for each in row["members"]] == [False, True]
    bare = pb.Overview(at_ms=NOW_MS, readiness="ready")
    stub.answers["GetOverview"] = bare
    assert "behind by unknown" in run("--once", "--admin", address).stdout


@pytest.mark.parametrize(
    ("count", "expected"), [(2, "GROUPS  2"), (1_200, "GROUPS  2 of 1,200"), (None, "GROUPS  2 of unknown")]
)
def test_how_many_groups_a_topic_has_may_not_be_known(address: str, count: int | None, expected: str) -> None:
    with Reading(address, None) as reading:
        topic = replace(reading.topics(Wish()).rows[0], group_count=count)
    assert expected in [line.plain for line in topic_details(topic, Canvas(width=80, height=9), NOW_MS)]


# -- JSON


def test_concerns_are_objects(address: str, stub: Stub) -> None:
    stub.answers["GetOverview"] = overview(concerns=["the disk is full"])
    done = run("--json", "--once", "--admin", address)
    (concern,) = json.loads(done.stdout)["overview"]["concerns"]
    assert concern["text"] == "the disk is full"
    assert_documented(["top", "--json"], done.stdout)


def test_json_is_one_object_a_refresh(address: str, stub: Stub) -> None:
    times = iter(range(10))
    stub.answers["GetOverview"] = lambda _: later(overview(), next(times))
    done = run("--json", "--count", "3", "--interval", "0.1", "--admin", address)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 3
    assert rows[0]["overview"]["sentPerSecond"] == 12_345.6
    assert rows[0]["overview"]["transactions"] is None
    assert "stages" not in {*rows[0]["overview"], *rows[0]["members"][0]["overview"]}
    assert (rows[0]["stagesSeconds"], rows[0]["cpuShare"]) == (None, None)
    flush = next(stage for stage in rows[2]["stages"] if stage["name"] == "flush")
    assert flush["values"] == 2 * 1_040
    assert flush["slow"] is True
    assert rows[2]["stagesSeconds"] > 0.1
    assert rows[0]["groups"][0]["name"] == "billing"
    assert rows[0]["topics"][0]["pairs"][0]["lagMs"] == 1_234
    assert rows[0]["migration"]["nextRefused"].startswith("the second store")
    assert rows[0]["jobs"][1]["done"] == 4_500
    assert rows[0]["members"][0]["isSelf"] is True
    assert rows[0]["problems"] == {}
    assert len(run("--json", "--once", "--admin", address).stdout.splitlines()) == 1


def test_a_broker_that_goes_away_is_a_line_with_its_problem(stub: Stub) -> None:
    with served(stub) as (address, stop):
        rows: list[dict[str, Any]] = []
        with Reading(address, None) as reading:
            known = Known(address, Hands())
            for _ in range(2):
                look(known, reading, Wish())
                rows.append(json.loads(json.dumps(object_of(known))))
                stop()
    assert rows[0]["problems"] == {}
    assert rows[1]["overview"] == rows[0]["overview"]
    assert "no answer from a broker" in rows[1]["problems"]["overview"]


def test_count_is_for_json(address: str) -> None:
    done = run("--count", "3", "--admin", address)
    assert done.exit_code == 2
    assert "is for --json" in done.stderr


# -- refusals


@pytest.mark.parametrize(
    ("code", "failure", "expected"),
    [
        (
            grpc.StatusCode.UNAUTHENTICATED,
            Failure.STRANGER,
            "not authenticated (who?); name one with quarry --context NAME top",
        ),
        (grpc.StatusCode.PERMISSION_DENIED, Failure.FORBIDDEN, "who may not see this (who?)"),
        (grpc.StatusCode.UNIMPLEMENTED, Failure.OTHER, "older than quarry top"),
        (grpc.StatusCode.UNAVAILABLE, Failure.GONE, "no answer from a broker (who?)"),
        (grpc.StatusCode.INTERNAL, Failure.OTHER, "internal: who?"),
    ],
)
def test_a_refusal_is_one_clear_line(
    address: str, stub: Stub, code: grpc.StatusCode, failure: Failure, expected: str
) -> None:
    stub.refusals["GetOverview"] = (code, "who?")
    with Reading(address, None) as reading, pytest.raises(CallFailed) as caught:
        reading.overview()
    assert caught.value.failure is failure
    assert expected in str(caught.value)
    for words in (("--once",), ("--json",)):
        done = run(*words, "--admin", address)
        assert (done.exit_code, done.stdout) == (2, "")
        assert expected in complaint(done.stderr)
        assert complaint(done.stderr).count("\n") == 1


def test_who_is_refused_is_named(address: str, stub: Stub) -> None:
    stub.refusals["GetOverview"] = (grpc.StatusCode.PERMISSION_DENIED, "needs get on the cluster")
    with Reading(address, Context(user="anna", secret="a secret")) as reading, pytest.raises(CallFailed) as caught:
        reading.overview()
    assert str(caught.value) == f"{address}: asked as anna, who may not see this (needs get on the cluster)"


def test_one_call_that_is_refused_leaves_the_others(address: str, stub: Stub) -> None:
    stub.refusals["ListJobs"] = (grpc.StatusCode.PERMISSION_DENIED, "needs more")
    stub.refusals["ListTopicFigures"] = (grpc.StatusCode.PERMISSION_DENIED, "needs more")
    done = run("--once", "--admin", address)
    assert done.exit_code == 0
    assert f"JOBS  {address}: asked without a user, who may not see this (needs more)" in done.stdout
    assert f"BUSIEST TOPICS  {address}: asked without a user" in done.stdout
    assert "billing" in done.stdout


def test_what_a_name_would_do_to_a_terminal_it_does_not_do(address: str, stub: Stub) -> None:
    stub.answers["GetOverview"] = overview("\x1b[2Jbroker", concerns=["\x1b[31mred"])
    done = run("--once", "--admin", address)
    assert "\x1b" not in done.stdout
    assert "\\x1b[2Jbroker" in done.stdout


# -- what is known over time


def test_latencies_are_those_of_late(address: str, stub: Stub) -> None:
    clock = Hands()
    known = Known(address, clock)
    seconds = []
    for number in range(12):
        known.take("overview", overview_of(later(overview(), number)))
        seconds.append(known.watched_s)
        clock.s += 2
    assert seconds[:3] == [None, 2, 4]
    assert seconds[-1] == 10
    assert {stage.values for stage in known.stages() if stage.name == "append"} == {5 * 1_000}
    assert known.busy_share() == pytest.approx(0.0)


def test_a_broker_that_was_started_again_is_watched_again(address: str) -> None:
    clock = Hands()
    known = Known(address, clock)
    for number in range(3):
        known.take("overview", overview_of(later(overview(), number)))
        clock.s += 2
    again = overview()
    again.broker.started_at_ms += 1
    known.take("overview", overview_of(again))
    assert known.watched_s is None
    assert {stage.values for stage in known.stages() if stage.name == "append"} == {1_000}


def test_what_does_not_answer_is_told_with_since_when_and_shown_as_old(address: str) -> None:
    clock = Hands()
    known = Known(address, clock)
    known.take("overview", overview_of(overview()))
    clock.s += 5
    for _ in range(3):
        known.take("overview", CallFailed(Failure.GONE, "nobody there"))
        clock.s += 60
    text = " ".join(line.plain for line in head(known, Canvas(width=200, height=9), ""))
    assert "NO ANSWER since 2026-11-23T09:12:05Z (3 min), trying again." in text
    assert "The data shown is OLD, from 2026-11-23T09:12:00Z. nobody there" in text
    known.take("overview", overview_of(overview()))
    assert not known.is_old
    assert "NO ANSWER" not in " ".join(line.plain for line in head(known, Canvas(width=200, height=9), ""))


def test_how_long_a_job_goes_on_is_told_by_its_pace(address: str, stub: Stub) -> None:
    clock = Hands()
    known = Known(address, clock)
    with Reading(address, None) as reading:
        for done in (1_000, 2_000, 4_000):
            answer = overview_stub.jobs()
            answer.jobs[1].done = done
            stub.answers["ListJobs"] = answer
            known.take("jobs", reading.jobs())
            clock.s += 10
    _, running, ended = known.jobs.value or ()
    assert known.left_s(running) == pytest.approx(6_000 / (3_000 / 20))
    assert known.left_s(ended) is None


# -- asking again and again


def follow(address: str, act: Callable[[Follower, Known], Any], *, interval_s: float = 0.02) -> Known:
    """Run `act` beside a follower."""

    async def run() -> Known:
        known = Known(address, Hands())
        follower = Follower(Reading(address, None), known, interval_s=interval_s, on_news=lambda: None)
        follower.start(asyncio.create_task)
        try:
            await act(follower, known)
        finally:
            follower.stop()
        return known

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def test_slow_answers_neither_pile_up_nor_hold_up_others(address: str, stub: Stub) -> None:
    stub.slow_s["ListTopicFigures"] = 0.5

    async def act(follower: Follower, known: Known) -> None:
        await until(lambda: stub.count("ListGroupFigures") >= 15)
        for _ in range(10):
            follower.refresh()
        await until(lambda: stub.count("ListTopicFigures") >= 2)

    known = follow(address, act)
    assert known.topics.value is not None
    assert stub.count("ListTopicFigures") == 2
    assert set(stub.most_at_once.values()) == {1}


def test_only_what_is_seen_is_asked_for(address: str, stub: Stub) -> None:
    async def act(follower: Follower, known: Known) -> None:
        follower.want({"jobs"}, Wish())
        await until(lambda: stub.count("GetOverview") >= 20)
        assert {name for name, _ in stub.asked} == {"GetOverview", "ListOverviews", "ListJobs"}
        follower.want({"topics"}, Wish(contains="Orders"))
        await until(lambda: known.topics.value is not None)

    follow(address, act)
    (request, *_) = [request for name, request in stub.asked if name == "ListTopicFigures"]
    assert request.contains == "Orders"


def test_a_pause_asks_nothing_but_what_is_ordered(address: str, stub: Stub) -> None:
    async def act(follower: Follower, known: Known) -> None:
        await until(lambda: stub.count("GetOverview") >= 2)
        follower.pause(True)
        await asyncio.sleep(0.2)
        before = len(stub.asked)
        await asyncio.sleep(0.3)
        assert len(stub.asked) == before
        follower.refresh()
        await until(lambda: len(stub.asked) >= before + len(CALLS))
        await asyncio.sleep(0.1)
        assert len(stub.asked) == before + len(CALLS)
        follower.pause(False)
        await until(lambda: len(stub.asked) > before + len(CALLS) + 5)

    follow(address, act)


def test_it_ends_at_once_while_calls_are_under_way(address: str, stub: Stub) -> None:
    stub.slow_s = dict.fromkeys(stub.answers, 3.0)

    async def act(follower: Follower, known: Known) -> None:
        await until(lambda: len(stub.asked) >= len(CALLS))

    follow(address, act)
    names = [each for each in threading.enumerate() if each.name.startswith("top")]
    for each in names:
        each.join(60)
    assert not any(each.is_alive() for each in names)


def test_a_broker_comes_back_by_itself(stub: Stub) -> None:
    with served(stub) as (address, stop):
        port = int(address.rpartition(":")[2])

        async def act(follower: Follower, known: Known) -> None:
            await until(lambda: known.overview.value is not None)
            await asyncio.to_thread(stop)
            await until(lambda: known.is_old)
            assert known.overview.problem is not None
            assert known.overview.problem.failure is Failure.GONE
            with served(stub, port):
                await until(lambda: known.overview.problem is None)

        follow(address, act)
