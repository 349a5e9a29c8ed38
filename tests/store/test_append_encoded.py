"""Messages whose properties are encoded already end up as all others do."""

from __future__ import annotations

import errno

import pytest

from quarry_mq.store.errors import DiskRefused, MessageTooLarge
from quarry_mq.store.message import EncodedMessage, Message, PhysicalOffset, QueueId
from quarry_mq.store.native import NATIVE
from quarry_mq.store.record import encode_properties, tags_code
from tests.faults.disk import FaultyDisk
from tests.store.assembly import LOG, SEGMENT_SIZE, Assembly, assemble, message, queue_engine


@pytest.fixture(params=["as installed", "python"])
def other(request: pytest.FixtureRequest) -> Assembly:
    """A new store, with the native part if there is one, and without."""
    made = new_store()
    if request.param == "as installed" and NATIVE is not None:
        made.store.use(NATIVE)
    return made


def encoded(of: Message) -> EncodedMessage:
    return EncodedMessage(
        of.topic,
        of.queue_number,
        of.body,
        encode_properties(of.properties),
        of.born_timestamp_ms,
        of.born_host,
        of.store_host,
        of.system_flag,
        tags_code(of.topic, of.properties, 0),
    )


MESSAGES = [message("orders" if n % 3 else "bills", n % 4, b"%d" % n * n, TAGS="red", KEYS=f"k{n}") for n in range(20)]


def new_store() -> Assembly:
    return assemble(FaultyDisk(), queue_engine())


@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_log_places_and_entries_are_those_of_an_ordinary_append(other: Assembly, batch_size: int) -> None:
    """Through several segments: a round that does not fit any more goes on in the next one."""
    ordinary = new_store()
    for _ in range(30):
        for start in range(0, len(MESSAGES), batch_size):
            some = [each._replace(body=each.body * 20) for each in MESSAGES[start : start + batch_size]]
            appended = other.store.append_encoded([encoded(each) for each in some])
            assert appended == ordinary.store.append(some)
    end = ordinary.store.appended_up_to
    assert end == other.store.appended_up_to > 2 * SEGMENT_SIZE
    assert ordinary.store.dispatch(end) == other.store.dispatch(end)
    for at in range(4):
        queue = QueueId("orders", at)
        entries = ordinary.store.entries(queue, ordinary.store.bounds(queue).minimum, 1_000)
        assert entries == other.store.entries(queue, other.store.bounds(queue).minimum, 1_000)
        assert entries
        for entry in entries[:3]:
            assert ordinary.store.read(entry) == other.store.read(entry)
    for base in range(0, end, SEGMENT_SIZE):
        path = LOG / f"{base:020d}"
        assert ordinary.disk.read(path) == other.disk.read(path)


def test_a_message_that_is_too_large_takes_nothing_with_it(other: Assembly) -> None:
    store = other.store
    large = encoded(message(body=bytes(SEGMENT_SIZE)))
    with pytest.raises(MessageTooLarge):
        store.append_encoded([encoded(MESSAGES[0]), large])
    assert store.appended_up_to == 0
    [place] = store.append_encoded([encoded(MESSAGES[0])])
    assert (place.queue_offset, place.physical_offset) == (0, 0)


def test_no_room_for_a_segment_is_told_and_leaves_all_as_it_was() -> None:
    disk = FaultyDisk()
    store = assemble(disk, queue_engine()).store
    disk.fail("create", error=errno.ENOSPC)
    with pytest.raises(DiskRefused):
        store.append_encoded([encoded(MESSAGES[0])])
    assert store.appended_up_to == PhysicalOffset(0)
