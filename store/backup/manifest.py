"""The manifest says what a backup holds: `backup-manifest.json`, written last, so that an unfinished backup has none.

    {"crc32": 123, "manifest": {
        "format": 1, "name": "20261121T083522.125Z", "createdMs": 1795250122125, "live": true,
        "logBegin": 0, "logEnd": 4400, "segmentSize": 1073741824,
        "files": [{"path": "commitlog/00000000000000000000", "size": 1073741824, "crc32": 456, "frozen": false}, …]}}

The `crc32` beside the manifest is that of its text as it is encoded here: keys sorted, no blanks, ASCII. The CRC of a
file is that of its whole content. A `frozen` file is never written again, by any broker: it may be linked instead of
copied.

A backup is checked against its manifest: whether it is as it was written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from isal import isal_zlib

from quarry_mq.kv import is_table
from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.store.errors import NotAStore, StoreDamaged
from quarry_mq.store.fs import CopyingDisk
from quarry_mq.store.layout.paths import parse_segment_name
from quarry_mq.store.message import PhysicalOffset

MANIFEST_NAME: Final = "backup-manifest.json"
FORMAT: Final = 1

COMMIT_LOG: Final = "commitlog"
OF_THE_RUNNING: Final = frozenset({"lock", "lost+found", ".snapshot", "backup", "restoring", "tls"})
"""Names in a store's folder that belong to the running system and not to the store: no backup holds them."""


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A backup file is one file of a backup. `path` is relative to the store, with forward slashes."""

    path: str
    size: int
    crc32: int
    frozen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest describes a finished backup. Everything that the store had below `log_end` is in the backup."""

    name: str
    created_ms: int
    live: bool
    log_begin: PhysicalOffset
    log_end: PhysicalOffset
    segment_size: int
    files: tuple[BackupFile, ...]


def encode_manifest(manifest: Manifest) -> bytes:
    document = {
        "format": FORMAT,
        "name": manifest.name,
        "createdMs": manifest.created_ms,
        "live": manifest.live,
        "logBegin": manifest.log_begin,
        "logEnd": manifest.log_end,
        "segmentSize": manifest.segment_size,
        "files": [
            {"path": each.path, "size": each.size, "crc32": each.crc32, "frozen": each.frozen}
            for each in manifest.files
        ],
    }
    text = _canonical(document)
    return _canonical({"manifest": document, "crc32": isal_zlib.crc32(text)}) + b"\n"


def read_manifest(disk: CopyingDisk, directory: Path) -> Manifest:
    """Read the manifest. Raises NotAStore without one (no backup, or an unfinished one), StoreDamaged
    if it is damaged.
    """
    path = directory / MANIFEST_NAME
    if disk.exists(path) and not disk.is_plain_file(path):
        raise StoreDamaged(path, "not a regular file; a backup contains only regular files")
    try:
        content = disk.read(path)
    except FileNotFoundError:
        raise NotAStore(directory, f"not a finished backup: there is no {MANIFEST_NAME}") from None
    try:
        whole = _Fields(json.loads(content), "")
        document = whole.fields("manifest")
        if isal_zlib.crc32(_canonical(document.values)) != whole.number("crc32"):
            raise StoreDamaged(path, "wrong checksum")
        if document.number("format") != FORMAT:
            raise NotAStore(path, f"made by a newer Quarry (format {document.number('format')})")
        segment_size, log_end = document.number("segmentSize"), PhysicalOffset(document.number("logEnd"))
        if segment_size == 0:
            raise ValueError("manifest.segmentSize is 0")
        files = tuple(
            BackupFile(each.text("path"), each.number("size"), each.number("crc32"), each.truth("frozen"))
            for each in document.each("files")
        )
        for file in files:
            _require_path(file.path)
            if file.frozen and not _may_be_frozen(file.path, segment_size, log_end):
                raise ValueError(f"{file.path!r} is listed as frozen, but brokers write to this file")
        _require_places_of_their_own(files)
        return Manifest(
            name=document.text("name"),
            created_ms=document.number("createdMs"),
            live=document.truth("live"),
            log_begin=PhysicalOffset(document.number("logBegin")),
            log_end=log_end,
            segment_size=segment_size,
            files=files,
        )
    except (ValueError, RecursionError) as error:
        raise StoreDamaged(path, f"not a manifest: {error}") from error


