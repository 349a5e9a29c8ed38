"""Read the files of the pages once, so that no request names a file of the machine."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
"""Content types by file suffix; files with other suffixes are not served."""

NOT_COMPRESSED: Final = (".png", ".ico", ".woff2")


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the pages. `zipped` is None if compression does not make it smaller."""

    content_type: str
    etag: str
    plain: bytes
    zipped: bytes | None


def read_static_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Read the files below `folder`, by their relative path with `/`. Raises OSError."""
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }


def _read(path: Path) -> StaticFile:
    plain = path.read_bytes()
    zipped = None if path.suffix in NOT_COMPRESSED else gzip.compress(plain, mtime=0)
    return StaticFile(
        content_type=TYPES[path.suffix],
        etag=sha256(plain).hexdigest()[:32],
        plain=plain,
        zipped=zipped if zipped is not None and len(zipped) < len(plain) else None,
    )
