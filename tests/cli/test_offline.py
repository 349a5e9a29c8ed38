"""`quarry decode`, `queues` and `units` against what RocketMQ says its stores hold."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.store.record import tags_code
from tests import golden
from tests.cli.offline_runner import lines, run

GoldenStore = Callable[[str], Path]
Line = dict[str, Any]


def messages(store: Path) -> list[Line]:
    return [line for line in golden.records(store) if "blank" not in line]


def ordinary_queues(store: Path) -> dict[tuple[str, int], list[Line]]:
    """The units of every queue but the light ones, as the commit log has them."""
    queues = defaultdict(list)
    for line in messages(store):
        queues[line["topic"], line["queueId"]].append(
            {
                "offset": line["queueOffset"],
                "phyOffset": line["phyOffset"],
                "size": line["storeSize"],
                "tagsCode": tags_code(line["topic"], line["properties"], line["storeTimestamp"]),
                "storeTimestamp": line["storeTimestamp"],
            }
        )
    return queues


def light_queues(store: Path) -> dict[str, dict[int, int]]:
    """Physical offsets by queue offset of every light queue. Messages in waiting keep the names too."""
    queues: dict[str, dict[int, int]] = defaultdict(dict)
    for line in messages(store):
        if line["topic"].startswith(("%RETRY%", "SCHEDULE_TOPIC_XXXX", "rmq_sys_")):
            continue
        names = line["properties"].get("INNER_MULTI_DISPATCH", "").split(",")
        offsets = line["properties"].get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        for name, offset in zip(names, offsets, strict=False):
            if offset:
                queues[name][int(offset)] = line["phyOffset"]
    return queues


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_decode_prints_what_rocketmqs_decoder_found(golden_store: GoldenStore, name: str) -> None:
    """Text for text: same keys, order, escapes and digests (rmq#7142, rmq#9111: content as readable JSON)."""
    store = golden_store(name)
    result = run("decode", store / "store", "--json")
    assert result.exit_code == 0
    assert result.stdout == (store / "messages.jsonl").read_text(encoding="utf-8")


def test_decode_from_an_offset_with_a_limit(golden_store: GoldenStore) -> None:
    store = golden_store("file-clean")
    expected = golden.records(store)
    blank = next(index for index, line in enumerate(expected) if "blank" in line)
    start = expected[blank - 2]["phyOffset"]
    shown = lines("decode", store / "store", "--at", start, "--limit", 5)
    assert shown == expected[blank - 2 : blank + 3]
    assert lines("decode", store / "store", "--at", expected[-1]["phyOffset"]) == expected[-1:]


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_decode_by_queue_offset(golden_store: GoldenStore, name: str) -> None:
    store = golden_store(name)
    expected = [line for line in messages(store) if (line["topic"], line["queueId"]) == ("acme-orders", 1)]
    arguments = ("decode", store / "store", "--topic", "acme-orders", "--queue", 1, "--offset")
    assert lines(*arguments, 7) == expected[7:8]
    assert lines(*arguments, 0, "--limit", 100_000) == expected


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_decode_of_light_queues(golden_store: GoldenStore, name: str) -> None:
    """All records of a light queue are those that name it, although its entries lie in other topics' records."""
    store = golden_store(name)
    light, _ = next(iter(light_queues(store).items()))
    arguments = ("decode", store / "store", "--topic", light, "--queue", 0, "--offset", 0, "--limit", 100_000)
    shown = lines(*arguments)
    assert shown
    assert all(light in line["properties"]["INNER_MULTI_DISPATCH"].split(",") for line in shown)


@pytest.mark.parametrize(
    ("name", "source"), [("rocks-clean", "rocksdb"), ("file-clean", "file"), ("file-kill", "file")]
)
def test_entries_are_those_of_the_commit_log(golden_store: GoldenStore, name: str, source: str) -> None:
    store = golden_store(name)
    for (topic, number), expected in ordinary_queues(store).items():
        shown = lines("units", store / "store", "--topic", topic, "--queue", number, "--source", source)
        if source == "file":
            assert {entry.pop("storeTimestamp") for entry in (*shown, *expected)} > {None}
        assert shown == expected, (topic, number)


def test_entries_of_light_queues_in_rocksdb(golden_store: GoldenStore) -> None:
    store = golden_store("rocks-clean")
    queues = light_queues(store)
    assert len(queues) > 20
    for light, expected in queues.items():
        shown = lines("units", store / "store", "--topic", light, "--queue", 0)
        assert {entry["offset"]: entry["phyOffset"] for entry in shown} == expected


@pytest.mark.parametrize("name", ["rocks-clean", "file-clean", "file-kill"])
def test_queues_have_the_bounds_of_the_commit_log(golden_store: GoldenStore, name: str) -> None:
    store = golden_store(name)
    shown = {(line["topic"], line["queueId"]): line for line in lines("queues", store / "store")}
    ordinary = ordinary_queues(store)
    assert shown.keys() == ordinary.keys() | {(light, 0) for light in light_queues(store)}
    for (topic, number), entries in ordinary.items():
        bounds = {"topic": topic, "queueId": number, "minOffset": 0, "maxOffset": entries[-1]["offset"] + 1}
        assert shown[topic, number] == bounds


def test_doubly_written_store_is_read_as_rocketmq_reads_it(golden_store: GoldenStore) -> None:
    """Both sources can be asked for. Files are the default: they are what RocketMQ reads until told otherwise."""
    store = golden_store("double-clean") / "store"
    files = lines("queues", store, "--source", "file")
    rocksdb = lines("queues", store, "--source", "rocksdb")
    assert lines("queues", store) == files
    assert {(each["topic"], each["queueId"]) for each in rocksdb} <= {
        (each["topic"], each["queueId"]) for each in files
    }
    arguments = ("units", store, "--topic", "acme-orders", "--queue", 0)
    in_files = {entry["offset"]: entry for entry in lines(*arguments)}
    in_rocksdb = lines(*arguments, "--source", "rocksdb")
    assert 0 < len(in_rocksdb) < len(in_files)
    for entry in in_rocksdb:
        assert {**entry, "storeTimestamp": None} == in_files[entry["offset"]]


def test_text_for_people(golden_store: GoldenStore) -> None:
    store = golden_store("rocks-clean") / "store"
    record, properties = run("decode", store, "--limit", 1).stdout.splitlines()
    assert record == "              0       664  2026-11-21 00:11:23.312Z  acme-orders/2@0  body 356"
    assert properties.split()[:3] == ["CLUSTER=DefaultCluster", "KEYS=order-166", "MSG_REGION=DefaultRegion"]
    heading, first, *_ = run("units", store, "--topic", "acme-orders", "--queue", 2).stdout.splitlines()
    assert heading.split() == ["OFFSET", "PHYSICAL", "OFFSET", "SIZE", "TAGS", "CODE", "STORED", "AT"]
    assert first.split() == ["0", "0", "664", "B", "823177", "2026-11-21", "00:11:23.312Z"]
    queues = [line.split() for line in run("queues", store).stdout.splitlines()]
    assert queues[0] == ["QUEUE", "MIN", "OFFSET", "MAX", "OFFSET"]
    assert ["acme-tx/0", "0", "2"] in queues


def test_queues_are_counted_for_people_and_programs(golden_store: GoldenStore) -> None:
    store = golden_store("double-clean") / "store"
    [summary] = lines("queues", store, "--summary", "--limit", 3)
    listed = lines("queues", store)
    assert sum(each["queues"] for each in summary["kinds"].values()) == len(listed)
    sizes = sorted((each["maxOffset"] - each["minOffset"] for each in listed), reverse=True)
    assert [each["entries"] for each in summary["largest"]] == sizes[:3]
    use = summary["disk"]["file"]
    assert 0 < use["allocatedBytes"] <= use["apparentBytes"]
    text = run("queues", store, "--summary").stdout
    assert "LARGEST QUEUES" in text
    assert re.search(r"^level [0-6] ", text, re.MULTILINE)
