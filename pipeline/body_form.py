"""Defines the forms in which an export can write bodies.

It does not import Spark, so that commands can read it without.
"""

from __future__ import annotations

from enum import StrEnum


class BodyForm(StrEnum):
    """The form of a body in the exported files. All forms but `none` and `stored` are uncompressed."""

    NONE = "none"
    STORED = "stored"
    PLAIN = "plain"
    TEXT = "text"
    BASE64 = "base64"
