"""Namespaces of their own for a cluster: mounts, process ids, host name, and a network for each machine that it plays.

Nothing of the machine is changed except control groups, which are shared: those of the cluster lie in a group of their
own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
INIT: Final = Path(__file__).parent / "init.py"
TIMEOUT_S: Final = 120.0
STEP_S: Final = 0.2

KERNEL_SETTINGS: Final = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""Settings of the whole machine that a kubelet changes. It finds them as it wants them, in files that lie over them."""


KEPT: Final[list[subprocess.Popen[bytes]]] = []
"""Processes that go on after this one."""


class Failed(Exception):
    """A command ended with an error. The text is the command and its output."""


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Raises Failed."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline_s:
            raise Failed(f"waited {timeout_s:.0f} s in vain: {what}")
        time.sleep(STEP_S)


class Namespaces:
    """A set of namespaces that lives as long as its process 1. `folder` has the logs and the state of all processes."""

    def __init__(self, folder: Path, init: int) -> None:
        self.folder = folder
        self.init = init
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def found(cls, folder: Path) -> Namespaces | None:
        """Return those that a run before this one has kept in this folder."""
        state = folder / "init"
        if not state.exists():
            return None
        init = int(state.read_text())
        try:
            is_alive = str(INIT).encode() in Path(f"/proc/{init}/cmdline").read_bytes()
        except OSError:
            return None
        return cls(folder, init) if is_alive else None

    @classmethod
    def made(cls, folder: Path, *, keep: bool, name_server: str) -> Namespaces:
        """Make new ones, with a loopback device and nothing else."""
        for each in ("log", "pid"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        command = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with (folder / "log" / "init").open("wb") as log:
            process = subprocess.Popen(
                [*command, sys.executable, str(INIT), *(["keep"] if keep else [])],
                stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdout is not None
        with process.stdout as output:
            if output.readline() != b"ready\n":
                raise Failed(f"no namespaces: {(folder / 'log' / 'init').read_text()}")
        if keep:
            KEPT.append(process)
        (init,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        made = cls(folder, int(init))
        made._process = process
        (folder / "init").write_text(init)
        made._mount(name_server)
        return made

    def _mount(self, name_server: str) -> None:
        lines = [
            "mount --make-rshared /",
            "mount -t tmpfs tmpfs /run",
            "mkdir -p /run/netns /run/lock /run/settings /run/cgroup",
            # the devices of these networks are seen in a /sys of their own; control groups stay where they are
            "mount --rbind /sys/fs/cgroup /run/cgroup",
            "mount -t sysfs sysfs /sys",
            "mount --rbind /run/cgroup /sys/fs/cgroup",
            f"echo nameserver {name_server} > /run/resolv.conf",
            "mount --bind /run/resolv.conf /etc/resolv.conf",
        ]
        for name, value in KERNEL_SETTINGS.items():
            file = f"/run/settings/{name.replace('/', '-')}"
            lines += [f"echo {value} > {file}", f"mount --bind {file} /proc/sys/{name}"]
        lines += ["hostname control-plane", "ip link set lo up", "sysctl -qw net.ipv4.ip_forward=1"]
        self.run("sh", "-ec", "\n".join(lines))

    def _seen(self, *parts: str) -> Path:
        """Return the path, seen from outside, of what lies within."""
        return Path("/proc", str(self.init), "root", *parts)

    def command(self, words: Sequence[str | Path], network: str = "") -> list[str]:
        """The words, to be run within; `network` is the name of one that `ip netns` made."""
        net = self._seen("run", "netns", network) if network else Path(f"/proc/{self.init}/ns/net")
        enter = ["nsenter", "--target", str(self.init), "--mount", "--uts", "--ipc", "--pid", f"--net={net}", "--"]
        return [*enter, *(str(word) for word in words)]

    def run(
        self,
        *words: str | Path,
        network: str = "",
        text: str = "",
        timeout_s: float = TIMEOUT_S,
        environment: dict[str, str] | None = None,
    ) -> str:
        """Return the output of a program that runs within. Raises Failed."""
        command = self.command(words, network)
        try:
            done = subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env={**os.environ, **(environment or {})},
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{_shown(words)} took longer than {timeout_s:.0f} s: {late.stderr!r}") from late
        if done.returncode:
            raise Failed(f"{_shown(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done.stdout

    def start(self, name: str, *words: str | Path, network: str = "") -> None:
        """Start a program that goes on until it is stopped by its name."""
        file = self.folder / "pid" / name
        file.unlink(missing_ok=True)
        detached = ["setsid", "--fork", "sh", "-c", f'echo $$ > {file}; exec "$@"', name, *words]
        with (self.folder / "log" / name).open("ab") as log:
            subprocess.run(
                self.command(detached, network), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True
            )
        wait_until(lambda: file.exists() and file.read_text(), f"{name} starts")

    def stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a program that `start` started, and wait for its end."""
        file = self.folder / "pid" / name
        number_of_process = file.read_text().strip()
        self.run("kill", f"-{number.value}", number_of_process)
        inside = self._seen("proc", number_of_process)
        wait_until(lambda: not inside.exists(), f"{name} ends")
        file.unlink()

    def is_running(self, name: str) -> bool:
        file = self.folder / "pid" / name
        return file.exists() and self._seen("proc", file.read_text().strip()).exists()

    def end(self) -> None:
        """End all processes within; mounts and networks go with the last one."""
        os.kill(self.init, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{self.init}").exists(), "process 1 of the namespaces ends")
        if self._process is not None:
            self._process.communicate()


def _shown(words: Sequence[str | Path]) -> str:
    return " ".join(str(word) for word in words)[:500]


def make_groups(names: Sequence[str]) -> None:
    """Make control groups, of version 1 or 2, in all hierarchies; each name is a path of groups."""
    for hierarchy in _hierarchies():
        for name in names if hierarchy.name != "unified" else ():
            group = hierarchy
            for part in Path(name).parts:
                group /= part
                group.mkdir(exist_ok=True)
                # version 1 lets no process into a group before it has processors and memory
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    if hierarchy.name == "cpuset" and not (group / setting).read_text().strip():
                        (group / setting).write_text((group.parent / setting).read_text())


def remove_groups(name: str) -> None:
    """Remove a control group and all within. Their processes have ended."""
    for hierarchy in _hierarchies():
        top = hierarchy / name
        for folder in sorted([*top.rglob("*/"), top], key=lambda each: len(each.parts), reverse=True):
            wait_until(partial(_removed, folder), f"{folder} can be removed")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [each for each in CGROUPS.iterdir() if each.is_dir() and not each.is_symlink()]
