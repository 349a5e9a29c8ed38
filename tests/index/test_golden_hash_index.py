"""Index files that Apache RocketMQ wrote: every key is found, and the same records give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.hash.index import HashIndex
from quarry_mq.store.index.hash.layout import HashHeader, shape_of
from quarry_mq.store.index.keys import items_of, key_text, keys_of
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueOffset
from tests import golden

SHAPE: Final = shape_of(5_000, 20_000)
"""As `broker.conf` of the golden stores says."""
ALWAYS: Final = (0, 2**62)

GoldenStore = Callable[[str], Path]


def index_at(directory: Path, *, writable: bool) -> HashIndex:
    return HashIndex(PosixDisk(), directory, SHAPE, SystemClock(), writable=writable)


def messages_of(root: Path) -> Iterator[dict[str, Any]]:
    return (line for line in golden.records(root) if "blank" not in line)


def request_of(line: dict[str, Any]) -> DispatchRequest:
    return DispatchRequest(
        topic=line["topic"],
        queue_number=line["queueId"],
        queue_offset=QueueOffset(line["queueOffset"]),
        physical_offset=PhysicalOffset(line["phyOffset"]),
        size=line["storeSize"],
        tags_code=0,
        store_timestamp_ms=line["storeTimestamp"],
        system_flag=line["sysFlag"],
        properties=line["properties"],
        light_queues=(),
    )


def test_the_example_in_the_docs(golden_store: GoldenStore) -> None:
    [path] = (golden_store("file-clean") / "store" / "index").iterdir()
    stored = path.read_bytes()
    example = "000001a1fb708f98000001a1fb70d292000000000000000000000000002365b400000e1100002f60"
    assert stored[:40].hex() == example
    header = HashHeader.unpack(stored)
    assert (header.slots_used, header.next_number, header.end_offset) == (3_601, 12_128, 0x2365B4)
    assert header.pack() == stored[:40]
    item = stored[SHAPE.position_of(1) :][:20]
    assert item.hex() == "62dce1e9" + 32 * "0"
    assert int.from_bytes(item[:4], "big") % 5_000 == 2_921


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_every_key_of_every_message_is_found(golden_store: GoldenStore, name: str) -> None:
    root = golden_store(name)
    index = index_at(root / "store" / "index", writable=False)
    looked_up = 0
    for line in messages_of(root):
        for key in keys_of(line["properties"]):
            found = {hit.physical_offset for hit in index.hits(key_text(line["topic"], key), *ALWAYS)}
            assert line["phyOffset"] in found, f"{line['topic']} {key}"
            looked_up += 1
    assert looked_up > 500
    index.close()


@pytest.mark.parametrize("name", ["file-clean", "rocks-clean", "file-kill"])
def test_the_same_records_give_the_same_bytes(golden_store: GoldenStore, tmp_path: Path, name: str) -> None:
    root = golden_store(name)
    [theirs] = (root / "store" / "index").iterdir()
    index = index_at(tmp_path / "index", writable=True)
    requests = [request_of(line) for line in messages_of(root)]
    for begin in range(0, len(requests), 100):
        index.put(items_of(requests[begin : begin + 100], with_tags=True))
    index.flush()
    [ours] = (tmp_path / "index").iterdir()
    assert ours.read_bytes() == theirs.read_bytes()
    index.close()
