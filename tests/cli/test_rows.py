"""Lists of commands say so if they are empty, and programs get no words."""

from __future__ import annotations

import pytest

from quarry_mq.cli.terminal.output import print_rows


def test_an_empty_list_says_so_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], ("name", "queues"), as_json=False, kind="topics")
    assert capsys.readouterr().out == "no topics\n"
    print_rows([], ("name", "queues"), as_json=True, kind="topics")
    assert not capsys.readouterr().out


def test_a_list_has_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(iter([{"name": "orders", "queues": 4}]), ("name", "queues"), as_json=False, kind="topics")
    heading, row = capsys.readouterr().out.splitlines()
    assert (heading.split(), row.split()) == (["queues", "name"], ["4", "orders"])
