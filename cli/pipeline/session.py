"""Opens the Spark session of a command, and ends the command if Spark cannot run.

Spark is imported when a command needs it: it is an extra, and importing takes a second.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from quarry_mq.cli.offline.opened_store import logs_aside, reporting_errors
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say, word

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from quarry_mq.pipeline.damage import DamagedPlaces

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: `local[4]`, `spark://host:7077`, `k8s://…`. Default: all cores of this machine.",
        show_default=False,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Spark setting. Repeatable."),
]

_QUIET: Final = {"spark.log.level": "OFF"}
"""Default settings of a session: the command shows an error in one line, so Spark logs nothing by default."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable that is set when `spark-submit` runs the command: it has configured logging already."""
_RAISED: Final = re.compile(
    r"^(?:\w+\.)*(?:StoreDamaged|StoreUnusable|NotAStore|StoreLocked"
    r"|InvalidOption|CallRefused|BrokerUnreachable|UnusableRow|MessagesLost): (.+)$",
    re.MULTILINE,
)
"""Finds one of our errors at the end of a task's trace, which Spark hands on as text."""
_PYTHON_ERROR: Final = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(\S.*)$", re.MULTILINE)
_JAVA_CAUSE: Final = re.compile(r"^Caused by: (?!org\.apache\.spark\.api\.python)(.+)$", re.MULTILINE)
"""Finds other errors at the end of a task's trace."""


@contextmanager
def spark_session(
    name: str, store: Path, master: str | None, conf: Sequence[str] | None, phases: Sequence[str]
) -> Iterator[SparkSession]:
    """Give a session for work over a store. The user sees its stages as `phases`, in their order.

    Ends the command when Spark or its Java is missing, and when a job of the block fails; if one of our own errors was
    the reason, with its text.
    """
    settings = ({} if _SUBMITTED in os.environ else _QUIET) | dict(_setting(text) for text in conf or ())
    try:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        from quarry_mq.pipeline.data_source import WorkersUnusable
        from quarry_mq.pipeline.progress import reported
        from quarry_mq.pipeline.session import JavaMissing, open_session
        from quarry_mq.pipeline.source.options import InvalidOption
    except ImportError as missing:
        end(Exit.COULD_NOT_RUN, f"{missing.name or missing} is missing: pip install 'quarry-mq[pipeline]'")
    try:
        spark = open_session(f"quarry {name}", master=master, settings=settings)
    except (JavaMissing, WorkersUnusable) as missing:
        end(Exit.COULD_NOT_RUN, str(missing))
    failed: Exception | None = None
    with reporting_errors(store), logs_aside(logging.WARNING):
        try:
            with shown_progress() as report, reported(spark, phases, report):
                yield spark
        except (PySparkException, Py4JJavaError, InvalidOption) as error:
            failed = error
        finally:
            spark.stop()
    # after the stop, in which workers of Spark that were still writing complain about a broken pipe
    if failed is not None:
        end(*_verdict(str(failed)))


def damage_fields(damage: DamagedPlaces) -> dict[str, object]:
    """Return the fields of a JSON answer that say where the log is damaged."""
    return {"damagedPlaces": damage.count, "firstDamaged": list(damage.first)}


def tell_damage(damage: DamagedPlaces) -> None:
    """Print on standard error where the log is damaged."""
    if damage.count:
        say(f"{damage.count:,} places of the log are damaged and left out:", err=True)
    for each in damage.first:
        say(word(each, err=True), err=True)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        end(Exit.COULD_NOT_RUN, f"--conf {text!r}: NAME=VALUE is needed")
    return name, value


def _verdict(text: str) -> tuple[Exit, str]:
    ours = _RAISED.search(text)
    if ours is None:
        return Exit.COULD_NOT_RUN, _cause(text)
    return Exit.FINDING if "StoreDamaged" in ours[0] else Exit.COULD_NOT_RUN, ours[1]


def _cause(text: str) -> str:
    """Return the error that a task raised, in one line: Python's last error of the trace, or Java's innermost cause."""
    for pattern in (_PYTHON_ERROR, _JAVA_CAUSE):
        causes = pattern.findall(text)
        if causes:
            return str(causes[-1])
    return text.strip().partition("\n")[0]
