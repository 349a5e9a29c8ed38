"""`quarry follow` has the master's log and queues, whatever happens to the connection or to itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from quarry_mq.cli.following import connection, following
from quarry_mq.cli.main import app
from quarry_mq.protocol.remoting.ha import Push, PushMalformed, SlaveSide
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from tests.e2e.broker import PROJECT, clean_environment, quarry, until
from tests.e2e.conftest import StartBroker
from tests.follower.test_followed_store import SEGMENT_SIZE, log_bytes, send_some
from tests.following.fake_master import PUSH, FakeMaster, answer_of, pushed
from tests.store.assembly import message
from tests.store.test_deletions import opened, rows_of


def run(port: int, root: Path, *options: str) -> Any:
    arguments = ["follow", f"127.0.0.1:{port}", "--store", str(root), "--until-caught-up", "--json", *options]
    return CliRunner().invoke(app, arguments)


def topics_body(*names: str) -> bytes:
    settings = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
    return json.dumps({"topicConfigTable": {name: {"topicName": name, **settings} for name in names}}).encode()


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.binary(max_size=40)), max_size=8), st.integers(1, 30), st.booleans()
)
def test_pushes_are_read_whatever_the_pieces_are(
    pushes: list[tuple[int, bytes]], size: int, is_controlled: bool
) -> None:
    sent = b"".join(pushed(offset, data, is_controlled=is_controlled) for offset, data in pushes)
    sent = answer_of(7) + sent if is_controlled else sent
    reader = SlaveSide(is_controlled=is_controlled)
    found = [push for at in range(0, len(sent), size) for push in reader.feed(sent[at : at + size])]
    assert found == [Push(PhysicalOffset(offset), data) for offset, data in pushes]


@pytest.mark.parametrize("head", [PUSH.pack(-1, 5), PUSH.pack(0, -1), PUSH.pack(0, 1 << 30)])
def test_what_is_no_push_is_refused(head: bytes) -> None:
    with pytest.raises(PushMalformed, match="a push of"):
        SlaveSide(is_controlled=False).feed(head)


def test_what_is_no_frame_of_a_master_in_controller_mode_is_refused() -> None:
    with pytest.raises(PushMalformed, match="a frame of state 5"):
        SlaveSide(is_controlled=True).feed(bytes([0, 0, 0, 5]) + bytes(40))


def test_reports() -> None:
    assert SlaveSide(is_controlled=False).report(PhysicalOffset(258)) == bytes([0, 0, 0, 0, 0, 0, 1, 2])
    side = SlaveSide(is_controlled=True)
    assert side.report(PhysicalOffset(258)) == bytes([0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, 2])
    assert not side.is_greeted
    side.feed(answer_of(7))
    assert side.is_greeted


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_INTERVAL_S", 0.05)


@pytest.mark.parametrize("is_controlled", [False, True])
def test_a_store_keeps_up_with_its_master_and_serves_afterwards(tmp_path: Path, is_controlled: bool) -> None:
    """The follower connects again when a connection is cut in the middle of a push."""
    chance = Random(1)
    primary = opened(tmp_path / "primary")
    bodies = {
        21: topics_body("orders", "rooms"),
        43: json.dumps({"offsetTable": {"orders@readers": {"0": 2}}}).encode(),
    }
    end = 0
    settings = {"enableControllerMode": "true"} if is_controlled else {}
    with FakeMaster(
        lambda start, stop: log_bytes(primary, start, stop), lambda: end, bodies=bodies, settings=settings
    ) as master:
        for turn in range(4):
            for _ in range(8):
                send_some(primary, chance)
            end = primary.messages.appended_up_to
            master.drops_after = 80_001 if turn == 2 else None
            found = run(master.port, tmp_path / "store")
            assert found.exit_code == 0, found.output
            assert json.loads(found.stdout) == {"logBegin": 0, "logEnd": end, "behind": 0}
            assert master.reports[-1] == end
            assert master.drops_after is None
    store = opened(tmp_path / "store")
    assert log_bytes(store, 0, end) == log_bytes(primary, 0, end)
    assert rows_of(store) == rows_of(primary)
    orders = store.topics.get("orders")
    assert orders is not None
    assert orders.queue_count == 3
    store.close()
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        found = run(master.port, tmp_path / "store")
        assert found.exit_code == 2
        assert "a broker has served this store" in found.output
    primary.close()


def test_a_store_is_verified_while_it_follows(tmp_path: Path) -> None:
    chance, root = Random(4), tmp_path / "store"
    primary = opened(tmp_path / "primary")
    for _ in range(6):
        send_some(primary, chance)
    end = primary.messages.appended_up_to
    command = [sys.executable, "-m", "quarry_mq.cli.main", "follow", "--store", str(root)]
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        follower = subprocess.Popen([*command, f"127.0.0.1:{master.port}"], cwd=PROJECT, env=clean_environment())
        try:
            until(lambda: master.reports[-1:] == [end], "the follower has all")
            done = quarry("verify", str(root))
            assert done.returncode == 0, done.stderr
            assert f"log [0, {end}): the parts of the store agree" in done.stdout
            until(lambda: not list((root / "backup").glob("1*")), "the point is removed")
        finally:
            follower.terminate()
            assert follower.wait(30) == 0
    assert quarry("verify", str(root)).returncode == 0
    primary.close()


def test_deleted_topics_stay_away_and_groups_miss_nothing(tmp_path: Path) -> None:
    """The master has deleted the topic `rooms`, also once it was followed, and its groups are ahead of the follower."""
    chance = Random(9)
    primary = opened(tmp_path / "primary")
    for _ in range(4):
        send_some(primary, chance)
    end = primary.messages.appended_up_to
    positions = {"orders@ahead": {"0": 900}, "orders@within": {"0": 2}, "empty@readers": {"1": 7}}
    bodies = {21: topics_body("orders", "rooms", "empty"), 43: json.dumps({"offsetTable": positions}).encode()}
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end, bodies=bodies) as master:
        assert run(master.port, tmp_path / "store").exit_code == 0
    bodies[21] = topics_body("orders", "empty")
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end, bodies=bodies) as master:
        for root in (tmp_path / "store", tmp_path / "later"):
            assert run(master.port, root).exit_code == 0
            found = CliRunner().invoke(app, ["verify", str(root)])
            assert found.exit_code == 0, found.output
    for root in (tmp_path / "store", tmp_path / "later"):
        store = opened(root)
        assert not store.messages.queues_of("rooms")
        assert store.topics.get("rooms") is None
        orders, empty = QueueId("orders", 0), QueueId("empty", 1)
        assert store.offsets.get("ahead", orders) == store.messages.maximum(orders) < 900
        assert store.offsets.get("within", orders) == 2
        assert store.offsets.get("readers", empty) == store.messages.maximum(empty) == 7
        store.close()
        found = CliRunner().invoke(app, ["verify", str(root)])
        assert found.exit_code == 0, found.output
    primary.close()


@pytest.mark.parametrize("looks", [1, 2])
def test_a_topic_that_is_deleted_and_made_again_begins_again(tmp_path: Path, looks: int) -> None:
    """The follower does not see that the topic was away: its queues that have new messages have only these."""
    primary = opened(tmp_path / "primary")
    bodies = {21: topics_body("orders", "rooms")}
    with FakeMaster(
        lambda start, stop: log_bytes(primary, start, stop), lambda: primary.messages.appended_up_to, bodies=bodies
    ) as master:
        primary.messages.append([message("orders", number, b"old") for number in (0, 0, 0, 1, 1, 2)])
        if looks == 2:
            assert run(master.port, tmp_path / "store").exit_code == 0
        primary.messages.dispatch(primary.messages.flush())
        primary.messages.delete_topic("orders")
        primary.messages.append([message("orders", number, b"new") for number in (0, 0, 1)])
        primary.messages.dispatch(primary.messages.flush())
        assert run(master.port, tmp_path / "store").exit_code == 0
    primary.close()
    store = opened(tmp_path / "store")
    assert {number: bodies_of(store, QueueId("orders", number)) for number in range(3)} == {
        0: [b"new", b"new"],
        1: [b"new"],
        2: [b"old"],
    }
    store.close()
    found = CliRunner().invoke(app, ["verify", str(tmp_path / "store")])
    assert found.exit_code == 0, found.output


def bodies_of(store: OpenStore, queue: QueueId) -> list[bytes]:
    return [bytes(store.messages.read(each).body) for each in store.messages.entries(queue, QueueOffset(0), 100)]


def test_a_cut_over_takes_all_that_the_master_has_when_it_refuses_messages(tmp_path: Path) -> None:
    chance = Random(4)
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, chance)
    ends = [primary.messages.appended_up_to]
    for _ in range(3):  # what was under way when the master began to refuse
        send_some(primary, chance)
        ends.append(primary.messages.appended_up_to)

    def end() -> int:
        return ends.pop(0) if master.refuses_until_ms and len(ends) > 1 else ends[0]

    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), end) as master:
        found = run(master.port, tmp_path / "store", "--cut-over")
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout) == {"logBegin": 0, "logEnd": primary.messages.appended_up_to, "behind": 0}
        assert master.refuses_until_ms > 4_000_000_000_000
    primary.close()


def test_what_the_master_appends_after_the_last_metadata_is_not_taken_over(tmp_path: Path) -> None:
    """Copies of delayed messages, for example, would be delivered a second time."""
    chance = Random(14)
    primary = opened(tmp_path / "primary")
    ends = []
    for _ in range(3):
        for _ in range(4):
            send_some(primary, chance)
        ends.append(primary.messages.appended_up_to)
    first, fitting, last = ends

    def looks() -> int:
        """Return how often the log was looked at after the progress of timers was read, once messages are refused."""
        asked = master.asked[master.asked.index(25) :] if 25 in master.asked else []
        return asked[len(asked) - asked[::-1].index(60) :].count(28) if 60 in asked else 0

    with FakeMaster(
        lambda start, stop: log_bytes(primary, start, stop), lambda: fitting if looks() < 2 else last
    ) as master:
        master.pushed_end = lambda: last if looks() else first
        found = run(master.port, tmp_path / "store", "--cut-over")
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout) == {"logBegin": 0, "logEnd": fitting, "behind": 0}
        assert looks() > 1
    primary.close()


def test_a_broker_waits_for_the_cut_over_and_opens_nothing_before(tmp_path: Path, start_broker: StartBroker) -> None:
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, Random(13))
    end = primary.messages.appended_up_to
    root = tmp_path / "store"
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        settings = {"store.segment_size": SEGMENT_SIZE}
        broker = start_broker(store=root, settings=settings, after_cut_over=True)
        until(lambda: "waiting for the cut-over" in broker.words(), "the broker waits", timeout_s=60)
        assert not root.exists()
        assert run(master.port, root).exit_code == 0, "a trial"
        assert broker.get("/readyz")[0] == 503
        assert run(master.port, root, "--cut-over").exit_code == 0
        assert broker.ready_or_ended() is None, broker.words()
        assert "appended" not in broker.words()
        assert run(master.port, root).exit_code == 2
        broker.stop()
        assert run(master.port, root).exit_code == 2
        broker.start()  # a service keeps the option
        broker.stop()
    primary.close()


def test_a_cut_over_that_is_killed_serves_nothing_and_is_repeated(tmp_path: Path, start_broker: StartBroker) -> None:
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, Random(16))
    end = primary.messages.appended_up_to
    root = tmp_path / "store"
    broker = start_broker(store=root, settings={"store.segment_size": SEGMENT_SIZE}, after_cut_over=True)
    until(lambda: "waiting for the cut-over" in broker.words(), "the broker waits", timeout_s=60)
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        words = ["follow", f"127.0.0.1:{master.port}", "--store", str(root), "--cut-over"]
        command = [sys.executable, "-m", "quarry_mq.cli.main", *words]
        for delay_s in (0.0, 0.15, 0.22):
            master.asked.clear()
            follower = subprocess.Popen(command, cwd=PROJECT, env=clean_environment())
            until(lambda: 25 in master.asked, "messages are refused", timeout_s=60)
            time.sleep(delay_s)
            follower.kill()
            follower.wait()
            if StorePaths(root).cut_over.exists():
                break  # it was quicker
            assert broker.get("/readyz")[0] == 503
        else:
            assert run(master.port, root, "--cut-over").exit_code == 0
        assert broker.ready_or_ended() is None, broker.words()
    broker.stop()
    store = opened(root)
    assert log_bytes(store, 0, end) == log_bytes(primary, 0, end)
    assert rows_of(store) == rows_of(primary)
    store.close()
    primary.close()


def test_a_broker_that_waits_stops_and_following_again_takes_the_cut_over_back(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    primary = opened(tmp_path / "primary")
    send_some(primary, Random(15))
    end = primary.messages.appended_up_to
    root = tmp_path / "store"
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        assert run(master.port, root, "--cut-over").exit_code == 0
        assert StorePaths(root).cut_over.read_bytes() == b"%d\n" % end
        assert run(master.port, root).exit_code == 0
    broker = start_broker(store=root, after_cut_over=True)
    until(lambda: "waiting for the cut-over" in broker.words(), "the broker waits", timeout_s=60)
    broker.stop()
    primary.close()


@pytest.mark.parametrize("is_away", [False, True])
def test_a_master_that_never_stops_appending_takes_messages_again(
    is_away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says so if the master is away and could not be told to."""
    monkeypatch.setattr(following, "SETTLE_S", 0.5)
    chance = Random(5)
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, chance)
    ends = [primary.messages.appended_up_to - 50_000]

    def end() -> int:
        ends[0] += 1 if master.refuses_until_ms else 0
        return ends[0]

    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), end) as master:
        master.never_takes_again = is_away
        found = run(master.port, tmp_path / "store", "--cut-over")
        assert found.exit_code == 2, found.output
        if is_away:
            assert "the broker may still refuse messages" in found.output
            assert "set its startAcceptSendRequestTimeStamp to 0" in found.output
            primary.close()
            return
        assert "has appended records for 0 s although it refused" in found.output
        assert ends[0] > primary.messages.appended_up_to - 50_000, "it was asked to refuse"
        assert master.refuses_until_ms == 0
    primary.close()


