"""The steps of the backup job, one after the other: what they bring to an object store is a backup that restores."""

from __future__ import annotations

import os
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
    these = manifests("ingress")
    spec = these.named("CronJob", f"{POD}-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*spec["initContainers"], *spec["containers"])}


@pytest.mark.skipif(RCLONE is None, reason="rclone is not installed (RCLONE names the program)")
def test_what_is_uploaded_restores(tmp_path: Path, bucket: tuple[str, dict[str, str]]) -> None:
    volume, folder = tmp_path / "volume", tmp_path / "volume" / "backups"
    name, secret = bucket
    target = f"store:{name}/quarry/{POD}"

    def rclone(*arguments: str) -> str:
        words = [str(RCLONE), *arguments]
        environment = {"HOME": str(tmp_path), "RCLONE_CONFIG": str(tmp_path / "rclone.conf"), **secret}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def step(which: str) -> None:
        places = {"/backups": str(folder), f"store:backups/quarry/{POD}": target}
        rclone(*(places.get(each, each) for each in steps()[which]["args"]))

    def uploaded() -> list[str]:
        return sorted(rclone("lsf", "--recursive", "--files-only", target).split())

    broker = Broker(volume / "store", logs=tmp_path, environment={"QUARRY_STORE_SEGMENT_SIZE": "1MiB"})
    try:
        broker.start()
        sent = quarry("produce", "orders", "hello", "--endpoint", broker.endpoint)
        assert sent.returncode == 0, sent.stderr
        for _ in range(2):
            words = steps()["backup"]["args"]
            places = {words[words.index("--admin") + 1]: broker.admin, words[-1]: str(folder)}
            made = quarry(*(places.get(each, each) for each in words))
            assert made.returncode == 0, made.stderr
            (backup,) = (each for each in folder.iterdir() if each.is_dir())
            manifest = f"{backup.name}/backup-manifest.json"
            step("upload")
            assert any(each.startswith(backup.name) for each in uploaded())
            assert manifest not in uploaded()  # what is there so far is not taken for a backup
            step("complete")
            assert manifest in uploaded()
            assert "lock" not in uploaded()
            assert [each.name for each in folder.iterdir()] == ["lock"]
    finally:
        broker.close()
    rclone("copy", f"{target}/{backup.name}", str(tmp_path / "fetched" / backup.name))
    restored = quarry("restore", str(tmp_path / "fetched"), str(tmp_path / "restored"))
    assert restored.returncode == 0, restored.stdout + restored.stderr
    verdict = quarry("verify", str(tmp_path / "restored"))
    assert verdict.returncode == 0, verdict.stdout
    assert sha1(b"hello").hexdigest() in quarry("decode", str(tmp_path / "restored"), "--json").stdout
