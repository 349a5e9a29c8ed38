"""Text functions that follow Java's rules, where RocketMQ uses them to interpret what a client sent.

Python's own `strip` and `split` know more white space than Java's `trim`, and other white space than its `isBlank`:
U+3000 at the beginning of a tag belongs to the tag.
"""

from __future__ import annotations

from typing import Final

_UP_TO_SPACE: Final = "".join(map(chr, range(0x21)))

_WHITE_SPACE: Final = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f "
    "\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)
"""White space as Java defines it: without the non-breaking spaces (U+00A0, U+2007, U+202F), and without U+0085."""


def trimmed(text: str) -> str:
    """Return the text without characters up to U+0020 at both ends, as `String.trim` does."""
    return text.strip(_UP_TO_SPACE)


def is_blank(text: str) -> bool:
    """Return whether the text holds nothing but white space, as `StringUtils.isBlank` does."""
    return not text.strip(_WHITE_SPACE)
