"""Look after a cluster that a run of the tests has kept: `python -m tests.kubernetes end|kubectl|helm NAME ...`."""

from __future__ import annotations

import subprocess
import sys

from tests.kubernetes import programs
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.namespaces import Namespaces


def main(words: list[str]) -> int:
    what, name, *rest = words
    within = Namespaces.found(programs.cache() / "run" / name)
    if within is None:
        print(f"no cluster is kept under the name {name}", file=sys.stderr)
        return 1
    cluster = Cluster(within)
    if what == "end":
        cluster.end()
        return 0
    program = [programs.program("helm")] if what == "helm" else [programs.program("kube"), "kubectl"]
    command = within.command([*program, f"--kubeconfig={cluster.access}", *rest])
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
