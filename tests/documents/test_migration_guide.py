"""docs/migrate-from-rocketmq.md, word by word, on a store that Apache RocketMQ 5.5.0 wrote."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

import pytest

from tests.documents.pages import ROOT
from tests.documents.playing import play
from tests.documents.session import Session
from tests.documents.table import yours

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE: Final = ROOT / "docs" / "migrate-from-rocketmq.md"


def digests(root: Path) -> dict[str, str]:
    """Of every file below `root`."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder, _, names in os.walk(root)
        for path in (Path(folder) / name for name in names)
    }


def test_every_step_does_what_the_guide_says(tmp_path: Path) -> None:
    theirs = yours(PAGE, tmp_path / "page")
    before = digests(Path(theirs["ROCKETMQ_STORE"]))
    with Session(tmp_path / "page") as session:
        assert play(PAGE, session, yours=theirs) > 60
    assert digests(Path(theirs["ROCKETMQ_STORE"])) == before != {}
