"""Images for the cluster, built by buildah without a daemon and without a registry.

| image | what it is |
|---|---|
| `quarry:test` | the project's own Dockerfile, with a Debian and the machine's Rust as its base images |
| `quarry:before` | the same of the commit before |
| `tools:test` | the official Python client, a proxy, an object store: what tests need beside brokers |
| `rclone:test` | the same files, with the program that uploads backups as the entry point |
| `localhost/pause:1` | what holds a pod's namespaces |
| `quarry-spark:test` | Spark with Quarry, by the Dockerfile in deploy/spark; only its own tests build it |

Layers are kept in the cache, so a change of the project's source builds the last layers only.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.deploy.manifests import ROOT
from tests.kubernetes.programs import cache

PAUSE: Final = "localhost/pause:1"
QUARRY: Final = "localhost/quarry:test"
BEFORE: Final = "localhost/quarry:before"
TOOLS: Final = "localhost/tools:test"
RCLONE: Final = "localhost/rclone:test"
SPARK: Final = "localhost/quarry-spark:test"

DOCKERFILE: Final = ROOT / "deploy" / "image" / "Dockerfile"
SPARK_DOCKERFILE: Final = ROOT / "deploy" / "spark" / "Dockerfile"
PYTHON_BASE: Final = "localhost/base-python:1"
RUST_BASE: Final = "localhost/base-rust:1"
DEBIAN: Final = "bookworm"
PACKAGES: Final = ("ca-certificates", "python-is-python3", "python3", "python3-venv")
UNUSED: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/cache/apt",
    "var/lib/apt/lists",
)
TIMEOUT_S: Final = 2_400

REFERENCE: Final = "org.opencontainers.image.ref.name"
NAME_IN_CONTAINERD: Final = "io.containerd.image.name"

MACHINE_FILES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""Files that say how this machine reaches package indexes. Builds see the files, images do not have them."""