class _Fields(NamedTuple):
    """The class wraps an object of the document and reads fields of required types. All methods raise ValueError naming
    the field.
    """

    values: Any
    where: str

    def _field(self, name: str, kind: type, what: str) -> Any:
        if type(self.values) is not dict:
            raise ValueError(f"{self.where or 'the document'} is no object")
        where = f"{self.where}.{name}" if self.where else name
        if name not in self.values:
            raise ValueError(f"{where} is missing")
        value = self.values[name]
        if type(value) is not kind:
            raise ValueError(f"{where} is no {what}")
        return value

    def fields(self, name: str) -> _Fields:
        return _Fields(self._field(name, dict, "object"), f"{self.where}.{name}" if self.where else name)

    def each(self, name: str) -> Iterator[_Fields]:
        for number, each in enumerate(self._field(name, list, "list")):
            yield _Fields(each, f"{self.where}.{name}[{number}]")

    def text(self, name: str) -> str:
        return cast("str", self._field(name, str, "text"))

    def truth(self, name: str) -> bool:
        return cast("bool", self._field(name, bool, "truth value"))

    def number(self, name: str) -> int:
        """Return a number of something counted: not negative, and within 63 bits."""
        value: int = self._field(name, int, "whole number")
        if not 0 <= value < 1 << 63:
            raise ValueError(f"{self.where}.{name} is {value}")
        return value


def _require_path(path: str) -> None:
    """Raise ValueError unless this is the path of a file inside a store, in its one spelling."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts) or parts[0] in OF_THE_RUNNING:
        raise ValueError(f"{path!r} is not a path inside a store")


def _require_places_of_their_own(files: Sequence[BackupFile]) -> None:
    """Raise ValueError for two files of one path, and for a file where another one needs a folder."""
    paths = [tuple(each.path.split("/")) for each in files]
    known = set(paths)
    if len(known) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"{'/'.join(twice)!r} is listed twice")
    for path in paths:
        for length in range(1, len(path)):
            if path[:length] in known:
                raise ValueError(f"{'/'.join(path[:length])!r} is both a file and a folder")


def _may_be_frozen(path: str, segment_size: int, log_end: PhysicalOffset) -> bool:
    """Return whether brokers may never write the file again: tables of databases, and segments that are full."""
    folder, _, name = path.rpartition("/")
    if folder == COMMIT_LOG:
        base = parse_segment_name(name)
        return base is not None and base + segment_size <= log_end
    return bool(folder) and is_table(name)


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _first_link(disk: CopyingDisk, directory: Path, path: str) -> Path | None:
    """Return the first part of the way from the backup to the file that is a link."""
    place = directory
    for part in path.split("/"):
        place = place / part
        if disk.is_link(place):
            return place
    return None


def damaged_files(disk: CopyingDisk, directory: Path, manifest: Manifest, report: ReportProgress) -> list[str]:
    """Return in words what is wrong with which file; empty when all files have the content they were backed up with."""
    total = sum(each.size for each in manifest.files)
    done = 0
    wrong = []
    for each in manifest.files:
        report(Progress("checking the backup", done, total))
        path = directory / each.path
        done += each.size
        if (link := _first_link(disk, directory, each.path)) is not None:
            wrong.append(f"{link}: this is a link; a backup contains only regular files")
            continue
        if disk.exists(path) and not disk.is_plain_file(path):
            wrong.append(f"{path}: no file")
            continue
        if not disk.exists(path):
            wrong.append(f"{path}: missing")
            continue
        size = disk.file_size(path)
        if size != each.size:
            wrong.append(f"{path}: {size} bytes, expected {each.size}")
            continue
        try:
            crc = disk.checksum(path)
        except OSError as error:
            wrong.append(f"{path}: cannot be read: {error.strerror or error}")
            continue
        if crc != each.crc32:
            wrong.append(f"{path}: the content changed (CRC-32 {crc:08x}, expected {each.crc32:08x})")
    report(Progress("checking the backup", total, total))
    return wrong
