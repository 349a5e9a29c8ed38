"""Assemble the long work for operators from a broker's parts, and the services of the admin port that serve it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from quarry_mq.server.admin.administration import Administration
from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.admin.figures.recorder import Recording, make_recording
from quarry_mq.server.admin.figures.sources import Sources
from quarry_mq.server.admin.jobs.dead_letters import DeadLetterWork
from quarry_mq.server.admin.jobs.resend import MessageResendWork
from quarry_mq.server.admin.jobs.reset import ResetWork
from quarry_mq.server.admin_port.messages.dead_letters import DeadLetterService
from quarry_mq.server.admin_port.messages.jobs import JobService
from quarry_mq.server.admin_port.messages.resend import MessageResender
from quarry_mq.server.admin_port.overview.service import make_overview_service
from quarry_mq.server.admin_port.server import MoreService
from quarry_mq.server.delivery import InFlightTable
from quarry_mq.server.jobs import JobKind, Jobs
from quarry_mq.server.tasks.supervision import Supervisor
from quarry_mq.store.state.jobs import JobTable


class OperatorsWork(NamedTuple):
    """The jobs and statistics, to be run while the services are served.

    `own_overview` is for the other members of a cluster.
    """

    jobs: Jobs
    recording: Recording
    services: list[MoreService]
    own_overview: Callable[[], bytes]

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        async with supervisor.running("jobs", self.jobs.run()), supervisor.running("history", self.recording.run()):
            yield


def make_operators_work(sources: Sources, administration: Administration) -> OperatorsWork:
    messaging, upkeep, its = sources.messaging, sources.upkeep, sources.components
    store, clock = its.store, its.clock
    box = DeadLetterBox(
        store.topics,
        source=store.messages,
        offsets=store.offsets,
        inflight=InFlightTable(store.state_engine),
        writer=its.delivery.writer,
        send=its.copies.send,
        until_durable=its.sends.commit.until_durable,
        store_host=its.sends.identity.store_host,
    )
    resender = MessageResender(messaging.operators_resend, its.sends.identity.store_host, clock)
    jobs = Jobs(
        JobTable(store.state_engine),
        {
            JobKind.RESET_OFFSET: ResetWork(administration, its.delivery, store.offsets),
            JobKind.RESEND_DEAD_LETTERS: DeadLetterWork(box),
            JobKind.RESEND_MESSAGES: MessageResendWork(store.messages, store.topics, upkeep.key_index, resender),
        },
        writer=its.delivery.writer,
        until_durable=its.sends.commit.until_durable,
        clock=clock,
        metrics=its.sends.metrics.jobs,
    )
    service = JobService(
        jobs,
        upkeep.verification,
        log_end=lambda: store.messages.dispatched_up_to,
        cluster=administration.facts.cluster,
        faults=its.edge.faults,
    )
    recording = make_recording(sources)
    overviews = make_overview_service(sources, administration, recording, jobs, box)
    services: list[MoreService] = [DeadLetterService(box, its.edge.faults), service, overviews]
    return OperatorsWork(jobs, recording, services, overviews.own_overview)
