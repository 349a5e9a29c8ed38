"""Programs of the cluster, built once from Go modules of named versions, and what the machine has to have for all else.

The cache is `QUARRY_KUBERNETES_CACHE`, by default `~/.cache/quarry-kubernetes`. The programs lie in its folder `bin`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from deploy.helm.render import HELM
from tests.e2e.languages import locked

GO: Final = Path(__file__).parent / "go"
KUBERNETES: Final = "v1.34.4"
KUBE_ROUTER: Final = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router@v2.1.0"
BUILD_TIMEOUT_S: Final = 5_400

DEBIAN: Final[Mapping[str, str]] = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "etcd": "etcd-server",
    "debootstrap": "debootstrap",
    "ipset": "ipset",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "socat": "socat",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Programs that are called, to the packages of Debian that have them."""


class Recipe(NamedTuple):
    """`module` is a folder with a Go module, or the name of somebody else's program as `path@version`."""

    module: str
    variables: tuple[str, ...] = ()

    @property
    def folder(self) -> Path | None:
        return None if "@" in self.module else GO / self.module

    @property
    def text(self) -> str:
        """Say what the program is built from: another text means another program."""
        if self.folder is None:
            return self.module
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        return " ".join([self.module, digest[:16], *self.variables])


VERSION: Final = tuple(
    f"k8s.io/component-base/version.{name}={value}"
    for name, value in (("gitVersion", KUBERNETES), ("gitMajor", "1"), ("gitMinor", KUBERNETES.split(".")[1]))
)
"""Variables of the linker. A program without them says that it is version 0.0.0, and no chart is installed."""

RECIPES: Final[Mapping[str, Recipe]] = {
    "kube": Recipe("kube", VERSION),
    "coredns": Recipe("coredns"),
    "helm": Recipe(HELM),
    "kube-router": Recipe(KUBE_ROUTER),
    "flow": Recipe("flow"),
}


def cache() -> Path:
    return Path(os.environ.get("QUARRY_KUBERNETES_CACHE") or Path.home() / ".cache" / "quarry-kubernetes")


def program(name: str) -> Path:
    """Return the path of a program. What it is built from is in its name: trees of the project may differ in it."""
    return cache() / "bin" / f"{name}-{hashlib.sha256(RECIPES[name].text.encode()).hexdigest()[:8]}"


def why_not() -> str:
    """Return the reason why no cluster can be stood up here; empty when one can."""
    if os.geteuid() != 0:
        return "a cluster needs root"
    missing = sorted(package for name, package in DEBIAN.items() if shutil.which(name) is None)
    if missing:
        return f"not installed: apt-get install {' '.join(missing)}"
    if not _unbuilt():
        return ""
    return "" if shutil.which("go") else f"Go is not installed, and builds {', '.join(_unbuilt())}"


def _unbuilt() -> list[str]:
    return [name for name in RECIPES if not program(name).exists()]


def build_all() -> None:
    """Build what is not there yet: some tens of minutes the first time. Raises CalledProcessError."""
    (cache() / "bin").mkdir(parents=True, exist_ok=True)
    with locked(cache() / "programs.lock"):
        for name in _unbuilt():
            _build(name, RECIPES[name])


def _build(name: str, recipe: Recipe) -> None:
    flags = " ".join(["-s", "-w", *(f"-X {each}" for each in recipe.variables)])
    options = ["-trimpath", "-buildvcs=false", "-ldflags", flags]
    built = cache() / "bin" / name
    command = ["nice", "-n", "10", "go"]
    if recipe.folder is None:
        command += ["install", *options, recipe.module]
    else:
        command += ["build", *options, "-o", str(built), "."]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(built.parent)}
    subprocess.run(
        command,
        cwd=recipe.folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    program(name).unlink(missing_ok=True)
    os.link(built, program(name))
