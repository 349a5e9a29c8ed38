"""Checks the disk of a store, the permissions there, and the store itself."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from quarry_mq.cli.doctor.findings import Finding, fault, fine, unknown, warning
from quarry_mq.kv import EngineLocked, KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.process.self_signed import KEY_NAME
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import BrokerError, Invalid, NotAStore, SecretsUnreadable, StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import FoundStore, StoreKind, inspect_store
from quarry_mq.store.layout.paths import StorePaths, parse_segment_name
from quarry_mq.store.opening.preview import preview
from quarry_mq.store.opening.repair import Orders
from quarry_mq.store.security.users import UserTable
from quarry_mq.store.state.identity import open_state_engine

OTHERS: Final = 0o077
GIVEN_BY_GROUP: Final = frozenset({"network.tls_key", "network.metrics_token_file"})
"""Files that a broker takes although its group may read them. It refuses other keys then."""
SYNC_TRIES: Final = 9
SYNC_BYTES: Final = bytes(4_096)
SYNC_SLOW_MS: Final = 20.0
INODES_FREE_LEAST: Final = 10_000
FUTURE_SLACK_S: Final = 5.0
FILES_LOOKED_AT: Final = 100_000

FORGETFUL: Final = frozenset({"tmpfs", "ramfs", "overlay"})
"""File systems whose content is lost when the machine or the container ends."""

REMOTE: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})


def disk(settings: BrokerSettings) -> Iterator[Finding]:
    """Check how full the disk is, as expiry measures it."""
    place = _existing(settings.store.directory)
    space, expiry = PosixDisk().space(place), settings.expiry
    if space is None:
        yield unknown("disk", f"{place}: the file system does not report its usage")
    else:
        seen = f"{place}: {space.used_percent} % in use, {space.available_bytes / (1 << 30):.1f} GiB free"
        if space.used_percent > expiry.refuse_percent:
            advice = f"sends are refused above {expiry.refuse_percent} %: make space, or use a shorter retention time"
            yield fault("disk", seen, f"{advice} (expiry.retention_hours)")
        elif space.used_percent > expiry.clean_percent:
            advice = (
                f"above {expiry.clean_percent} % messages expire at any hour: use a larger disk, or a shorter "
                "retention time"
            )
            yield warning("disk", seen, f"{advice} (expiry.retention_hours)")
        else:
            yield fine("disk", seen)
    found = os.statvfs(place)
    if found.f_files and found.f_favail < INODES_FREE_LEAST:
        yield fault(
            "disk", f"{place}: {found.f_favail} more files can be created", "remove files, or create a file system"
        )


def file_system(settings: BrokerSettings, mounts: Path = Path("/proc/self/mounts")) -> Iterator[Finding]:
    """Check whether the file system is persistent, and local to this machine."""
    place = _existing(settings.store.directory).resolve()
    try:
        rows = [line.split(" ") for line in mounts.read_text().split("\n")]
    except OSError as error:
        yield unknown("file system", str(error))
        return
    points = [(Path(row[1].replace("\\040", " ")), row[2]) for row in rows if len(row) > 2]
    point, kind = max(
        ((point, kind) for point, kind in points if place.is_relative_to(point)),
        key=lambda each: len(each[0].parts),
        default=(Path("/"), "unknown"),
    )
    seen = f"{kind} at {point}"
    if kind in FORGETFUL:
        yield warning("file system", seen, "its content is lost when the machine or container stops")
    elif kind in REMOTE:
        yield warning("file system", seen, "use a local disk: the log is synced for each answer, and locked")
    else:
        yield fine("file system", seen)


def sync_time(settings: BrokerSettings) -> Iterator[Finding]:
    """Measure how long a send waits for the disk with `sync`. The file that is written for it has no name."""
    place = _existing(settings.store.directory)
    try:
        descriptor = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        yield unknown("sync", f"{place}: {error.strerror}")
        return
    try:
        took_ms = [_sync_ms(descriptor) for _ in range(SYNC_TRIES)]
    except OSError as error:
        yield fault("sync", f"{place}: {error.strerror}", "nothing can be stored there: see the kernel's log")
        return
    finally:
        os.close(descriptor)
    seen = f"{median(took_ms):.1f} ms for 4 KiB, {max(took_ms):.1f} at most"
    if median(took_ms) > SYNC_SLOW_MS:
        yield warning(
            "sync", seen, 'use a faster disk, or store.durability = "async" if a power cut may lose a few messages'
        )
    else:
        yield fine("sync", seen)


def _sync_ms(descriptor: int) -> float:
    began_s = time.perf_counter()
    os.write(descriptor, SYNC_BYTES)
    os.fdatasync(descriptor)
    return (time.perf_counter() - began_s) * 1000


def permissions(settings: BrokerSettings) -> Iterator[Finding]:
    """Check whether this user may do what a broker does."""
    root = settings.store.directory
    wrong = [*_not_ours(root)]
    for path, lacks in wrong:
        advice = f"chown -R {_user()} {root}, or run as the user whose store it is"
        yield fault("permissions", f"{path}: {_user()} may not {lacks}", advice)
    if wrong:
        return
    open_to_others = [*_open_to_others(settings)]
    for path, mode in open_to_others:
        advice = f"chmod -R go-rwx {path}: a broker creates new stores and files for its own user only"
        yield warning("permissions", f"{path}: other users than {_user()} have access (mode {mode:04o})", advice)
    if not open_to_others:
        yield fine("permissions", f"{_user()} may read and write {_existing(root)}")


def _open_to_others(settings: BrokerSettings) -> Iterator[tuple[Path, int]]:
    """Yield the store's folder, if others may use it and anything in it, and the audit file, if others may use it."""
    root, audit = settings.store.directory, settings.log.audit_file
    if root.is_dir() and any(map(_mode_for_others, root.iterdir())) and _mode_for_others(root):
        yield root, _mode_for_others(root)
    if audit is not None and audit.exists() and _mode_for_others(audit):
        yield audit, _mode_for_others(audit)


