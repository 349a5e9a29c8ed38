"""Reads and writes folders in any file system that Spark knows, by Hadoop's own functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession


class Folder:
    """A folder in one of Spark's file systems. Paths are relative to it; file system errors come as Java's."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Spark gives no other way to its file systems
        self.place: Final = place.rstrip("/")
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._files: Any = self._path(place).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
        self._read_text: Any = jvm.org.apache.commons.io.IOUtils

    @property
    def local_path(self) -> str | None:
        """Return the folder's path if it is in the local file system, else None."""
        whole = self._files.makeQualified(self._path(self.place)).toUri()
        return str(whole.getPath()) if whole.getScheme() == "file" else None

    def list(self, relative: str = "") -> list[tuple[str, bool]]:
        """Return the names in a folder, each with whether it is a folder itself; none if the folder does not exist."""
        path = self._absolute(relative)
        if not self._files.exists(path):
            return []
        return [(each.getPath().getName(), each.isDirectory()) for each in self._files.listStatus(path)]

    def walk(self, root: str, below: str = "") -> Iterator[str]:
        """Yield the files at any depth, relative to `root`.

        Names with a leading `_` or `.` are left out, as Spark does.
        """
        for name, is_folder in self.list(f"{root}/{below}".rstrip("/")):
            relative = f"{below}/{name}".lstrip("/")
            if name.startswith(("_", ".")):
                continue
            if is_folder:
                yield from self.walk(root, relative)
            else:
                yield relative

    def text(self, relative: str) -> str | None:
        """Return the text of a file, or None if the file does not exist."""
        path = self._absolute(relative)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._read_text.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, relative: str, text: str, *, staged_as: str) -> None:
        """Replace a file. Where the file system renames atomically, readers find either the old file or the new one."""
        made = self._absolute(staged_as)
        stream = self._files.create(made, True)  # noqa: FBT003 - Java has no names
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        path = self._absolute(relative)
        if not self._files.rename(made, path):
            raise OSError(f"{path}: could not be written")

    def move_unless_there(self, source: str, target: str) -> None:
        """Move a file unless the target exists, and make the folders that it needs."""
        origin, goal = self._absolute(source), self._absolute(target)
        if self._files.exists(goal):
            return
        self._files.mkdirs(goal.getParent())
        if not self._files.rename(origin, goal):
            raise OSError(f"{origin}: could not be moved to {goal}")

    def remove(self, relative: str) -> None:
        """Remove a folder with everything in it; a missing folder is no error."""
        self._files.delete(self._absolute(relative), True)  # noqa: FBT003

    def _absolute(self, relative: str) -> Any:
        return self._path(f"{self.place}/{relative}" if relative else self.place)
