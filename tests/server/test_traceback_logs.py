"""A traceback in the log tells where, not what the variables held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from quarry_mq.server.observability.logs import configure_logs
from tests.users.tables import SECRET


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_traceback_shows_what_a_variable_held(
    form: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(text: str) -> None:
        raise RuntimeError(f"a text of {len(text)} characters")

    configure_logs(form, "info")
    try:
        fail(SECRET)
    except RuntimeError as error:
        structlog.get_logger().error("call failed", exc_info=error)
    shown = capsys.readouterr().err
    assert "a text of 21 characters" in shown
    assert "in fail" in shown
    assert SECRET not in shown
