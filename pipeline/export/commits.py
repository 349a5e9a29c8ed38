"""Incremental exports: a run goes on where the last one ended. Each message is exported once, even if a run is killed.

    DEST/topicFolder=…/day=…/<from>-<to>-part-….parquet    what readers see
    DEST/_quarry/selection.json                      what is exported; a later run must export the same
    DEST/_quarry/<from>-<to>.json                    a commit: messages of [from, to) are exported, in these files
    DEST/_quarry/staging/…                           files of a run that has not committed

Files are written to the staging folder first. The commit names them, and only then they move to where
readers look. A run that finds a commit whose files have not all moved moves the rest. Staged files without a commit
are removed. Spark, DuckDB and pyarrow ignore names that begin with `_`.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from pyspark.sql import SparkSession

from quarry_mq.pipeline.files import Folder

FOLDER: Final = "_quarry"
STAGING: Final = "staging"
SELECTION: Final = "selection.json"


class Commit(NamedTuple):
    """A commit of the export: the messages of the physical offsets [begin, end) are exported."""

    begin: int
    end: int
    messages: int
    files: list[str]
    """Paths relative to the staging folder; the same paths are relative to the destination."""

    @property
    def name(self) -> str:
        return f"{self.begin:020}-{self.end:020}"


class Destination:
    """A folder that exports are written to."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._folder = Folder(spark, place)

    @property
    def place(self) -> str:
        return self._folder.place

    @property
    def staging(self) -> str:
        return f"{self.place}/{FOLDER}/{STAGING}"

    @property
    def local_staging(self) -> str | None:
        """Return the path of the staging folder if all machines have it as a local path, else None."""
        local = self._folder.local_path
        return None if local is None else f"{local}/{FOLDER}/{STAGING}"

    def is_strange(self) -> bool:
        """Return whether the folder holds something other than an export."""
        names = [name for name, _ in self._folder.list()]
        return bool(names) and FOLDER not in names

    def selection(self) -> dict[str, object] | None:
        text = self._folder.text(f"{FOLDER}/{SELECTION}")
        return None if text is None else json.loads(text)

    def set_selection(self, selection: dict[str, object]) -> None:
        self._write(f"{FOLDER}/{SELECTION}", json.dumps(selection, sort_keys=True))

    def commits(self) -> list[Commit]:
        """Return the commits in the order of their offsets."""
        names = sorted(name for name, _ in self._folder.list(FOLDER) if name.endswith(".json") and name != SELECTION)
        return [Commit(**json.loads(self._folder.text(f"{FOLDER}/{name}") or "")) for name in names]

    def staged_files(self) -> list[str]:
        """Return the files of the staging folder, without those that Spark keeps there for itself."""
        return sorted(self._folder.walk(f"{FOLDER}/{STAGING}"))

    def commit(self, commit: Commit) -> None:
        """Commit the messages as exported, then move their files to their final places."""
        self._write(f"{FOLDER}/{commit.name}.json", json.dumps(commit._asdict()))
        self.complete(commit)

    def complete(self, commit: Commit) -> None:
        """Move the files that an earlier run has committed and not moved. May be repeated."""
        for file in commit.files:
            folder, _, name = file.rpartition("/")
            target = f"{folder}/{commit.name}-{name}".lstrip("/")
            self._folder.move_unless_there(f"{FOLDER}/{STAGING}/{file}", target)
        self.clear()

    def clear(self) -> None:
        """Remove all staged files."""
        self._folder.remove(f"{FOLDER}/{STAGING}")

    def _write(self, relative: str, text: str) -> None:
        self._folder.write_text(relative, text, staged_as=f"{FOLDER}/.writing")
