"""The pages are played: what they say is typed comes to what they say comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.pages import ROOT
from tests.documents.playing import play
from tests.documents.session import Session
from tests.documents.table import PLAYED, SLOW, prepared, yours

PLAYED_WITH_ROCKETMQ = ("migrate-from-rocketmq", "follow-rocketmq")
"""Pages that `test_fleet_page` plays, with programs of a fleet."""


def marked(page: Path) -> object:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[pytest.mark.slow, pytest.mark.timeout(1800)] if name in SLOW else [])


@pytest.mark.parametrize("page", [marked(page) for page in PLAYED if not page.name.startswith(PLAYED_WITH_ROCKETMQ)])
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    with Session(folder) as session:
        prepared(page, folder)
        assert play(page, session, yours=yours(page, folder)) > 0
