"""Parses the options of the data source, before anything is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Final, TypeVar

from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.store.offline import QueueSource

SPLIT_BYTES: Final = 64 << 20
CLOCK_MARGIN_MS: Final = 10 * 60 * 1000
OPTIONS: Final = (
    *("path", "table", "columns", "timestamps", "includeHeaders", "source", "mode", "checkCrc", "splitBytes"),
    *("clockMarginMs", "pushFilters", "maxBytesPerTrigger"),
)
STORAGE: Final = "storage."
"""Prefix of the options that are handed to the object store."""


_Kind = TypeVar("_Kind", bound=Enum)


class InvalidOption(ValueError):
    """An option of the data source has an unusable value. The text names the option."""


class Table(StrEnum):
    """The tables that can be read of a store."""

    MESSAGES = "messages"
    ENTRIES = "units"
    QUEUES = "queues"
    POSITIONS = "positions"
    INDEX = "index"


class DamageMode(StrEnum):
    """The action when bytes of the log are no record although a record must be there."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of `spark.read.format("quarry").option(…)`."""

    path: Path
    url: str | None = None
    """Address of a store whose files lie in an object store; None for a local store."""
    storage: tuple[tuple[str, str], ...] = ()
    """Options of the object store."""
    table: Table = Table.MESSAGES
    columns: tuple[str, ...] | None = None
    """Names in the requested order; None reads all but the body."""
    timestamps: TimeForm = TimeForm.TIMESTAMP
    include_headers: bool = True
    """Tells that the columns of Kafka include `headers`."""
    source: QueueSource | None = None
    """The kind of queues to read; None reads the queues that a broker would read."""
    mode: DamageMode = DamageMode.FAIL
    check_crc: bool = True
    split_bytes: int = SPLIT_BYTES
    """Bytes of the log that one task reads, approximately."""
    clock_margin_ms: int = CLOCK_MARGIN_MS
    """Milliseconds by which neighbouring store times may be out of order: a margin for filters by time."""
    batch_bytes_max: int | None = None
    """Bytes of the log that one batch of a stream has, at most; None: all there are."""
    push_filters: bool = False
    """Tells that the source applies filters.

    Spark keeps one reader for all queries of a loaded table, with the last filter in it. A query with another filter,
    or with none, gets the rows of that one.
    """


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options. Raises InvalidOption with the option's name."""
    storage = {name.lower(): text for name, text in options.items() if name.lower().startswith(STORAGE)}
    given = known_options({name: text for name, text in options.items() if name.lower() not in storage}, OPTIONS)
    path = given.get("path")
    if not path:
        raise InvalidOption("option 'path': the directory of a store is needed, or the option 'endpoints' of a broker")
    table = _one_of(Table, "table", given.get("table", Table.MESSAGES.value))
    is_elsewhere = "://" in path
    if storage and not is_elsewhere:
        raise InvalidOption(f"option {min(storage)!r}: {path!r} is no object store")
    columns, bytes_max = given.get("columns"), given.get("maxbytespertrigger")
    return ReadOptions(
        path=Path(path),
        url=path if is_elsewhere else None,
        storage=tuple(sorted((name.removeprefix(STORAGE), text) for name, text in storage.items())),
        table=table,
        columns=None if columns is None else column_names(columns),
        timestamps=_one_of(TimeForm, "timestamps", given.get("timestamps", TimeForm.TIMESTAMP.value)),
        include_headers=flag("includeHeaders", given.get("includeheaders", "true")),
        source=_one_of(QueueSource, "source", source) if (source := given.get("source")) is not None else None,
        mode=_one_of(DamageMode, "mode", given.get("mode", DamageMode.FAIL.value)),
        check_crc=flag("checkCrc", given.get("checkcrc", "true")),
        split_bytes=whole_number("splitBytes", given.get("splitbytes", str(SPLIT_BYTES)), minimum=1),
        clock_margin_ms=whole_number("clockMarginMs", given.get("clockmarginms", str(CLOCK_MARGIN_MS)), minimum=0),
        batch_bytes_max=None if bytes_max is None else whole_number("maxBytesPerTrigger", bytes_max, minimum=1),
        push_filters=flag("pushFilters", given.get("pushfilters", "false")),
    )


def known_options(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the options by names in lower case, as Spark ignores case. Raises InvalidOption for an unknown option."""
    names = tuple(known)
    given = {name.lower(): text for name, text in options.items()}
    for name in sorted(options):
        if name.lower() not in {each.lower() for each in names}:
            raise InvalidOption(f"option {name!r}: no such option{nearest(name, names)}; there are {', '.join(names)}")
    return given


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question for the known name that is most like this one, or nothing if none is like it."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[found[0]]!r}?)" if found else ""


def column_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidOption(f"option 'columns': {text!r} holds an empty name")
    return names


def _one_of(kind: type[_Kind], option: str, text: str) -> _Kind:
    values = [str(each.value) for each in kind]
    try:
        return kind(text.lower())
    except ValueError:
        raise InvalidOption(
            f"option {option!r}: {text!r} is none of {', '.join(values)}{nearest(text, values)}"
        ) from None


def flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"option {option!r}: {text!r} is neither true nor false")
    return text.lower() == "true"


def whole_number(option: str, text: str, *, minimum: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise InvalidOption(f"option {option!r}: {text!r} is no whole number of at least {minimum}")
    return number
