"""Progress of long work, for who sits at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quarry_mq.store.progress import ReportProgress


def is_watched() -> bool:
    """Whether somebody looks at standard error."""
    return sys.stderr.isatty()


@contextmanager
def shown_progress() -> Iterator[ReportProgress]:
    """Bars for who watches, nothing for a program."""
    if is_watched():
        # not at the top: it takes a while to load, and most commands draw nothing
        from quarry_mq.cli.terminal.progress_bar import progress_bar

        with progress_bar() as report:
            yield report
    else:
        yield lambda _: None
