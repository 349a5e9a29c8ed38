"""The end of a writer's life after a disk error."""

from __future__ import annotations

from store.errors import StorePoisoned


class Poison:
    """Shared by everything that writes one log: set once, never taken back.

    After a failed fsync Linux counts the pages as clean, so the next fsync reports success over data that is
    gone ("fsyncgate"). Only reading the disk again, at a restart, tells what is there.
    """

    __slots__ = ("_cause", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        """What failed; None as long as all is well. Set by any thread, only ever once."""
        self._cause: Exception | None = None

    def set(self, action: str, cause: Exception) -> StorePoisoned:
        """Remember the first failure. Returns the error to raise."""
        if self.reason is None:
            self._cause = cause
            self.reason = f"{action} failed ({cause}); restart to recover what is on disk"
        return StorePoisoned(self.reason)

    def check(self) -> None:
        """Raises StorePoisoned once anything has failed."""
        if self.reason is not None:
            raise StorePoisoned(self.reason) from self._cause
