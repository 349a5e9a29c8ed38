"""What is done in a pod before its broker starts: see that the volume is one, and give the broker its keys.

    python prepare.py /var/lib/quarry
    python prepare.py /var/lib/quarry --keys /secrets /run/quarry
    python prepare.py --keys /secrets /run/quarry
    python prepare.py /var/lib/quarry --reach quarry-0.quarry-headless.quarry.svc.cluster.local:8082

A store in the container's own root file system is gone with the container, and nobody notices before that
(rocketmq-docker#115). So this ends with status 1, and one line, when the folder is no volume, lies in memory, or cannot
be written.

Kubernetes makes the files of a Secret readable for the group of the pod, and a broker refuses keys that others than its
owner may read. So they are copied into a volume in memory, one file each, for the owner only.

Rules of the network take effect for a new pod only some seconds after its start, and until then it reaches nobody. So a
job waits here until it reaches the broker. If it does not reach it, it goes on, and the next step says why.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
WITH_THE_CONTAINER: Final = frozenset({"overlay", "aufs"})
MOUNTS: Final = Path("/proc/self/mountinfo")
REACH_TIMEOUT_S: Final = 30.0
REACH_STEP_S: Final = 0.5


class Unfit(Exception):
    """Why no broker is to start here, in one line."""


class Mount(NamedTuple):
    point: Path
    kind: str
    source: str


def mounts(text: str) -> list[Mount]:
    """Those of /proc/self/mountinfo, in their order: of two at one place the later one is seen."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, source = after.split()[:2]
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        found.append(Mount(Path(point), kind, source))
    return found


def mount_of(folder: Path, among: list[Mount]) -> Mount:
    """Return where the folder lies: the innermost mount, and the last of several at one place."""
    candidates = [each for each in among if folder.is_relative_to(each.point)]
    depth = max(len(each.point.parts) for each in candidates)
    return [each for each in candidates if len(each.point.parts) == depth][-1]


def require_volume(folder: Path) -> Mount:
    """Raises Unfit."""
    if not folder.is_dir():
        raise Unfit(f"{folder}: no such folder; mount the volume there")
    mount = mount_of(folder.resolve(), mounts(MOUNTS.read_text()))
    if mount.point == Path("/") or mount.kind in WITH_THE_CONTAINER:
        raise Unfit(f"{folder}: no volume is mounted here; what the broker writes would be gone with the container")
    if mount.kind in IN_MEMORY:
        raise Unfit(f"{folder}: lies in memory ({mount.kind}); what the broker writes would be gone with the pod")
    return mount


def require_writable(folder: Path) -> None:
    """Raises Unfit."""
    trial = folder / f".prepare-{os.getpid()}"
    try:
        with trial.open("xb") as file:
            file.write(b"quarry")
            file.flush()
            os.fsync(file.fileno())
        trial.unlink()
    except OSError as error:
        owner = folder.stat()
        who = f"user {os.getuid()} of group {os.getgid()}"
        whose = f"it belongs to user {owner.st_uid} and group {owner.st_gid}, mode {owner.st_mode & 0o7777:o}"
        raise Unfit(f"{folder}: {who} cannot write here: {error.strerror}; {whose}") from error


def copy_keys(source: Path, target: Path) -> list[str]:
    """Copy the files of a folder for their owner only. Returns their names. Raises Unfit."""
    # names that begin with a dot are how Kubernetes exchanges the files
    files = sorted(each for each in source.iterdir() if each.is_file() and not each.name.startswith("."))
    if not files:
        raise Unfit(f"{source}: there is no key in it")
    for file in files:
        copied = target / file.name
        copied.unlink(missing_ok=True)
        with open(os.open(copied, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as out:
            out.write(file.read_bytes())
    return [file.name for file in files]


def reach(address: str) -> str:
    """Wait until something listens at an address, given as HOST:PORT. Return what came of it, in one line."""
    host, _, port = address.rpartition(":")
    began_s = time.monotonic()
    while True:
        waited_s = time.monotonic() - began_s
        try:
            with socket.create_connection((host, int(port)), timeout=REACH_STEP_S):
                return f"{address}: reached after {waited_s:.1f} s"
        except OSError as error:
            if waited_s > REACH_TIMEOUT_S:
                return f"{address}: not reached within {waited_s:.0f} s: {error}"
        time.sleep(REACH_STEP_S)


def main() -> int:
    parser = argparse.ArgumentParser(description="Look at the volume of a broker before it starts.")
    parser.add_argument("folder", nargs="?", type=Path, help="where the volume is mounted, if there is one")
    parser.add_argument("--keys", nargs=2, type=Path, metavar=("FROM", "TO"), help="copy keys for their owner only")
    parser.add_argument("--reach", metavar="HOST:PORT", help="wait until this address can be reached")
    given = parser.parse_args()
    told = []
    try:
        if given.folder:
            mount = require_volume(given.folder)
            require_writable(given.folder)
            free_gib = shutil.disk_usage(given.folder).free / (1 << 30)
            told.append(f"{given.folder}: {mount.kind} on {mount.source}, {free_gib:.1f} GiB free")
        if given.keys:
            told.append(f"keys: {', '.join(copy_keys(*given.keys))}")
        if given.reach:
            told.append(reach(given.reach))
    except (Unfit, OSError) as reason:
        print(f"nothing is started: {reason}", file=sys.stderr)
        return 1
    print("\n".join(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
