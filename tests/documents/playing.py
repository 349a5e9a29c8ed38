"""A page is played: its blocks are typed in order into one session."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from quarry_mq.server.process.banner import READY_LINE
from tests.documents.outputs import ANYTHING, Bindings, matches
from tests.documents.pages import Block, Command, blocks, commands
from tests.documents.session import FOREGROUND, Session

START_TIMEOUT_S: Final = 60.0
INTERRUPTED: Final = 130
"""The status by which some say that Ctrl-C ended them. Brokers have stopped in good order and say 0."""
SETTLE_TIMEOUT_S: Final = 5.0
"""The time that a broker has for its lines once it is ready."""

_STATUS: Final = re.compile(r"# ends with status (\d+)$", re.MULTILINE)
_HERE: Final = re.compile(r"^(\w+)=(\S*)( +# put your .*)$")
"""A variable that the reader sets to what is theirs."""

PLACES: Final = ("/etc/quarry", "/var/lib/quarry", "/var/log/quarry", "/backups", "/data")
"""Folders of the machine that pages name. Here they lie in a folder beside the page's own."""

HERE: Final = {"mq.example.com": "localhost"}
"""The machine that pages call by an example's name, and its name here, in commands and in what comes of them."""

_PLACE: Final = re.compile(rf"(?<![\w./~$-])({'|'.join(PLACES)})(?![\w-])")

Record = Callable[[Command, Sequence[str]], None]


class PageWrong(Exception):
    """Place, command, what the page says and what came."""


def play(
    page: Path,
    session: Session,
    *,
    yours: Mapping[str, str] = MappingProxyType({}),
    record: Record | None = None,
) -> int:
    """Plays all blocks of a page that are run, and returns how many commands that were.

    `yours` has what the page asks its reader to put in. `record` is given each command with its output, and then
    nothing is compared.

    Raises PageWrong for the first command that does not do what the page says.
    """
    player = _Player(session, yours, record)
    for block in blocks(page):
        player.block(block)
    return player.played


class _Player:
    def __init__(self, session: Session, yours: Mapping[str, str], record: Record | None) -> None:
        self._session = session
        self._yours = yours
        self._record = record
        self._machine = f"{session.folder}-machine"
        self._theirs = {f"{self._machine}{place}": place for place in PLACES}
        """Places of this machine, and those that the page has instead."""
        self._bindings = Bindings()
        self.played = 0
        for place in self._theirs:
            Path(place).mkdir(parents=True)

    def block(self, block: Block) -> None:
        if "file" in block.orders:
            path = self._session.folder / self._typed(block.orders["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._typed(block.text))
        elif block.language == "console" and block.is_run:
            for command in commands(block):
                self._command(block, command)
                self.played += 1

    def _command(self, block: Block, command: Command) -> None:
        typed = self._typed(command.typed)
        if command.is_interrupt:
            status, output = self._session.interrupt()
            self._judge(block, command, 0 if status == INTERRUPTED else status, output)
        elif FOREGROUND.match(typed):
            self._start(block, command, typed)
        else:
            own = _HERE.match(typed)
            if own is not None:
                self._theirs[self._yours[own[1]]] = own[2]
                typed = f"{own[1]}={self._yours[own[1]]}{own[3]}"
            self._judge(block, command, *self._session.run(typed))

    def _typed(self, text: str) -> str:
        """Return the text with the names of this run, and with the places of this machine."""
        return _PLACE.sub(rf"{self._machine}\1", _here(self._bindings.put_into(text)))

    def _shown(self, output: Sequence[str]) -> list[str]:
        for own, shown in self._theirs.items():
            output = [line.replace(own, shown) for line in output]
        return list(output)

    def _start(self, block: Block, command: Command, typed: str) -> None:
        """Its output is compared until it is what is expected: it comes in its own time."""
        started = self._session.start(typed)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._has_come(command, output := self._shown(started.output())):
            if READY_LINE in output:
                deadline = min(deadline, time.monotonic() + SETTLE_TIMEOUT_S)
            if time.monotonic() > deadline:
                raise PageWrong(_difference(block, command, 0, output))
            time.sleep(0.02)
        started.discard()
        if self._record is not None and not {"first", "outputs"} & block.orders.keys():
            self._record(command, output)

    def _has_come(self, command: Command, output: list[str]) -> bool:
        if self._record is not None:
            return READY_LINE in output and "" in output[output.index(READY_LINE) :]
        return matches(_expected(command) or _unsaid(command.typed), output, self._bindings)

    def _judge(self, block: Block, command: Command, status: int, output: list[str]) -> None:
        output = self._shown(output)
        wanted = _STATUS.search(command.typed)
        if {"first", "outputs"} & block.orders.keys():
            expected, as_said = [ANYTHING], True
        else:
            expected, as_said = list(command.output), matches(_expected(command), output, self._bindings)
        if self._record is not None:
            if expected != [ANYTHING]:
                self._record(command, output)
            as_said = True
        if status != (int(wanted[1]) if wanted else 0) or not as_said:
            raise PageWrong(_difference(block, Command(command.typed, expected, command.line), status, output))


def _here(text: str) -> str:
    for example, here in HERE.items():
        text = text.replace(example, here)
    return text


def _unsaid(typed: str) -> list[str]:
    """Return the expected output of a command whose output the page does not show."""
    if " serve" not in typed:
        return [ANYTHING, f"{ANYTHING} Ctrl-C ends it"]  # before that it would not hear of it
    return [ANYTHING, f"{ANYTHING} shards are ready." if "--shards" in typed else READY_LINE, ANYTHING]


def _expected(command: Command) -> list[str]:
    return [_here(line) for line in command.output]


def _difference(block: Block, command: Command, status: int, output: Sequence[str]) -> str:
    place = f"{block.place.rpartition(':')[0]}:{command.line}"
    return "\n".join(
        [f"{place}: $ {command.typed}", "says the page:", *command.output, f"came, with status {status}:", *output]
    )
