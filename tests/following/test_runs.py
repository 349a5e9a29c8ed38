"""A `quarry follow` that runs reports, is ordered to cut over, and rests afterwards where it has its own container."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from quarry_mq.cli.following import connection, following
from quarry_mq.cli.following import run as run_module
from quarry_mq.cli.following.files import FollowerFiles, Report, State
from quarry_mq.cli.following.following import FollowFailed
from quarry_mq.cli.following.master import Master
from quarry_mq.cli.following.run import ENDED_BEFORE, Run
from quarry_mq.client.remoting import RemotingClient
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.open_store import OpenStore
from tests.e2e.broker import PROJECT, Broker, clean_environment, quarry, until
from tests.e2e.conftest import StartBroker
from tests.follower.test_followed_store import SEGMENT_SIZE, log_bytes, send_some
from tests.following.fake_master import FakeMaster
from tests.store.test_deletions import opened, rows_of

UPDATE_SETTINGS = 25


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(run_module, "RETRY_INTERVAL_S", 0.05)


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[OpenStore]:
    """A store whose log a fake master sends."""
    made = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(made, Random(21))
    yield made
    made.close()


@pytest.fixture
def master(primary: OpenStore) -> Iterator[FakeMaster]:
    end = primary.messages.appended_up_to
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as made:
        yield made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def files_of(root: Path) -> FollowerFiles:
    return FollowerFiles(PosixCopyingDisk(), root, SystemClock())


def report_of(root: Path) -> Report:
    found = files_of(root).read()
    assert found is not None
    return found


def until_reported(root: Path, **wanted: object) -> None:
    def is_reported() -> bool:
        found = files_of(root).read()
        return found is not None and all(getattr(found, name) == value for name, value in wanted.items())

    until(is_reported, f"the report has {wanted}", timeout_s=30)


class Running:
    """A run of the command in a thread."""

    def __init__(self, port: int, root: Path, *, rests: bool = False) -> None:
        self.stop = Event()
        self.error: Exception | None = None
        self.run = Run(
            f"127.0.0.1:{port}",
            root,
            lambda: Master(RemotingClient("127.0.0.1", port)),
            show=lambda _: None,
            warn=lambda _: None,
            stop=self.stop,
        )
        self.thread = Thread(target=self._run, args=(rests,), daemon=True)

    def _run(self, rests: bool) -> None:
        try:
            self.run.rest_after_cut_over() if rests else self.run.follow()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def running(port: int, root: Path, *, rests: bool = False) -> Iterator[Running]:
    made = Running(port, root, rests=rests)
    made.thread.start()
    try:
        yield made
    finally:
        made.end()


@contextmanager
def container(port: int, root: Path) -> Iterator[subprocess.Popen[str]]:
    """The command as the chart runs it."""
    words = ["follow", f"127.0.0.1:{port}", "--store", str(root), "--rest-after-cut-over"]
    process = subprocess.Popen(
        [sys.executable, "-m", "quarry_mq.cli.main", *words],
        cwd=PROJECT,
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def waiting(start_broker: StartBroker, root: Path) -> Broker:
    broker = start_broker(store=root, settings={"store.segment_size": SEGMENT_SIZE}, after_cut_over=True)
    until(lambda: "waiting for the cut-over" in broker.words(), "the broker waits", timeout_s=60)
    return broker


def test_the_command_orders_a_run_on_the_same_folder(
    primary: OpenStore, master: FakeMaster, root: Path, start_broker: StartBroker
) -> None:
    end = primary.messages.appended_up_to
    broker = waiting(start_broker, root)
    with running(master.port, root) as follower:
        until_reported(root, log_end=end, lag_size=0)
        words = ("follow", f"127.0.0.1:{master.port}", "--store", str(root), "--cut-over")
        done = quarry(*words)
        assert done.returncode == 0, done.stderr
        assert f"the store has the broker's log up to {end}, 0 bytes behind" in done.stdout
        assert "the broker began to refuse messages" in done.stdout
        follower.thread.join(30)
        assert follower.error is None
        assert broker.ready_or_ended() is None, broker.words()
        again = quarry(*words)
        assert again.returncode == 2
        assert "holds this store" in again.stderr, "nobody follows any more"
    assert master.refuses_until_ms > 0
    assert (report_of(root).state, report_of(root).log_end) == (State.CUT_OVER, end)
    broker.stop()
    store = opened(root)
    assert rows_of(store) == rows_of(primary)
    store.close()


def test_a_log_without_a_message_is_followed_by_each_connection(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's minimum offset is -1 until the first message is stored."""
    monkeypatch.setattr(connection, "SILENT_S", 0.3)
    primary = opened(tmp_path / "primary")
    with FakeMaster(
        lambda start, stop: log_bytes(primary, start, stop), lambda: primary.messages.appended_up_to, minimum=-1
    ) as master:
        master.is_silent_once = True
        with running(master.port, root) as follower:
            until(lambda: len(master.reports) > 0, "the second connection reports")
            assert report_of(root).log_end == 0
            send_some(primary, Random(3))
            master.minimum = 0
            until(lambda: master.reports[-1] == primary.messages.appended_up_to, "the follower has all")
            assert follower.error is None
    primary.close()


