"""No conformance point of docs/formats/protocol.md is without a test that is named by it."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_point_has_a_test() -> None:
    found: set[int] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for name in re.findall(r"point_[0-9]{2}(?:_and_[0-9]{2})?", path.read_text()):
            found.update(int(number) for number in re.findall("[0-9]{2}", name))
    assert found == set(range(1, 61))
