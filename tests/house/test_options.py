"""`docs/options.md` has every option of every command once, and all commands use it in the same sense."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.commands import commands
from tests.house.source import ROOT

PAGE = ROOT / "docs" / "options.md"
ROW = re.compile(r"^\| (?P<names>`-.+?) \| (?P<values>.*?) ?\| (?P<meaning>.+) \|$", flags=re.MULTILINE)


class Word(NamedTuple):
    """A word has what the page says of an option: spellings, values, and the words that each help has."""

    names: frozenset[str]
    values: frozenset[str]
    meant: frozenset[str]


def page() -> list[Word]:
    found = []
    for row in ROW.finditer(PAGE.read_text().replace("\\|", "\x00")):
        names = frozenset(each for text in re.findall("`(.+?)`", row["names"]) for each in text.split("/"))
        values = frozenset(text.replace("\x00", "|") for text in re.findall("`(.+?)`", row["values"]))
        meant = frozenset(text.lower() for text in re.findall(r"\*\*(.+?)\*\*", row["meaning"]))
        found.append(Word(names, values, meant))
    return found


def options() -> Iterator[tuple[str, Any]]:
    for path, command in commands():
        for param in command.params:
            if param.param_type_name == "option" and "--help" not in param.opts:
                yield path, param


def test_every_option_of_every_command_is_on_the_page_in_the_same_sense() -> None:
    words = {name: word for word in page() for name in word.names if name.startswith("--")}
    problems = []
    for path, option in options():
        word = words.get(option.opts[0])
        names = {*option.opts, *option.secondary_opts}
        value = None if option.is_flag else option.metavar
        if word is None:
            problems.append(f"{path} {option.opts[0]}: not on the page")
        elif names != word.names:
            problems.append(f"{path} {option.opts[0]}: spelled {sorted(names)}, on the page {sorted(word.names)}")
        elif ({value} if value else set()) - word.values or (not value and word.values):
            problems.append(f"{path} {option.opts[0]}: takes {value}, on the page {sorted(word.values)}")
        else:
            missing = [each for each in sorted(word.meant) if each not in option.help.lower()]
            problems += [f"{path} {option.opts[0]}: {option.help!r} does not say {each!r}" for each in missing]
    assert not problems, "\n".join(problems)


def test_the_page_has_each_option_once_and_none_that_no_command_has() -> None:
    spelled = [name for word in page() for name in sorted(word.names) if name.startswith("--")]
    used = {(option.opts[0], "" if option.is_flag else option.metavar) for _, option in options()}
    assert sorted(spelled) == sorted(set(spelled))
    assert set(spelled) == {name for _, o in options() for name in (*o.opts, *o.secondary_opts) if name[:2] == "--"}
    for word in page():
        assert word.meant, f"{sorted(word.names)}: no word in bold"
        taken = {value for name, value in used if name in word.names and value}
        assert taken == word.values, sorted(word.names)
