"""The module manages users of a stopped store: the first administrator is created here, so there is no default
password.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.engines import RocksStoreEngines
from quarry_mq.store.errors import Invalid, StoreLocked, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.parts import open_identity
from quarry_mq.store.replication import SharedKind
from quarry_mq.store.replication.change_log import open_change_log
from quarry_mq.store.security.model import Secret, User, UserKind
from quarry_mq.store.security.policies import PolicyTable
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.security.users import UserTable, checked_secret, generated_secret


@contextmanager
def users_of(disk: Disk, root: Path, sealer: Sealer, clock: Clock) -> Iterator[UserTable]:
    """Open the users of the store at `root`; no broker can start while the block runs.

    If the store is in a cluster, the other members get the changes when its broker runs again. A new store gets only
    the database that holds users; a broker makes the rest. Raises StoreLocked, StoreUnusable, OSError.
    """
    inspect_store(disk, root)
    disk.make_directories(root)
    paths = StorePaths(root)
    try:
        lock = disk.lock(paths.lock)
    except BlockingIOError as error:
        raise StoreLocked(paths.lock, "a broker is running on this store; ask it with `quarry user`") from error
    try:
        engine, _ = open_identity(RocksStoreEngines(), paths.quarry, disk, inspect_store(disk, root))
        try:
            change_log = open_change_log(engine, clock, None)
            if change_log is None:
                yield UserTable(engine, sealer)
            else:
                policies = PolicyTable(engine, change_log.journal(SharedKind.POLICY))
                yield UserTable(engine, sealer, policies, journal=change_log.journal(SharedKind.USER))
        finally:
            engine.close()
    except KvError as error:
        raise StoreUnusable(root, str(error)) from error
    finally:
        lock.release()


def make_first_administrator(users: UserTable, name: str, text: str | None, now_ms: int, *, force: bool) -> Secret:
    """Add a super user with one secret, a generated one unless `text` is given.

    Raises Invalid when there is a super user already, AlreadyExists. With `force` there may be one, and an existing
    user of this name becomes a super user whose only secret is the new one: use that after the secret or the key was
    lost.
    """
    text = generated_secret() if text is None else checked_secret(name, text)
    others = [user.name for user in users.list() if user.kind is UserKind.SUPER]
    if others and not force:
        raise Invalid(f"there is a super user already: {others[0]}")
    before = users.get_sealed(name)
    if before is None or not force:
        secret = Secret(1, text, now_ms)
        users.create(User(name=name, kind=UserKind.SUPER, secrets=(secret,), created_at_ms=now_ms))
        return secret
    users.update(replace(before, kind=UserKind.SUPER, enabled=True))
    *first, last = (each.number for each in before.secrets) if before.secrets else (None,)
    for number in first:
        users.remove_secret(name, number)
    secret = users.add_secret(name, text, now_ms)
    if last is not None:
        users.remove_secret(name, last)
    return secret
