"""Assemble what operators read, and their long work, and the services of the admin port that serve both."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.browsing import MessageBrowser, Tails
from quarry_mq.server.admin.concerns import Concerns, UnsentDeadLetters
from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.admin.jobs import DeadLetterWork, MessageResendWork, ResetWork
from quarry_mq.server.admin.name_history import NameHistory
from quarry_mq.server.admin.pending import PendingLook
from quarry_mq.server.admin.sources import Sources
from quarry_mq.server.admin.stats import LOOP_LATE, Recording, make_recording
from quarry_mq.server.admin.storage import StorageLook
from quarry_mq.server.admin_port.messages.browsing import BrowsingService
from quarry_mq.server.admin_port.messages.dead_letters import DeadLetterService, MessageResender
from quarry_mq.server.admin_port.messages.jobs import JobService
from quarry_mq.server.admin_port.metadata.lite_topics import LiteTopicService
from quarry_mq.server.admin_port.overview import make_overview_service
from quarry_mq.server.admin_port.server import MoreService
from quarry_mq.server.admin_port.storage.storage import StorageService
from quarry_mq.server.delivery import InFlightTable
from quarry_mq.server.jobs import JobKind, Jobs
from quarry_mq.server.lag.consumer_lag import LiteBacklog
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.lite.subscriptions import WantedLiteTopics
from quarry_mq.server.maintenance.maintenance import Maintenance
from quarry_mq.server.observability.metrics.instruments import concern_metrics
from quarry_mq.server.observability.samples import Sampling, WaitingStats
from quarry_mq.server.pending import TransactionChecks
from quarry_mq.server.process.host_commands import host_commands
from quarry_mq.server.replicas.process import WatchedCopies
from quarry_mq.server.rpc.messaging import Messaging
from quarry_mq.server.tasks import Pacing, Supervisor
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.metadata.lite import LiteSubscriptionTable
from quarry_mq.store.state.jobs import JobTable


class OperatorsLook(NamedTuple):
    """The services, and the reader of the disk, `look`, to be stopped when none of them is served any more."""

    look: StorageLook
    services: list[MoreService]

    async def stop(self) -> None:
        await self.look.stop()


def make_operators_look(
    messaging: Messaging, maintenance: Maintenance, waiting: WaitingStats, tails: Tails, checks: TransactionChecks
) -> OperatorsLook:
    its = messaging.components
    store, clock, error_reporter = its.store, its.clock, its.edge.error_reporter
    look = StorageLook(store, maintenance.key_index, lambda: maintenance.retention.settings, clock)
    pending = PendingLook(store.messages, its.sends.delays, checks, stats=waiting, worker=look.worker, clock=clock)
    browser = MessageBrowser(store.messages, store.expiry, error_reporter.report)
    pacing = Pacing(clock)
    browsing = BrowsingService(
        store.topics,
        browser,
        tails,
        reader=store.messages.reader,
        clock=clock,
        pacing=pacing,
        error_reporter=error_reporter,
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
            StorageService(
                look, pending, store.topics, progress=progress, pacing=pacing, error_reporter=error_reporter
            ),
            LiteTopicService(maintenance.lite_topics.listing, backlog, pacing, error_reporter),
        ],
    )


class OperatorsWork(NamedTuple):
    """The jobs, the statistics and the sweeps for concerns, to be run while the services are served.

    `own_overview` is for the other members of a cluster.
    """

    jobs: Jobs
    recording: Recording
    looking: Sampling
    services: list[MoreService]
    own_overview: Callable[[], bytes]

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        async with (
            supervisor.running("jobs", self.jobs.run()),
            supervisor.running("history", self.recording.run()),
            supervisor.running("concerns", self.looking.run()),
        ):
            yield


def make_operators_work(
    sources: Sources, administration: Administration, copies: WatchedCopies | None
) -> OperatorsWork:
    messaging, maintenance, its = sources.messaging, sources.maintenance, sources.components
    store, clock = its.store, its.clock
    box = DeadLetterBox(
        store.topics,
        source=store.messages,
        offsets=store.offsets,
        inflight=InFlightTable(store.state_engine),
        writer=its.delivery.writer,
        send=its.copies.move,
        store_host=its.sends.identity.store_host,
    )
    resender = MessageResender(
        messaging.operators_resend, its.sends.commit.until_durable, its.sends.identity.store_host, clock
    )
    jobs = Jobs(
        JobTable(store.state_engine),
        {
            JobKind.RESET_OFFSET: ResetWork(administration, its.delivery, store.offsets),
            JobKind.RESEND_DEAD_LETTERS: DeadLetterWork(box, its.edge.error_reporter.report),
            JobKind.RESEND_MESSAGES: MessageResendWork(store.messages, store.topics, maintenance.key_index, resender),
        },
        writer=its.delivery.writer,
        clock=clock,
        metrics=its.sends.metrics.jobs,
    )
    service = JobService(
        jobs,
        maintenance.verification,
        log_end=lambda: store.messages.dispatched_up_to,
        cluster=administration.facts.cluster,
        error_reporter=its.edge.error_reporter,
    )
    names = NameHistory(sources.rates, sources.background.lag)
    recording = make_recording(sources, [names])
    unsent = UnsentDeadLetters(box, sources.background.groups_max)
    around = host_commands(os.environ)
    paths = StorePaths(Path(administration.facts.store_directory))
    concerns = Concerns(sources, unsent, lambda: recording.history.latest(LOOP_LATE), around, paths, copies=copies)
    its.sends.metrics.watch(lambda: concern_metrics(concerns.counts, unsent.groups))
    looking = Sampling((unsent.steps, concerns.steps), interval_s=sources.background.sampling.interval_s, clock=clock)
    overviews = make_overview_service(sources, administration, recording, concerns, names=names, jobs=jobs, box=box)
    services: list[MoreService] = [DeadLetterService(box, its.edge.error_reporter), service, overviews]
    return OperatorsWork(jobs, recording, looking, services, overviews.own_overview)