def test_another_broker_is_not_cut_over_to(master: FakeMaster, root: Path) -> None:
    with FakeMaster(lambda *_: b"", lambda: 0) as other, running(master.port, root):
        until_reported(root, lag_size=0, state=State.FOLLOWING)
        done = quarry("follow", f"127.0.0.1:{other.port}", "--store", str(root), "--cut-over")
        assert done.returncode == 2
        assert not files_of(root).is_ordered()
        assert other.refuses_until_ms == 0


def test_a_cut_over_that_fails_is_told_and_following_goes_on(
    primary: OpenStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SETTLE_S", 0.5)
    ends = [primary.messages.appended_up_to - 50_000]
    is_busy = Event()
    is_busy.set()

    def end() -> int:
        ends[0] += 1 if busy.refuses_until_ms and is_busy.is_set() else 0
        return ends[0]

    with (
        FakeMaster(lambda start, stop: log_bytes(primary, start, stop), end) as busy,
        running(busy.port, root) as follower,
    ):
        until_reported(root, state=State.FOLLOWING)
        address = f"127.0.0.1:{busy.port}"
        done = quarry("follow", address, "--store", str(root), "--cut-over")
        assert done.returncode == 2
        assert f"{address}: the broker has appended records for 0 s although it refused messages" in done.stderr
        assert "has appended records" in report_of(root).failure
        assert busy.refuses_until_ms == 0
        assert follower.thread.is_alive()
        assert not files_of(root).is_complete()
        is_busy.clear()
        ends[0] = primary.messages.appended_up_to
        done = quarry("follow", address, "--store", str(root), "--cut-over", "--json")
        assert done.returncode == 0, done.stderr
    assert (report_of(root).state, report_of(root).failure) == (State.CUT_OVER, "")


def test_a_stop_calls_off_an_order_that_was_not_carried_out(primary: OpenStore, root: Path) -> None:
    """A container keeps the order for its next run."""
    end = primary.messages.appended_up_to
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end + (2 << 20)) as master:
        master.pushed_end = lambda: end  # so much is missing that a cut-over does not begin
        for rests in (False, True):
            with running(master.port, root, rests=rests):
                until_reported(root, log_end=end, state=State.FOLLOWING)
                files_of(root).order()
                until_reported(root, state=State.CUTTING_OVER)
            assert files_of(root).is_ordered() == rests
            assert report_of(root).failure == ("" if rests else ENDED_BEFORE)
        assert UPDATE_SETTINGS not in master.asked
        assert not files_of(root).is_complete()


