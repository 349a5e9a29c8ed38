"""A pod prepares its volume before its broker starts: `deploy/image/prepare.py`, run as a program."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.deploy.manifests import DEPLOY

PROGRAM = DEPLOY / "image" / "prepare.py"
STRANGER = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: object, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*under, sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def mounting(command: str) -> tuple[str, ...]:
    """Runs what follows where this was mounted before; nobody else sees the mount."""
    return ("unshare", "--mount", "sh", "-c", f'{command} && exec "$@"', "sh")


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("nothing is started: ")
    assert not done.stdout
    return line


def test_mounts_are_read_as_the_kernel_tells_them(prepare: ModuleType) -> None:
    table = (
        "20 1 0:45 / / ro,relatime - overlay overlay ro,lowerdir=/layers\n"
        "21 20 0:46 / /proc rw - proc proc rw\n"
        "22 20 8:16 /volumes/a /var/lib/a\\040b rw - ext4 /dev/sdb rw\n"
    )
    mounts = prepare.mounts(table)
    assert prepare.mount_of(Path("/var/lib/quarry"), mounts).kind == "overlay"
    assert prepare.mount_of(Path("/var/lib/a b/store"), mounts) == (Path("/var/lib/a b"), "ext4", "/dev/sdb")
    mounts += prepare.mounts("23 22 0:50 / /var/lib/a\\040b rw - tmpfs tmpfs rw\n")
    assert prepare.mount_of(Path("/var/lib/a b"), mounts).kind == "tmpfs"


def test_a_folder_of_the_root_file_system_is_no_volume(
    tmp_path: Path, prepare: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rocketmq-docker#115: the data was gone after a restart of the pod."""
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(prepare, "MOUNTS", table)
    for kind in ("overlay", "ext4"):
        table.write_text(f"20 1 0:45 / / rw - {kind} source rw\n")
        with pytest.raises(prepare.Unfit, match="no volume is mounted here; what the broker writes would be gone"):
            prepare.require_volume(tmp_path)


@needs_root
def test_a_volume_is_fit_and_what_it_is_is_said(on_disk: Path) -> None:
    done = run(on_disk, under=mounting(f"mount --bind {on_disk} {on_disk}"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{on_disk}: " in done.stdout
    assert "GiB free" in done.stdout
    assert not list(on_disk.iterdir())


@needs_root
def test_a_folder_in_memory_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, under=mounting(f"mount -t tmpfs none {tmp_path}"))
    assert "lies in memory (tmpfs)" in refusal(done)


@needs_root
def test_a_volume_that_is_mounted_for_reading_is_refused(on_disk: Path) -> None:
    done = run(on_disk, under=mounting(f"mount --bind {on_disk} {on_disk} && mount -o remount,bind,ro {on_disk}"))
    assert "Read-only file system" in refusal(done)


@needs_root
def test_a_volume_of_somebody_else_is_refused_with_its_owner(on_disk: Path) -> None:
    stranger = ("setpriv", "--reuid", str(STRANGER), "--regid", str(STRANGER), "--clear-groups")
    on_disk.chmod(0o755)  # pytest's own folders lie in one that strangers may not enter
    done = run(on_disk, under=(*mounting(f"mount --bind {on_disk} {on_disk}"), *stranger))
    words = refusal(done)
    assert f"user {STRANGER} of group {STRANGER} cannot write here" in words
    assert "it belongs to user 0 and group 0, mode 755" in words


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no such folder" in refusal(run(tmp_path / "missing"))


def test_keys_are_copied_for_their_owner_only(tmp_path: Path, prepare: ModuleType) -> None:
    """As Kubernetes mounts a Secret: files are links to a folder of a moment, which all of the group may read."""
    source, target = tmp_path / "secrets", tmp_path / "keys"
    (source / "..2026").mkdir(parents=True)
    target.mkdir()
    (source / "..data").symlink_to("..2026")
    for name in ("cluster.key", "security.key"):
        (source / "..2026" / name).write_text(f"the {name}\n")
        (source / name).symlink_to(f"..data/{name}")
    for _ in range(2):  # a pod's containers may start once more
        assert prepare.copy_keys(source, target) == ["cluster.key", "security.key"]
    for name in ("cluster.key", "security.key"):
        assert (target / name).read_text() == f"the {name}\n"
        assert stat.S_IMODE((target / name).stat().st_mode) == 0o400
    with pytest.raises(prepare.Unfit, match="there is no key in it"):
        prepare.copy_keys(tmp_path, target)


def test_a_pod_without_a_store_gets_keys_alone(tmp_path: Path) -> None:
    source, target = tmp_path / "secrets", tmp_path / "keys"
    source.mkdir()
    target.mkdir()
    (source / "operator.secret").write_text("secret\n")
    done = run("--keys", source, target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "keys: operator.secret\n", "")
    assert stat.S_IMODE((target / "operator.secret").stat().st_mode) == 0o400


def test_a_job_waits_until_it_reaches_the_broker(prepare: ModuleType) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        host, port = listening.getsockname()
        answer: list[str] = []
        waiting = threading.Thread(target=lambda: answer.append(prepare.reach(f"{host}:{port}")))
        waiting.start()
        time.sleep(1)  # it is refused until somebody listens
        assert waiting.is_alive()
        listening.listen()
        waiting.join(timeout=10)
    assert re.fullmatch(rf"127\.0\.0\.1:{port}: reached after [1-9]\d*\.\d s", answer[0])


def test_a_job_goes_on_without_the_broker(prepare: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step has the better message."""
    monkeypatch.setattr(prepare, "REACH_TIMEOUT_S", 0.1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert prepare.reach(address).startswith(f"{address}: not reached within 1 s: ")
