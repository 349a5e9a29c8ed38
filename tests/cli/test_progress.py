from __future__ import annotations

import pytest

from cli.progress import progress_bar
from store.recovery import Progress


def test_the_bar_names_each_phase_and_keeps_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as report:
        report(Progress("recovering", 10, 40))
        report(Progress("recovering", 20, 40))
        report(Progress("completing", 1, 2))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "recovering" in shown.err
    assert "completing" in shown.err
