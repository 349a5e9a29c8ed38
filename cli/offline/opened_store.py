"""Opens a store for offline commands, and ends them with one line when something fails."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from structlog.typing import EventDict

from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.text import one_line
from quarry_mq.kv import EngineCorrupt, KvError
from quarry_mq.store.errors import BrokerError, StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.offline import OfflineStore


@contextmanager
def opened(store: Path) -> Iterator[OfflineStore]:
    """Open the store while the block runs; errors end the command as in `reporting_errors`.

    Nothing is logged: the result of the command tells everything about a store that is only read.
    """
    with reporting_errors(store), logs_aside(logging.CRITICAL), OfflineStore.open(PosixDisk(), store) as open_store:
        yield open_store


@contextmanager
def logs_aside(level: int) -> Iterator[None]:
    """Send logs of the block, from a level on, to stderr: they must not stand between the lines of the result."""
    structlog.configure(
        processors=[_harmless, *structlog.get_config()["processors"]],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    try:
        yield
    finally:
        structlog.reset_defaults()


def _harmless(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape text values of a log line: names in a store may come from anybody."""
    return {name: one_line(value) if isinstance(value, str) else value for name, value in event.items()}


@contextmanager
def reporting_errors(store: Path) -> Iterator[None]:
    """Turn errors of the block into one line on stderr and an exit status.

    Damage is a finding; everything else (no store, locked, unreadable, no such queue) means that the command could
    not run.
    """
    try:
        yield
    except (StoreDamaged, EngineCorrupt) as damage:
        end(Exit.FINDING, _line(store, str(damage)))
    except BrokenPipeError:
        raise  # of our own output: typer knows what to do
    except (BrokerError, KvError) as error:
        end(Exit.COULD_NOT_RUN, _line(store, str(error)))
    except OSError as error:
        end(Exit.COULD_NOT_RUN, _line(store, f"{error.filename or store}: {error.strerror or error}"))


def _line(store: Path, text: str) -> str:
    """Return one line that names the store, or a file in it."""
    line = " ".join(text.split())
    return line if str(store) in line else f"{store}: {line}"
