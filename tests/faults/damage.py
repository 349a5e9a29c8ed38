"""Damage a copy of a store, open it, and tell what came of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from structlog.testing import capture_logs

from quarry_mq.kv import KvError
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.opening.open_store import OpenStore
from tests.faults.small_store import Content, content, opened


@dataclass(frozen=True)
class Outcome:
    """`refusal` says why the store, or some of it, could not be had; `found` is what was had instead."""

    refusal: str | None
    found: Content | None
    warnings: list[str]

    def differs_from(self, expected: Content) -> list[str]:
        assert self.found is not None
        return [part for part in expected if self.found[part] != expected[part]]


def after(
    image: Path,
    copy: Path,
    damage: Callable[[Path], object],
    *,
    look: Callable[[OpenStore], Content] = content,
    open_it: Callable[[Path], OpenStore] = opened,
) -> Outcome:
    """Return the findings of a start on a damaged copy of the store. `copy` must be new: RocksDB remembers folders."""
    shutil.copytree(image, copy)
    damage(copy)
    with capture_logs() as logs:
        try:
            store = open_it(copy)
            try:
                found = look(store)
            finally:
                store.close()
        except (StoreUnusable, KvError) as error:
            return Outcome(str(error), None, [])
        finally:
            shutil.rmtree(copy)
    warnings = [str(each) for each in logs if each["log_level"] in ("warning", "error")]
    return Outcome(None, found, warnings)
