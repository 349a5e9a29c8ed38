"""A broker that ran without `replication.mode` for a while: its copies take all rows, and a copy is not served so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.replicas.process import Replication
from quarry_mq.server.replicas.role import Epoch, Role, RoleFiles
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.metadata import Group
from quarry_mq.store.state.state_log import NO_CURSOR, read_cursor
from tests.replicas.test_copies import Copy, Primary, require_equal, settings
from tests.store.assembly import message

COPY = Role("x", 2, False, (Epoch(1, 0, 7), Epoch(2, 500, 8)), "new", 65_536)


def test_copies_take_all_rows_after_their_primary_ran_without_replication(tmp_path: Path) -> None:
    primary = Primary(tmp_path / "primary", Random(1))
    for _ in range(20):
        primary.live()
    copy = Copy(tmp_path / "copy", primary)
    primary.store.messages.dispatch(primary.store.messages.flush())
    copy.send()
    copy.send()

    primary.settings = settings(tmp_path / "primary", has_copies=False)
    primary.restart()
    assert read_cursor(primary.store.state_engine) == NO_CURSOR
    primary.store.groups.create(Group("made-meanwhile"))
    primary.store.messages.append([message("rooms", 0)])
    primary.settings = settings(tmp_path / "primary")
    primary.restart()

    copy.restart()
    assert copy.link.shipment.takes_all_rows
    primary.store.messages.dispatch(primary.store.messages.flush())
    for _ in range(3):
        copy.send()
    promoted = copy.promoted()
    assert promoted.groups.get("made-meanwhile") is not None
    require_equal(primary.store, promoted)
    promoted.close()
    primary.store.close()


@pytest.mark.parametrize("epochs", [COPY.epochs, ()], ids=["a copy", "a copy that was emptied"])
def test_a_copy_is_not_served_without_replication(tmp_path: Path, epochs: tuple[Epoch, ...]) -> None:
    RoleFiles(PosixCopyingDisk(), tmp_path).save(replace(COPY, epochs=epochs))
    with pytest.raises(StoreUnusable, match=r'role\.json.*replication\.mode = "async".*quarry replica promote'):
        replication_of(tmp_path)


def test_a_primary_and_a_store_without_copies_are_served_without_replication(tmp_path: Path) -> None:
    assert replication_of(tmp_path) is None
    RoleFiles(PosixCopyingDisk(), tmp_path).save(replace(COPY, is_primary=True))
    assert replication_of(tmp_path) is None


def replication_of(root: Path) -> Replication | None:
    found = BrokerSettings.model_validate({"store": {"directory": str(root)}})
    return Replication.of(found, disk=PosixCopyingDisk(), clock=ManualClock(), health=HealthState())
