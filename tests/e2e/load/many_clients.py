"""Many clients on one broker, each with a connection of its own: some wait, some work. Prints one JSON line.

The waiting ones hold long polls on topics where nothing happens. The working ones each send a message, receive
what is there and acknowledge it, round after round, on shared topics and in shared groups.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack

import grpc

from tests.e2e.load.raw_client import Damaged, RawClient, Refused, stamped_body

SHARED_BY = 20
POLLING_S = 20.0


class Stats:
    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.sent: set[str] = set()
        self.received: Counter[str] = Counter()
        self.empty_polls = 0
        self.waiting = 0
        self.stopping = asyncio.Event()


async def wait_in_vain(client: RawClient, number: int, stats: Stats) -> None:
    """Until cancelled."""
    topic = f"idle-{number // SHARED_BY}"
    await client.subscribe("watchers", topic)
    stats.waiting += 1
    while True:
        received = await client.receive("watchers", topic, polling_s=POLLING_S)
        stats.empty_polls += not received


async def work(client: RawClient, number: int, stats: Stats) -> None:
    topic = f"busy-{number // SHARED_BY}"
    await client.subscribe("workers", topic)
    rounds = 0
    while not stats.stopping.is_set():
        rounds += 1
        message_id = f"client-{number}-{rounds}"
        await client.send(topic, message_id, stamped_body(message_id, 200))
        stats.sent.add(message_id)
        await take(client, topic, stats, polling_s=1.0)


async def take(client: RawClient, topic: str, stats: Stats, *, polling_s: float) -> bool:
    received = await client.receive("workers", topic, polling_s=polling_s)
    if received:
        stats.received.update(each.message_id for each in received)
        await client.ack("workers", topic, received)
    return bool(received)


async def take_rest(client: RawClient, number: int, stats: Stats) -> None:
    while await take(client, f"busy-{number // SHARED_BY}", stats, polling_s=0.3):
        pass


async def guarded(what: str, task: asyncio.Task[None], stats: Stats) -> None:
    try:
        await task
    except asyncio.CancelledError:
        return
    except grpc.aio.AioRpcError as error:
        stats.errors[f"{what}: {error.code()} {error.details()}"] += 1
    except (Refused, Damaged) as error:
        stats.errors[f"{what}: {error}"] += 1


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--idle", type=int, required=True)
    parser.add_argument("--busy", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    stats = Stats()
    async with AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(RawClient(options.endpoint)) for _ in range(options.idle)]
        busy = [await stack.enter_async_context(RawClient(options.endpoint)) for _ in range(options.busy)]
        waiting = [asyncio.create_task(wait_in_vain(each, i, stats)) for i, each in enumerate(idle)]
        guards = [asyncio.create_task(guarded("idle", each, stats)) for each in waiting]
        while stats.waiting < options.idle and not stats.errors:
            await asyncio.sleep(0.1)
        print(json.dumps({"ready": "idle clients wait"}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        working = [asyncio.create_task(work(each, i, stats)) for i, each in enumerate(busy)]
        guards += [asyncio.create_task(guarded("busy", each, stats)) for each in working]
        await asyncio.sleep(options.seconds)
        stats.stopping.set()
        await asyncio.wait(working)
        firsts = range(0, options.busy, SHARED_BY)
        await asyncio.gather(*(take_rest(busy[first], first, stats) for first in firsts))
        still_waiting = sum(not each.done() for each in waiting)
        print(
            json.dumps(
                {
                    "errors": stats.errors,
                    "still_waiting": still_waiting,
                    "empty_polls": stats.empty_polls,
                    "sent": len(stats.sent),
                    "lost": len(stats.sent - stats.received.keys()),
                    "unknown": len(stats.received.keys() - stats.sent),
                    "doubled": sum(count > 1 for count in stats.received.values()),
                }
            ),
            flush=True,
        )
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*guards)


if __name__ == "__main__":
    asyncio.run(main())
