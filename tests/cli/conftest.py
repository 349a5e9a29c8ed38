"""Fixtures of the tests that run commands."""

from __future__ import annotations

import pytest

from pipeline.java import JavaMissing, find_java


@pytest.fixture
def java() -> None:
    """For tests that cannot do without a Java that Spark runs on."""
    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
