"""`quarry overview` and `history` of made-up figures; tests/conformance/test_overview.py asks a real broker."""

from __future__ import annotations

import json
import re
from importlib import import_module

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from tests.cli import overview_stub
from tests.cli.overview_stub import Stub, overview

overview_module = import_module("quarry_mq.cli.online.broker.overview")
"""Its command has the same name."""


def run(address: str, *words: str, command: str = "overview") -> list[str]:
    done = CliRunner().invoke(app, [*command.split(), *words, "--admin", address])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_of_a_member_that_is_silent_there_is_but_why(address: str, stub: Stub) -> None:
    stub.answers["ListOverviews"] = overview_stub.members("one", "two", silent="two")
    one, two = map(json.loads, run(address, "--all", "--json"))
    assert (one["sent"], one["isReachable"], one["readiness"]) == (1_234_567_890, True, "ready")
    assert (two["isReachable"], two["readiness"]) == (False, "no answer within 2 s")
    assert "sent" not in two
    assert run(address, "--all")[2].split() == ["two", "active", *"-------", *["no", "answer", "within", "2", "s"]]


def test_what_is_but_a_part_is_at_least_so_much(address: str, stub: Stub) -> None:
    assert "at least" not in "".join(run(address) + run(address, "--all"))
    part = overview(lag_is_whole=False, in_flight_messages=None)
    stub.answers["GetOverview"] = part
    shown = dict(re.split("  +", line, maxsplit=1) for line in run(address))
    assert (shown["ready"], shown["in flight"], shown["lag"]) == ("at least 1,203,456", "-", "at least 3 h 12 min")
    assert not [label for label in shown if "whole" in label]
    stub.answers["ListOverviews"] = overview_stub.members("one", "two")
    stub.answers["ListOverviews"].members[0].overview.CopyFrom(part)
    _, one, two = run(address, "--all")
    assert "  at least 1,203,456  " in one
    assert "at least" not in two
    assert [json.loads(line)["lagIsWhole"] for line in run(address, "--all", "--json")] == [False, True]


def test_the_last_hour_is_drawn(address: str, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    row = run(address, command="history")[1]
    assert row.split()[:4] == ["sent_per_second", "messages/s", "12,733", "7,333"]
    assert (row.count("·"), row.count("█")) == (10, 8)
    monkeypatch.setattr(overview_module, "speaks_utf8", lambda: False)
    assert all(line.isascii() for line in run(address, command="history"))
    stub.answers["GetHistory"] = pb.History(series=[pb.Series(name="timers", unit="messages")])
    assert run(address, command="history")[1].split() == ["timers", "messages", "-", "-", "-", "?" * 60]


def test_the_last_hour_of_a_topic_or_group_is_asked_for(address: str, stub: Stub) -> None:
    run(address, "--topic", "orders", command="history sent_per_second")
    asked = stub.asked[-1][1]
    assert (asked.topic, asked.group, list(asked.series)) == ("orders", "", ["sent_per_second"])
    run(address, "--group", "billing", command="history")
    asked = stub.asked[-1][1]
    assert (asked.topic, asked.group) == ("", "billing")
    stub.answers["GetHistory"] = pb.History(series=[pb.Series(name="ready", unit="messages")])
    done = CliRunner().invoke(app, ["history", "--topic", "quiet", "--admin", address])
    assert "quiet: no values are kept: it is new, or others are busier or further behind" in done.stderr
    done = CliRunner().invoke(app, ["history", "--topic", "a", "--group", "b", "--admin", address])
    assert (done.exit_code, "not allowed together with --topic" in done.stderr) == (2, True)


@pytest.mark.parametrize(("group_count", "lag_s"), [(1, 1.234), (2, None), (None, None)])
def test_the_lag_of_a_topic_takes_all_of_its_groups(
    address: str, stub: Stub, group_count: int | None, lag_s: float | None
) -> None:
    topic = pb.TopicFigures(group_count=group_count, groups=[pb.PairFigures(group="billing", lag_ms=1_234)])
    stub.answers["ListTopicFigures"] = pb.ListTopicFiguresResponse(topics=[topic])
    (row,) = map(json.loads, run(address, "--json", command="topic top"))
    assert (row["lagSeconds"], row["groups"]) == (lag_s, group_count)
