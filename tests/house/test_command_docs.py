"""`docs/commands.md` says what `quarry --help` says. Commands that other pages name: tests/documents."""

from __future__ import annotations

import re
from typing import Any

from quarry_mq.cli.command_table import COMMANDS, SECTIONS
from tests.commands import commands, root
from tests.house.source import ROOT

DOCS = ROOT / "docs" / "commands.md"
ALIASES = {"quarry dlq": "quarry dead-letters"}
"""Other names of groups, which the page tells of in a sentence."""
Section = tuple[str, str, tuple[tuple[str, str], ...]]
"""Usage, first line of the help, and the options with their meaning."""


def section(path: str, command: Any) -> Section:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    usage = " ".join([path, *(each.metavar or each.name.upper() for each in arguments)])
    summary = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
    return usage, summary, tuple((spelling(each), meaning(each)) for each in options)


def spelling(option: Any) -> str:
    short = "".join(f"{each}, " for each in option.opts if not each.startswith("--"))
    names = short + "/".join(each for each in (*option.opts, *option.secondary_opts) if each.startswith("--"))
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


def meaning(option: Any) -> str:
    hidden = option.required or option.is_flag or option.default in (None, "", ())
    return str(option.help) + ("" if hidden else f" Default: `{option.default}`.")


def documented() -> list[Section]:
    sections = []
    for part in re.split(r"^### ", DOCS.read_text(), flags=re.MULTILINE)[1:]:
        usage, _, rest = part.partition("\n")
        summary = rest.strip().split("\n\n")[0].replace("\n", " ")
        options = re.findall(r"^\| `(.+?)` \| (.+) \|$", rest, flags=re.MULTILINE)
        plain = tuple((spelled.replace("\\|", "|"), text.replace("\\|", "|")) for spelled, text in options)
        sections.append((usage.strip("`"), summary, plain))
    return sections


def test_the_commands_page_agrees_with_the_commands() -> None:
    assert sorted(documented()) == sorted(
        section(path, command) for path, command in commands() if path.rpartition(" ")[0] not in ALIASES
    )


def test_the_page_has_the_sections_of_the_help_in_its_order() -> None:
    table = {
        section: [(f"`quarry {name}`", entry.summary) for name, entry in entries.items()]
        for section, entries in SECTIONS.items()
    }
    shown, described = {}, []
    for part in re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1:]:
        section, _, rest = part.partition("\n")
        rows = re.findall(r"^\| \[(`quarry .+?`)\]\(#.+?\) \| (.+) \|$", rest, flags=re.MULTILINE)
        assert len(rows) == len(table[section])
        shown[section] = [
            (name, text[: len(entry)]) for (name, text), (_, entry) in zip(rows, table[section], strict=True)
        ]
        described += [usage.split()[1].strip("`") for usage in re.findall(r"^### `(.+)`$", rest, flags=re.MULTILINE)]
    assert shown == table
    assert list(dict.fromkeys(described)) == [name for name in COMMANDS if f"quarry {name}" not in ALIASES]


def test_a_group_has_the_same_commands_under_its_other_name() -> None:
    def sections(group: str) -> dict[str, Section]:
        found = {path.rpartition(" "): command for path, command in commands()}
        return {name: section(name, command) for (path, _, name), command in found.items() if path == group}

    for alias, group in ALIASES.items():
        assert sections(alias) == sections(group) != {}
        assert f"`{alias}`" in DOCS.read_text()


def test_every_command_and_option_explains_itself() -> None:
    for path, command in commands():
        assert command.help, path
        for option in command.params:
            if option.param_type_name == "option":
                assert option.help, f"{path} {option.opts[0]}"


def test_every_command_has_json_or_needs_none() -> None:
    without = {path for path, command in commands() if not any("--json" in each.opts for each in command.params)}
    assert without == {
        "quarry serve",
        "quarry demo",
        "quarry console",
        "quarry operator",
        "quarry completion",
        "quarry schema",
        "quarry help",
    }


def test_the_page_tells_of_what_stands_before_a_command() -> None:
    before = DOCS.read_text().partition("\n## ")[0]
    for option in root().params:
        assert f"`quarry {option.opts[0]}" in before
