"""Background tasks do not end in silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import structlog

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server import broker, main
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.errors import BrokerFailed
from quarry_mq.server.observability.logs import Repeats
from quarry_mq.server.process.health import HealthState, Phase
from quarry_mq.server.process.stop import Stop, StopTimes
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import Supervisor


async def _fail() -> None:
    raise KeyError("orders")


async def _return() -> None:
    await asyncio.sleep(0)


async def _run_for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("task", "reason"),
    [(_fail, "its housekeeping ended with KeyError: 'orders'"), (_return, "its housekeeping returned")],
)
def test_the_first_unexpected_end_is_told_and_logged(task: object, reason: str) -> None:
    async def test() -> None:
        told: asyncio.Queue[BrokerFailed] = asyncio.Queue()
        supervisor = Supervisor(told.put_nowait)
        async with supervisor.running("housekeeping", task()), supervisor.running("ticking", _run_for_ever()):  # type: ignore[operator]
            failure = await asyncio.wait_for(told.get(), 60)
            assert str(failure) == f"the broker stops: {reason}"
            with pytest.raises(BrokerFailed, match=reason.replace("(", ".")):
                supervisor.raise_failure()
            async with supervisor.running("another", _fail()):
                await asyncio.sleep(0)
        assert told.empty()

    with structlog.testing.capture_logs() as logs:
        asyncio.run(test())
    assert [entry["task"] for entry in logs] == ["housekeeping", "another"]
    assert isinstance(logs[1]["exc_info"], KeyError)


def test_an_end_that_was_asked_for_is_none() -> None:
    async def test() -> None:
        supervisor = Supervisor(lambda failure: pytest.fail(str(failure)))
        async with supervisor.running("ticking", _run_for_ever()):
            await asyncio.sleep(0)
        supervisor.raise_failure()

    asyncio.run(test())


def test_a_broker_without_its_housekeeping_stops_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states: list[HealthState] = []

    def made() -> HealthState:
        states.append(HealthState())
        return states[0]

    def sweep(_: ClientRegistry) -> None:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(main, "HealthState", made)
    monkeypatch.setattr(broker, "HOUSEKEEPING_INTERVAL_S", 0.01)
    monkeypatch.setattr(ClientRegistry, "sweep", sweep)
    free = "127.0.0.1:0"
    settings = BrokerSettings.model_validate(
        {
            "store": {"directory": tmp_path / "store", "segment_size": 16 << 20},
            "network": {"listen": free, "admin": free, "http": free, "stop_grace_ms": 100},
        }
    )
    stop = Stop(StopTimes.of(settings.network, settings.cluster), SystemClock())
    suppressed = Repeats(0, SystemClock(), lambda _: None)
    with pytest.raises(BrokerFailed, match="its housekeeping ended with RuntimeError: nobody thought of this"):
        asyncio.run(
            asyncio.wait_for(main._run(settings, stop, suppressed, main._logged_progress, after_cut_over=False), 30)
        )
    stop.over()
    assert "Traceback" in capsys.readouterr().out, "where it was raised is in the log"
    health = states[0].look()
    assert health.phase is Phase.POISONED, "not ready while it stops"
    assert "nobody thought of this" in health.reason
    assert not (tmp_path / "store" / "abort").exists(), "the store was closed"
