"""Bodies of messages as people get to see them."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""All control characters but those that lay out text."""


def body_text(body: bytes) -> str | None:
    """None for what is no text, or would do something to a terminal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text
