"""Stores whose files lie in an object store: what is needed of one is brought to this machine.

What comes here looks like a store: its check point and marks, and segments of their full length, of which those that
are asked for have their content and all others none. Of the last ones as many are brought as it takes to find where
the log ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from quarry_mq.pipeline.source.options import ReadOptions
from quarry_mq.store.errors import Invalid
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStoreError
from quarry_mq.store.layout.paths import StorePaths, parse_segment_name, segment_name
from quarry_mq.store.offsets import PhysicalOffset

WHOLE_STORE_SPLIT_BYTES: Final = 1 << 62
"""Of a store elsewhere a task brings a segment, and reads all of it."""
_MARKS: Final = ("checkpoint", "abort")


@contextmanager
def root_with_end(options: ReadOptions) -> Iterator[Path]:
    """The store's directory, where the last segment that holds anything can be read.

    Raises ObjectStoreError, and Invalid for an address or options that cannot be meant, or no store there.
    """
    if options.url is None:
        yield options.path
        return
    with _Mirror(options.url, options) as mirror:
        for base in sorted(mirror.segments, reverse=True):
            if mirror.bring(base):
                break
        yield mirror.root


@contextmanager
def root_with_segment(options: ReadOptions, at: PhysicalOffset) -> Iterator[Path]:
    """The store's directory, where the segment that begins at an offset can be read. Raises as `root_with_end`."""
    if options.url is None:
        yield options.path
        return
    with _Mirror(options.url, options) as mirror:
        mirror.bring(at)
        yield mirror.root


class _Mirror:
    """A directory for as long as it is needed."""

    def __init__(self, url: str, options: ReadOptions) -> None:
        self._objects = CloudObjects.at(url, dict(options.storage))
        self._folder = TemporaryDirectory(prefix="quarry-object-store-")
        self.root = Path(self._folder.name)
        self.segments: dict[PhysicalOffset, int] = {}
        """Begin and size of each."""

    def __enter__(self) -> _Mirror:
        log = StorePaths(self.root).commit_log
        log.mkdir()
        for name, size in self._objects.names():
            folder, _, file = name.rpartition("/")
            base = parse_segment_name(file)
            if name in _MARKS:
                self._bring(name, self.root / name)
            elif folder == log.name and base is not None:
                self.segments[base] = size
                with (log / file).open("wb") as segment:
                    segment.truncate(size)
        if not self.segments:
            self._folder.cleanup()
            raise Invalid(f"{self._objects.address}: there is no store")
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def bring(self, base: PhysicalOffset) -> bool:
        """Bring a segment; whether it holds anything."""
        name = segment_name(base)
        path = StorePaths(self.root).commit_log / name
        used = self._bring(f"{path.parent.name}/{name}", path)
        if path.stat().st_size != self.segments[base]:
            raise ObjectStoreError(f"{self._objects.address}: {name} has not the size that the list tells")
        return used

    def _bring(self, name: str, target: Path) -> bool:
        used = False
        with target.open("wb") as file:
            for chunk in self._objects.chunks(name):
                if chunk.strip(b"\0"):
                    used = True
                    file.write(chunk)
                else:
                    file.seek(len(chunk), 1)  # a hole takes no room
            file.truncate()
        return used
