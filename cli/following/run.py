"""A run of `quarry follow` opens the store, follows, cuts over when that is ordered, and reports how far it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Final

import structlog

from quarry_mq.cli.following.files import FollowerFiles, Report, State
from quarry_mq.cli.following.following import (
    AWAY,
    RETRY_INTERVAL_S,
    CutOverFailed,
    FollowFailed,
    Following,
    Lag,
)
from quarry_mq.cli.following.master import Master
from quarry_mq.protocol.clock import Clock, Progress, ReportProgress, SystemClock
from quarry_mq.store.errors import StoreServed
from quarry_mq.store.follower import PointsOnRequest, is_followed
from quarry_mq.store.follower import follow as follow_log
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.open_store import recover_store
from quarry_mq.store.settings import StoreSettings

log = structlog.get_logger(__name__)

LOOK_S: Final = 0.1
LOGGED_EVERY_S: Final = 10.0
GONE_S: Final = 30.0
"""Seconds after which a process that was ordered to cut over and has ended is not waited for any more."""

NOT_IN_LOG: Final = (
    "the broker does not note messages in flight in its log (popConsumerKVServiceEnable): before a cut-over "
    "stop consumers that receive by gRPC or pop, and wait for their invisible times"
)
ENDED_BEFORE: Final = "ended before the cut-over was complete: the broker takes messages as before"


class Run:
    """A run of the command in a folder. Lives on one thread."""

    def __init__(
        self,
        broker: str,
        root: Path,
        connect: Callable[[], Master],
        *,
        show: ReportProgress,
        warn: Callable[[str], None],
        stop: Event,
    ) -> None:
        """Follow the master at the address `broker`, to which `connect` connects. Everything ends soon after `stop`."""
        self._root = root
        self._connect = connect
        self._progress = show
        self._warn = warn
        self._stop = stop
        self._disk: Final = PosixCopyingDisk()
        self._clock: Final[Clock] = SystemClock()
        self._files: Final = FollowerFiles(self._disk, root, self._clock)
        self._report = Report(state=State.FOLLOWING, broker=broker)
        self._logged_s: float | None = None

    # -- what the command does

    def follow(self, *, keeps_order: bool = False) -> Report:
        """Follow until `stop` is set, or until a cut-over that was ordered is complete; return the last report.

        A cut-over that fails does not end it. With `keeps_order` a stop leaves the order for the next run. Raises
        FollowFailed, and what `Following.run` raises.
        """
        following = self._opened()
        refused_s = None
        try:
            while refused_s is None and following.run(self._files.is_ordered):
                log.info("cutting over", broker=self._report.broker, lag_bytes=following.lag.size)
                try:
                    refused_s = self._cut_over(following)
                except CutOverFailed as error:
                    log.warning("the cut-over failed", broker=self._report.broker, reason=str(error))
                    self._note(state=State.FOLLOWING, failure=str(error))
                    if not (keeps_order and self._stop.is_set()):
                        self._files.drop_order()
        finally:
            following.close()
        if refused_s is None and not keeps_order and self._files.is_ordered():
            self._note(state=State.FOLLOWING, failure=ENDED_BEFORE)
            self._files.drop_order()
        return self._ended(following, refused_s)

    def catch_up(self) -> Report:
        """Follow until the store has all that the master has; return the last report. Raises what `follow` raises."""
        with closing(self._opened()) as following:
            following.catch_up()
        return self._ended(following, None)

    def cut_over(self) -> Report:
        """Cut over without an order; return the last report. Raises what `follow` raises."""
        with closing(self._opened()) as following:
            refused_s = self._cut_over(following)
        if refused_s is None:
            raise CutOverFailed(ENDED_BEFORE)
        return self._ended(following, refused_s)

    def rest_after_cut_over(self) -> None:
        """Follow, cut over when that is ordered, and do nothing afterwards until `stop` is set.

        A store that was cut over to, or that a broker has served, is left alone. Raises what `follow` raises; a master
        that is away ends nothing once the store has begun.
        """
        while not (self._stop.is_set() or self._files.is_complete()):
            try:
                self.follow(keeps_order=True)
            except StoreServed as served:
                log.error("the store cannot follow", broker=self._report.broker, reason=served.reason)
                self._files.complete(0)  # a broker that waits has nothing to wait for
                self._note(state=State.SERVED, failure=served.reason)
            except FollowFailed as error:
                if not self._files.has_store:
                    raise
                last = self._files.read() or self._report  # positions of the last run stay
                self._report = replace(last, broker=self._report.broker)
                self._note(problem=str(error))
                self._log_progress()
                self._stop.wait(RETRY_INTERVAL_S)
        if self._files.is_complete():
            self._files.drop_order()
            log.info("the store does not follow any more", store=str(self._root))
            self._stop.wait()

    # -- a process that follows already

    @property
    def has_follower(self) -> bool:
        """Return whether another process follows the same broker in this folder."""
        report = self._files.read()
        is_same = report is not None and report.broker == self._report.broker
        return is_same and is_followed(self._disk, self._root) and not self._files.is_complete()

    def order_cut_over(self) -> Report:
        """Order the other process to cut over, wait until it has, and return its report. Raises CutOverFailed."""
        self._files.order()
        seen_s = self._clock.monotonic_s()
        while self._files.is_ordered():
            if self._stop.wait(LOOK_S):
                raise CutOverFailed("this command has ended, and the process that follows goes on with the cut-over")
            now_s = self._clock.monotonic_s()
            if is_followed(self._disk, self._root):
                seen_s = now_s
            elif now_s - seen_s > GONE_S:
                raise CutOverFailed(
                    "the process that followed has ended: start it again, and it completes the cut-over"
                )
        report = self._files.read()
        if report is None or not self._files.is_complete():
            raise CutOverFailed("" if report is None else report.failure)
        return report

    # -- steps

    def _opened(self) -> Following:
        """Open the store to follow the master. Nothing is made if the master cannot be followed."""
        disk, clock, root = self._disk, self._clock, self._root
        try:
            with closing(self._connect()) as master:
                settings = StoreSettings(root=root, segment_size=master.segment_size)
                begin, kind = master.log_range().minimum, master.kind
                if not master.has_notes_in_log:
                    self._warn(NOT_IN_LOG)
        except AWAY as error:
            raise FollowFailed(str(error) or type(error).__name__) from error
        recovered = recover_store(settings, disk=disk, clock=clock, report=self._progress, followed=kind)
        self._files.take_back()  # of a cut-over after which RocketMQ takes messages again
        store = follow_log(recovered, begin=begin, points=PointsOnRequest(disk, root, clock))
        self._report = replace(self._report, log_begin=store.minimum)
        paths, show, stop = StorePaths(root), self._show, self._stop
        return Following(store, self._connect, paths=paths, disk=disk, clock=clock, show=show, stop=stop)

    def _cut_over(self, following: Following) -> float | None:
        self._note(state=State.CUTTING_OVER, failure="")
        return following.cut_over()

    def _ended(self, following: Following, refused_s: float | None) -> Report:
        """Write the last report of a store that was closed, and let a broker open the store after a cut-over."""
        lag = following.lag
        state = State.FOLLOWING
        if refused_s is not None:
            self._files.complete(lag.dispatched_up_to)
            state = State.CUT_OVER
        self._note(
            state=state,
            log_begin=following.log_begin,
            log_end=lag.dispatched_up_to,
            lag_size=lag.size,
            refused_s=refused_s,
        )
        if refused_s is not None:
            self._files.drop_order()
            log.info(
                "the cut-over is complete",
                broker=self._report.broker,
                log_end=lag.dispatched_up_to,
                seconds=round(refused_s, 3),
            )
        return self._report

    # -- what is told

    def _show(self, lag: Lag) -> None:
        done = lag.dispatched_up_to
        self._note(log_end=done, lag_size=lag.size, problem=lag.problem)
        words = f"{lag.size:,} bytes behind"
        if lag.problem:
            words = f"trying again ({lag.problem}), {words}"
        self._progress(Progress("following", done, max(done, lag.master_end), words))
        self._log_progress()

    def _note(self, **changes: Any) -> None:
        is_news = changes.get("problem", self._report.problem) != self._report.problem
        self._report = replace(self._report, **changes)
        if is_news:
            self._logged_s = None
        self._files.note(self._report)

    def _log_progress(self) -> None:
        now_s, report = self._clock.monotonic_s(), self._report
        if self._logged_s is None or now_s - self._logged_s >= LOGGED_EVERY_S:
            self._logged_s = now_s
            log.info(
                "following RocketMQ",
                broker=report.broker,
                log_end=report.log_end,
                lag_bytes=report.lag_size,
                problem=report.problem or None,
            )
