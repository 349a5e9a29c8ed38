"""Every feature of the matrix with every official client. What a library does not have is skipped, and says so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.clients import ClientError
from tests.e2e.languages import LANGUAGES
from tests.matrix.__main__ import BEGIN, END, NOT_IN_THE_CLIENT, PAGE, markdown
from tests.matrix.features import FEATURES, UNSUPPORTED
from tests.matrix.stages import Stages, open_stages

QUICK: Final = {
    "python": frozenset({"push consumer", "FIFO, simple", "transaction"}),
    "java": frozenset({"push consumer"}),
    "node": frozenset({"simple consumer"}),
}
"""The features of each client that the fast suite plays; the slow one plays all. Each takes two to ten seconds, and
Go and Rust are compiled at their first test.
"""
PLAYED: Final = [
    pytest.param(name, feature, marks=[pytest.mark.slow] * (feature not in QUICK.get(name, ())))
    for feature in FEATURES
    for name in LANGUAGES
]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    with open_stages(tmp_path_factory.mktemp("matrix")) as opened:
        yield opened


@pytest.mark.parametrize("tls", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "tls"])
@pytest.mark.parametrize(("language", "feature"), PLAYED)
def test_feature(language: str, feature: str, stages: Stages, *, tls: bool) -> None:
    try:
        stages.play(feature, LANGUAGES[language](), tls=tls)
    except ClientError as error:
        if error.kind != UNSUPPORTED:
            raise
        pytest.skip(str(error))


def test_the_matrix_in_the_page_of_clients_has_these_clients_and_features() -> None:
    inside = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in inside.splitlines() if line.startswith("|")]
    assert rows[0][1:] == list(LANGUAGES)
    assert [row[0] for row in rows[2:]] == list(FEATURES)
    assert {cell for row in rows[2:] for cell in row[1:]} <= {"yes", NOT_IN_THE_CLIENT}


def test_a_table_of_outcomes_has_a_row_per_feature() -> None:
    table = markdown([("python", ["yes"] * len(FEATURES)), ("node", [NOT_IN_THE_CLIENT] * len(FEATURES))])
    assert table.splitlines()[0] == "| | python | node |"
    assert len(re.findall(r"\| yes \| - \|", table)) == len(FEATURES)
