"""Message bodies in a form that people can read."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""All control characters except those that lay out text."""


def body_text(body: bytes) -> str | None:
    """Return the body as text, or None if it is not text or has control characters that could affect a terminal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text
