"""Write deploy/kubernetes: what the chart makes of each file in deploy/helm/variants. The chart gets the alert rules.

    make manifests

Helm is the program that the variable HELM names; without it it is built from its Go module, into build/tools.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
CHART: Final = HERE / "quarry"
VARIANTS: Final = HERE / "variants"
RENDERED: Final = ROOT / "deploy" / "kubernetes"
TOOLS: Final = ROOT / "build" / "tools"

HELM: Final = "helm.sh/helm/v3/cmd/helm@v3.22.0"
KUBE_VERSION: Final = "1.34.0"
RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULES_OF_CHART: Final = CHART / "alerts.yaml"
OPERATORS: Final = {"cert-manager.io": "cert-manager", "monitoring.coreos.com": "the Prometheus operator"}
"""Who brings the kinds of a group of objects."""


def tool(module: str) -> Path:
    """A program of the Go module `path@version`, built when it is not there yet. Raises CalledProcessError, OSError."""
    package, _, version = module.partition("@")
    folder = TOOLS / version
    program = folder / package.rpartition("/")[2]
    if not program.exists():
        # one package at a time: whoever waits for this has other work on the machine
        environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-p=1"}
        subprocess.run(["nice", "-n", "15", "go", "install", module], env=environment, check=True)
    return program


def helm() -> str:
    return os.environ.get("HELM") or str(tool(HELM))


def rendered(program: str, variant: Path) -> str:
    """What `kubectl apply` is to be given. Raises CalledProcessError."""
    where = ("--namespace", "quarry", "--kube-version", KUBE_VERSION)
    command = [program, "template", "quarry", str(CHART), "--values", str(variant), *where]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = [
        f"# Install {each} before you apply this file: it defines kinds of objects here." for each in operators_of(text)
    ]
    lines = (line.rstrip() for line in text.splitlines())
    head = (f"# Made from deploy/helm/variants/{variant.name} by `make manifests`.", *needed)
    return "\n".join((*head, *lines)) + "\n"


def operators_of(text: str) -> list[str]:
    """The programs that bring the definitions of objects which are not of Kubernetes itself."""
    return [name for group, name in OPERATORS.items() if f"\napiVersion: {group}/" in text]


def all_rendered(program: str) -> Iterator[tuple[str, str]]:
    """Each file of deploy/kubernetes with its text. Raises CalledProcessError."""
    for variant in sorted(VARIANTS.glob("*.yaml")):
        yield variant.name, rendered(program, variant)


def main() -> None:
    # a chart has no file of another folder
    RULES_OF_CHART.write_bytes(RULES.read_bytes())
    for name, text in all_rendered(helm()):
        (RENDERED / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
