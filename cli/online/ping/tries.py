"""Makes tries one after the other, and keeps their times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Final

import grpc

from quarry_mq.cli.online.connection.administration import refusal
from quarry_mq.cli.online.ping.trips import Unanswered
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.client.errors import CallRefused
from quarry_mq.protocol.clock import Clock

PERCENTILES: Final = (("p50Ms", 0.5), ("p99Ms", 0.99))

Times = Mapping[str, float]
"""Seconds by the name of what was measured."""


class Way:
    """A request that each try makes. `names` are the names of its measured times."""

    def __init__(
        self, address: str, names: tuple[str, ...], prepare: Callable[[], None], go: Callable[[], tuple[float, ...]]
    ) -> None:
        self.names = names
        self.reason: str | None = None
        """Reason why the last try failed; None if it succeeded."""
        self.times_s: dict[str, list[float]] = {name: [] for name in names}
        self._address = address
        self._prepare = prepare
        self._go = go
        self._is_prepared = False

    def try_once(self) -> Times:
        """Make a try and return its times; none if it failed."""
        self.reason = None
        try:
            if not self._is_prepared:
                self._prepare()
                self._is_prepared = True
            found = dict(zip(self.names, self._go(), strict=True))
        except grpc.RpcError as error:
            self._is_prepared = False
            self.reason = refusal(error, self._address)
        except (CallRefused, Unanswered) as error:
            self.reason = str(error)
        except ValueError as error:
            end(Exit.COULD_NOT_RUN, f"{self._address}: {error}")
        else:
            for name, time_s in found.items():
                self.times_s[name].append(time_s)
            return found
        return {}

    @property
    def has_answered(self) -> bool:
        return any(self.times_s.values())


def paced(count: int, interval_s: float, clock: Clock) -> Iterator[int]:
    """Yield the numbers of the tries, each when its time has come."""
    pause = threading.Event()
    began_s = clock.monotonic_s()
    for number in range(1, count + 1):
        yield number
        if number < count:
            pause.wait(max(0.0, began_s + number * interval_s - clock.monotonic_s()))


def stats_of(times_s: list[float]) -> dict[str, float | None]:
    ordered = sorted(times_s)
    stats: dict[str, float | None] = {
        "answered": len(ordered),
        "minMs": milliseconds(ordered[0]) if ordered else None,
    }
    for name, share in PERCENTILES:
        stats[name] = milliseconds(ordered[ceil(len(ordered) * share) - 1]) if ordered else None
    return {**stats, "maxMs": milliseconds(ordered[-1]) if ordered else None}


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
