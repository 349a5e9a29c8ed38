"""Log each call that was denied, and each change that was made through the admin port.

Lines go to the broker's log and, if the settings name one, to an audit file. They never hold a secret, nor a call's
content.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from datetime import UTC, datetime
from logging import LogRecord, makeLogRecord
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.security.denied_callers import DeniedCallers

REPEATED_AFTER_S: Final = 60.0
KINDS_MAX: Final = 1024
"""Kinds of denials that are told apart: no more lines than this are written in `REPEATED_AFTER_S`."""

TEXT_MAX: Final = 256
"""Characters that are kept of texts from callers."""

NOBODY: Final = "-"
CLAIMED: Final = "claimed"
"""Means of authentication that is logged for a user name without proof."""

log = structlog.get_logger(__name__)


class AuditFile(WatchedFileHandler):
    """Write JSON lines to a file, reopened after it was moved away. A failure to write is logged once."""

    def __init__(self, path: Path) -> None:
        """Raises OSError that names the file."""
        super().__init__(path, encoding="utf-8")
        self._is_failing = False

    def write(self, line: str) -> None:
        """Append a line. Raises nothing."""
        self.handle(makeLogRecord({"msg": line}))

    def emit(self, record: LogRecord) -> None:
        try:
            self.reopenIfNeeded()
            self.stream = self.stream or self._open()
            self.stream.write(record.getMessage() + "\n")
            self.flush()
        except (OSError, ValueError) as error:
            if not self._is_failing:
                log.error("the audit file cannot be written", file=self.baseFilename, error=str(error))
            self._is_failing = True
        else:
            self._is_failing = False


class Subject(NamedTuple):
    """The call that a line is about. `method` is its short name."""

    port: str
    method: str
    peer: str
    user: str = NOBODY
    how: str = NOBODY

    def of(self, identity: Identity | None) -> Subject:
        return self if identity is None else self._replace(user=identity.user, how=identity.how.value)


class _Kind(NamedTuple):
    subject: Subject
    outcome: str


class _Repeated:
    """Hold when a kind of denial was last written, and how often it came since; `reason` is that of the last one."""

    __slots__ = ("reason", "suppressed", "written_s")

    def __init__(self, reason: str, written_s: float) -> None:
        self.reason = reason
        self.written_s = written_s
        self.suppressed = 0


class Audit:
    """Write denials of a kind (who, from where, which call, why) once a minute, with the number since."""

    def __init__(self, clock: Clock, file: AuditFile | None = None) -> None:
        self._clock = clock
        self._file = file
        self._denials: OrderedDict[_Kind, _Repeated] = OrderedDict()
        self._beyond = 0
        self.callers = DeniedCallers(clock)

    def denied(self, subject: Subject, outcome: str, reason: str) -> None:
        """Log a denied call. `outcome` tells kinds of denials apart; `reason` is for people and may vary."""
        # connections come and go, programs and their addresses stay
        subject = subject._replace(peer=subject.peer.rpartition(":")[0] or subject.peer, user=subject.user[:TEXT_MAX])
        user = "" if subject.user == NOBODY else subject.user
        self.callers.note(subject.port, user, subject.peer, outcome, reason[:TEXT_MAX])
        kind, now_s = _Kind(subject, outcome[:TEXT_MAX]), self._clock.monotonic_s()
        known = self._denials.get(kind)
        if known is not None and now_s - known.written_s < REPEATED_AFTER_S:
            known.suppressed += 1
            known.reason = reason[:TEXT_MAX]
            return
        if known is None and len(self._denials) >= KINDS_MAX:
            self._beyond += 1
            return
        self._write_denial(kind, reason, known.suppressed if known else 0)
        self._denials[kind] = _Repeated(reason[:TEXT_MAX], now_s)
        self._denials.move_to_end(kind)

    def changed(self, subject: Subject, resources: str, outcome: str) -> None:
        """Log a change, or an attempt at one: `outcome` says how it ended."""
        resources = resources[:TEXT_MAX]
        port, method, peer, user, how = subject
        log.info(
            "admin change", port=port, method=method, peer=peer, user=user, how=how, resource=resources, outcome=outcome
        )
        self._write("admin change", subject, resource=resources, outcome=outcome)

    def sweep(self) -> None:
        """Drop kinds written a minute ago, with a line for denials since; to be called every few seconds."""
        before_s = self._clock.monotonic_s() - REPEATED_AFTER_S
        while self._denials and (oldest := next(iter(self._denials.items())))[1].written_s <= before_s:
            kind, repeated = oldest
            del self._denials[kind]
            if repeated.suppressed:
                self._write_denial(kind, repeated.reason, repeated.suppressed)
        if self._beyond and len(self._denials) < KINDS_MAX:
            log.warning("more kinds of denials than are told apart", suppressed=self._beyond)
            self._beyond = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_denial(self, kind: _Kind, reason: str, repeated: int) -> None:
        (port, method, peer, user, how), outcome = kind
        reason, suppressed = reason[:TEXT_MAX], repeated or None
        log.warning(
            "call denied",
            port=port,
            method=method,
            peer=peer,
            user=user,
            how=how,
            outcome=outcome,
            reason=reason,
            suppressed=suppressed,
        )
        self._write("call denied", kind.subject, outcome=outcome, reason=reason, suppressed=suppressed)

    def _write(self, event: str, subject: Subject, **more: object) -> None:
        """Write a line to the audit file, if there is one."""
        if self._file is not None:
            at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
            known = {key: value for key, value in more.items() if value is not None}
            self._file.write(json.dumps({"at": at, "event": event, **subject._asdict(), **known}))
