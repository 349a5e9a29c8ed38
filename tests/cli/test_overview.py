"""`quarry overview` of figures that a test makes up; tests/conformance/test_overview.py asks a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.cli import overview_stub
from tests.cli.overview_stub import Stub, overview, served


@pytest.fixture
def stub() -> Stub:
    return Stub()


@pytest.fixture
def address(stub: Stub) -> Iterator[str]:
    with served(stub) as (address, _):
        yield address


def run(address: str, *words: str) -> list[str]:
    done = CliRunner().invoke(app, ["overview", *words, "--admin", address])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_of_a_member_that_is_silent_there_is_but_why(address: str, stub: Stub) -> None:
    stub.answers["ListOverviews"] = overview_stub.members("one", "two", silent="two")
    one, two = map(json.loads, run(address, "--all", "--json"))
    assert (one["sent"], one["isReachable"], one["readiness"]) == (1_234_567_890, True, "ready")
    assert (two["isReachable"], two["readiness"]) == (False, "no answer within 2 s")
    assert "sent" not in two
    assert run(address, "--all")[2].split() == ["active", *"-------", *["no", "answer", "within", "2", "s"], "two"]


def test_what_is_but_a_part_is_at_least_so_much(address: str, stub: Stub) -> None:
    assert "at least" not in "".join(run(address) + run(address, "--all"))
    part = overview(lag_is_whole=False, in_flight_messages=None)
    stub.answers["GetOverview"] = part
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in run(address)}
    assert (shown["ready"], shown["inFlight"], shown["lagSeconds"]) == ("at least 1203456", "-", "at least 11520.0")
    assert "lagIsWhole" not in shown
    stub.answers["ListOverviews"] = overview_stub.members("one", "two")
    stub.answers["ListOverviews"].members[0].overview.CopyFrom(part)
    _, one, two = run(address, "--all")
    assert "  at least 1203456  " in one
    assert "at least" not in two
    assert [json.loads(line)["lagIsWhole"] for line in run(address, "--all", "--json")] == [False, True]
