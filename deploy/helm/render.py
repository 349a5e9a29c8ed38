"""Write deploy/kubernetes: what the chart makes of each file in deploy/helm/variants.

    make manifests

Helm is the program that the variable HELM names; without it it is built from its Go module, into build/tools.
"""

from __future__ import annotations

import os
import subprocess
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
    lines = (line.rstrip() for line in text.splitlines())
    return f"# Made from deploy/helm/variants/{variant.name} by `make manifests`.\n" + "\n".join(lines) + "\n"


def main() -> None:
    program = helm()
    for variant in sorted(VARIANTS.glob("*.yaml")):
        (RENDERED / variant.name).write_text(rendered(program, variant), encoding="utf-8")


if __name__ == "__main__":
    main()
