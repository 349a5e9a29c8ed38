"""Shows progress of long work to a user at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quarry_mq.protocol.clock import ReportProgress


def is_watched() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def shown_progress() -> Iterator[ReportProgress]:
    """Give a reporter that draws bars on a terminal, and does nothing otherwise."""
    if is_watched():
        # not at the top: it takes a while to load, and most commands draw nothing
        from quarry_mq.cli.terminal.progress_bar import progress_bar

        with progress_bar() as report:
            yield report
    else:
        yield lambda _: None