def buildah(*words: str | Path, timeout_s: float = TIMEOUT_S) -> str:
    """Return what buildah printed. Raises CalledProcessError."""
    storage = ("--root", cache() / "containers", "--runroot", cache() / "containers-run")
    done = subprocess.run(
        ["buildah", *storage, *words], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT
    )
    if done.returncode:
        raise RuntimeError(f"buildah {words} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout.strip()


def digest_of(image: str) -> str:
    """Return the digest of an image's configuration; empty if there is none of this name."""
    lines = buildah("images", "--format", "{{.Name}}:{{.Tag}} {{.ID}}", "--no-trunc").splitlines()
    return dict(line.split() for line in lines).get(image, "")


def build_all() -> list[str]:
    """Build whatever is missing or older than its source. Return the names of the images that pods use."""
    _base_of_python()
    _base_of_rust()
    _pause()
    _quarry(ROOT, QUARRY)
    with commit_before() as source:
        _quarry(source, BEFORE)
    _tools()
    return [PAUSE, QUARRY, BEFORE, TOOLS, RCLONE]


@contextmanager
def commit_before() -> Iterator[Path]:
    """Yield a folder with the project as the commit before the last one has it."""
    with TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", "HEAD~1"], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            opened.extractall(folder, filter="data")
        yield Path(folder)


def source_digest(source: Path, dockerfile: Path) -> str:
    """Name the files that a build of the image sees: another content, another name."""
    total = hashlib.sha256(dockerfile.read_bytes())
    sent = [line[1:] for line in _ignored(dockerfile).read_text().splitlines() if line.startswith("!")]
    for top in sent:
        for path in sorted([source / top, *(source / top).rglob("*")]):
            if path.is_file() and not {"__pycache__", "target"} & set(path.parts):
                total.update(str(path.relative_to(source)).encode() + path.read_bytes())
    return total.hexdigest()[:16]


def _ignored(dockerfile: Path) -> Path:
    return dockerfile.with_name("Dockerfile.dockerignore")


def _quarry(source: Path, image: str) -> None:
    """Build the image of a version of the project by the Dockerfile of this one, unless it has been built before."""
    _build(source, image, DOCKERFILE, PYTHON_IMAGE=PYTHON_BASE, RUST_IMAGE=RUST_BASE)


def build_spark() -> str:
    """Build the image of Spark, if it is missing or older than its source. Return its digest."""
    _base_of_python()
    _build(ROOT, SPARK, SPARK_DOCKERFILE, PYTHON_IMAGE=PYTHON_BASE)
    return digest_of(SPARK)


def _build(source: Path, image: str, dockerfile: Path, **arguments: str) -> None:
    known = f"{image.rpartition(':')[0]}-source:{source_digest(source, dockerfile)}"
    if digest_of(known):
        buildah("tag", known, image)
        return
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    buildah(
        *("build", "--layers", "--isolation", "chroot", "--pull-never", *_machine_files(), *given),
        *("--ignorefile", _ignored(dockerfile), "--file", dockerfile, "--tag", image, "--tag", known, source),
    )


def _machine_files() -> list[str]:
    return [word for path in MACHINE_FILES if Path(path).exists() for word in ("--volume", f"{path}:{path}:ro")]


def _of_folder(image: str, folder: Path, *settings: str) -> None:
    """Make an image of one layer from the files of a folder."""
    container = buildah("from", "scratch")
    try:
        buildah("copy", "--quiet", container, folder, "/")
        if settings:
            buildah("config", *settings, container)
        buildah("commit", "--quiet", container, image)
    finally:
        buildah("rm", container)


def _base_of_python() -> None:
    if digest_of(PYTHON_BASE):
        return
    folder = cache() / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    include = f"--include={','.join(PACKAGES)}"
    command = ["debootstrap", "--variant=minbase", include, DEBIAN, str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
    for each in UNUSED:
        shutil.rmtree(folder / each, ignore_errors=True)
    _of_folder(PYTHON_BASE, folder)
    shutil.rmtree(folder)


def _base_of_rust() -> None:
    """Put the machine's own toolchain beside the base of Python."""
    if digest_of(RUST_BASE):
        return
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    container = buildah("from", "--pull-never", PYTHON_BASE)
    try:
        for part in ("bin", "lib"):
            buildah("copy", "--quiet", container, f"{sysroot}/{part}", f"/usr/local/{part}")
        buildah("config", "--env", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        buildah("commit", "--quiet", container, RUST_BASE)
    finally:
        buildah("rm", container)


def _pause() -> None:
    """Make the image that each pod begins with: a process that does nothing."""
    if digest_of(PAUSE):
        return
    folder = cache() / "pause"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy2(shutil.which("busybox") or "", folder / "busybox")
    _of_folder(PAUSE, folder, "--entrypoint", '["/busybox", "sleep", "2147483647"]')
    shutil.rmtree(folder)


def _tools() -> None:
    names = ("rocketmq-python-client", "moto", "flask", "flask-cors")
    packages = [f"{name}=={version(name)}" for name in names]
    script = f"""
FROM {PYTHON_BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends haproxy rclone procps && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/tools
RUN /opt/tools/bin/pip install --no-cache-dir {" ".join(packages)} 'moto[s3]'
ENV PATH=/opt/tools/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["sleep", "infinity"]
"""
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    if digest_of(f"localhost/tools-recipe:{name}"):
        return
    file = cache() / "tools.Dockerfile"
    file.write_text(script)
    empty = cache() / "empty"
    empty.mkdir(exist_ok=True)
    options = ("--layers", "--isolation", "chroot", "--pull-never", *_machine_files())
    buildah("build", *options, "--file", file, "--tag", TOOLS, "--tag", f"localhost/tools-recipe:{name}", empty)
    container = buildah("from", "--pull-never", TOOLS)
    buildah("config", "--entrypoint", '["rclone"]', "--cmd", "version", container)
    buildah("commit", "--quiet", container, RCLONE)
    buildah("rm", container)


def of_this_tree() -> Path:
    """Return the part of the cache that belongs to this tree of the project alone: others have other images."""
    return cache() / "trees" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]


def layout(images: Sequence[str]) -> Path:
    """Write images into one folder, as a container runtime imports them (OCI image layout). Layers are shared."""
    folder = of_this_tree() / "layout"
    folder.mkdir(parents=True, exist_ok=True)
    digests = json.dumps({image: digest_of(image) for image in images})
    said = folder / "digests.json"
    if said.exists() and said.read_text() == digests:
        return folder
    said.unlink(missing_ok=True)
    for image in images:
        buildah("push", "--quiet", "--disable-compression", image, f"oci:{folder}:{image}")
    index = json.loads((folder / "index.json").read_text())
    named = {each.get("annotations", {}).get(REFERENCE): each for each in index["manifests"]}
    index["manifests"] = [named[image] for image in images]
    for each in index["manifests"]:
        each["annotations"][NAME_IN_CONTAINERD] = each["annotations"][REFERENCE]
    (folder / "index.json").write_text(json.dumps(index))
    _remove_unused(folder, index)
    said.write_text(digests)
    return folder


def _remove_unused(folder: Path, index: dict[str, Any]) -> None:
    blobs = folder / "blobs" / "sha256"
    used = set()
    for each in index["manifests"]:
        manifest = json.loads((blobs / each["digest"].removeprefix("sha256:")).read_text())
        used |= {part["digest"] for part in (each, manifest["config"], *manifest["layers"])}
    for path in blobs.iterdir():
        if f"sha256:{path.name}" not in used:
            path.unlink()
