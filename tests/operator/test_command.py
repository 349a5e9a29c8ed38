"""`quarry operator` says in one line why it cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.cli.operator import command
from tests.e2e.broker import quarry


def test_without_its_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _name: None)
    done = CliRunner().invoke(app, ["operator"])
    assert done.exit_code == 2
    assert done.stderr == "the extra `operator` is not installed: pip install 'quarry-mq[operator]'\n"


@pytest.mark.parametrize("text", [None, "- a list", "clusters: {", "{}", "users: []"])
def test_without_kubernetes_it_says_which_file_is_wrong(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "kubernetes.conf"
    if text is not None:
        file.write_text(text)
    done = quarry("operator", environment={"KUBECONFIG": str(file)})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(file) in line
