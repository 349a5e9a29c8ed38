"""Whole brokers in this process that are one cluster."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quarry_mq.server.cluster.membership import MemberState, View, slot_of
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.security.sealer import new_key
from tests.conformance.broker import RunningBroker, running_broker, until

TOPIC, CONSUMERS = "orders", "billing"


class BrokerCluster:
    """Members by name. One that was stopped keeps its store, and may come back."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._patch = patch
        self._key = root / "cluster.key"
        self._key.write_bytes(new_key())
        self._key.chmod(0o600)
        self._stacks: dict[str, AsyncExitStack] = {}
        self.running: dict[str, RunningBroker] = {}
        self.sections: dict[str, dict[str, object]] = {}
        """Settings of members that are started from now on."""
        self.cluster: dict[str, object] = {}
        """More of them, of the section of this name."""

    def __getitem__(self, name: str) -> RunningBroker:
        return self.running[name]

    async def start(self, *names: str) -> None:
        for name in names:
            known = [each.admin for each in self.running.values()]
            stack = self._stacks[name] = AsyncExitStack()
            self.running[name] = await stack.enter_async_context(
                running_broker(
                    self._root / name,
                    self._patch,
                    broker={"name": name},
                    cluster={
                        "members": known or ["127.0.0.1:1"],
                        "key_file": self._key,
                        "exchange_interval_ms": 50,
                        "unreachable_after_ms": 500,
                        **self.cluster,
                    },
                    **self.sections,
                )
            )

    async def stop(self, name: str) -> None:
        del self.running[name]
        await self._stacks.pop(name).aclose()

    async def close(self) -> None:
        for name in tuple(self._stacks):
            await self.stop(name)

    async def settled(self, *names: str) -> None:
        """Wait until all members that run have settled that these are the active ones."""
        await until(lambda: all(self._is_settled(each, names) for each in self.running.values()), f"settled: {names}")

    @staticmethod
    def _is_settled(broker: RunningBroker, names: tuple[str, ...]) -> bool:
        groups = broker.cluster.groups
        return groups.is_settled and groups.active == tuple(sorted(names))

    async def begin(self, *names: str, kind: TopicType = TopicType.FIFO) -> None:
        """Start members that have a topic, and wait until they are the active ones."""
        await self.start(*names)
        await self.make_topic(kind)
        await self.settled(*names)

    async def make_topic(self, kind: TopicType = TopicType.FIFO) -> None:
        """A topic of two queues, and a group that consumes it in order, known everywhere."""
        first = next(iter(self.running.values()))
        first.topic(TOPIC, kind, queues=2)
        first.group(CONSUMERS, fifo=True)
        await until(lambda: all(self._knows(each) for each in self.running.values()), "all know the topic")

    @staticmethod
    def _knows(broker: RunningBroker) -> bool:
        return broker.store.topics.get(TOPIC) is not None and broker.store.groups.get(CONSUMERS) is not None


def view_of(names: list[str]) -> View:
    """Of these, all of them active."""
    return View.of(dict.fromkeys(names, MemberState.ACTIVE))


def groups_of(owner: str, names: list[str], *, count: int = 1, but: tuple[str, list[str]] | None = None) -> list[str]:
    """Message groups that the owner has among the names; `but` another one among others."""
    found: list[str] = []
    for number in range(10_000):
        group = f"g{number}"
        slot = slot_of(group)
        if view_of(names).owners[slot] == owner and (but is None or view_of(but[1]).owners[slot] == but[0]):
            found.append(group)
            if len(found) == count:
                return found
    raise AssertionError("hashes are not spread")


async def soon(seconds: float = 0.3) -> None:
    """For what must not happen: give it the time."""
    await asyncio.sleep(seconds)
