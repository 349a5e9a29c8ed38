"""Running samples of Spring, whose output a test reads."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.broker import DELIVERED_TIMEOUT_S, until

JVM: Final = ("-Xmx128m", "-XX:TieredStopAtLevel=1")


class Sample:
    """A running sample, whose output the test reads."""

    def __init__(self, command: list[str], path: Path) -> None:
        """`path` is the file of its output."""
        self._path = path
        with path.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def says(self, *texts: str, times: int = 1) -> None:
        """Wait until it has written each of the texts so often."""

        def missing() -> list[str]:
            output = self.output
            return [each for each in texts if output.count(each) < times]

        try:
            until(lambda: not missing(), "the sample", timeout_s=DELIVERED_TIMEOUT_S)
        except AssertionError:
            raise AssertionError(f"no {missing()}:\n{self.output[-8_000:]}") from None

    def lines(self, pattern: str, *, count: int) -> list[re.Match[str]]:
        """Wait for so many lines that end with the pattern; return all that there are by then."""
        line = re.compile(rf"^.*{pattern}\n", re.MULTILINE)

        def found() -> list[re.Match[str]]:
            return list(line.finditer(self.output))

        try:
            until(lambda: len(found()) >= count, "the sample", timeout_s=DELIVERED_TIMEOUT_S)
        except AssertionError:
            raise AssertionError(f"{len(found())} of {count} lines {pattern}:\n{self.output[-8_000:]}") from None
        return found()


@contextmanager
def running(class_path: str, program: str, path: Path, *options: str, jvm: Sequence[str] = ()) -> Iterator[Sample]:
    """Run the main class `program` with options of Spring, and those of its JVM; its output goes to the file `path`."""
    sample = Sample(["java", *JVM, *jvm, "-cp", class_path, program, *options], path)
    try:
        yield sample
    finally:
        sample.process.kill()
        sample.process.wait(30)
