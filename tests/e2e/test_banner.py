"""What `make serve` prints is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from server.banner import banner
from tests.e2e.broker import Broker


def test_the_three_lines_of_python_send_and_receive(broker: Broker, tmp_path: Path) -> None:
    text = banner(listen=broker.endpoint, admin=broker.admin, http=f"http://{broker.http}", store="store")
    lines = [line.strip() for line in text.splitlines() if line.startswith(("  import", "  p =", "  c ="))]
    assert len(lines) == 3
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, "p.shutdown(); c.shutdown()"])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
