"""Assemble what operators read from a broker's parts, and the services of the admin port that serve it."""

from __future__ import annotations

from typing import NamedTuple

from quarry_mq.server.admin.browsing.browser import MessageBrowser
from quarry_mq.server.admin.browsing.tails import Tails
from quarry_mq.server.admin.pending import PendingLook
from quarry_mq.server.admin.storage import StorageLook
from quarry_mq.server.admin_port.messages.browsing import BrowsingService
from quarry_mq.server.admin_port.metadata.lite_topics import LiteTopicService
from quarry_mq.server.admin_port.server import MoreService
from quarry_mq.server.admin_port.storage.storage import StorageService
from quarry_mq.server.held import TransactionChecks
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.lag.lite_backlog import LiteBacklog
from quarry_mq.server.lite.wanted import WantedLiteTopics
from quarry_mq.server.observability.waiting_figures import WaitingFigures
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.tasks.time_slice import Pacing
from quarry_mq.server.upkeep import Upkeep
from quarry_mq.store.metadata.lite_subscriptions import LiteSubscriptionTable


class OperatorsLook(NamedTuple):
    """The services, and the reader of the disk, `look`, to be stopped when none of them is served any more."""

    look: StorageLook
    services: list[MoreService]

    async def stop(self) -> None:
        await self.look.stop()


def make_operators_look(
    messaging: Messaging, upkeep: Upkeep, waiting: WaitingFigures, tails: Tails, checks: TransactionChecks
) -> OperatorsLook:
    its = messaging.components
    store, clock, faults = its.store, its.clock, its.edge.faults
    look = StorageLook(store, upkeep.key_index, lambda: upkeep.retention.settings, clock)
    pending = PendingLook(store.messages, its.sends.delays, checks, figures=waiting, worker=look.worker, clock=clock)
    browser = MessageBrowser(store.messages, store.expiry)
    pacing = Pacing(clock)
    browsing = BrowsingService(
        store.topics, browser, tails, reader=store.messages.reader, clock=clock, pacing=pacing, faults=faults
    )
    table = LiteSubscriptionTable(store.state_engine)
    progress = GroupProgress(store, its.delivery, its.delivery.writer, clock)
    backlog = LiteBacklog(
        progress,
        its.delivery.lite,
        topics=store.topics,
        groups=store.groups,
        offsets=store.offsets,
        table=table,
        wanted=WantedLiteTopics(table, groups=store.groups, topics=store.topics, queues=store.messages),
    )
    return OperatorsLook(
        look,
        [
            browsing,
            StorageService(look, pending, store.topics, progress=progress, pacing=pacing, faults=faults),
            LiteTopicService(upkeep.lite_topics.listing, backlog, pacing, faults),
        ],
    )
