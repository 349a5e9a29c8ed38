"""What is special of single pages, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests import golden


def prepared(page: Path, folder: Path) -> None:
    """Puts into the folder of a page what its reader has before the first line."""


def yours(page: Path, folder: Path) -> Mapping[str, str]:
    """What pages ask their reader to put in."""
    if page.name == "migrate-from-rocketmq.md":
        return {"ROCKETMQ_STORE": str(golden.unpack("file-clean", folder.parent / "rocketmq") / "store")}
    return {}
