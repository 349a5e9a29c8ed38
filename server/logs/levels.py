"""Levels of log lines, by name and by number."""

from __future__ import annotations

import logging


def number_of(level: str) -> int:
    """The number of a level by its name in lower case."""
    return logging.getLevelNamesMapping()[level.upper()]


def known_level(number: int) -> int:
    """The nearest level at or below a number that some library made up."""
    return max(logging.DEBUG, min(logging.CRITICAL, number // 10 * 10))
