"""Track a broker's health, which its threads report and its HTTP port reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Final

from quarry_mq.protocol.clock import Clock, SystemClock

LOOP_STALL_S: Final = 20.0
"""Seconds after which an event loop that does not turn counts as hung. Every official client gives up on a call after
3 s, so no client is served any more; a slow disk or a large dispatch takes far less."""


class Phase(Enum):
    STARTING = "starting"
    RECOVERING = "recovering"
    FOLLOWING = "following"
    READY = "ready"
    POISONED = "poisoned"
    STOPPING = "stopping"


TRANSITIONS: Final = {
    Phase.STARTING: {Phase.RECOVERING, Phase.FOLLOWING, Phase.READY, Phase.POISONED, Phase.STOPPING},
    Phase.RECOVERING: {Phase.RECOVERING, Phase.FOLLOWING, Phase.READY, Phase.POISONED, Phase.STOPPING},
    Phase.FOLLOWING: {Phase.RECOVERING, Phase.FOLLOWING, Phase.READY, Phase.POISONED, Phase.STOPPING},
    Phase.READY: {Phase.POISONED, Phase.STOPPING},
    # Only a restart heals a failed flush, so the first reason stays until the end.
    Phase.POISONED: set(),
    Phase.STOPPING: set(),
}
"""Phases that may follow each phase. Reports that come too late for their phase change nothing."""


@dataclass(frozen=True, slots=True)
class Health:
    """A broker's health at one moment. `percent` is the progress of recovery; `loop_silence_s` is how long ago the loop
    last turned.

    `sends_refused` is why no sends are accepted at the moment. The broker stays ready then: consumers need it.
    `serves_early` is why it is not ready although it serves.
    """

    phase: Phase
    percent: int = 0
    reason: str = ""
    loop_silence_s: float = 0.0
    sends_refused: str = ""
    serves_early: str = ""
    replica: Mapping[str, object] = field(default_factory=dict)
    """The mapping says the role among the copies of the store, and the lag. It is empty without copies."""

    @property
    def is_ready(self) -> bool:
        return self.phase is Phase.READY and not self.serves_early

    @property
    def is_serving(self) -> bool:
        """Return whether clients are served: a broker that stops serves them until its listeners close."""
        return self.phase in (Phase.READY, Phase.STOPPING)

    @property
    def is_ready_as_replica(self) -> bool:
        """Return whether this process does what its role asks of it: it serves, or follows and has been seeded."""
        follows = bool(self.replica.get("connected")) and not self.replica.get("seeding")
        return self.is_ready or (self.phase is Phase.FOLLOWING and follows)

    @property
    def is_live(self) -> bool:
        """Return False when only killing the process helps. Recovery may take as long as it needs (rmq#9587)."""
        return self.loop_silence_s < LOOP_STALL_S

    @property
    def readiness(self) -> str:
        match self.phase:
            case Phase.RECOVERING:
                return f"recovering, {self.percent} %"
            case Phase.FOLLOWING:
                return f"a copy: {self.reason}"
            case Phase.POISONED:
                return f"poisoned: {self.reason}"
            case Phase.READY if self.serves_early:
                return self.serves_early
            case Phase.READY if self.sends_refused:
                return f"ready, but sends are refused: {self.sends_refused}"
            case Phase.STARTING | Phase.READY | Phase.STOPPING:
                return str(self.phase.value)

    @property
    def liveness(self) -> str:
        return "live" if self.is_live else f"the event loop has been blocked for {self.loop_silence_s:.0f} s"


class HealthState:
    """Take reports of phases and ticks. Any thread may call anything."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._health = Health(Phase.STARTING)  # guarded by _lock
        self._last_tick_s: float | None = None  # guarded by _lock
        self._sends_refused = ""  # guarded by _lock
        self._replica: Mapping[str, object] = {}  # guarded by _lock
        self._serves_early = ""  # guarded by _lock

    def recovering(self, percent: int) -> None:
        self._enter(Health(Phase.RECOVERING, percent=percent))

    def following(self, reason: str) -> None:
        """Report that the store is a copy, and how far it is."""
        self._enter(Health(Phase.FOLLOWING, reason=reason))

    def replicates(self, replica: Mapping[str, object]) -> None:
        """Set what this process says about its role among the copies of the store, from now on."""
        with self._lock:
            self._replica = replica

    def ready(self) -> None:
        self._enter(Health(Phase.READY, percent=100))

    def poisoned(self, reason: str) -> None:
        self._enter(Health(Phase.POISONED, reason=reason))

    def sends_refused(self, reason: str) -> None:
        """Set the reason why sends are refused from now on; the empty text when they are accepted again."""
        with self._lock:
            self._sends_refused = reason

    def serves_early(self, reason: str) -> None:
        """Set the reason why it is not ready although it serves; the empty text when it is ready."""
        with self._lock:
            self._serves_early = reason

    def stopping(self) -> None:
        self._enter(Health(Phase.STOPPING))

    def tick(self) -> None:
        """Note that the event loop has turned."""
        with self._lock:
            self._last_tick_s = self._clock.monotonic_s()

    def look(self) -> Health:
        """Return the present health. A loop that never ticked has not begun, and is not silent."""
        with self._lock:
            health, last_tick_s, replica = self._health, self._last_tick_s, self._replica
            refused, early = self._sends_refused, self._serves_early
        silence_s = 0.0 if last_tick_s is None else self._clock.monotonic_s() - last_tick_s
        return Health(health.phase, health.percent, health.reason, silence_s, refused, early, replica)

    def _enter(self, health: Health) -> None:
        with self._lock:
            if health.phase in TRANSITIONS[self._health.phase]:
                self._health = health
