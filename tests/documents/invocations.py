"""Every `quarry …` that a document shows, and whether the command line would understand it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.commands import root
from tests.documents.pages import Block, commands

_HERE_BODY: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1(.*?)\n(.*?)^\2$", re.DOTALL | re.MULTILINE)
_OPERATORS: Final = frozenset("();<>|&")
_INLINE: Final = re.compile(r"(?<!`)`(quarry [^`\n]+)`(?!`)")
_FENCED: Final = re.compile(r"^ *(`{3,}).*?^ *\1$", re.DOTALL | re.MULTILINE)
_ELLIPSIS: Final = re.compile(r"[\[\]…]|\.\.\.")
"""Marks of prose: optional parts in brackets, and words that are left out."""


class Invocation(NamedTuple):
    """The words behind `quarry`, and where they stand."""

    words: Sequence[str]
    place: str
    is_whole: bool
    """True if nothing is left out: then all that the command requires must be there."""


def in_block(block: Block) -> Iterator[Invocation]:
    """Return the invocations of a console block, whether it is run or not."""
    for command in commands(block):
        place = f"{block.place.rpartition(':')[0]}:{command.line}"
        for words in _simple_commands(command.typed):
            for each in _quarry_words(words):
                yield Invocation(each, place, is_whole=True)


def in_prose(page: Path, root: Path) -> Iterator[Invocation]:
    """Return the invocations between single backquotes."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for found in _INLINE.finditer(text):
        words = shlex.split(_ELLIPSIS.sub(" ", found[1]).replace("\\|", "|"), comments=True)
        for each in _quarry_words(words):
            yield Invocation(each, f"{page.relative_to(root)}: `{found[1]}`", is_whole=False)


def mistake(invocation: Invocation) -> str | None:
    """Return what the command line would not understand; None if it would understand all."""
    command, words = root(), list(invocation.words)
    path = ["quarry"]
    while True:
        options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
        children = getattr(command, "commands", None)
        if children is None:
            return _misuse(command, options, words, is_whole=invocation.is_whole)
        while words and words[0].startswith("-"):
            option = options.get(words[0].partition("=")[0])
            if option is None and words[0] != "--help":
                return f"{' '.join(path)} has no {words[0]}"
            takes_value = option is not None and not option.is_flag and "=" not in words[0]
            del words[: 2 if takes_value else 1]
        if not words:
            return None  # the group itself is meant
        for word in words[0].split("|"):
            if word not in children:
                return f"no command {' '.join([*path, word])}"
        path.append(words[0].partition("|")[0])
        command = children[path[-1]]
        del words[0]


def _misuse(command: Any, options: dict[str, Any], words: list[str], *, is_whole: bool) -> str | None:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    given, seen = 0, set()
    while words:
        word = words.pop(0)
        if not re.match(r"--?[A-Za-z]", word):
            given += 1
            continue
        name, equals, _ = word.partition("=")
        if name == "--help":
            continue
        option = options.get(name)
        if option is None:
            return f"no option {name}"
        seen.add(option.name)
        if not option.is_flag and not equals:
            if not words and is_whole:
                return f"{name} needs a value"
            del words[:1]
    if given > len(arguments) and not any(each.nargs == -1 for each in arguments):
        return f"{given} arguments, and {len(arguments)} are taken"
    needed = [each for each in arguments if each.required]
    missing = [each.opts[0] for each in command.params if each.required and each not in arguments]
    missing = [name for name in missing if options[name].name not in seen]
    if is_whole and (given < len(needed) or missing):
        return f"missing: {', '.join(missing) or needed[given].name}"
    return None


def _simple_commands(typed: str) -> Iterator[list[str]]:
    text = _HERE_BODY.sub(r"<< \2\3", typed).replace("\\\n", " ").replace("$(", "( ")
    words: list[str] = []
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for token in lexer:
        if set(token) <= _OPERATORS:
            if set(token) & {"<", ">"}:
                words.append("\0")  # a file follows, which is no argument
                continue
            yield _without_files(words)
            words = []
        else:
            words.append(token)
    yield _without_files(words)


def _without_files(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    following = iter(words)
    for word in following:
        if word == "\0":
            if kept and kept[-1] in {"1", "2"}:
                kept.pop()
            next(following, None)
        else:
            kept.append(word)
    return kept


def _quarry_words(words: Sequence[str]) -> Iterator[list[str]]:
    begins = [number for number, word in enumerate(words) if re.fullmatch(r"(?:[\w.-]*/[\w./-]*)?quarry", word)]
    begins = [number for number in begins if _is_command(words[:number])]
    if begins:
        yield list(words[begins[-1] + 1 :])  # in `sudo -u quarry quarry doctor` the second one


def _is_command(before: Sequence[str]) -> bool:
    """Return whether a command follows these words."""
    first = next((each for each in before if "=" not in each), None)
    return first in {None, "docker", "env", "exec", "sudo", "time"} or before[-1] == "--"
