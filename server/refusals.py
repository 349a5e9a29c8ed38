"""Why no sends are taken: each cause has a reason of its own until it is over."""

from __future__ import annotations

import structlog

log = structlog.get_logger(__name__)


class Refusals:
    """Reasons by what they are about: the disk that is too full, descriptors that are few."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    @property
    def first(self) -> str | None:
        """The reason that has been there for longest; None: sends are taken."""
        return next(iter(self._reasons.values()), None)

    def put(self, cause: str, reason: str) -> bool:
        """The reason of a cause, empty when it is over. Returns whether there is one, or was."""
        before = self._reasons.get(cause, "")
        if reason:
            self._reasons[cause] = reason
        else:
            self._reasons.pop(cause, None)
        if reason and not before:
            log.warning("sends are refused", reason=reason)
        elif before and not reason and self.first is None:
            log.warning("sends are taken again", reason=before)
        return bool(reason or before)
