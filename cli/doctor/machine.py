"""Checks the machine that a broker runs on: limits of the process, memory, the clock, and installed versions."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from quarry_mq.cli.doctor.findings import Finding, fault, fine, unknown, warning
from quarry_mq.server.process.descriptors import DescriptorPlan
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import Invalid
from quarry_mq.store.native import NATIVE

DISTRIBUTION: Final = "quarry-mq"
PYTHON_MIN: Final = (3, 11)
MAPS_PER_SEGMENT: Final = 4
MAPS_BESIDE_SEGMENTS: Final = 8_192
"""Memory maps for libraries, threads and the allocator; RocksDB maps no tables."""

MEMORY_LEAST_BYTES: Final = 512 << 20
"""Least memory of a machine.

An empty broker takes 75 MB, RocksDB's caches under load up to 200 MB, and the log needs some page cache.
"""

_CLOCK_ERROR: Final = 5
"""Result of adjtimex for a clock that no service keeps synchronized: TIME_ERROR."""

_TIMEX_BYTES: Final = 1_024
"""Size of the buffer for adjtimex: more than `struct timex` has on any Linux. All zero, the call only reads."""


def versions() -> Iterator[Finding]:
    """Check the versions of Python and of each library against the ranges that this version of Quarry requires."""
    python = platform.python_version()
    if sys.version_info < PYTHON_MIN:
        yield fault("versions", f"Python {python}", "Quarry needs Python 3.11 or newer")
    wrong = [*_wrong_libraries()]
    for name, found, wanted in wrong:
        yield fault("versions", f"{name} {found}, but {wanted} is required", f"pip install '{name}{wanted}'")
    if not wrong and sys.version_info >= PYTHON_MIN:
        native = "native extension" if NATIVE is not None else "no native extension"
        known = f"Quarry {metadata.version(DISTRIBUTION)}, Python {python}, all libraries as required"
        yield fine("versions", f"{known}, {native}")


def _wrong_libraries() -> Iterator[tuple[str, str, str]]:
    """Yield name, version and required range of each unsuitable library."""
    for text in metadata.requires(DISTRIBUTION) or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield wanted.name, "is missing", str(wanted.specifier)
            continue
        if not wanted.specifier.contains(Version(found), prereleases=True):
            yield wanted.name, found, str(wanted.specifier)


def descriptors(settings: BrokerSettings) -> Iterator[Finding]:
    """Check the limit of open files of a process started from here, which raises its own limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.limits.connections
    try:
        plan = DescriptorPlan.of(hard, settings.store.mapped_segments_max)
    except Invalid as error:
        yield fault("descriptors", f"{hard} open files", str(error))
        return
    if plan.connections < wanted:
        advice = (
            f"raise the hard limit by {wanted - plan.connections} (ulimit -Hn, LimitNOFILE= in the unit of systemd), "
            f"or set limits.connections to {plan.connections}"
        )
        yield warning("descriptors", f"{hard} open files: {plan.connections} connections of {wanted}", advice)
    else:
        yield fine("descriptors", f"{hard} open files")


def maps(settings: BrokerSettings, limit_file: Path = Path("/proc/sys/vm/max_map_count")) -> Iterator[Finding]:
    """Check how many memory maps the kernel allows one process."""
    try:
        limit = int(limit_file.read_text())
    except (OSError, ValueError) as error:
        yield unknown("maps", f"{limit_file}: {error}")
        return
    needed = MAPS_BESIDE_SEGMENTS + MAPS_PER_SEGMENT * settings.for_store().mapped_segments_max
    if limit < needed:
        advice = "sysctl -w vm.max_map_count=65530, and the same in /etc/sysctl.d for the next boot"
        yield fault("maps", f"{limit} memory maps per process, but {needed} may be needed", advice)
    else:
        yield fine("maps", f"{limit} memory maps per process")


def memory(root: Path = Path("/")) -> Iterator[Finding]:
    """Check the memory of the machine or of the container."""
    limits = [*memory_limits(root)]
    if not limits:
        yield unknown("memory", "the amount of memory is unknown")
        return
    name, least = min(limits, key=lambda each: each[1])
    seen = f"{least >> 20} MiB ({name})"
    if least < MEMORY_LEAST_BYTES:
        yield warning("memory", seen, f"{MEMORY_LEAST_BYTES >> 20} MiB are the minimum for a broker")
    else:
        yield fine("memory", seen)


def memory_limits(root: Path = Path("/")) -> Iterator[tuple[str, int]]:
    """Yield the memory of the machine and of each control group of this process, in bytes, each with its name."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield "machine", int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    for group in _control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # no such version of control groups, or `max`: no limit
                yield "control group", int((group / name).read_text())


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many whole cores this process may use: by its affinity and the limits of its control groups."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _core_limits(root))]))


def _core_limits(root: Path) -> Iterator[float]:
    for group in _control_groups(root, "cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):  # no such version of control groups, or `max`: no limit
                quota_us, period_us = map(int, " ".join((group / name).read_text() for name in names).split())
                if quota_us > 0:  # -1 is no limit
                    yield quota_us / period_us


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, of both versions, with those that contain them.

    A container often sees its own group as the root, whatever the path in `proc/self/cgroup` is.
    """
    groups = root / "sys/fs/cgroup"
    folders = {"": groups, controller: groups / controller}
    yield from folders.values()
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = PurePosixPath(path.strip("/"))
            for folder in (folders[each] for each in controllers.split(",") if each in folders):
                yield from (folder / each for each in (own, *own.parents))


def clock_is_kept(adjtimex: object | None = None) -> Iterator[Finding]:
    """Check whether the kernel's clock is kept synchronized."""
    call = adjtimex or getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if not callable(call):
        yield unknown("clock", "this kernel does not say whether its clock is synchronized")
        return
    state = call(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state == _CLOCK_ERROR:
        advice = "run chrony or systemd-timesyncd: expiry, delays and signatures depend on the clock"
        yield warning("clock", "the machine's clock is not synchronized", advice)
    elif state < 0:
        yield unknown("clock", "the kernel does not say whether its clock is synchronized")
    else:
        yield fine("clock", "synchronized")
