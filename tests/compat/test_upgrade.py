"""Stores of every earlier layout of Quarry: they open, serve what they hold, and stay in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.maintenance.key_index import Move
from quarry_mq.store.layout.paths import StorePaths
from tests.cli.offline_runner import run
from tests.conformance.broker import RunningBroker, running_broker
from tests.conformance.broker import run as run_test
from tests.conformance.client import Client
from tests.golden import quarry_stores as stores
from tests.golden.quarry_stores import LAYOUTS, Contents

LIGHT_QUEUES: Final = tuple(stores.LIGHT_QUEUES.split(","))
DEADLINE_S: Final = 20.0


def settings_of(layout: str) -> dict[str, dict[str, object]]:
    """As its broker had them."""
    sections: dict[str, dict[str, object]] = {}
    for variable, value in LAYOUTS[layout].settings.items():
        section = next(name for name in ("consume_queue", "index") if variable.startswith(f"QUARRY_{name.upper()}_"))
        key = variable.removeprefix(f"QUARRY_{section.upper()}_").lower()
        sections.setdefault(section, {})[key] = value
    return sections


async def all_of(client: Client, group: str, topic: str, wanted: int) -> list[definition.Message]:
    """So many messages, and one receive more to see that nothing follows."""
    messages: list[definition.Message] = []
    deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
    while len(messages) < wanted:
        assert asyncio.get_running_loop().time() < deadline_s, f"{len(messages)} of {wanted} of {topic} for {group}"
        received = await client.receive(group, topic, polling_s=1)
        assert received.code in {definition.OK, definition.MESSAGE_NOT_FOUND}, received.status
        messages += received.messages
    return messages + (await client.receive(group, topic)).messages


def attempts(messages: list[definition.Message]) -> dict[str, int]:
    return {each.system_properties.message_id: each.system_properties.delivery_attempt for each in messages}


async def every_message_is_there(client: Client, contents: Contents) -> None:
    for topic in (stores.NORMAL, stores.LIGHT):
        found = await all_of(client, "auditors", topic, len(contents.topics[topic]))
        bodies = {each.system_properties.message_id: each.body.decode() for each in found}
        assert bodies == {sent: contents.bodies[sent] for sent in contents.topics[topic]}
        assert all(len(each.system_properties.keys) == 1 for each in found)


async def the_group_goes_on_where_it_was(client: Client, contents: Contents) -> None:
    left = await all_of(client, stores.GROUP, stores.NORMAL, len(contents.in_flight) + len(contents.waiting))
    assert attempts(left) == dict.fromkeys(contents.in_flight, 2) | dict.fromkeys(contents.waiting, 1)


async def other_types_go_on(client: Client, contents: Contents) -> None:
    in_order = []
    for _ in contents.fifo_left:
        received = await client.receive(stores.FIFO_GROUP, stores.FIFO, count=1)
        in_order += received.ids
        await client.ack(stores.FIFO_GROUP, stores.FIFO, *received.handles)
    assert in_order == contents.fifo_left
    delayed = await all_of(client, "auditors", stores.DELAYED, len(contents.delayed))
    assert list(attempts(delayed)) == contents.delayed
    for message_id, transaction_id in contents.transactions.items():
        answer = await client.call("EndTransaction", stores.commit_of(stores.TRANSACTIONS, message_id, transaction_id))
        assert answer.status.code == definition.OK, answer.status
    paid = await all_of(client, "auditors", stores.TRANSACTIONS, len(contents.transactions))
    assert list(attempts(paid)) == list(contents.transactions)


async def messages_are_found_by_their_keys(broker: RunningBroker) -> None:
    """Twice: files that turn out to be damaged are made anew from the log."""
    index = broker.broker._maintenance.key_index
    for is_repaired in (False, True):
        for number in range(16):
            key = f"{stores.NORMAL}-{number}"
            found = await index.find(stores.NORMAL, key, begin_ms=0, end_ms=(1 << 63) - 1, limit=10)
            bodies = [bytes(each.body).decode() for each in found.messages]
            assert bodies == [f"{stores.NORMAL} {number}"] or (found.unread and not is_repaired)
        await index.move_all(Move.REPAIR)


def verify(store: Path, *, index_is_whole: bool) -> None:
    done = run("verify", store)
    if index_is_whole:
        assert done.exit_code == 0, done.output
    else:
        assert done.exit_code == 1
        assert all("key_index/compacted" in line for line in done.stdout.splitlines() if "compacted" in line)


FAST: Final = {"quarry-1-first", "quarry-7-checksums"}
"""The others take too long for the tests that are run all the time."""


@pytest.mark.parametrize(
    "layout", [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in LAYOUTS]
)
def test_a_store_of_an_earlier_layout_is_served_and_agrees_with_itself(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = stores.unpack(layout, tmp_path)
    assert StorePaths(tmp_path / "store").abort.exists() == LAYOUTS[layout].ends_by_kill

    async def test() -> None:
        async with running_broker(tmp_path, monkeypatch, **settings_of(layout)) as broker:
            async with Client(broker.endpoint) as client:
                await every_message_is_there(client, contents)
                await the_group_goes_on_where_it_was(client, contents)
                if LAYOUTS[layout].has_every_type:
                    await other_types_go_on(client, contents)
            light_queues_are_assigned_without_gaps(broker, contents)
            if LAYOUTS[layout].settings == stores.INDEXED:
                await messages_are_found_by_their_keys(broker)

    def light_queues_are_assigned_without_gaps(broker: RunningBroker, contents: Contents) -> None:
        for name in LIGHT_QUEUES:
            [queue] = broker.store.messages.iterate_queues(name)
            entries = broker.store.messages.entries(queue, broker.store.messages.bounds(queue).minimum, 100)
            assert [each.queue_offset for each in entries] == list(range(len(contents.topics[stores.LIGHT])))

    verify(tmp_path / "store", index_is_whole=not LAYOUTS[layout].has_old_index)
    run_test(test())
    verify(tmp_path / "store", index_is_whole=True)
