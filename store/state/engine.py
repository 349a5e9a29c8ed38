"""The module opens the database `<store>/quarry/`, whose tables are in `store.state.families`."""

from __future__ import annotations

from pathlib import Path

import structlog

from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine, list_families
from quarry_mq.store.state.families import ADDED_FAMILIES, FAMILIES

log = structlog.get_logger(__name__)


def open_state_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Open `<store>/quarry/`. Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt."""
    missing = frozenset[str]() if create else frozenset(FAMILIES).difference(list_families(directory))
    is_older = bool(missing) and missing <= ADDED_FAMILIES
    names = [name for name in FAMILIES if name not in missing or not (is_older and read_only)]
    engine = RocksEngine.open(
        directory,
        {name: FamilyOptions() for name in names},
        create=create or (is_older and not read_only),
        read_only=read_only,
        write_ahead_log=True,
    )
    for unread in engine.unread_changes:
        log.warning("the last changes of topics, groups and positions are lost", directory=str(directory), cause=unread)
    return engine
