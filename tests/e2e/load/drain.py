"""Receive and acknowledge until nothing more comes; print the ids of all that came as one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json

from tests.e2e.load.raw_client import RawClient

EMPTY_POLL_S = 0.3


async def drain(client: RawClient, group: str, topic: str) -> list[str]:
    found = []
    while received := await client.receive(group, topic, polling_s=EMPTY_POLL_S):
        found += [each.message_id for each in received]
        await client.ack(group, topic, received)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    options = parser.parse_args()
    async with RawClient(options.endpoint) as client:
        await client.subscribe(options.group, options.topic)
        print(json.dumps({"ready": "drain"}), flush=True)
        print(json.dumps({"found": await drain(client, options.group, options.topic)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
