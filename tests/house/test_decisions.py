"""The list of decisions has every page under the page's own title, and the glossary names only words that exist."""

from __future__ import annotations

import re
from typing import Final

from tests.house.source import ROOT

DECISIONS: Final = ROOT / "docs" / "adr"
NEVER_USED: Final = {36}
"""Numbers that no page ever had. A decision that is withdrawn keeps its page, and its title begins with "Withdrawn"."""

INDEX_ROW: Final = re.compile(r"^\| \[(\d+)\]\((\S+\.md)\) \| (.+) \|$", re.MULTILINE)
TITLE: Final = re.compile(r"# (\d+)\. (.+)")
CODE_FOLDERS: Final = ("cli", "kv", "pipeline", "quarry_mq/client", "quarry_mq/protocol", "server", "store")


def titles() -> dict[str, tuple[int, str]]:
    """Number and title of each page, by the name of its file."""
    found = {}
    for page in sorted(DECISIONS.glob("[0-9]*.md")):
        title = TITLE.fullmatch(page.read_text().partition("\n")[0])
        assert title, page.name
        found[page.name] = (int(title[1]), title[2])
    return found


def test_the_index_lists_every_page_in_order_under_its_title() -> None:
    index = {
        file: (int(number), title) for number, file, title in INDEX_ROW.findall((DECISIONS / "README.md").read_text())
    }
    assert list(index.items()) == list(titles().items())


def test_file_names_begin_with_the_number_of_the_decision() -> None:
    assert not {name: number for name, (number, _) in titles().items() if not name.startswith(f"{number:04}-")}


def test_numbers_have_no_holes() -> None:
    numbers = [number for number, _ in titles().values()]
    assert sorted({*numbers, *NEVER_USED}) == list(range(1, len(numbers) + len(NEVER_USED) + 1))


def test_words_that_the_glossary_says_the_code_uses_are_in_the_code() -> None:
    """A word that has been replaced everywhere leaves the last column of docs/glossary.md."""
    _, _, table = (ROOT / "docs" / "glossary.md").read_text().partition("## Words of the code")
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| ")]
    words = {word for row in rows for word in re.findall(r"`(\w+)`", row[4])}
    assert rows
    used: set[str] = set()
    for folder in CODE_FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            used |= words & set(re.findall(r"\w+", module.read_text()))
    assert not words - used