def test_a_connection_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SILENT_S", 0.3)
    primary = opened(tmp_path / "primary")
    send_some(primary, Random(11))
    end = primary.messages.appended_up_to
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        master.is_silent_once = True
        found = run(master.port, tmp_path / "store")
        assert json.loads(found.stdout)["logEnd"] == end
        assert not master.is_silent_once
    primary.close()


def test_a_master_with_another_log_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    """A master has lost the end of its log, and has written other records there since."""
    chance = Random(6)
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, chance)
    end = primary.messages.appended_up_to

    others = log_bytes(primary, 0, end - 5) + b"other" + bytes(1_000)
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        assert run(master.port, tmp_path / "store").exit_code == 0
    with FakeMaster(lambda start, stop: others[start:stop], lambda: end + 1_000) as master:
        found = run(master.port, tmp_path / "store")
        assert found.exit_code == 2
        assert "it has lost the end of its log since; begin with an empty directory" in found.output
    store = opened(tmp_path / "store")
    assert log_bytes(store, 0, end) == log_bytes(primary, 0, end)
    store.close()
    primary.close()


def test_segments_that_the_master_has_removed_go(tmp_path: Path) -> None:
    chance = Random(7)
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, chance)
    end = primary.messages.appended_up_to
    assert end > 2 * SEGMENT_SIZE
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        assert run(master.port, tmp_path / "store").exit_code == 0
        master.minimum = 2 * SEGMENT_SIZE
        found = run(master.port, tmp_path / "store")
        assert json.loads(found.stdout)["logBegin"] == 2 * SEGMENT_SIZE
    names = sorted(path.name for path in (tmp_path / "store" / "commitlog").iterdir() if path.name.isdecimal())
    assert int(names[0]) == 2 * SEGMENT_SIZE
    store = opened(tmp_path / "store")
    assert store.segments.minimum == 2 * SEGMENT_SIZE
    assert log_bytes(store, 2 * SEGMENT_SIZE, end) == log_bytes(primary, 2 * SEGMENT_SIZE, end)
    store.close()
    primary.close()


