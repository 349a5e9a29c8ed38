"""The parameters of each kind of job. They are kept in JSON, so all fields are numbers, texts and lists of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.store.errors import Invalid
from quarry_mq.store.offsets import QueueOffset
from quarry_mq.store.state.jobs import Job

OFFSETS_MAX: Final = 1_000
"""Dead letters that one job may name by offset."""


class JobKind(Enum):
    """The kinds of jobs. The value is the kind's name, also in metrics."""

    RESET_OFFSET = "reset-offset"
    RESEND_DEAD_LETTERS = "resend-dead-letters"
    RESEND_MESSAGES = "resend-messages"


@dataclass(frozen=True, kw_only=True, slots=True)
class OffsetReset:
    """Move a group's next offset in one queue or all queues of a topic, lite topics included."""

    group: str
    topic: str
    to: str
    """`earliest`, `latest`, `offset` or `time`; for the last two, `at` is the offset, or the time in ms since 1970."""
    at: int = 0
    queue: int | None = None

    @classmethod
    def of(cls, group: str, topic: str, target: ResetTarget, queue: int | None = None) -> OffsetReset:
        match target:
            case Place():
                return cls(group=group, topic=topic, to=target.value, queue=queue)
            case StoredSince(time_ms):
                return cls(group=group, topic=topic, to="time", at=time_ms, queue=queue)
            case int():
                return cls(group=group, topic=topic, to="offset", at=target, queue=queue)

    @property
    def target(self) -> ResetTarget:
        match self.to:
            case "time":
                return StoredSince(self.at)
            case "offset":
                return QueueOffset(self.at)
            case _:
                return Place(self.to)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetterResend:
    """Send dead letters of a group to it once more: these offsets, or all that were never sent again."""

    group: str
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageResend:
    """Send stored messages of a topic once more, to `to_topic`.

    The messages are those that have `key` (unless it is empty), or those of one queue or of all queues, stored in
    [from_ms, to_ms], with offsets in [from_offset, to_offset). Only what lies below `log_end`, and so was stored when
    the job was requested, is sent.
    """

    topic: str
    to_topic: str
    log_end: int
    key: str = ""
    queue: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None


Asked = OffsetReset | DeadLetterResend | MessageResend

_TYPES: Final[Mapping[JobKind, type[Asked]]] = {
    JobKind.RESET_OFFSET: OffsetReset,
    JobKind.RESEND_DEAD_LETTERS: DeadLetterResend,
    JobKind.RESEND_MESSAGES: MessageResend,
}


def kind_of(asked: Asked) -> JobKind:
    return next(kind for kind, each in _TYPES.items() if isinstance(asked, each))


def fields_of(asked: Asked) -> dict[str, Any]:
    return asdict(asked)


def asked_of(job: Job) -> Asked:
    """Return the parameters of a job. Raises Invalid for a job that a newer version has begun."""
    try:
        fields: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in job.asked.items()
        }
        return _TYPES[JobKind(job.kind)](**fields)
    except (ValueError, TypeError) as error:
        raise Invalid(f"this version of the broker does not support job {job.id} ({job.kind})") from error
