"""`quarry replica` shows the copies of a store, promotes one, and lets one be copied again."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.opened_store import reporting_errors
from quarry_mq.cli.terminal.confirmation import Yes, confirm
from quarry_mq.cli.terminal.exit import Exit, asked_to_end, end
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.cli.terminal.quantities import bytes_text, span_text
from quarry_mq.cli.terminal.text import say, time_text
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.replicas.role import Role, RoleFiles
from quarry_mq.server.replicas.status import FollowingFile, LastFollowed, ReplicaStatus
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store

LOOK_S: Final = 0.1
TIMEOUT_S: Final = 10.0

_NOT_SEEDED: Final = "its topics, groups and positions are missing, or those of an earlier time"

commands: Final = typer.Typer(no_args_is_help=True)

StoreFolder = Annotated[
    Path,
    typer.Option("--store", metavar="DIR", help="Folder of the copy's store, on this machine.", show_default=False),
]


class _Copy:
    """A copy of a store as its files in `replication/` show it."""

    def __init__(self, root: Path) -> None:
        """Read the files. Raises StoreUnusable, OSError."""
        disk = PosixCopyingDisk()
        self._root = root
        self._clock: Final[Clock] = SystemClock()
        self.files = RoleFiles(disk, root)
        self._file = FollowingFile(disk, root, self._clock)
        self.kind = inspect_store(disk, root).kind
        self.role = self.files.load()
        self.last: LastFollowed | None = self._file.read()

    @property
    def is_primary(self) -> bool:
        return self.role is not None and self.role.is_primary

    @property
    def is_running(self) -> bool:
        """Return whether a process follows in this folder, as far as its file says."""
        return self.last is not None and self.last.is_fresh(self._clock.wall_ms())

    @property
    def status(self) -> ReplicaStatus | None:
        return None if self.last is None else self.last.status

    @property
    def is_connected(self) -> bool:
        return self.is_running and self.status is not None and self.status.is_connected

    def wait_until_primary(self, timeout_s: float, stop: Event) -> None:
        """Wait until a process has made this copy the primary. What it said about following before is kept."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        while not self.is_primary and self._clock.monotonic_s() < deadline_s and not stop.wait(LOOK_S):
            self.last = self._file.read() or self.last
            self.role = self.files.load()

    def fields(self) -> dict[str, object]:
        """Return what commands print. The end of the log of a copy is what it wrote down last."""
        role, last = self.role or Role(), self.status
        end = None if last is None else last.position
        return {
            "store": str(self._root),
            "role": "primary" if role.is_primary else "copy",
            "running": role.is_primary or self.is_running,
            "term": role.term,
            "logEnd": role.epochs[-1].start if role.is_primary else end,
            "followed": None if last is None else last.primary or None,
            "missingBytes": None if last is None else last.lag_bytes,
            "missingChanges": None if last is None else last.lag_changes,
            "lagSeconds": None if last is None else last.lag_s,
            "heardAt": None if last is None or last.heard_at_ms is None else time_text(last.heard_at_ms),
        }


@commands.command()
def promote(
    store: StoreFolder,
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for a process that follows.")
    ] = TIMEOUT_S,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a copy the primary, on the machine of the copy. Stop the old primary first.

    A copy that runs becomes the primary at once and serves clients; one that does not run becomes it at its next start.
    Shown are the term, the end of the log, and how far the copy was behind: messages that it did not have are not
    served any more.
    """
    with reporting_errors(store), asked_to_end() as stop:
        copy = _Copy(store)
        _require_promotable(copy, store)
        if copy.is_connected:
            assert copy.status is not None
            confirm(
                f"promote the copy although its primary {copy.status.primary} runs and may have more messages", yes=yes
            )
        if copy.status is not None and copy.status.is_seeding:
            confirm(f"promote the copy although it is being seeded: {_NOT_SEEDED}", yes=yes)
        copy.files.ask("promote")
        if copy.is_running:
            copy.wait_until_primary(timeout, stop)
    print_object(copy.fields(), as_json=as_json)
    if not as_json:
        _say_what_is_lost(copy)
        say(_next_step(copy, store))


@commands.command()
def seed(store: StoreFolder, *, yes: Yes = False, as_json: Json = False) -> None:
    """Empty a copy, on its machine, and let it copy everything from the primary again.

    For a copy that is damaged, or that does not agree with its primary. A copy that runs begins at once, one that does
    not run at its next start.
    """
    with reporting_errors(store):
        copy = _Copy(store)
        _require_copy(copy, store)
        if copy.is_primary:
            end(Exit.COULD_NOT_RUN, f"{store}: it is the primary, from which the others are seeded")
        state = "its primary is connected" if copy.is_connected else "no primary is connected"
        confirm(f"empty the copy in {store} and seed it again, while {state}", yes=yes)
        copy.files.ask("seed")
    print_object(copy.fields(), as_json=as_json)
    if not as_json:
        say("the copy is emptied and seeded " + ("now" if copy.is_running else "at its next start"))


def _require_copy(copy: _Copy, store: Path) -> None:
    if copy.role is None:
        end(Exit.COULD_NOT_RUN, f"{store}: no copy of anything: there is no replication/role.json")


def _require_promotable(copy: _Copy, store: Path) -> None:
    if copy.is_primary:
        assert copy.role is not None
        end(Exit.COULD_NOT_RUN, f"{store}: it is the primary already, of term {copy.role.term}")
    if copy.kind is not StoreKind.NEW and copy.role is None:
        text = "it holds a store that is no copy: with replication.mode on it is the primary at its next start"
        end(Exit.COULD_NOT_RUN, f"{store}: {text}")
    _require_copy(copy, store)
    if copy.files.is_asked("seed") or copy.files.is_asked("emptying"):
        end(Exit.COULD_NOT_RUN, f"{store}: the copy is to be emptied and seeded again: it will have nothing to serve")
    if not copy.role or not copy.role.epochs:
        end(Exit.COULD_NOT_RUN, f"{store}: the copy was emptied and not seeded: it has nothing to serve")


def _say_what_is_lost(copy: _Copy) -> None:
    last = copy.status
    if last is None or last.heard_at_ms is None:
        return
    then = time_text(last.heard_at_ms)
    say(f"the copy last heard of {last.primary or 'its primary'} at {then}")
    missing = f"{bytes_text(last.lag_bytes)} of its log and {last.lag_changes} changes"
    say(f"it missed {missing} then, and had missed the oldest of it for {span_text(last.lag_s)}")
    say("not served any more: what it missed then, and what the old primary has stored since")


def _next_step(copy: _Copy, store: Path) -> str:
    if copy.is_primary:
        return "it is the primary now: lead the clients to it. The old primary becomes a copy at its next start"
    if copy.is_running:
        return "it is not the primary yet: its process is busy, and becomes the primary as soon as it is done"
    return f"no process follows in {store}: its next start is the primary"
