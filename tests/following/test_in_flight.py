"""Messages that RocketMQ 5 had in flight come again at Quarry when their invisible time is over, and no others do."""

from __future__ import annotations

import json
from pathlib import Path
from struct import Struct
from typing import Final

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.rocketmq.in_flight import Note, Unacknowledged, unacknowledged
from quarry_mq.store.state.identity import INFLIGHT
from quarry_mq.store.state.in_flight_key import ROWS, VALUE, index_key, parse_key
from tests.follower.test_followed_store import log_bytes
from tests.following.fake_master import FakeMaster
from tests.following.test_following import run, topics_body
from tests.store.assembly import message
from tests.store.test_deletions import opened

REVIVE: Final = "rmq_sys_REVIVE_LOG_DefaultCluster"
ORDERS: Final = QueueId("orders", 0)
NOW_MS: Final = ManualClock().wall_ms()
Body = dict[str, object]


def delivery(first: int, distances: list[int], *, at_ms: int = NOW_MS, queue: int = 0, group: str = "readers") -> Body:
    same: Body = {"t": "orders", "c": group, "q": queue, "so": first, "pt": at_ms, "bn": "broker-a"}
    return same | {"n": len(distances), "d": distances, "it": 30_000, "bm": 0, "ro": 0}


def acknowledgement(of: Body, *offsets: int) -> Body:
    same = {name: of[name] for name in ("t", "c", "q", "so", "pt", "bn")}
    return same | ({"ao": offsets[0]} if len(offsets) == 1 else {"ao": 0, "aol": list(offsets)})


def note(store: OpenStore, tag: str, body: Body, *, is_timer: bool = True, out_ms: int = NOW_MS + 30_000) -> None:
    encoded = json.dumps(body).encode()
    if is_timer:
        timer = message(TIMER_TOPIC, 0, encoded, REAL_TOPIC=REVIVE, REAL_QID="0", TIMER_OUT_MS=f"{out_ms}", TAGS=tag)
        store.messages.append([timer])
    else:
        store.messages.append([message(REVIVE, body=encoded, TAGS=tag)])


def rows_of(store: OpenStore) -> dict[tuple[str, QueueId, int], int]:
    """Return the times of the messages in flight; each has an entry in the index."""
    family = store.state_engine.family(INFLIGHT)
    rows = dict(family.iterate(ROWS))
    assert all(family.get(index_key(key, value)) == b"" for key, value in rows.items())
    return {parse_key(key): VALUE.unpack_from(value)[0] for key, value in rows.items()}


def written_by_rocketmq(root: Path) -> OpenStore:
    store = opened(root)
    store.messages.append([message("orders") for _ in range(9)] + [message("orders", 1) for _ in range(3)])
    early, first, second, other = (
        delivery(0, [0, 1], at_ms=NOW_MS - 90_000),
        delivery(2, [0, 1, 3]),
        delivery(4, [0, 2, 3], at_ms=NOW_MS + 5),
        delivery(0, [0, 1, 2], queue=1, group="others"),
    )
    # what RocketMQ has dealt with: delivered to itself, and written into a retry topic
    note(store, "ck", early, out_ms=NOW_MS - 60_000)
    note(store, "ck", early, is_timer=False)
    note(store, "ck", first)
    note(store, "ack", acknowledgement(first, 3))
    note(store, "ck", second)
    note(store, "bAck", acknowledgement(second, 4, 6), is_timer=False)
    note(store, "ck", other, is_timer=False)
    note(store, "ack", acknowledgement(other, 2))
    note(store, "ck", delivery(8, [0], at_ms=NOW_MS + 9))  # the group's position is not above it yet
    note(store, "ck", delivery(0, [0], group="unknown"))
    store.messages.dispatch(store.messages.flush())
    return store


@pytest.mark.parametrize("times", [1, 3])
def test_unacknowledged_messages_get_rows(tmp_path: Path, times: int) -> None:
    """The notes are read once, however often the follower was started before."""
    primary = written_by_rocketmq(tmp_path / "primary")
    end = primary.messages.appended_up_to
    positions = {
        "orders@readers": {"0": 8},
        "orders@others": {"1": 3},
        f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {"0": 0},
    }
    bodies = {
        21: topics_body("orders", REVIVE),
        43: json.dumps({"offsetTable": positions}).encode(),
        60: Struct(">qqq").pack(NOW_MS, 0, 1).ljust(56, b"\0"),
    }
    with FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end, bodies=bodies) as master:
        for _ in range(times):
            found = run(master.port, tmp_path / "store", "--cut-over")
            assert found.exit_code == 0, found.output
    primary.close()
    expected = {
        ("readers", ORDERS, 2): NOW_MS + 30_000,
        ("readers", ORDERS, 5): NOW_MS + 30_000,
        ("readers", ORDERS, 7): NOW_MS + 30_005,
        ("others", QueueId("orders", 1), 0): NOW_MS + 30_000,
        ("others", QueueId("orders", 1), 1): NOW_MS + 30_000,
    }
    store = opened(tmp_path / "store")
    assert rows_of(store) == expected
    assert not list(store.messages.pending.notes())
    family, batch = store.state_engine.family(INFLIGHT), store.state_engine.batch()
    batch.delete_range(family, ROWS)
    store.state_engine.write(batch)
    store.close()
    store = opened(tmp_path / "store")
    assert not rows_of(store), "what was acknowledged since does not come back"
    store.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"t":"orders"}',
        b'{"t":"a","c":"b","q":0,"so":0,"pt":1,"n":1,"it":"x"}',
        b'{"t":"a","c":"b","q":4000000000,"so":0,"pt":1,"n":1,"it":1}',
    ],
)
def test_a_note_of_another_kind_is_passed_over(body: bytes) -> None:
    readable = json.dumps(delivery(2, [0, 1]) | {"bm": 1, "d": None}).encode()
    notes = [Note("ck", body), Note("ck", readable), Note("another", readable)]
    assert list(unacknowledged(notes)) == [Unacknowledged("readers", ORDERS, QueueOffset(3), NOW_MS + 30_000)]
