"""`quarry restore` makes a store from a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.opened_store import reporting_errors
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.backup import backup_name, check_restore
from quarry_mq.store.backup import restore as restore_backup
from quarry_mq.store.fs import PosixCopyingDisk


def restore(
    backup: Annotated[
        Path, typer.Argument(metavar="BACKUP", help="A folder of backups (the newest one is used), or one backup.")
    ],
    store: Annotated[
        Path,
        typer.Argument(
            metavar="STORE", help="Directory of the new store; must not exist or be empty, unless --set-aside is given."
        ),
    ],
    *,
    link: Annotated[
        bool, typer.Option("--link", help="Hard-link files that are never written again instead of copying them.")
    ] = False,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside", help="First move what STORE contains to STORE.before-TIME, unless a broker runs on it."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only check the backup and the directory, and show what would be restored."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a store from a backup. The whole backup is checked before anything is written.

    Exit status 1: the backup is damaged, every damaged or missing file is named. 2: the restore could not run. If it is
    interrupted, it leaves nothing that a broker would open.
    """
    if set_aside:
        # a directory gets another name under its own one alone, not as `.` or by a link
        store = store.resolve()
    if dry_run:
        with reporting_errors(backup), shown_progress() as report:
            source, manifest = check_restore(PosixCopyingDisk(), backup, store, report=report, sets_aside=set_aside)
        planned: dict[str, object] = {
            "dryRun": True,
            "backup": str(source),
            "store": str(store),
            "files": len(manifest.files),
            "bytes": sum(each.size for each in manifest.files),
            "logBegin": manifest.log_begin,
            "logEnd": manifest.log_end,
        }
        print_object(planned, as_json=as_json)
        return
    aside = store.parent / f"{store.name}.before-{backup_name(SystemClock().wall_ms(), [])}" if set_aside else None
    with reporting_errors(backup), shown_progress() as report:
        done = restore_backup(PosixCopyingDisk(), backup, store, report=report, may_link=link, aside=aside)
    fields: dict[str, object] = {
        "backup": str(done.source),
        "store": str(done.root),
        "setAside": None if done.set_aside is None else str(done.set_aside),
        "files": len(done.manifest.files),
        "copiedBytes": done.copied_bytes,
        "linkedBytes": done.linked_bytes,
        "logBegin": done.manifest.log_begin,
        "logEnd": done.manifest.log_end,
    }
    print_object(fields, as_json=as_json)
