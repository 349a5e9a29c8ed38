"""Assemble the official admin service of a broker from the broker's parts."""

from __future__ import annotations

from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.browsing.browser import MessageBrowser
from quarry_mq.server.admin_port.official.clients import ClientCalls
from quarry_mq.server.admin_port.official.commands import CommandCalls
from quarry_mq.server.admin_port.official.edge import Names
from quarry_mq.server.admin_port.official.lag import LagCalls
from quarry_mq.server.admin_port.official.lite_readers import LiteReaders
from quarry_mq.server.admin_port.official.queries import QueryCalls
from quarry_mq.server.admin_port.official.runtime import RuntimeCalls
from quarry_mq.server.admin_port.official.sends import SendCalls
from quarry_mq.server.admin_port.official.service import Calls, OfficialAdminService
from quarry_mq.server.admin_port.official.topics import TopicCalls
from quarry_mq.server.front import Front
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.settings.live_settings import LiveSettings
from quarry_mq.server.tasks.time_slice import Pacing
from quarry_mq.server.upkeep import Upkeep
from quarry_mq.store.metadata.lite_subscriptions import LiteSubscriptionTable


def official_admin(
    messaging: Messaging, administration: Administration, settings: LiveSettings, upkeep: Upkeep, front: Front
) -> OfficialAdminService:
    its, facts = messaging.components, administration.facts
    store, clock = its.store, its.clock
    names, pacing = Names(store.topics, store.groups), Pacing(clock)
    progress = GroupProgress(store, its.delivery, its.delivery.writer, clock)
    clients = ClientCalls(
        its.edge.clients,
        names,
        store.offsets,
        progress,
        pacing,
        lite_readers=LiteReaders(LiteSubscriptionTable(store.state_engine), its.delivery.writer),
        delete=its.delivery.delete_subscription,
    )
    queries = QueryCalls(
        names,
        upkeep.key_index,
        MessageBrowser(store.messages, store.expiry),
        pacing,
        broker_name=facts.name,
        clock=clock,
    )
    runtime = RuntimeCalls(
        facts,
        its.edge.clients,
        messaging.rates,
        lambda: None if (figures := front.figures) is None else figures.connections_open,
        settings,
    )
    calls = Calls(
        clients=clients,
        commands=CommandCalls(names, clients, queries, messaging.commands, messaging.telemetry),
        lag=LagCalls(names, progress, pacing, broker_name=facts.name, clock=clock),
        queries=queries,
        runtime=runtime,
        sends=SendCalls(names, messaging.operators_send, clock),
        topics=TopicCalls(administration, names, None if its.cluster is None else its.cluster.members, pacing),
    )
    return OfficialAdminService(calls, its.edge.faults)
