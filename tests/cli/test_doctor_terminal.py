"""`quarry doctor` on a real terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.broker import clean_environment, environment_of
from tests.terminal import Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")


def test_a_person_sees_the_fault_and_what_to_do(tmp_path: Path) -> None:
    settings = {
        "store.directory": tmp_path / "store",
        "network.listen": "127.0.0.1:0",
        "network.admin": "127.0.0.1:0",
        "network.http": "127.0.0.1:0",
        "security.key_file": tmp_path / "keys",
        "expiry.refuse_percent": 100,
    }
    wanted = environment_of(settings)
    environment = {name: text for name, text in clean_environment().items() if name in ("PATH", "HOME")} | wanted
    with Terminal(tmp_path / "tmux", columns=160) as terminal:
        terminal.run([sys.executable, "-m", "quarry_mq.cli.main", "doctor"], environment)
        lines = terminal.until(lambda lines: any(line.startswith("status=") for line in lines), "its end")
    [at] = [number for number, line in enumerate(lines) if line.startswith("FAULT")]
    assert "secrets" in lines[at]
    assert lines[at + 1].strip().startswith("-> set the right path")
    assert "status=1" in lines
    assert any(line.startswith("ok ") and "versions" in line for line in lines)
