"""Run the supervisor: `quarry serve --shards N` becomes `python -m quarry_mq.server.shards LAUNCH`."""

from __future__ import annotations

import asyncio
import sys

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.observability.logs import configure_logs
from quarry_mq.server.shards.process import Launch
from quarry_mq.server.shards.supervisor import Output, ShardSupervisor


def main() -> int:
    launch = Launch.from_text(sys.argv[1])
    configure_logs(launch.log_format, launch.log_level)
    return asyncio.run(_supervise(launch))


async def _supervise(launch: Launch) -> int:
    return await ShardSupervisor(launch, SystemClock(), output=Output(sys.stdout), errors=Output(sys.stderr)).run()


if __name__ == "__main__":
    sys.exit(main())
