"""What a backup holds: `backup-manifest.json`, written last, so that an unfinished backup has none.

    {"crc32": 123, "manifest": {
        "format": 1, "name": "20261121T083522.125Z", "createdMs": 1795250122125, "live": true,
        "logBegin": 0, "logEnd": 4400, "segmentSize": 1073741824,
        "files": [{"path": "commitlog/00000000000000000000", "size": 1073741824, "crc32": 456, "frozen": false}, …]}}

`crc32` is that of the manifest's text as it is encoded here: keys sorted, no blanks, ASCII. The CRC of a file is that
of its whole content. A `frozen` file is never written again, by any broker: it may be linked instead of copied.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from isal import isal_zlib

from store.disk import Disk
from store.errors import NotAStore, StoreDamaged
from store.offsets import PhysicalOffset

MANIFEST_NAME: Final = "backup-manifest.json"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file. `path` is relative to the store, with forward slashes."""

    path: str
    size: int
    crc32: int
    frozen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A finished backup. `log_end`: everything below it that the store had is in here."""

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


def read_manifest(disk: Disk, directory: Path) -> Manifest:
    """Raises NotAStore when there is none (no backup, or an unfinished one), StoreDamaged when it is damaged."""
    path = directory / MANIFEST_NAME
    try:
        content = disk.read(path)
    except FileNotFoundError:
        raise NotAStore(directory, f"no finished backup: there is no {MANIFEST_NAME}") from None
    try:
        whole = json.loads(content)
        document: dict[str, Any] = whole["manifest"]
        if isal_zlib.crc32(_canonical(document)) != whole["crc32"]:
            raise StoreDamaged(path, "its checksum is wrong")
        if document["format"] != FORMAT:
            raise NotAStore(path, f"made by a newer Quarry (format {document['format']})")
        for each in document["files"]:
            _require_inside(each["path"])
        return Manifest(
            name=document["name"],
            created_ms=document["createdMs"],
            live=document["live"],
            log_begin=PhysicalOffset(document["logBegin"]),
            log_end=PhysicalOffset(document["logEnd"]),
            segment_size=document["segmentSize"],
            files=tuple(
                BackupFile(each["path"], each["size"], each["crc32"], each["frozen"]) for each in document["files"]
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(path, f"it is no manifest: {error}") from error


def _require_inside(path: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"{path!r} is no path inside a store")


def _canonical(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
