"""Reconciles migrations: how far a pod follows a RocketMQ broker, and the order to cut over.

The container `follow` of the pod does the work: `quarry follow --rest-after-cut-over`. It writes a report into the
store. The operator reads the report, and gives the order by the command that a person would type. The order stays in
the store until it is carried out. So it does not matter when the operator or the container ends.

    Following  ⇄  CaughtUp  →  CuttingOver  →  Served
        Failed, from each of the first three and back
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from quarry_mq.cli.following.files import Report, State
from quarry_mq.cli.operator.kubernetes import Container, Kubernetes
from quarry_mq.cli.operator.resources import MIGRATION, READY, Condition, Note, Outcome, Resource
from quarry_mq.cli.operator.shards import STORE
from quarry_mq.cli.terminal.quantities import bytes_text
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.layout.paths import StorePaths

CAUGHT_UP: Final = "CaughtUp"
"""The condition that says whether a cut-over may begin."""

TOLD_EVERY_S: Final = 10.0
"""Seconds after which the positions in the status are renewed, if nothing else has changed."""
LAG_SLACK: Final = 8
"""A pod has caught up until it lacks this multiple of what it may lack: load comes and goes."""
SILENT_S: Final = 60.0
"""Seconds without a report after which something is wrong with a process that runs."""
READ_TIMEOUT_S: Final = 10.0
ORDER_TIMEOUT_S: Final = 90.0
"""Seconds that a cut-over takes at most: less than 1 MiB is missing, and RocketMQ gets 30 s to come to rest."""


REPORT: Final = str(StorePaths(Path(STORE)).following)
"""The file with the report, in a pod of the chart."""
FAILURE: Final = "cutOverFailure"
CUT_OVER_FAILED: Final = "CutOverFailed"
NOT_ORDERED: Final = "NotOrdered"
TRY_AGAIN: Final = "to try again, set spec.cutOver to false and then to true"


class Phase(StrEnum):
    """The phase of a migration."""

    FOLLOWING = "Following"
    CAUGHT_UP = "CaughtUp"
    CUTTING_OVER = "CuttingOver"
    SERVED = "Served"
    FAILED = "Failed"


AGAIN_S: Final = {Phase.FOLLOWING: 5.0, Phase.CAUGHT_UP: 5.0, Phase.CUTTING_OVER: 1.0, Phase.FAILED: 10.0}
"""Seconds until the next look at a pod."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The specification of a migration, and the phase that the last look has found."""

    pod: str
    cuts_over: bool
    lag_max: int
    before: Phase | None

    @classmethod
    def of(cls, resource: Resource) -> Wanted:
        spec, before = resource.spec, resource.status.get("phase")
        return cls(
            spec["pod"], bool(spec.get("cutOver")), int(spec["maxLagBytes"]), None if before is None else Phase(before)
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A look has found a phase, and a problem if people have to do something."""

    phase: Phase
    message: str
    report: Report | None = None
    problem: str = ""
    """The reason in camel case; empty if things go on by themselves."""


class MigrationReconciler:
    """Brings a pod that follows a RocketMQ broker to what a Migration says."""

    kind = MIGRATION

    def __init__(self, kubernetes: Kubernetes, clock: Clock) -> None:
        self._kubernetes = kubernetes
        self._clock = clock
        self._told_s: dict[str, float] = {}

    def thing(self, resource: Resource) -> str:
        return str(resource.spec.get("pod", resource.name))

    async def reconcile(self, resource: Resource, rivals: Collection[Resource]) -> Outcome:
        """Look at one pod, and order the cut-over if it is wanted. Raises KubernetesFailed."""
        del rivals
        wanted = Wanted.of(resource)
        if resource.is_being_deleted or wanted.before is Phase.SERVED:
            return Outcome()
        found = await self._look(resource, wanted)
        return self._told(resource, wanted, found)

    async def _look(self, resource: Resource, wanted: Wanted) -> Found:
        pod = wanted.pod
        containers = await self._kubernetes.containers(pod)
        follower = containers.get("follow")
        if follower is None:
            text = f"pod {pod} has no container follow: set follow.from in the values of the chart"
            missing = f"there is no pod {pod}, or it has not begun to start"
            return Found(Phase.FAILED, text, None, "NotFollowing") if containers else Found(Phase.FOLLOWING, missing)
        report = await self._report(pod)
        # Kubernetes knows the second in which a container has failed
        if report is None or report.at_ms < follower.failed_at_ms + 1000:
            if follower.failure:
                return Found(Phase.FAILED, follower.failure, report, "FollowFailed")
            if follower.waits_for:
                text = f"the container follow of {pod} does not run: {follower.waits_for}"
                return Found(Phase.FOLLOWING, text, report, "NotRunning")
        if report is None:
            return Found(Phase.FOLLOWING, f"{pod} has not reported yet: kubectl logs {pod} --container follow")
        match report.state:
            case State.CUT_OVER:
                return _served(report, wanted, containers.get("broker"))
            case State.SERVED:
                return Found(Phase.FAILED, report.failure, report, "NotEmpty")
            case State.CUTTING_OVER:
                return Found(Phase.CUTTING_OVER, f"{pod} cuts over from {report.broker}", report, self._silence(report))
            case State.FOLLOWING:
                return await self._followed(resource, wanted, report)

    async def _report(self, pod: str) -> Report | None:
        done, text = await self._kubernetes.run(pod, ("cat", REPORT), timeout_s=READ_TIMEOUT_S)
        return Report.parse(text) if done else None

    async def _followed(self, resource: Resource, wanted: Wanted, report: Report) -> Found:
        """Say how far a pod is that follows, and order the cut-over if it is wanted and little is missing."""
        failed = resource.status.get(FAILURE) or {}
        if wanted.cuts_over and failed.get("generation") == resource.generation:
            # whatever has happened since, nobody has asked for another attempt
            return Found(Phase.FAILED, failed["message"], report, CUT_OVER_FAILED)
        was_ordered = wanted.before is Phase.CUTTING_OVER and resource.condition(READY).get("reason") != NOT_ORDERED
        if report.failure and was_ordered:
            return Found(Phase.FAILED, f"{report.failure}; {TRY_AGAIN}", report, CUT_OVER_FAILED)
        stays = wanted.before is Phase.CAUGHT_UP and not wanted.cuts_over
        lag_max = wanted.lag_max * (LAG_SLACK if stays else 1)
        text = f"{wanted.pod} follows {report.broker}, and lacks {bytes_text(report.lag_size)} of its log"
        if report.problem:
            problem = f"{text}, which was its end when it last answered; it is tried again: {report.problem}"
            return Found(Phase.FOLLOWING, problem, report, "BrokerAway")
        if silence := self._silence(report):
            return Found(Phase.FOLLOWING, f"{text}; since then it has reported nothing", report, silence)
        if report.lag_size > lag_max:
            limit = f"; the cut-over begins when it lacks {bytes_text(wanted.lag_max)} at most"
            return Found(Phase.FOLLOWING, f"{text}{limit if wanted.cuts_over else ''}", report)
        if wanted.cuts_over:
            return await self._ordered(resource, wanted, report)
        return Found(Phase.CAUGHT_UP, f"{text}; spec.cutOver: true moves to Quarry", report)

    async def _ordered(self, resource: Resource, wanted: Wanted, report: Report) -> Found:
        """Order the cut-over, and wait for its end as a person would."""
        await self._kubernetes.write_status(resource, {"status": {"phase": Phase.CUTTING_OVER}})
        command = ("quarry", "follow", report.broker, "--store", STORE, "--cut-over")
        done, text = await self._kubernetes.run(wanted.pod, command, timeout_s=ORDER_TIMEOUT_S)
        report = await self._report(wanted.pod) or report
        if done or report.state is not State.FOLLOWING:
            return Found(Phase.CUTTING_OVER, f"{wanted.pod} cuts over from {report.broker}", report)
        if report.failure and report.failure in text:
            return Found(Phase.FAILED, f"{report.failure}; {TRY_AGAIN}", report, CUT_OVER_FAILED)
        return Found(Phase.CUTTING_OVER, f"the cut-over could not be ordered: {text}", report, NOT_ORDERED)

    def _silence(self, report: Report) -> str:
        return "Silent" if self._clock.wall_ms() - report.at_ms > 1000 * SILENT_S else ""

    # -- the status

    def _told(self, resource: Resource, wanted: Wanted, found: Found) -> Outcome:
        """Leave positions as the status has them, unless it is time to renew them: each change is a write."""
        reason, again_s = found.problem or str(found.phase), AGAIN_S.get(found.phase)
        is_same = found.phase is wanted.before and resource.condition(READY).get("reason") == reason
        now_s = self._clock.monotonic_s()
        is_declared = resource.status.get("observedGeneration") == resource.generation
        if is_same and is_declared and now_s - self._told_s.get(resource.uid, -TOLD_EVERY_S) < TOLD_EVERY_S:
            return Outcome(again_s=again_s)
        self._told_s[resource.uid] = now_s
        is_near = found.phase in (Phase.CAUGHT_UP, Phase.CUTTING_OVER, Phase.SERVED)
        conditions = [
            Condition(READY, found.phase is Phase.SERVED, reason, found.message, is_awaited=not found.problem),
            Condition(CAUGHT_UP, is_near, str(found.phase), found.message, is_awaited=True),
        ]
        is_news = found.phase not in (wanted.before, Phase.FAILED)
        notes = [Note(str(found.phase), found.message)] if is_news else []
        fields = _fields(found)
        if found.problem == CUT_OVER_FAILED:
            fields[FAILURE] = {"generation": resource.generation, "message": found.message}
        return Outcome(conditions=conditions, fields=fields, notes=notes, again_s=again_s)


def _served(report: Report, wanted: Wanted, broker: Container | None) -> Found:
    if broker is None or not broker.is_ready:
        text = f"the store of {wanted.pod} is complete, and its broker opens it"
        return Found(Phase.CUTTING_OVER, text, report)
    refused = f"{report.broker} refused messages for {report.refused_s or 0:.1f} s before the store was complete"
    return Found(Phase.SERVED, f"the broker of {wanted.pod} serves what {report.broker} had; {refused}", report)


def _fields(found: Found) -> dict[str, Any]:
    fields: dict[str, Any] = {"phase": str(found.phase)}
    if (report := found.report) is not None:
        fields |= {
            "broker": report.broker,
            "logEnd": report.log_end,
            "behindBytes": report.lag_size,
            "behind": bytes_text(report.lag_size),
            "reportedAt": datetime.fromtimestamp(report.at_ms // 1000, UTC).isoformat().replace("+00:00", "Z"),
        }
        if report.refused_s is not None:
            fields["downtimeSeconds"] = round(report.refused_s, 3)
    return fields
