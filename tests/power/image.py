"""An ext4 file system in a file, mounted through a loop device, whose power can be cut.

The ext4 shutdown ioctl without log flush ends the file system as a power cut would: nothing that is dirty in memory
is written any more, pages of mappings included, and every later write or sync fails. What the device has is kept;
the next mount replays the journal. Other than a device with a volatile cache, this one keeps what it was sent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
"""_IOR('X', 125, __u32), linux/fs/ext4."""
NO_LOG_FLUSH: Final = struct.pack("I", 2)
COPIES_END_S: Final = 120.0


class Ext4Image:
    """Mounted from its making on. `close` always leaves the machine without the mount and the loop device."""

    def __init__(self, path: Path, mount_point: Path, mebibytes: int) -> None:
        """The file is sparse. Skips the test where the machine does not allow this."""
        self.mount_point = mount_point
        self._path = path
        require_root_and("mount", "umount", "losetup", "mkfs.ext4", "e2fsck")
        mount_point.mkdir()
        _run("truncate", "-s", f"{mebibytes}M", path)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", path)
        # Unmounts also when this process is killed: its end closes the pipe.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; umount -l "$0" 2>/dev/null', mount_point],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.mount()
        except subprocess.CalledProcessError as error:
            self.close()
            pytest.skip(f"no loop device can be mounted: {error.stderr.decode().strip()}")

    def mount(self) -> None:
        """Attach and mount; after a cut this replays the journal. The loop device goes with the mount.

        A container that another test started meanwhile has a copy of all mounts: until it ends, what is mounted here is
        the file system that was shut down.
        """
        deadline_s = time.monotonic() + COPIES_END_S
        while True:
            _run("mount", "-t", "ext4", "-o", "loop", self._path, self.mount_point)
            if self._is_alive():
                return
            assert time.monotonic() < deadline_s, f"somebody still has what was mounted on {self.mount_point}"
            self.unmount()
            time.sleep(0.2)

    def _is_alive(self) -> bool:
        """Directories can still be listed when it is not."""
        trial = self.mount_point / "trial"
        try:
            trial.touch()
            trial.unlink()
        except OSError as error:
            return error.errno != errno.EIO  # it may be full
        return True

    def unmount(self) -> None:
        """Nobody may have a file open there any more."""
        _run("umount", self.mount_point)

    def cut(self) -> float:
        """The power fails now. Files may be open and mapped; all that is not on the device yet is lost.

        Returns when (monotonic clock, seconds): the last moment before. A cut takes a millisecond, and an fdatasync
        that is caught by it may even succeed for data that is lost; without power nobody would have heard of that.
        """
        root = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        cut_s = time.monotonic()
        try:
            fcntl.ioctl(root, EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH)
        except OSError as error:
            if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM):
                pytest.skip(f"ext4 cannot be shut down here: {error}")
            raise
        finally:
            os.close(root)
        return cut_s

    def cycle(self) -> None:
        """Power is back: what the device holds, with the journal replayed."""
        self.unmount()
        self.mount()

    def check(self) -> None:
        """The unmounted file system must be consistent; fails with the words of e2fsck."""
        done = subprocess.run(["e2fsck", "-fn", self._path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def close(self) -> None:
        """Repeatable; also while somebody still has files open."""
        if self.mount_point.is_mount():
            subprocess.run(["umount", "-l", self.mount_point], check=True)
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


def require_root_and(*tools: str) -> None:
    """Skip the test where it could not mount anything."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
