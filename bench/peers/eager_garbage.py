"""`python -m bench.peers.eager_garbage INTERVAL_MS ARGUMENT ...` runs `quarry` with garbage collections that often."""

from __future__ import annotations

import sys
from unittest.mock import patch

from quarry_mq.cli.main import main
from quarry_mq.server.process import garbage


def run() -> None:
    interval_s = int(sys.argv.pop(1)) / 1000
    with patch.object(garbage, "INTERVAL_S", interval_s):
        main()


if __name__ == "__main__":
    run()
