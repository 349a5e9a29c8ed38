"""Follows a live RocketMQ master: receives its log, makes it durable, and fills the queues as it goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import Final

from quarry_mq.cli.following.connection import HaConnection
from quarry_mq.cli.following.master import REFUSED_UNTIL, LogRange, Master, TakenMetadata
from quarry_mq.client.remoting import RemotingFailed
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.remoting.frames import FrameMalformed
from quarry_mq.protocol.remoting.ha import Push, PushMalformed
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.follower import FollowedStore
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.rocketmq.metadata import read_metadata

COMMIT_SIZE: Final = 4 << 20
"""Bytes that are received before they are made durable, if the master does not stop sending."""
ASK_INTERVAL_S: Final = 0.1
"""Seconds after which what was received is made durable, and the master is asked how far it is."""
SHOW_INTERVAL_S: Final = 1.0
METADATA_INTERVAL_S: Final = 30.0
RETRY_INTERVAL_S: Final = 2.0
"""Seconds between two attempts to connect to a master that is away."""
COMPARED_SIZE: Final = 64 << 10
"""Bytes before the end of the log that the master sends again on each connection, to see that both logs are one."""
NEARLY_THERE_SIZE: Final = 1 << 20
"""Bytes behind the master below which a cut-over begins."""
UNDER_WAY_S: Final = 0.2
"""Seconds that a master is given to append the messages that it accepted just before it began to refuse."""
SETTLE_S: Final = 30.0
"""Seconds for which a cut-over waits until the master appends nothing while the progress of timers is read."""

AWAY: Final = (OSError, RemotingFailed, FrameMalformed, PushMalformed)
"""The errors of a call or a connection whose master goes away."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag says how far the follower is, and how far its master."""

    dispatched_up_to: PhysicalOffset
    master_end: PhysicalOffset
    problem: str = ""
    """The reason why nothing is received now; `master_end` is the last that is known then."""

    @property
    def size(self) -> int:
        """The bytes of the master's log that are not in the queues here."""
        return max(0, self.master_end - self.dispatched_up_to)


Ends = Callable[[Master, Lag], bool]
"""Return whether following ends, at this master and with this lag."""


class FollowFailed(Exception):
    """The command cannot follow. The text is one line."""


class CutOverFailed(FollowFailed):
    """The cut-over did not come to its end. The text says whether the master takes messages."""


class _CutOver:
    """The steps of a cut-over, one for each call: come near, refuse messages, read the last metadata, receive the rest.

    Sends are refused, and the master goes on delivering delayed messages and noting what consumers do. So the metadata
    fit one end of its log, and the log ends there for the follower. What the master does later is not taken over:
    consumers that are still there may get a delayed message twice.
    """

    def __init__(self, take_last: Callable[[Master], PhysicalOffset | None], clock: Clock) -> None:
        """`take_last` returns the end of the log that the metadata fit, or None if it moved meanwhile."""
        self._take_last = take_last
        self._clock = clock
        self._refusing: Master | None = None
        self._refused_s = 0.0
        self._end: PhysicalOffset | None = None
        self.began_s: float | None = None
        """The time when a master was first asked to refuse messages; None before."""

    def __call__(self, master: Master, lag: Lag) -> bool:
        now_s = self._clock.monotonic_s()
        if self._refusing is None and lag.size >= NEARLY_THERE_SIZE:
            return False
        if self.began_s is None:
            self.began_s = now_s
        if self._refusing is not master:  # a master that was started again may have forgotten it
            self._refusing, self._end = master, None
            master.refuse_messages()
            self._refused_s = self._clock.monotonic_s()
        if now_s - self.began_s > SETTLE_S:
            raise CutOverFailed(
                f"the broker has appended records for {SETTLE_S:.0f} s although it refused messages of producers: stop "
                "consumers that receive by gRPC or pop and producers with open transactions, and try again"
            )
        if self._end is None and now_s - self._refused_s >= UNDER_WAY_S:
            self._end = self._take_last(master)
        return self._end is not None and lag.dispatched_up_to >= self._end


