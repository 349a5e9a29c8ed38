"""Send until the broker goes away or the input ends; write the id of every acknowledged message to a file.

One line per id, written after its acknowledgement came: what is in the file must never be lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from typing import TextIO

import grpc

from tests.e2e.load.raw_client import RawClient, Refused, stamped_body

GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Sending:
    def __init__(self, client: RawClient, topic: str, prefix: str, acked: TextIO, seed: int) -> None:
        self._client = client
        self._topic = topic
        self._prefix = prefix
        self._acked = acked
        self._random = random.Random(seed)
        self._number = 0
        self.stopped = asyncio.Event()
        self.problems: list[str] = []

    async def run(self) -> None:
        while not self.stopped.is_set():
            self._number += 1
            message_id = f"{self._prefix}-{self._number}"
            size = self._random.choice((0, 10, 200, 1024, 5000, 60_000))
            try:
                await self._client.send(self._topic, message_id, stamped_body(message_id, size))
            except grpc.aio.AioRpcError as error:
                if error.code() not in GONE:
                    self.problems.append(f"{message_id}: {error.code()} {error.details()}")
                self.stopped.set()
            except Refused as error:
                self.problems.append(f"{message_id}: {error}")
                self.stopped.set()
            else:
                self._acked.write(message_id + "\n")

    async def stop_at_end_of_input(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        self.stopped.set()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--acked", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args()
    with open(options.acked, "a", buffering=1) as acked:
        async with RawClient(options.endpoint) as client:
            sending = Sending(client, options.topic, options.prefix, acked, options.seed)
            watcher = asyncio.create_task(sending.stop_at_end_of_input())
            print(json.dumps({"ready": "sender"}), flush=True)
            await asyncio.gather(*(sending.run() for _ in range(options.concurrency)))
            watcher.cancel()
    print(json.dumps({"problems": sending.problems}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
