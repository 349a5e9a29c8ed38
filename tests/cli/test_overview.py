"""`quarry overview` of figures that a test makes up; tests/conformance/test_overview.py asks a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.cli import overview_stub
from tests.cli.overview_stub import Stub, served


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
    assert run(address, "--all")[2].split() == ["active", *"-------", *"no answer within 2 s".split(), "two"]
