"""When a file of the log goes by its age, at the earliest."""

from __future__ import annotations

from datetime import datetime

from store.expiry import ExpirySettings

HOUR_MS = 3_600_000


def expires_at_ms(settings: ExpirySettings, newest_ms: int, now_ms: int) -> int:
    """For a file without a record newer than that; the hours are those of the local clock."""
    at_ms = max(newest_ms + settings.retention_ms, now_ms)
    if not settings.delete_when:
        return at_ms
    for _ in range(48):  # twice a day, for clocks that are put forward
        try:
            local = datetime.fromtimestamp(at_ms / 1000)
        except (OverflowError, ValueError, OSError):  # the records' times may be any number
            return at_ms
        if local.hour in settings.delete_when:
            break
        at_ms += HOUR_MS - (local.minute * 60_000 + local.second * 1000 + local.microsecond // 1000)
    return at_ms
