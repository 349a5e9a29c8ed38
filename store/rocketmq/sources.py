"""The module knows where RocketMQ keeps its metadata, and which copy counts when there are several.

| table   | JSON in `config/`                               | RocksDB in `config/`  | table in `config/rdb` |
|---------|-------------------------------------------------|-----------------------|-----------------------|
| topics  | `topics.json`                                   | `topics/`             | 3                     |
| groups  | `subscriptionGroup.json`                        | `subscriptionGroups/` | 4                     |
| offsets | `consumerOffset.json`, `lmqConsumerOffset.json` | `consumerOffsets/`    | 1                     |

The database per table is RocketMQ's config manager v1, `rdb` its v2; there is no conversion between them (rmq#8856), so
the newer one counts.

A JSON file that is missing, empty or broken is read from its `.bak`, as RocketMQ does. docs/formats/metadata.md §5
describes the layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, Final

from quarry_mq.kv import EngineMissing, KeyRange, KvError
from quarry_mq.kv.keys import prefix_range
from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine, list_families
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.rocketmq.model import DataVersion, NotJson, Warnings, parse_json

EVERYTHING: Final = KeyRange(b"", None)

V1_VERSION_FAMILY: Final = "kvDataVersion"
V1_VERSION_KEY: Final = b"kvDataVersionKey"
V1_FORBIDDEN_FAMILY: Final = "forbidden"

V2_DIRECTORY: Final = "rdb"
V2_TABLE: Final = b"\x01"
V2_VERSION: Final = b"\x01data_version"
V2_DATA: Final = b"\x02"
V2_OFFSETS, V2_TOPICS, V2_GROUPS = 1, 3, 4
V2_JSON: Final = b"\x01"
"""The first byte of a topic's or group's value: how the rest is encoded. There is only one encoding so far."""
V2_DATA_VERSION: Final = Struct(">qqq")
V2_SEPARATOR: Final = 1
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")

UNVERSIONED: Final = DataVersion(0, 0, 2**63)
"""The version of a RocksDB table without one: RocketMQ prefers a JSON file to it only when that has been changed."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source is one copy of one table: its rows as RocketMQ names them, with JSON values decoded."""

    name: str
    version: DataVersion
    rows: Mapping[str, Any]
    forbidden: Mapping[str, Any] = field(default_factory=dict)


def newest(sources: Sequence[Source], warnings: Warnings) -> Source | None:
    """Return the copy with rows and the highest version; of equal versions the last. Warns about copies that are not
    read.
    """
    filled = [source for source in sources if source.rows]
    if not filled:
        return None
    chosen = filled[0]
    for source in filled[1:]:
        if source.version >= chosen.version:
            chosen = source
    for source in filled:
        if source is not chosen:
            warnings.add(f"{source.name} is an older copy of {chosen.name} and was ignored")
    return chosen


# -- JSON files


