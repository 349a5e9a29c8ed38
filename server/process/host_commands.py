"""Commands for the machine that runs the broker: for systemd, Kubernetes, another container, or a terminal.

A command for another kind of machine is worse than none: a container has no `systemctl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Final, NamedTuple

CONTAINER: Final = "container"
"""The environment variable that container managers set, and our image."""
KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
"""The environment variable that Kubernetes sets in every container."""
DESCRIPTORS: Final = 1_048_576


class HostCommands(NamedTuple):
    """The commands with which a person restarts the broker, reads its log, and gives it more file descriptors."""

    restart: str
    log: str
    descriptors: str


def host_commands(environment: Mapping[str, str]) -> HostCommands:
    """Return the commands for a broker with this environment."""
    host = quote(environment.get("HOSTNAME") or "NAME")
    if KUBERNETES in environment:
        return HostCommands(f"kubectl delete pod {host}", f"kubectl logs {host}", f"kubectl describe pod {host}")
    if environment.get(CONTAINER):
        more = f"docker run --ulimit nofile={DESCRIPTORS}:{DESCRIPTORS} IMAGE"
        return HostCommands(f"docker restart {host}", f"docker logs {host}", more)
    if "INVOCATION_ID" in environment:  # systemd sets it for all that it starts
        return HostCommands("systemctl restart quarry", "journalctl -u quarry -p err", "systemctl edit quarry")
    return HostCommands("quarry serve", "quarry doctor", f"ulimit -n {DESCRIPTORS}")
