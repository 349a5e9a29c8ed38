"""The broker names commands that fit the machine that runs it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from quarry_mq.server.process.host_commands import CONTAINER, HostCommands, host_commands
from tests.deploy.manifests import ROOT

MORE = "docker run --ulimit nofile=1048576:1048576 IMAGE"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "quarry-0", "container": "oci"},
            HostCommands("kubectl delete pod quarry-0", "kubectl logs quarry-0", "kubectl describe pod quarry-0"),
        ),
        (
            {"HOSTNAME": "4f5e", "container": "oci"},
            HostCommands("docker restart 4f5e", "docker logs 4f5e", MORE),
        ),
        ({"container": "podman"}, HostCommands("docker restart NAME", "docker logs NAME", MORE)),
        (
            {"INVOCATION_ID": "x"},
            HostCommands("systemctl restart quarry", "journalctl -u quarry -p err", "systemctl edit quarry"),
        ),
        ({}, HostCommands("quarry serve", "quarry doctor", "ulimit -n 1048576")),
    ],
    ids=["Kubernetes", "our image", "a container without a name", "systemd", "a terminal"],
)
def test_commands_fit_the_machine(environment: Mapping[str, str], expected: HostCommands) -> None:
    assert host_commands(environment) == expected


def test_our_image_says_that_it_is_a_container() -> None:
    dockerfile = (ROOT / "deploy" / "image" / "Dockerfile").read_text(encoding="utf-8")
    assert f"    {CONTAINER}=oci" in dockerfile