class Following:
    """Fills a store from a master, and connects again whenever the master was away. Lives on one thread."""

    def __init__(
        self,
        store: FollowedStore,
        connect: Callable[[], Master],
        *,
        paths: StorePaths,
        disk: Disk,
        clock: Clock,
        show: Callable[[Lag], None],
        stop: Event,
    ) -> None:
        """Follow the master that `connect` connects to, which raises OSError and what `Master` raises.

        The master's metadata goes to the store's `config/`. `show` is called about once a second. Everything ends soon
        once `stop` is set.
        """
        self._store = store
        self._connect = connect
        self._paths = paths
        self._disk = disk
        self._clock = clock
        self._show = show
        self._stop = stop
        self.lag = Lag(store.dispatched_up_to, store.dispatched_up_to)
        """The lag that was shown last."""
        self._last: TakenMetadata | None = None
        """The metadata of a cut-over. What the master appends after their end of the log is not received."""

    @property
    def log_begin(self) -> PhysicalOffset:
        """Return the offset where the log begins."""
        return self._store.minimum

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def run(self, is_ordered: Callable[[], bool]) -> bool:
        """Follow until a cut-over is ordered, or return False if `stop` is set before.

        Raises StoreUnusable if the master has another log or cannot be followed, StorePoisoned and StoreDamaged.
        """
        return self._run(lambda _master, _lag: is_ordered())

    def catch_up(self) -> None:
        """Follow until the store has all that the master has, or `stop` is set. Raises what `run` raises."""
        self._run(self._is_caught_up)

    def _is_caught_up(self, master: Master, lag: Lag) -> bool:
        if lag.size == 0:
            self._take_metadata(master)
        return lag.size == 0

    def _run(self, ends: Ends) -> bool:
        """Follow until `ends` says so, or return False if `stop` is set before."""
        while not self._stop.is_set():
            try:
                with closing(self._connect()) as master:
                    return self._follow(master, ends)
            except AWAY as error:
                self._store.commit()
                self.lag = Lag(self._store.dispatched_up_to, self.lag.master_end, str(error) or type(error).__name__)
                self._show(self.lag)
                self._store.make_wanted_point()
                self._stop.wait(RETRY_INTERVAL_S)
        return False

    def cut_over(self) -> float | None:
        """Let the master refuse messages of producers, and take over all that it has then, with its last metadata.

        Returns the seconds since the master began to refuse, or None if `stop` was set; then, and after an error, the
        master takes messages again. Raises CutOverFailed if the metadata do not fit the log, or if the master could not
        be told to take messages; and what `run` raises.
        """
        step = _CutOver(self._take_last, self._clock)
        is_done = False
        try:
            if self._run(step) and self._last is not None:
                self._keep(self._last)
                # what the master has appended since is not missing
                self.lag = Lag(self._store.dispatched_up_to, self._store.dispatched_up_to)
                is_done = True
        finally:
            if step.began_s is not None and not is_done:
                self._let_take_messages()
        return self._clock.monotonic_s() - step.began_s if is_done and step.began_s is not None else None

    def _let_take_messages(self) -> None:
        try:
            with closing(self._connect()) as master:
                master.take_messages()
        except AWAY as error:
            raise CutOverFailed(
                f"the broker may still refuse messages, as it could not be told to take them ({error}): "
                f"set its {REFUSED_UNTIL} to 0"
            ) from error

    def _follow(self, master: Master, ends: Ends) -> bool:
        store, clock = self._store, self._clock
        self._last = None
        log = master.log_range()
        self._require_same_log(master.segment_size, log)
        self._take_metadata(master)
        if store.received_up_to == 0:
            # see `protocol.remoting.ha`: the master is asked for the byte after it
            store.receive(PhysicalOffset(0), b"\0")
        connection = HaConnection(
            (master.host, master.ha_port),
            self._first_wanted(log.minimum),
            clock,
            is_controlled=master.is_controlled,
            wait_s=ASK_INTERVAL_S,
        )
        with closing(connection):
            asked_s = taken_s = shown_s = clock.monotonic_s()
            while not self._stop.is_set():
                before = store.received_up_to
                for push in connection.receive():
                    store.receive(PhysicalOffset(push.offset), self._wanted_of(push))
                now_s = clock.monotonic_s()
                asks = store.received_up_to == before or now_s - asked_s >= ASK_INTERVAL_S
                commits = store.received_up_to - store.flushed_up_to >= (1 if asks else COMMIT_SIZE)
                if commits:
                    store.commit()
                connection.report(store.flushed_up_to, is_new=commits)
                if now_s - taken_s >= METADATA_INTERVAL_S and self._last is None:
                    self._take_metadata(master)
                    taken_s = now_s
                if asks:
                    log, asked_s = master.log_range(), now_s
                    store.retire(log.minimum)
                    store.make_wanted_point()
                    self.lag = Lag(store.dispatched_up_to, log.end)
                    if now_s - shown_s >= SHOW_INTERVAL_S:
                        self._show(self.lag)
                        shown_s = now_s
                    if ends(master, self.lag):
                        return True
            store.commit()
            self._take_metadata(master)
        return False

    def _require_same_log(self, segment_size: int, log: LogRange) -> None:
        store, root = self._store, self._paths.root
        if store.segment_size != segment_size:
            raise StoreUnusable(root, f"its segments have {store.segment_size} bytes, the master's {segment_size}")
        # the first byte of a log is here before the master has sent it
        if not log.minimum <= store.received_up_to <= max(1, log.end):
            raise StoreUnusable(
                root,
                f"its log ends at {store.received_up_to}, and the master has {log.minimum} to {log.end}: "
                "begin with an empty directory",
            )

    def _first_wanted(self, minimum: PhysicalOffset) -> PhysicalOffset:
        """Return the offset from which the master is to send: a little of what is here, and all that is not.

        `minimum` is where the master's log begins.
        """
        store = self._store
        return PhysicalOffset(max(minimum, store.minimum, store.received_up_to - COMPARED_SIZE, 1))

    def _wanted_of(self, push: Push) -> bytes:
        end = None if self._last is None else self._last.log_end
        return push.data if end is None else push.data[: max(0, end - push.offset)]

    def _take_metadata(self, master: Master) -> None:
        """Store the master's metadata as they are now."""
        self._keep(master.read_metadata())

    def _take_last(self, master: Master) -> PhysicalOffset | None:
        """Read the last metadata of a cut-over, and return the end of the log that they fit; None if it moved."""
        metadata = master.read_metadata()
        if metadata.log_end is not None:
            self._last = metadata
        return metadata.log_end

    def _keep(self, metadata: TakenMetadata) -> None:
        """Store metadata; drop the topics that the master has deleted, and what it has delivered with a delay.

        Makes the queues durable, too, so that a start after a crash has little to do.
        """
        metadata.write(self._disk, self._paths.config)
        self._store.take_topics(metadata.topics, metadata.log_before)
        self._store.settle(read_metadata(self._disk, self._paths.root).pending, self._clock.wall_ms())
        self._store.flush_queues()
