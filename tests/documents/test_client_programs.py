"""Programs of README.md and of pages run unchanged but for the address, each with an official client.

The pages: index.md, python.md, java.md, go.md, node.md and rust.md. All programs of a page run on one new broker.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.documents.client_programs import ADDRESS, COMMANDS, SAID, TEST, programs
from tests.documents.pages import PAGES, ROOT, blocks
from tests.e2e.broker import DISK_OF_THE_TESTS, NO_CONSOLE, Broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM_TIMEOUT_S: Final = 120.0
PROGRAMS: Final = [
    (page, language)
    for page in PAGES
    for language in dict.fromkeys(each.language for each in blocks(page) if each.orders.get("elsewhere") == TEST)
]


@pytest.mark.parametrize(
    ("page", "language"), [pytest.param(*each, id=f"{each[0].relative_to(ROOT)}-{each[1]}") for each in PROGRAMS]
)
def test_programs_send_and_receive(page: Path, language: str, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=DISK_OF_THE_TESTS | NO_CONSOLE)
    broker.start()
    try:
        for number, each in enumerate(programs(page, language)):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            assert ADDRESS in each.text, each.place
            command = COMMANDS[language](each.text.replace(ADDRESS, broker.endpoint), folder)
            done = subprocess.run(
                command,
                env=os.environ | {"HOME": str(tmp_path)},  # clients write their logs there
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PROGRAM_TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, f"{each.place}:\n{done.stdout}"
            assert SAID in done.stdout.splitlines(), f"{each.place}:\n{done.stdout}"
        broker.assert_no_stack_trace()
    finally:
        broker.close()


def test_every_language_has_its_programs() -> None:
    assert {language for _, language in PROGRAMS} == COMMANDS.keys()