def _mode_for_others(path: Path) -> int:
    """Return the whole mode, or 0 if only the owner may use the file."""
    mode = stat.S_IMODE(path.lstat().st_mode)
    return mode if mode & OTHERS else 0


def _not_ours(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield at most one path that this user may not use: further ones have the same reason."""
    place = _existing(root)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield place, "read and write there"
        return
    if place != root:
        return
    for number, (folder, _, names) in enumerate(os.walk(root)):
        for path in [Path(folder), *(Path(folder, name) for name in names)]:
            if not os.access(path, os.R_OK | os.W_OK):
                yield path, "read and write it"
                return
        if number > FILES_LOOKED_AT:
            return


def secrets(settings: BrokerSettings) -> Iterator[Finding]:
    """Check the files that hold keys: they must exist, be readable, and be readable by no other user.

    A group may read what another program gives to the broker by its group, as a mounted Secret of Kubernetes.
    """
    network, security = settings.network, settings.security
    named = {
        "security.key_file": security.key_file,
        "cluster.key_file": settings.cluster.key_file,
        "network.tls_key": network.tls_key,
        "replication.key_file": settings.replication.key_file,
        "network.metrics_token_file": network.metrics_token_file,
    }
    given = {name: path for name, path in named.items() if path is not None}
    self_signed = settings.tls_directory / KEY_NAME
    if network.is_self_signed and self_signed.exists():
        given["self-signed certificate"] = self_signed
    for name, path in given.items():
        try:
            with path.open("rb"):
                mode = path.stat().st_mode
                is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        except OSError as error:
            yield fault(
                "secrets",
                f"{name}: {path}: {error.strerror}",
                "set the right path, or give the file to the broker's user",
            )
            continue
        if mode & (OTHERS & ~stat.S_IRGRP if name in GIVEN_BY_GROUP else OTHERS):
            advice = "mount it with the mode 0440" if is_read_only else f"chmod 600 {path}"
            yield warning("secrets", f"{name}: {path} can be read by other users than its owner", advice)
        else:
            yield fine("secrets", f"{name}: {path}")


def store_times(settings: BrokerSettings, clock: Clock) -> Iterator[Finding]:
    """Check whether files of the store were written at a time that is in the future by this clock."""
    paths, newest = StorePaths(settings.store.directory), None
    for folder in (paths.commit_log, paths.quarry):
        for path in folder.glob("*") if os.access(folder, os.R_OK | os.X_OK) else ():
            changed = (path.stat().st_mtime, path)
            newest = changed if newest is None else max(newest, changed)
    if newest is None:
        return
    ahead_s = newest[0] - clock.wall_ms() / 1000
    if ahead_s > FUTURE_SLACK_S:
        advice = "correct the clock before a start: messages would be stored with a future time and expire late"
        yield fault("clock", f"{newest[1]} was written {ahead_s:.0f} s in the future", advice)
    else:
        yield fine("clock", "the store was written in the past")


def store(settings: BrokerSettings, *, is_served: bool) -> Iterator[Finding]:
    """Check the store, and what a start would do with it.

    With `is_served` the broker that runs on it reports its state.
    """
    root, posix = settings.store.directory, PosixDisk()
    if not root.exists():
        yield fine("store", f"{root}: a new store is created there")
        return
    try:
        found = inspect_store(posix, root)
        if is_served or found.kind is StoreKind.NEW:
            yield fine("store", f"{root}: {found.kind.value}{', served by the broker' if is_served else ''}")
            return
        if not any(parse_segment_name(path.name) is not None for path in StorePaths(root).commit_log.glob("*")):
            yield unknown(
                "store", f"{root}: {found.kind.value} without a log: it has no messages, or has lost all of them"
            )
            return
        yield from _previewed(posix, root, found)
    except StoreLocked as error:
        yield fault(
            "store", str(error), "a broker that does not answer at network.admin has the store open: `quarry broker`"
        )
    except EngineLocked as error:
        yield fault("store", str(error), "another process has the store open: stop it first")
    except NotAStore as error:
        yield fault("store", str(error), "set another store.directory, or check what that file is")
    except (BrokerError, KvError) as error:
        yield fault("store", str(error), f"quarry recover {root} --dry-run shows more")
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            yield unknown("store", f"{error.filename}: {error.strerror}")
        else:
            yield fault("store", f"{error.filename or root}: {error.strerror or error}", "see the kernel's log")


def users(settings: BrokerSettings) -> Iterator[Finding]:
    """Check whether the key decrypts the secrets of the users of a stopped store, if users are asked for."""
    root = settings.store.directory
    if not (settings.security.authentication or settings.security.asks_operators):
        return
    lost = f"if no copy of the key is left: quarry user bootstrap {root} NAME --key-file FILE --force"
    try:
        sealer = settings.for_sealer()
    except Invalid as error:
        yield fault("secrets", str(error), f"give the broker the key file that it had before; {lost}")
        return
    try:
        if not root.exists() or inspect_store(PosixDisk(), root).kind is not StoreKind.QUARRY:
            return
        engine = open_state_engine(StorePaths(root).quarry, create=False, read_only=True)
    except (BrokerError, KvError, OSError):
        return  # the check of the store says why it cannot be opened
    try:
        UserTable(engine, sealer).require_readable()
        yield fine("secrets", "the key decrypts the secrets of all users")
    except SecretsUnreadable as error:
        yield fault("secrets", str(error), f"set the key that encrypted them; {lost}")
    except (BrokerError, KvError) as error:
        yield fault("secrets", str(error), f"quarry recover {root} --dry-run shows more")
    finally:
        engine.close()


def _previewed(posix: PosixDisk, root: Path, found: FoundStore) -> Iterator[Finding]:
    seen = preview(posix, root, Orders(), lambda *_: None)
    if seen.queues_damaged is not None:
        damage = f"the queues' database is damaged: {seen.queues_damaged}"
        yield fault("store", damage, f"quarry recover {root} --rebuild-queues rebuilds it from the log")
    elif seen.refusal is not None:
        yield fault("store", f"a start would refuse: {seen.refusal}", f"quarry recover {root} --dry-run shows more")
    elif seen.cut_bytes:
        text = f"{seen.cut_bytes} bytes after offset {seen.findings.end} are not complete records"
        yield warning("store", text, "a start cuts these bytes off and keeps a copy; this is normal after a crash")
    else:
        stop = "the last stop was not clean; a start recovers" if found.has_abort else "stopped cleanly"
        yield fine("store", f"{root}: {found.kind.value}, {stop}")


def _existing(path: Path) -> Path:
    """Return the path, or the nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