def read_json_file(disk: Disk, path: Path, warnings: Warnings) -> dict[str, Any] | None:
    """Return the object in the file, or in its `.bak`; None when neither holds one."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        if not disk.exists(candidate):
            continue
        try:
            document = parse_json(disk.read(candidate))
        except NotJson as cause:
            warnings.add(f"{candidate} is damaged and was skipped: {cause}")
            continue
        if candidate is not path:
            warnings.add(f"{candidate} was read instead of {path.name}; the last changes may be missing")
        return document
    return None


def json_source(disk: Disk, path: Path, table: str, warnings: Warnings) -> Source | None:
    """Return the copy in a JSON file whose rows are in the member `table`."""
    document = read_json_file(disk, path, warnings)
    if document is None:
        return None
    return Source(
        str(path),
        _json_version(document),
        _object(document.get(table), f"{path}: {table}", warnings),
        _object(document.get("forbiddenTable"), f"{path}: forbiddenTable", warnings),
    )


def json_offset_source(disk: Disk, config: Path, warnings: Warnings) -> Source | None:
    """Return the consumer offsets in JSON, from both files.

    RocketMQ uses one or the other, depending on `enableLmq`, and each starts its counter again: their times tell which
    is newer. Rows that only the older file has are kept: a group may have been idle since the switch.
    """
    found = []
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        path = config / name
        document = read_json_file(disk, path, warnings)
        if document is not None:
            rows = dict(_object(document.get("offsetTable"), f"{path}: offsetTable", warnings))
            light = _object(document.get("lmqOffsetTable"), f"{path}: lmqOffsetTable", warnings)
            rows.update((key, {"0": offset}) for key, offset in light.items())
            found.append(Source(str(path), _json_version(document), rows))
    if not found:
        return None
    older, newer = sorted((found[0], found[-1]), key=lambda source: source.version.timestamp_ms)
    if only_older := older.rows.keys() - newer.rows.keys():
        warnings.add(f"the offsets of {len(only_older)} topics and groups exist only in the older {older.name}")
    return Source(newer.name, max(older.version, newer.version), {**older.rows, **newer.rows})


# -- RocksDB


@contextmanager
def open_database(path: Path) -> Iterator[RocksEngine | None]:
    """Open the database for reading without a trace; None when there is none. Raises StoreDamaged."""
    try:
        engine = RocksEngine.open(
            path,
            {name: FamilyOptions() for name in list_families(path)},
            create=False,
            read_only=True,
            write_ahead_log=True,
        )
    except EngineMissing:
        yield None
        return
    except KvError as cause:
        raise StoreDamaged(path, f"RocketMQ's metadata cannot be read: {cause}") from cause
    try:
        yield engine
    except KvError as cause:
        raise StoreDamaged(path, f"RocketMQ's metadata cannot be read: {cause}") from cause
    finally:
        engine.close()


def v1_source(path: Path, warnings: Warnings) -> Source | None:
    """Return the copy in a database for one table: name -> JSON object."""
    with open_database(path) as engine:
        if engine is None:
            return None
        families = set(list_families(path))
        version = None
        if V1_VERSION_FAMILY in families:
            stored = engine.family(V1_VERSION_FAMILY).get(V1_VERSION_KEY)
            version = _version(_json_row(stored, f"{path}: data version", warnings)) if stored else None
        forbidden = _v1_rows(engine, V1_FORBIDDEN_FAMILY, path, warnings) if V1_FORBIDDEN_FAMILY in families else {}
        return Source(str(path), version or UNVERSIONED, _v1_rows(engine, "default", path, warnings), forbidden)


def _v1_rows(engine: RocksEngine, family: str, path: Path, warnings: Warnings) -> dict[str, Any]:
    rows = {}
    for key, value in engine.family(family).iterate(EVERYTHING):
        name = key.decode(errors="replace")
        document = _json_row(value, f"{path}: row {name!r}", warnings)
        if document is not None:
            rows[name] = document
    return rows


def v1_offset_source(path: Path, warnings: Warnings) -> Source | None:
    """Return the consumer offsets: `topic@group` -> an object with the member `offsetTable`."""
    source = v1_source(path, warnings)
    if source is None:
        return None
    return Source(source.name, source.version, {key: row.get("offsetTable") for key, row in source.rows.items()})


def v2_source(path: Path, table: int, warnings: Warnings) -> Source | None:
    """Return topics or groups in the database that holds all tables."""
    with open_database(path) as engine:
        if engine is None:
            return None
        rows = {}
        for key, value in _v2_rows(engine, table):
            name = key[_I16.size :].decode(errors="replace")
            where = f"{path}: table {table}, row {name!r}"
            if len(key) < _I16.size or _I16.unpack_from(key)[0] != len(key) - _I16.size or value[:1] != V2_JSON:
                warnings.add(f"{where} has an unexpected layout and was skipped")
                continue
            document = _json_row(value[1:], where, warnings)
            if document is not None:
                rows[name] = document
        return Source(str(path), _v2_version(engine, table), rows)


def v2_offset_source(path: Path, warnings: Warnings) -> Source | None:
    """Return consumer offsets in the database that holds all tables: one row per queue."""
    with open_database(path) as engine:
        if engine is None:
            return None
        rows: dict[str, dict[str, int]] = {}
        for key, value in _v2_rows(engine, V2_OFFSETS):
            decoded = decode_v2_offset_key(key)
            if decoded is None or len(value) != _I64.size:
                warnings.add(f"{path}: offset row {key.hex()} has an unexpected layout and was skipped")
                continue
            group, topic, number = decoded
            rows.setdefault(f"{topic}@{group}", {})[str(number)] = _I64.unpack(value)[0]
        return Source(str(path), _v2_version(engine, V2_OFFSETS), rows)


def decode_v2_offset_key(key: bytes) -> tuple[str, str, int] | None:
    """Return group, topic and queue number of `i16 len, group, 0x01, i16 len, topic, 0x01, i32 queue`; None for other
    keys.
    """
    at = 0
    names = []
    for _ in range(2):
        start = at + _I16.size
        if start > len(key):
            return None
        at = start + _I16.unpack_from(key, at)[0]
        if not start <= at < len(key) or key[at] != V2_SEPARATOR:
            return None
        names.append(key[start:at].decode(errors="replace"))
        at += 1
    if len(key) - at != _I32.size:
        return None
    return names[0], names[1], _I32.unpack_from(key, at)[0]


def _v2_rows(engine: RocksEngine, table: int) -> Iterator[tuple[bytes, bytes]]:
    prefix = V2_TABLE + _I16.pack(table) + V2_DATA
    for key, value in engine.family("default").iterate(prefix_range(prefix)):
        yield key[len(prefix) :], value


def _v2_version(engine: RocksEngine, table: int) -> DataVersion:
    stored = engine.family("default").get(V2_TABLE + _I16.pack(table) + V2_VERSION)
    if stored is None or len(stored) != V2_DATA_VERSION.size:
        return UNVERSIONED
    state_version, timestamp_ms, counter = V2_DATA_VERSION.unpack(stored)
    return DataVersion(state_version, counter, timestamp_ms)


# -- fields


def _json_row(value: bytes, where: str, warnings: Warnings) -> dict[str, Any] | None:
    try:
        return parse_json(value)
    except NotJson as cause:
        warnings.add(f"{where} is damaged and was skipped: {cause}")
        return None


def _object(value: object, where: str, warnings: Warnings) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        warnings.add(f"{where} is not an object and was skipped")
        return {}
    return value


def _json_version(document: dict[str, Any]) -> DataVersion:
    return _version(document.get("dataVersion")) or DataVersion(0, 0, 0)


def _version(value: object) -> DataVersion | None:
    if not isinstance(value, dict):
        return None
    fields = [value.get(name, 0) for name in ("stateVersion", "counter", "timestamp")]
    if not all(type(each) is int for each in fields):
        return None
    return DataVersion(*fields)
