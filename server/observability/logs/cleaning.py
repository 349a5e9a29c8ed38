"""Make the values of log lines harmless: a client may have sent them.

One event must stay one line, and no line may be forged: a name with a line break in it would forge the next line, one
with escape sequences would control the operator's terminal, and a long one would fill the disk.
"""

from __future__ import annotations

from typing import Final

from structlog.typing import EventDict, WrappedLogger

VALUE_LENGTH_MAX: Final = 2_048
"""Most characters of one value. Errors that name a file are far shorter."""
TRACEBACK_LENGTH_MAX: Final = 16_384
CUT: Final = "…"
TRACEBACK: Final = "exception"


def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Clean all values of an event and drop keys without one. A processor for after exceptions become text."""
    for key, value in tuple(event.items()):
        if value is None:
            del event[key]
        elif key == TRACEBACK:
            event[key] = clean_traceback(str(value))
        elif isinstance(value, str):
            event[key] = clean_text(value, VALUE_LENGTH_MAX)
        elif not isinstance(value, int | float):
            event[key] = _clean_other(value)
    return event


def clean_text(text: str, length_max: int) -> str:
    """Return printable text on one line, of `length_max` characters at most."""
    if len(text) > length_max:
        text = text[: length_max - 1] + CUT
    return text if text.isprintable() else "".join(map(_visible, text))


def clean_traceback(text: str) -> str:
    """Indent all lines but the first, so that none looks like a log line. Of a long text the end is kept."""
    if len(text) > TRACEBACK_LENGTH_MAX:
        text = CUT + text[-TRACEBACK_LENGTH_MAX:]
    return "\n  ".join(clean_text(line, VALUE_LENGTH_MAX) for line in text.split("\n"))


def _clean_other(value: object) -> object:
    """Return short collections as they are, and long ones as shortened text."""
    text = repr(value)
    return value if len(text) <= VALUE_LENGTH_MAX else clean_text(text, VALUE_LENGTH_MAX)


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
