"""`quarry index` lists, verifies, compacts and uploads the files of the key index, of a store or of a live broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.opened_store import logs_aside, opened, reporting_errors
from quarry_mq.cli.online.connection.administration import service_port
from quarry_mq.cli.online.connection.arguments import AdminOrNone, StoreOrNone, broker_of, pairs
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_object, print_rows
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import index_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.index_pb2_grpc import IndexServiceStub
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index import KeyIndexes
from quarry_mq.store.index.facts import IndexFile, IndexKind, checked, index_files
from quarry_mq.store.index.opening import objects_at
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStore
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.offline import indexes_of, moving_files
from quarry_mq.store.settings import IndexSettings

CALL_TIMEOUT_S: Final = 6 * 3600.0
"""Seconds for a call: checking everything in an object store takes long."""
COLUMNS: Final = ("name", "kind", "stage", "items", "bytes", "from", "to", "here")
VERDICTS: Final = ("name", "kind", "stage", "verdict")

commands: Final = typer.Typer(no_args_is_help=True)

UploadTo = Annotated[
    str | None,
    typer.Option(
        "--upload-to",
        metavar="TARGET",
        help="Where the store's files are uploaded to: index.upload_to of its broker.",
        show_default=False,
    ),
]
UploadOptions = Annotated[
    list[str] | None,
    typer.Option("--upload-option", metavar="NAME=VALUE", help="As index.upload_options of its broker. Repeatable."),
]


@commands.command(name="list")
def list_files(store: StoreOrNone = None, *, admin: AdminOrNone = None, as_json: Json = False) -> None:
    """List the index files, oldest first, and the times of the messages in each."""
    admin = broker_of(admin, is_store_named=store is not None)
    if admin is not None:
        with _broker(store, admin) as broker:
            found = broker.ListIndexFiles(pb.ListIndexFilesRequest(), timeout=CALL_TIMEOUT_S).files
            rows = [_fields(_file(each)) for each in found]
    else:
        with _looked_at(store, None) as indexes:
            rows = [_fields(each) for each in index_files(indexes)]
    print_rows(rows, COLUMNS, as_json=as_json, kind="index files")


@commands.command()
def verify(
    store: StoreOrNone = None,
    *,
    admin: AdminOrNone = None,
    upload_to: UploadTo = None,
    upload_option: UploadOptions = None,
    as_json: Json = False,
) -> None:
    """Check every byte of the files, including those in an object store, and tell which are damaged.

    A live broker rebuilds damaged files of the tiered index from its log. A file that is still being filled is not
    checked. Exit status 0: all are whole, 1: some are damaged, 2: some could not be read.
    """
    statuses = {Exit.FINE}

    def rows(files: Iterable[IndexFile]) -> Iterator[dict[str, object]]:
        for file in files:
            statuses.add(Exit.COULD_NOT_RUN if file.unread else Exit.FINDING if file.damage else Exit.FINE)
            verdict = file.unread or file.damage or ("not looked at" if file.is_filled else "whole")
            yield {**_fields(file), "verdict": verdict}

    admin = broker_of(admin, is_store_named=store is not None)
    if admin is not None:
        with _broker(store, admin) as broker:
            stream = broker.VerifyIndexFiles(pb.VerifyIndexFilesRequest(), timeout=CALL_TIMEOUT_S)
            print_rows(rows(map(_file, stream)), VERDICTS, as_json=as_json, kind="index files")
    else:
        with _looked_at(store, _objects(upload_to, upload_option)) as indexes:
            print_rows(
                rows(checked(indexes, each) for each in index_files(indexes)),
                VERDICTS,
                as_json=as_json,
                kind="index files",
            )
    raise typer.Exit(max(statuses))


@commands.command()
def compact(store: StoreOrNone = None, *, admin: AdminOrNone = None, as_json: Json = False) -> None:
    """Compact all full files of the tiered index now. A live broker also does it by itself later."""
    admin = broker_of(admin, is_store_named=store is not None)
    if admin is not None:
        with _broker(store, admin) as broker:
            count = broker.CompactIndexFiles(pb.CompactIndexFilesRequest(), timeout=CALL_TIMEOUT_S).count
    else:
        with _moving(store, None, keep_uploaded=True) as index:
            count = _count(index.compact_one)
    print_object({"compacted": count}, as_json=as_json)


@commands.command()
def upload(
    store: StoreOrNone = None,
    *,
    admin: AdminOrNone = None,
    upload_to: UploadTo = None,
    upload_option: UploadOptions = None,
    drop: Annotated[bool, typer.Option("--drop", help="Of a store: remove local files that were uploaded.")] = False,
    as_json: Json = False,
) -> None:
    """Upload all compacted files of the tiered index now. A live broker also does it by itself, as its settings say."""
    admin = broker_of(admin, is_store_named=store is not None)
    if admin is not None:
        with _broker(store, admin) as broker:
            count = broker.UploadIndexFiles(pb.UploadIndexFilesRequest(), timeout=CALL_TIMEOUT_S).count
    else:
        objects = _objects(upload_to, upload_option)
        if objects is None:
            raise typer.BadParameter("--upload-to is needed with a store")
        with _moving(store, objects, keep_uploaded=not drop) as index:
            count = _count(index.upload_one)
    print_object({"uploaded": count}, as_json=as_json)


@contextmanager
def _broker(store: Path | None, admin: str) -> Iterator[IndexServiceStub]:
    if store is not None:
        raise typer.BadParameter("either STORE or --admin is needed")
    with service_port(admin, IndexServiceStub) as broker:
        yield broker


@contextmanager
def _looked_at(store: Path | None, objects: ObjectStore | None) -> Iterator[KeyIndexes]:
    with opened(_given(store)) as open_store, indexes_of(open_store, objects) as indexes:
        yield indexes


@contextmanager
def _moving(store: Path | None, objects: ObjectStore | None, *, keep_uploaded: bool) -> Iterator[TieredIndex]:
    root = _given(store)
    with (
        reporting_errors(root),
        logs_aside(logging.ERROR),
        moving_files(PosixDisk(), root, objects, keep_uploaded=keep_uploaded) as index,
    ):
        yield index


def _given(store: Path | None) -> Path:
    if store is None:
        raise typer.BadParameter("STORE or --admin is needed")
    return store


def _objects(upload_to: str | None, options: list[str] | None) -> ObjectStore | None:
    if upload_to is None:
        return None
    settings = IndexSettings(upload_to=upload_to, upload_options=tuple(pairs(options, "--upload-option").items()))
    with reporting_errors(Path(upload_to)):
        return objects_at(settings, PosixDisk())


def _count(move_one: Callable[[], bool]) -> int:
    count = 0
    while move_one():
        count += 1
    return count


def _file(message: pb.IndexFile) -> IndexFile:
    return IndexFile(IndexKind(message.kind), *(getattr(message, name) for name in IndexFile._fields[1:]))


def _fields(file: IndexFile) -> dict[str, object]:
    has_items = file.items > 0
    return {
        "name": file.name,
        "kind": file.kind.value,
        "stage": file.stage,
        "items": file.items,
        "bytes": file.size_bytes,
        "from": time_text(file.begin_ms) if has_items else None,
        "to": time_text(file.end_ms) if has_items else None,
        "beginOffset": file.begin_offset if has_items else None,
        "endOffset": file.end_offset if has_items else None,
        "here": file.is_local,
        "damage": file.damage or None,
        "unread": file.unread or None,
    }
