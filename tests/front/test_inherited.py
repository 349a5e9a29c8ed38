"""Listening sockets that are passed to a process, as systemd passes them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

PASS_SOCKET = str(Path(__file__).parents[1] / "e2e" / "pass_socket.py")
SHOW = """
import sys
from quarry_mq.server.front.inherited import close_inherited, inherited_sockets
for host, port in (each.rsplit(":", 1) for each in sys.argv[1:]):
    if host == "close":
        close_inherited()
        continue
    found = inherited_sockets(host, int(port))
    print(",".join("%s:%d" % each.getsockname()[:2] for each in found) or "none")
    for each in found:
        each.close()
"""


def shown(passed: socket.socket, *addresses: str) -> list[str]:
    """Return the findings at these addresses of a process that gets the socket."""
    command: list[str] = [sys.executable, PASS_SOCKET, str(passed.fileno()), sys.executable, "-c", SHOW, *addresses]
    done = subprocess.run(command, pass_fds=[passed.fileno()], capture_output=True, text=True, timeout=30, check=True)
    found: list[str] = done.stdout.split()
    return found


def test_a_passed_socket_is_found_by_its_address_as_often_as_it_is_asked_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        here = f"127.0.0.1:{port}"
        assert shown(listening, here, f"localhost:{port}", "127.0.0.1:1", here) == [here, here, "none", here]


def test_what_was_passed_is_open_until_it_is_closed() -> None:
    """Copies alone would leave a port open at which nobody accepts any more, until the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = f"127.0.0.1:{listening.getsockname()[1]}"
        assert shown(listening, here, "close:1", here) == [here, "none"]


def test_a_socket_that_does_not_listen_is_left_alone() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert shown(bound, f"127.0.0.1:{bound.getsockname()[1]}") == ["none"]


def test_what_was_passed_to_another_process_is_not_taken() -> None:
    """The environment is inherited by children, the meaning is not."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = f"127.0.0.1:{listening.getsockname()[1]}"
        inner = [
            sys.executable,
            "-c",
            f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}, {here!r}])",
        ]
        command = [sys.executable, PASS_SOCKET, str(listening.fileno()), *inner]
        done = subprocess.run(
            command, pass_fds=[listening.fileno()], capture_output=True, text=True, timeout=30, check=True
        )
        assert done.stdout.split() == ["none"]
