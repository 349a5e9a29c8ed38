"""A container without a container runtime: namespaces, an overlay as root file system, a user without rights.

What a runtime does for `docker run --read-only` is done with the programs `unshare`, `mount` and `setpriv`: the root
file system is an overlay over this machine's, and read-only; /tmp is a file system of its own; the store's volume is
the only other folder that can be written. The process is the first one of its process namespace.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.deploy.manifests import ROOT

NOBODY: Final = 65_534


def command(
    words: Sequence[str],
    *,
    folder: Path,
    user: int,
    environment: Mapping[str, str],
    mounts: Mapping[str, Path],
    read_only: Mapping[str, Path],
) -> list[str]:
    """The words, to be run in a container whose root file system is put together in `folder`.

    `mounts` are the places of volumes, `read_only` those of parts of the image.
    """
    root = folder / "root"
    lines = [
        f"mount -t tmpfs none {folder}",
        f"mkdir {folder}/upper {folder}/work {root}",
        f"mount -t overlay none -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {root}",
        *(f"mkdir -p {root}{place}" for place in (*mounts, *read_only)),
        f"mount -t tmpfs -o mode=1777 none {root}/tmp",
        f"mount -t proc none {root}/proc",
        f"mount --rbind /dev {root}/dev",
    ]
    # the folder of the tests may lie in /tmp, and the project, too
    for place, source in read_only.items():
        lines.append(f"mkdir -p {root}{place}")
        # a Python in the home of root: the folders above it are let be entered in the overlay, not on this machine
        lines += [f"chmod a+x {root}{parent}" for parent in Path(place).parents if parent != Path("/")]
        lines += [f"mount --bind {source} {root}{place}", f"mount -o remount,bind,ro {root}{place}"]
    lines += [f"mkdir -p {root}{place} && mount --bind {source} {root}{place}" for place, source in mounts.items()]
    lines += [f"mount -o remount,ro {root}"]
    rights = f"setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set -all --inh-caps -all"
    given = shlex.join(["env", "-i", *(f"{name}={value}" for name, value in environment.items())])
    lines += [f"exec chroot {root} {rights} {given} {shlex.join(words)}"]
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return [*namespaces, "sh", "-ec", "\n".join(lines)]


def why_not(folder: Path) -> str:
    """Return the reason why no such container can be run here; empty when one can."""
    if os.geteuid() != 0:
        return "a read-only root file system needs root"
    trial = command(["true"], folder=folder, user=NOBODY, environment={}, mounts={}, read_only={})
    done = subprocess.run(trial, capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else f"no container can be put together here: {done.stderr.strip()}"


def this_python() -> dict[str, Path]:
    """Return the folders that the running Python and Quarry consist of, where an empty /tmp would hide them."""
    folders = {Path(sys.prefix), Path(sys.base_prefix), ROOT} - {Path("/usr")}
    outermost = [each for each in folders if not any(other in each.parents for other in folders)]
    return {str(path): path for path in sorted(outermost)}
