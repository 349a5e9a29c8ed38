"""The log's level, which can be changed while the broker runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog

from quarry_mq.server.observability.logs import configure_logs, set_log_level


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """One log for the whole process: leave it as it was."""
    before = structlog.get_config()
    yield
    set_log_level("info")
    structlog.configure(**before)


def test_another_level_is_heeded_by_loggers_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    log = structlog.get_logger("test")
    log.debug("one")
    log.info("two")
    set_log_level("debug")
    log.debug("three")
    set_log_level("error")
    log.warning("four")
    try:
        raise OSError("five")
    except OSError:
        log.exception("failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["event"]) for line in lines] == [
        ("info", "two"),
        ("debug", "three"),
        ("error", "failed"),
    ]
    assert "OSError: five" in lines[-1]["exception"]
