"""The format page shows the bytes that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.record.records import message, record

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "commit-log.md"


def test_example_of_the_page() -> None:
    (example,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    shown = bytes.fromhex("".join(line.partition("|")[0] for line in example.splitlines()))
    assert shown == record(message(topic="T", body=b"hi", properties={"a": "b"}), 4096)
