"""The steps of the backup job, one after the other: what they bring to an object store is a backup that restores."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.manifests import Object, manifests
from tests.e2e.broker import Broker, quarry
from tests.object_store.server import REGION, S3Server, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
RCLONE: Final = os.environ.get("RCLONE") or shutil.which("rclone")
POD: Final = "quarry-0"


@pytest.fixture
def bucket() -> Iterator[tuple[str, dict[str, str]]]:
    """Its name, and what the Secret holds: the configuration of the remote `store`."""
    with serving() as server:
        yield server.new_bucket(), _secret(server)


def _secret(server: S3Server) -> dict[str, str]:
    options = {
        "type": "s3",
        "provider": "Other",
        "endpoint": f"http://127.0.0.1:{server.port}",
        "region": REGION,
        "access_key_id": "someone",
        "secret_access_key": "secret",
    }
    return {f"RCLONE_CONFIG_STORE_{name.upper()}": value for name, value in options.items()}


def steps() -> dict[str, Object]:
    """Return the containers of the backup of a pod and of its restore, by name."""
    jobs = (manifests("ingress").named("CronJob", f"{POD}-{name}")["spec"] for name in ("backup", "restore"))
    specs = (each["jobTemplate"]["spec"]["template"]["spec"] for each in jobs)
    return {each["name"]: each for spec in specs for each in (*spec["initContainers"], *spec["containers"])}


class Pods:
    """The pods of the backup and of the restore, whose volume is a folder and whose object store is a bucket."""

    def __init__(self, directory: Path, bucket: str, secret: dict[str, str]) -> None:
        self.volume = directory / "volume"
        self.backups, self.fetched, self.store = (self.volume / each for each in ("backups", "restore", "store"))
        self.target = f"store:{bucket}/quarry/{POD}"
        self._environment = {
            "HOME": str(directory),
            "PATH": f"{Path(str(RCLONE)).parent}:{os.environ['PATH']}",
            "RCLONE_CONFIG": str(directory / "rclone.conf"),
            **secret,
        }
        self._places = {
            "/backups": self.backups,
            "/restore": self.fetched,
            "/var/lib/quarry/restore": self.fetched,
            "/var/lib/quarry/store": self.store,
            f"store:backups/quarry/{POD}": self.target,
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self._environment, capture_output=True, text=True, timeout=120, check=False)

    def rclone(self, *arguments: str) -> str:
        done = self.run(str(RCLONE), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def arguments(self, step: str) -> list[str]:
        return [str(self._places.get(each, each)) for each in steps()[step]["args"]]

    def step(self, which: str) -> None:
        self.rclone(*self.arguments(which))

    def fetch(self, name: str) -> subprocess.CompletedProcess[str]:
        *words, script, zero, _ = steps()["fetch"]["command"]
        script = re.sub(r" /restore$", f" {self.fetched}", script, flags=re.MULTILINE)
        self._environment["BACKUP"] = name
        return self.run(*words, script, zero, self.target)

    def uploaded(self) -> list[str]:
        return sorted(self.rclone("lsf", "--recursive", "--files-only", self.target).split())


@pytest.mark.skipif(RCLONE is None, reason="rclone is not installed (RCLONE names the program)")
def test_what_is_uploaded_restores(tmp_path: Path, bucket: tuple[str, dict[str, str]]) -> None:
    pods = Pods(tmp_path, *bucket)
    broker = Broker(pods.store, logs=tmp_path, environment={"QUARRY_STORE_SEGMENT_SIZE": "1MiB"})
    try:
        broker.start()
        sent = quarry("produce", "orders", "hello", "--endpoint", broker.endpoint)
        assert sent.returncode == 0, sent.stderr
        for _ in range(2):
            words = steps()["backup"]["args"]
            places = {words[words.index("--admin") + 1]: broker.admin, words[-1]: str(pods.backups)}
            made = quarry(*(places.get(each, each) for each in words))
            assert made.returncode == 0, made.stderr
            (backup,) = (each for each in pods.backups.iterdir() if each.is_dir())
            manifest = f"{backup.name}/backup-manifest.json"
            pods.step("upload")
            assert any(each.startswith(backup.name) for each in pods.uploaded())
            assert manifest not in pods.uploaded()  # what is there so far is not taken for a backup
            pods.step("complete")
            assert manifest in pods.uploaded()
            assert "lock" not in pods.uploaded()
            assert [each.name for each in pods.backups.iterdir()] == ["lock"]
    finally:
        broker.close()
    first, newest = sorted(pods.rclone("lsf", "--dirs-only", pods.target).split())
    for name, expected in ((first.rstrip("/"), first), ("", newest)):
        fetched = pods.fetch(name)
        assert fetched.returncode == 0, fetched.stderr
        shown = json.loads((pods.fetched / "backup-manifest.json").read_text())
        assert shown == json.loads(pods.rclone("cat", f"{pods.target}/{expected}backup-manifest.json"))
    restored = quarry(*pods.arguments("restore"))
    assert restored.returncode == 0, restored.stdout + restored.stderr
    pods.step("clear")
    assert not any(pods.fetched.iterdir())
    assert len([each for each in pods.volume.iterdir() if each.name.startswith("store.before-")]) == 1
    verdict = quarry("verify", str(pods.store))
    assert verdict.returncode == 0, verdict.stdout
    assert sha1(b"hello").hexdigest() in quarry("decode", str(pods.store), "--json").stdout
    pods.rclone("purge", pods.target)
    nothing = pods.fetch("")
    assert nothing.returncode == 1
    assert nothing.stderr.endswith(f"{pods.target}: there is no backup\n")
