"""A pin is a lease that keeps old segments from being removed while they are copied.

A pin names an offset. While its lease lasts, no segment that ends above the offset may be removed; those below may go.
The holder renews the pin; if the holder dies, the pin is gone when the lease is over.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.store.errors import Invalid
from quarry_mq.store.offsets import PhysicalOffset


class _Pin(NamedTuple):
    start: PhysicalOffset
    ends_at_s: float


class SegmentPins:
    """The class holds the pins of one log. It may be used from any thread.

    The code that removes segments calls `lowest` before each one, and holds no lock. So the caller that sets a pin has
    to check it against the log's minimum afterwards.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._pins: dict[str, _Pin] = {}  # guarded by _lock

    def pin(self, name: str, start: PhysicalOffset, lease_s: float) -> None:
        """Keep everything from `start` on for `lease_s` seconds, in place of an earlier pin with this name."""
        with self._lock:
            self._pins[name] = _Pin(start, self._clock.monotonic_s() + lease_s)

    def renew(self, name: str, lease_s: float) -> None:
        """Let the lease last `lease_s` seconds from now. Raises Invalid when it is over: segments may be gone."""
        with self._lock:
            self._remove_ended()
            pin = self._pins.get(name)
            if pin is None:
                raise Invalid(f"backup point {name} is gone: its lease has ended")
            self._pins[name] = pin._replace(ends_at_s=self._clock.monotonic_s() + lease_s)

    def release(self, name: str) -> None:
        """Give the pin up. A pin that does not exist is no error."""
        with self._lock:
            self._pins.pop(name, None)

    def holds(self, name: str) -> bool:
        """Return whether the lease of this name still lasts."""
        with self._lock:
            self._remove_ended()
            return name in self._pins

    def lowest(self) -> PhysicalOffset | None:
        """Return an offset such that segments that end above it must stay; None when nothing is pinned."""
        with self._lock:
            self._remove_ended()
            return min((each.start for each in self._pins.values()), default=None)

    def _remove_ended(self) -> None:
        now_s = self._clock.monotonic_s()
        for name in [name for name, each in self._pins.items() if each.ends_at_s <= now_s]:
            del self._pins[name]