def test_a_container_rests_after_its_cut_over_and_after_each_start(
    primary: OpenStore, master: FakeMaster, root: Path, start_broker: StartBroker
) -> None:
    end = primary.messages.appended_up_to
    broker = waiting(start_broker, root)
    with container(master.port, root) as follower:
        until_reported(root, log_end=end, lag_size=0)
        done = quarry("follow", f"127.0.0.1:{master.port}", "--store", str(root), "--cut-over")
        assert done.returncode == 0, done.stderr
        assert broker.ready_or_ended() is None, broker.words()
        time.sleep(1)
        assert follower.poll() is None, "it rests"
        follower.send_signal(signal.SIGTERM)
        _, log = follower.communicate(timeout=30)
        assert follower.returncode == 0
        for event in ("following RocketMQ", "cutting over", "the cut-over is complete", "does not follow any more"):
            assert event in log
    asked = len(master.asked)
    with container(master.port, root) as follower:
        assert follower.stderr is not None
        assert "the store does not follow any more" in follower.stderr.readline()
        assert broker.get("/readyz")[0] == 200
        broker.stop()
        broker.start()
        assert follower.poll() is None
    assert len(master.asked) == asked
    broker.stop()


def test_a_container_that_is_killed_while_it_cuts_over_completes_the_cut_over(
    primary: OpenStore, master: FakeMaster, root: Path, start_broker: StartBroker
) -> None:
    broker = waiting(start_broker, root)
    with container(master.port, root) as follower:
        until_reported(root, lag_size=0, state=State.FOLLOWING)
        files_of(root).order()
        until(lambda: UPDATE_SETTINGS in master.asked, "messages are refused")
        follower.kill()
        follower.communicate()
    assert master.refuses_until_ms > 0
    assert files_of(root).is_ordered()
    assert broker.get("/readyz")[0] == 503
    with container(master.port, root):
        assert broker.ready_or_ended() is None, broker.words()
    assert not files_of(root).is_ordered()
    broker.stop()
    store = opened(root)
    assert rows_of(store) == rows_of(primary)
    store.close()


def test_a_store_that_was_served_is_served_on(master: FakeMaster, root: Path, start_broker: StartBroker) -> None:
    """Somebody lets a broker that is in use follow, or restores a backup, which has no note of the cut-over."""
    start_broker(store=root, settings={"store.segment_size": SEGMENT_SIZE}).stop()
    broker = waiting(start_broker, root)
    with running(master.port, root, rests=True) as follower:
        assert broker.ready_or_ended() is None, broker.words()
        until_reported(root, state=State.SERVED)
        assert "a broker has served this store" in report_of(root).failure
        assert follower.thread.is_alive()
    broker.stop()
    assert master.refuses_until_ms == 0


def test_a_first_run_ends_with_what_it_cannot_do_and_a_later_one_waits(master: FakeMaster, root: Path) -> None:
    with FakeMaster(lambda *_: b"", lambda: 0) as closed:
        pass
    first = Running(closed.port, root, rests=True)
    first.thread.start()
    first.thread.join(30)
    assert isinstance(first.error, FollowFailed)
    assert not root.exists()
    with running(master.port, root, rests=True):
        until_reported(root, lag_size=0, problem="")
    with running(closed.port, root, rests=True) as later:
        until(lambda: "refused" in report_of(root).problem, "the problem is reported")
        assert report_of(root).broker == later.run._report.broker
        assert later.thread.is_alive()


def test_an_order_of_before_is_not_carried_out_after_a_cut_over_was_taken_back(master: FakeMaster, root: Path) -> None:
    address = f"127.0.0.1:{master.port}"
    assert quarry("follow", address, "--store", str(root), "--cut-over").returncode == 0
    files_of(root).order()  # its process was killed before it removed the order
    master.asked.clear()
    with running(master.port, root):
        until(lambda: not StorePaths(root).cut_over.exists(), "the cut-over is taken back")
        time.sleep(0.5)
    assert UPDATE_SETTINGS not in master.asked


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"state": "other"}', "null"])
def test_what_is_no_report_is_none(text: str) -> None:
    assert Report.parse(text) is None


def test_reports_are_read_as_they_are_written() -> None:
    report = Report(state=State.CUT_OVER, broker="a:1", at_ms=5, log_end=7, refused_s=0.5)
    assert Report.parse(report.text) == report
