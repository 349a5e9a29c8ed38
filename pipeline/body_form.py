"""What an export makes of bodies. Without Spark, so that commands know it before they need Spark."""

from __future__ import annotations

from enum import StrEnum


class BodyForm(StrEnum):
    """What becomes of a body. All but `none` and `stored` have it uncompressed."""

    NONE = "none"
    STORED = "stored"
    PLAIN = "plain"
    TEXT = "text"
    BASE64 = "base64"
