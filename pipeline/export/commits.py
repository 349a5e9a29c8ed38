"""Exports that go on where the last one ended: no message twice, none left out, whenever a run is killed.

    DEST/topic=…/day=…/<from>-<to>-part-….parquet    what readers see
    DEST/_quarry/selection.json                      what is exported; a later run must want the same
    DEST/_quarry/<from>-<to>.json                    a commit: messages of [from, to) are exported, in these files
    DEST/_quarry/staging/…                           files of a run that has not committed

Files are written to the staging folder first. The commit names them, and only then they move to where readers look.
A run that finds a commit whose files have not all moved moves the rest; what is staged without a commit goes.
Names that begin with `_` are passed over by Spark, DuckDB and pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

FOLDER: Final = "_quarry"
STAGING: Final = "staging"
SELECTION: Final = "selection.json"


class Commit(NamedTuple):
    """Messages of the physical offsets [begin, end) are exported."""

    begin: int
    end: int
    messages: int
    files: list[str]
    """Relative to the staging folder and to the destination alike."""

    @property
    def name(self) -> str:
        return f"{self.begin:020}-{self.end:020}"


class Destination:
    """A folder in any file system that Spark knows, by Hadoop's own functions."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark gives no other way to its file systems
        self.place: Final = place.rstrip("/")
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._files: Any = self._path(place).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
        self._read_text: Any = jvm.org.apache.commons.io.IOUtils

    @property
    def staging(self) -> str:
        return f"{self.place}/{FOLDER}/{STAGING}"

    def is_strange(self) -> bool:
        """Whether something lies here, and no export."""
        names = [name for name, _ in self._list("")]
        return bool(names) and FOLDER not in names

    def selection(self) -> dict[str, object] | None:
        text = self._text(f"{FOLDER}/{SELECTION}")
        return None if text is None else json.loads(text)

    def set_selection(self, selection: dict[str, object]) -> None:
        self._write(f"{FOLDER}/{SELECTION}", json.dumps(selection, sort_keys=True))

    def commits(self) -> list[Commit]:
        """In the order of offsets."""
        names = sorted(name for name, _ in self._list(FOLDER) if name.endswith(".json") and name != SELECTION)
        return [Commit(**json.loads(self._text(f"{FOLDER}/{name}") or "")) for name in names]

    def staged_files(self) -> list[str]:
        """What lies in the staging folder, but for what Spark leaves there for itself."""
        return sorted(self._walk(f"{FOLDER}/{STAGING}", ""))

    def commit(self, commit: Commit) -> None:
        """From here on the messages are exported. Then the files move to their places."""
        self._write(f"{FOLDER}/{commit.name}.json", json.dumps(commit._asdict()))
        self.complete(commit)

    def complete(self, commit: Commit) -> None:
        """Move what a run before this one has committed and not moved. Repeatable."""
        for file in commit.files:
            folder, _, name = file.rpartition("/")
            target = self._absolute(f"{folder}/{commit.name}-{name}".lstrip("/"))
            source = self._absolute(f"{FOLDER}/{STAGING}/{file}")
            if not self._files.exists(target):
                self._files.mkdirs(target.getParent())
                if not self._files.rename(source, target):
                    raise OSError(f"{source}: could not be moved to {target}")
        self.clear()

    def clear(self) -> None:
        """Remove what is staged."""
        self._files.delete(self._absolute(f"{FOLDER}/{STAGING}"), True)  # noqa: FBT003 - Java has no names

    # -- files

    def _absolute(self, relative: str) -> Any:
        return self._path(f"{self.place}/{relative}" if relative else self.place)

    def _list(self, relative: str) -> list[tuple[str, bool]]:
        """Names, and whether each is a folder; none where there is no such folder."""
        path = self._absolute(relative)
        if not self._files.exists(path):
            return []
        return [(each.getPath().getName(), each.isDirectory()) for each in self._files.listStatus(path)]

    def _walk(self, root: str, below: str) -> Iterator[str]:
        for name, is_folder in self._list(f"{root}/{below}".rstrip("/")):
            relative = f"{below}/{name}".lstrip("/")
            if name.startswith(("_", ".")):
                continue
            if is_folder:
                yield from self._walk(root, relative)
            else:
                yield relative

    def _text(self, relative: str) -> str | None:
        path = self._absolute(relative)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._read_text.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, relative: str, text: str) -> None:
        """Replace a file: it is the old or the new one at every moment where the file system renames at once."""
        path, made = self._absolute(relative), self._absolute(f"{FOLDER}/.writing")
        stream = self._files.create(made, True)  # noqa: FBT003
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        if not self._files.rename(made, path):
            raise OSError(f"{path}: could not be written")
