"""What is special of single pages, in one place: what is not run and why, what is slow, and what a page needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests import golden
from tests.documents.pages import PAGES, ROOT, blocks

FREE_LANGUAGES: Final = frozenset({"text"})
"""Pictures, bytes and formulas."""

NOT_RUN: Final = (
    # page, the reason that the page gives, how many blocks
    ("docs/migrate-from-rocketmq.md", "needs Apache RocketMQ", 1),
)
"""All console blocks that are not run, and other blocks that are not looked into. Of all of them the `quarry` commands are
checked against the command line.
"""

SLOW: Final = frozenset({"docs/migrate-from-rocketmq.md"})
"""Pages that take more than some seconds."""

PLAYED: Final = tuple(page for page in PAGES if any(each.language == "console" and each.is_run for each in blocks(page)))


def prepared(page: Path, folder: Path) -> None:
    """Puts into the folder of a page what its reader has before the first line."""
    if page == ROOT / "README.md":
        # a checkout in which `make` has installed everything already
        (folder / ".venv" / "bin").mkdir(parents=True)
        for name in ("quarry", "python"):
            (folder / ".venv" / "bin" / name).symlink_to(folder.parent / f"{folder.name}-commands" / name)
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy2(ROOT / name, folder)
        for name in (".installed", ".installed-dev"):
            (folder / ".venv" / name).touch()


def yours(page: Path, folder: Path) -> Mapping[str, str]:
    """What pages ask their reader to put in."""
    if page.name == "migrate-from-rocketmq.md":
        return {"ROCKETMQ_STORE": str(golden.unpack("file-clean", folder.parent / "rocketmq") / "store")}
    return {}
