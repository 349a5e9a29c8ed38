"""Long work for operators, put together from a broker's parts, and what the admin port serves of it."""

from __future__ import annotations

from typing import NamedTuple

from server.administration import Administration
from server.dead_letter_box import DeadLetterBox
from server.jobs import JobKind, Jobs
from server.jobs.dead_letters import DeadLetterWork
from server.jobs.resending import MessageResendWork
from server.jobs.resetting import ResetWork
from server.messaging import Messaging
from server.rpc.admin_port.dead_letters import DeadLetterService
from server.rpc.admin_port.jobs import JobService
from server.rpc.admin_port.server import MoreService
from server.rpc.resending import MessageResender
from server.upkeep import Upkeep
from store.jobs import JobTable


class OperatorsWork(NamedTuple):
    """`jobs` is to run as long as the services are served."""

    jobs: Jobs
    services: list[MoreService]


def make_operators_work(messaging: Messaging, administration: Administration, upkeep: Upkeep) -> OperatorsWork:
    its = messaging.components
    store, clock = its.store, its.clock
    box = DeadLetterBox(
        store.topics,
        source=store.messages,
        offsets=store.offsets,
        writer=its.state_writer,
        send=its.commit.send,
        store_host=its.store_host,
    )
    resender = MessageResender(messaging.operators_resend, its.store_host, clock)
    jobs = Jobs(
        JobTable(store.state_engine),
        {
            JobKind.RESET_OFFSET: ResetWork(administration, its.delivery, store.offsets),
            JobKind.RESEND_DEAD_LETTERS: DeadLetterWork(box),
            JobKind.RESEND_MESSAGES: MessageResendWork(store.messages, store.topics, upkeep.key_index, resender),
        },
        writer=its.state_writer,
        clock=clock,
        metrics=its.metrics.jobs,
    )
    service = JobService(
        jobs,
        upkeep.verification,
        log_end=lambda: store.messages.dispatched_up_to,
        cluster=administration.facts.cluster,
        faults=its.faults,
    )
    return OperatorsWork(jobs, [DeadLetterService(box, its.faults), service])
