"""`python -m bench.peers.behind SECONDS ARGUMENT ...` runs `quarry` with a wall clock that is SECONDS slow.

Messages that it stores are that old at once.
"""

from __future__ import annotations

import sys
import time
from typing import Final
from unittest.mock import patch

from quarry_mq.cli.main import main
from quarry_mq.protocol.clock import SystemClock

_MS: Final = 1_000_000


def run() -> None:
    slow_ms = int(sys.argv.pop(1)) * 1000
    with patch.object(SystemClock, "wall_ms", lambda _: time.time_ns() // _MS - slow_ms):
        main()


if __name__ == "__main__":
    run()
