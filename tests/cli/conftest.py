"""Fixtures of the tests that run commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from quarry_mq.pipeline.session import JavaMissing, find_java
from tests.cli.overview_stub import Stub, served
from tests.schemas import assert_documented


@pytest.fixture(scope="session", autouse=True)
def documented_json() -> Iterator[None]:
    """Whatever a command prints with --json in these tests is as its schema says."""
    plain = CliRunner.invoke

    def invoke(runner: CliRunner, app: Any, args: Any = None, **more: Any) -> Result:
        result = plain(runner, app, args, **more)
        assert_documented([*map(str, args or ())], result.stdout)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CliRunner, "invoke", invoke)
        yield


@pytest.fixture
def java() -> None:
    """For tests that cannot do without a Java that Spark runs on."""
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def stub() -> Stub:
    """What answers at `address`."""
    return Stub()


@pytest.fixture
def address(stub: Stub) -> Iterator[str]:
    with served(stub) as (address, _):
        yield address
