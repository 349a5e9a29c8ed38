"""What operators look at, put together from a broker's parts, and what the admin port serves of it."""

from __future__ import annotations

from typing import NamedTuple

from server.browsing.browser import MessageBrowser
from server.looking.pending import PendingLook
from server.looking.storage import StorageLook
from server.messaging import Messaging
from server.pacing import Pacing
from server.rpc.admin_port.browsing import BrowsingService
from server.rpc.admin_port.server import MoreService
from server.rpc.admin_port.storage import StorageService
from server.upkeep import Upkeep
from server.waiting_figures import WaitingFigures


class OperatorsLook(NamedTuple):
    """`look` is to be stopped when nothing of it is served any more."""

    look: StorageLook
    services: list[MoreService]

    async def stop(self) -> None:
        await self.look.stop()


def make_operators_look(messaging: Messaging, upkeep: Upkeep, waiting: WaitingFigures) -> OperatorsLook:
    its = messaging.components
    store, clock, faults = its.store, its.clock, its.faults
    pacing = Pacing(clock)
    look = StorageLook(store, upkeep.key_index, lambda: upkeep.retention.settings, clock)
    pending = PendingLook(store.messages, its.delays, its.transactions, figures=waiting, look=look, clock=clock)
    browser = MessageBrowser(store.messages, store.expiry)
    return OperatorsLook(
        look,
        [
            BrowsingService(store.topics, browser, store.messages.reader, pacing, faults),
            StorageService(look, pending, store.topics, pacing, faults),
        ],
    )