def test_a_log_that_does_not_begin_at_zero_is_followed_from_where_it_begins(tmp_path: Path) -> None:
    chance = Random(8)
    primary = opened(tmp_path / "primary")
    for _ in range(8):
        send_some(primary, chance)
    end = primary.messages.appended_up_to
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end, minimum=SEGMENT_SIZE) as master:
        found = run(master.port, tmp_path / "store")
        assert json.loads(found.stdout) == {"logBegin": SEGMENT_SIZE, "logEnd": end, "behind": 0}
    store = opened(tmp_path / "store")
    assert log_bytes(store, SEGMENT_SIZE, end) == log_bytes(primary, SEGMENT_SIZE, end)
    store.close()
    primary.close()


def test_the_command_says_if_messages_in_flight_are_not_in_the_log(tmp_path: Path) -> None:
    for value in ("false", "true"):
        settings = {"popConsumerKVServiceEnable": value}
        with FakeMaster(lambda *_: b"", lambda: 0, settings=settings) as master:
            found = run(master.port, tmp_path / value)
            assert found.exit_code == 0
            assert ("does not note messages in flight in its log" in found.output) == (value == "true")


def test_a_broker_that_cannot_be_followed_is_refused_with_the_reason(tmp_path: Path) -> None:
    for setting, value, why in (
        ("brokerRole", "SLAVE", "is a slave"),
        ("enableDLegerCommitLog", "true", "DLedger"),
    ):
        with FakeMaster(lambda *_: b"", lambda: 0, settings={setting: value}) as master:
            found = run(master.port, tmp_path / "store")
            assert found.exit_code == 2
            assert why in found.output
    assert not (tmp_path / "store").exists()


def test_a_store_that_does_not_fit_is_refused_and_left_alone(tmp_path: Path) -> None:
    primary = opened(tmp_path / "primary")
    send_some(primary, Random(2))
    end = primary.messages.appended_up_to
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master:
        assert run(master.port, tmp_path / "store").exit_code == 0
    with FakeMaster(lambda *_: b"", lambda: end - 100) as shorter:
        found = run(shorter.port, tmp_path / "store")
        assert found.exit_code == 2
        assert f"its log ends at {end}, and the master has 0 to {end - 100}" in found.output
    with FakeMaster(lambda *_: b"", lambda: end, segment_size=1 << 20) as larger:
        found = run(larger.port, tmp_path / "store")
        assert found.exit_code == 2
        assert "the master's 1048576" in found.output
    primary.close()
